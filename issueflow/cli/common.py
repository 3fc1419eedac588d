"""What several verbs need: the Issue argument, the project one stands in, the line that says what comes next."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from issueflow.errors import IssueflowError, WrongWords
from issueflow.views import say

if TYPE_CHECKING:
    from issueflow.machine import Position
    from issueflow.project import Project


MOST_REMARK = 20_000  # characters, as a finding's claim in models.py


def complete_issue(incomplete: str) -> list[str]:
    """The Issues' names that begin with what was typed, for the shell; nothing where there is no repository."""
    from pathlib import Path

    from issueflow.cli.overview import rows
    from issueflow.git.layout import locate

    try:
        names = [str(row["issue"]) for row in rows(locate(Path.cwd()).common / "issueflow")]
    except (IssueflowError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete.upper()) or name[6:].startswith(incomplete)]


IssueArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[ISSUE]",
        show_default=False,
        autocompletion=complete_issue,
        help="ISSUE-7 or 7; may be left out when one is open.",
    ),
]


def project() -> "Project":
    """The project around the working directory."""
    from pathlib import Path

    from issueflow.project import Project

    return Project(Path.cwd())


def is_issue(word: str) -> bool:
    """Does the word name an Issue, by its form?"""
    return word.upper().startswith("ISSUE-") or (word.isascii() and word.isdigit())


def issue_id(project: "Project", given: str | None) -> str:
    """The Issue meant; WrongWords when it is none, or when none was named and several are open."""
    from issueflow.models import ISSUE_ID

    if given is not None:
        name = f"ISSUE-{given}" if given.isascii() and given.isdigit() else given.upper()
        if not ISSUE_ID.fullmatch(name):
            raise WrongWords(f"{given!r} is no Issue; they are called ISSUE-7, or 7 for short", "issueflow status")
        return name
    names, still_open = project.store.ids(), open_issues(project)
    if len(still_open) == 1:
        return still_open[0]
    if not still_open and len(names) == 1:
        return names[0]
    if not names:
        raise WrongWords("there is no Issue here yet", "issueflow new REQUIREMENT.md")
    raise WrongWords(f"which Issue? Open are: {', '.join(still_open) or 'none'}", "issueflow status")


def open_issues(project: "Project") -> list[str]:
    """The Issues that are not over; one that cannot be read is none."""
    from issueflow.cli.overview import rows

    return [
        row["issue"] for row in rows(project.store.root) if row["status"] not in ("delivered", "cancelled", "failed")
    ]


def plain(text: str) -> str:
    """Words from the command line as text that can be stored: bytes that are no UTF-8 become marks."""
    return os.fsencode(text).decode(errors="replace")


def remark(text: str, verb: str) -> str:
    """What a person says of an Issue, as it can be stored; WrongWords when it is too long for a finding: never cut."""
    if len(text) > MOST_REMARK:
        hint = f"issueflow {verb} --help"
        raise WrongWords(f"the text is longer than {MOST_REMARK} characters; put it into a file and name that", hint)
    return plain(text)


def say_next(position: "Position") -> None:
    """`next: …`, the command that takes the Issue on."""
    from issueflow.machine.state import next_command

    if command := next_command(position):
        say(f"next: {command}")


def exit_code(position: "Position") -> int:
    """4 when the Issue is held or has failed, else 0."""
    return 4 if position.status in ("held", "failed") else 0
