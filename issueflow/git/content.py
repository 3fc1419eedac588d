"""What lies in a worktree, found by walking it and by reading refs as files: git is not asked to trust anything in it.

Repositories an agent made inside have settings, filters and hooks of their own; none of them is read here.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from issueflow.errors import GitFailed
from issueflow.git.snapshot import Lens, entries
from issueflow.git.worktrees import Place
from issueflow.models import RUN_FOLDER


@dataclass
class Survey:
    """Everything below a folder by its path relative to it; `size` in bytes on disk, caches included."""

    files: set[str] = field(default_factory=set)
    special: list[str] = field(default_factory=list)  # pipes, sockets, devices
    nested: list[str] = field(default_factory=list)  # folders that are repositories of their own
    links: list[str] = field(default_factory=list)  # folders whose repository is elsewhere: submodules, worktrees
    closed: list[str] = field(default_factory=list)  # what cannot be read
    foreign: list[str] = field(default_factory=list)  # folders of another user that we cannot empty
    size: int = 0


def survey(top: Path, caches: Iterable[str]) -> Survey:
    """Walk a worktree without following a link. What lies in caches and in the exchange folder is only measured."""
    found, spared_names = Survey(), {*caches}
    waiting: list[tuple[str, bool]] = [("", False)]
    while waiting:
        folder, spared = waiting.pop()
        here = os.path.join(top, folder)
        try:
            with os.scandir(here) as listing:
                rows = sorted(listing, key=lambda row: row.name)
        except OSError:
            found.closed.append(folder)  # of a cache as well: what cannot be looked at cannot be judged
            continue
        if rows and os.stat(here).st_uid != os.geteuid() and not os.access(here, os.W_OK | os.X_OK):
            found.foreign.append(folder)
        for row in rows:
            path = os.path.join(folder, row.name)
            found.size += row.stat(follow_symlinks=False).st_blocks * 512
            if row.is_dir(follow_symlinks=False):
                if row.name == ".git" and folder and not spared:
                    found.nested.append(folder)
                inner = row.name in spared_names or row.name == ".git" or path == RUN_FOLDER
                waiting.append((path, spared or inner))
            elif not spared:
                _file(found, row, folder, path)
    whole = tuple(f"{folder}/" for folder in found.nested)  # these go whole or not at all
    found.files = {path for path in found.files if not path.startswith(whole)}
    return found


def _file(found: Survey, row: "os.DirEntry[str]", folder: str, path: str) -> None:
    if row.is_symlink():
        found.files.add(path)
    elif not row.is_file():
        found.special.append(path)
    elif row.name == ".git":
        if folder:
            found.links.append(folder)
    else:
        found.files.add(path)
        if not os.access(row.path, os.R_OK):
            found.closed.append(path)


def staged_only(lens: Lens, place: Place, known: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """(`MODE ID`, `STAGE/path`) of what the worktree's own index holds and no tree in `known` does: content that was
    staged and then changed or deleted on disk."""
    index = {"GIT_INDEX_FILE": os.fspath(place.admin / "index")}
    code, out, _ = lens.run("ls-files", "-s", "-z", env=index)
    if code != 0:
        return []  # a broken index gives nothing back
    held = {entry.split()[1] for tree in known for entry in entries(lens, tree).values()}
    held.add(lens.git("hash-object", "--stdin").strip())  # no content, or only the intent to add
    rows = [row.split(b"\t", 1) for row in out.split(b"\0") if row]
    found = [(head.split(b" "), path) for head, path in rows]
    return [
        (mode + b" " + blob, stage + b"/" + path)
        for (mode, blob, stage), path in found
        if blob not in held and mode != b"160000"
    ]


def unresolved(lens: Lens, place: Place) -> list[str]:
    """The paths that a half-done merge left unresolved."""
    index = {"GIT_INDEX_FILE": os.fspath(place.admin / "index")}
    code, out, _ = lens.run("ls-files", "-u", "-z", env=index)
    rows = out.split(b"\0") if code == 0 else []
    return sorted({os.fsdecode(row.split(b"\t", 1)[1]) for row in rows if row})


# ── submodules ──


def submodules(place: Place) -> list[str]:
    """Names of the submodule repositories that live in git's folder for this worktree, and go with it."""
    top = place.admin / "modules"
    found = [Path(folder) for folder, folders, files in os.walk(top) if "HEAD" in files and "objects" in folders]
    return sorted(os.fspath(path.relative_to(top)) for path in found)


def submodule_of(place: Place, folder: str) -> str | None:
    """The name of the submodule checked out in `folder`, None when its repository is anywhere else."""
    try:
        link = (place.path / folder / ".git").read_text().removeprefix("gitdir:").strip()
    except (OSError, UnicodeDecodeError):
        return None
    target = Path(os.path.realpath(place.path / folder / link))
    top = Path(os.path.realpath(place.admin / "modules"))
    return os.fspath(target.relative_to(top)) if target.is_relative_to(top) and target.is_dir() else None


def commits_of_submodule(lens: Lens, place: Place, common: Path, name: str) -> list[str]:
    """Commits of a worktree's submodule repository that neither a remote of it nor the person's own copy holds."""
    inner, outer = place.admin / "modules" / name, common / "modules" / name
    theirs = _refs(inner, only="refs/remotes/") | (_refs(outer) if outer.is_dir() else set())
    ours = _refs(inner) | _logged(inner)
    if not ours:
        return []
    words = "".join([*(f"{commit}\n" for commit in ours), *(f"^{commit}\n" for commit in theirs)])
    sub = Lens(lens.folder, inner / "objects", lens.folder)
    try:
        return sub.git("rev-list", "--ignore-missing", "--stdin", input=words.encode()).decode().split()
    except GitFailed:
        return sorted(ours)  # cannot be told: then it is held to be at risk


def _refs(repository: Path, only: str = "") -> set[str]:
    """The object ids of a repository's refs, or of those whose full name begins with `only`, and of its HEAD."""
    named = {os.fspath(p.relative_to(repository)): _text(p) for p in (repository / "refs").rglob("*") if p.is_file()}
    rows = [line.split(" ", 1) for line in _text(repository / "packed-refs").splitlines() if line[:1] not in ("#", "^")]
    named = {row[1]: row[0] for row in rows if len(row) == 2} | named
    if not only:
        named["HEAD"] = _text(repository / "HEAD")
    return {v.strip() for name, v in named.items() if name.startswith(only) and v and not v.startswith("ref: ")}


def _logged(repository: Path) -> set[str]:
    logs = [path for path in (repository / "logs").rglob("*") if path.is_file() and "remotes" not in path.parts]
    rows = [line.split(" ") for path in logs for line in _text(path).splitlines()]
    return {row[1] for row in rows if len(row) > 2 and row[1].strip("0")}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def files_of_submodule(lens: Lens, place: Place, folder: str, name: str, caches: Iterable[str]) -> list[str]:
    """Files in a submodule's folder that its HEAD does not hold as they are; ignored ones count."""
    repository = place.admin / "modules" / name
    head = _text(repository / "HEAD").strip()
    while head.startswith("ref: "):
        head = next(iter(_one_ref(repository, head.removeprefix("ref: "))), "")
    sub = Lens(lens.folder, repository / "objects", place.path / folder)
    (lens.folder / "index.submodule").unlink(missing_ok=True)
    try:
        sub.git("read-tree", head, index="index.submodule")
        out = sub.git("ls-files", "-z", "-m", "-d", "-o", index="index.submodule")
    except GitFailed:
        return ["."]
    finally:
        (lens.folder / "index.submodule").unlink(missing_ok=True)
    spared = {*caches}
    return sorted({path for path in map(os.fsdecode, out.split(b"\0")) if path and not spared & {*path.split("/")}})


def _one_ref(repository: Path, name: str) -> set[str]:
    loose = _text(repository / name).strip()
    if loose:
        return {loose}
    rows = (line.split(" ", 1) for line in _text(repository / "packed-refs").splitlines())
    return {row[0] for row in rows if len(row) == 2 and row[1] == name}
