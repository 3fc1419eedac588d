"""Saving what only a worktree holds before it goes, and putting it back: commits by keep refs, the rest an archive."""

import calendar
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from issueflow.engine import launch, order
from issueflow.engine.hands import Hands
from issueflow.engine.proof import Held
from issueflow.errors import IssueflowError
from issueflow.files import crash_point
from issueflow.git import snapshot, worktrees
from issueflow.git.snapshot import Lens
from issueflow.git.worktrees import Place
from issueflow.machine import Position, Run
from issueflow.models import RUN_FOLDER, keep_ref
from issueflow.store import archive
from issueflow.store.archive import Part
from issueflow.store.issue import IssueFolder

FOLDER = "saved"  # in the Issue directory
# Of git's folder for a worktree, what is true of the old one only.
OF_ITS_PLACE = ("gitdir", "commondir", "locked", "index.lock", "HEAD.lock")


@dataclass(frozen=True)
class Saved:
    """Where a worktree's own content is: keep refs, the commit among them that holds its files, the archive."""

    refs: tuple[str, ...] = ()
    commit: str | None = None
    archive: Path | None = None


def save(hands: Hands, folder: IssueFolder, position: Position, run: Run, place: Place, held: Held) -> Saved:
    """Save all that `held` names and give where it is; safe to repeat, and the same content is saved once.

    IssueflowError or OSError when anything of it cannot be saved: then the worktree must stay.
    """
    name = run.started.name
    refs = {keep_ref(position.issue, name, f"dropped-{commit}"): commit for commit in held.commits}
    refs |= {keep_ref(position.issue, name, f"stash-{commit}"): commit for commit in held.stashes}
    if held.tip:
        refs[keep_ref(position.issue, name, "tip")] = run.tip
    lens = launch.lens_of(hands.repository.common, folder.run(name), place)
    commit = None
    if held.changed or held.staged:
        if lens is None:
            raise IssueflowError("the run's private git directory is gone", f"ls -la {folder.run(name)}")
        commit = _commit(hands, lens, position, run, held)
        refs[keep_ref(position.issue, name, f"saved-{commit}")] = commit
    for ref, at in refs.items():
        hands.repository.make(ref, at)
    crash_point("cleanup.kept")
    filtered = _filtered(lens, held) if lens and held.changed else []
    packed = _pack(folder, name, place, held, filtered, hands.config.caches)
    crash_point("cleanup.packed")
    return Saved(tuple(refs), commit, packed)


def _commit(hands: Hands, lens: Lens, position: Position, run: Run, held: Held) -> str:
    """The files as a commit on top of the one they were compared with; what only the index holds is a second parent."""
    if snapshot.look_afresh(lens, run.tip).tree != held.tree:  # now for good: looking before left no objects behind
        raise IssueflowError("it was changed while it was looked at", f"issueflow cleanup {position.issue}")
    closing = run.ended or run.dropped
    assert closing is not None
    when = calendar.timegm(time.strptime(closing.at, "%Y-%m-%dT%H:%M:%SZ"))
    message, by = f"{position.issue}: saved from {run.started.name} by cleanup\n", run.started.identity
    parents = [held.base]
    if held.staged:
        tree = snapshot.laid_over(lens, None, {path: entry for entry, path in held.staged})
        parents.append(hands.repository.commit_tree(tree, [], f"{message}\nIts index: STAGE/path.\n", by, when))
    now = snapshot.entries(lens, held.tree)
    tree = snapshot.laid_over(lens, held.base, {path: now.get(path) for path in held.changed})
    return hands.repository.commit_tree(tree, parents, message, by, when)


def _filtered(lens: Lens, held: Held) -> list[str]:
    """Changed files whose blob is not what lies on disk (line endings, filters): packed too, so that every byte is."""
    now = snapshot.entries(lens, held.tree)
    files = [path for path in sorted(held.changed) if (now.get(path) or b"").startswith(b"100")]
    found = [path for path in files if b"\n" in path]
    plain = [path for path in files if b"\n" not in path]
    if plain:
        out = lens.git("hash-object", "--no-filters", "--stdin-paths", input=b"".join(path + b"\n" for path in plain))
        found += [path for path, blob in zip(plain, out.split(), strict=True) if now[path].split()[1] != blob]
    return [os.fsdecode(path) for path in found]


def _pack(folder: IssueFolder, run: str, place: Place, held: Held, filtered: list[str], caches: Iterable[str]) -> Path:
    """The archive: what no commit holds below `tree/`, git's own folder for the worktree below `git/`."""
    parts = [Part(f"tree/{name}", place.path / name) for name in dict.fromkeys([*held.pack, *filtered])]
    left_out = {f"git/{name}" for name in OF_ITS_PLACE} | (set() if held.modules else {"git/modules"})
    spared = {*caches}

    def is_left_out(part: Part) -> bool:
        words = part.name.split("/")
        is_cache = words[0] == "tree" and words[-1] in spared and ".git" not in words and part.path.is_dir()
        return part.name in left_out or (is_cache and not part.path.is_symlink())

    if place.admin.is_dir():
        parts.append(Part("git", place.admin))
    return archive.pack(folder.folder / FOLDER, run, parts, is_left_out)


# ── and back ──


@dataclass(frozen=True)
class Target:
    """A worktree made again, to be filled: `at` is the commit checked out in it, `was` git's name for the old one."""

    place: Place
    at: str
    was: str
    fresh: bool  # false when an earlier, killed undo made it: somebody may have worked in it since


def bring_back(hands: Hands, run: Path, target: Target, saved: Saved) -> list[str]:
    """Fill a worktree with what was saved of it; safe to repeat. `run` is the run's folder.

    Gives the files that are not put back, because somebody has changed them since.
    """
    place = target.place
    theirs = set() if target.fresh else worktrees.touched(place)
    for left in [] if target.fresh else place.path.rglob(archive.TEMPORARY):
        left.unlink()
    changes = _changes(hands, target, saved.commit) if saved.commit else {}
    left_alone = list(_files_back(hands, place, changes, theirs))
    crash_point("cleanup.undo-files")
    if saved.archive:
        ours = changes.keys() - theirs
        archive.unpack(saved.archive, "tree", place.path, lambda name: os.fsencode(name) in ours)
        _point_submodules(place, target.was, archive.names(saved.archive, "tree"))
        archive.unpack(saved.archive, "git", place.admin, lambda name: True)
    _exchange_back(run, place)
    return left_alone


def _changes(hands: Hands, target: Target, commit: str) -> dict[bytes, bytes | None]:
    """Path to `MODE ID` in the saved commit, None for a deleted file, where it differs from what is checked out."""
    lens = snapshot.plain(hands.repository)
    then = snapshot.entries(lens, commit)
    changed = snapshot.differing(lens, target.at, commit)
    return {path: then.get(path) for path in sorted(changed, key=lambda path: (path in then, path))}


def _files_back(hands: Hands, place: Place, changes: dict[bytes, bytes | None], theirs: set[bytes]) -> Iterator[str]:
    """Each file as it was, byte for byte and by no filter; gives those in whose place is somebody else's."""
    for path in (path for path, entry in changes.items() if entry is None):
        target = place.path / os.fsdecode(path)
        if path in theirs and os.path.lexists(target):
            yield os.fsdecode(path)
        else:
            worktrees.drop_file(target)
    # Not submodules: their files and their repositories are in the archive.
    files = [(path, *entry.split()) for path, entry in changes.items() if entry and not entry.startswith(b"160000")]
    contents = hands.repository.blobs([blob.decode() for _, _, blob in files])
    for (path, mode, _), (_, data) in zip(files, contents, strict=True):
        target = place.path / os.fsdecode(path)
        if path in theirs and os.path.lexists(target):
            if not target.is_file() or target.read_bytes() != data:
                yield os.fsdecode(path)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        archive.put(target, data, {b"100755": 0o755, b"120000": None}.get(mode, 0o644))


def _point_submodules(place: Place, was: str, names: list[str]) -> None:
    """git may have another name for the worktree now; the `.git` files of its submodules contain the old one."""
    for name in names:
        file = place.path / name
        if file.name == ".git" and file.is_file():
            link = file.read_text()
            file.write_text(link.replace(f"/worktrees/{was}/", f"/worktrees/{place.admin.name}/"))


def _exchange_back(run: Path, place: Place) -> None:
    """The exchange folder, as far as the run's folder keeps copies of it."""
    home = place.path / RUN_FOLDER
    home.mkdir(exist_ok=True)
    wanted = [run / "order.json", run / "prompt.md", run / "result.json", *(run / order.OUTPUTS).glob("*")]
    for source in wanted:
        if source.is_file() and source.stat().st_size and not os.path.lexists(home / source.name):
            archive.put(home / source.name, source.read_bytes(), 0o644)
    if not (home / ".gitignore").exists():
        archive.put(home / ".gitignore", b"*\n", 0o644)
