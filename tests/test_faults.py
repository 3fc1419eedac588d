"""A fault at any call that changes a file: one `resume` mends it, errors are told, and files are published whole."""

import os
import shutil
from collections.abc import Iterator

import pytest
from faults.bench import FAULTS, Bench, Call, why_not
from faults.walks import SWEPT

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

PARTS = 16  # points a walk and fault here; `python tests/faults/sweep.py` takes all
HANDFUL = {"machine": 0.6, "cli": 0.35, "runner": 0.5, "ENOSPC": 0.8}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("faults") / "bench")
    yield made
    shutil.rmtree(made.top, ignore_errors=True)


def strike(bench: Bench, walk: str, fault: str, where: float) -> None:
    """The fault at that part of the walk's calls, and everything that must hold after it."""
    points = bench.record(walk).points(FAULTS[fault])
    point = points[int(where * len(points))]
    trial = bench.trial(walk, FAULTS[fault], point)
    assert trial.broken == [], f"{walk}, {fault} at call {point} ({trial.hit})"


@pytest.mark.more
def test_one_resume_mends_a_handful_of_faults(bench: Bench) -> None:
    for fault, where in HANDFUL.items():
        strike(bench, "quick", fault, where)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("walk", SWEPT)
def test_one_resume_mends_a_fault_anywhere(bench: Bench, walk: str, fault: str, part: int) -> None:
    strike(bench, walk, fault, (part + 0.5) / PARTS)


def test_what_is_published_is_synced_first_and_its_folder_then(bench: Bench) -> None:
    """Power loss: write, fsync, rename or link, fsync of the folder, in this order, by one process."""
    calls = bench.record("quick").calls
    published = list(publications(calls))
    names = {os.path.basename(calls[n].other) for n in published}
    assert {"issue.yaml", "launch.json", "started.json", "exit.json", "result.json", "accepted.json"} <= names
    assert [problem for n in published if (problem := not_durable(calls, n))] == []
    entries = [n for n, call in enumerate(calls) if call.op == "write" and call.path.endswith("/journal.jsonl")]
    assert len(entries) >= 8
    assert [calls[n] for n in entries if not synced_next(calls, n)] == []
    kept = list(kept_by_git(calls))
    assert len(kept) > 50
    assert [calls[n].other for n in kept if not synced_before(calls, n)] == []


def publications(calls: list[Call]) -> Iterator[int]:
    """Where a file of issueflow's own gets its name."""
    for n, call in enumerate(calls):
        ours = "/.git/issueflow/" in call.other and "/git/" not in call.other.split("/.git/issueflow/")[1]
        if call.op in ("rename", "link") and ours and "/trash/" not in call.other and call.path.endswith(".tmp"):
            yield n


def kept_by_git(calls: list[Call]) -> Iterator[int]:
    """Where an object or a ref that git makes for issueflow gets its name; not those of the agent's own git."""
    for n, call in enumerate(calls):
        theirs = "/.git/issueflow/" not in call.other and (
            "/.git/objects/" in call.other or "/.git/refs/" in call.other
        )
        if call.role == "c" and call.op in ("rename", "link") and theirs:
            yield n


def synced_next(calls: list[Call], n: int) -> bool:
    """Is the next thing the writer of call `n` does to sync that file?"""
    later = next((call for call in calls[n + 1 :] if call.pid == calls[n].pid), None)
    return later is not None and (later.op, later.path) == ("fsync", calls[n].path)


def synced_before(calls: list[Call], n: int) -> bool:
    """Was the file written and then synced, last of all, before it got its name in call `n`?"""
    before = [c.op for c in calls[:n] if c.pid == calls[n].pid and c.path == calls[n].path]
    return before[-1:] == ["fsync"]


def not_durable(calls: list[Call], n: int) -> str | None:
    """What is missing around the publication in call `n`, None when nothing is."""
    call = calls[n]
    if not synced_before(calls, n):
        return f"{call.other} gets its name before it is synced"
    for later in calls[n + 1 :]:
        if later.pid == call.pid and later.op == "fsync" and later.path == os.path.dirname(call.other):
            return None
        if later.pid == call.pid and later.op in ("rename", "link"):
            break
    return f"the folder of {call.other} is not synced"
