"""Issues that came from, or go to, another clone: their records fetched and taken in, or pushed."""

from issueflow.engine.hands import Hands
from issueflow.engine.issues import catch_up, find, settle
from issueflow.git import record, remote


def push(hands: Hands, name: str) -> list[str]:
    """Push every Issue's record, branches and kept work to the remote `name`; the Issues that moved there."""
    return _issues(remote.push(hands.repository, name, hands.config.prefix))


def fetch(hands: Hands, name: str) -> list[str]:
    """Fetch every Issue from the remote `name` and bring its directory up to its record; the Issues that moved here."""
    moved = _issues(remote.fetch(hands.repository, name, hands.config.prefix))
    for issue in moved:
        if record.journal(hands.repository, issue) is not None:
            folder = find(hands, issue)
            with folder.lock("fetch"):
                catch_up(hands, folder)  # what a person fetches is meant
                settle(hands, folder)
    return moved


def _issues(refs: list[str]) -> list[str]:
    names = {part for ref in refs for part in ref.split("/")[2:4] if part.startswith("ISSUE-")}
    return sorted(names, key=lambda name: int(name[6:]) if name[6:].isdigit() else 0)
