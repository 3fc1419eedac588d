"""Diffs for people and reviewers: plain, prefixed, complete, whatever the person's settings say."""

import os

from issueflow.git.command import git
from issueflow.git.refs import Repository

PLAIN = (
    "-r",
    "-M",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--submodule=short",
    "--ignore-submodules=none",
    "--diff-algorithm=histogram",
)


def patch(repository: Repository, base: str, head: str) -> bytes:
    """The diff from `base` to `head`, two commits; tree against tree, so that it is right in rewritten history too."""
    return git(repository.folder, "diff-tree", "-p", *PLAIN, base, head)


def stat(repository: Repository, base: str, head: str) -> bytes:
    """The summary of the same diff: a line a file, with created, deleted, renamed and mode-changed files named."""
    return git(repository.folder, "diff-tree", "--stat=100", "--summary", *PLAIN, base, head)


def changed_files(repository: Repository, base: str, head: str) -> list[str]:
    """The paths that differ between two commits."""
    out = git(repository.folder, "diff-tree", "--name-only", "-z", "-r", "--no-renames", base, head)
    return [os.fsdecode(path) for path in out.split(b"\0") if path]
