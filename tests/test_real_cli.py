"""Real agent CLIs, against a stand-in for their models: a whole walk, and what goes wrong on the way."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, finding
from real_clis import PACKAGES, Bench, Play, installed, left_running, served, settings

from issueflow.agents import agent
from issueflow.machine import Position
from issueflow.models import AgentSettings

pytestmark = pytest.mark.real_cli
CLIS = [name for name in PACKAGES if name != "node"]

ARTIFACT = [{"name": "plan.md", "text": "# Plan\n\nPrint two.\n"}]
PLAN = Play({"verdict": "done", "artifacts": ARTIFACT, "checklist": [{"id": "C1", "text": "two", "source": "it"}]})
COVERED = [{"id": "C1", "evidence": "seen"}]
APPROVE = Play({"verdict": "approve"})
WRITTEN = {"verdict": "done", "commands_run": [], "not_run": [], "open_problems": []}
REPORT = {"artifacts": [{"name": "report.md", "text": "what was done"}]}


def work(text: str) -> Play:
    return Play({**WRITTEN, **REPORT}, (f"echo '{text}' > app.py",))


def straight() -> dict[str, list[Play]]:
    return {
        "analysis": [PLAN],
        "plan-review": [Play({"verdict": "approve", "covered": COVERED})],
        "develop": [work("print(2)")],
        "code-review": [Play({"verdict": "approve", "covered": COVERED})],
    }


QUICK = Play({**WRITTEN}, ("echo 'print(2)' > app.py",))

Make = Callable[..., Bench]


@pytest.fixture
def bench(make_repo: Callable[..., Repo], monkeypatch: pytest.MonkeyPatch, sealed: Path) -> Iterator[Make]:
    """Makes a repository all of whose roles are played by one real CLI, whose model plays `plays`."""
    with contextlib.ExitStack() as stack:

        def make(name: str, plays: dict[str, list[Play]], **changes: Any) -> Bench:
            programs = [installed(name), installed("node")]
            monkeypatch.setenv("PATH", ":".join([*map(str, programs), "/usr/local/bin:/usr/bin:/bin"]))
            server, player, url = stack.enter_context(served(plays))
            repo = make_repo()
            roles = dict.fromkeys(("analyst", "reviewer", "developer"), name)
            repo.setup(agents={name: {**settings(name, url), **changes}}, roles=roles)
            for path in (repo.path / ".issueflow" / "workflows").glob("default.yaml"):
                if resumes(name):
                    path.write_text(
                        path.read_text().replace("role: developer\n", "role: developer\n    session: resume\n")
                    )
            return Bench(repo, server, player, name)

        yield make


def resumes(name: str) -> bool:
    found = agent(AgentSettings(type=name))
    return found is not None and found.CAPABILITIES.resume_elsewhere


def walk(made: Bench) -> Position:
    """Walks `default` to its last stage, where a person delivers."""
    made.repo.new("# Print two\n\nIt shall print two.\n")
    assert made.repo.advance().stage == "plan-approval"
    assert made.repo.cli("approve", "ISSUE-1").returncode == 0
    return made.repo.advance()


def held(made: Bench) -> str:
    """Walks a `quick` Issue into its hold; the reason."""
    made.repo.new("# Print two\n\nIt shall print two.\n", "--workflow", "quick")
    position = made.repo.advance()
    assert position.hold, position.status
    return position.hold.reason


@pytest.fixture(autouse=True)
def nothing_is_left_running(sealed: Path) -> Iterator[None]:
    yield
    assert left_running(f"HOME={sealed}") == []


@pytest.mark.parametrize("name", CLIS)
def test_default_is_walked_with_a_review_that_sends_back(name: str, bench: Make) -> None:
    plays = straight()
    plays["develop"] = [work("print(1)"), work("print(2)")]
    plays["code-review"] = [
        Play({"verdict": "request_changes", "covered": COVERED, "findings": [finding()]}),
        *plays["code-review"],
    ]
    made = bench(name, plays)
    position = walk(made)
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert made.repo.git("show", f"{position.head}:app.py") == "print(2)"
    classes = [run.ended.outcome.cls for run in position.runs if run.ended]
    assert classes == ["accepted"] * len(position.runs)
    first, second = (run for run in position.runs if run.started.stage == "develop")
    assert first.session and second.session
    assert (first.session == second.session) is second.started.resumes is resumes(name)
    for run in (first, second):
        assert run.ended and run.ended.usage and run.ended.usage.input and run.ended.usage.input <= 10_000


FAULTS = {
    "a refused login": ([{"error": 401, "message": "stub: invalid api key"}], "does not know who it is"),
    "a limit": ([{"error": 429, "message": "stub: rate limited"}], "waiting for a limit"),
    "a broken service": ([{"error": 500, "message": "stub: internal error"}], "its service cannot be used"),
    "a cut stream": ([{"drop": True}], "its service cannot be used"),
}


@pytest.mark.parametrize(("steps", "told"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("name", CLIS)
def test_a_fault_of_the_service_holds_costs_nothing_and_is_gone_on_from(
    name: str, steps: list[dict[str, Any]], told: str, bench: Make
) -> None:
    made = bench(name, {"develop": [Play(steps=steps), QUICK]})
    assert told in held(made)
    position = made.repo.position()
    assert (position.attempt, len(position.runs)) == (1, 1)
    assert made.repo.cli("resume", "ISSUE-1").returncode == 0
    assert made.repo.position().stage == "deliver"


@pytest.mark.parametrize("name", CLIS)
def test_a_service_that_hangs_ends_at_the_time_limit(name: str, bench: Make) -> None:
    made = bench(name, {"develop": [Play(steps=[{"hang": 600}]), QUICK]}, timeout=8)
    made.repo.new("# Print two\n\nPlease.\n", "--workflow", "quick")
    made.repo.advance(once=True)
    ended = made.repo.position().runs[0].ended
    assert ended and ended.exit.status == "timeout"
    assert ended.outcome.cls in ("missing", "unavailable")


@pytest.mark.parametrize("name", CLIS)
def test_a_refusal_is_no_result_and_its_reason_is_told(name: str, bench: Make) -> None:
    reason = held(bench(name, {"develop": [Play(steps=[{"refuse": "I will not."}])]}))
    assert "its model refused" in reason or "it said last: I will not." in reason, "gemini calls it a success"


@pytest.mark.parametrize("name", CLIS)
def test_an_agent_that_hands_in_nothing_is_asked_again(name: str, bench: Make) -> None:
    made = bench(name, {"develop": [Play(steps=[{"text": "I am done."}]), QUICK]})
    made.repo.new("# Print two\n\nPlease.\n", "--workflow", "quick")
    position = made.repo.advance()
    assert [run.ended.outcome.cls for run in position.runs if run.ended][:2] == ["missing", "accepted"]
    assert position.runs[1].started.continuation


@pytest.mark.parametrize("name", CLIS)
def test_a_reviewer_can_change_no_file(name: str, bench: Make) -> None:
    plays = straight()
    result = plays["plan-review"][0].result
    plays["plan-review"] = [Play(result, ("echo planted > planted.py",))]
    made = bench(name, plays)
    made.repo.new("# Print two\n\nPlease.\n")
    position = made.repo.advance()
    review = position.runs[1]
    assert review.started.stage == "plan-review" and review.ended
    assert not review.ended.code.changed
    assert review.ended.outcome.cls != "violation"


@pytest.mark.parametrize("victim", ["agent", "runner"])
@pytest.mark.parametrize("name", CLIS)
def test_a_kill_loses_nothing_and_resume_goes_on(name: str, victim: str, bench: Make) -> None:
    slow = [{"shell": "echo half > half.py && python3 -c 'import time; time.sleep(20)'"}, {"text": "Never."}]
    made = bench(name, {"develop": [Play(steps=slow), QUICK]})
    made.repo.new("# Print two\n\nPlease.\n", "--workflow", "quick")
    walker = made.walker()
    made.wait_for("half.py", "01-develop")
    os.kill(made.pid_of(victim, "01-develop"), signal.SIGKILL)
    walker.wait(60)
    made.repo.cli("resume", "ISSUE-1", env={})
    position = made.repo.position()
    assert position.stage == "deliver", position.hold
    assert made.repo.git("show", f"{position.head}:half.py") == "half"


@pytest.mark.parametrize("name", CLIS)
def test_an_advance_that_is_killed_leaves_its_agent_at_work(name: str, bench: Make) -> None:
    slow = Play(QUICK.result, ("echo half > half.py && python3 -c 'import time; time.sleep(4)'",))
    made = bench(name, {"develop": [slow]})
    made.repo.new("# Print two\n\nPlease.\n", "--workflow", "quick")
    walker = made.walker()
    made.wait_for("half.py", "01-develop")
    walker.kill()
    walker.wait()
    position = made.repo.advance()
    assert (position.stage, len([run for run in position.runs if run.started.agent])) == ("deliver", 1)
