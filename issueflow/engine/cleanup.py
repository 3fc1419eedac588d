"""Which worktrees and branches may go, and taking them away: each is proven to be kept elsewhere, or stays."""

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from issueflow.engine import launch, moved
from issueflow.engine.hands import Hands
from issueflow.engine.issues import find, load, repair
from issueflow.engine.ledger import Act, Ledger
from issueflow.engine.proof import Reason, prove
from issueflow.engine.saving import Saved, save
from issueflow.errors import Damaged, IssueflowError
from issueflow.files import crash_point, read_json, replace_file, to_json
from issueflow.git import merged, worktrees
from issueflow.git.worktrees import Place
from issueflow.hosts import processes
from issueflow.machine import Position, Run
from issueflow.models import ISSUE_ID, branch_name, keep_ref
from issueflow.store.issue import IssueFolder


@dataclass(frozen=True)
class Wish:
    """What a cleanup is asked for."""

    dry_run: bool = False
    save: bool = False


@dataclass(frozen=True)
class Finding:
    """What cleanup did, or would do, with one run's worktree or, without a path, with one branch.

    `how` says of a branch why it may go. `failed` is a sentence, `hint` the command that goes with it.
    """

    issue: str
    run: str
    path: Path | None = None
    branch: str = ""
    tip: str = ""
    kept: tuple[Reason, ...] = ()
    failed: str | None = None
    hint: str | None = None
    gone: bool = False
    foreign: bool = False
    mended: str | None = None  # what was done about a damaged journal before
    how: str = ""
    saving: tuple[Reason, ...] = ()  # what had to be saved before it could go
    saved: Saved = field(default_factory=Saved)
    size: int = 0  # bytes on disk

    @property
    def what(self) -> str:
        """`removed`, `kept`, `gone`, `failed`, `left` for what is not issueflow's, or `mended` for a journal."""
        if self.failed or self.mended:
            return "failed" if self.failed else "mended"
        return "left" if self.foreign else "gone" if self.gone else "kept" if self.kept else "removed"


def clean_all(hands: Hands, names: Iterable[str], wish: Wish) -> Iterator[Finding]:
    """Clean up several Issues; what is wrong with one is told as a finding and stops no other.

    Busy when another cleanup is at work.
    """
    with hands.store.one_cleanup():
        ledger = Ledger(hands.store.root)
        for name in names:
            try:
                yield from _clean(hands, find(hands, name), wish, ledger)
            except (IssueflowError, OSError) as error:
                yield Finding(name, "", failed=str(error), hint=_hint(error, hands.store.issue(name).folder))
        ledger.close()
        yield from _foreign(hands)


def clean(hands: Hands, folder: IssueFolder, wish: Wish) -> Iterator[Finding]:
    """Go through an Issue's ended runs, removing the worktrees that are proven or, where `wish` says so, saved; then
    through its branches, if it has ended. One finding for each worktree, and for each branch that goes."""
    with hands.store.one_cleanup():
        ledger = Ledger(hands.store.root)
        yield from _clean(hands, folder, wish, ledger)
        ledger.close()
        yield from _foreign(hands)


def _clean(hands: Hands, folder: IssueFolder, wish: Wish, ledger: Ledger) -> Iterator[Finding]:
    with folder.lock("cleanup"):
        try:
            position = load(folder)
        except Damaged:
            if wish.dry_run:
                raise
            yield Finding(folder.name, "", mended=repair(hands, folder))
            position = load(folder)
        if not wish.dry_run:
            moved.relink(hands, folder, position)
            _sweep(hands, position)
        staying = set()
        for run in position.runs:
            found = _clean_one(hands, folder, position, run, wish, ledger)
            if found:
                if found.kept or found.failed:
                    staying.add(found.run)
                yield found
        if position.is_over:
            yield from _branches(hands, position, staying, wish, ledger)


# ── worktrees ──


def _clean_one(
    hands: Hands, folder: IssueFolder, position: Position, run: Run, wish: Wish, ledger: Ledger
) -> Finding | None:
    """What becomes of the worktree of one run; None when there is none."""
    started = run.started
    branch = branch_name(position.created.prefix, position.issue, started.name)
    place = launch.place_of(folder.run(started.name))
    path = place.path if place else Path(started.worktree)
    finding = Finding(position.issue, started.name, path, branch, run.tip)
    if place is None:
        return _half_made(hands, folder, position, run, finding, wish)
    gone = not os.path.lexists(path)
    if gone and not worktrees.is_registered(place):
        return None
    if position.open_run and position.open_run.run == started.run:
        return replace(finding, kept=(_not_over(folder, position, run),))
    held = prove(hands, folder, position, run, place)
    finding = replace(finding, gone=gone, size=held.size)
    barred = [reason for reason in held.reasons if reason.kind != "save"]
    if held.reasons and (barred or not wish.save):
        refused = next((reason for reason in barred if reason.kind == "refuse"), None)
        if wish.save and refused:
            return replace(finding, gone=False, failed=f"cannot be saved: {refused.why}", hint=refused.look)
        return replace(finding, gone=False, kept=tuple(held.reasons))
    if wish.dry_run:
        return replace(finding, gone=gone and not held.reasons, saving=tuple(held.reasons))
    try:
        saved = save(hands, folder, position, run, place, held) if held.reasons else Saved()
    except (OSError, IssueflowError) as error:
        return replace(finding, gone=False, failed=f"cannot be saved: {error}", hint=_hint(error, path))
    try:
        _take_away(hands, position, run, place, saved, ledger)
    except (OSError, IssueflowError) as error:
        return replace(finding, gone=False, failed=str(error), hint=_hint(error, path), saved=saved)
    return replace(finding, gone=gone and not held.reasons, saving=tuple(held.reasons), saved=saved)


def _not_over(folder: IssueFolder, position: Position, run: Run) -> Reason:
    begun = read_json(folder.run(run.started.name) / "started.json") or {}
    runner = processes.Identity(**begun["runner"]) if "runner" in begun else None
    pids = processes.marked(run.started.mark(position.issue)) or []
    pids += [runner.pid] if runner and processes.is_alive(runner) else []
    alive = f" (pid {pids[0]})" if pids else ""
    return Reason(f"its run is not over{alive}", f"issueflow status {position.issue}", "block")


def _half_made(
    hands: Hands, folder: IssueFolder, position: Position, run: Run, finding: Finding, wish: Wish
) -> Finding | None:
    """What a killed preparation left of a worktree that no agent was in: git's entry, locked, without its folder."""
    path = Path(run.started.worktree)
    if run.dropped is None or (folder.run(run.started.name) / "started.json").exists():
        return None
    if not any(worktrees.entries(hands.repository, path)) or not worktrees.is_free_for_us(hands.repository, path):
        return None
    if not wish.dry_run:
        with hands.store.lock():
            worktrees.dispose(hands.repository, path, hands.store.trash)
    return finding


def _take_away(hands: Hands, position: Position, run: Run, place: Place, saved: Saved, ledger: Ledger) -> None:
    branch = branch_name(position.created.prefix, position.issue, run.started.name)
    ref = f"refs/heads/{branch}"
    act = Act(
        position.issue,
        run.started.name,
        branch,
        hands.repository.refs(ref).get(ref) or "",
        run.tip,
        path=os.fspath(place.path),
        admin=place.admin.name,
        refs=saved.refs,
        commit=saved.commit,
        archive=os.fspath(saved.archive) if saved.archive else None,
    )
    there = os.path.lexists(place.path)
    if there or saved.refs or saved.archive:
        ledger.add(act)
        crash_point("cleanup.written")
    try:
        _remove(hands, place)
    except (OSError, IssueflowError):
        if there and worktrees.is_ours(place):  # it never went: there is nothing to undo
            ledger.change(act, None)
        raise
    crash_point("cleanup.removed")


def _remove(hands: Hands, place: Place) -> None:
    with hands.store.lock():
        if os.path.lexists(place.path):
            worktrees.remove(hands.repository, place, hands.store.trash)
        else:
            worktrees.forget(hands.repository, place)


def _hint(error: Exception, path: Path) -> str:
    """The next step: the error's own, else the rights of where the worktree lies, since those are what says no."""
    named = getattr(error, "hint", None)
    where = Path(getattr(error, "filename", None) or path)
    return named or f"ls -ld {shlex.quote(str(where if os.path.lexists(where) else path))}"


def _foreign(hands: Hands) -> Iterator[Finding]:
    """Worktrees on branches or in folders of ours that no run was recorded in: a person's, and they are left."""
    recorded = {os.path.realpath(place.path) for place in _places(hands)}
    prefix, root = f"refs/heads/{hands.config.prefix}/", Path(os.path.realpath(hands.worktrees))
    main = os.path.realpath(hands.project)
    for path, branch in worktrees.list_all(hands.repository):
        where = os.path.realpath(path)
        beside_ours = where.startswith(f"{root}/") and ISSUE_ID.fullmatch(Path(where).relative_to(root).parts[0])
        if (branch.startswith(prefix) or beside_ours) and where != main and where not in recorded:
            yield Finding("", "", path, branch.removeprefix("refs/heads/"), foreign=True)


def _places(hands: Hands) -> Iterator[Place]:
    for record in hands.store.issues.glob("*/runs/*/place.json"):
        try:
            place = launch.place_of(record.parent)
        except (OSError, ValueError, KeyError):
            continue
        if place:
            yield place


# ── branches ──


def _branches(hands: Hands, position: Position, staying: set[str], wish: Wish, ledger: Ledger) -> Iterator[Finding]:
    """Delete the branches of an ended Issue whose work is in a person's branch; all others stay.

    A commit that is not in a person's branch itself gets a keep ref first, so every commit stays reachable by name.
    """
    prefix = position.created.prefix
    runs = {branch_name(prefix, position.issue, run.started.name): run.started.name for run in position.runs}
    runs[branch_name(prefix, position.issue, "delivered")] = "delivered"
    found = hands.repository.refs(f"refs/heads/{prefix}/{position.issue}")
    if not found:
        return
    theirs = merged.branches_of_people(hands.repository, prefix)
    targets = merged.targets(hands.repository, position.created.base_name, theirs)
    in_use = merged.checked_out(hands.repository, [f"refs/heads/{prefix}/{position.issue}"])
    going = {path for path in in_use.values() if wish.dry_run and _is_recorded(hands, path)}
    done: dict[str, str] = {}  # how the work of a commit was found to be merged
    for branch, run in reversed(runs.items()):  # `delivered` first: what it holds is merged with it
        ref = f"refs/heads/{branch}"
        if ref not in found or run in staying or (ref in in_use and in_use[ref] not in going):
            continue
        at = found[ref]
        holder = merged.holder(hands.repository, at, theirs)
        how = f"merged into {_short(holder)}" if holder else _how(hands, at, targets, done)
        if not how:
            continue
        keep = None if holder else keep_ref(position.issue, run, "tip")
        finding = Finding(position.issue, run, None, branch, at, how=how, saved=Saved((keep,) if keep else ()))
        yield finding if wish.dry_run else _delete(hands, finding, keep, ledger)


def _is_recorded(hands: Hands, path: str) -> bool:
    return any(os.path.realpath(place.path) == os.path.realpath(path) for place in _places(hands))


def _how(hands: Hands, commit: str, targets: list[str], done: dict[str, str]) -> str | None:
    for merged_commit, how in done.items():
        if hands.repository.is_ancestor(commit, merged_commit):
            return how
    for target in targets:
        if way := merged.merged(hands.repository, commit, target):
            done[commit] = f"merged into {_short(target)} ({way})"
            return done[commit]
    return None


def _delete(hands: Hands, finding: Finding, keep: str | None, ledger: Ledger) -> Finding:
    try:
        if keep:
            hands.repository.make(keep, finding.tip)
        crash_point("cleanup.tip")
        refs = (keep,) if keep else ()
        ledger.add(Act(finding.issue, finding.run, finding.branch, finding.tip, finding.tip, refs=refs))
        with hands.store.lock():
            hands.repository.delete(f"refs/heads/{finding.branch}", finding.tip)
        crash_point("cleanup.branch")
    except (OSError, IssueflowError) as error:
        return replace(finding, failed=str(error), hint=f"git log -1 {finding.branch} --")
    return finding


def _short(ref: str) -> str:
    return ref.split("/", 2)[2]


# ── runs that only read ──


def tidy(hands: Hands, folder: IssueFolder, position: Position) -> None:
    """Take away the worktrees and branches of ended runs that only read, where nothing of their own is in them.

    Safe to repeat, and done again by every command that steps the Issue, so that a crash leaves nothing behind.
    """
    _sweep(hands, position)
    for run in position.runs:
        closing = run.ended or run.dropped
        if run.stage.writes or closing is None or closing.code.changed:
            continue
        folder_of_run = folder.run(run.started.name)
        if (folder_of_run / "tidy.json").exists():
            continue
        place = launch.place_of(folder_of_run)
        if place and (os.path.lexists(place.path) or worktrees.is_registered(place)):
            if prove(hands, folder, position, run, place).reasons:
                continue
            try:
                _remove(hands, place)
            except OSError:
                continue  # no reason to stop the Issue; `cleanup` says what is wrong
        elif place:
            with hands.store.lock():
                worktrees.forget(hands.repository, place)
        crash_point("tidy.worktree")
        ref = f"refs/heads/{branch_name(position.created.prefix, position.issue, run.started.name)}"
        with hands.store.lock():
            if hands.repository.refs(ref).get(ref) in (None, run.started.base):  # elsewhere: somebody's by now
                hands.repository.delete(ref, run.started.base)
        crash_point("tidy.branch")
        if folder_of_run.is_dir():
            shutil.rmtree(folder_of_run / "git", ignore_errors=True)
            replace_file(folder_of_run / "tidy.json", to_json({"tidied": run.started.name}))


def _sweep(hands: Hands, position: Position) -> None:
    """Finish removals that were killed half-way."""
    trash = hands.store.trash
    beside = Path(position.runs[-1].started.worktree).parent if position.runs else trash
    if any(trash.glob("*")) or any(beside.glob(".*.gone")):
        with hands.store.lock():
            worktrees.sweep(trash, beside)
