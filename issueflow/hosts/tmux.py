"""The host `tmux`: runs as on the host `process`, each shown in a session of a tmux server that is issueflow's alone.

The pane shows the run and does not own it. A runner that tmux had started would have the environment, the umask and
the limits of whoever started the server first, and its secrets would have to be handed over by file or argument. So the
runner is started as ever, and what happens to pane, session and server is nothing to the run.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from issueflow.errors import IssueflowError
from issueflow.files import read_json
from issueflow.hosts import pane, process

ROOM = Path("/tmp")  # a socket's path may have some hundred bytes; and TMPDIR may be another one where one attaches
PATIENCE = 10.0  # seconds for an answer; a server that was stopped gives none
# Options a server begins with, in the place of /etc/tmux.conf and ~/.tmux.conf. What a pane prints stays in the pane.
OPTIONS = {
    "remain-on-exit": "off",
    "status": "off",
    "history-limit": "50000",
    "default-shell": "/bin/sh",
    "default-command": "/bin/sh",  # an empty one is a login shell, whose start-up files may lead anywhere
    "update-environment": "",
    "set-clipboard": "off",
    "allow-passthrough": "off",
    "allow-rename": "off",
    "set-titles": "off",
}

probe, cancel = process.probe, process.cancel


def require() -> None:
    """IssueflowError when there is no tmux."""
    if shutil.which("tmux") is None:
        sentence = "the host tmux needs the program tmux, which is not on PATH; without it, set `host: process`"
        raise IssueflowError(sentence, "git grep -n host: -- :/.issueflow/config.yaml")


def submit(folder: Path) -> None:
    """Start a runner as `process` does, and a session that shows the run.

    A run that cannot be shown goes on all the same; `attach` tries again, and says why it cannot.
    """
    process.submit(folder)
    with contextlib.suppress(IssueflowError, OSError):
        show(folder)


def shown(folder: Path) -> str | None:
    """The session that shows the run, in words; None when there is none, or no telling."""
    with contextlib.suppress(IssueflowError, OSError):
        if _is_there(folder, session(folder)):
            return f"tmux session {session(folder)}"
    return None


def attach(folder: Path, *, take_over: bool) -> list[str]:
    """The tmux client for the run's session, which is made if it is gone; IssueflowError when that fails."""
    show(folder)
    argv = ["tmux", "-S", os.fspath(socket(folder)), "attach-session", "-t", f"={session(folder)}"]
    if not take_over:
        return [*argv, "-f", "read-only"]  # not `-r`, which leaves the pane wider than the terminal may be
    worktree = (read_json(folder / "launch.json") or {}).get("cwd", "/")
    return [*argv, "-c", worktree.replace("#", "##")]  # where new windows begin; `#{…}` would be replaced


def session(folder: Path) -> str:
    """The name of the run's session: `ISSUE-7-06-develop`, without the dots and colons that tmux would change."""
    return f"{folder.parents[1].name}-{folder.name}"


def socket(folder: Path) -> Path:
    """The socket of this repository's server, in a folder that is this user's alone; IssueflowError when it is not."""
    home = ROOM / f"issueflow-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    state = home.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        sentence = f"{home}, where the socket of tmux lies, is not a folder that is yours alone"
        raise IssueflowError(sentence, f"ls -ld {home}")
    common = folder.parents[4]
    return home / hashlib.sha256(os.fsencode(common)).hexdigest()[:16]


def show(folder: Path) -> None:
    """Make the session that shows the run, and the server where there is none; IssueflowError when tmux refuses."""
    require()
    name = session(folder)
    if _is_there(folder, name):
        return
    options = [word for item in OPTIONS.items() for word in ("set-option", "-gq", *item, ";")]
    # Several words are run as they are, one would go through a shell.
    words = [sys.executable, "-I", os.fspath(Path(pane.__file__).resolve()), os.fspath(folder)]
    size = ["-x", "200", "-y", "50"]
    code, said = _tmux(folder, "start-server", ";", *options, "new-session", "-d", "-s", name, *size, "--", *words)
    if code != 0 and not _is_there(folder, name):  # else another command was faster
        raise IssueflowError(f"tmux cannot show the run: {said or f'exit code {code}'}", "tmux -V")


def _is_there(folder: Path, name: str) -> bool:
    return _tmux(folder, "has-session", "-t", f"={name}")[0] == 0  # `=`: else ISSUE-1 would stand for ISSUE-10 too


def _tmux(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and complaint of a tmux command.

    The first one becomes the server and keeps its environment and folder for every later session, so it gets neither
    the person's variables nor a folder that somebody may want to remove.
    """
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(
            ["tmux", "-S", os.fspath(socket(folder)), "-f", "/dev/null", *words],
            cwd="/",
            env={**kept, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise IssueflowError(f"the tmux server does not answer within {PATIENCE:.0f} s", "ps -ef") from error
    except OSError as error:
        raise IssueflowError(f"tmux cannot be started: {error.strerror}", "tmux -V") from error
    return done.returncode, done.stderr.decode(errors="replace").strip()
