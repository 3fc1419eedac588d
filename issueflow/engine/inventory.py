"""What there is of an Issue and what `resume` would do about it: live processes first, then the records; looks only."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from issueflow import hosts
from issueflow.engine import launch, moved
from issueflow.engine.hands import Hands
from issueflow.engine.issues import load
from issueflow.engine.sight import look, strays
from issueflow.errors import Damaged, TooNew
from issueflow.git import record, worktrees
from issueflow.machine import OUTSIDE, Drop, Position, Prepare, Step, decide
from issueflow.models import Life, Sight, Started, branch_name
from issueflow.store.issue import IssueFolder


@dataclass(frozen=True)
class Finding:
    """One thing that was found: what it is, its state, the evidence for that, and what `resume` does about it."""

    issue: str
    what: str
    state: str
    evidence: str
    action: str


def take(hands: Hands, folder: IssueFolder) -> list[Finding]:
    """Everything about the Issue that matters to going on. Changes nothing and takes no lock.

    TooNew when a later issueflow wrote it: nothing here is to be done about that.
    """
    try:
        position = load(folder)
    except TooNew:
        raise
    except Damaged as error:
        action = "goes on from its sound part or its record; the damaged file is kept beside"
        return [Finding(folder.name, "journal", "damaged", str(error), action)]
    found = [
        *_strays(folder, position),
        *_journal(hands, folder),
        *_worktrees(hands, folder, position),
        *_open_run(hands, folder, position),
        *_issue_yaml(folder),
    ]
    return [*found, _standing(folder, position)]


def _strays(folder: IssueFolder, position: Position) -> Iterator[Finding]:
    for pid, started in strays(position).items():
        evidence = f"pid {pid} carries the mark of {started.name}, which is over"
        yield Finding(folder.name, f"process {pid}", "left over", evidence, "end it")


def _journal(hands: Hands, folder: IssueFolder) -> Iterator[Finding]:
    raw, recorded = folder.journal.read_bytes(), record.journal(hands.repository, folder.name) or b""
    whole = raw[: raw.rfind(b"\n") + 1]
    if raw != whole:
        evidence = f"{len(raw) - len(whole)} bytes without an end"
        yield Finding(folder.name, "journal", "unfinished last line", evidence, "cut it off")
    if recorded.startswith(whole) and len(recorded) > len(whole):
        lines = recorded[len(whole) :].count(b"\n")
        yield Finding(folder.name, "journal", "shorter than its record", f"{lines} entries less", "take them back")
    elif not whole.startswith(recorded):
        evidence = "journal and record ref tell different stories"
        yield Finding(folder.name, "journal", "diverged", evidence, "nothing: a person must look")
    elif len(whole) > len(recorded):
        lines = whole[len(recorded) :].count(b"\n")
        yield Finding(folder.name, "record", "behind the journal", f"{lines} entries less", "record them")


def _worktrees(hands: Hands, folder: IssueFolder, position: Position) -> Iterator[Finding]:
    for run in position.runs:
        home = folder.run(run.started.name)
        place = launch.written_place(home)
        if place and place.path.is_dir() and not launch.place_of(home) and not place.admin.exists():
            evidence = f"{place.path} points at {place.admin}, which is gone"
            yield Finding(folder.name, f"worktree {run.started.name}", "unlinked", evidence, "link it up again")


def _open_run(hands: Hands, folder: IssueFolder, position: Position) -> Iterator[Finding]:
    started = position.open_run
    if started is None:
        return
    sight = look(folder, position)
    assert sight is not None
    what, step = f"run {started.name}", decide(position, sight)
    yield Finding(folder.name, what, _life(sight), sight.detail or _seen(sight), _will(position, step))
    if view := hosts.host(started.host).shown(folder.run(started.name)):
        yield Finding(folder.name, view, "open", f"it shows {what}", "nothing: it ends with the run or its last window")
    if isinstance(step, Prepare) or moved.other_owner(folder, started):
        return
    yield from _place(folder, started, what)
    branch = branch_name(position.created.prefix, position.issue, started.name)
    tip = hands.repository.refs(f"refs/heads/{branch}").get(f"refs/heads/{branch}")
    if tip is None:
        yield Finding(folder.name, f"branch {branch}", "gone", "no such ref", "make it again from what is found")


def _place(folder: IssueFolder, started: Started, what: str) -> Iterator[Finding]:
    path = Path(started.worktree)
    place = launch.place_of(folder.run(started.name))
    if not path.is_dir():
        evidence = f"{path} does not exist"
        yield Finding(folder.name, f"worktree of {what}", "gone", evidence, "go on from its last commit")
    elif place and not worktrees.is_ours(place):
        evidence = f"{path}/.git is not the one issueflow made"
        yield Finding(folder.name, f"worktree of {what}", "replaced", evidence, "record what lies there, and say so")


def _life(sight: Sight) -> str:
    if sight.exited:
        return "ended, not taken in yet"
    if Life.ALIVE in (sight.runner, sight.agent):
        return "alive"
    if not sight.started:
        return "not started"
    return "dead" if (sight.runner, sight.agent) == (Life.DEAD, Life.DEAD) else "cannot be told"


def _seen(sight: Sight) -> str:
    records = [f"{'a' if there else 'no'} {name}" for name, there in (("start", sight.started), ("exit", sight.exited))]
    return f"{' and '.join(records)} record; runner {sight.runner.value}, agent {sight.agent.value}"


def _will(position: Position, step: Step) -> str:
    again = ", then start it again from there" if isinstance(step, Drop) and not position.is_over else ""
    return step.say(position).removeprefix("would ") + again


def _issue_yaml(folder: IssueFolder) -> Iterator[Finding]:
    if folder.edited() is not None:
        evidence = f"{folder.folder / 'issue.yaml'} is not as it was written"
        yield Finding(folder.name, "issue.yaml", "changed by hand", evidence, "save it beside and write it anew")


def _standing(folder: IssueFolder, position: Position) -> Finding:
    state = f"{position.status} at {position.stage}"
    if position.hold:
        again = position.hold.cause in OUTSIDE
        action = f"run {position.hold.stage} again" if again else "nothing: the question is yours"
        return Finding(folder.name, "issue", state, position.hold.reason, action)
    evidence = f"{position.entries} journal entries, {len(position.runs)} runs"
    will = "follow it" if position.open_run else _will(position, decide(position, None))
    return Finding(folder.name, "issue", state, evidence, will)
