"""What an agent left in its tree, recorded exactly, without git ever reading a setting the agent could have written."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from issueflow.errors import GitFailed, IssueflowError
from issueflow.files import make_folder, replace_file, write_file
from issueflow.git.command import git, run
from issueflow.git.refs import Repository
from issueflow.git.worktrees import Place, is_registered
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
    "lfs.storage",
)
SEALED = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Lens:
    """A private git directory for one run: it sees the worktree's files with the settings from before the agent."""

    folder: Path
    objects: Path
    worktree: Path
    alternate: Path | None = None  # objects that are read too, while new ones are written to `objects`

    def git(self, *words: str, input: bytes | None = None, index: str = "index") -> bytes:
        """Run git through the lens, on the private index named `index`."""
        code, out, err = self.run(*words, input=input, index=index)
        if code != 0:
            raise GitFailed(list(words), code, err.decode(errors="replace"))
        return out

    def run(
        self,
        *words: str,
        input: bytes | None = None,
        index: str = "index",
        literal: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int | None, bytes, bytes]:
        """As `git`, but give exit code, standard output and standard error to judge.

        `literal` false is for the one command that cannot take names literally; `env` adds variables.
        """
        files = [f"core.excludesFile={self.folder / 'excludes'}", f"core.attributesFile={self.folder / 'attributes'}"]
        settings = [part for setting in files for part in ("-c", setting)]
        more = ({} if literal else {"GIT_LITERAL_PATHSPECS": "0"}) | dict(env or {})
        return run(self.worktree, *settings, *words, input=input, env=self.environment(index) | more)

    def environment(self, index: str = "index") -> dict[str, str]:
        """The variables that make a git command look through this lens."""
        more = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(self.alternate)} if self.alternate else {}
        return {
            **SEALED,
            **more,
            "GIT_DIR": os.fspath(self.folder),
            "GIT_WORK_TREE": os.fspath(self.worktree),
            "GIT_OBJECT_DIRECTORY": os.fspath(self.objects),
            "GIT_INDEX_FILE": os.fspath(self.folder / index),
        }


def plain(repository: Repository) -> Lens:
    """A lens for trees and commits only: it has no index and looks at no worktree."""
    return Lens(repository.common, repository.common / "objects", repository.folder)


@contextmanager
def scratch(lens: Lens) -> Iterator[Lens]:
    """The lens with objects of its own that are gone afterwards: looking then leaves nothing in the repository."""
    folder = lens.folder / "scratch"
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    try:
        yield replace(lens, objects=folder, alternate=lens.objects)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Looked:
    """A tree as found on disk, and what of it git cannot record: (path, reason) pairs."""

    tree: str
    left_out: list[tuple[str, str]] = field(default_factory=list)


def grind(repository: Repository, place: Place, folder: Path, caches: Iterable[str], *, touched: bool = False) -> Lens:
    """Make the lens for a worktree that no agent has touched yet: settings, excludes, attributes and index of now.

    `touched` is for one that an agent had: its settings may be the agent's, and none that names a program is taken.
    """
    settings = repository.settings() if touched else repository.settings(_at(place))
    if touched:
        settings = {key: values for key, values in settings.items() if not key.startswith("filter.")}
    make_folder(folder)
    make_folder(folder / "objects")
    make_folder(folder / "refs")
    make_folder(folder / "info")
    # git-lfs keeps contents in the git directory it is called for: they belong to the repository, not into the lens.
    storage = repository.common / settings.get("lfs.storage", ["lfs"])[-1]
    config = _config({**settings, "lfs.storage": [os.fspath(storage)]})
    replace_file(folder / "config", os.fsencode(config))
    excludes = _setting_file(settings, "core.excludesfile", "ignore")
    attributes = _setting_file(settings, "core.attributesfile", "attributes")
    replace_file(folder / "excludes", excludes)
    replace_file(folder / "attributes", attributes)
    replace_file(folder / "info" / "attributes", _read(repository.common / "info" / "attributes"))
    if (place.admin / "info" / "sparse-checkout").exists():
        shutil.copyfile(place.admin / "info" / "sparse-checkout", folder / "info" / "sparse-checkout")
    shutil.copy2(place.admin / "index", folder / "index")
    lens = Lens(folder, repository.common / "objects", place.path)
    tracked = set() if touched else _folders(_paths(git(repository.folder, "ls-files", "-z", env=_at(place))))
    own = [b"/" + RUN_FOLDER.encode(), *(name.encode() for name in caches if name.encode() not in tracked)]
    replace_file(
        folder / "info" / "exclude", _read(repository.common / "info" / "exclude") + b"\n" + b"\n".join(own) + b"\n"
    )
    keep_ignore_rules(lens)
    replace_file(folder / "HEAD", "ref: refs/heads/none\n")  # last: without it there is no lens
    return lens


def _at(place: Place) -> dict[str, str]:
    return {"GIT_DIR": os.fspath(place.admin), "GIT_WORK_TREE": os.fspath(place.path)}


def _folders(paths: list[bytes]) -> set[bytes]:
    """The names of all folders that hold a tracked file, at any depth.

    A repository that tracks its `node_modules` means it: then new files in there are work, not cache.
    """
    return {name for path in paths for name in path.split(b"/")[:-1]}


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


def quoted(path: Path) -> str:
    """A path as git takes it in a list of paths, whatever it is called."""
    return _quoted(os.fspath(path))


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def look(lens: Lens, index: str = "index", more: Iterable[bytes] = ()) -> Looked:
    """Bring the private index up to the worktree in two passes and give its tree.

    First what is tracked and modified or gone, then what is new. Never `add -A`, `status` or `diff-files`: over an
    agent's tree those run the filter of a nested repository. `more` are paths that count as work although git ignores
    them: the agent added them by force.
    """
    left_out: dict[bytes, str] = {}
    before = _entries_of_index(lens, index)
    moved = _paths(lens.git("ls-files", "-z", "-m", "-d", index=index))
    _tracked(lens, index, before, moved, left_out)
    fresh = _untracked(lens, index)
    fresh += [path for path in more if path not in before and not _is_gone(lens.worktree, path, b"")]
    plain = [path for path in fresh if not path.endswith(b"/")]
    for repository in (path for path in fresh if path.endswith(b"/")):
        left_out[repository] = "a repository of its own: its files are recorded, its commits are not"
        plain += _inside(lens, repository)
    good = [path for path in dict.fromkeys(plain) if not _leave_out(lens, path, left_out)]
    _update(lens, index, good, left_out)
    now = _entries_of_index(lens, index) if moved or good else before
    left_out |= {path: "git does not take this name" for path in good if path not in now and path not in left_out}
    for path, entry in now.items():
        if entry.startswith(b"160000") and (changed := _changed_submodule(lens, path, entry.split()[1])):
            left_out[path] = f"a submodule with {changed} not committed in it"
    listed = [(path.decode(errors="backslashreplace"), reason) for path, reason in left_out.items()]
    return Looked(lens.git("write-tree", index=index).decode().strip(), listed)


def _tracked(
    lens: Lens, index: str, before: dict[bytes, bytes], paths: list[bytes], left_out: dict[bytes, str]
) -> None:
    """Record what became of tracked files: changed, or gone because something else took their place."""
    gone, changed = [], []
    for path in paths:
        if _is_gone(lens.worktree, path, before[path]):
            gone.append(path)
        elif not _leave_out(lens, path, left_out):
            changed.append(path)
        elif left_out[path] != UNREADABLE:
            gone.append(path)
    if gone:
        lens.git("update-index", "--force-remove", "-z", "--stdin", input=b"\0".join(gone) + b"\0", index=index)
    _update(lens, index, changed, left_out)


def _is_gone(worktree: Path, path: bytes, entry: bytes) -> bool:
    """Is there no such file any more, also because a folder took its place, or a link or a file that of a folder?

    What stands in a folder that nobody may read cannot be told, and is not gone for that.
    """
    full = os.fsencode(worktree)
    parts = path.split(b"/")
    try:
        for part in parts[:-1]:
            full = os.path.join(full, part)
            if not stat.S_ISDIR(os.lstat(full).st_mode):
                return True
        mode = os.lstat(os.path.join(full, parts[-1])).st_mode
    except PermissionError:
        return False
    except OSError:
        return True
    return stat.S_ISDIR(mode) and not entry.startswith(b"160000")


def _untracked(lens: Lens, index: str) -> list[bytes]:
    """New files by the ignore rules from before the agent: a rule it has added may be work, but hides none."""
    seen = _paths(lens.git("ls-files", "-z", "-o", "--exclude-standard", index=index))
    if not _gitignores(lens):
        return seen
    excludes = f"--exclude-from={lens.folder / 'excludes'}"
    found = _paths(
        lens.git("ls-files", "-z", "-o", excludes, f"--exclude-from={lens.folder / 'info' / 'exclude'}", index=index)
    )
    hidden = _hidden_at_start(lens, found)
    return list(dict.fromkeys([*seen, *(path for path in found if path not in hidden)]))


def _hidden_at_start(lens: Lens, paths: list[bytes]) -> set[bytes]:
    """Those of `paths` that the ignore files kept from before the agent hide: git is asked in a tree of only those."""
    if not paths:
        return set()
    old = Lens(lens.folder, lens.objects, lens.folder / "ignores")
    named = {b"./" + path.rstrip(b"/"): path for path in paths}  # `./`: check-ignore reads `:(top)` as magic
    words = ("check-ignore", "--no-index", "-z", "--stdin")
    code, out, err = old.run(*words, input=b"\0".join(named) + b"\0", index="index.none", literal=False)
    if code not in (0, 1):
        raise GitFailed(list(words), code, err.decode(errors="replace"))
    return {named[path] for path in _paths(out)}


def _gitignores(lens: Lens) -> list[bytes]:
    """The ignore files that differ from those at the start, by path."""
    old = {
        path: (lens.folder / "ignores" / os.fsdecode(path)).read_bytes()
        for path in _ignore_files(lens.folder / "ignores")
    }
    new = {path: _read(lens.worktree / os.fsdecode(path)) for path in _ignore_files(lens.worktree)}
    return [path for path in old.keys() | new.keys() if old.get(path) != new.get(path)]


def _ignore_files(top: Path) -> list[bytes]:
    found = []
    for folder, folders, files in os.walk(os.fsencode(top)):
        folders[:] = [name for name in folders if name not in (b".git", RUN_FOLDER.encode(), b"node_modules")]
        if b".gitignore" in files:
            found.append(os.path.relpath(os.path.join(folder, b".gitignore"), os.fsencode(top)))
    return found


def keep_ignore_rules(lens: Lens) -> None:
    """Put the worktree's ignore files aside, before the agent comes."""
    for path in _ignore_files(lens.worktree):
        target = lens.folder / "ignores" / os.fsdecode(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, _read(lens.worktree / os.fsdecode(path)))
    (lens.folder / "ignores").mkdir(exist_ok=True)


def forced(lens: Lens, place: Place, base: str, tip: str) -> list[bytes]:
    """Paths the agent added by force, ignored or not: in its own index, or in what it committed."""
    env = lens.environment() | {"GIT_INDEX_FILE": os.fspath(place.admin / "index")}
    try:
        staged = set(_paths(git(place.path, "ls-files", "-z", env=env))) if is_registered(place) else set()
    except (GitFailed, IssueflowError):
        staged = set()  # its index is broken or gone; what it committed is still known
    home = RUN_FOLDER.encode()
    return sorted(path for path in staged | differing(lens, base, tip) if path.split(b"/")[0] != home)


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


def special_files(worktree: Path, caches: Iterable[str]) -> list[tuple[str, str]]:
    """Pipes, sockets, devices and folders nobody may read, which git does not list: path and reason."""
    spared = {b".git", RUN_FOLDER.encode(), *(name.encode() for name in caches)}
    found, top = {}, os.fsencode(worktree)

    def closed(error: OSError) -> None:
        found[os.path.relpath(os.fsencode(error.filename), top) + b"/"] = UNREADABLE

    for folder, folders, files in os.walk(top, onerror=closed):
        folders[:] = [name for name in folders if name not in spared]
        for name in files:
            full = os.path.join(folder, name)
            try:
                mode = os.lstat(full).st_mode
            except OSError:  # its folder may be listed and not searched
                found[os.path.relpath(full, top)] = UNREADABLE
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                found[os.path.relpath(full, top)] = "not a file"
    return [(path.decode(errors="backslashreplace"), reason) for path, reason in sorted(found.items())]


def unfiltered(lens: Lens, paths: Iterable[bytes]) -> dict[str, list[str]]:
    """Filters that attributes ask for and nobody has set up, each with those of `paths` that it was to change.

    git then takes the file as it lies, without a word: a large one goes into the history past git-lfs.
    """
    data = b"".join(path + b"\0" for path in sorted(paths))
    fields = lens.git("check-attr", "-z", "--stdin", "filter", input=data).split(b"\0") if data else []
    named = [(path, name) for path, name in zip(fields[0::3], fields[2::3], strict=False) if name not in NO_FILTER]
    if not named:
        return {}
    _, out, _ = lens.run("config", "-z", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process)$")
    known = {key.removeprefix(b"filter.").rpartition(b".")[0] for key in out.split(b"\0")}
    found: dict[str, list[str]] = {}
    for path, name in named:
        if name not in known:
            found.setdefault(_shown(name), []).append(_shown(path))
    return found


def _shown(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def ignored(lens: Lens) -> set[bytes]:
    """Files that git ignores in the worktree by the rules of now."""
    return set(_paths(lens.git("ls-files", "-z", "-o", "-i", "--exclude-standard")))


def _paths(listing: bytes) -> list[bytes]:
    return list(dict.fromkeys(path for path in listing.split(b"\0") if path))


UNREADABLE = "unreadable"
NO_FILTER = (b"unspecified", b"unset", b"set", b"")  # what `check-attr` says where no filter is named
AS_IT_LIES = "recorded as it lies on disk: git cannot obey its attributes"


def _update(lens: Lens, index: str, paths: list[bytes], left_out: dict[bytes, str]) -> None:
    """Record files as git sees them; one that its attributes make impossible is recorded as it lies on disk.

    git refuses a whole list for one bad file, so the list is halved until the bad one is alone.
    """
    if not paths:
        return
    words = ("update-index", "--add", "--replace", "--remove", "-z", "--stdin")
    code, _, err = lens.run(*words, input=b"\0".join(paths) + b"\0", index=index)
    if code == 0:
        return
    if len(paths) > 1:
        _update(lens, index, paths[: len(paths) // 2], left_out)
        _update(lens, index, paths[len(paths) // 2 :], left_out)
        return
    full = os.path.join(os.fsencode(lens.worktree), paths[0])
    if not os.path.isfile(full) or os.path.islink(full):
        raise GitFailed(list(words), code, err.decode(errors="replace"))
    with open(full, "rb") as file:
        blob = lens.git("hash-object", "-w", "--no-filters", "--stdin", input=file.read(), index=index).strip()
    mode = b"100755" if os.stat(full).st_mode & stat.S_IXUSR else b"100644"
    _enter(lens, [(paths[0], mode + b" " + blob)], index, len(blob))
    left_out[paths[0]] = AS_IT_LIES


def _leave_out(lens: Lens, path: bytes, left_out: dict[bytes, str]) -> bool:
    """Must the path be left out? A pipe, a socket or an unreadable file would make git refuse all the others too."""
    reason = _obstacle(lens.worktree, path)
    if reason:
        left_out[path] = reason
    return reason is not None


def _obstacle(worktree: Path, path: bytes) -> str | None:
    full = os.path.join(os.fsencode(worktree), path)
    try:
        mode = os.lstat(full).st_mode
    except PermissionError:
        return UNREADABLE
    except OSError:
        return "gone"
    if stat.S_ISREG(mode):
        return None if os.access(full, os.R_OK) else UNREADABLE
    if stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
        return None
    return "not a file"


def _inside(lens: Lens, nested: bytes) -> list[bytes]:
    """The files of a repository the agent made inside its worktree, as plain files; its history stays where it is.

    A gitlink would record none of the content. git walks it with an empty index and no settings of its own.
    """
    inner = Lens(lens.folder, lens.objects, Path(os.fsdecode(os.path.join(os.fsencode(lens.worktree), nested))))
    found = []
    for path in _paths(inner.git("ls-files", "-z", "-o", "--exclude-standard", index="index.none")):
        found += _inside(lens, nested + path) if path.endswith(b"/") else [nested + path]
    return found


def _changed_submodule(lens: Lens, path: bytes, commit: bytes) -> str:
    """How many files of a checked-out submodule its commit does not hold, in words; empty when it holds them all."""
    inner = lens.worktree / os.fsdecode(path)
    try:
        link = (inner / ".git").read_text().removeprefix("gitdir:").strip()
        objects = Path(os.path.normpath(inner / link)) / "objects"
    except IsADirectoryError:
        objects = inner / ".git" / "objects"
    except (OSError, UnicodeDecodeError):
        return ""  # not checked out
    sub = Lens(lens.folder, objects, inner)
    (lens.folder / "index.submodule").unlink(missing_ok=True)
    try:
        sub.git("read-tree", commit.decode(), index="index.submodule")
        changed = _paths(sub.git("ls-files", "-z", "-m", "-d", "-o", "--exclude-standard", index="index.submodule"))
    except GitFailed:
        return "a commit that cannot be read"
    return f"{len(changed)} file{'' if len(changed) == 1 else 's'}" if changed else ""


def _entries_of_index(lens: Lens, index: str) -> dict[bytes, bytes]:
    """Path to `MODE ID` for every entry of a private index."""
    found = {}
    for row in lens.git("ls-files", "-z", "-s", index=index).split(b"\0"):
        if row:
            head, path = row.split(b"\t", 1)
            mode, name, _ = head.split(b" ")
            found[path] = mode + b" " + name
    return found


def overlay(lens: Lens, base: str, base_tree: str, tip: str, before: str, after: str) -> str:
    """The tree to record: `tip`, with the files of `after` wherever the agent changed something.

    `base` and `tip` are commits, `before` and `after` the trees found on disk before and after the agent.
    What was different on disk from the start (line endings, a lock file that set-up rewrote) is no change.
    """
    if tip == base and before == base_tree:
        return after  # the common case: nothing was committed, and nothing differed from the start
    moved = differing(lens, before, after)
    committed = differing(lens, base, tip)
    now, theirs = entries(lens, after), entries(lens, tip)
    touched = (moved | committed) - _off_disk(lens, committed - moved, now, theirs)
    changes = {path: now.get(path) for path in touched}
    changes |= {path: None for path in theirs.keys() | touched if path.split(b"/")[0] == RUN_FOLDER.encode()}
    return laid_over(lens, tip, changes)


def laid_over(lens: Lens, commit: str | None, changes: Mapping[bytes, bytes | None]) -> str:
    """The tree of `commit` (None: the empty one) with some paths at other entries (`MODE ID`), or without (None)."""
    lens.git(*(["read-tree", commit] if commit else ["read-tree", "--empty"]), index="index.result")
    _enter(lens, changes.items(), "index.result", len(commit or lens.git("hash-object", "--stdin").strip()))
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


def entries(lens: Lens, tree: str) -> dict[bytes, bytes]:
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
