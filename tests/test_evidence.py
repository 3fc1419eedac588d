"""One chain of evidence: what was judged and approved is what is delivered, and a change asks again what it touches."""

import json
import sys

import pytest
from conftest import Repo, approve, develop, done, quick, reject, walk_through

from issueflow.cli import run
from issueflow.engine import begin, decisions
from issueflow.errors import IssueflowError, WrongWords
from issueflow.machine.chain import chain, skips


def to_deliver(repo: Repo) -> None:
    repo.new()
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().stage == "deliver"


def stages(repo: Repo) -> list[str]:
    return [run.started.stage for run in repo.position().runs]


def stale(repo: Repo) -> dict[str, tuple[str, ...]]:
    return {link.stage: link.stale for link in chain(repo.position()) if link.stale}


@pytest.mark.more
def test_a_plan_edited_after_its_approval_is_reviewed_and_approved_again(repo: Repo) -> None:
    """BR-133: the edit becomes the next version, nothing of it or of the accepted one is lost."""
    to_deliver(repo)
    artifacts = repo.hands.store.issue("ISSUE-1").folder / "artifacts"
    (artifacts / "plan.v1.md").write_text("# Plan\n\nAnd one thing more.\n")
    position = repo.advance()
    assert (position.stage, position.status) == ("plan-approval", "waiting")
    assert stages(repo)[-1] == "plan-review"
    assert (artifacts / "plan.v1.md").read_text() == "# Plan\n"
    assert "one thing more" in (artifacts / "plan.v2.md").read_text()
    assert stale(repo) == {"plan-approval": ("plan",), "code-review": ("plan",)}
    assert "plan.md was changed by hand: version 2" in repo.cli("log", "1").stdout


@pytest.mark.more
def test_a_deleted_plan_is_put_back(repo: Repo) -> None:
    to_deliver(repo)
    path = repo.hands.store.issue("ISSUE-1").document("plan.md", 1)
    path.unlink()
    assert repo.advance().stage == "deliver"
    assert path.read_text() == "# Plan\n"


@pytest.mark.more
def test_a_commit_on_the_branch_after_the_review_is_reviewed_before_it_is_delivered(repo: Repo) -> None:
    """BR-131: approval is bound to the reviewed commit."""
    to_deliver(repo)
    tree = repo.worktree("03-develop")
    (tree / "sneaked.txt").write_text("x")
    repo.git("add", "-A", cwd=tree)
    repo.git("commit", "-q", "-m", "one thing more", cwd=tree)
    refused = repo.cli("approve", "1")
    assert refused.returncode == 1
    assert "is not waiting" in refused.stderr
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert stages(repo)[-2:] == ["code-review", "verify"]
    assert position.runs[-1].started.base == repo.git("rev-parse", "issueflow/ISSUE-1/03-develop") == position.head
    decisions.approve(repo.hands, "ISSUE-1", "")
    repo.advance()
    assert "sneaked.txt" in repo.files("issueflow/ISSUE-1/delivered")


@pytest.mark.more
def test_a_verdict_carries_over_when_only_the_commit_changed(repo: Repo) -> None:
    to_deliver(repo)
    tree = repo.worktree("03-develop")
    repo.git("commit", "-q", "--allow-empty", "-m", "nothing", cwd=tree)
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert stages(repo)[-1] == "verify"
    assert len(stages(repo)) == 5
    assert position.head == repo.git("rev-parse", "issueflow/ISSUE-1/03-develop")
    assert stale(repo) == {}


@pytest.mark.more
def test_a_verdict_is_for_the_commit_it_saw_when_another_lands_meanwhile(repo: Repo) -> None:
    """BR-140."""
    land = f"cd {repo.worktree('03-develop')} && echo x > late.txt && git add -A && git commit -qm late"
    repo.script(walk_through() | {"code-review": [[{"run": ["sh", "-c", land]}, approve()], [approve()]]})
    to_deliver(repo)
    reviews = [run for run in repo.position().runs if run.started.stage == "code-review"]
    assert len(reviews) == 2
    assert reviews[0].ended.evidence.head == reviews[0].started.base != reviews[1].started.base
    assert "late.txt" in repo.files(reviews[1].started.base)


@pytest.mark.more
def test_an_amended_requirement_begins_again_and_makes_old_verdicts_stale(repo: Repo) -> None:
    to_deliver(repo)
    before = repo.position()
    position = begin.amend(repo.hands, "ISSUE-1", b"# Do it otherwise\n", "r4.md", None)
    assert position.requirement.version == 2
    assert position.stage == "analysis"
    assert position.head == before.head
    assert set(stale(repo)) == {"plan-review", "plan-approval", "code-review"}
    repo.advance()
    assert "Do it otherwise" in (repo.run_folder(f"{len(before.runs) + 1:02}-analysis") / "prompt.md").read_text()
    assert (repo.hands.store.issue("ISSUE-1").folder / "requirement.v1.md").read_text().startswith("# Do it\n")
    assert repo.cli("verify", "1").returncode == 1


@pytest.mark.more
def test_another_workflow_can_be_taken_on_the_way(repo: Repo) -> None:
    repo.new()
    repo.advance()
    done_ = repo.cli("amend", "1", "--workflow", "quick")
    assert done_.returncode == 0, done_.stderr
    assert repo.position().stage == "develop"
    repo.script(quick([{"write": "a", "text": ""}, done()]))
    assert repo.advance().stage == "deliver"


def test_the_same_requirement_is_no_amendment(repo: Repo) -> None:
    repo.new("# Same\n")
    with pytest.raises(IssueflowError, match="has already"):
        begin.amend(repo.hands, "ISSUE-1", b"# Same\n", "r.md", None)


@pytest.mark.more
def test_a_skip_needs_a_reason_is_listed_and_expires(repo: Repo) -> None:
    repo.setup(
        walk_through() | {"develop": [develop({"write": "a", "text": "1"}), develop({"write": "a", "text": "2"})]},
        checks=["no-such-program"],
    )
    repo.new()
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().hold.cause == "blocked"  # the check could not be run
    assert repo.cli("skip", "1", "verify").returncode == 2
    assert repo.cli("skip", "1", "deliver", "--reason", "x").returncode == 1
    assert repo.cli("skip", "1", "nowhere", "--reason", "x").returncode == 2
    assert repo.cli("skip", "1", "verify", "--reason", "run by hand").returncode == 0
    assert repo.advance().stage == "deliver"
    assert "skipped: verify" in repo.cli("show", "1").stdout
    decisions.request_changes(repo.hands, "ISSUE-1", "once more")
    position = repo.advance()
    assert not skips(position)
    assert position.hold.stage == "verify"  # another tree: the skip does not hold for it


def test_a_person_s_stage_cannot_be_skipped(repo: Repo) -> None:
    repo.new()
    repo.advance()
    with pytest.raises(IssueflowError, match="a person's decision"):
        decisions.skip(repo.hands, "ISSUE-1", "plan-approval", "in a hurry")


DECIDING = (
    "skip 1 verify --reason x",
    "approve 1",
    "reopen 1 --to develop --reason x",
    "amend 1 --workflow quick",
    "resume 1",
    "retry 1 --reason x",
)


@pytest.mark.more
def test_no_decision_is_taken_inside_a_run(repo: Repo) -> None:
    calls = "; ".join(f"{sys.executable} -m issueflow -C {repo.path} {words}" for words in DECIDING)
    repo.script(quick([{"run": ["sh", "-c", calls]}, {"write": "a", "text": ""}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance(once=True)
    said = (repo.run_folder("01-develop") / "stderr.log").read_text()
    assert said.count("is a person's decision") == len(DECIDING)
    assert not repo.position().decided


@pytest.mark.more
def test_a_delivered_issue_can_be_reopened_and_delivered_again(repo: Repo) -> None:
    repo.script(
        walk_through() | {"develop": [develop({"write": "a", "text": "1"}), develop({"write": "a", "text": "2"})]}
    )
    to_deliver(repo)
    decisions.approve(repo.hands, "ISSUE-1", "")
    first = repo.advance().head
    assert repo.cli("verify", "1").returncode == 0
    assert repo.cli("reopen", "1", "--to", "develop", "--reason", "a case was missed").returncode == 0
    assert "ISSUE-1" in repo.cli("status").stdout
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    assert position.status == "delivered"
    assert position.head != first
    assert repo.git("rev-parse", "issueflow/ISSUE-1/delivered") == position.head
    assert repo.git("merge-base", "--is-ancestor", first, position.head) == ""


def test_the_approval_is_bound_to_what_was_presented(repo: Repo) -> None:
    repo.new()
    position = repo.advance()
    assert position.presented.evidence == decisions.approve(repo.hands, "ISSUE-1", "").decided[-1].evidence


def tamper_requirement(repo: Repo) -> None:
    path = repo.hands.store.issue("ISSUE-1").requirement(1)
    path.write_text(path.read_text() + "and more\n")


def tamper_workflow(repo: Repo) -> None:
    path = repo.hands.store.issue("ISSUE-1").folder / "workflow.yaml"
    path.write_text(path.read_text() + "# edited\n")


def tamper_journal(repo: Repo) -> None:
    path = repo.hands.store.issue("ISSUE-1").journal
    lines = path.read_text().splitlines(keepends=True)
    last = json.loads(lines[-1])
    path.write_text("".join(lines[:-1]) + json.dumps({**last, "branch": "elsewhere"}) + "\n")


def tamper_branch(repo: Repo) -> None:
    repo.git("branch", "-f", "issueflow/ISSUE-1/delivered", "main")


def tamper_plan(repo: Repo) -> None:
    repo.hands.store.issue("ISSUE-1").document("plan.md", 1).write_text("another")


def test_verify_exits_non_zero_where_the_chain_breaks(
    repo: Repo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_deliver(repo)
    decisions.approve(repo.hands, "ISSUE-1", "")
    repo.advance()
    monkeypatch.chdir(repo.path)
    assert run(["verify", "1"]) == 0
    assert "✗" not in capsys.readouterr().out
    folder = repo.hands.store.issue("ISSUE-1").folder
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.parent.name != "info"}
    for tamper in (tamper_requirement, tamper_workflow, tamper_journal, tamper_branch, tamper_plan):
        tamper(repo)
        assert run(["verify", "1"]) == 1, tamper.__name__
        assert capsys.readouterr().out.count("✗") == 1, tamper.__name__
        for path, data in whole.items():
            path.write_bytes(data)
        repo.git("branch", "-f", "issueflow/ISSUE-1/delivered", repo.position().head)


def test_an_unknown_stage_is_said_with_those_there_are(repo: Repo) -> None:
    repo.new()
    with pytest.raises(WrongWords, match="it has analysis, plan-review"):
        decisions.reopen(repo.hands, "ISSUE-1", "nowhere", "x")
    assert "it has analysis" in repo.cli("advance", "1", "--until", "nowhere").stderr


def test_a_note_stands_in_the_history(repo: Repo) -> None:
    repo.new()
    assert repo.cli("note", "1", "asked Kim").returncode == 0
    assert "asked Kim" in repo.cli("log", "1").stdout


@pytest.mark.more
def test_changes_asked_for_while_a_stage_is_held_lead_back_to_the_work(repo: Repo) -> None:
    repo.script(walk_through() | {"code-review": [[{"result": {"verdict": "blocked"}}], [reject()], [approve()]]})
    repo.new()
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().hold.stage == "code-review"
    position = decisions.request_changes(repo.hands, "ISSUE-1", "look at the other file")
    assert position.stage == "develop"
    assert position.must_answer == ("F1",)


@pytest.mark.more
def test_an_attribute_hides_nothing_from_the_reviewer(repo: Repo) -> None:
    """`-diff` planted where all worktrees see it; a real binary stays one line; large diffs go by file."""
    plant = (
        'echo "*.py -diff" > "$(git rev-parse --git-common-dir)/info/attributes"; echo "*.py -diff" > .gitattributes'
    )
    acts = [
        {"run": ["sh", "-c", plant]},
        {"write": "app.py", "text": "print('hidden')\n"},
        {"write": "logo.bin", "base64": "AAECAwA="},
        {"write": "big.txt", "text": "line\n" * 400_000},
    ]
    repo.meddled = True
    repo.script(walk_through() | {"develop": [develop(*acts)]})
    to_deliver(repo)
    home = repo.run_folder("04-code-review")
    prompt = (home / "prompt.md").read_text()
    assert "diff.stat" in prompt
    assert "Too long to stand here: read all of `.issueflow-run/diff.patch`" in prompt
    shown = repo.cli("diff", "1").stdout
    assert "+print('hidden')" in shown
    assert "Binary files /dev/null and b/logo.bin differ" in shown
    assert shown.count("+line") == 400_000
