"""Verbs that carry Issues between clones: push, fetch."""

from typing import Annotated

import typer

from issueflow.cli.common import project
from issueflow.views import answer, say

Remote = Annotated[str, typer.Argument(metavar="[REMOTE]", help="A remote of this repository.")]


def push(remote: Remote = "origin") -> int:
    """Push Issues to a remote, to go on elsewhere

    Records, run branches and kept work, never forced. What the person's own branches hold is not pushed. The same by
    hand: git push origin 'refs/issueflow-keep/*' 'refs/heads/issueflow/*' 'refs/issueflow-records/*'

    Example: issueflow push
    """
    from issueflow.engine import share

    return _say(share.push(project().hands(), remote), "pushed")


def fetch(remote: Remote = "origin") -> int:
    """Fetch Issues from a remote

    Their stages, verdicts and approvals come along, and `advance` goes on from there. A run that is open on another
    machine is not touched: its machine is named.

    Example: issueflow fetch
    """
    from issueflow.engine import share

    return _say(share.fetch(project().hands(), remote), "fetched")


def _say(issues: list[str], what: str) -> int:
    for issue in issues:
        answer(f"{issue}: {what}")
    if not issues:
        say("nothing new")
    return 0
