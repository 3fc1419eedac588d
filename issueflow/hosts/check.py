"""The "agent" of a check stage: `python -I check.py COMMANDS.json RESULTS.json` runs the commands, one after the other.

Standard library only. The commands belong to the repository and run in a fresh worktree of the exact commit.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # isolated mode has no path to a checkout; last, so that it shadows nothing
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from issueflow.files import read_json, replace_file, to_json
from issueflow.hosts.redact import Secrets

TAIL = 4000


def main(commands: Path, results: Path) -> int:
    """Run every command, whatever the others gave; 0 when all ran, whatever their exit codes."""
    wanted = read_json(commands) or {"commands": [], "secrets": []}
    secrets = Secrets(wanted["secrets"])
    for name in wanted.get("drop", ()):  # known here, to be taken out of what the commands print, and theirs no more
        os.environ.pop(name, None)
    done = []
    for command in wanted["commands"]:
        done.append(_run(command["run"], command["timeout"], secrets))
        replace_file(results, to_json({"checks": done}))
    if not done:
        replace_file(results, to_json({"checks": []}))
    return 0


def _run(line: str, limit: float, secrets: Secrets) -> dict[str, Any]:
    print(f"$ {line}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryFile() as output:
        # Both streams go to one file, as a terminal would show them; then to our output for the log.
        process = subprocess.Popen(
            ["/bin/sh", "-c", line], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        code, timed_out = _wait(process, limit)
        output.seek(0)
        text = secrets.redact(output.read())
    sys.stdout.buffer.write(text)
    seconds = round(time.monotonic() - begun, 3)
    how = "ended at its time limit" if timed_out else f"exit {code}"
    print(f"[{how}, {seconds} s]", flush=True)
    tail = text[-TAIL:].decode(errors="replace")
    return {"command": line, "exit_code": code, "seconds": seconds, "timed_out": timed_out, "tail": tail}


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> tuple[int | None, bool]:
    try:
        return process.wait(limit), False
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(
                process.pid, signal.SIGKILL
            )  # what left the group is ended by the runner with the rest of the tree
        process.wait()
        return None, True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
