"""The program that minds one run: `python -I runner.py RUN_FOLDER`, standard library only, alone with its agent.

It takes the run's lock, claims the start (the one step that happens exactly once), starts the agent in a session of
its own, copies its output to the logs, ends the whole process tree, and publishes how it went. Nobody waits for it.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

if __name__ == "__main__":  # isolated mode has no path to a checkout; last, so that it shadows nothing
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from issueflow.files import claim_file, crash_point, make_folder, private, read_json, replace_file, to_json
from issueflow.hosts import processes
from issueflow.hosts.redact import Secrets, Stream

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphans among our descendants become our children, so that none is missed
BEAT = 0.05  # seconds between looks at the agent
CHUNK = 65536
MOST_HELD = 1 << 24  # bytes of one file that are held; an index of a hundred thousand files has ten million
TAIL = 4000


STOP = threading.Event()  # set by SIGTERM: somebody asked the runner to end its agent


def main(folder: Path) -> int:
    """Mind the run in `folder`; 0 when it was minded, also when another runner had been there before."""
    with open(folder / "alive.lock", "a", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _tell_parent()
        crash_point("runner.locked")
        launch = read_json(folder / "launch.json")
        if launch is None or (folder / "exit.json").exists() or (folder / "started.json").exists():
            return 0  # withdrawn, or somebody was here before
        crash_point("runner.launch")
        _become_subreaper()
        signal.signal(signal.SIGTERM, _stop)
        _mind(folder, launch)
    return 0


def _tell_parent() -> None:
    """The host waits on this pipe so that nobody sees a run without its runner."""
    handle = os.environ.pop("ISSUEFLOW_READY", "")
    if handle:
        os.write(int(handle), b"1")
        os.close(int(handle))


def _stop(number: int, frame: FrameType | None) -> None:
    STOP.set()


def _become_subreaper() -> None:
    if processes.HAS_PROC:  # Linux
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _mind(folder: Path, launch: dict[str, Any]) -> None:
    begun = time.time()
    secrets = Secrets(launch["secrets"])
    how = _set_up(folder, launch, secrets)
    if how is None:
        crash_point("runner.setup")
        me = processes.identify(os.getpid())
        start = {"runner": me.as_dict() if me else {}, "machine": processes.machine(), "at": int(begun)}
        start["space"] = processes.space()
        start["secrets"] = sorted(secrets.values)
        if not claim_file(folder / "started.json", to_json(start)):
            return
        crash_point("runner.started")
        how = _run(folder, launch, secrets)
    crash_point("runner.ended")
    now = time.time()
    # In the place of whatever is there: while this process holds the lock, nobody else may say how the run ended.
    replace_file(folder / "exit.json", to_json({**how, "ended": int(now), "seconds": round(now - begun, 3)}))
    crash_point("runner.exit")


# ── set-up ──


def _set_up(folder: Path, launch: dict[str, Any], secrets: Secrets) -> dict[str, Any] | None:
    """Run the set-up commands in the worktree; None when all went well, else how it failed."""
    log = folder / "setup.log"
    open(log, "ab", opener=private).close()
    for command in launch["setup"]:
        code = _call(["/bin/sh", "-c", command["run"]], launch, log, secrets, command["timeout"])
        if STOP.is_set():
            return {"status": "stopped", "detail": "cancelled during set-up"}
        if code != 0:
            how = "ran longer than its time limit" if code is None else f"failed with exit code {code}"
            return {"status": "setup", "code": code, "detail": f"`{command['run']}` {how}: {_last_line(folder)}"}
    if launch["setup"] and launch["after_setup"]:
        code = _call(launch["after_setup"], launch, log, secrets, 600)
        if code != 0:
            return {
                "status": "setup",
                "code": code,
                "detail": f"the tree could not be recorded: {_last_line(folder)}",
            }
    return None


def _call(argv: list[str], launch: dict[str, Any], log: Path, secrets: Secrets, limit: float) -> int | None:
    environment = _environment(launch)
    process = subprocess.Popen(
        argv,
        cwd=launch["cwd"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    copied = _copy(process.stdout, log, secrets)
    until = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < until and not STOP.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(BEAT)
    code = process.poll()
    _end_tree(process.pid, launch["env"][processes.MARK])
    process.wait()
    copied.join(timeout=5)
    return code


def _last_line(folder: Path) -> str:
    lines = (folder / "setup.log").read_bytes()[-TAIL:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _environment(launch: dict[str, Any], keys: Sequence[str] = ()) -> dict[str, str]:
    """What the run gets of this process's variables, and what is set for it; `keys` are for the program alone."""
    allowed, dropped = launch.get("pass"), launch["drop"]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in keys or (name not in dropped and (allowed is None or name in allowed))
    }
    return {**kept, **launch["env"]}


# ── the agent ──


def _run(folder: Path, launch: dict[str, Any], secrets: Secrets) -> dict[str, Any]:
    """Start the agent, wait for it, end its tree; give how it ended."""
    sealed = _Sealed(folder)
    with Path(launch["stdin"]).open("rb") as prompt:
        try:
            agent = subprocess.Popen(
                launch["argv"],
                cwd=launch["cwd"],
                env=_environment(launch, launch.get("keys", ())),
                stdin=prompt,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return {"status": "unstarted", "detail": f"{launch['argv'][0]} could not be started: {error.strerror}"}
    _write_down(folder / "agent.json", agent.pid)
    logs = [
        _copy(agent.stdout, folder / "stdout.log", secrets),
        _copy(agent.stderr, folder / "stderr.log", secrets),
    ]
    crash_point("runner.agent")
    how = _wait(agent, launch)
    left_over = _end_tree(agent.pid, launch["env"][processes.MARK])
    agent.wait()
    sealed.mend()
    for log in logs:
        log.join(timeout=5)
    return {**how, "left_over": left_over}


def _write_down(path: Path, pid: int) -> None:
    """Who the agent is, for whoever finds it without its runner. Not synced: with the machine the agent is gone too."""
    identity = processes.identify(pid)
    if identity:
        with contextlib.suppress(OSError), open(path, "w", opener=private) as file:
            file.write(to_json(identity.as_dict()))


class _Sealed:
    """The run's files as they were before the agent, in this process's memory, where the agent does not reach.

    What it has changed is put back and named in `tampered.json`; what it has added to the private git directory, where
    git would obey it, is moved to `foreign/`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folders = [Path(top) for top, _, _ in os.walk(folder / "git")]
        self.held = {path: data for path in self._files() if (data := self._read(path)) is not None}

    def _files(self) -> list[Path]:
        own = [path for path in self.folder.iterdir() if path.suffix == ".json" or path.name == "prompt.md"]
        return own + [Path(top, name) for top, _, names in os.walk(self.folder / "git") for name in names]

    def _read(self, path: Path) -> bytes | None:
        try:
            if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size <= MOST_HELD:
                return path.read_bytes()
        except OSError:
            pass
        return None

    def mend(self) -> None:
        """Put back what is not as it was. What the disk refuses is left to the engine, which checks what it reads."""
        private = self.folder / "git"
        with contextlib.suppress(OSError):
            for path in self.folders:
                make_folder(path)
        changed = [path for path, data in self.held.items() if self._read(path) != data]
        added = [path for path in self._files() if path not in self.held and private in path.parents]
        for path in [*changed, *added]:
            with contextlib.suppress(OSError):
                if os.path.lexists(path):
                    aside = make_folder(self.folder / "foreign") / path.name
                    path.rename(
                        aside if not os.path.lexists(aside) else aside.with_name(f"{path.name}.{time.time_ns()}")
                    )
                if path in self.held:
                    replace_file(make_folder(path.parent) / path.name, self.held[path])
        named = sorted(os.fspath(path.relative_to(self.folder)) for path in [*changed, *added])
        if (self.folder / "exit.json").exists():
            named.append("exit.json")
        if named:
            with contextlib.suppress(OSError):
                replace_file(self.folder / "tampered.json", to_json({"files": named}))


def _wait(agent: "subprocess.Popen[bytes]", launch: dict[str, Any]) -> dict[str, Any]:
    until = time.monotonic() + launch["timeout"]
    settled = _Settled(Path(launch["result"]) if launch["result"] else None, launch["result_grace"])
    while agent.poll() is None:
        if STOP.is_set():
            return {"status": "stopped", "detail": "cancelled"}
        if time.monotonic() > until:
            return {"status": "timeout", "detail": f"after {launch['timeout']} s"}
        if settled.is_over():
            return {"status": "finished", "detail": "its result lay there unchanged, so it was ended"}
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(BEAT)
        _reap(agent.pid)
    code = agent.returncode
    if code < 0:
        return {"status": "signalled", "code": code, "detail": f"by {signal.Signals(-code).name}"}
    return {"status": "exited", "code": code}


class _Settled:
    """Has the result been complete and untouched for the whole grace? Some CLIs never exit after their work."""

    def __init__(self, path: Path | None, grace: float) -> None:
        self.path, self.grace = path, grace
        self.seen: tuple[int, int] | None = None
        self.since = 0.0

    def is_over(self) -> bool:
        try:
            state = self.path.lstat() if self.path else None
        except OSError:
            state = None
        now = (state.st_mtime_ns, state.st_size) if state else None
        if now is None or now != self.seen:
            self.seen, self.since = now, time.monotonic()
            return False
        return time.monotonic() - self.since > self.grace and self._is_complete()

    def _is_complete(self) -> bool:
        try:
            return (
                self.path is not None and self.path.is_file() and isinstance(json.loads(self.path.read_bytes()), dict)
            )
        except (OSError, ValueError, RecursionError):
            return False


def _copy(source: IO[bytes] | None, path: Path, secrets: Secrets) -> threading.Thread:
    """Copy a stream to a log from a thread, the values of secrets taken out.

    What the disk refuses is dropped: a full disk must not stop the agent.
    """
    assert source is not None
    stream = Stream(secrets)

    def work() -> None:
        with contextlib.ExitStack() as opened:
            log = None
            with contextlib.suppress(OSError):
                log = opened.enter_context(open(path, "ab", buffering=0, opener=private))
            while chunk := source.read1(CHUNK):  # type: ignore[attr-defined]
                with contextlib.suppress(OSError):
                    if log:
                        log.write(stream.feed(chunk))
            with contextlib.suppress(OSError):
                if log:
                    log.write(stream.rest())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _end_tree(agent: int, mark: str) -> int:
    """End every descendant, those in sessions of their own included; give how many were left besides the agent.

    Where orphans do not become ours, they are known by the run's mark, those that dropped it not at all.

    Another user's process (`sudo`) cannot be ended from here: what survives a SIGKILL is left, lest the run never end.
    """
    ended: set[int] = set()
    while left := [pid for pid in _family(mark) if pid not in ended]:
        ended.update(left)
        processes.end(left)
        _reap(agent)
    return len(ended - {agent})


def _family(mark: str) -> list[int]:
    below = processes.descendants(os.getpid())
    return below if processes.HAS_PROC else list(dict.fromkeys([*below, *(processes.marked(mark) or [])]))


def _reap(agent: int) -> None:
    """Wait for orphans that became ours, lest they fill the process table; the agent is left for its Popen."""
    with contextlib.suppress(ChildProcessError):
        while state := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if state.si_pid == agent:
                return
            os.waitpid(state.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
