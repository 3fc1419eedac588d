"""What the engine makes of an agent's report: conversations that go on, usage, denials, limits."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIR, Repo, finding

from issueflow.machine import Position

RECORDED = Path(__file__).with_name("transcripts_real")
FAKE = Path(__file__).with_name("fake_cli.py")
DONE = {"verdict": "done", "no_change": "it is there already"}
GONE = {"stderr": (RECORDED / "codex-unknown.err").read_text(), "exit": 1}

Start = Callable[..., Path]


def said(name: str) -> dict[str, Any]:
    """A play that prints what a real CLI had printed."""
    return {"stdout": (RECORDED / f"{name}.jsonl").read_text().splitlines()}


@pytest.fixture
def start(repo: Repo, tmp_path: Path) -> Start:
    """Begins an Issue of `quick` whose developer is of type `kind` and plays `plays`; gives the folder of plays."""

    def begin(kind: str, *plays: dict[str, Any], workflow: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / "plays"
        folder.mkdir()
        for number, play in enumerate(plays, 1):
            (folder / f"{number}.json").write_text(json.dumps(play))
        agent = {"type": kind, "argv": [sys.executable, str(FAKE), str(folder)]}
        repo.setup(agents={"it": agent}, roles=dict.fromkeys(("analyst", "reviewer", "developer"), "it"))
        if workflow:
            repo.write(f".issueflow/workflows/{workflow['name']}.yaml", json.dumps(workflow))
        repo.new("# Do it\n\nPlease.\n", "--workflow", workflow["name"] if workflow else "quick")
        return folder

    return begin


def words(folder: Path, number: int) -> list[str]:
    """What the `number`-th run was started with."""
    found: list[str] = json.loads((folder / f"{number}.argv").read_text())
    return found


def classes(position: Position) -> list[str]:
    return [run.ended.outcome.cls if run.ended else "dropped" for run in position.runs if run.started.agent]


def limited(words: str) -> dict[str, Any]:
    """A play of codex that meets a limit."""
    lines = ['{"type":"thread.started","thread_id":"t-1"}', '{"type":"turn.started"}']
    return {"stdout": [*lines, json.dumps({"type": "turn.failed", "error": {"message": words}})], "exit": 1}


@pytest.mark.parametrize(
    ("play", "told"),
    [
        (said("codex-429"), "waiting for a limit"),
        (said("codex-401"), "its service does not know who it is"),
        (said("codex-500"), "its service cannot be used"),
        ({"stderr": (RECORDED / "codex-flag.err").read_text()}, "does not take how it was started"),
    ],
)
def test_a_service_that_is_not_there_costs_no_attempt_and_resume_goes_on(
    repo: Repo, start: Start, play: dict[str, Any], told: str
) -> None:
    folder = start("codex", {**play, "shell": "echo half > half.py", "exit": 1}, {**said("codex-done"), "result": DONE})
    position = repo.advance()
    assert position.hold and (position.status, position.hold.cause) == ("held", "unavailable")
    assert told in position.hold.reason
    assert position.attempt == 1
    assert repo.advance().entries == position.entries, "advance alone asks no service that is known to be away"
    assert repo.cli("resume", "ISSUE-1").returncode == 0
    after = repo.position()
    assert (classes(after), after.stage) == (["unavailable", "accepted"], "deliver")
    assert repo.git("show", f"{after.head}:half.py") == "half"
    session = after.runs[0].session
    assert words(folder, 2)[-3:] == (["resume", session, "-"] if session else words(folder, 2)[-3:])


def test_a_limit_that_has_not_ended_is_waited_for(repo: Repo, start: Start) -> None:
    begun = int(time.time())
    start("codex", limited(f"usage limit reached|{begun + 3600}"), {**said("codex-done"), "result": DONE})
    held = repo.advance()
    assert held.hold and "waiting for a limit, resets 20" in held.hold.reason
    assert repo.advance().entries == held.entries


def test_advance_goes_on_by_itself_once_the_limit_is_over(repo: Repo, start: Start) -> None:
    start("codex", limited(f"usage limit reached|{int(time.time()) - 60}"), {**said("codex-done"), "result": DONE})
    assert repo.advance().status == "held", "one command asks a service that is away once"
    assert classes(repo.advance()) == ["unavailable", "accepted"]


def test_a_result_beside_a_dead_service_is_no_result_and_costs_no_attempt(repo: Repo, start: Start) -> None:
    start("codex", {**limited("it broke in a way of its own"), "exit": 0, "result": DONE})
    first = repo.advance(once=True).runs[0].ended
    assert first and first.outcome.cls == "unavailable"
    assert first.outcome.problem and first.outcome.problem.kind == "endpoint"


def test_a_result_beside_a_refusal_is_contradicted(repo: Repo, start: Start) -> None:
    start("claude", {**said("claude-refuse"), "result": DONE})
    first = repo.advance(once=True).runs[0].ended
    assert first and first.outcome.cls == "contradicted"
    assert "told of a failure: its model refused" in first.outcome.errors[0]


def test_what_was_denied_is_noticed_beside_the_result(repo: Repo, start: Start) -> None:
    start("claude", {**said("claude-denied"), "result": DONE})
    repo.advance()
    shown = repo.cli("show", "ISSUE-1", "run", "1").stdout
    assert "its CLI denied it Bash: git add -A" in shown


def test_claude_begins_with_an_id_that_is_in_the_journal_before_it_runs(repo: Repo, start: Start) -> None:
    folder = start("claude", {**said("claude-done"), "result": DONE})
    started = repo.advance().runs[0].started
    given = words(folder, 1)
    assert given[given.index("--session-id") + 1] == started.session
    assert not started.resumes


def resuming() -> dict[str, Any]:
    """`pair`, whose developer goes on with its conversation."""
    changed: dict[str, Any] = json.loads(json.dumps(PAIR))
    changed["stages"]["develop"]["session"] = "resume"
    return changed


REJECT = {"result": {"verdict": "request_changes", "findings": [finding()]}}
APPROVE = {"result": {"verdict": "approve"}}


@pytest.mark.more
def test_the_next_round_goes_on_with_the_conversation_and_is_charged_its_own_share(repo: Repo, start: Start) -> None:
    first = {**said("codex-done"), "shell": "echo 1 > a", "result": {"verdict": "done"}}
    second = {**said("codex-resumed"), "shell": "echo 2 > a", "result": {"verdict": "done"}}
    folder = start("codex", first, REJECT, second, APPROVE, workflow=resuming())
    position = repo.advance()
    assert classes(position) == ["accepted"] * 4
    thread = position.runs[0].session
    assert words(folder, 3)[-3:] == ["resume", thread, "-"]
    assert "resume" not in words(folder, 2), "a reviewer has no share in the developer's conversation"
    told = [run.ended.usage.input for run in position.runs if run.ended and run.ended.usage]
    assert told == [3000, 1000]
    assert "used      1,000 tokens in (200 cached), 50 out, cost unknown" in repo.cli("show", "1", "run", "3").stdout
    assert "used      unknown" in repo.cli("show", "ISSUE-1", "run", "2").stdout
    assert "4,000 tokens in (800 cached), 200 out, cost unknown; of 2 runs unknown" in repo.cli("status", "1").stdout
    shown = json.loads(repo.cli("status", "ISSUE-1", "--json").stdout)["issue"]
    assert shown["usage"] == {"input": 4000, "output": 200, "cached": 800, "cost_usd": None, "unknown_runs": 2}
    assert shown["runs"][2]["session"] == thread


@pytest.mark.more
def test_a_conversation_that_is_gone_is_begun_anew_once_without_a_person(repo: Repo, start: Start) -> None:
    first = {**said("codex-done"), "shell": "echo 1 > a", "result": {"verdict": "done"}}
    again = {**said("codex-resumed"), "shell": "echo 2 > a", "result": {"verdict": "done"}}
    folder = start("codex", first, REJECT, GONE, again, APPROVE, workflow=resuming())
    position = repo.advance()
    assert classes(position) == ["accepted", "accepted", "unavailable", "accepted", "accepted"]
    assert [run.started.resumes for run in position.runs] == [False, False, True, False, False]
    assert [run.started.attempt for run in position.runs] == [1] * 5
    assert "resume" not in words(folder, 4)


def test_a_conversation_that_is_gone_though_none_was_gone_on_with_is_asked_about(repo: Repo, start: Start) -> None:
    start("codex", GONE)
    position = repo.advance()
    assert (classes(position), position.status) == (["unavailable"], "held")


def test_a_run_that_is_asked_only_for_its_result_is_asked_in_its_own_conversation(repo: Repo, start: Start) -> None:
    folder = start("codex", said("codex-done"), {**said("codex-done"), "result": DONE})
    position = repo.advance()
    session = position.runs[0].session
    assert position.runs[1].started.continuation
    assert session and words(folder, 2)[-3:] == ["resume", session, "-"]


def test_a_stage_may_not_resume_with_an_agent_that_cannot(repo: Repo) -> None:
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(resuming()))
    refused = repo.cli("workflow", "validate", "pair")
    assert "session: resume, but scripted cannot go on" in refused.stdout


def test_an_agent_that_works_where_pwd_says_works_in_its_worktree(repo: Repo, start: Start) -> None:
    done = {**said("codex-done"), "shell": 'python3 -c \'import os; open(os.environ["PWD"] + "/b", "w")\''}
    start("codex", {**done, "result": {"verdict": "done"}})
    assert "b" in repo.files(repo.advance().head)


def test_the_last_words_of_an_agent_are_what_it_said_and_not_an_event(repo: Repo, start: Start) -> None:
    start("codex", said("codex-done"))
    first = repo.advance(once=True).runs[0].ended
    assert first and first.outcome.errors[0].endswith("it said last: Committed hello.py.")
