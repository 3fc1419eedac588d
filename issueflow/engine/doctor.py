"""Looks for what stops work on this machine and in this repository, or will surprise a person; changes nothing."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from issueflow.engine.hands import Hands
from issueflow.engine.programs import configured_agents
from issueflow.errors import IssueflowError
from issueflow.git import oddities, worktrees

GIT_NEEDED = (2, 33)  # `worktree add --lock --reason`
# What an older git does not do, and what that means here.
GIT_FEATURES = {
    (2, 36): "commits are not forced to the disk, and a power cut may lose the last ones (needs 2.36)",
    (2, 38): "a merged branch is not told by a merge in memory (needs 2.38)",
}
LEAST_ROOM = 100 << 20  # bytes; less stops work: a run writes its worktree, logs and commits
LITTLE_ROOM = 2 << 30
LEAST_FILES = 1000  # free inodes
SWEPT = ("/tmp", "/var/tmp", "/dev/shm")
SYSTEMD = Path("/run/systemd/system")
PATIENCE = 5.0  # seconds for tmux or loginctl


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `stop` stops work, a `note` may surprise; `hint` is a command that shows more."""

    level: Literal["ok", "note", "stop"]
    about: str
    sentence: str
    hint: str = ""


def machine() -> list[Finding]:
    """What can be said without a repository."""
    return [_python(), *_git(), _tmux(), *_lingering()]


def repository(hands: Hands) -> list[Finding]:
    """What can be said of the repository and its configuration."""
    if trouble := oddities.trouble(hands.repository):
        return [_git_refuses(hands, trouble)]
    found = [*_writable(hands), *_configuration(hands)]
    settings = hands.repository.settings()
    odd = [finding for look in LOOKS for finding in look(hands, settings)]
    if not odd and not any(finding.about == "repository" for finding in found):
        odd = [Finding("ok", "repository", "nothing unusual")]
    return [*found, *odd]


# ── the machine ──


def _python() -> Finding:
    return Finding("ok", "python", sys.version.split()[0])


def _git() -> Iterator[Finding]:
    try:
        version = oddities.version()
    except IssueflowError as error:
        yield Finding("stop", "git", str(error), error.hint or "git --version")
        return
    name = ".".join(map(str, version))
    if version < GIT_NEEDED:
        needed = ".".join(map(str, GIT_NEEDED))
        yield Finding("stop", "git", f"{name} is too old: worktrees need {needed} or newer", "git --version")
        return
    yield Finding("ok", "git", name)
    for since, lacking in GIT_FEATURES.items():
        if version < since:
            yield Finding("note", "git", lacking, "git --version")


def _tmux() -> Finding:
    if shutil.which("tmux") is None:
        return Finding("ok", "tmux", "not installed; nothing needs it but runs in tmux")
    return Finding("ok", "tmux", _ask("tmux", "-V").removeprefix("tmux ") or "installed")


def _lingering() -> Iterator[Finding]:
    """Where systemd ends what a person leaves behind at logout, a run goes with it unless lingering is on."""
    if not SYSTEMD.is_dir() or shutil.which("loginctl") is None:
        return
    if _ask("loginctl", "show-user", str(os.getuid()), "--property=Linger") == "Linger=no":
        sentence = "off: when you log out, systemd may end runs that go on"
        yield Finding("note", "lingering", sentence, "loginctl enable-linger")


def _ask(*words: str) -> str:
    """What a program prints, empty when it fails or takes too long."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=PATIENCE, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ── where things lie ──


def _git_refuses(hands: Hands, trouble: str) -> Finding:
    common = hands.repository.common
    if common.stat().st_uid != os.geteuid():
        here = os.fspath(hands.repository.folder)
        words = ["git", "config", "--global", "--add", "safe.directory", here]
        return Finding(
            "stop", "repository", f"git does not work in it, it is another user's: {trouble}", shlex.join(words)
        )
    return Finding("stop", "repository", f"git does not work in it: {trouble}", "git status")


def _writable(hands: Hands) -> Iterator[Finding]:
    """Git directory and worktree root: may one write there, and is there room?"""
    common = hands.repository.common
    for folder in (common, common / "objects", common / "refs", common / "worktrees", common / "issueflow"):
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            yield Finding("stop", "repository", f"{folder} cannot be written", _list(folder))
    yield from _room("repository", common)
    if is_swept(hands.project):
        yield Finding(
            "note",
            "repository",
            f"{hands.project} is in a folder that systems empty by themselves",
            _list(hands.project),
        )
    try:
        root = hands.worktrees
    except IssueflowError:
        return  # said with the configuration
    yield from _root(hands, root)


def _root(hands: Hands, root: Path) -> Iterator[Finding]:
    there = _existing(root)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "is no folder" if not there.is_dir() else "cannot be written"
        yield Finding("stop", "worktrees", f"{there} {what} (worktrees.root in config.yaml)", _list(there))
        return
    if root.resolve().is_relative_to(hands.project.resolve()):
        sentence = f"{root} is inside the checkout: a worktree there that loses its .git file is taken for the checkout"
        yield Finding("note", "worktrees", f"{sentence} (worktrees.root in config.yaml)", _list(there))
    if is_swept(root):
        sentence = f"{root} is in a folder that systems empty by themselves (worktrees.root in config.yaml)"
        yield Finding("note", "worktrees", sentence, _list(there))
    if there.stat().st_dev == hands.repository.common.stat().st_dev:
        yield Finding("ok", "worktrees", f"go to {root}")
    else:
        yield Finding("ok", "worktrees", f"go to {root}, on another disk than the repository")
        yield from _room("worktrees", there)


def _room(about: str, folder: Path) -> Iterator[Finding]:
    there = shlex.quote(os.fspath(folder))
    free = shutil.disk_usage(folder).free
    if free < LITTLE_ROOM:
        level: Literal["note", "stop"] = "stop" if free < LEAST_ROOM else "note"
        yield Finding(level, about, f"{free >> 20} MiB are free on its disk", f"df -h {there}")
    state = os.statvfs(folder)
    if state.f_files and state.f_favail < LEAST_FILES:
        yield Finding("stop", about, f"there is room for {state.f_favail} more files on its disk", f"df -i {there}")


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if os.path.lexists(folder))


def is_swept(path: Path) -> bool:
    """Does `path` lie in a folder that systems empty by themselves, at a restart or by age?"""
    swept = {Path(name).resolve() for name in (*SWEPT, os.environ.get("TMPDIR") or SWEPT[0])}
    return any(path.resolve().is_relative_to(folder) for folder in swept)


def _list(path: Path) -> str:
    return f"ls -ld {shlex.quote(os.fspath(path))}"


def _configuration(hands: Hands) -> Iterator[Finding]:
    if not (hands.project / ".issueflow" / "config.yaml").exists():
        yield Finding("note", "config", "there is no .issueflow/config.yaml yet", "issueflow init")
        return
    try:
        config = hands.config
    except IssueflowError as error:
        yield Finding("stop", "config", str(error), error.hint or "")
        return
    yield Finding("ok", "config", "config.yaml can be read")
    for agent in configured_agents(config, hands.project):
        if agent.needs and agent.roles:
            sentence = f"{agent.name}, {' and '.join(agent.roles)}: {agent.needs}"
            yield Finding("stop", "agents", sentence, agent.hint or "issueflow agents")


# ── what is unusual about the repository ──

Settings = dict[str, list[str]]


def _commits(hands: Hands, settings: Settings) -> Iterator[Finding]:
    if hands.repository.commit("HEAD") is None:
        yield Finding("note", "repository", "it has no commit yet, and an Issue begins at one", "git commit")


def _filters(hands: Hands, settings: Settings) -> Iterator[Finding]:
    for one in oddities.filters(hands.repository, hands.project, settings):
        lfs = one.name == "lfs"
        shows = "git lfs install" if lfs else f"git config --get-regexp {shlex.quote(f'filter.{one.name}.*')}"
        if one.required and not one.is_there:
            what = f"{one.program} is not there" if one.program else "no program is set"
            sentence = f"no worktree can be made: files need the filter {one.name}, and {what}"
            yield Finding("stop", "filter", sentence, shows)
        elif not one.is_there:
            what = "stay pointers of git LFS" if lfs else f"are checked out without the filter {one.name}"
            yield Finding("note", "filter", f"files in worktrees {what}: its program is not set or not there", shows)


def _submodules(hands: Hands, settings: Settings) -> Iterator[Finding]:
    if not (found := worktrees.submodules(hands.project)):
        return
    try:
        filled = any("submodule" in command.run for command in hands.config.worktrees.setup)
    except IssueflowError:
        filled = False
    if not filled:
        sentence = f"empty in worktrees unless worktrees.setup fills them: {', '.join(found)}"
        yield Finding("note", "submodules", sentence, "git submodule update --init")


def _incomplete(hands: Hands, settings: Settings) -> Iterator[Finding]:
    if oddities.is_true(settings.get("core.sparsecheckout", [""])[-1]):
        sentence = "a sparse checkout: worktrees may have only a part of the files"
        yield Finding("note", "sparse", sentence, "git sparse-checkout list")
    if oddities.is_shallow(hands.repository):
        sentence = "a shallow clone: a base or a merge before its end cannot be found"
        yield Finding("note", "shallow", sentence, "git fetch --unshallow")
    if oddities.is_partial(settings):
        sentence = "a partial clone: a worktree may have to fetch its files, which needs the network"
        yield Finding("note", "partial", sentence, "git config --get-regexp promisor")


def _hooks(hands: Hands, settings: Settings) -> Iterator[Finding]:
    folder, names = oddities.hooks(hands.repository, hands.project, settings)
    if names:
        sentence = f"not run for commits of issueflow: {', '.join(names)}; what must hold belongs into checks"
        yield Finding("note", "hooks", sentence, f"ls {shlex.quote(os.fspath(folder))}")


def _letters(hands: Hands, settings: Settings) -> Iterator[Finding]:
    if oddities.is_true(settings.get("core.ignorecase", [""])[-1]):
        sentence = "names that differ only in case are one file on this disk"
        yield Finding("note", "disk", sentence, "git config core.ignorecase")


def _locks(hands: Hands, settings: Settings) -> Iterator[Finding]:
    for lock in oddities.locks(hands.repository):
        whose = "another user's" if lock.foreign else f"{int(lock.age // 60)} minutes old"
        sentence = f"{lock.path} is {whose}: a git holds it for long, or died"
        yield Finding("note", "lock", sentence, f"ls -l {shlex.quote(os.fspath(lock.path))}")


LOOKS: list[Callable[[Hands, Settings], Iterator[Finding]]] = [
    _commits,
    _filters,
    _submodules,
    _incomplete,
    _hooks,
    _letters,
    _locks,
]
