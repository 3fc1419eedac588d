"""Real agent CLIs, against a stand-in for their models: a whole walk, and what goes wrong on the way."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, finding
from real_clis import PACKAGES, Bench, Play, installed, served, settings

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
            return Bench(repo, server, player, name)

        yield make


@pytest.mark.parametrize("name", CLIS)
def test_default_is_walked_with_a_review_that_sends_back(name: str, bench: Make) -> None:
    plays = straight()
    plays["develop"] = [work("print(1)"), work("print(2)")]
    plays["code-review"] = [
        Play({"verdict": "request_changes", "covered": COVERED, "findings": [finding()]}),
        *plays["code-review"],
    ]
    made = bench(name, plays)
    repo = made.repo
    repo.new("# Print two\n\nIt shall print two.\n")
    assert repo.advance().stage == "plan-approval"
    assert repo.cli("approve", "ISSUE-1").returncode == 0
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert repo.git("show", f"{position.head}:app.py") == "print(2)"
    classes = [run.ended.outcome.cls for run in position.runs if run.ended]
    assert classes == ["accepted"] * len(position.runs)
