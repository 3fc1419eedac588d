"""What a run's pane in tmux shows: `python -I pane.py RUN_FOLDER` prints its logs as they grow, until it is over.

Standard library only. It reads files and writes to its terminal, so the run does not notice what becomes of it.
"""

import os
import re
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # isolated mode has no path to a checkout; last, so that it shadows nothing
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from issueflow.files import read_json
from issueflow.hosts import processes
from issueflow.hosts.glance import glance

LOGS = ("setup.log", "stdout.log", "stderr.log")
PAUSE = 0.1  # seconds between looks at the logs
PROBE_EVERY = 2.0  # seconds between looks at processes
MOST_AT_ONCE = 1 << 18  # bytes of a log's end that are shown when more has come: a person cannot read it anyway
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")  # as `issueflow logs`: shown, not obeyed


def main(folder: Path) -> int:
    """Print what the run prints until it has ended or nothing of it lives."""
    mark = ((read_json(folder / "launch.json") or {}).get("env") or {}).get(processes.MARK, "")
    _print(f"{folder.parents[1].name} {folder.name} (C-b d leaves it running)\n".encode())
    read = dict.fromkeys(LOGS, 0)
    probed = time.monotonic()
    over = False
    while True:
        over = over or not folder.is_dir() or (folder / "exit.json").exists()
        for name in LOGS:
            read[name] = _show(folder / name, read[name])
        if over:  # looked at before the logs: what they had by then was all
            return 0
        time.sleep(PAUSE)
        if mark and time.monotonic() - probed > PROBE_EVERY:
            probed = time.monotonic()
            over = glance(folder, mark).what == "interrupted"


def _show(path: Path, start: int) -> int:
    """Print what a log has from `start` on, and give where it ended."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            if end - start > MOST_AT_ONCE:
                _print(f"… {end - start - MOST_AT_ONCE} bytes more in {path}\n".encode(errors="replace"))
                start = end - MOST_AT_ONCE
            log.seek(start)
            data = log.read(end - start)
    except OSError:
        return start
    _print(data)
    return start + len(data)


def _print(data: bytes) -> None:
    shown = CONTROL.sub(lambda match: b"\\x%02x" % ord(match[0]), data.replace(b"\r\n", b"\n"))
    sys.stdout.buffer.write(shown)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
