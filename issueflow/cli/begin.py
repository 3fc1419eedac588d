"""Verbs that begin something: init, new, demo."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from issueflow.cli.common import plain, project, say_next
from issueflow.errors import IssueflowError, WrongWords
from issueflow.views import answer, say

MOST_REQUIREMENT = 2 * 1024 * 1024  # bytes; a requirement is prose, and every reviewer reads all of it


def init(
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent CLI to use, see issueflow agents.")
    ] = None,
) -> int:
    """Write .issueflow/ for this project

    Takes the agent CLIs that are installed, detects the project's checks, asks nothing, overwrites nothing. Says what
    it chose; look at .issueflow/config.yaml afterwards and commit the folder.

    Example: issueflow init --agent codex
    """
    from issueflow import project as projects

    here = project()
    for said in projects.init(here, agent):
        say(said)
    answer(str(here.root / projects.FOLDER))
    say("next: issueflow new REQUIREMENT.md")
    return 0


def new(
    requirement: Annotated[str, typer.Argument(metavar="FILE", help="The requirement; - reads standard input.")],
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="default, quick, or your own.")
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TEXT", help="Instead of the file's first heading.")
    ] = None,
    base: Annotated[str | None, typer.Option("--base", metavar="REF", help="Start from here instead of HEAD.")] = None,
    advance: Annotated[bool, typer.Option("--advance", help="Go on at once, until a person is asked.")] = False,
) -> int:
    """Begin an Issue for a written requirement

    The file may lie anywhere; it is copied. Prints the Issue's name.

    Example: issueflow new ../notes/r3.md --workflow quick
    """
    from issueflow.engine.begin import create
    from issueflow.engine.issues import load
    from issueflow.machine.requirement import read_requirement

    text, origin = read_file(requirement)
    here = project()
    hands = here.hands()
    said = read_requirement(text, origin)
    name = create(hands, text, _title(title) or said.title, origin, workflow or said.workflow, base or said.base)
    answer(name)
    position = load(hands.store.issue(name))
    say(f"{name}: {position.created.title}, from {position.base[:12]}")
    if position.created.base_name and (note := hands.repository.behind_upstream(position.created.base_name)):
        say(f"note: {note}")
    if advance:
        from issueflow.cli.walk import go

        return go(hands, name)
    say_next(position)
    return 0


def _title(given: str | None) -> str:
    from issueflow.machine.requirement import MOST_TITLE

    title = " ".join(plain(given or "").split())
    if len(title) > MOST_TITLE:
        raise WrongWords(f"the title is longer than {MOST_TITLE} characters", "issueflow new --help")
    return title


def read_file(requirement: str) -> tuple[bytes, str]:
    """A requirement's bytes and where it lies; WrongWords when it is no text that people read."""
    called = requirement
    if requirement == "-":
        called, origin = "standard input", "-"
        if sys.stdin is None:  # `<&-`
            raise WrongWords("standard input is closed", "issueflow new --help")
        data = sys.stdin.buffer.read(MOST_REQUIREMENT + 1)
    else:
        path = Path(requirement)
        try:
            with path.open("rb") as stream:
                data = stream.read(MOST_REQUIREMENT + 1)
        except OSError as error:
            raise WrongWords(f"{requirement} cannot be read: {error.strerror}", "issueflow new --help") from error
        origin = plain(str(path.absolute()))
    if len(data) > MOST_REQUIREMENT:
        raise WrongWords(
            f"{called} is larger than {MOST_REQUIREMENT >> 20} MiB; is it the right file?", "issueflow new --help"
        )
    if not data.strip():
        raise WrongWords(f"{called} is empty", "issueflow new --help")
    if b"\0" in data:
        raise WrongWords(f"{called} is not text", "issueflow new --help")
    return data, origin


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Make the repository here and keep it.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Give the person's approvals without asking.")] = False,
) -> int:
    """See a whole walk in a small repository

    A requirement goes through the workflow `default`. Everything is real but the agent, which plays a script:
    worktrees, commits, reviews that send back, checks.

    Example: issueflow demo --yes --dir /tmp/shop
    """
    from issueflow.cli.demo import play

    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise IssueflowError(f"{directory} is not empty", "issueflow demo --dir NEW-FOLDER")
    return play(directory, yes=yes)
