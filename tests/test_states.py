"""Every state a crash can leave a run in has exactly one outcome for `resume`, and none of them is stuck."""

import itertools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Repo, done, quick, sampled

from issueflow.machine import decide
from issueflow.models import Life, Sight


class State(NamedTuple):
    """What is on disk when nobody is alive any more."""

    started: bool
    exited: bool
    worktree: str
    branch: str
    result: str


STATES = [
    State(*parts)
    for parts in itertools.product(
        (True, False),
        (True, False),
        ("there", "gone", "unlinked", "a stranger's"),
        ("at the commit", "at the base", "gone", "elsewhere"),
        ("valid", "none", "torn"),
    )
]
NAMES = {"-".join(map(str, state)): state for state in STATES}


def outcome(state: State) -> str:
    """The one outcome: `taken in` by its result, `asked again` for the result, `replaced` by another run, `made` for
    the first time, or `named`: what is in the way is somebody else's, and only a person may move it."""
    if not state.started and not state.exited:
        in_the_way = state.worktree in ("unlinked", "a stranger's") or state.branch in ("at the commit", "elsewhere")
        return "named" if in_the_way else "made"
    if state.result == "valid" and state.worktree in ("there", "unlinked"):
        return "taken in"
    return "asked again" if state.exited else "replaced"


@pytest.mark.parametrize("name", sampled(NAMES, "True-False-there-at the commit-none"))
def test_each_state_has_its_outcome(repo: Repo, tmp_path: Path, name: str) -> None:
    state = NAMES[name]
    repo.meddled = True  # a stranger moves the run's branch where it likes
    first = [{"write": "a.txt", "text": "a"}, {"commit": "a"}, {"write": "b.txt", "text": "b"}, done()]
    repo.script(quick(first, first, first))
    repo.commit()
    repo.new("# Do it\n", "--workflow", "quick")
    env = {"ISSUEFLOW_CRASH": f"step.Collect#1@{tmp_path}/passed"}
    assert repo.cli("advance", "1", env=env).returncode == -9
    bring_about(repo, state, tmp_path)
    wanted = outcome(state)
    said = repo.cli("resume", "1")
    runs = repo.position().runs
    assert "Traceback" not in said.stderr
    assert said.returncode in ((1,) if wanted == "named" else (0, 4)), said.stderr
    if wanted == "named":
        assert "hint: " in said.stderr
        assert len(runs) == 1 and not runs[0].ended
        return
    if wanted == "taken in":
        assert runs[0].is_accepted
        assert {"a.txt", "b.txt"} <= repo.files(runs[0].tip).keys()
    elif wanted == "made":
        assert runs[0].is_accepted
    else:
        assert not runs[0].is_accepted
        assert bool(runs[0].dropped) == (wanted == "replaced")
        assert len(runs) > 1
    for _ in range(3):
        if repo.position().status not in ("waiting", "held"):
            repo.cli("resume", "1")
    position = repo.position()
    assert position.status == "waiting" or position.hold, position.status
    before = everything(repo)
    repo.cli("resume", "1")
    assert position.hold or everything(repo) == before  # a second one changes no byte


def everything(repo: Repo) -> dict[str, Any]:
    top = repo.path / ".git" / "issueflow"
    files = {str(p): p.read_bytes() for p in top.rglob("*") if p.is_file() and p.suffix != ".lock" and p.name != "lock"}
    return {**files, "refs": repo.git("for-each-ref")}


def bring_about(repo: Repo, state: State, tmp: Path) -> None:
    run, tree = repo.run_folder("01-develop"), repo.worktree("01-develop")
    result = tree / ".issueflow-run" / "result.json"
    if state.result == "none":
        result.unlink()
    elif state.result == "torn":
        result.write_bytes(result.read_bytes()[:-20])
    for name, there in (("started.json", state.started), ("exit.json", state.exited)):
        if not there:
            (run / name).unlink()
    if state.worktree == "gone":
        tree.rename(tmp / "away")
    elif state.worktree == "unlinked":
        (tree / ".git").unlink()
    elif state.worktree == "a stranger's":
        tree.rename(tmp / "away")
        tree.mkdir()
        (tree / "mine.txt").write_text("mine")
    branch = "refs/heads/issueflow/ISSUE-1/01-develop"
    base = json.loads(repo.hands.store.issue("ISSUE-1").journal.read_text().splitlines()[0])["base"]
    if state.branch == "at the base":
        repo.git("update-ref", branch, base)
    elif state.branch == "gone":
        repo.git("update-ref", "-d", branch)
    elif state.branch == "elsewhere":
        tree_id = repo.git("rev-parse", f"{base}^{{tree}}")
        repo.git("update-ref", branch, repo.git("commit-tree", tree_id, "-m", "another root"))


LIVES = list(itertools.product((True, False), (True, False), Life, Life))


def test_each_sight_has_one_step(repo: Repo) -> None:
    """BR-076: the living and the unknown are never taken for dead; an exit record outranks any pid."""
    repo.new("# Do it\n", "--workflow", "quick")
    opened = with_open_run(repo)
    for started, exited, runner, agent in LIVES:
        step = type(decide(opened, Sight(started, exited, runner, agent, "evidence"))).__name__
        if exited:
            assert step == "Collect"
        elif Life.ALIVE in (runner, agent):
            assert step == "Wait"
        elif not started:
            assert step == "Prepare"
        else:
            assert step == ("Drop" if (runner, agent) == (Life.DEAD, Life.DEAD) else "Ask")


def with_open_run(repo: Repo) -> Any:
    if not repo.position().runs:
        env = {"ISSUEFLOW_CRASH": f"recorded.started#1@{os.fspath(repo.path.parent)}/passed"}
        assert repo.cli("advance", "1", env=env).returncode == -9
    return repo.position()
