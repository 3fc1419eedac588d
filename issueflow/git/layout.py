"""Where a repository is, by git's own layout on disk and without running git; standard library only, for `status`."""

import os
from pathlib import Path
from typing import NamedTuple

from issueflow.errors import IssueflowError


class Standing(NamedTuple):
    """Where one stands: the git directory all worktrees share, and the worktree (None in a bare repository)."""

    common: Path
    worktree: Path | None


def locate(start: Path) -> Standing:
    """The repository around `start`, by git's own layout and without running git: `status` is typed too often for that.

    IssueflowError when there is none, or when it is gone.
    """
    here = Path(os.path.realpath(start))
    if not here.is_dir():
        raise IssueflowError(f"the folder {start} does not exist")
    for folder in (here, *here.parents):
        dot = folder / ".git"
        if dot.is_dir() and (dot / "HEAD").exists():
            return Standing(dot, folder)
        if dot.is_file():
            return Standing(_common(_linked(dot)), folder)
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir():
            return _in_git_directory(folder)
    raise IssueflowError(f"{start} is in no git repository", "git init")


def _linked(dot: Path) -> Path:
    link = dot.read_text(errors="replace").removeprefix("gitdir:").strip()
    target = Path(os.path.normpath(dot.parent / link))
    if not target.is_dir():
        raise IssueflowError(
            f"{dot} points at {target}, which does not exist: the main repository is missing or was moved"
        )
    return target


def _common(git_directory: Path) -> Path:
    try:
        link = (git_directory / "commondir").read_text().strip()
    except FileNotFoundError:
        return git_directory
    return Path(os.path.realpath(git_directory / link))


def _in_git_directory(folder: Path) -> Standing:
    """Inside `.git` or a bare repository there is no worktree to stand in, but the Issues are the same."""
    common = _common(folder)
    return Standing(common, common.parent if common.name == ".git" else None)
