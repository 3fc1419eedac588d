"""An `advance` that goes on by itself, in a session of its own; what it says goes to `advance.log` of the Issue."""

import fcntl
import subprocess
import sys
from pathlib import Path

from issueflow.files import private
from issueflow.store.issue import IssueFolder
from issueflow.views import answer, say


def advance_detached(folder: IssueFolder, flags: list[str]) -> int:
    """Start it and name its pid; where one is at work on this Issue, name that one's and start none.

    The lock goes over to the new process with the open file, so there is no moment at which nobody holds it, and it is
    free again when that process has ended, however it did.
    """
    main = Path(__file__).resolve().parents[1] / "__main__.py"
    argv = [sys.executable, "-I", str(main), "advance", folder.name, *flags]
    said = folder.folder / "advance.log"
    with open(folder.folder / "advance.lock", "a+", opener=private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            answer(f"{folder.name}: advanced already, by pid {lock.read().strip() or 'unknown'}")
            return 0
        lock.truncate(0)
        with open(said, "ab", opener=private) as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        lock.write(str(process.pid))
    answer(f"{folder.name}: advanced by pid {process.pid}")
    say(f"what it says goes to {said}")
    say(f"next: issueflow status {folder.name}")
    return 0
