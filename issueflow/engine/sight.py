"""What is seen of an Issue's processes, and whether anybody must say what cannot be seen; nothing is changed."""

from issueflow import hosts
from issueflow.engine import moved
from issueflow.hosts import processes
from issueflow.machine import Ask, Position, decide
from issueflow.models import Life, Sight, Started
from issueflow.store.issue import IssueFolder


def look(folder: IssueFolder, position: Position) -> Sight | None:
    """What is seen of the open run, None when there is none."""
    started = position.open_run
    if started is None:
        return None
    run = folder.run(started.name)
    if other := moved.other_owner(folder, started):
        words = f"its worktree belongs to the repository at {other.parent}, a copy or another clone of this one"
        return Sight(True, False, Life.UNKNOWN, Life.UNKNOWN, words)
    if not run.is_dir():
        return Sight(False, False, Life.DEAD, Life.DEAD)
    return hosts.host(started.host).probe(run, started.mark(position.issue))


def is_alive(folder: IssueFolder, position: Position) -> bool:
    """Is anything of the open run known to live?"""
    sight = look(folder, position)
    return sight is not None and Life.ALIVE in (sight.runner, sight.agent)


def strays(position: Position) -> dict[int, Started]:
    """Living processes of runs that are over, by pid: left behind when a runner was killed."""
    over = {run.started.mark(position.issue): run.started for run in position.runs if run.ended or run.dropped}
    return {pid: over[mark] for pid, mark in processes.marks().items() if mark in over}


def question(folder: IssueFolder, position: Position) -> str | None:
    """Why an open run does not go on by itself, None when it does or there is none."""
    if position.open_run is None:
        return None
    step = decide(position, look(folder, position))
    return step.question if isinstance(step, Ask) else None
