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


def other_owner(folder: IssueFolder, started: Started) -> Path | None:
    """The git directory of another living repository that the run's worktree belongs to, None when it is ours or gone.

    So it is in a copy made with `cp -r`: whatever the copy did there would happen to the original. What was written
    down when it was made counts; the worktree's own `.git` file, which an agent can change, only where nothing was.
    """
    common = folder.folder.parents[2]
    place = launch.written_place(folder.run(started.name))
    found = (place.admin.parents[1] if place.admin.is_dir() else None) if place else None
    if place is None:
        found = worktrees.owner(Path(started.worktree))
    return None if found is None or found.resolve() == common.resolve() else found
