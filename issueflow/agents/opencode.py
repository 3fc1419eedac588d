"""The agent `opencode`: `opencode run --format json`; who only reads has its editing and its shell tool taken away."""

from typing import Any

from issueflow.agents import Capabilities, Launch, Report, Task, refuse_others
from issueflow.agents.stream import amount, at, complaint, conversation, events, failure, number, shorten, text
from issueflow.models import AgentSettings, Problem, Usage

# A conversation belongs to the folder it began in: from another worktree it would work in the old one.
CAPABILITIES = Capabilities(resume=True, usage="run", cost="run")
READS = '{"edit": "deny", "bash": "deny"}'


def check(name: str, settings: AgentSettings) -> None:
    """Everything has a default."""
    refuse_others(name, settings, {"argv", "args", "model"})


def launch(settings: AgentSettings, task: Task) -> Launch:
    """Inside its folder it may edit and run commands by default; what it may not is laid over its own settings."""
    argv = [*(settings.argv or ("opencode",)), "run", "--format", "json"]
    argv += ["-m", settings.model] if settings.model else []
    argv += ["-s", task.session.id] if task.session and task.session.resume else []
    env = {"OPENCODE_PERMISSION": READS} if task.access != "write" else {}
    return Launch([*argv, *settings.args], task.prompt, {**settings.env, **env})


def read(stdout: str, stderr: str, ended: int) -> Report:
    """There is no event at the end: that the last step stopped of itself is the best sign of success.

    A tool that would ask is refused, which ends the turn with exit code 0.
    """
    session: str | None = None
    message, trouble = "", ""
    succeeded: bool | None = None
    denials: list[str] = []
    steps: list[Any] = []
    for event in events(stdout):
        session = conversation(event, "sessionID") or session
        match event.get("type"):
            case "text":
                message = text(event, "part", "text")
            case "tool_use" if _was_denied(event):
                denials.append(shorten(f"{text(event, 'part', 'tool')}: {at(event, 'part', 'state', 'input')}"))
            case "step_finish":
                steps.append(at(event, "part"))
                succeeded = True if text(event, "part", "reason") == "stop" else None
            case "error":
                trouble, succeeded = _words(event), False
    usage = _usage(steps) if steps else None
    problem = _problem(session, trouble, stderr, ended)
    return Report(message, session, usage, succeeded, tuple(dict.fromkeys(denials)), problem)


def _was_denied(event: dict[str, Any]) -> bool:
    words = text(event, "part", "state", "error").lower()
    return "reject" in words or "permission" in words or "prevents you" in words


def _words(event: dict[str, Any]) -> str:
    name, data = text(event, "error", "name"), at(event, "error", "data")
    return " ".join(str(word) for word in (name, text(data, "message"), number(data, "statusCode")) if word)


def _usage(steps: list[Any]) -> Usage:
    """The sum of the steps; what was read from a cache is told apart from the rest."""
    plain, out = _sum(steps, "input"), _sum(steps, "output")
    cached = _sum(steps, "cache", "read")
    cost = sum(amount(step, "cost") or 0 for step in steps)
    return Usage(
        input=None if plain is None else plain + (cached or 0),
        output=out,
        cached=cached,
        cost_usd=cost or None,  # a model that is not in its price list costs 0
    )


def _sum(steps: list[Any], *keys: str) -> int | None:
    found = [tokens for step in steps if (tokens := number(step, "tokens", *keys)) is not None]
    return sum(found) if found else None


def _problem(session: str | None, trouble: str, stderr: str, ended: int) -> Problem | None:
    if trouble:
        return failure(trouble, ended)
    if session is None and (words := complaint(stderr)):
        return failure(words, ended, "usage")
    return None
