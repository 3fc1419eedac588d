"""The host `process`: a detached runner on this machine, known by its run folder; no state besides that folder."""

import fcntl
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from issueflow.files import private, read_json
from issueflow.hosts import processes, runner
from issueflow.hosts.glance import UNSEEN, agent_lives, agent_of, elsewhere, words
from issueflow.models import Life, Sight

LEAVING = 2.0  # seconds between a runner's last act, its exit record, and its end; it takes milliseconds
READY_LIMIT = 10.0  # seconds a runner may take to come up; it only has to start Python and take a lock


@contextmanager
def idle(folder: Path) -> Iterator[bool]:
    """Hold the run's lock while preparing it; False when a runner holds it, which then must not be disturbed."""
    with open(folder / "alive.lock", "a", opener=private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def require() -> None:
    """Nothing is needed besides Python."""


def submit(folder: Path) -> None:
    """Start a runner for the prepared run in `folder` and return when it minds it.

    Safe to repeat: of any number of runners one starts the agent, and only while the launch file is there.
    """
    ours, theirs = os.pipe()
    with open(folder / "runner.log", "ab", opener=private) as log:
        process = subprocess.Popen(
            [sys.executable, "-I", os.fspath(Path(runner.__file__).resolve()), os.fspath(folder)],
            cwd=folder,
            env={
                **os.environ,
                "ISSUEFLOW_READY": str(theirs),
                processes.MINDS: f"{folder.parents[1].name}/{folder.name}/runner",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs],
            start_new_session=True,
        )
    os.close(theirs)
    try:
        select.select([ours], [], [], READY_LIMIT)
    finally:
        os.close(ours)
    _CHILDREN.append(process)


_CHILDREN: list["subprocess.Popen[bytes]"] = []  # polled in `probe`, so that an ended runner is no zombie of ours


def probe(folder: Path, mark: str) -> Sight:
    """What can be seen of the run in `folder`, without waiting; `mark` is in the environment of its agent."""
    _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
    with idle(folder) as free:
        runner_life = Life.DEAD if free else Life.ALIVE
    started = read_json(folder / "started.json")
    return _sight(folder, started, runner_life, mark)


def _sight(folder: Path, started: dict[str, Any] | None, runner_life: Life, mark: str) -> Sight:
    exited = (folder / "exit.json").exists()
    if exited or runner_life is Life.ALIVE:
        return Sight(started is not None, exited, runner_life, Life.UNKNOWN)
    if started and (where := elsewhere(started)):
        return Sight(True, exited, Life.UNKNOWN, Life.UNKNOWN, where)
    lives = agent_lives(folder, mark)
    if lives is None:
        return Sight(started is not None, exited, runner_life, Life.UNKNOWN, UNSEEN)
    return Sight(started is not None, exited, runner_life, Life.ALIVE if lives else Life.DEAD, words(started))


def is_over(folder: Path) -> bool:
    """Has the runner of a run that has an exit record gone, as it does right after writing it?"""
    until = time.monotonic() + LEAVING
    while True:
        with idle(folder) as free:
            if free or time.monotonic() > until:
                return free
        time.sleep(0.01)


def cancel(folder: Path, mark: str) -> None:
    """End the run's agent with all its descendants: through its runner, or by the mark when the runner is gone."""
    known = (read_json(folder / "started.json") or {}).get("runner")
    identity = processes.Identity(**known) if known else None
    if identity and processes.is_alive(identity):
        os.kill(identity.pid, 15)
        return
    leader = agent_of(folder)
    left = [*(processes.marked(mark) or []), *((processes.group(leader) or []) if leader else [])]
    rows = processes.table() or {}
    processes.end(list(dict.fromkeys([*left, *(below for pid in left for below in processes.descendants(pid, rows))])))


def attach(folder: Path, *, take_over: bool) -> None:
    """There is no terminal: what the agent prints is in its logs."""


def shown(folder: Path) -> None:
    """Nothing shows it."""
