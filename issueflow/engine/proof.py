"""What a run's worktree holds that is kept nowhere else: each thing with its reason, and what saving it would take."""

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from issueflow.engine import launch, order
from issueflow.engine.hands import Hands
from issueflow.errors import IssueflowError
from issueflow.files import read_json
from issueflow.git import baseline, content, snapshot, worktrees
from issueflow.git.snapshot import Lens
from issueflow.git.worktrees import Place
from issueflow.hosts import processes
from issueflow.machine import Position, Run
from issueflow.models import RUN_FOLDER, branch_name, keep_ref
from issueflow.store.issue import IssueFolder

MANY = 5  # names listed in a reason

# `save`: --save can save it. `refuse`: content that cannot be saved. `block`: somebody else's business, saved or not.
Kind = Literal["save", "refuse", "block"]


@dataclass(frozen=True)
class Reason:
    """Why a worktree stays, and the command that shows it or ends it."""

    why: str
    look: str
    kind: Kind = "save"


@dataclass
class Held:
    """What a worktree holds of its own: the reasons in words, and what there is to save."""

    reasons: list[Reason] = field(default_factory=list)
    base: str = ""  # the commit its files are compared with
    tree: str = ""  # its files as a tree
    changed: set[bytes] = field(default_factory=set)
    staged: list[tuple[bytes, bytes]] = field(default_factory=list)  # (`MODE ID`, path) from its own index
    commits: list[str] = field(default_factory=list)
    stashes: list[str] = field(default_factory=list)
    tip: bool = False  # the run's commit itself is on no branch
    pack: list[str] = field(default_factory=list)  # files and folders no commit holds, relative to the worktree
    modules: bool = False  # submodule repositories in git's folder for the worktree
    size: int = 0  # bytes on disk

    def add(self, why: str, look: str, kind: Kind = "save") -> None:
        """One more reason."""
        self.reasons.append(Reason(why, look, kind))


def prove(hands: Hands, folder: IssueFolder, position: Position, run: Run, place: Place) -> Held:
    """Look at the worktree of an ended run. No reasons means that all it holds is kept elsewhere; changes nothing."""
    held = Held(base=run.tip)
    lens = launch.lens_of(hands.repository.common, folder.run(run.started.name), place)
    there = os.path.lexists(place.path)
    if there and not worktrees.is_ours(place):
        look = f"ls -la {shlex.quote(str(place.path))}"
        gone = (
            "git no longer knows it"
            if not place.admin.is_dir()
            else "its .git file is no longer the one issueflow made"
        )
        held.add(gone, look, "refuse")
        return held
    _in_use(held, position, run, place)
    if there:
        _files(held, hands, folder, position, run, place, lens)
    _commits(held, hands, position, run, place)
    _submodule_commits(held, hands, place, lens)
    return held


def _in_use(held: Held, position: Position, run: Run, place: Place) -> None:
    _alive(held, processes.inside(place.path), "works in it", place)
    _alive(held, processes.marked(run.started.mark(position.issue)), "of its run is alive", place)
    if reason := worktrees.lock_of_another(place, f"issueflow {position.issue} {run.started.name}"):
        held.add(f"somebody locked it: {reason}", f"git worktree unlock {shlex.quote(str(place.path))}", "block")


def _alive(held: Held, pids: list[int] | None, what: str, place: Place) -> None:
    if pids is None:
        look = f"lsof +D {shlex.quote(str(place.path))}"
        held.add(f"this system does not show whether a process {what}", look, "block")
    elif pids:
        held.add(f"a process {what} (pid {', '.join(str(p) for p in pids[:MANY])})", f"ps -fp {pids[0]}", "block")


# ── files ──


def _files(
    held: Held, hands: Hands, folder: IssueFolder, position: Position, run: Run, place: Place, lens: Lens | None
) -> None:
    """Files on disk that neither a kept commit nor the Issue directory holds.

    Looked at through the run's private git directory with a fresh index, so that no flag the agent set in its own
    index, and no exclude it wrote, hides anything; and by a walk of our own, so that nothing git passes over is missed.
    """
    here = shlex.quote(str(place.path))
    show = f"git -C {here} status --ignored"
    try:
        seen = content.survey(place.path, hands.config.caches)
    except OSError as error:
        held.add(f"it cannot be looked at: {error}", show, "refuse")
        return
    held.size = seen.size
    if seen.closed:
        held.add(f"cannot be read: {_list(seen.closed)}", f"chmod -R u+rwX {here}", "refuse")
        return
    if seen.foreign:
        owner = f"sudo chown -R {os.geteuid()} {here}"
        held.add(f"cannot be deleted, another user owns it: {_list(seen.foreign)}", owner, "block")
    if lens is None:
        held.add("the run's private git directory is gone, so its files cannot be compared", show, "refuse")
        return
    try:
        with snapshot.scratch(lens) as looking:
            _changed(held, hands, folder, run, place, looking, seen, show)
    except IssueflowError as error:
        held.add(f"its files cannot be compared: {error}", show, "refuse")
        return
    if operation := worktrees.unfinished(place):
        left = content.unresolved(lens, place)
        unresolved = f"; unresolved: {_list(left)}" if left else ""
        held.add(
            f"an unfinished {operation}, begun {_age(worktrees.unfinished_for(place))} ago{unresolved}",
            f"git -C {here} status",
        )
    if unsaved := _unsaved_outputs(folder.run(run.started.name), place):
        held.pack += unsaved
        held.add(f"{_count(unsaved, 'file')} in {RUN_FOLDER} kept nowhere else: {_list(unsaved)}", show)


def _changed(
    held: Held,
    hands: Hands,
    folder: IssueFolder,
    run: Run,
    place: Place,
    lens: Lens,
    seen: content.Survey,
    show: str,
) -> None:
    folder_of_run = folder.run(run.started.name)
    looked = snapshot.look_afresh(lens, run.tip)
    before = (read_json(folder_of_run / "before.json") or {}).get("tree")
    against = {run.tip: _differing(lens, run.tip, before, looked.tree)}
    if (head := worktrees.head(hands.repository, place)) and head != run.tip:
        against[head] = _differing(lens, head, before, looked.tree)
    held.tree = looked.tree
    held.base = min(against, key=lambda commit: len(against[commit]))
    held.changed = against[held.base]
    tracked, hidden = snapshot.entries(lens, held.base), snapshot.ignored(lens)
    new = held.changed - tracked.keys()
    _say(held, _names(held.changed - new), "{} changed and not committed", show)
    _say(held, _names(new - hidden), "{} untracked", show)
    _repositories(held, hands, place, lens, seen)
    on_tree = {os.fsdecode(path) for path in snapshot.entries(lens, looked.tree)}
    inner = tuple(f"{folder}/" for folder in seen.links)
    ignored = sorted(
        path
        for path in seen.files - on_tree
        if not path.startswith(inner) and not _is_brought(folder_of_run, place, path)
    )
    held.pack += ignored
    _say(held, sorted({*ignored, *_names(new & hidden)}), "{} ignored by git", show)
    if seen.special:
        held.pack += seen.special
        held.add(f"not in any commit: {_list([f'{path} (not a file)' for path in seen.special])}", show)
    held.staged = content.staged_only(lens, place, [tree for tree in (held.base, run.tip, before, looked.tree) if tree])
    if held.staged:  # the sides of a conflict are saved too, but the unfinished merge says it all
        names = [path.removeprefix(b"0/") for _, path in held.staged if path.startswith(b"0/")]
        look = f"git -C {shlex.quote(str(place.path))} diff --cached"
        _say(held, _names(names), "{} staged and then changed on disk", look)


def _differing(lens: Lens, commit: str, before: str | None, tree: str) -> set[bytes]:
    """Paths that differ from `commit`; what already differed when the worktree was made is nobody's work."""
    changed = snapshot.differing(lens, commit, tree)
    if before:
        changed &= snapshot.differing(lens, before, tree) | snapshot.differing(lens, before, commit)
    return changed


def _names(paths: Iterable[bytes]) -> list[str]:
    return sorted(os.fsdecode(path) for path in paths)


def _say(held: Held, names: list[str], what: str, show: str) -> None:
    if names:
        held.add(f"{what.format(_count(names, 'file'))}: {_list(names)}", show)


def _repositories(held: Held, hands: Hands, place: Place, lens: Lens, seen: content.Survey) -> None:
    """Repositories inside the worktree: an agent's own with their history, and submodules with work in them."""
    for folder in seen.nested:
        held.pack.append(folder)
        held.add(f"a repository of its own: {_list([folder])}/", f"git -C {_quoted(place, folder)} log --all --oneline")
    for folder in seen.links:
        name = content.submodule_of(place, folder)
        if name is None:
            held.add(
                f"another worktree or a link to a repository elsewhere: {_list([folder])}/",
                f"git -C {_quoted(place, folder)} status",
                "refuse",
            )
            continue
        commits = content.commits_of_submodule(lens, place, hands.repository.common, name)
        files = content.files_of_submodule(lens, place, folder, name, hands.config.caches)
        if files:
            held.add(
                f"{_count(files, 'file')} not committed in the submodule {_list([folder])}: {_list(files)}",
                f"git -C {_quoted(place, folder)} status --ignored",
            )
        if files or commits:
            held.pack.append(folder)
            held.modules = True


def _quoted(place: Place, folder: str) -> str:
    return shlex.quote(os.fspath(place.path / folder))


def _is_brought(run: Path, place: Place, name: str) -> bool:
    """Did issueflow itself put this very file or link there (`worktrees: copy, link`), and is it as it was?"""
    digest = (read_json(run / "brought.json") or {}).get(name)
    here = place.path / name
    return digest is not None and (here.is_symlink() if digest == "" else baseline.digest(here) == digest)


def _unsaved_outputs(run: Path, place: Place) -> list[str]:
    """Files in the run's exchange folder that are neither inputs issueflow wrote nor taken in."""
    told = read_json(run / "order.json") or {}
    given = {Path(item["path"]).name: item["sha256"] for item in told.get("inputs", [])}
    kept = run.parent.parent / "artifacts"
    home = place.path / RUN_FOLDER
    saved = {baseline.digest(path) for folder in (kept, run, run / order.OUTPUTS) for path in folder.glob("*")}
    found = []
    for path in sorted(home.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        digest = "" if path.is_symlink() else baseline.digest(path)
        if path.name == ".gitignore" or (digest and (digest in saved or given.get(path.name) == digest)):
            continue
        found.append(os.fspath(path.relative_to(place.path)))
    return found


# ── commits ──


def _commits(held: Held, hands: Hands, position: Position, run: Run, place: Place) -> None:
    """Commits the worktree's HEAD was at that no branch, tag or keep ref reaches; and stash entries made in it."""
    repository = hands.repository
    for commit in worktrees.unreachable(repository, worktrees.commits_seen(place), [run.tip]):
        if not repository.holders(commit):
            held.commits.append(commit)
            held.add(f"commit {commit[:12]} is on no branch", f"git show {commit[:12]}")
    if not repository.holders(run.tip):
        held.tip = True
        held.add(f"its commit {run.tip[:12]} is on no branch", f"git show {run.tip[:12]}")
    branch = branch_name(position.created.prefix, position.issue, run.started.name)
    kept = repository.refs(f"refs/issueflow-keep/{position.issue}/{run.started.name}")
    for commit in worktrees.stashed(repository, branch):
        if keep_ref(position.issue, run.started.name, f"stash-{commit}") not in kept:
            held.stashes.append(commit)
            held.add(f"a stash entry was made in it: {commit[:12]}", f"git stash show -p {commit[:12]}")


def _submodule_commits(held: Held, hands: Hands, place: Place, lens: Lens | None) -> None:
    for name in content.submodules(place):
        commits = content.commits_of_submodule(lens, place, hands.repository.common, name) if lens else ["unknown"]
        if commits:
            held.modules = True
            where = shlex.quote(os.fspath(place.admin / "modules" / name))
            held.add(
                f"{_count(commits, 'commit')} of the submodule {_list([name])} in no other repository: "
                f"{_list([commit[:12] for commit in commits])}",
                f"git --git-dir={where} log --oneline HEAD",
            )


# ── words ──


def _count(names: Iterable[str], what: str) -> str:
    number = len(list(names))
    return f"{number} {what}{'' if number == 1 else 's'}"


def _list(names: list[str]) -> str:
    shown = [os.fsencode(name).decode(errors="backslashreplace").replace("\n", "\\n") for name in names[:MANY]]
    return ", ".join(shown) + (f" and {len(names) - MANY} more" if len(names) > MANY else "")


def _age(seconds: float) -> str:
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return "less than a minute"
