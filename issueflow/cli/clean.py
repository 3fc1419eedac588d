"""The verb cleanup."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from issueflow.cli.common import issue_id, project
from issueflow.views import answer, say

if TYPE_CHECKING:
    from issueflow.engine.cleanup import Finding


def cleanup(
    issue: Annotated[
        str | None,
        typer.Argument(metavar="[ISSUE]", show_default=False, help="ISSUE-7 or 7; all Issues when left out."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go and what would stay; change nothing.")
    ] = False,
) -> int:
    """Remove worktrees that hold nothing of their own

    What goes is proven to be kept elsewhere. Branches stay. A worktree that holds anything of its own stays too,
    with the reason and a command that shows it.

    Example: issueflow cleanup --dry-run
    """
    from issueflow.engine.cleanup import clean
    from issueflow.engine.issues import find

    here = project()
    hands = here.hands()
    names = [issue_id(here, issue)] if issue else here.store.ids()
    counts = {"removed": 0, "kept": 0, "gone": 0, "failed": 0}
    for name in names:
        for finding in clean(hands, find(hands, name), dry_run=dry_run):
            counts[_print(finding, dry_run)] += 1
    words = {
        "removed": "would go" if dry_run else "removed",
        "kept": "kept",
        "gone": "already gone",
        "failed": "failed",
    }
    say(", ".join(f"{number} {words[what]}" for what, number in counts.items() if number) or "nothing to clean up")
    return 1 if counts["failed"] else 0


def _print(finding: "Finding", dry_run: bool) -> str:
    if finding.failed:
        answer(f"failed   {finding.run}  {finding.failed}")
        say(f"hint: ls -la {shlex.quote(str(finding.path))}")
        return "failed"
    if finding.gone:
        answer(f"gone     {finding.run}  its folder had been removed already; git was told")
        return "gone"
    if finding.kept:
        for reason in finding.kept:
            answer(f"kept     {finding.run}  {reason.why}")
        say(f"hint: {finding.kept[0].look}")
        return "kept"
    word = "would go" if dry_run else "removed "
    answer(f"{word} {finding.run}  (branch {finding.branch} stays at {finding.tip[:12]})")
    return "removed"
