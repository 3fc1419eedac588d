"""What the person's repository and checkout looked like before a run, and what is different after it; runs nothing."""

import base64
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any

from issueflow.git.command import git, run
from issueflow.git.refs import Repository

WATCHED = ("config", "config.worktree", "HEAD", "packed-refs.lock", "shallow", "objects/info/alternates")
FOLDERS = ("hooks", "info")
PUT_BACK = ("config", "config.worktree", "hooks/", "info/", "objects/info/")  # files that may be restored
PROJECT = ".issueflow"
MOST_KEPT = 1024 * 1024  # bytes of one file whose content is kept
MOST_READ = 8 * 1024 * 1024  # bytes of a changed file in the checkout that are read; a larger one is told by its time

# Settings by which git, as issueflow calls it, would run a program; `git.command` switches the others off by name.
EXECUTES = re.compile(
    r"filter\..*\.(clean|smudge|process)|remote\..*\.(uploadpack|vcs|promisor)|extensions\.partialclone"
    r"|include\.path|includeif\..*\.path"
)


def take(repository: Repository, own: str, checkout: Path) -> dict[str, str]:
    """Name to digest for settings, hooks, info files, stash, every ref and what differs in the person's `checkout`.

    `own` is the prefix of our branches. Refs that issueflow itself moves are left out: other Issues go on while this
    run works.
    """
    settings = _settings(repository, checkout)
    seen = {f"file {name}": digest(path) for name, path in _files(repository).items()}
    seen |= executing(repository, checkout, settings)
    ours = (f"refs/heads/{own}/", "refs/issueflow-records/", "refs/issueflow-keep/")
    lines = git(repository.folder, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    for line in lines:
        value, _, name = os.fsdecode(line).partition(" ")
        if not name.startswith(ours):
            seen[f"ref {name}"] = value
    seen |= _changed_files(checkout, settings)
    return {name: value for name, value in seen.items() if value}


def executing(repository: Repository, checkout: Path, settings: dict[str, list[str]] | None = None) -> dict[str, str]:
    """What decides which programs are run: git settings that name some, and the project's `.issueflow/`."""
    found = settings if settings is not None else _settings(repository, checkout)
    seen = {
        f"setting {key}": hashlib.sha256("\0".join(values).encode(errors="surrogateescape")).hexdigest()
        for key, values in found.items()
        if EXECUTES.fullmatch(key)
    }
    return seen | {f"project {name}": digest(path) for name, path in _project(checkout).items()}


def _settings(repository: Repository, checkout: Path) -> dict[str, list[str]]:
    """As git sees them in the checkout, wherever the command was typed: an include may hold for one place only."""
    return Repository(repository.common, checkout).settings()


def contents(repository: Repository, checkout: Path) -> dict[str, dict[str, Any]]:
    """Name to mode and content of the small files among them, for whoever wants one back."""
    files = {f"file {name}": path for name, path in _files(repository).items() if name.startswith(PUT_BACK)}
    files |= {f"project {name}": path for name, path in _project(checkout).items()}
    kept = {}
    for name, path in files.items():
        try:
            state = path.lstat()
            if stat.S_ISREG(state.st_mode) and state.st_size <= MOST_KEPT and path.suffix != ".sample":
                data = base64.b64encode(path.read_bytes()).decode()
                kept[name] = {"mode": stat.S_IMODE(state.st_mode), "base64": data}
        except OSError:
            continue
    return kept


def place(repository: Repository, checkout: Path, name: str) -> Path | None:
    """Where the file that a baseline calls `name` lies; None for what is no file, or none that may be put back."""
    kind, _, rest = name.partition(" ")
    if kind == "project":
        return checkout / PROJECT / rest
    return repository.common / rest if kind == "file" and rest.startswith(PUT_BACK) else None


def _files(repository: Repository) -> dict[str, Path]:
    found = {name: repository.common / name for name in WATCHED}
    for folder in FOLDERS:
        found |= {f"{folder}/{path.name}": path for path in sorted((repository.common / folder).glob("*"))}
    return found


def _project(checkout: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder, _, files in os.walk(checkout / PROJECT):  # links to folders, as `issues` is one, are not followed
        found |= {os.path.relpath(os.path.join(folder, name), checkout / PROJECT): Path(folder, name) for name in files}
    return found


def _changed_files(checkout: Path, settings: dict[str, list[str]]) -> dict[str, str]:
    """Tracked files of the checkout that are staged or changed, with what they hold; no filter is run to find out."""
    drivers = {key.rpartition(".")[0] for key in settings if key.startswith("filter.")}
    off = [f"{name}.{key}" for name in drivers for key in ("clean=", "process=", "required=false")]
    words = ("status", "--porcelain=v2", "-z", "-uno", "--no-renames", "--ignore-submodules=all")
    code, out, _ = run(checkout, *(part for setting in off for part in ("-c", setting)), *words)
    found = {}
    for row in out.split(b"\0") if code == 0 else ():
        fields = row.split(b" ", 10 if row.startswith(b"u ") else 8)
        name = os.fsdecode(fields[-1])
        if row[:2] in (b"1 ", b"u ") and not name.startswith(f"{PROJECT}/"):
            found[f"checkout {name}"] = f"{os.fsdecode(b' '.join(fields[1:-1]))} {_briefly(checkout / name)}"
    return found


def _briefly(path: Path) -> str:
    try:
        state = path.lstat()
    except OSError:
        return "gone"
    return digest(path) if state.st_size <= MOST_READ else f"{state.st_size} {state.st_mtime_ns}"


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The names that differ."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def in_words(name: str, before: dict[str, str], after: dict[str, str]) -> str:
    """One difference in words."""
    shown = os.fsencode(name).decode(errors="backslashreplace")  # the journal takes no name that is not UTF-8
    kind, _, rest = shown.partition(" ")
    if kind == "checkout":  # a file that is no longer changed was changed as well: back
        return f"{rest} in your checkout was changed during the run"
    what = f"{PROJECT}/{rest} in your checkout" if kind == "project" else shown
    how = "made" if name not in before else "removed" if name not in after else "changed"
    return f"{what} was {how} during the run"


def digest(path: Path) -> str:
    """The SHA-256 of a file's content, empty when it cannot be read."""
    if not path.is_file():
        return ""  # opening a pipe would wait for ever
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
