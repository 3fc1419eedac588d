"""Who is who among processes: identity, descendants, marks; from /proc where there is one, else from ps.

Standard library only: the runner uses it too. A pid alone proves nothing, since pids are reused; a process is known by
pid, start time and boot.
"""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

MARK = "ISSUEFLOW_RUN"
_MARKED = MARK.encode() + b"="
PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists() and os.environ.get("ISSUEFLOW_NO_PROC") != "1"


class Identity(NamedTuple):
    """A process, for good: `start` is in clock ticks since boot (or as ps tells it), `boot` the id of the boot."""

    pid: int
    start: str
    boot: str

    def as_dict(self) -> dict[str, object]:
        """For a JSON file."""
        return self._asdict()


class Process(NamedTuple):
    """A row of the process table; `state` is `Z` for one that is dead and not yet waited for."""

    pid: int
    parent: int
    group: int
    start: str
    state: str


def boot_id() -> str:
    """What tells this boot of the machine from any other."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        out = _ps_output(["sysctl", "-n", "kern.boottime"])
        return out.strip() or "unknown"


def machine() -> str:
    """This machine's name, to tell a restart from another machine."""
    return os.uname().nodename


def table() -> dict[int, Process]:
    """Every process this user can see, by pid."""
    return _table_from_proc() if HAS_PROC else _table_from_ps()


def look_up(pid: int) -> Process | None:
    """One process, None when there is none of that pid."""
    return _from_stat(pid) if HAS_PROC else _table_from_ps().get(pid)


def identify(pid: int) -> Identity | None:
    """The identity of a living process, None when there is none of that pid."""
    process = look_up(pid)
    return Identity(pid, process.start, boot_id()) if process else None


def is_alive(identity: Identity) -> bool:
    """Does exactly this process still run? A zombie, a reused pid and an earlier boot do not count."""
    if identity.boot != boot_id():
        return False
    process = look_up(identity.pid)
    return process is not None and process.start == identity.start and process.state != "Z"


def marked(mark: str) -> list[int]:
    """The pids of living processes whose environment holds ISSUEFLOW_RUN=`mark`."""
    wanted = f"{MARK}={mark}"
    if HAS_PROC:
        return [pid for pid in _pids() if wanted.encode() in _environment(pid) and _runs(pid)]
    lines = _ps_output(["ps", "-A", "-E", "-ww", "-o", "pid=,command="]).splitlines()
    return [int(line.split(None, 1)[0]) for line in lines if wanted in line.split()]


def marks() -> dict[int, str]:
    """The run mark of every living process that carries one, by pid."""
    if HAS_PROC:
        found = {pid: _mark_of(_environment(pid)) for pid in _pids() if pid != os.getpid()}
    else:
        rows = [line.split() for line in _ps_output(["ps", "-A", "-E", "-ww", "-o", "pid=,command="]).splitlines()]
        found = {int(row[0]): _mark_of([word.encode() for word in row]) for row in rows if row}
    return {pid: mark for pid, mark in found.items() if mark and _runs(pid)}


def _mark_of(variables: list[bytes]) -> str | None:
    marks = [item.split(b"=", 1)[1].decode(errors="replace") for item in variables if item.startswith(_MARKED)]
    return marks[0] if marks else None


def inside(folder: Path) -> list[int]:
    """The pids of living processes whose working directory is `folder` or below; empty where that cannot be told."""
    if not HAS_PROC:
        return []
    top = os.path.realpath(folder)
    found = []
    for pid in _pids():
        try:
            cwd = os.readlink(PROC / str(pid) / "cwd")
        except OSError:
            continue
        if (cwd == top or cwd.startswith(top + "/")) and _runs(pid):
            found.append(pid)
    return found


def run_of(pid: int) -> str | None:
    """The mark of the run that process `pid` or an ancestor of it belongs to, None outside of runs."""
    rows = table()
    while pid > 1:
        if HAS_PROC and (mark := _mark_of(_environment(pid))):
            return mark
        if pid not in rows:
            return None
        pid = rows[pid].parent
    return None


def descendants(pid: int, rows: dict[int, Process] | None = None) -> list[int]:
    """The pids of all living descendants of `pid`, children before grandchildren."""
    rows = table() if rows is None else rows
    children: dict[int, list[int]] = {}
    for process in rows.values():
        if process.state != "Z":
            children.setdefault(process.parent, []).append(process.pid)
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found


def end(pids: list[int], grace: float = 2.0) -> None:
    """SIGTERM the processes, wait up to `grace` seconds for them, SIGKILL the rest."""
    known = {pid: identity for pid in pids if (identity := identify(pid))}
    _signal(known, signal.SIGTERM)
    until = time.monotonic() + grace
    while time.monotonic() < until and any(is_alive(identity) for identity in known.values()):
        time.sleep(0.02)
    _signal(known, signal.SIGKILL)


def _signal(known: dict[int, Identity], number: signal.Signals) -> None:
    for pid, identity in known.items():
        if is_alive(identity):
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # it ended in between, or is another user's by now


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _runs(pid: int) -> bool:
    process = look_up(pid)
    return process is not None and process.state != "Z"


def _environment(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _from_stat(pid: int) -> Process | None:
    try:
        raw = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = raw[raw.rindex(")") + 2 :].split()  # the name in parentheses may hold spaces and parentheses
    return Process(pid, parent=int(fields[1]), group=int(fields[2]), start=fields[19], state=fields[0])


def _table_from_proc() -> dict[int, Process]:
    rows = (_from_stat(pid) for pid in _pids())
    return {row.pid: row for row in rows if row}


def _table_from_ps() -> dict[int, Process]:
    rows = {}
    for line in _ps_output(["ps", "-A", "-o", "pid=,ppid=,pgid=,state=,lstart="]).splitlines():
        pid, parent, group, state, start = line.split(None, 4)
        rows[int(pid)] = Process(int(pid), int(parent), int(group), start.strip(), state[0])
    return rows


def _ps_output(argv: list[str]) -> str:

    import subprocess  # only where there is no /proc; `status` does without

    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment).stdout
    except OSError:
        return ""
