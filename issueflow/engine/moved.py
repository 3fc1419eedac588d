"""A repository that stands elsewhere than it did: a moved one gets its worktrees back, a copy leaves them alone."""

from pathlib import Path

from issueflow.engine import launch
from issueflow.engine.hands import Hands
from issueflow.git import worktrees
from issueflow.machine import Position
from issueflow.models import Started
from issueflow.store.issue import IssueFolder


def relink(hands: Hands, folder: IssueFolder, position: Position) -> list[str]:
    """Link the Issue's worktrees up again after the repository, or both, were moved; the names of those runs.

    The caller holds the Issue's lock. What another living repository owns is not touched.
    """
    mended = []
    for run in position.runs:
        home = folder.run(run.started.name)
        place = launch.written_place(home)
        if place is None or place.admin.exists() or launch.place_of(home):
            continue
        beside = hands.worktrees / folder.name / place.path.name  # moved together with the repository
        now_at = place.path if place.path.is_dir() else beside
        with hands.store.lock():
            found = worktrees.relink(hands.repository, place, now_at)
        if found:
            launch.remember(home, found)
            mended.append(run.started.name)
    return mended


def other_owner(common: Path, started: Started) -> Path | None:
    """The git directory of another living repository that the run's worktree belongs to, None when it is ours or gone.

    So it is in a copy made with `cp -r`: whatever the copy did there would happen to the original.
    """
    found = worktrees.owner(Path(started.worktree))
    return None if found is None or found.resolve() == common.resolve() else found
