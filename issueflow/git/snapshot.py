"""What an agent left in its tree, recorded exactly, without git ever reading a setting the agent could have written."""

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from issueflow.files import make_folder, replace_file
from issueflow.git.command import git, run
from issueflow.git.refs import Repository
from issueflow.git.worktrees import Place
from issueflow.models import RUN_FOLDER

# Settings that decide how a file becomes a blob; everything else in a person's configuration stays outside.
CARRIED = (
    "core.autocrlf",
    "core.eol",
    "core.filemode",
    "core.ignorecase",
    "core.symlinks",
    "core.precomposeunicode",
    "core.protecthfs",
    "core.protectntfs",
    "core.checkroundtripencoding",
    "core.bigfilethreshold",
    "core.sparsecheckout",
    "core.sparsecheckoutcone",
)
SEALED = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Lens:
    """A private git directory for one run: it sees the worktree's files with the settings from before the agent."""

    folder: Path
    objects: Path
    worktree: Path

    def git(self, *words: str, input: bytes | None = None, index: str = "index") -> bytes:
        """Run git through the lens, on the private index named `index`."""
        files = [f"core.excludesFile={self.folder / 'excludes'}", f"core.attributesFile={self.folder / 'attributes'}"]
        settings = [part for setting in files for part in ("-c", setting)]
        return git(self.worktree, *settings, *words, input=input, env=self.environment(index))

    def environment(self, index: str = "index") -> dict[str, str]:
        """The variables that make a git command look through this lens."""
        return {
            **SEALED,
            "GIT_DIR": os.fspath(self.folder),
            "GIT_WORK_TREE": os.fspath(self.worktree),
            "GIT_OBJECT_DIRECTORY": os.fspath(self.objects),
            "GIT_INDEX_FILE": os.fspath(self.folder / index),
        }


@dataclass
class Looked:
    """A tree as found on disk, and what of it git cannot record: (path, reason) pairs."""

    tree: str
    left_out: list[tuple[str, str]] = field(default_factory=list)


def grind(repository: Repository, place: Place, folder: Path, caches: Iterable[str]) -> Lens:
    """Make the lens for a worktree that no agent has touched yet: settings, excludes, attributes and index of now."""
    settings = repository.settings(_at(place))
    make_folder(folder)
    make_folder(folder / "objects")
    make_folder(folder / "refs")
    make_folder(folder / "info")
    replace_file(folder / "HEAD", "ref: refs/heads/none\n")
    replace_file(folder / "config", _config(settings))
    excludes = _setting_file(settings, "core.excludesfile", "ignore")
    attributes = _setting_file(settings, "core.attributesfile", "attributes")
    replace_file(folder / "excludes", excludes)
    replace_file(folder / "attributes", attributes)
    tracked = git(repository.folder, "ls-tree", "-r", "-d", "-z", "--name-only", "HEAD", env=_at(place))
    own = [b"/" + RUN_FOLDER.encode(), *(name.encode() for name in caches if not _is_tracked(name, tracked))]
    replace_file(
        folder / "info" / "exclude", _read(repository.common / "info" / "exclude") + b"\n" + b"\n".join(own) + b"\n"
    )
    replace_file(folder / "info" / "attributes", _read(repository.common / "info" / "attributes"))
    if (place.admin / "info" / "sparse-checkout").exists():
        shutil.copyfile(place.admin / "info" / "sparse-checkout", folder / "info" / "sparse-checkout")
    shutil.copy2(place.admin / "index", folder / "index")
    return Lens(folder, repository.common / "objects", place.path)


def _at(place: Place) -> dict[str, str]:
    return {"GIT_DIR": os.fspath(place.admin), "GIT_WORK_TREE": os.fspath(place.path)}


def _is_tracked(name: str, folders: bytes) -> bool:
    """A repository that tracks its `node_modules` means it: then new files in there are work, not cache."""
    return any(name.encode() in folder.split(b"/") for folder in folders.split(b"\0"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _setting_file(settings: dict[str, list[str]], key: str, default: str) -> bytes:
    named = settings.get(key, [""])[-1]
    home = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return _read(Path(named).expanduser() if named else home / "git" / default)


def _config(settings: dict[str, list[str]]) -> str:
    format = settings.get("extensions.objectformat", ["sha1"])[-1]
    lines = ["[core]", "\trepositoryformatversion = 1", "\tbare = false", "\tlogallrefupdates = false"]
    lines += ["[extensions]", f"\tobjectFormat = {format}"]
    carried = [(key, values[-1]) for key, values in settings.items() if key in CARRIED or key.startswith("filter.")]
    for key, value in carried:
        section, _, name = key.rpartition(".")
        head, _, sub = section.partition(".")
        lines += [f"[{head} {_quoted(sub)}]" if sub else f"[{head}]", f"\t{name} = {_quoted(value)}"]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def look(lens: Lens, index: str = "index") -> Looked:
    """Bring the private index up to the worktree in two passes and give its tree.

    First what is tracked and modified or gone, then what is new. Never `add -A`, `status` or `diff-files`: over an
    agent's tree those run the filter of a nested repository.
    """
    left_out: list[tuple[str, str]] = []
    changed = _paths(lens.git("ls-files", "-z", "-m", "-d", index=index))
    _update(lens, index, _recordable(lens, index, changed, left_out, tracked=True), "--remove")
    fresh = _paths(lens.git("ls-files", "-z", "-o", "--exclude-standard", index=index))
    plain = [path for path in fresh if not path.endswith(b"/")]
    for repository in (path for path in fresh if path.endswith(b"/")):
        plain += _inside(lens, repository, left_out)
    _update(lens, index, _recordable(lens, index, plain, left_out, tracked=False), "--add", "--replace")
    return Looked(lens.git("write-tree", index=index).decode().strip(), left_out)


def look_afresh(lens: Lens, commit: str) -> Looked:
    """As `look`, from an index made anew of `commit`: every file is read again and no flag hides one."""
    (lens.folder / "index.fresh").unlink(missing_ok=True)
    lens.git("read-tree", commit, index="index.fresh")
    sparse = (lens.folder / "info" / "sparse-checkout").exists()
    if sparse:  # what the sparse checkout leaves off the disk is not gone
        marked = lens.git("ls-files", "-z", "-t").split(b"\0")
        skipped = b"\0".join(line[2:] for line in marked if line.startswith(b"S "))
        lens.git("update-index", "--skip-worktree", "-z", "--stdin", input=skipped, index="index.fresh")
    looked = look(lens, "index.fresh")
    (lens.folder / "index.fresh").unlink(missing_ok=True)
    return looked


def special_files(worktree: Path) -> list[str]:
    """Pipes, sockets and devices in the worktree: git lists none of them."""
    found = []
    for folder, folders, files in os.walk(worktree):
        folders[:] = [name for name in folders if name != ".git"]
        for name in files:
            mode = os.lstat(os.path.join(folder, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                found.append(os.path.relpath(os.path.join(folder, name), worktree))
    return sorted(os.fsencode(name).decode(errors="backslashreplace") for name in found)


def ignored(lens: Lens, caches: Iterable[str]) -> list[bytes]:
    """Files that git ignores in the worktree, without the exchange folder and without rebuildable caches."""
    listing = _paths(lens.git("ls-files", "-z", "-o", "-i", "--exclude-standard"))
    spared = {name.encode() for name in caches}
    home = RUN_FOLDER.encode()
    return [path for path in listing if path.split(b"/")[0] != home and not spared & set(path.split(b"/"))]


def _paths(listing: bytes) -> list[bytes]:
    return list(dict.fromkeys(path for path in listing.split(b"\0") if path))


def _update(lens: Lens, index: str, paths: list[bytes], *options: str) -> None:
    if paths:
        lens.git("update-index", *options, "-z", "--stdin", input=b"\0".join(paths) + b"\0", index=index)


def _recordable(
    lens: Lens, index: str, paths: list[bytes], left_out: list[tuple[str, str]], *, tracked: bool
) -> list[bytes]:
    """The paths git can record: a pipe, a socket or an unreadable file would make it refuse all the others too."""
    good, gone = [], []
    for path in paths:
        reason = _obstacle(lens.worktree, path)
        if reason is None:
            good.append(path)
            continue
        left_out.append((path.decode(errors="backslashreplace"), reason))
        if tracked and reason != "unreadable":
            gone.append(path)
    _update(lens, index, gone, "--force-remove")
    return good


def _obstacle(worktree: Path, path: bytes) -> str | None:
    full = os.path.join(os.fsencode(worktree), path)
    try:
        mode = os.lstat(full).st_mode
    except OSError:
        return None  # gone: that is what --remove records
    if stat.S_ISREG(mode):
        return None if os.access(full, os.R_OK) else "unreadable"
    if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
        return None
    return "not a file"


def _inside(lens: Lens, nested: bytes, left_out: list[tuple[str, str]]) -> list[bytes]:
    """The files of a repository the agent made inside its worktree, as plain files; its history stays where it is.

    A gitlink would record none of the content. git walks it with an empty index and no settings of its own.
    """
    inner = Lens(lens.folder, lens.objects, Path(os.fsdecode(os.path.join(os.fsencode(lens.worktree), nested))))
    left_out.append(
        (
            nested.decode(errors="backslashreplace"),
            "a repository of its own: its files are recorded, its commits are not",
        )
    )
    found = []
    for path in _paths(inner.git("ls-files", "-z", "-o", "--exclude-standard", index="index.nested")):
        if path.endswith(b"/"):
            found += _inside(lens, nested + path, left_out)
        else:
            found.append(nested + path)
    return found


def overlay(lens: Lens, base: str, tip: str, before: str, after: str) -> str:
    """The tree to record: `tip`, with the files of `after` wherever the agent changed something.

    `base` and `tip` are commits or trees, `before` and `after` the trees found on disk before and after the agent.
    What was different on disk from the start (line endings, a lock file that set-up rewrote) is no change.
    """
    moved = differing(lens, before, after)
    committed = differing(lens, base, tip)
    now, theirs = _entries(lens, after), _entries(lens, tip)
    touched = (moved | committed) - _off_disk(lens, committed - moved, now, theirs)
    changes = {path: now.get(path) for path in touched}
    changes |= {path: None for path in theirs.keys() | touched if path.split(b"/")[0] == RUN_FOLDER.encode()}
    lens.git("read-tree", tip, index="index.result")
    _enter(lens, changes.items(), "index.result", len(tip))
    tree = lens.git("write-tree", index="index.result").decode().strip()
    (lens.folder / "index.result").unlink()
    return tree


def _off_disk(lens: Lens, committed: set[bytes], now: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> set[bytes]:
    """Those of `committed` that a sparse checkout keeps off the disk: the agent's commit is all there is of them."""
    if not committed or not (lens.folder / "info" / "sparse-checkout").exists():
        return set()
    marked = lens.git("ls-files", "-z", "-t").split(b"\0")
    skipped = {line[2:] for line in marked if line.startswith(b"S ")}
    return {path for path in committed if path in skipped or (path not in now and path in theirs)}


def differing(lens: Lens, one: str, other: str) -> set[bytes]:
    """The paths that differ between two trees or commits."""
    if one == other:
        return set()
    words = ("diff-tree", "-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--name-only", one, other)
    return set(_paths(lens.git(*words)))


def _entries(lens: Lens, tree: str) -> dict[bytes, bytes]:
    """Path to `MODE ID` for every file of a tree."""
    found = {}
    for line in lens.git("ls-tree", "-r", "-z", tree).split(b"\0"):
        if line:
            head, path = line.split(b"\t", 1)
            mode, _, name = head.split(b" ")
            found[path] = mode + b" " + name
    return found


def _enter(lens: Lens, changes: Iterable[tuple[bytes, bytes | None]], index: str, width: int) -> None:
    """Write entries into a private index, removals first: a file can only take a folder's place once that is empty.

    `width` is the length of an object id in this repository.
    """
    ordered = sorted(changes, key=lambda change: (change[1] is not None, change[0]))
    lines = [b"%s\t%s\0" % (entry or b"0 " + b"0" * width, path) for path, entry in ordered]
    if lines:
        lens.git("update-index", "-z", "--index-info", input=b"".join(lines), index=index)


def verify_object(repository: Repository, commit: str) -> bool:
    """Is the commit, with its tree, really in the object store?"""
    code, _, _ = run(repository.folder, "cat-file", "-e", f"{commit}^{{tree}}")
    return code == 0
