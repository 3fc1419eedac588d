"""Verbs by which a person decides: approve, request-changes, retry, skip, reopen, amend, note."""

from pathlib import Path
from typing import Annotated

import typer

from issueflow.cli.common import IssueArgument, complete_issue, issue_id, project, remark, say_next
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
    position = decisions.approve(here.hands(), issue_id(here, issue), remark(message, "approve"))
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
    text = remark(message if message is not None else _read(file), "request-changes")
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
        return file.read_bytes().decode(errors="replace")
    except OSError as error:
        raise WrongWords(f"{file} cannot be read: {error.strerror}", "issueflow request-changes --help") from error


def retry(
    issue: IssueArgument = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why it should go better now.")] = "",
) -> int:
    """Let a held stage run again

    A run of which nobody can tell from here whether it is alive, one of another machine, is given up; what it had
    written is kept.

    Example: issueflow retry ISSUE-7 --reason "the registry is up again"
    """
    from issueflow.engine import decisions

    _require_reason("retry", reason)
    here = project()
    position = decisions.retry(here.hands(), issue_id(here, issue), remark(reason, "retry"))
    answer(f"{position.issue}: {position.stage} may run again")
    say_next(position)
    return 0


def skip(
    issue: Annotated[str, typer.Argument(metavar="ISSUE", autocompletion=complete_issue, help="ISSUE-7 or 7.")],
    stage: Annotated[str, typer.Argument(metavar="STAGE", help="The review or check that the Issue stands at.")],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why nobody has to look.")] = "",
) -> int:
    """Let a review or a check pass unseen

    Bound to exactly what it would have judged: when that changes, the skip is void. It is listed at delivery. A stage
    where a person decides cannot be skipped.

    Example: issueflow skip ISSUE-7 verify --reason "the test machine is down; run by hand"
    """
    from issueflow.engine import decisions

    _require_reason("skip", reason)
    here = project()
    position = decisions.skip(here.hands(), issue_id(here, issue), stage, remark(reason, "skip"))
    answer(f"{position.issue}: {stage} skipped")
    say_next(position)
    return 0


def reopen(
    issue: IssueArgument = None,
    to: Annotated[str, typer.Option("--to", metavar="STAGE", help="The stage to go on from.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
) -> int:
    """Go back to a stage, also after the end

    Nothing is undone: the code stays, and what follows the stage is asked again.

    Example: issueflow reopen ISSUE-7 --to develop --reason "a customer found a case"
    """
    from issueflow.engine import decisions

    _require_reason("reopen", reason)
    if not to:
        raise WrongWords("reopen needs the stage to go on from", "issueflow reopen ISSUE --to STAGE --reason TEXT")
    here = project()
    position = decisions.reopen(here.hands(), issue_id(here, issue), to, remark(reason, "reopen"))
    answer(f"{position.issue}: goes on at {to}")
    say_next(position)
    return 0


def _require_reason(what: str, reason: str) -> None:
    if not reason.strip():
        raise WrongWords(f"a {what} needs a reason: --reason TEXT", f"issueflow {what} --help")


def amend(
    issue: Annotated[str, typer.Argument(metavar="ISSUE", autocompletion=complete_issue, help="ISSUE-7 or 7.")],
    requirement: Annotated[
        str | None, typer.Argument(metavar="[FILE]", show_default=False, help="The new requirement.")
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Another workflow.")] = None,
) -> int:
    """Give an Issue another requirement or workflow

    Version 2 of it. The Issue begins again from the code it has; verdicts and approvals of the old version are stale.

    Example: issueflow amend ISSUE-7 ../notes/r4.md
    """
    from issueflow.cli.begin import read_file
    from issueflow.engine.begin import amend as amend_issue

    if requirement is None and workflow is None:
        raise WrongWords("say what is new: a requirement, --workflow NAME, or both", "issueflow amend --help")
    text, origin = read_file(requirement) if requirement else (None, None)
    here = project()
    position = amend_issue(here.hands(), issue_id(here, issue), text, origin, workflow)
    version, stage = position.requirement.version, position.stage
    answer(f"{position.issue}: requirement v{version}, workflow {position.workflow.name}, at {stage}")
    say_next(position)
    return 0


def note(
    issue: Annotated[str, typer.Argument(metavar="ISSUE", autocompletion=complete_issue, help="ISSUE-7 or 7.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The remark.")],
) -> int:
    """Put a remark into an Issue's history

    Example: issueflow note ISSUE-7 "asked Kim about the old flag"
    """
    from issueflow.engine import decisions

    if not text.strip():
        raise WrongWords("the remark is empty", "issueflow note --help")
    here = project()
    position = decisions.note(here.hands(), issue_id(here, issue), remark(text, "note"))
    answer(f"{position.issue}: noted")
    return 0
