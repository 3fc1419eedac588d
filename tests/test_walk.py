"""The main job: one requirement, from a file to a delivered branch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Repo, approve, develop, done, finding, plan, quick, reject, walk_through

from issueflow.engine import decisions


def verdicts(repo: Repo) -> list[str]:
    return [
        f"{r.started.stage}:{r.ended.outcome.verdict or r.ended.outcome.cls}" for r in repo.position().runs if r.ended
    ]


def test_default_goes_from_requirement_to_a_delivered_branch(repo: Repo) -> None:
    assert repo.new() == "ISSUE-1"
    assert repo.advance().status == "waiting"
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().stage == "deliver"
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    assert position.status == "delivered"
    assert verdicts(repo) == [
        "analysis:done",
        "plan-review:approve",
        "develop:done",
        "code-review:approve",
        "verify:pass",
    ]
    assert repo.git("show", "issueflow/ISSUE-1/delivered:app.py") == "print('two')"
    assert repo.git("diff", "--name-only", position.base, "issueflow/ISSUE-1/delivered") == "app.py"


def test_the_person_s_checkout_is_left_alone(repo: Repo) -> None:
    before = (repo.git("rev-parse", "HEAD"), repo.git("status", "--porcelain"), repo.git("stash", "list"))
    index = (repo.path / ".git" / "index").read_bytes()
    config = (repo.path / ".git" / "config").read_bytes()
    repo.new()
    repo.advance()
    assert (repo.git("rev-parse", "HEAD"), repo.git("status", "--porcelain"), repo.git("stash", "list")) == before
    assert (repo.path / ".git" / "index").read_bytes() == index
    assert (repo.path / ".git" / "config").read_bytes() == config


def test_a_rejected_plan_goes_back_and_its_finding_is_answered(repo: Repo) -> None:
    script = walk_through() | {"analysis": [plan("# One\n"), plan("# Two\n")], "plan-review": [[reject()], [approve()]]}
    repo.script(script)
    repo.new()
    position = repo.advance()
    assert verdicts(repo) == ["analysis:done", "plan-review:request_changes", "analysis:done", "plan-review:approve"]
    assert position.current("plan.md").version == 2
    assert [r.finding for r in position.responses] == ["F1"]
    assert "one can see it" in (repo.run_folder("03-analysis") / "prompt.md").read_text()
    reviewer = (repo.run_folder("04-plan-review") / "prompt.md").read_text()
    assert "# Two" in reviewer
    assert "# One" not in reviewer
    assert "F1 (major) app.py:1: it is wrong" in reviewer  # its own earlier finding, with the answer
    assert "fixed: done as asked" in reviewer


def test_request_changes_becomes_a_finding_that_the_next_round_must_answer(repo: Repo) -> None:
    repo.new()
    repo.advance()
    assert repo.cli("request-changes", "1", "-m", "keep the old flag").returncode == 0
    position = repo.advance()
    prompt = (repo.run_folder("03-analysis") / "prompt.md").read_text()
    assert "keep the old flag" in prompt
    assert position.rounds["planning"].round == 1  # a person's decision buys new rounds …
    assert position.rounds["planning"].total == 2  # … and the total is kept
    assert position.status == "waiting"


def test_a_finding_that_is_not_answered_is_refused(repo: Repo) -> None:
    silent = [
        *plan()[:-1],
        done(artifacts=plan()[-1]["result"]["artifacts"], checklist=plan()[-1]["result"]["checklist"], responses=[]),
    ]
    repo.script(walk_through() | {"analysis": [plan(), silent], "plan-review": [[reject()], [approve()]]})
    repo.new()
    position = repo.advance()
    assert position.hold.cause == "fault"
    assert "finding F1 is not answered" in position.hold.reason


def test_reviews_and_checks_stand_at_exactly_the_commit_they_judge(repo: Repo) -> None:
    repo.new()
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    repo.advance()
    runs = {run.started.stage: run for run in repo.position().runs}
    head = runs["develop"].tip
    assert runs["code-review"].started.base == head
    assert runs["verify"].started.base == head
    order = json.loads((repo.run_folder("04-code-review") / "order.json").read_text())
    assert order["target"] == {"reviewed": head, "kind": "diff", "base": repo.position().base, "head": head}
    assert runs["code-review"].ended.evidence.head == head


@pytest.mark.more
def test_a_verdict_for_another_commit_does_not_count(repo: Repo) -> None:
    other = repo.git("rev-parse", "HEAD")
    repo.script(walk_through() | {"code-review": [[approve(reviewed=other)]]})
    repo.new()
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    assert verdicts(repo)[-2:] == ["code-review:contradicted", "code-review:contradicted"]
    assert position.hold.cause == "fault"


def test_a_failing_check_goes_back_with_its_output_and_does_not_deliver(repo: Repo) -> None:
    repo.setup(
        quick([{"write": "bad", "text": ""}, done()], [{"delete": "bad"}, done()]),
        checks=["test ! -e bad || { echo there is a bad file; exit 3; }"],
    )
    repo.new("# Go\n", "--workflow", "quick")
    position = repo.advance()
    assert verdicts(repo) == ["develop:done", "verify:fail", "develop:done", "verify:pass"]
    assert "there is a bad file" in (repo.run_folder("03-develop") / "prompt.md").read_text()
    assert position.stage == "deliver"


def test_no_check_commands_are_shown_as_not_run_and_never_as_passed(repo: Repo) -> None:
    repo.setup(quick([{"write": "a", "text": ""}, done()]), checks=[])
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    assert verdicts(repo) == ["develop:done", "verify:none"]
    assert "not run" in repo.cli("show", "1").stdout


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ("exit 1", "fail"),
        ("no-such-program-here", "error"),
        ({"run": "sleep 30", "timeout": 1}, "error"),
        ("true", "pass"),
    ],
    ids=["fails", "cannot start", "time limit", "passes"],
)
def test_a_check_is_judged_by_its_exit_code_alone(repo: Repo, check: object, verdict: str) -> None:
    repo.setup(quick([{"write": "a", "text": ""}, done()]), checks=[check])
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance(once=True)
    repo.advance(once=True)
    assert verdicts(repo)[1] == f"verify:{verdict}"


@pytest.mark.more
def test_the_same_objection_to_an_unchanged_tree_stops_the_loop(repo: Repo) -> None:
    """BR-142: six times the same objection, unchanged diff."""
    lazy = develop(no_change="it is right as it is")
    repo.script(walk_through() | {"develop": [lazy], "code-review": [[reject(finding())]]})
    repo.new()
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    assert position.hold.cause == "stalled"
    assert position.round == 2


@pytest.mark.more
def test_an_exhausted_planning_loop_asks_the_person_with_the_findings_listed(repo: Repo) -> None:
    repo.script(walk_through() | {"plan-review": [[reject(finding(claim=f"objection {n}"))] for n in range(3)]})
    repo.new()
    position = repo.advance()
    assert (position.stage, position.status) == ("plan-approval", "waiting")
    assert [f.claim for f in position.findings] == ["objection 2"]
    assert "objection 2" in repo.cli("show", "1").stdout


def test_incomplete_is_tried_again_from_its_own_snapshot_and_then_blocked(repo: Repo) -> None:
    halves = [
        [{"write": f"part{n}", "text": ""}, {"result": {"verdict": "incomplete", "commands_run": []}}]
        for n in (1, 2, 3)
    ]
    repo.script(quick(*halves))
    repo.new("# Go\n", "--workflow", "quick")
    position = repo.advance()
    assert [run.started.attempt for run in position.runs] == [1, 2, 3]
    assert position.hold.cause == "blocked"
    assert {"part1", "part2", "part3"} <= repo.files(position.runs[-1].tip).keys()


def test_the_record_ref_tells_the_issue_s_history(repo: Repo) -> None:
    repo.new()
    repo.advance()
    subjects = repo.git("log", "--reverse", "--format=%s", "refs/issueflow-records/ISSUE-1").splitlines()
    assert subjects[0] == "ISSUE-1: created: Do it"
    assert subjects[1:3] == ["ISSUE-1: analysis round 1: started", "ISSUE-1: analysis round 1: done"]
    trailers = repo.git("log", "-1", "--format=%(trailers:only)", "refs/issueflow-records/ISSUE-1~1")
    assert "Issueflow-Verdict: approve" in trailers


def test_a_deleted_issue_directory_comes_back_from_the_record(repo: Repo) -> None:
    import shutil

    repo.new()
    before = repo.advance()
    shutil.rmtree(repo.path / ".git" / "issueflow" / "issues" / "ISSUE-1")
    assert repo.cli("status", "1").returncode == 0
    assert repo.position() == before
    assert repo.cli("show", "1", "plan").stdout == "# Plan\n"
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().stage == "deliver"


def test_the_second_command_on_a_finished_issue_changes_no_byte(repo: Repo) -> None:
    repo.new()
    repo.advance()
    store = repo.path / ".git" / "issueflow"

    def picture() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "lock"}

    before, refs = picture(), repo.git("for-each-ref")
    repo.advance()
    repo.advance(replace=True)
    assert picture() == before
    assert repo.git("for-each-ref") == refs


@pytest.mark.more
def test_the_demo_runs_where_git_knows_nobody(sealed: Path, tmp_path: Path) -> None:
    """A fresh machine: no identity, no settings; README's first command is typed there."""
    (sealed / ".gitconfig").unlink()
    words = [sys.executable, "-m", "issueflow", "demo", "--yes", "--dir", str(tmp_path / "demo" / "shop")]
    done_ = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done_.returncode == 0, done_.stderr
    assert "ISSUE-1 deliver: delivered" in done_.stdout
    assert done_.stderr.count("request_changes") == 2
