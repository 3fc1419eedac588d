"""A look at a live run that touches no lock and needs the standard library only: what `status` says of it."""

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from issueflow.hosts import processes


class Glance(NamedTuple):
    """What a run seems to do: `starting`, `running`, `ended` and not taken in yet, `interrupted`, or `unknown`.

    `seconds` is how long it has run, `quiet` how long it has printed nothing.
    """

    what: str
    seconds: float = 0.0
    quiet: float = 0.0
    detail: str = ""


def glance(folder: Path, mark: str) -> Glance:
    """Look at the run in `folder`, whose agent carries `mark`."""
    if (folder / "exit.json").exists():
        return Glance("ended")
    started = _started(folder)
    if started is None:
        return Glance("starting")
    if where := elsewhere(started):
        return Glance("unknown", detail=where)
    known = started.get("runner")
    alive = processes.is_alive(processes.Identity(**known)) if known else False
    working = alive or agent_lives(folder, mark)
    if not working:
        unseen = alive is None or working is None
        return Glance("unknown", detail=UNSEEN) if unseen else Glance("interrupted", detail=words(started))
    begun = (folder / "started.json").stat().st_mtime
    newest = max((path.stat().st_mtime for path in folder.glob("std*.log")), default=begun)
    now = time.time()
    return Glance("running", now - begun, now - newest)


def last_lines(folder: Path, count: int = 3) -> list[str]:
    """The last whole lines the run in `folder` printed, of the stream it used last; of a log its end alone is read."""
    logs = sorted(folder.glob("std*.log"), key=lambda path: path.stat().st_mtime_ns)
    for path in reversed(logs):
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - REACH))
            raw = log.read()
        if lines := raw[: raw.rfind(b"\n") + 1].decode(errors="replace").splitlines():
            return lines[-count:]
    return []


REACH = 4096  # bytes at a log's end in which its last lines are looked for
UNSEEN = "this system does not show its processes"


def agent_lives(folder: Path, mark: str) -> bool | None:
    """Does the agent of the run in `folder`, or anything it started, still work? None when that cannot be told.

    Known by its mark, and by the process group the runner wrote down: an agent may run with an environment of its own.
    """
    marked = processes.marked(mark)
    group = processes.group(leader) if (leader := agent_of(folder)) else []
    if marked or group:
        return True
    return None if marked is None or group is None else False


def agent_of(folder: Path) -> processes.Identity | None:
    """The agent as its runner wrote it down, None when it did not come to that."""
    try:
        return processes.Identity(**json.loads((folder / "agent.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def elsewhere(started: dict[str, Any]) -> str:
    """Why processes of the run cannot be seen from here, in words; empty when they can.

    Another boot of another machine, or another container on this boot. Another boot of this machine has ended them. A
    start record that was restored knows no boot, only the machine.
    """
    boot = (started.get("runner") or {}).get("boot")
    there, here = started.get("machine") or processes.machine(), processes.machine()
    if boot is None or processes.is_other_boot(boot):
        return f"it was started on {there}, this is {here}" if there != here else ""
    there, here = started.get("space", ""), processes.space()
    return "it was started in another container" if there and here and there != here else ""


def words(started: dict[str, Any] | None) -> str:
    """Why a run without living processes is taken for dead, in words."""
    known = (started or {}).get("runner")
    if not known:
        return "no start record"
    if processes.is_other_boot(known["boot"]):
        return "the machine was restarted since it began"
    return f"its runner (pid {known['pid']}) and its agent are gone and left no exit record"


def _started(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / "started.json").read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
