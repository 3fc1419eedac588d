"""Verbs about this machine: agents, doctor."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from issueflow.errors import IssueflowError
from issueflow.views import answer, line, say, table, tell

if TYPE_CHECKING:
    from issueflow.engine.doctor import Finding
    from issueflow.engine.programs import Configured, Program
    from issueflow.models import Config

AGENTS_VERSION = 1
DOCTOR_VERSION = 1


def agents(
    check: Annotated[bool, typer.Option("--check", help="Ask each for its version, up to ten seconds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> int:
    """List the agent CLIs: installed or not, logged in or not

    Lists those that issueflow knows and those of .issueflow/config.yaml. Nothing is asked of a service: a login is told
    from a variable or a file that is there, and not read; a system's keyring cannot be seen. With --check each known
    CLI is run with --version, in an empty folder. Exit code 1 when an agent that plays a role cannot be started.

    Example: issueflow agents --check
    """
    from issueflow.engine.programs import configured_agents, known_programs

    known = known_programs(check=check)
    config, root, problem = _configuration()
    configured = configured_agents(config, root) if config else []
    missing = [agent for agent in configured if agent.needs and agent.roles]
    if as_json:
        whole = {
            "version": AGENTS_VERSION,
            "known": [asdict(one) for one in known],
            "configured": [asdict(one) for one in configured],
            "error": str(problem) if problem else None,
        }
        print(json.dumps(whole, indent=2))
    else:
        _show(known, configured)
    if problem:
        raise problem
    return 1 if missing else 0


def _configuration() -> "tuple[Config | None, Path, IssueflowError | None]":
    """The configuration of the project one stands in; None where there is none, with the error when it is broken."""
    from issueflow.cli.common import project
    from issueflow.project import FOLDER

    try:
        here = project()
        root = here.root
        if not (root / FOLDER / "config.yaml").exists():
            return None, root, None
    except IssueflowError:
        return None, Path.cwd(), None
    try:
        return here.config(), root, None
    except IssueflowError as error:
        return None, root, error


def _show(known: "list[Program]", configured: "list[Configured]") -> None:
    rows = [
        (one.name, one.path or "–", one.version or "–", one.login or "–", _needs(one.needs, one.hint)) for one in known
    ]
    head = ("AGENT", "PROGRAM", "VERSION", "LOGIN", "NEEDS")
    table(head, rows, sys.stdout, flexible=4, styles=["dim" if one.path is None else "" for one in known])
    if configured:
        tell("", sys.stdout)
        own = [
            (one.name, one.type, ", ".join(one.roles) or "–", one.path or one.program, _needs(one.needs, one.hint))
            for one in configured
        ]
        head = ("CONFIG.YAML", "TYPE", "ROLES", "PROGRAM", "NEEDS")
        table(head, own, sys.stdout, flexible=4, styles=["red" if one.needs else "" for one in configured])
    wanting = [one for one in configured if one.needs] or ([] if any(one.path for one in known) else known[:1])
    for one in wanting[:1]:
        say(f"hint: {line(one.hint)}")


def _needs(needs: str, hint: str) -> str:
    return f"{needs}: {hint}" if needs and hint else needs or "–"


def doctor(as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False) -> int:
    """Look for what stops work here

    One line for each thing: ok, a note on what may surprise, or what stops work, with a command that shows more. Looks
    at git, tools, disks, configuration, agents and at what is unusual about the repository; changes nothing. Exit code
    1 when something stops work.

    Example: issueflow doctor
    """
    found = _examine()
    stops = [one for one in found if one.level == "stop"]
    if as_json:
        findings = [asdict(one) for one in found]
        print(json.dumps({"version": DOCTOR_VERSION, "ok": not stops, "findings": findings}, indent=2))
        return 1 if stops else 0
    for one in found:
        style = {"stop": "red", "note": "yellow"}.get(one.level, "")
        answer(f"{one.level:<5} {one.about:<11} {line(one.sentence)}", style)
        if one.hint:
            answer(f"{'':<5} {'hint:':<11} {line(one.hint)}")
    say(f"{len(stops)} of {len(found)} stop work" if stops else "nothing stops work")
    return 1 if stops else 0


def _examine() -> "list[Finding]":
    from issueflow.cli.common import project
    from issueflow.engine import doctor as look

    found = look.machine()
    if any(one.about == "git" and one.level == "stop" for one in found):
        return found  # nothing more can be seen
    try:
        return [*found, *look.repository(project().looking_hands())]
    except IssueflowError as error:
        return [*found, look.Finding("stop", "repository", str(error), error.hint or "git status")]
