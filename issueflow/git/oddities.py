"""What is unusual about a repository, told from its settings and files; nothing in it is changed or run."""

import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from issueflow.git.command import git, run
from issueflow.git.refs import Repository

LOCK_AGE = 60.0  # seconds; git holds a lock for milliseconds, a `gc` for minutes
FILTER = re.compile(r"(?:^|\s)filter=(\S+)")


class Filter(NamedTuple):
    """A filter that attributes name: the program it starts (empty: none is set), and whether git insists on it."""

    name: str
    program: str
    required: bool

    @property
    def is_there(self) -> bool:
        """Can its program be found?"""
        return bool(self.program) and shutil.which(self.program) is not None


class Lock(NamedTuple):
    """A lock file of git's: its path, its age in seconds, whether it is another user's."""

    path: Path
    age: float
    foreign: bool


def version() -> tuple[int, ...]:
    """The version of git; IssueflowError when there is none."""
    told = git(Path("/"), "version").decode(errors="replace")
    return tuple(map(int, re.findall(r"\d+", told)[:3]))


def trouble(repository: Repository) -> str | None:
    """In git's words why it does not work here, None when it does."""
    code, _, err = run(repository.folder, "rev-parse", "--git-dir")
    lines = err.decode(errors="replace").strip().splitlines()
    return None if code == 0 else (lines or ["it said nothing"])[0]


def filters(repository: Repository, checkout: Path, settings: dict[str, list[str]]) -> list[Filter]:
    """Every filter that a tracked .gitattributes or info/attributes names."""
    names = git(checkout, "ls-files", "-z", "--cached").split(b"\0")
    files = [checkout / os.fsdecode(name) for name in names if name.split(b"/")[-1] == b".gitattributes"]
    texts = (_text(path) for path in [*files, repository.common / "info" / "attributes"])
    rows = (row for text in texts for row in text.splitlines() if not row.startswith("#"))
    found = dict.fromkeys(match for row in rows for match in FILTER.findall(row))
    return [_filter(name, settings) for name in found]


def _filter(name: str, settings: dict[str, list[str]]) -> Filter:
    values = {key: settings.get(f"filter.{name}.{key}", [""])[-1] for key in ("process", "smudge", "clean", "required")}
    line = values["process"] or values["smudge"] or values["clean"]
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return Filter(name, words[0] if words else "", is_true(values["required"]))


def is_true(value: str) -> bool:
    """What git takes for true in a setting."""
    return value.lower() in ("true", "yes", "on", "1")


def hooks(repository: Repository, checkout: Path, settings: dict[str, list[str]]) -> tuple[Path, list[str]]:
    """Where the repository's hooks are, and the names of those that git would run for a person."""
    configured = ["", *settings.get("core.hookspath", [])[:-1]][-1]  # the last one is ours: issueflow runs no hook
    folder = checkout / Path(configured).expanduser() if configured else repository.common / "hooks"
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return folder, []
    return folder, [p.name for p in files if p.suffix != ".sample" and p.is_file() and os.access(p, os.X_OK)]


def is_partial(settings: dict[str, list[str]]) -> bool:
    """Was it cloned without all of its objects?"""
    promisors = [values[-1] for key, values in settings.items() if re.fullmatch(r"remote\..*\.promisor", key)]
    return "extensions.partialclone" in settings or any(map(is_true, promisors))


def is_shallow(repository: Repository) -> bool:
    """Does its history end before the beginning?"""
    return bool(_text(repository.common / "shallow").strip())


def locks(repository: Repository) -> list[Lock]:
    """Lock files that no git at work explains: old ones, and another user's."""
    found = []
    for path in _lock_files(repository.common):
        try:
            state = path.lstat()
        except OSError:
            continue  # a git at work took it away
        lock = Lock(path, time.time() - state.st_mtime, state.st_uid != os.geteuid())
        if lock.foreign or lock.age > LOCK_AGE:
            found.append(lock)
    return found


def _lock_files(common: Path) -> Iterator[Path]:
    yield from sorted(common.glob("*.lock"))
    yield from sorted(common.glob("worktrees/*/*.lock"))
    yield from sorted((common / "refs").rglob("*.lock"))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
