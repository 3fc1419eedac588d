"""What the person's repository looked like before a run, and what is different after it; runs no hook."""

import hashlib
import os
from pathlib import Path

from issueflow.git.command import git
from issueflow.git.refs import Repository

WATCHED = ("config", "config.worktree", "HEAD", "packed-refs.lock", "shallow")
FOLDERS = ("hooks", "info")


def take(repository: Repository, own: str) -> dict[str, str]:
    """Name to digest for settings, hooks, info files, stash and every ref; `own` is the prefix of our branches.

    Refs that issueflow itself moves are left out: other Issues go on while this run works.
    """
    seen = {f"file {name}": digest(repository.common / name) for name in WATCHED}
    for folder in FOLDERS:
        for path in sorted((repository.common / folder).glob("*")):
            seen[f"file {folder}/{path.name}"] = digest(path)
    ours = (f"refs/heads/{own}/", "refs/issueflow-records/", "refs/issueflow-keep/")
    lines = git(repository.folder, "for-each-ref", "--format=%(objectname) %(refname)").splitlines()
    for line in lines:
        value, _, name = os.fsdecode(line).partition(" ")
        if not name.startswith(ours):
            seen[f"ref {name}"] = value
    return {name: value for name, value in seen.items() if value}


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What appeared, vanished or changed, in words; by the agent or by anybody else meanwhile: git cannot tell."""
    words = []
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            words.append(f"{name} was made during the run")
        elif name not in after:
            words.append(f"{name} was removed during the run")
        elif before[name] != after[name]:
            words.append(f"{name} was changed during the run")
    return words


def digest(path: Path) -> str:
    """The SHA-256 of a file's content, empty when it cannot be read."""
    if not path.is_file():
        return ""  # opening a pipe would wait for ever
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
