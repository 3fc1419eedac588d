"""Diffs for people and reviewers: plain, prefixed, complete, whatever the person's settings say."""

import os

from issueflow.git.command import git
from issueflow.git.refs import Repository

SNIFFED = 8_000  # bytes; git's own rule for what is binary (FIRST_FEW_BYTES in its xdiff-interface.c)
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
    """The diff from `base` to `head`, two commits; tree against tree, so that it is right in rewritten history too.

    A file that attributes call binary (`-diff`) and that is text all the same follows at the end, as text: nothing is
    hidden from a reviewer. Real binaries are one line each.
    """
    whole = git(repository.folder, "diff-tree", "-p", *PLAIN, base, head)
    hidden = [path for path in _called_binary(repository, base, head) if _is_text(repository, base, head, path)]
    if not hidden:
        return whole
    shown = git(repository.folder, "diff-tree", "-p", "--text", *PLAIN, base, head, "--", *hidden)
    return whole + b"# called binary by git attributes, shown as text:\n" + shown


def _called_binary(repository: Repository, base: str, head: str) -> list[str]:
    words = ("--numstat", "-z", "-r", "--no-renames", "--no-ext-diff", "--no-textconv")
    rows = git(repository.folder, "diff-tree", *words, base, head).split(b"\0")
    return [os.fsdecode(row.split(b"\t", 2)[2]) for row in rows if row.startswith(b"-\t-\t")]


def _is_text(repository: Repository, base: str, head: str, path: str) -> bool:
    """Does no version of the file hold a NUL where git itself would look for one?"""
    versions = [repository.file(base, path), repository.file(head, path)]
    return any(versions) and all(b"\0" not in data[:SNIFFED] for data in versions if data)


def stat(repository: Repository, base: str, head: str) -> bytes:
    """The summary of the same diff: a line a file, with created, deleted, renamed and mode-changed files named."""
    return git(repository.folder, "diff-tree", "--stat=100", "--summary", *PLAIN, base, head)


def added(repository: Repository, base: str, tip: str) -> bytes:
    """Every message and every line that the commits after `base` up to `tip` brought, binary files as text."""
    commits = git(repository.folder, "rev-list", f"{base}..{tip}", "--")
    words = ("--stdin", "-v", "-m", "-p", "--text", "-U0", "--no-color", "--no-ext-diff", "--no-textconv")
    lines = git(repository.folder, "diff-tree", *words, input=commits).split(b"\n")
    return b"\n".join(line.removeprefix(b"+") for line in lines if not line.startswith(b"-"))
