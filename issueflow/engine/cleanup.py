"""Which worktrees may go: each is proven to hold nothing of its own, or kept with the reason and how to see it."""

import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from issueflow.engine import launch
from issueflow.engine.hands import Hands
from issueflow.engine.issues import load
from issueflow.errors import IssueflowError
from issueflow.files import crash_point, read_json, replace_file, to_json
from issueflow.git import baseline, snapshot, worktrees
from issueflow.git.worktrees import Place
from issueflow.hosts import processes
from issueflow.machine import Position, Run
from issueflow.models import RUN_FOLDER, branch_name
from issueflow.store.issue import IssueFolder

MANY = 5  # names listed in a reason


@dataclass(frozen=True)
class Reason:
    """Why a worktree stays, and the command that shows it."""

    why: str
    look: str


@dataclass(frozen=True)
class Finding:
    """What cleanup did, or would do, with one run's worktree."""

    run: str
    path: Path
    branch: str
    tip: str
    kept: tuple[Reason, ...] = ()
    failed: str | None = None
    gone: bool = False


def clean(hands: Hands, folder: IssueFolder, *, dry_run: bool) -> Iterator[Finding]:
    """Go through the worktrees of an Issue's ended runs, removing what is proven; one finding a worktree."""
    with folder.lock("cleanup"):
        position = load(folder)
        for run in position.runs:
            place = launch.place_of(folder.run(run.started.name))
            if place is None or not (os.path.lexists(place.path) or worktrees.is_registered(place)):
                continue
            yield _clean_one(hands, folder, position, run, place, dry_run=dry_run)


def _clean_one(
    hands: Hands, folder: IssueFolder, position: Position, run: Run, place: Place, *, dry_run: bool
) -> Finding:
    started = run.started
    branch = branch_name(position.created.prefix, position.issue, started.name)
    finding = Finding(started.name, place.path, branch, run.tip)
    if position.open_run and position.open_run.run == started.run:
        alive = Reason("its run is not over", f"issueflow status {position.issue}")
        return replace(finding, kept=(alive,))
    if not os.path.lexists(place.path):
        if not dry_run:
            with hands.store.lock():
                worktrees.forget(hands.repository, place)
        return replace(finding, gone=True)
    reasons = tuple(prove(hands, folder, position, run, place))
    if reasons or dry_run:
        return replace(finding, kept=reasons)
    try:
        with hands.store.lock():
            worktrees.remove(hands.repository, place, hands.store.trash)
    except (OSError, IssueflowError) as error:
        return replace(finding, failed=str(error))
    return finding


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
        if place and os.path.lexists(place.path):
            if any(prove(hands, folder, position, run, place)):
                continue
            with hands.store.lock():
                worktrees.remove(hands.repository, place, hands.store.trash)
        elif place:
            with hands.store.lock():
                worktrees.forget(hands.repository, place)
        crash_point("tidy.worktree")
        ref = f"refs/heads/{branch_name(position.created.prefix, position.issue, run.started.name)}"
        with hands.store.lock():
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


# ── the proof ──


def prove(hands: Hands, folder: IssueFolder, position: Position, run: Run, place: Place) -> Iterator[Reason]:
    """Every reason why the worktree must stay; none means that all it holds is kept elsewhere."""
    show = f"git -C {shlex.quote(str(place.path))} status --ignored"
    if not worktrees.is_ours(place):
        yield Reason("its .git file is no longer the one issueflow made", f"ls -la {shlex.quote(str(place.path))}")
        return
    yield from _processes(processes.inside(place.path), "works in it", place)
    yield from _processes(processes.marked(run.started.mark(position.issue)), "of its run is alive", place)
    if operation := worktrees.unfinished(place):
        yield Reason(f"an unfinished {operation}", f"git -C {shlex.quote(str(place.path))} status")
    yield from _unsaved_files(hands, folder, position, run, place, show)
    yield from _unsaved_commits(hands, position, run, place)


def _processes(pids: list[int] | None, what: str, place: Place) -> Iterator[Reason]:
    if pids is None:
        yield Reason(f"this system does not show whether a process {what}", f"lsof +D {shlex.quote(str(place.path))}")
    elif pids:
        yield Reason(f"a process {what} (pid {', '.join(str(pid) for pid in pids[:MANY])})", f"ps -fp {pids[0]}")


def _unsaved_files(
    hands: Hands, folder: IssueFolder, position: Position, run: Run, place: Place, show: str
) -> Iterator[Reason]:
    """Files on disk that neither the run's commit nor the Issue directory holds.

    Looked at through the run's private git directory with a fresh index, so that no flag the agent set in its own
    index, and no exclude it wrote, hides anything.
    """
    folder_of_run = folder.run(run.started.name)
    lens = launch.lens_of(hands.repository.common, folder_of_run, place)
    if lens is None:
        yield Reason("the run's private git directory is gone, so its files cannot be compared", show)
        return
    try:
        looked = snapshot.look_afresh(lens, run.tip)
        before = (read_json(folder_of_run / "before.json") or {}).get("tree")
        changed = snapshot.differing(lens, run.tip, looked.tree)
        if before:  # what already differed when the worktree was made (line endings) is nobody's work
            changed &= snapshot.differing(lens, before, looked.tree) | snapshot.differing(lens, before, run.tip)
        ignored = [p for p in snapshot.ignored(lens, hands.config.caches) if not _is_brought(folder_of_run, place, p)]
    except IssueflowError as error:
        yield Reason(f"its files cannot be compared: {error}", show)
        return
    names = sorted(path.decode(errors="backslashreplace") for path in changed)
    if names:
        yield Reason(f"{_count(names, 'file')} changed and not committed: {_list(names)}", show)
    left_out = dict(looked.left_out) | dict(snapshot.special_files(place.path, hands.config.caches))
    if left_out:
        listed = [f"{path} ({reason})" for path, reason in left_out.items()]
        yield Reason(f"not in any commit: {_list(listed)}", show)
    if ignored:
        listed = [path.decode(errors="backslashreplace") for path in ignored]
        yield Reason(f"{_count(listed, 'ignored file')}: {_list(listed)}", show)
    if unsaved := list(_unsaved_outputs(folder_of_run, place)):
        yield Reason(
            f"{_count(unsaved, 'file')} in {RUN_FOLDER} kept nowhere else: {_list(unsaved)}",
            show,
        )


def _is_brought(run: Path, place: Place, path: bytes) -> bool:
    """Did issueflow itself put this very file or link there (`worktrees: copy, link`), and is it as it was?"""
    name = os.fsdecode(path)
    digest = (read_json(run / "brought.json") or {}).get(name)
    here = place.path / name
    return digest is not None and (here.is_symlink() if digest == "" else baseline.digest(here) == digest)


def _unsaved_outputs(run: Path, place: Place) -> Iterator[str]:
    """Files in the run's exchange folder that are neither inputs issueflow wrote nor taken in."""
    order = read_json(run / "order.json") or {}
    given = {Path(item["path"]).name: item["sha256"] for item in order.get("inputs", [])}
    kept = run.parent.parent / "artifacts"
    home = place.path / RUN_FOLDER
    saved = {baseline.digest(path) for folder in (kept, run, run / launch.OUTPUTS) for path in folder.glob("*")}
    for path in sorted(home.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        digest = "" if path.is_symlink() else baseline.digest(path)
        if path.name == ".gitignore" or (digest and (digest in saved or given.get(path.name) == digest)):
            continue
        yield os.fsencode(path.relative_to(place.path)).decode(errors="backslashreplace")


def _unsaved_commits(hands: Hands, position: Position, run: Run, place: Place) -> Iterator[Reason]:
    """Commits the worktree's HEAD was at that no branch, tag or keep ref reaches."""
    repository = hands.repository
    for commit in worktrees.unreachable(repository, worktrees.commits_seen(place), [run.tip]):
        if not repository.holders(commit):
            yield Reason(f"commit {commit[:12]} is on no branch", f"git show {commit[:12]}")
    if not repository.holders(run.tip):
        yield Reason(f"its commit {run.tip[:12]} is on no branch", f"git show {run.tip[:12]}")


def _count(names: list[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _list(names: list[str]) -> str:
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more
