"""Worktrees of runs: made, recognised as ours, disposed of; never by force and never by a path nobody recorded."""

import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from issueflow.errors import GitFailed, IssueflowError
from issueflow.files import naming, replace_file
from issueflow.git.command import git, run
from issueflow.git.refs import Repository


@dataclass(frozen=True)
class Place:
    """A worktree as it was made: its folder, git's administrative folder for it, and the bytes of its `.git` file."""

    path: Path
    admin: Path
    link: str


def add(repository: Repository, path: Path, branch: str, reason: str) -> Place:
    """Check out the existing `branch` (a short name) in a new locked worktree at `path`.

    The caller holds the repository's lock: parallel `worktree add` fails now and then. Raises GitFailed, and
    IssueflowError when git did something else than asked (a full ref name silently gives a detached HEAD).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    words = ["worktree", "add", "-q", "--lock", "--reason", reason, os.fspath(path), branch]
    # The files of a partial clone may have to come from a repository on this disk.
    code, _, err = run(repository.folder, "-c", "protocol.file.allow=user", *words)
    place = _place(path)
    # By what is there: a git that was killed half-way has written its index last, a failing hook comes after that.
    if place is None or not (place.admin / "index").exists():
        raise GitFailed(words[:2], code, err.decode(errors="replace"), "git worktree list")
    head = (place.admin / "HEAD").read_text().strip()
    if head != f"ref: refs/heads/{branch}":
        raise IssueflowError(
            f"the worktree {path} is at {head!r} instead of {branch}", f"git -C {shlex.quote(str(path))} status"
        )
    return place


def submodules(path: Path) -> list[str]:
    """The folders that the worktree at `path` keeps for submodules; a new worktree has them empty."""
    if not (path / ".gitmodules").is_file():
        return []
    words = ("config", "-z", "-f", os.fspath(path / ".gitmodules"), "--get-regexp", r"^submodule\..*\.path$")
    _, out, _ = run(path, *words)  # a file that git cannot read names none
    return [row.partition(b"\n")[2].decode(errors="replace") for row in out.split(b"\0") if row]


def _place(path: Path) -> Place | None:
    try:
        link = (path / ".git").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    admin = Path(link.removeprefix("gitdir: ").strip())
    return Place(path, admin, link) if link.startswith("gitdir: ") and (admin / "HEAD").exists() else None


def found_at(repository: Repository, path: Path) -> Place | None:
    """The complete worktree at `path`, None when there is none or its making was killed: the index comes last."""
    place = _place(path)
    if place is None or place.admin not in entries(repository, path) or not (place.admin / "index").exists():
        return None
    return place


def is_ours(place: Place) -> bool:
    """Is the folder still the worktree we made: same `.git` file, and git's entry points back at it?"""
    git_file = place.path / ".git"
    try:
        git_file = place.path / ".git"
        is_link = stat.S_ISREG(git_file.lstat().st_mode) and git_file.read_text() == place.link
    except (OSError, UnicodeDecodeError):
        return False
    return is_link and is_registered(place)


def is_registered(place: Place) -> bool:
    """Is git's entry still that of this worktree, whether its folder is there or not?

    Once git has forgotten a worktree, the next one whose folder has the same name gets the entry of that name.
    """
    try:
        return _same((place.admin / (place.admin / "gitdir").read_text().strip()).parent, place.path)
    except (OSError, UnicodeDecodeError):
        return False


def owner(path: Path) -> Path | None:
    """The shared git directory of the repository that the worktree at `path` belongs to, by its `.git` file.

    None when there is no such file, or when what it points at is gone (the repository was moved or deleted).
    """
    try:
        admin = Path((path / ".git").read_text().removeprefix("gitdir: ").strip())
    except (OSError, UnicodeDecodeError):
        return None
    return admin.parent.parent if admin.is_dir() else None


def relink(repository: Repository, place: Place, now_at: Path) -> Place | None:
    """Link a worktree of ours up with its repository again after either was moved; None when it is not ours.

    As `git worktree repair`, but for this one only: a person's worktrees are theirs to repair.
    """
    admin = repository.common / "worktrees" / place.admin.name
    git_file = now_at / ".git"
    try:
        if git_file.read_text() != place.link or (admin / "gitdir").read_text().strip() != f"{place.path}/.git":
            return None
    except (OSError, UnicodeDecodeError):
        return None
    link = f"gitdir: {admin}\n"
    replace_file(admin / "gitdir", f"{git_file}\n")
    replace_file(git_file, link)
    return Place(now_at, admin, link)


def lock_of_another(place: Place, reason: str) -> str | None:
    """Why somebody else locked the worktree, None when it bears our lock (`reason`) or none."""
    try:
        said = (place.admin / "locked").read_text(errors="replace").strip()
    except OSError:
        return None
    return None if said == reason else said or "no reason given"


def head(repository: Repository, place: Place) -> str | None:
    """The commit the worktree's HEAD is at, None when it is unborn or cannot be read."""
    try:
        said = (place.admin / "HEAD").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return repository.commit(said.removeprefix("ref: "))


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def entries(repository: Repository, path: Path) -> Iterator[Path]:
    """Git's administrative folders whose worktree is `path`; a killed `worktree add` leaves a torn `gitdir`."""
    wanted = os.path.realpath(path) + "/.git"
    for entry in sorted((repository.common / "worktrees").glob("*")):
        try:
            back = (entry / "gitdir").read_text().strip()
        except (OSError, UnicodeDecodeError):
            back = ""
        resolved = os.path.join(os.path.realpath(os.path.dirname(back)), os.path.basename(back)) if back else ""
        torn = back and not (entry / "HEAD").exists() and wanted.startswith(back)
        if resolved == wanted or torn or (not back and entry.name.startswith(path.name) and _is_unfinished(entry)):
            yield entry


def _is_unfinished(entry: Path) -> bool:
    """The mark of a `worktree add` under way, git's or our reason; the caller holds our lock, so none of ours is."""
    try:
        mark = (entry / "locked").read_text().strip()
        return (mark in ("initializing", "") or mark.startswith("issueflow ")) and not (entry / "HEAD").exists()
    except OSError:
        return not any(entry.iterdir())


def is_free_for_us(repository: Repository, path: Path) -> bool:
    """May `path` be made (again): nothing there, an empty folder, or a worktree that git says is this very path?"""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_dir():
        return False
    return not any(path.iterdir()) or (any(entries(repository, path)) and (path / ".git").is_file())


def dispose(repository: Repository, path: Path, trash: Path) -> None:
    """Take away a worktree that no agent has worked in: folder and git's entry, each by rename into `trash` first.

    For a prepared or half-made worktree only. A folder that is not ours is left, and IssueflowError says so.
    """
    if not is_free_for_us(repository, path):
        aside = f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.aside')}"
        raise IssueflowError(f"{path} exists and is not a worktree of this run", aside)
    for number, doomed in enumerate([path, *entries(repository, path)]):
        if os.path.lexists(doomed):
            _throw_away(doomed, trash / f"{os.getpid()}-{number}-{doomed.name}")


def remove(repository: Repository, place: Place, trash: Path) -> None:
    """Remove a worktree that the caller has proven to hold nothing of its own: into the trash, out of git, then gone.

    Renamed first, so that a crash leaves either all of it or none; `worktree remove` then only has to forget a
    missing path, where `prune` would forget a person's absent worktrees as well.
    """
    if not is_ours(place):
        raise IssueflowError(
            f"{place.path} is no longer the worktree issueflow made", f"ls -la {shlex.quote(str(place.path))}"
        )
    aside = trash / f"{os.getpid()}-{place.path.name}"
    _rename(place.path, aside)
    forget(repository, place)
    _delete(aside)
    _drop_empty(place.path.parent)


def forget(repository: Repository, place: Place) -> None:
    """Make git forget a worktree whose folder is gone already; fine when it has, or has given its entry to another."""
    if os.path.lexists(place.path):
        return
    if place.admin.is_dir() and not (place.admin / "gitdir").exists() and not (place.admin / "locked").exists():
        _delete(place.admin)  # a killed `worktree remove` had begun; an add would have locked it
    if is_registered(place):
        words = ["worktree", "remove", os.fspath(place.path)]
        run(repository.folder, "worktree", "unlock", os.fspath(place.path))
        code, _, err = run(repository.folder, *words)
        # No longer registered: a `prune` of somebody's, or the git of a killed command, was faster.
        if code != 0 and is_registered(place):
            raise GitFailed(words[:2], code, err.decode(errors="replace"))


def sweep(trash: Path, beside: Path) -> None:
    """Delete what a killed removal had only moved aside; the caller holds the repository's lock, so nobody is at it.

    `beside` is the folder of an Issue's worktrees: on another disk the trash lies there.
    """
    for left in [*trash.glob("*"), *beside.glob(".*.gone")]:
        with suppress(OSError):  # of another user: said when it was removed, and no reason to stop an Issue's walk
            _delete(left)


def _throw_away(doomed: Path, aside: Path) -> None:
    _rename(doomed, aside)
    _delete(aside)


def _rename(path: Path, aside: Path) -> None:
    """Out of the way in one step; a root on another disk than the git directory gets its trash beside the tree."""
    aside.parent.mkdir(parents=True, exist_ok=True)
    _delete(aside)
    try:
        path.rename(aside)
    except OSError:
        near = path.with_name(f".{path.name}.gone")
        _delete(near)
        path.rename(near)
        _delete(near)


def _delete(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for folder, _, _ in os.walk(path):  # a read-only folder would keep its files; links are not followed
        with suppress(PermissionError):  # another user's: it may let us delete all the same, and rmtree will say
            Path(folder).chmod(0o700)
    with naming(path):
        shutil.rmtree(path)


def _drop_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # other runs still have their worktrees there


OPERATIONS = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


def unfinished(place: Place) -> str | None:
    """The git operation that was left half-done in the worktree (`merge`, `rebase` …), None when there is none."""
    if not is_registered(place):
        return None
    return next((word for name, word in OPERATIONS.items() if (place.admin / name).exists()), None)


def unfinished_for(place: Place) -> float:
    """Seconds since the operation that `unfinished` names was begun."""
    begun = [(place.admin / name).stat().st_mtime for name in OPERATIONS if (place.admin / name).exists()]
    return max(0.0, time.time() - min(begun, default=time.time()))


def commits_seen(place: Place) -> list[str]:
    """Every id the worktree's HEAD ever pointed at, by its reflog, and those of refs that only this worktree has.

    So an amend, a reset and a detached HEAD leave nothing behind unseen, nor do `refs/worktree` and MERGE_HEAD.
    """
    if not is_registered(place):
        return []
    seen: dict[str, None] = {}
    for log in [place.admin / "logs" / "HEAD", *_files(place.admin / "logs" / "refs")]:
        lines = _read(log).splitlines()
        seen |= dict.fromkeys(line.split(b" ")[1].decode() for line in lines if line.count(b" ") >= 2)
    own = [path for path in place.admin.glob("*HEAD") if path.name != "FETCH_HEAD" and path.is_file()]
    for ref in [*own, *_files(place.admin / "refs")]:
        value = _read(ref).decode(errors="replace").strip()
        seen |= dict.fromkeys(word for word in value.splitlines() if not word.startswith("ref: "))
    return list(seen)


def touched(place: Place) -> set[bytes]:
    """Paths that are changed or new in a worktree of ours that no agent was in since it was made."""
    out = git(place.path, "ls-files", "-z", "-m", "-o", "-d")
    return {path for path in out.split(b"\0") if path}


def drop_file(path: Path) -> None:
    """Remove a file or link, and the folders above it that it leaves empty; fine when it is gone."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        for folder in path.parents:
            if any(folder.iterdir()):
                break
            folder.rmdir()


def list_all(repository: Repository) -> list[tuple[Path, str]]:
    """Every worktree git knows: its path, and the full name of its branch (empty when detached)."""
    found: list[tuple[Path, str]] = []
    for block in os.fsdecode(git(repository.folder, "worktree", "list", "--porcelain")).split("\n\n"):
        rows = dict(row.partition(" ")[::2] for row in block.split("\n") if row)
        if "worktree" in rows:
            found.append((Path(rows["worktree"]), rows.get("branch", "")))
    return found


def stashed(repository: Repository, branch: str) -> list[str]:
    """The stash entries made while `branch` was checked out: the stash is one list for all worktrees, and git names
    the branch in it."""
    rows = [
        row.decode(errors="replace").split("\t", 1) for row in _read(repository.common / "logs/refs/stash").splitlines()
    ]
    marks = (f"WIP on {branch}:", f"On {branch}:")
    found = [row[0].split(" ")[1] for row in rows if len(row) == 2 and row[1].startswith(marks)]
    return repository.commits(list(dict.fromkeys(found)))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def unreachable(repository: Repository, ids: list[str], held: list[str]) -> list[str]:
    """Those of `ids` that are commits and cannot be reached from any of `held`; of a chain, only its newest."""
    commits = repository.commits(ids)
    if not commits:
        return []
    lost = set(_listed(repository, commits, held))
    parents = [f"{commit}^@" for commit in commits if commit in lost]
    covered = set(_listed(repository, parents, held)) if parents else set()
    return [commit for commit in commits if commit in lost and commit not in covered]


def _listed(repository: Repository, commits: list[str], held: list[str]) -> list[str]:
    words = "\n".join([*commits, *(f"^{commit}" for commit in held)]).encode() + b"\n"
    return git(repository.folder, "rev-list", "--ignore-missing", "--stdin", input=words).decode().split()
