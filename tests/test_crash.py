"""Killed at any named act, one `resume` ends where an undisturbed walk ends; no run begins twice, nothing is lost."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Repo
from faults.invariants import outcome
from faults.walks import default_script, quick_script

from issueflow.engine import decisions
from issueflow.machine import Position

KINDS = ("created", "started", "ended", "presented", "decided", "delivered")
STEPS = ("Start", "Collect", "Present", "Deliver")


def named_points() -> list[str]:
    """Every crash point there is, from the source, so that a new one is tested the day it is written."""
    found: set[str] = set()
    for path in (ROOT / "issueflow").rglob("*.py"):
        for name in re.findall(r'crash_point\(f?"([^"]+)"\)', path.read_text()):
            if "{" not in name:
                found.add(name)
            kinds = KINDS if "entry.kind" in name else STEPS
            found |= {re.sub(r"{.*}", kind, name) for kind in kinds if "{" in name}
    return sorted(found)


# Points that a walk without a dead run does not pass; tests of their own pass them, test_cleanup.py those of cleanup.
ELSEWHERE = {"drop.lost", "journal.created", "rendered.created", "recorded.created"}
ELSEWHERE |= {name for name in named_points() if name.startswith("cleanup.")}


def walk_to_end(repo: Repo, step: Callable[[], Position]) -> Position:
    """As a person would: go on, approve what is asked, until it is over."""
    for _ in range(20):
        position = step()
        if position.status != "waiting":
            return position
        decisions.approve(repo.hands, "ISSUE-1", "")
    raise AssertionError("it does not end")


def kill_all(token: str) -> None:
    """SIGKILL everything the walk has started: advance, runners, agents."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"BENCH={token}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue


def assert_nothing_lost(repo: Repo, position: Position, tmp: Path) -> None:
    starts = (tmp / "starts").read_text().split() if (tmp / "starts").exists() else []
    assert len(starts) == len(set(starts)), f"a run's agent was started twice: {starts}"
    tips = {r.started.name: r.tip for r in position.runs}
    for line in (tmp / "wrote").read_text().splitlines() if (tmp / "wrote").exists() else []:
        mark, name = line.split()
        assert name in repo.files(tips[mark.split("/")[1]]), f"{name} of {mark} is lost"
    assert "dangling" not in repo.git("fsck", "--full", "--no-dangling")
    assert not [
        p
        for p in (repo.path / ".git").rglob("*.lock")
        if p.name not in ("alive.lock",) and p.parent.name != "issueflow" and "issueflow" not in p.parts
    ]
    assert not list((repo.path / ".git" / "issueflow").rglob("*.tmp"))
    assert not list((repo.path / ".git" / "issueflow" / "trash").iterdir())


def trial(repo: Repo, tmp: Path, point: str, count: int, scope: str, workflow: str) -> bool:
    """Kill at the `count`-th passing of `point`; False when the walk ends without passing it that often."""
    crash = {"ISSUEFLOW_CRASH": f"{point}#{count}@{tmp}/passed"}
    repo.new("# Go\n", "--workflow", workflow)
    for _ in range(20):
        repo.cli("advance", "1", env=crash)
        passed = (tmp / "passed").stat().st_size if (tmp / "passed").exists() else 0
        if passed >= count:
            break
        position = repo.position()
        if position.status == "waiting" and "decided" in point:
            repo.cli("approve", "1", env=crash)
        elif position.status == "waiting":
            decisions.approve(repo.hands, "ISSUE-1", "")
        elif position.is_over:
            return False
    if scope == "both":
        kill_all(str(tmp))
        time.sleep(0.05)
    done_ = repo.cli("resume", "1")
    assert done_.returncode == 0, done_.stderr
    assert "Traceback" not in done_.stderr
    return True


CALM: dict[str, tuple[Any, ...]] = {}  # the outcome of an undisturbed walk, walked once in each process of the suite


@pytest.fixture
def expected(
    make_repo: Callable[..., Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any], str], tuple[Any, ...]]:
    """The outcome of an undisturbed walk; afterwards the bench's folder is that of the disturbed one."""

    def walk(script: dict[str, Any], workflow: str) -> tuple[Any, ...]:
        if workflow not in CALM:
            undisturbed = tmp_path / "undisturbed"
            undisturbed.mkdir()
            monkeypatch.setenv("BENCH", str(undisturbed))
            calm = make_repo("calm")
            calm.setup(script)
            calm.new("# Go\n", "--workflow", workflow)
            CALM[workflow] = outcome(walk_to_end(calm, calm.advance))
        monkeypatch.setenv("BENCH", str(tmp_path))
        return CALM[workflow]

    return walk


@pytest.mark.parametrize(
    ("point", "scope"),
    [
        pytest.param(point, scope, marks=[] if number % 6 == ("one", "both").index(scope) else pytest.mark.slow)
        for number, point in enumerate(p for p in named_points() if p not in ELSEWHERE)
        for scope in ("one", "both")
    ],
)
def test_quick_survives_a_kill_at_each_named_act(
    repo: Repo, expected: Callable[..., Any], tmp_path: Path, point: str, scope: str
) -> None:
    wanted = expected(quick_script(), "quick")
    repo.setup(quick_script())
    assert trial(repo, tmp_path, point, 1, scope, "quick"), f"the walk never passes {point}"
    position = walk_to_end(repo, lambda: repo.advance(replace=True))
    assert outcome(position) == wanted
    assert_nothing_lost(repo, position, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["one", "both"])
@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("point", [p for p in named_points() if p not in ELSEWHERE])
def test_default_survives_a_kill_at_each_named_act_of_each_stage(
    repo: Repo, expected: Callable[..., Any], tmp_path: Path, point: str, count: int, scope: str
) -> None:
    wanted = expected(default_script(), "default")
    repo.setup(default_script())
    if not trial(repo, tmp_path, point, count, scope, "default"):
        return  # passed fewer times than that in a whole walk
    position = walk_to_end(repo, lambda: repo.advance(replace=True))
    assert outcome(position) == wanted
    assert_nothing_lost(repo, position, tmp_path)
