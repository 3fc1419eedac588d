"""Verbs about this machine: agents."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from issueflow.errors import IssueflowError
from issueflow.views import line, say, table, tell

if TYPE_CHECKING:
    from issueflow.engine.programs import Configured, Program
    from issueflow.models import Config

AGENTS_VERSION = 1


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
