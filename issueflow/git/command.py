"""One function that runs git, and the surroundings it always runs in."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

from issueflow.errors import GitFailed, IssueflowError

ZERO = ""  # what update-ref takes for "must not exist", whatever the repository's object format
TIME_LIMIT = 600.0  # seconds; a worktree of a very large repository takes minutes, a hanging hook or prompt for ever
FATAL = 128  # git's exit code when it could not do what was asked, and for some questions an answer
GRACE = 5.0  # seconds between SIGTERM and SIGKILL: git removes its lock files on the first, never on the second

ALWAYS = {
    "LC_ALL": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": ":",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_MERGE_AUTOEDIT": "no",
    "GIT_GRAFT_FILE": f"{os.devnull}/none",  # a planted info/grafts would tell another history
}
SETTINGS = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.sshCommand=ssh",
    "core.askPass=",
    "core.editor=:",
    "core.safecrlf=false",
    "core.fsync=committed",
    "core.quotePath=false",
    "color.ui=false",
    "commit.gpgsign=false",
    "tag.gpgsign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "credential.helper=",
    # An object that is not there makes git fetch it from any remote called a promisor; by a path, that runs the
    # remote's `uploadpack`, and by git:// the `core.gitProxy`: both are words in a file that agents can write.
    "protocol.ext.allow=never",
    "protocol.file.allow=never",
    "protocol.git.allow=never",
    "submodule.recurse=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "user.useConfigOnly=false",
    "advice.detachedHead=false",
    "index.sparse=false",
    "worktree.useRelativePaths=false",
]


def git(
    folder: Path,
    *words: str,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    codes: tuple[int, ...] = (0,),
    limit: float = TIME_LIMIT,
) -> bytes:
    """Run `git WORDS` in `folder` and give its standard output.

    `codes` are the exit codes that are answers; any other, and running longer than `limit` seconds, raises GitFailed.
    `folder` must exist: GitPython would silently use the caller's working directory instead.
    """
    code, out, err = run(folder, *words, input=input, env=env, limit=limit)
    if code not in codes:
        raise GitFailed(list(words), code, err.decode(errors="replace"))
    return out


def run(
    folder: Path,
    *words: str,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    limit: float = TIME_LIMIT,
) -> tuple[int | None, bytes, bytes]:
    """As `git`, but give exit code (None at the time limit), standard output and standard error to judge.

    Raises IssueflowError where git answers nothing at all: the repository belongs to another user.
    """
    Git = _library()
    if not folder.is_dir():
        raise IssueflowError(f"the folder {folder} does not exist")
    # By -C: GitPython would expand `$` and `~` in the name of a working directory.
    argv = ["git", "-C", os.fspath(folder), *(part for setting in SETTINGS for part in ("-c", setting)), *words]
    handle = Git(os.sep).execute(
        argv, as_process=True, istream=PIPE, env={**ALWAYS, **(env or {})}, start_new_session=True
    )
    process: subprocess.Popen[bytes] = handle.proc
    try:
        out, err = process.communicate(input or b"", timeout=limit)
    except subprocess.TimeoutExpired:
        out, err = _end(process)
        return None, out, err
    except BaseException:
        _end(process)
        raise
    if process.returncode == FATAL and b"detected dubious ownership" in err:
        raise _not_trusted(err.decode(errors="replace"))
    return process.returncode, out, err


def text(folder: Path, *words: str, env: Mapping[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> str:
    """As `git`, for answers of one line or of plain ASCII: the output as text without its last newline."""
    return os.fsdecode(git(folder, *words, env=env, codes=codes)).removesuffix("\n")


def _library() -> Any:
    try:
        from git import Git  # spawns git twice when imported; only commands that need git pay for it
    except ImportError as error:
        raise IssueflowError("git is not installed, or not on PATH", "git --version") from error
    return Git


def _not_trusted(told: str) -> IssueflowError:
    """Said by every command alike: taken for an answer it would read `no such commit`, `no such ref`.

    Whether to trust the other user is the person's to say; git prints the command for it.
    """
    lines = [line.strip() for line in told.splitlines()]
    where = next(line.partition("repository at ")[2].strip("'") for line in lines if "dubious ownership" in line)
    way = next((line for line in lines if line.startswith("git config ")), "git status")
    return IssueflowError(f"git does not work in {where}, which belongs to another user", way)


def _end(process: "subprocess.Popen[bytes]") -> tuple[bytes, bytes]:
    """End git with all that it has started: a filter that hangs holds git's pipes and would be waited for."""
    _signal(process, signal.SIGTERM)
    try:
        return process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        return process.communicate()


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the latter: macOS, of a group of zombies
        os.killpg(process.pid, number)
