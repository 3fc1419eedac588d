"""The agent `codex`: `codex exec --json`, its sandbox by the stage's access, its conversation by the thread's id."""

from issueflow.agents import Capabilities, Launch, Report, Task, refuse_others
from issueflow.agents.stream import complaint, conversation, events, failure, number, problem, text
from issueflow.models import AgentSettings, Problem, Usage

CAPABILITIES = Capabilities(resume=True, resume_elsewhere=True, schema=True, usage="conversation", add_dirs=True)


def check(name: str, settings: AgentSettings) -> None:
    """Everything has a default."""
    refuse_others(name, settings, {"argv", "args", "model"})


def launch(settings: AgentSettings, task: Task) -> Launch:
    """Options stand before `resume`, which knows none of them, and are not remembered with a conversation.

    A sandbox that reads only can write no result file either: there the final message is the channel. It is not bound
    to the schema, since the service only takes schemas without optional fields.
    """
    argv = [*(settings.argv or ("codex",)), "exec", "--json"]
    # A login shell would reset PATH on some systems, and a virtualenv with it.
    argv += ["-c", "allow_login_shell=false"]
    argv += ["-s", "workspace-write" if task.access == "write" else "read-only"]
    if task.access == "write":
        # The git directories of a linked worktree lie outside of it, and each has to be named by itself.
        argv += [word for folder in task.git for word in ("--add-dir", str(folder))]
    argv += ["-m", settings.model] if settings.model else []
    argv += settings.args
    argv += ["resume", task.session.id] if task.session and task.session.resume else []
    return Launch([*argv, "-"], task.prompt, dict(settings.env))


def read(stdout: str, stderr: str, ended: int) -> Report:
    """The thread's id, the last message, the tokens of the whole thread, and how the last turn ended.

    What the sandbox denied is mostly absent from the events, so no denials are told.
    """
    session: str | None = None
    message, trouble = "", ""
    usage: Usage | None = None
    succeeded: bool | None = None
    for event in events(stdout):
        match event.get("type"):
            case "thread.started":
                session = conversation(event, "thread_id") or session
            case "item.completed" if text(event, "item", "type") == "agent_message":
                message = text(event, "item", "text")
            case "turn.started" | "item.started":
                succeeded, trouble = None, ""  # it got through; what was said of a broken connection is past
            case "turn.completed":
                usage, succeeded = _usage(event), True
            case "turn.failed":
                trouble, succeeded = text(event, "error", "message"), False
            case "error":  # the last one counts, which may be of the connection it still tries to get
                trouble = text(event, "message")
    return Report(message, session, usage, succeeded, (), _problem(session, message, succeeded, trouble, stderr, ended))


def _usage(event: dict[str, object]) -> Usage:
    return Usage(
        input=number(event, "usage", "input_tokens"),
        output=number(event, "usage", "output_tokens"),
        cached=number(event, "usage", "cached_input_tokens"),
    )


def _problem(
    session: str | None, message: str, succeeded: bool | None, trouble: str, stderr: str, ended: int
) -> Problem | None:
    if succeeded:
        return None if message else problem("refusal", "it ended its turn without a word", ended)
    if trouble:
        return failure(trouble, ended)
    if session is None and (words := complaint(stderr)):  # it never began: a wrong option, an unknown thread
        return failure(words, ended, "usage")
    return None
