"""Brings files of the person's checkout that git does not track into a new worktree, by copy or by link."""

import os
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from issueflow.engine.hands import Hands
from issueflow.errors import IssueflowError
from issueflow.git import baseline


def bring_along(hands: Hands, worktree: Path) -> dict[str, str]:
    """Copy and link what the project wants in every worktree; path to digest of what was brought, links with none.

    What is not there is no reason to stop: a fresh clone has no `.env` yet. Where the tree of the run has a link or a
    folder in the place of a file, IssueflowError: an agent may have committed it, and what is written through a link
    lands outside of the worktree.
    """
    brought: dict[str, str] = {}
    for name in hands.config.worktrees.copy_:
        for path in _below(hands.project, Path(name)):
            source, target = hands.project / path, worktree / path
            _make_room(worktree, path)
            if source.is_symlink() and path != Path(name):
                _copy_link(source, target)
            elif source.is_file():
                _refuse_unless(stat.S_ISREG, target)
                shutil.copy2(source, target)
            if target.is_file():
                brought[os.fspath(path)] = baseline.digest(target)
    for name in hands.config.worktrees.link:
        source, target = hands.project / name, worktree / name
        if source.exists() and not os.path.lexists(target):
            _make_room(worktree, Path(name))
            target.symlink_to(source)
            brought[name] = ""
    return brought


def _below(project: Path, name: Path) -> Iterator[Path]:
    """The files that `name` means, below it when it is a folder; links in a folder are not followed."""
    if not (project / name).is_dir():
        yield name
        return
    for top, folders, files in os.walk(project / name):
        here = Path(os.path.relpath(top, project))
        yield from (here / each for each in sorted(files))
        yield from (here / each for each in sorted(folders) if (Path(top) / each).is_symlink())


def _make_room(worktree: Path, path: Path) -> None:
    """The folders above `path`, each a real one of this worktree."""
    for part in reversed(path.parents):
        _refuse_unless(stat.S_ISDIR, worktree / part)
        (worktree / part).mkdir(exist_ok=True)


def _copy_link(source: Path, target: Path) -> None:
    if target.is_symlink() and target.readlink() == source.readlink():
        return
    _refuse_unless(None, target)
    target.symlink_to(source.readlink())


def _refuse_unless(kind: Callable[[int], bool] | None, path: Path) -> None:
    """IssueflowError when something else than `kind` is at `path`; None: when anything is."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if kind is None or not kind(mode):
        what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a file"
        sentence = f"worktrees.copy or .link brings something to {path}, where the commit of this run has {what}"
        raise IssueflowError(sentence, f"ls -ld {shlex.quote(os.fspath(path))}")
