"""A look at a live run that touches no lock and needs the standard library only: what `status` says of it."""

import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from issueflow.hosts import processes


class Glance(NamedTuple):
    """What a run seems to do: `starting`, `running`, `ended` and not taken in yet, or `interrupted`.

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
    known = started.get("runner") or {}
    alive = bool(known) and processes.is_alive(processes.Identity(**known))
    if not alive and not processes.marked(mark):
        return Glance("interrupted", detail=words(started))
    begun = (folder / "started.json").stat().st_mtime
    newest = max((path.stat().st_mtime for path in folder.glob("std*.log")), default=begun)
    now = time.time()
    return Glance("running", now - begun, now - newest)


def words(started: dict[str, Any] | None) -> str:
    """Why a run without living processes is taken for dead, in words."""
    known = (started or {}).get("runner")
    if not known:
        return "no start record"
    if known["boot"] != processes.boot_id():
        return "the machine was restarted since it began"
    return f"its runner (pid {known['pid']}) and its agent are gone and left no exit record"


def _started(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / "started.json").read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
