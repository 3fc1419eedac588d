"""The walk: look, lock, look again, decide, do one step, record it, unlock; until a person is asked or it ends."""

import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from issueflow import hosts
from issueflow.engine import cleanup, collect, decisions, launch, moved, notice
from issueflow.engine.hands import Hands
from issueflow.engine.issues import delivered_branch, find, load, repair, settle, write
from issueflow.engine.sight import is_alive, look, strays
from issueflow.errors import IssueflowError
from issueflow.files import crash_point
from issueflow.hosts import processes
from issueflow.machine import (
    OUTSIDE,
    Ask,
    Collect,
    Deliver,
    Drop,
    End,
    Hold,
    Position,
    Prepare,
    Present,
    Start,
    Step,
    Stop,
    Wait,
    decide,
    evidence,
)
from issueflow.models import Delivered, Presented
from issueflow.store.issue import IssueFolder

PAUSES = (0.02, 0.05, 0.1, 0.2, 0.25)  # seconds between looks at a live run: soon at first, then at ease
MOST_PREPARED = 3  # times one command prepares one run again: a runner that cannot work will not the fourth time
STOP_LIMIT = 30.0  # seconds; a runner gives each of its agent's descendants two, and waits five for each log
PROBE_EVERY = 1.0  # seconds between looks at processes; `exit.json` alone is looked for each time


class Watcher(Protocol):
    """Who is told what happens while it happens."""

    def began(self, position: Position) -> None:
        """A run was started, or is found running."""

    def followed(self, position: Position, why: str, seconds: float, run: Path) -> None:
        """A run goes on; called several times a second."""

    def moved(self, before: Position, after: Position) -> None:
        """The Issue stands elsewhere now, by a step of this process or of another."""


@dataclass(frozen=True)
class Goal:
    """How far to go: `once` is one run, `until` stops before that stage, `replace` lets a dead run be replaced."""

    once: bool = False
    until: str | None = None
    replace: bool = False


def advance(hands: Hands, name: str, watcher: Watcher, goal: Goal) -> Position:
    """Walk the Issue on as far as `goal` and the workflow allow; give where it stands then.

    Raises Busy when another command holds the Issue's lock for longer than five seconds.
    """
    folder = find(hands, name)
    position = load(folder)
    begun, announced, prepared = _closed(position), 0, 0
    leave = goal.replace or _is_over(position.hold)
    while True:
        position = load(folder)
        step = decide(position, look(folder, position))
        if isinstance(step, Wait) and position.open_run:
            if announced != position.open_run.run:
                announced = position.open_run.run
                watcher.began(position)
            _follow(folder, position, step, watcher)
            watcher.moved(position, load(folder))
            continue
        with folder.lock("advance"):
            before, position, step = _step(hands, folder, goal, leave=leave)
            leave = leave and not _was_replaced(before, position)
        watcher.moved(before, position)
        if isinstance(step, Prepare):
            prepared += 1
        elif isinstance(step, Collect | Drop):
            prepared = 0
        if prepared > MOST_PREPARED and position.open_run:
            raise _cannot_start(folder.run(position.open_run.name))
        if isinstance(step, Ask | End) or _reached(position, step, goal, begun):
            return position


def _is_over(hold: Hold | None) -> bool:
    """Has what the Issue is held for settled itself meanwhile, such as a limit whose end was told?"""
    return hold is not None and hold.until is not None and hold.until <= time.time()


def _cannot_start(run: Path) -> IssueflowError:
    log = run / "runner.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    sentence = f"the runner of {run} ends before it has started the agent: {lines[-1] if lines else 'it said nothing'}"
    return IssueflowError(sentence, f"cat {shlex.quote(os.fspath(log))}")


def _reached(position: Position, step: Step, goal: Goal, begun: int) -> bool:
    if position.open_run or position.status == "delivering":
        return False
    if goal.until and position.stage == goal.until and position.status in ("ready", "waiting"):
        return True
    return goal.once and isinstance(step, Collect | Drop) and _closed(position) > begun


def _closed(position: Position) -> int:
    return sum(1 for run in position.runs if run.ended or run.dropped)


def set_right(hands: Hands, name: str) -> str | None:
    """What `resume` does before it walks on: mend a damaged journal (said in words), end what was left behind."""
    folder = find(hands, name)
    with folder.lock("resume"):
        mended = repair(hands, folder)
        processes.end(list(strays(load(folder))))
    return mended


def _was_replaced(before: Position, after: Position) -> bool:
    """Was the leave to replace a run used? It is for one: a set-up that fails again is asked about again."""
    return any(d.verb == "resume" for d in after.decided[len(before.decided) :])


def _step(hands: Hands, folder: IssueFolder, goal: Goal, *, leave: bool) -> tuple[Position, Position, Step]:
    """Look again under the lock, and do the one step that is due; `leave` lets a run that died be replaced."""
    position = settle(hands, folder)
    moved.relink(hands, folder, position)
    cleanup.tidy(hands, folder, position)
    position = notice.adopt(hands, folder, position)
    if goal.until and position.stage == goal.until and position.status == "ready" and not position.open_run:
        return position, position, Ask(f"stopped before {goal.until}, as asked")
    if leave and position.hold and position.hold.cause in OUTSIDE:
        after = decisions.allow_again(hands, folder, position)
        return position, after, Start()
    step = decide(position, look(folder, position))
    crash_point(f"step.{type(step).__name__}")
    return position, _do(hands, folder, position, step), step


def _do(hands: Hands, folder: IssueFolder, position: Position, step: Step) -> Position:
    match step:
        case Start():
            after = launch.start(hands, folder, position)
            return _launch(hands, folder, after)
        case Prepare():
            return _launch(hands, folder, position)
        case Collect():
            return _tidied(hands, folder, collect.collect(hands, folder, position))
        case Drop(reason):
            return _tidied(hands, folder, collect.drop(hands, folder, position, reason))
        case Stop():
            stop(folder, position)
            return position
        case Present():
            bound = evidence(position)
            return write(hands, folder, lambda **head: Presented(**head, stage=position.stage, evidence=bound))
        case Deliver():
            return _deliver(hands, folder, position)
        case Wait() | Ask() | End():
            return position


def _launch(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    assert position.open_run is not None
    if launch.prepare(hands, folder, position):
        launch.submit(folder, position.open_run)
        crash_point("submitted")
    return position


def _tidied(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    cleanup.tidy(hands, folder, position)
    return position


def _deliver(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    branch = delivered_branch(position)
    ref = f"refs/heads/{branch}"
    at = hands.repository.refs(ref).get(ref)
    if position.delivered and at == position.delivered.commit != position.head:  # delivered again, after a reopen
        hands.repository.move(ref, position.head, at)
    else:  # made, or made again when cleanup had found it merged and taken it away
        hands.repository.make(ref, position.head)
    crash_point("deliver.branch")
    return write(hands, folder, lambda **head: Delivered(**head, branch=branch, commit=position.head))


def stop(folder: IssueFolder, position: Position) -> None:
    """End the processes of the open run and wait for its exit record for a while.

    IssueflowError when they do not end: another user's, or one that hangs in the kernel, is for a person to see.
    """
    started = position.open_run
    assert started is not None
    run = folder.run(started.name)
    (run / "launch.json").unlink(missing_ok=True)
    hosts.host(started.host).cancel(run, started.mark(position.issue))
    until = time.monotonic() + STOP_LIMIT
    while time.monotonic() < until and not (run / "exit.json").exists() and is_alive(folder, position):
        time.sleep(PAUSES[1])
    if not (run / "exit.json").exists() and is_alive(folder, position):
        sentence = f"run {started.name} of {position.issue} has not ended {STOP_LIMIT:.0f} s after it was told to"
        raise IssueflowError(sentence, "ps -ef")


def _follow(folder: IssueFolder, position: Position, step: Wait, watcher: Watcher) -> None:
    """Watch the live run until it ends, or until something about it changes that must be decided on."""
    assert position.open_run is not None
    run = folder.run(position.open_run.name)
    begun = time.monotonic()
    probed = begun
    for pause in _pauses():
        if (run / "exit.json").exists():
            return
        watcher.followed(position, step.why, time.monotonic() - begun, run)
        if time.monotonic() - probed > PROBE_EVERY:
            probed = time.monotonic()
            fresh = load(folder)
            if fresh.entries != position.entries or decide(fresh, look(folder, fresh)) != step:
                return
        time.sleep(pause)


def _pauses() -> Iterator[float]:
    yield from PAUSES
    while True:
        yield PAUSES[-1]
