"""Verbs by which a person decides: approve, request-changes, retry."""

from pathlib import Path
from typing import Annotated

import typer

from issueflow.cli.common import IssueArgument, issue_id, plain, project, say_next
from issueflow.errors import WrongWords
from issueflow.views import answer


def approve(
    issue: IssueArgument = None,
    message: Annotated[
        str, typer.Option("-m", "--message", metavar="TEXT", help="A word for the agents that follow.")
    ] = "",
) -> int:
    """Approve what waits for you

    The approval is bound to exactly what was presented: requirement, plan version, commit.

    Example: issueflow approve ISSUE-7
    """
    from issueflow.engine import decisions

    here = project()
    position = decisions.approve(here.hands(), issue_id(here, issue), plain(message))
    answer(f"{position.issue}: {position.decided[-1].stage} approved")
    say_next(position)
    return 0


def request_changes(
    issue: IssueArgument = None,
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT", help="What should change.")] = None,
    file: Annotated[
        Path | None, typer.Option("-F", "--file", metavar="FILE", help="Read the text from a file.")
    ] = None,
) -> int:
    """Send the work back with what should change

    The text becomes a finding that the next round must answer.

    Example: issueflow request-changes ISSUE-7 -m "keep the old flag"
    """
    from issueflow.engine import decisions

    if (message is None) == (file is None):
        raise WrongWords("say what should change with -m TEXT or -F FILE", "issueflow request-changes --help")
    text = plain(message) if message is not None else _read(file)
    if not text.strip():
        raise WrongWords("the text is empty", "issueflow request-changes --help")
    here = project()
    position = decisions.request_changes(here.hands(), issue_id(here, issue), text)
    answer(f"{position.issue}: back to {position.stage} with {position.decided[-1].findings[0].id}")
    say_next(position)
    return 0


def _read(file: Path | None) -> str:
    assert file is not None
    try:
        return file.read_bytes()[:20_000].decode(errors="replace")
    except OSError as error:
        raise WrongWords(f"{file} cannot be read: {error.strerror}", "issueflow request-changes --help") from error


def retry(
    issue: IssueArgument = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why it should go better now.")] = "",
) -> int:
    """Let a held stage run again

    Example: issueflow retry ISSUE-7 --reason "the registry is up again"
    """
    from issueflow.engine import decisions

    if not reason.strip():
        raise WrongWords("a retry needs a reason", "issueflow retry ISSUE --reason TEXT")
    here = project()
    position = decisions.retry(here.hands(), issue_id(here, issue), plain(reason))
    answer(f"{position.issue}: {position.stage} may run again")
    say_next(position)
    return 0
