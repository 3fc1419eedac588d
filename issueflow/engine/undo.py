"""Bringing back what the last cleanup took away: branches, worktrees, and in these what had been saved of them."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from issueflow.engine import launch
from issueflow.engine.hands import Hands
from issueflow.engine.issues import find
from issueflow.engine.ledger import Act, Ledger
from issueflow.engine.saving import Saved, Target, bring_back
from issueflow.errors import IssueflowError
from issueflow.files import crash_point
from issueflow.git import worktrees
from issueflow.git.worktrees import Place


@dataclass(frozen=True)
class Back:
    """What became of one act: brought back, or `failed` with the reason; files that stayed as somebody left them."""

    act: Act
    failed: str | None = None
    hint: str | None = None
    left_alone: tuple[str, ...] = ()


def undo(hands: Hands) -> Iterator[Back]:
    """Take back the acts of the last cleanup, the last one first. What fails stays written down, to be tried again.

    Nothing when there is nothing to undo. Safe to kill and to repeat.
    """
    with hands.store.one_cleanup():
        ledger = Ledger(hands.store.root)
        for act in reversed(ledger.acts):
            try:
                yield _take_back(hands, ledger, act)
            except (OSError, IssueflowError) as error:
                yield Back(act, str(error), getattr(error, "hint", None) or f"ls -ld {shlex.quote(act.path or '.')}")
        ledger.close()


def _take_back(hands: Hands, ledger: Ledger, act: Act) -> Back:
    folder = find(hands, act.issue)
    with folder.lock("cleanup --undo"):
        _branch(hands, act)
        crash_point("cleanup.undo-branch")
        left_alone: list[str] = []
        run = folder.run(act.run)
        if act.path and not _never_went(run, act):
            saved = Saved(act.refs, act.commit, Path(act.archive) if act.archive else None)
            if saved.archive and not saved.archive.is_file():
                raise IssueflowError(f"its archive {saved.archive} is gone", f"ls -la {shlex.quote(act.archive or '')}")
            working = replace(act, undoing=True)
            place, fresh = _worktree(hands, ledger, act, working)
            crash_point("cleanup.undo-worktree")
            launch.remember(run, place)
            target = Target(place, hands.repository.refs(_ref(act))[_ref(act)], act.admin, fresh)
            left_alone = bring_back(hands, run, target, saved)
            act = working
        crash_point("cleanup.undo-filled")
        ledger.change(act, None)
    return Back(act, left_alone=tuple(left_alone))


def _never_went(run: Path, act: Act) -> bool:
    """Was the cleanup killed before it did what it had written down?"""
    place = launch.place_of(run)
    return not act.undoing and place is not None and place.path == Path(act.path) and worktrees.is_ours(place)


def _ref(act: Act) -> str:
    return f"refs/heads/{act.branch}"


def _branch(hands: Hands, act: Act) -> None:
    """The branch as it was; one that was gone before the cleanup comes back at the run's commit."""
    at = act.at or hands.repository.commit(act.tip)
    if at is None:
        raise IssueflowError(f"the commit {act.tip[:12]} of {act.branch} is gone", "git fsck --lost-found")
    with hands.store.lock():
        hands.repository.make(_ref(act), at)


def _worktree(hands: Hands, ledger: Ledger, act: Act, working: Act) -> tuple[Place, bool]:
    """The worktree at its path, and whether it was made just now, not by an undo that was killed."""
    path = Path(act.path)
    if act.undoing and (place := worktrees.found_at(hands.repository, path)):
        return place, False
    if os.path.lexists(path) and not act.undoing:
        raise IssueflowError(f"{path} is taken by something else", f"ls -la {shlex.quote(act.path)}")
    ledger.change(act, working)
    with hands.store.lock():
        worktrees.dispose(hands.repository, path, hands.store.trash)  # what a killed `worktree add` left
        return worktrees.add(hands.repository, path, act.branch, f"issueflow {act.issue} {act.run}"), True
