"""The agent `claude`: `claude -p` with JSON events; who only reads gets reading tools and a bound answer."""

import json
import os
from typing import Any

from issueflow.agents import Capabilities, Launch, Report, Task, refuse_others
from issueflow.agents.stream import (
    amount,
    at,
    complaint,
    conversation,
    events,
    failure,
    number,
    problem,
    rows,
    shorten,
    text,
)
from issueflow.models import AgentSettings, Problem, Usage

CAPABILITIES = Capabilities(
    session_id_choice=True,
    resume=True,
    resume_elsewhere=True,
    schema=True,
    max_turns=True,
    budget=True,
    usage="run",
    cost="conversation",
    add_dirs=True,
)
BYPASS = "--dangerously-skip-permissions"


def check(name: str, settings: AgentSettings) -> None:
    """Everything has a default."""
    refuse_others(name, settings, {"argv", "args", "model"})


def launch(settings: AgentSettings, task: Task) -> Launch:
    """Edits and, where the role may run commands, the shell without asking; else nothing that could change a file.

    Options that take a list would swallow a prompt on the command line; it comes on standard input.
    """
    argv = [*(settings.argv or ("claude",)), "-p", "--output-format", "stream-json", "--verbose"]
    argv += ["--model", settings.model] if settings.model else []
    if task.session:
        argv += ["--resume" if task.session.resume else "--session-id", task.session.id]
    if task.access == "write":
        argv += ["--permission-mode", "acceptEdits"]
        argv += ["--allowedTools", "Bash"] if task.commands else ["--disallowedTools", "Bash"]
    else:
        argv += ["--tools", "Read,Grep,Glob", "--json-schema", task.schema.read_text()]
    # Without this a service that is down is asked ten times with growing pauses, past most time limits.
    env = {"CLAUDE_CODE_MAX_RETRIES": "3", **settings.env}
    if BYPASS in settings.args and os.geteuid() == 0:
        env.setdefault("IS_SANDBOX", "1")  # it refuses that option to root otherwise
    return Launch([*argv, *settings.args], task.prompt, env)


def read(stdout: str, stderr: str, ended: int) -> Report:
    """The last `result` event counts: there is one more for each background command that the first did not wait for."""
    session: str | None = None
    final: dict[str, Any] | None = None
    retry: dict[str, Any] | None = None
    denials: list[str] = []
    for event in events(stdout):
        session = conversation(event, "session_id") or session
        retry = event if event.get("subtype") == "api_retry" else None
        if event.get("type") == "result":
            final = event
            denials += [_denial(one) for one in rows(event, "permission_denials")]
    if final is None:
        return Report("", session, None, None, (), _unfinished(session, retry, stderr, ended))
    bound = at(final, "structured_output")
    message = json.dumps(bound) if isinstance(bound, dict) else text(final, "result")
    succeeded = not final.get("is_error")
    trouble = None if succeeded else _problem(final, ended)
    return Report(message, session, _usage(final), succeeded, tuple(dict.fromkeys(denials)), trouble)


def _denial(denied: object) -> str:
    given = at(denied, "tool_input")
    words = " ".join(str(value) for value in given.values()) if isinstance(given, dict) else ""
    return shorten(f"{text(denied, 'tool_name')}: {words}")


def _usage(final: dict[str, Any]) -> Usage:
    used = at(final, "usage")
    parts = [number(used, f"{kind}input_tokens") for kind in ("", "cache_read_", "cache_creation_")]
    return Usage(
        input=None if parts[0] is None else sum(part or 0 for part in parts),
        output=number(used, "output_tokens"),
        cached=parts[1],
        cost_usd=amount(final, "total_cost_usd"),
    )


def _problem(final: dict[str, Any], ended: int) -> Problem:
    errors = "; ".join(str(error) for error in rows(final, "errors"))
    words = text(final, "result") or errors or text(final, "subtype")
    if text(final, "terminal_reason") == "max_turns":
        return problem("turns", words, ended)
    if text(final, "terminal_reason") == "budget_exhausted" or text(final, "subtype") == "error_max_budget_usd":
        return problem("budget", words, ended)
    if text(final, "stop_reason") == "refusal":
        return problem("refusal", words, ended)
    return failure(words, ended)


def _unfinished(session: str | None, retry: dict[str, Any] | None, stderr: str, ended: int) -> Problem | None:
    """It was ended while it asked its service again and again, or it never began."""
    if retry:
        return failure(f"{text(retry, 'error')} {number(retry, 'error_status') or ''}", ended)
    if session is None and (words := complaint(stderr)):
        return failure(words, ended, "usage")
    return None
