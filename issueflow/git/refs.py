"""Commits, refs and settings of the person's repository; refs move by compare-and-swap only."""

import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from issueflow.errors import GitFailed, IssueflowError
from issueflow.git.command import ZERO, git, run, text
from issueflow.git.layout import locate
from issueflow.models import Identity

AT_ONCE = 50  # blobs read by one git
LOCK_TRIES = 20
LOCK_PAUSE = 0.05  # seconds
LOCK_AGE = 2.0  # seconds; another git holds the lock of one ref for milliseconds, a killed one for ever
PACKING_AGE = 5.0  # seconds; deleting a ref locks packed-refs for milliseconds

# What git takes off both ends of a name ("crud" in its ident.c), before it refuses one of which nothing is left.
CRUD = "".join(map(chr, range(33))) + ".,:;<>\"\\'"


@dataclass(frozen=True)
class Repository:
    """A repository: `common` is the git directory all worktrees share, `folder` an existing place to call git from."""

    common: Path
    folder: Path

    # ── reading ──

    def commit(self, name: str) -> str | None:
        """The full id of the commit that `name` means, None when it means none; never an option, whatever it is."""
        code, out, _ = run(self.folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return out.decode().strip() if code == 0 else None

    def tree(self, commit: str) -> str:
        """The id of the tree of `commit`."""
        return text(self.folder, "rev-parse", "--verify", f"{commit}^{{tree}}")

    def head_name(self) -> str | None:
        """The branch the person is on (`refs/heads/main`), None on a detached HEAD."""
        return text(self.folder, "symbolic-ref", "-q", "HEAD", codes=(0, 1)) or None

    def refs(self, *prefixes: str) -> dict[str, str]:
        """Full ref name to object id, for all refs or those below `prefixes`."""
        lines = git(self.folder, "for-each-ref", "--format=%(objectname) %(refname)", *prefixes).splitlines()
        return {os.fsdecode(name): value.decode() for value, name in (line.split(b" ", 1) for line in lines)}

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Is `older` reachable from `newer`?"""
        code, _, err = run(self.folder, "merge-base", "--is-ancestor", older, newer)
        if code in (0, 1):
            return code == 0
        raise GitFailed(["merge-base"], code, err.decode(errors="replace"))

    def behind_upstream(self, ref: str) -> str | None:
        """`main is 3 commits behind origin/main` as far as the last fetch knows, None when it is not behind any."""
        out = text(self.folder, "for-each-ref", "--format=%(upstream)", ref)
        if not out or not self.commit(out) or not (count := self.count(f"{ref}..{out}")):
            return None
        names = [name.split("/", 2)[2] for name in (ref, out)]
        return f"{names[0]} is {count} commit{'' if count == 1 else 's'} behind {names[1]}"

    def count(self, revisions: str) -> int:
        """How many commits `A..B` holds."""
        return int(text(self.folder, "rev-list", "--count", revisions, "--"))

    def settings(self, env: dict[str, str] | None = None) -> dict[str, list[str]]:
        """The configuration as git sees it from the person's checkout: key to values. Reading it runs nothing."""
        found: dict[str, list[str]] = {}
        for item in git(self.folder, "config", "--list", "-z", env=env).split(b"\0"):
            key, _, value = os.fsdecode(item).partition("\n")
            if key:
                found.setdefault(key, []).append(value)
        return found

    def holders(self, commit: str) -> set[str]:
        """Every ref that reaches `commit`."""
        out = git(self.folder, "for-each-ref", "--format=%(refname)", "--contains", commit)
        return {os.fsdecode(name) for name in out.splitlines()}

    def setting(self, key: str) -> str | None:
        """One value of the configuration, None when it is not set."""
        return text(self.folder, "config", "--get", key, codes=(0, 1)) or None

    @cached_property
    def identity(self) -> Identity:
        """Who commits are by: the person, or a fixed identity where git knows none, as no commit may fail for that."""
        name, email = (_ident(self.setting(f"user.{what}") or "") for what in ("name", "email"))
        return Identity(name=name or "issueflow", email=email or "issueflow@localhost")

    def file(self, commit: str, path: str) -> bytes | None:
        """The content of `path` in `commit`, None when it is not there or no regular file."""
        line = git(self.folder, "ls-tree", "-z", commit, "--", path).split(b"\0")[0]
        if not line.startswith(b"100"):
            return None
        return git(self.folder, "cat-file", "blob", line.split()[2].decode())

    def commits(self, names: list[str]) -> list[str]:
        """As `commit` for many full ids at once: those of them that are commits here."""
        if not names:
            return []
        lines = "".join(f"{name}\n" for name in names).encode()
        rows = git(self.folder, "cat-file", "--batch-check", input=lines).decode(errors="replace").splitlines()
        return [row.split(" ")[0] for row in rows if row.split(" ")[1:2] == ["commit"]]

    def blobs(self, names: list[str]) -> Iterator[tuple[str, bytes]]:
        """The content of every blob in `names`, with its id, in order; a few are in memory at a time."""
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            out = git(self.folder, "cat-file", "--batch", input="".join(f"{name}\n" for name in some).encode())
            at = 0
            for name in some:
                end = out.index(b"\n", at)
                size = int(out[at:end].split(b" ")[2])
                yield name, out[end + 1 : end + 1 + size]
                at = end + 1 + size + 1

    # ── moving refs ──

    def move(self, ref: str, new: str, old: str = ZERO) -> None:
        """Point `ref`, one of ours, at `new`, only if it is at `old` (ZERO: only if it does not exist).

        Raises GitFailed when it is elsewhere, IssueflowError when a branch of another name makes it impossible.
        """
        code, told = self._update(ref, old, "--create-reflog", ref, new, old)
        if code == 0 or self.commit(ref) == new:
            return  # the latter: a hook or a signal made git report failure after it had done the work
        branch = ref.removeprefix("refs/heads/")
        if branch != ref and (blocker := self.blocking(branch)) not in (None, ref):
            name = str(blocker).removeprefix("refs/heads/")
            raise IssueflowError(
                f"the branch {name} is in the way of {branch}", f"git branch -m {shlex.quote(name)} NEW-NAME"
            )
        raise self._failed(ref, code, told)

    def _update(self, ref: str, old: str, *words: str) -> tuple[int | None, str]:
        """Run `update-ref WORDS` on `ref`, which is expected at `old`; exit code and standard error.

        git holds a lock for milliseconds. One that stays as it is was left by a git that died: that of a ref of ours
        is removed; that of all refs only while no git works here, since a person's `gc` may hold it for long.
        """
        packed = self.common / "packed-refs.lock"
        for _ in range(LOCK_TRIES):
            code, _, err = run(self.folder, "update-ref", *words)
            told = err.decode(errors="replace")
            if code == 0:
                break
            met = _outwait(self.lock_of(ref), LOCK_AGE)
            if packed.name in told:
                met |= _outwait(packed, PACKING_AGE, self._is_free) and not packed.exists()
            # While another git packs refs, one is now and then told to be elsewhere though it is not.
            misread = "but expected" in told and self.refs(ref).get(ref, ZERO) == old
            if not (met or misread or ("File exists" in told and packed.name not in told)):
                break
            time.sleep(LOCK_PAUSE)
        return code, told

    def _failed(self, ref: str, code: int | None, told: str) -> GitFailed:
        packed = self.common / "packed-refs.lock"
        return GitFailed(["update-ref"], code, told, f"ls -l {shlex.quote(str(packed))}" if packed.exists() else None)

    def make(self, ref: str, commit: str) -> None:
        """Ensure that `ref` exists at `commit`; IssueflowError when it exists elsewhere."""
        try:
            self.move(ref, commit)
        except GitFailed as error:
            at = self.refs(ref).get(ref)
            if not at:
                raise
            raise IssueflowError(
                f"{ref} exists already, at {at[:12]} instead of {commit[:12]}", f"git log -1 --stat {at[:12]}"
            ) from error

    def delete(self, ref: str, old: str) -> None:
        """Delete `ref` if it is at `old`; fine when it is gone already. Lock files are met as in `move`.

        Also when it is gone: a git that was killed while it deleted the ref has left them.
        """
        if self.refs(ref).get(ref):
            code, told = self._update(ref, old, "-d", ref, old)
            if code != 0:
                raise self._failed(ref, code, told)
        else:
            _outwait(self.lock_of(ref), LOCK_AGE)
            _outwait(self.common / "packed-refs.lock", PACKING_AGE, self._is_free)

    def _is_free(self) -> bool:
        """Does no git work in this repository? False where that cannot be told."""
        names = [entry for entry in Path("/proc").glob("[0-9]*") if _name_of(entry) == "git"]
        return Path("/proc/self").exists() and not any(self._works_here(entry) for entry in names)

    def _works_here(self, process: Path) -> bool:
        try:
            return locate((process / "cwd").readlink()).common == self.common
        except FileNotFoundError:
            return False  # it has ended
        except IssueflowError:
            return False  # it works outside of any repository
        except OSError:
            return True

    def drop_lock(self, ref: str) -> None:
        """Remove the lock file of one of our own refs; only for callers who know that nobody of ours is alive."""
        try:
            self.lock_of(ref).unlink()
        except (FileNotFoundError, NotADirectoryError):
            pass  # the latter: a branch of the person's is in the way, which making ours will say

    def lock_of(self, ref: str) -> Path:
        """Where git's lock file for a ref lies."""
        return self.common / f"{ref}.lock"

    def blocking(self, branch: str) -> str | None:
        """The existing branch that makes `branch` impossible, None if none.

        `a` blocks `a/b` and the other way round; and a branch below a folder that differs in letter case only
        would share that folder on a case-insensitive disk.
        """
        wanted = f"refs/heads/{branch}".split("/")
        return next((ref for ref in self.refs("refs/heads") if _clash(ref.split("/"), wanted)), None)

    # ── objects ──

    def commit_tree(self, tree: str, parents: list[str], message: str, by: Identity, when: int) -> str:
        """Make a commit object; the same arguments always make the same commit. `when` is in seconds since 1970."""
        env = {
            "GIT_AUTHOR_NAME": by.name,
            "GIT_AUTHOR_EMAIL": by.email,
            "GIT_AUTHOR_DATE": f"@{when} +0000",
            "GIT_COMMITTER_NAME": by.name,
            "GIT_COMMITTER_EMAIL": by.email,
            "GIT_COMMITTER_DATE": f"@{when} +0000",
        }
        words = [word for parent in parents for word in ("-p", parent)]
        data = message.replace("\0", "\N{REPLACEMENT CHARACTER}").encode()  # git takes no NUL, titles and notes do
        out = git(self.folder, "commit-tree", tree, *words, input=data, env=env)
        return out.decode().strip()

    def store(self, folder: Path, names: list[str]) -> list[str]:
        """Write files below `folder` as blobs, byte for byte, and give their ids in order; names have no line break."""
        if not names:
            return []
        env = {"GIT_DIR": os.fspath(self.common)}
        lines = "".join(f"{name}\n" for name in names).encode()
        return git(folder, "hash-object", "-w", "--no-filters", "--stdin-paths", input=lines, env=env).decode().split()


def _outwait(lock: Path, age: float, may: Callable[[], bool] = lambda: True) -> bool:
    """Wait until a lock file is gone or another; when it is neither for `age` seconds remove it, if that `may` be.

    False when there is none. Timed by watching, not by its date, which a clock that was set would falsify.
    """
    first = _identity(lock)
    until = time.monotonic() + age
    while (now := _identity(lock)) and now == first:
        if time.monotonic() > until:
            if may():
                lock.unlink(missing_ok=True)
            break
        time.sleep(LOCK_PAUSE)
    return first is not None


def _name_of(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""  # it has ended


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        state = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state.st_ino, state.st_mtime_ns


def _ident(value: str) -> str:
    """A name as git can use it, marks in the place of bytes that are no UTF-8; empty when git would have none of it."""
    text = os.fsencode(value).decode(errors="replace")
    return text if text.strip(CRUD) else ""


def _clash(existing: list[str], wanted: list[str]) -> bool:
    for a, b in zip(existing, wanted, strict=False):
        if a != b:
            return a.casefold() == b.casefold()
    return True  # one is the beginning of the other, or the same
