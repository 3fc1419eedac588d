"""The agent `gemini`: `gemini -o stream-json`; who only reads is not offered the tools that could change a file."""

import re
from typing import Any

from issueflow.agents import Capabilities, Launch, Report, Task, refuse_others
from issueflow.agents.stream import at, complaint, conversation, events, failure, number, problem, shorten, text
from issueflow.models import AgentSettings, Problem, Usage

# A conversation belongs to the folder it began in: from another one it is refused.
CAPABILITIES = Capabilities(session_id_choice=True, resume=True, usage="run", add_dirs=True, trust=True)
RETRY = re.compile(r"^Attempt \d+ failed (?:with status \d+)?.*$", re.MULTILINE)


def check(name: str, settings: AgentSettings) -> None:
    """Everything has a default."""
    refuse_others(name, settings, {"argv", "args", "model"})


def launch(settings: AgentSettings, task: Task) -> Launch:
    """Every worktree is a new folder to it, which it is told to trust; else it neither starts nor offers its tools.

    Without `yolo` a tool that would ask is not offered to the model at all.
    """
    argv = [*(settings.argv or ("gemini",)), "-o", "stream-json"]
    argv += ["-m", settings.model] if settings.model else []
    if task.session:
        argv += ["-r" if task.session.resume else "--session-id", task.session.id]
    argv += ["--approval-mode", "yolo" if task.access == "write" else "default"]
    # It would start itself again as a child, which a signal to the first one does not reach.
    env = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "GEMINI_CLI_NO_RELAUNCH": "true", **settings.env}
    return Launch([*argv, *settings.args], task.prompt, env)


def read(stdout: str, stderr: str, ended: int) -> Report:
    """The last message is in pieces, one behind the other; a result event ends the stream."""
    session: str | None = None
    message, asked = "", ""
    final: dict[str, Any] | None = None
    denials: list[str] = []
    waiting = False
    for event in events(stdout):
        waiting = event.get("type") == "tool_result" or event.get("role") == "user"
        match event.get("type"):
            case "init":
                session = conversation(event, "session_id") or session
            case "message" if event.get("role") == "assistant":
                message += text(event, "content")
            case "tool_use":
                asked, message = f"{text(event, 'tool_name')}: {at(event, 'parameters')}", ""
            case "tool_result" if "denied" in text(event, "error", "message").lower():
                denials.append(shorten(asked))
            case "result":
                final = event
    succeeded = None if final is None else text(final, "status") == "success"
    usage = _usage(final) if final else None
    found = _problem(final, session, message, stderr, ended)
    if final is None and waiting and (tries := RETRY.findall(stderr)):
        found = failure(tries[-1], ended)
    return Report(message, session, usage, succeeded, tuple(dict.fromkeys(denials)), found)


def _usage(final: dict[str, Any]) -> Usage:
    return Usage(
        input=number(final, "stats", "input_tokens"),
        output=number(final, "stats", "output_tokens"),
        cached=number(final, "stats", "cached"),
    )


def _problem(
    final: dict[str, Any] | None, session: str | None, message: str, stderr: str, ended: int
) -> Problem | None:
    if final and text(final, "status") == "success":  # also where a long prompt or a refusal left nothing to say
        return None if message else problem("refusal", "it ended its turn without a word", ended)
    if final:
        return failure(text(final, "error", "message"), ended)
    if session is None and (words := complaint(stderr)):
        return failure(words, ended, "usage")
    return None
