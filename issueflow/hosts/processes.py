"""Who is who among processes: identity, descendants, marks; from /proc where there is one, else from ps.

Standard library only: the runner uses it too. A pid alone proves nothing, since pids are reused; a process is known by
pid, start time and boot. What cannot be seen is None here, never "there is none".
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

MARK = "ISSUEFLOW_RUN"
MINDS = "ISSUEFLOW_RUNNER"  # carried by runners; orphans of an agent that shed its mark become children of its runner
PATIENCE = 10.0  # seconds for ps or lsof, which can hang on a dead network disk
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


UNKNOWN_BOOT = "unknown"


def boot_id() -> str:
    """What tells this boot of the machine from any other."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Not kern.boottime: macOS moves it when the clock is set, and every run would seem to be of an earlier boot.
        return _output(["sysctl", "-n", "kern.bootsessionuuid"]).strip() or UNKNOWN_BOOT


def is_other_boot(boot: str) -> bool:
    """Is `boot` known to be another boot than this one?"""
    now = boot_id()
    return boot != now and UNKNOWN_BOOT not in (boot, now)


def machine() -> str:
    """This machine's name, to tell a restart from another machine."""
    return os.uname().nodename


def space() -> str:
    """The id of the pid namespace whose processes are seen from here (a container has its own), empty if unknown."""
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""


def table() -> dict[int, Process] | None:
    """Every process this user can see, by pid; None when the system shows none."""
    return _table_from_proc() if HAS_PROC else _table_from_ps()


def look_up(pid: int) -> Process | None:
    """One process, None when there is none of that pid."""
    return _from_stat(pid) if HAS_PROC else (_table_from_ps() or {}).get(pid)


def identify(pid: int) -> Identity | None:
    """The identity of a living process, None when there is none of that pid."""
    process = look_up(pid)
    return Identity(pid, process.start, boot_id()) if process else None


def is_alive(identity: Identity) -> bool | None:
    """Does exactly this process still run? A zombie, a reused pid and an earlier boot do not count.

    None when the system does not show its processes.
    """
    if is_other_boot(identity.boot):
        return False
    row = look_up(identity.pid)
    if row is None and not HAS_PROC and table() is None:
        return None
    return row is not None and row.start == identity.start and row.state != "Z"


def marked(mark: str) -> list[int] | None:
    """The pids of living processes whose environment holds ISSUEFLOW_RUN=`mark`; None when none can be looked into."""
    wanted = f"{MARK}={mark}".encode()
    if HAS_PROC:
        return [pid for pid in _pids() if wanted in _environment(pid) and _runs(pid)]
    shown = _words_from_ps()
    return None if shown is None else [pid for pid, words in shown.items() if wanted in words]


def marks() -> dict[int, str]:
    """The run mark of every living process that can be seen to carry one, by pid."""
    shown = {pid: _environment(pid) for pid in _pids()} if HAS_PROC else _words_from_ps() or {}
    found = {pid: _mark_of(words) for pid, words in shown.items() if pid != os.getpid()}
    return {pid: mark for pid, mark in found.items() if mark and _runs(pid)}


def _mark_of(variables: list[bytes], name: str = MARK) -> str | None:
    marks = [item.partition(b"=")[2] for item in variables if item.startswith(f"{name}=".encode())]
    return marks[0].decode(errors="replace") if marks else None


def group(leader: Identity) -> list[int] | None:
    """The living processes of the group that `leader` made; None when the system shows none.

    The group outlives its leader and is seen whatever its members did to their environment. No pid is given to a new
    process while a group bears it, so a leader of another start time means that this group is gone.
    """
    rows = table()
    if rows is None:
        return None
    now = rows.get(leader.pid)
    if is_other_boot(leader.boot) or (now and now.start != leader.start):
        return []
    return [row.pid for row in rows.values() if row.group == leader.pid and row.state != "Z"]


def inside(folder: Path) -> list[int] | None:
    """The pids of this user's living processes whose working directory is `folder` or below; None: no telling."""
    top = os.path.realpath(folder)
    folders = _folders_from_proc() if HAS_PROC else _folders_from_lsof()
    if folders is None:
        return None
    return [pid for pid, cwd in folders.items() if (cwd == top or cwd.startswith(top + "/")) and _runs(pid)]


def run_of(pid: int) -> str | None:
    """The mark of the run that process `pid` or an ancestor of it belongs to, None outside of runs."""
    rows = table() or {}
    shown = {} if HAS_PROC else _words_from_ps() or {}
    while pid > 1:
        words = _environment(pid) if HAS_PROC else shown.get(pid, [])
        if mark := _mark_of(words) or _mark_of(words, MINDS):
            return mark
        if pid not in rows:
            return None
        pid = rows[pid].parent
    return None


def descendants(pid: int, rows: dict[int, Process] | None = None) -> list[int]:
    """The pids of all living descendants of `pid`, children before grandchildren."""
    rows = table() or {} if rows is None else rows
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


def _folders_from_proc() -> dict[int, str]:
    found = {}
    for pid in _pids():
        try:
            found[pid] = os.readlink(PROC / str(pid) / "cwd")
        except OSError:
            continue  # it ended, or is another user's
    return found


# Without /proc other programs are asked. Each answer counts only if it holds this process itself: a program that is
# missing, forbidden, or shows nothing on this system has not said that there is nothing.


def _table_from_ps() -> dict[int, Process] | None:
    rows = {}
    asked, out = _ask(["ps", "-A", "-o", "pid=,ppid=,pgid=,state=,lstart="])
    for line in out.splitlines():
        words = line.split(None, 4)
        if len(words) == 5 and all(word.isdigit() for word in words[:3]):
            pid, parent, group = (int(word) for word in words[:3])
            rows[pid] = Process(pid, parent, group, words[4].strip(), words[3][0])
    rows.pop(asked, None)  # ps sees itself, as a child of ours: a runner would find something to end for ever
    return rows if os.getpid() in rows else None


def _words_from_ps() -> dict[int, list[bytes]] | None:
    """Command and environment of the processes, as words; macOS hides the environment of the system's own programs."""
    argv = ["ps", "-A", "-E", "-ww", "-o", "pid=,command="]
    if sys.platform == "linux":
        argv = ["ps", "axeww", "-o", "pid=,args="]
    shown = {}
    asked, out = _ask(argv)
    for line in out.splitlines():
        pid, *words = line.split()
        shown[int(pid)] = [word.encode(errors="surrogateescape") for word in words]
    shown.pop(asked, None)
    mine = shown.get(os.getpid(), [])
    return shown if any(word.startswith(b"PATH=") for word in mine) else None


def _folders_from_lsof() -> dict[int, str] | None:
    found: dict[int, str] = {}
    pid = 0
    for line in _output(["lsof", "-w", "-a", "-d", "cwd", "-u", str(os.getuid()), "-F", "pn"]).splitlines():
        if line.startswith("p"):
            pid = int(line[1:])
        elif line.startswith("n"):
            found[pid] = line[1:]
    return found if os.getpid() in found else None


def _output(argv: list[str]) -> str:
    return _ask(argv)[1]


def _ask(argv: list[str]) -> tuple[int, str]:
    """The pid the program had, and what it printed; nothing when it cannot be run."""
    import subprocess  # only where there is no /proc; `status` does without

    environment = {**os.environ, "LC_ALL": "C"}
    try:
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        ) as process:
            try:
                out, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.pid, ""
    except OSError:
        return 0, ""
    return process.pid, out.decode(errors="surrogateescape")
