"""Many processes at one Issue, many Issues in one repository, strangers' git commands beside them, kills in between."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import PAIR, Repo, approve, done

from issueflow.engine import decisions

NOTE_START = {"run": ["sh", "-c", 'echo "$ISSUEFLOW_RUN" >> "$BENCH/starts"']}
WRITES = [
    NOTE_START,
    {"write": "committed.txt", "text": "1\n"},
    {"commit": "work"},
    {"write": "left.txt", "text": "2\n"},
]

# What a person, an editor and other tools do in the same repository at the same time.
STRANGERS = """
while test -e "$BENCH/on"; do
    git worktree add -q --detach "$BENCH/stranger" && rm -rf "$BENCH/stranger"
    git worktree prune
    git pack-refs --all
    git -c gc.auto=50 -c gc.autoDetach=false gc -q --auto
done
"""


@pytest.fixture
def shop(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """A repository whose workflow `pair` has a writer that commits, and a reviewer; each notes that it was started."""
    monkeypatch.setenv("BENCH", str(tmp_path))
    repo.setup({"develop": [[*WRITES, done()]], "review": [[NOTE_START, approve()]]})
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    repo.commit("pair")
    return repo


def start(repo: Repo, issue: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "issueflow", "resume", issue],
        cwd=repo.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def strangers(repo: Repo, tmp_path: Path) -> Iterator[None]:
    (tmp_path / "on").touch()
    loop = subprocess.Popen(["sh", "-c", STRANGERS], cwd=repo.path, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        (tmp_path / "on").unlink()
        loop.wait(60)


def heard(process: "subprocess.Popen[str]") -> str:
    """What the process had to complain about, once it has ended."""
    _, err = process.communicate(timeout=120)
    return "".join(line for line in err.splitlines(keepends=True) if line.startswith(("error", "hint", "Traceback")))


def assert_started_once(repo: Repo, tmp_path: Path, issues: list[str]) -> None:
    starts = (tmp_path / "starts").read_text().split()
    assert len(starts) == len(set(starts)), "a run began twice"
    began = {run.started.mark(name) for name in issues for run in repo.position(name).runs}
    assert began >= set(starts)
    assert not list((repo.path / ".git").rglob("refs/**/*.lock"))
    assert "dangling" not in repo.git("fsck", "--full", "--no-dangling")


@pytest.mark.parametrize("many", [pytest.param(4, id="few"), pytest.param(8, marks=pytest.mark.slow, id="many")])
@pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))])
def test_whoever_advances_an_issue_each_run_begins_once(shop: Repo, tmp_path: Path, many: int, turn: int) -> None:
    shop.new("# Go\n", "--workflow", "pair")
    all_ = [start(shop, "1") for _ in range(many)]
    assert [words for process in all_ if (words := heard(process))] == []
    assert_started_once(shop, tmp_path, ["ISSUE-1"])
    position = shop.position()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert [run.started.stage for run in position.runs] == ["develop", "review"]


@pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 50))])
def test_of_two_that_begin_at_the_same_moment_one_follows_or_names_the_other(
    shop: Repo, tmp_path: Path, turn: int
) -> None:
    """BR-108: within 50 ms; a run is claimed by what fails when it is taken, not by having looked."""
    shop.new("# Go\n", "--workflow", "pair")
    first = start(shop, "1")
    time.sleep(turn / 1000)
    second = start(shop, "1")
    said = [heard(process) for process in (first, second)]
    assert_started_once(shop, tmp_path, ["ISSUE-1"])
    for process, words in zip((first, second), said, strict=True):
        assert process.returncode == 0 or (process.returncode == 3 and "is held by pid" in words), words
    assert [run.started.stage for run in shop.position().runs] == ["develop", "review"]


@pytest.mark.parametrize(
    ("issues", "kills", "turn"),
    [
        pytest.param(3, 0, 0, id="few-calm"),
        pytest.param(2, 3, 0, id="few-killed"),
        *(pytest.param(8, 0, turn, marks=pytest.mark.slow, id=f"many-calm-{turn}") for turn in range(10)),
        *(pytest.param(8, 40, turn, marks=pytest.mark.slow, id=f"many-killed-{turn}") for turn in range(10)),
    ],
)
@pytest.mark.more
def test_issues_walk_side_by_side_among_strangers_and_kills(
    shop: Repo, tmp_path: Path, issues: int, kills: int, turn: int
) -> None:
    names = [shop.new("# Go\n", "--workflow", "pair") for _ in range(issues)]
    dice = random.Random(turn)
    with strangers(shop, tmp_path):
        walking = {name: start(shop, name) for name in names}
        for _ in range(kills):
            time.sleep(dice.uniform(0.05, 0.5))
            name = dice.choice(names)
            os.kill(walking[name].pid, signal.SIGKILL) if walking[name].poll() is None else None
            assert heard(walking[name]) == ""
            walking[name] = start(shop, name)
        assert {name: words for name, process in walking.items() if (words := heard(process))} == {}
    assert_started_once(shop, tmp_path, names)
    for name in names:
        assert shop.position(name).status == "waiting"
        decisions.approve(shop.hands, name, "")
        position = shop.advance(name)
        assert position.status == "delivered"
        assert {"committed.txt", "left.txt"} <= shop.files(f"issueflow/{name}/delivered").keys()
