"""What users of similar tools reported, played here: where an Issue begins, what a requirement says, what `done` means.

The id that begins each docstring is the report's.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIR, ROOT, Repo, approve, done, quick, sampled, walk_through
from ruamel.yaml import YAML

from issueflow.cli import run as command
from issueflow.engine import decisions
from issueflow.engine.begin import create
from issueflow.errors import Busy
from issueflow.machine import Position
from issueflow.machine.requirement import read_requirement

EDIT = {"write": "app.py", "text": "print('two')\n"}


def sh(script: str) -> dict[str, Any]:
    return {"run": ["sh", "-ec", script]}


def begin(repo: Repo, text: str | bytes = "# Do it\n", workflow: str | None = "quick", base: str | None = None) -> str:
    """`new` without a process of its own; the Issue's id."""
    data = text if isinstance(text, bytes) else text.encode()
    said = read_requirement(data, "r3.md")
    return create(repo.hands, data, said.title, "r3.md", workflow or said.workflow, base or said.base)


def play(repo: Repo, *acts: dict[str, Any]) -> Position:
    """The first develop run of a new Issue of `quick`."""
    repo.script(quick(list(acts)))
    return repo.advance(begin(repo), once=True)


def everything(repo: Repo) -> tuple[str, str, list[str]]:
    """What a refused `new` must leave as it was: refs, the person's tree, the Issues."""
    issues = repo.path / ".git" / "issueflow" / "issues"
    names = sorted(os.listdir(issues)) if issues.exists() else []
    return repo.git("for-each-ref"), repo.git("status", "--porcelain"), names


@pytest.fixture
def requirement(tmp_path: Path) -> Path:
    path = tmp_path / "r3.md"
    path.write_text("# Do it\n")
    return path


# ── where an Issue begins ──


def test_the_base_is_where_the_person_is_and_not_some_default_branch(repo: Repo, requirement: Path) -> None:
    """BR-029: a user on feature/x, two commits ahead of main."""
    repo.git("checkout", "-q", "-b", "feature/x")
    repo.write("plan.txt", "the plan\n")
    repo.commit("one")
    repo.write("more.txt", "more\n")
    tip = repo.commit("two")
    new = repo.cli("new", str(requirement), "--workflow", "quick")
    assert tip[:12] in new.stderr
    repo.advance(once=True)
    assert (repo.position().base, repo.position().created.base_name) == (tip, "refs/heads/feature/x")
    assert (repo.worktree("01-develop") / "plan.txt").read_text() == "the plan\n"
    assert f"{tip[:12]} (feature/x)" in repo.cli("status", "1").stdout


@pytest.mark.more
def test_a_base_behind_its_upstream_is_said_and_all_stages_use_the_same_commit(
    make_repo: Callable[..., Repo], tmp_path: Path, requirement: Path
) -> None:
    """BR-031: local main is 3 commits behind origin/main."""
    origin = make_repo("origin")
    origin.setup(walk_through())
    origin.git("clone", "-q", str(origin.path), str(tmp_path / "shop"))
    repo = Repo(tmp_path / "shop")
    for number in range(3):
        origin.commit(f"later {number}")
    repo.git("fetch", "-q")
    new = repo.cli("new", str(requirement))
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    base = repo.git("rev-parse", "main")
    assert [run.started.base for run in position.runs[:3]] == [base] * 3
    assert position.runs[3].started.base == position.runs[2].tip
    said = new.stderr + repo.cli("status", "1").stdout
    assert "origin/main" in said
    assert "3 commits" in said


def test_a_repository_whose_only_branch_is_trunk_needs_no_configuration(make_repo: Callable[..., Repo]) -> None:
    """BR-032: no remote, no main, no master."""
    repo = make_repo(init=("-b", "trunk"))
    repo.setup(quick([EDIT, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().status == "delivered"
    assert repo.git("symbolic-ref", "HEAD") == "refs/heads/trunk"
    names = {"main", "master", "origin/main", "origin/master", "refs/heads/main", "refs/heads/master"}
    for path in (ROOT / "issueflow").rglob("*.py"):
        words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not names & words or path.name == "demo.py", path  # the demo makes a repository of its own


def test_a_detached_head_without_main_or_remote_is_a_base_like_any_other(make_repo: Callable[..., Repo]) -> None:
    """BR-033"""
    repo = make_repo(init=("-b", "trunk"))
    repo.setup(quick([EDIT, done()]))
    repo.git("checkout", "-q", "--detach")
    repo.git("branch", "-D", "trunk")
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    assert (position.status, position.base) == ("delivered", repo.git("rev-parse", "HEAD"))
    assert repo.cli("status", "1").returncode == 0


def test_a_repository_without_a_commit_is_refused_before_anything_is_made(tmp_path: Path, requirement: Path) -> None:
    """BR-034: git init only."""
    repo = Repo(tmp_path / "empty")
    repo.path.mkdir()
    repo.git("init", "-q")
    assert repo.cli("init", "--agent", "scripted").returncode == 0
    files = sorted(p for p in repo.path.rglob("*") if ".git/" not in str(p))
    new = repo.cli("new", str(requirement), "--advance")
    assert new.returncode == 1
    assert "no commit yet" in new.stderr
    assert "hint: git commit --allow-empty -m start" in new.stderr
    assert everything(repo)[0] == ""
    assert everything(repo)[2] == []
    assert sorted(p for p in repo.path.rglob("*") if ".git/" not in str(p) and p.name != "issues") == files
    assert not (tmp_path / "empty.issueflow").exists()
    repo.git("commit", "-q", "--allow-empty", "-m", "start")
    assert repo.cli("new", str(requirement)).stdout == "ISSUE-1\n"


def test_without_any_identity_results_are_committed_under_a_fixed_one(repo: Repo, sealed: Path) -> None:
    """BR-035: no user.name and no user.email anywhere."""
    repo.script(quick([EDIT, done()]))
    (sealed / ".gitconfig").write_text("[user]\n\tuseConfigOnly = true\n")
    repo.new("# Go\n", "--workflow", "quick")
    position = repo.advance()
    assert position.stage == "deliver"
    assert repo.git("log", "-1", "--format=%an <%ae> %cn", position.head) == "issueflow <issueflow@localhost> issueflow"
    assert repo.git("log", "-1", "--format=%an", "refs/issueflow-records/ISSUE-1") == "issueflow"


def test_a_branch_in_the_way_is_named_before_anything_is_made(repo: Repo, requirement: Path) -> None:
    """BR-036: the branch `issueflow`, or `issueflow/ISSUE-1`, exists already."""
    repo.git("branch", "issueflow")
    before = everything(repo)
    new = repo.cli("new", str(requirement), "--workflow", "quick")
    assert new.returncode == 1
    assert "the branch issueflow is in the way" in new.stderr
    assert "prefix" in new.stderr
    assert everything(repo) == before
    repo.setup(quick([EDIT, done()]), prefix="flow")
    assert repo.advance(begin(repo)).stage == "deliver"
    assert repo.git("for-each-ref", "--format=%(refname)", "refs/heads/flow") == "refs/heads/flow/ISSUE-1/01-develop"


def test_a_branch_named_like_an_issue_costs_its_number_and_nothing_else(repo: Repo) -> None:
    """BR-036, one folder further down."""
    mine = repo.git("rev-parse", "HEAD")
    repo.git("branch", "issueflow/ISSUE-1")
    repo.script(quick([EDIT, done()]))
    assert begin(repo) == "ISSUE-2"
    repo.git("branch", "issueflow/ISSUE-3")
    assert repo.advance("ISSUE-2").stage == "deliver"
    assert repo.git("rev-parse", "issueflow/ISSUE-1") == mine


def test_a_branch_that_came_in_the_way_after_new_is_named_and_the_issue_goes_on_without_it(repo: Repo) -> None:
    """BR-036, between `new` and `advance`."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    repo.git("branch", "issueflow/ISSUE-1")
    stopped = repo.cli("advance", "1")
    assert stopped.returncode == 1
    assert "issueflow/ISSUE-1" in stopped.stderr.replace("issueflow/ISSUE-1/01-develop", "")
    assert not repo.worktree("01-develop").exists()
    repo.git("branch", "-D", "issueflow/ISSUE-1")
    assert repo.advance().stage == "deliver"


def test_a_foreign_folder_at_the_planned_path_is_left_alone(repo: Repo) -> None:
    """BR-038: a non-empty folder already lies where the worktree would go."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    planned = repo.worktree("01-develop")
    planned.mkdir(parents=True)
    (planned / "mine.txt").write_text("mine\n")
    position = repo.advance()
    assert position.stage == "deliver"
    assert position.runs[0].started.worktree == f"{planned}.2"
    assert [p.name for p in planned.iterdir()] == ["mine.txt"]


def test_a_foreign_folder_that_came_after_the_intent_stops_the_run_and_leaves_no_branch(
    repo: Repo, tmp_path: Path
) -> None:
    """BR-038, in the instant between the journal's entry and the worktree."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    crash = {"ISSUEFLOW_CRASH": f"recorded.started#1@{tmp_path}/passed"}
    assert repo.cli("advance", "1", env=crash).returncode == -9
    planned = repo.worktree("01-develop")
    planned.mkdir(parents=True)
    (planned / "mine.txt").write_text("mine\n")
    stopped = repo.cli("advance", "1")
    assert stopped.returncode == 1
    assert f"{planned} exists" in stopped.stderr
    assert repo.git("for-each-ref", "refs/heads/issueflow") == ""
    assert (planned / "mine.txt").read_text() == "mine\n"
    planned.rename(tmp_path / "aside")
    assert repo.advance().stage == "deliver"


@pytest.mark.more
def test_six_issues_advanced_at_the_same_moment_all_get_their_worktree(repo: Repo) -> None:
    """BR-040: `worktree add` fails now and then when it runs in parallel."""
    repo.script(quick([EDIT, done()]))
    names = [begin(repo) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(lambda name: repo.cli("advance", name, "--once", env={}), names))
    assert [(process.returncode, process.stderr[-300:]) for process in ended if process.returncode] == []
    listing = repo.git("worktree", "list", "--porcelain")
    branches = repo.git("for-each-ref", "--format=%(refname)", "refs/heads/issueflow").splitlines()
    assert branches == [f"refs/heads/issueflow/{name}/01-develop" for name in names]
    assert (
        sorted(line[7:] for line in listing.splitlines() if "issueflow/" in line and line[:7] == "branch ") == branches
    )
    assert [repo.position(name).runs[0].ended.outcome.verdict for name in names] == ["done"] * 6


def test_a_number_whose_directory_was_deleted_is_not_used_again(repo: Repo) -> None:
    """BR-042: ISSUE-2's directory is gone, its branches are not."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    begin(repo)
    tip = repo.advance("ISSUE-2", once=True).head
    for gone in sorted((repo.path / ".git/issueflow/issues/ISSUE-2").rglob("*"), reverse=True):
        gone.unlink() if not gone.is_dir() else gone.rmdir()
    (repo.path / ".git/issueflow/issues/ISSUE-2").rmdir()
    repo.git("update-ref", "-d", "refs/issueflow-records/ISSUE-2")
    assert begin(repo) == "ISSUE-3"
    assert repo.advance("ISSUE-3", once=True).runs[0].started.base == repo.position("ISSUE-3").base
    assert repo.git("rev-parse", "issueflow/ISSUE-2/01-develop") == tip


def test_new_in_two_worktrees_at_once_gives_two_numbers(repo: Repo, tmp_path: Path, requirement: Path) -> None:
    """BR-044: each sees the other's, committed or not."""
    repo.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    with ThreadPoolExecutor(4) as pool:
        folders = [repo.path, tmp_path / "linked"] * 2
        made = list(pool.map(lambda folder: repo.cli("new", str(requirement), cwd=folder), folders))
    assert sorted(process.stdout for process in made) == [f"ISSUE-{n}\n" for n in (1, 2, 3, 4)]
    listed = repo.cli("status", cwd=tmp_path / "linked").stdout
    assert all(f"ISSUE-{n}" in listed for n in (1, 2, 3, 4))


def test_the_same_number_made_in_two_clones_is_named_and_nothing_is_overwritten(repo: Repo, tmp_path: Path) -> None:
    """BR-045: records travel by fetch; git refuses another history, and what came by force is noticed at once."""
    repo.git("clone", "-q", str(repo.path), str(tmp_path / "clone"))
    clone = Repo(tmp_path / "clone")
    begin(repo, "# From the one\n")
    begin(clone, "# From the other\n")
    records = "refs/issueflow-records/*:refs/issueflow-records/*"
    fetched = subprocess.run(["git", "fetch", "origin", records], cwd=clone.path, capture_output=True, text=True)
    assert fetched.returncode != 0
    assert "non-fast-forward" in fetched.stderr
    assert clone.cli("advance", "1", "--once").returncode == 0
    journal = clone.path / ".git/issueflow/issues/ISSUE-1/journal.jsonl"
    before = journal.read_bytes()
    clone.git("fetch", "-q", "origin", f"+{records}")
    stopped = clone.cli("advance", "1")
    assert stopped.returncode == 1
    assert str(journal) in stopped.stderr
    assert "refs/issueflow-records/ISSUE-1" in stopped.stderr
    assert journal.read_bytes() == before
    assert clone.position().created.title == "From the other"
    theirs, mine = (r.git("rev-parse", "refs/issueflow-records/ISSUE-1") for r in (repo, clone))
    assert theirs == mine  # what was fetched is not overwritten either


def test_stages_whose_names_differ_in_a_dash_get_folders_of_their_own(repo: Repo) -> None:
    """BR-046"""
    stage = {"kind": "agent", "role": "developer", "access": "write"}
    names = ["dev-a", "dev_a", "dev-a-", "dev--a"]
    stages = {
        name: {**stage, "next": {"done": after, "blocked": "hold"}}
        for name, after in zip(names, [*names[1:], "end"], strict=True)
    }
    stages["end"] = {
        "kind": "human",
        "next": {"approve": "delivered", "request_changes": "dev-a", "cancel": "cancelled"},
    }
    flow = {"name": "many", "version": 1, "start": "dev-a", "roles": {"developer": "writes"}, "stages": stages}
    repo.write(".issueflow/workflows/many.yaml", json.dumps(flow))
    repo.script({name: [[{"write": f"by {name}", "text": ""}, done()]] for name in names})
    position = repo.advance(begin(repo, workflow="many"))
    assert position.status == "waiting"
    assert len({run.started.worktree.casefold() for run in position.runs}) == 4
    assert {f"by {name}" for name in names} <= repo.files(position.head).keys()


@pytest.mark.parametrize("existing", ["IssueFlow/x", "ISSUEFLOW", "issueFlow/ISSUE-1/01-develop"])
def test_a_prefix_that_differs_in_letter_case_only_is_named_before_anything_is_made(
    repo: Repo, requirement: Path, existing: str
) -> None:
    """BR-047: on a disk that ignores case the two would share a folder."""
    repo.git("branch", existing)
    before = everything(repo)
    new = repo.cli("new", str(requirement))
    assert new.returncode == 1
    assert f"the branch {existing} is in the way" in new.stderr
    assert everything(repo) == before


# ── what a requirement says ──

FRONT = "---\ntitle: Faster uploads\nworkflow: quick\n---\n# Not the title\n\nText.\n"


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + FRONT.encode(),
        b"\n" + FRONT.encode(),
        FRONT.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf\r\n" + FRONT.replace("\n", "\r\n").encode(),
    ],
    ids=["byte-order mark", "leading blank line", "CRLF", "all of it"],
)
def test_a_front_matter_is_read_and_the_bytes_are_kept(repo: Repo, requirement: Path, data: bytes) -> None:
    """BR-218"""
    requirement.write_bytes(data)
    assert repo.cli("new", str(requirement)).returncode == 0
    position = repo.position()
    assert (position.created.title, position.workflow.name) == ("Faster uploads", "quick")
    assert repo.hands.store.issue("ISSUE-1").requirement().read_bytes() == data
    assert repo.cli("show", "1", "requirement").stdout.encode() == data.replace(b"\r\n", b"\n")


RULES = """---
title: Real
---
# Heading

---

```yaml
---
title: Example
workflow: none
---
```

---

Last line.
"""


def test_only_the_first_block_is_front_matter_and_the_body_is_complete(repo: Repo) -> None:
    """BR-220: rule lines, and a YAML example in a code block."""
    repo.script(walk_through())
    begin(repo, RULES, workflow=None)
    repo.advance(once=True)
    position = repo.position()
    assert (position.created.title, position.workflow.name) == ("Real", "default")
    given = repo.worktree("01-analysis") / ".issueflow-run" / "requirement.md"
    text = given.read_text() if given.exists() else (repo.run_folder("01-analysis") / "prompt.md").read_text()
    assert "Last line." in text
    assert "title: Example" in text
    no_front = "# First\n\n---\ntitle: no\n---\n"
    assert read_requirement(no_front.encode(), "r3.md").title == "First"


TITLES = {
    "Chinese": "# 重试失败的上传\n",
    "emoji": "# 🚀🚀\n",
    "punctuation": "# !?…—\n",
    "right to left": "# إعادة المحاولة\n",
    "none": "\n   \n#\n",
    "a line of dashes": "---\n",
}


def test_a_title_in_any_script_gives_a_distinct_and_readable_issue(
    repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BR-221: Chinese, emoji, punctuation, right to left, none."""
    repo.script(quick([EDIT, done()]))
    for number, text in enumerate(TITLES.values(), 1):
        path = tmp_path / f"r{number}.md"
        path.write_text(text)
        assert command(["-C", str(repo.path), "new", str(path), "--workflow", "quick"]) == 0
        assert capsys.readouterr().out == f"ISSUE-{number}\n"
    assert command(["-C", str(repo.path), "status"]) == 0
    table = capsys.readouterr().out
    titles = [repo.position(f"ISSUE-{number}").created.title for number in range(1, len(TITLES) + 1)]
    assert all(titles)
    assert titles[:4] == ["重试失败的上传", "🚀🚀", "!?…—", "إعادة المحاولة"]
    assert all(title in table for title in titles)
    assert repo.advance("ISSUE-1", once=True).runs[0].ended.outcome.verdict == "done"


HOSTILE = "# " + "".join(f"word{n} .. @{{ ~ ^ : ? * [ \\ " for n in range(40)) + "é" * 200 + ".lock.\n\nnext line\n"


def test_a_hostile_title_never_reaches_a_branch_name(repo: Repo) -> None:
    """BR-222: 600 characters with line breaks, '..', '@{', '~', '.lock' and a dot at the end."""
    repo.script(quick([EDIT, done()]))
    begin(repo, HOSTILE)
    repo.advance(once=True)
    (branch,) = repo.git("for-each-ref", "--format=%(refname:short)", "refs/heads/issueflow").splitlines()
    assert repo.git("check-ref-format", "--branch", branch) == branch
    assert max(len(part.encode()) for part in Path(repo.position().runs[0].started.worktree).parts[-3:]) < 100
    assert "\n" not in repo.position().created.title
    assert len(repo.position().created.title) <= 200


def test_a_long_base_branch_is_used_as_it_is(repo: Repo) -> None:
    """BR-223: parts of 120 characters, given by the user, and once more as the branch the user is on."""
    long = "/".join(letter * 120 for letter in "abc")
    repo.git("checkout", "-q", "-b", long)
    repo.script(quick([EDIT, done()]))
    tip = repo.commit("on the long branch")
    begin(repo)
    repo.git("checkout", "-q", "main")
    repo.new("# Go\n", "--workflow", "quick", "--base", long)
    assert repo.position("ISSUE-1").created.base_name == f"refs/heads/{long}"
    assert repo.position("ISSUE-2").base == repo.position("ISSUE-1").base == tip
    assert repo.advance("ISSUE-2", once=True).runs[0].started.base == tip
    assert repo.git("rev-parse", long) == tip


# ── what `done` means ──


def test_uncommitted_work_is_committed_and_the_review_sees_exactly_it(repo: Repo, tmp_path: Path) -> None:
    """BR-110: two files edited, one added, success reported, nothing committed."""
    repo.write("other.py", "one\n")
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    repo.commit("pair")
    edits = [EDIT, {"write": "other.py", "text": "two\n"}, {"write": "new.py", "text": "new\n"}]
    keep = sh(f"cp .issueflow-run/diff.patch {tmp_path}/seen.patch; git rev-parse HEAD > {tmp_path}/stood")
    repo.script({"develop": [[*edits, done()]], "review": [[keep, approve()]]})
    position = repo.advance(begin(repo, workflow="pair"))
    assert position.stage == "deliver"
    assert (tmp_path / "stood").read_text().strip() == position.head
    assert repo.git("diff", "--name-only", position.base, position.head).splitlines() == [
        "app.py",
        "new.py",
        "other.py",
    ]
    repo.git("checkout", "-q", "--detach", position.base)
    repo.git("apply", "--index", str(tmp_path / "seen.patch"))
    assert repo.git("write-tree") == repo.git("rev-parse", f"{position.head}^{{tree}}")


def test_what_the_agent_committed_itself_counts_as_changed(repo: Repo) -> None:
    """BR-113: three commits and a clean tree."""
    acts = [a for n in (1, 2, 3) for a in ({"write": "app.py", "text": f"{n}\n"}, {"commit": f"step {n}"})]
    run = play(repo, *acts, done()).runs[0]
    assert (run.ended.outcome.verdict, run.ended.code.changed) == ("done", True)
    assert repo.git("rev-list", "--count", f"{run.started.base}..{run.tip}") == "3"


def test_nothing_needed_changing_is_accepted_only_when_it_is_said_and_the_person_is_told(repo: Repo) -> None:
    """BR-114"""
    position = play(repo, done())
    assert position.runs[0].ended.outcome.cls == "contradicted"
    assert "nothing was changed" in position.runs[0].ended.outcome.errors[0]
    repo.script(quick([done(no_change="the retry is there already, in app.py line 1")]))
    position = repo.advance(begin(repo))
    assert (position.stage, position.status, position.head) == ("deliver", "waiting", position.base)
    shown = repo.cli("show", "2").stdout
    assert "the retry is there already" in shown


def test_files_without_a_result_are_no_finished_stage_and_are_kept(repo: Repo) -> None:
    """BR-115: files written, no result, exit 0."""
    position = play(repo, EDIT)
    run = position.runs[0]
    assert run.ended.outcome.cls == "missing"
    assert position.head == position.base
    assert repo.git("show", f"{run.tip}:app.py") == "print('two')"
    position = repo.advance()
    assert (position.status, position.hold.cause, position.stage) == ("held", "fault", "develop")
    assert repo.git("show", f"{position.runs[-1].tip}:app.py") == "print('two')"
    assert repo.cli("advance", "1").returncode == 4


def test_a_failing_hook_of_the_repository_has_no_effect(repo: Repo, tmp_path: Path) -> None:
    """BR-116: results are committed by plumbing; no hook is run, the project's checks are a stage."""
    for name in ("pre-commit", "commit-msg", "post-checkout", "reference-transaction", "post-index-change"):
        hook = repo.write(f".git/hooks/{name}", f"#!/bin/sh\necho {name} >> {tmp_path}/ran\nexit 1\n")
        hook.chmod(0o755)
    repo.script(quick([EDIT, done()]))
    begin(repo)
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    position = repo.advance()
    assert position.status == "delivered"
    assert repo.git("show", "issueflow/ISSUE-1/delivered:app.py") == "print('two')"
    assert not (tmp_path / "ran").exists()


def test_success_words_around_an_error_are_no_result(repo: Repo) -> None:
    """BR-118: exit 0, `success`, and the error text as the answer."""
    envelope = {"type": "result", "subtype": "success", "is_error": True, "result": "API Error: rate limit reached"}
    position = play(repo, EDIT, {"say": json.dumps(envelope)})
    assert position.runs[0].ended.outcome.cls == "missing"
    position = repo.advance()
    assert (position.status, position.head) == ("held", position.base)


def test_an_error_on_stderr_with_exit_0_is_a_failed_attempt_and_its_words_are_in_the_report(repo: Repo) -> None:
    """BR-121"""
    repo.script(quick([{"say": "ApiError: quota exceeded for model", "to": "stderr"}]))
    begin(repo)
    report = repo.cli("advance", "1")
    assert report.returncode == 4
    assert "quota exceeded for model" in report.stderr
    position = repo.position()
    assert {run.ended.outcome.cls for run in position.runs} == {"missing"}
    assert "quota exceeded for model" in position.hold.reason + repo.cli("show", "1", "run", "3").stdout


def test_no_output_at_all_is_a_failed_attempt_and_not_tried_for_ever(repo: Repo, tmp_path: Path) -> None:
    """BR-122: zero bytes, exit 0, a word only in the agent's own log file."""
    repo.script(quick([sh(f"echo auto-rejected >> {tmp_path}/own.log")]))
    begin(repo)
    position = repo.advance()
    assert (position.status, position.hold.cause) == ("held", "fault")
    assert len((tmp_path / "own.log").read_text().splitlines()) == len(position.runs) == 3
    assert any(words in position.hold.reason for words in ("no output", "printed nothing", "said nothing"))


def test_the_diff_of_a_run_that_committed_everything_itself_is_shown(repo: Repo) -> None:
    """BR-123"""
    play(repo, EDIT, {"commit": "mine"}, done())
    for words in (["diff", "1"], ["diff", "1", "develop"], ["diff", "1", "01-develop"], ["diff", "1", "--stat"]):
        out = repo.cli(*words).stdout
        assert "app.py" in out
    assert "+print('two')" in repo.cli("diff", "1").stdout


def test_a_delivery_that_cannot_be_made_is_not_reported_as_delivered(repo: Repo) -> None:
    """BR-124: a delivery is a local branch. A dirty tree and a moved target do not hinder it, its name taken does."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    repo.advance()
    repo.commit("the target moved")
    repo.write("app.py", "mine, not committed\n")
    decisions.approve(repo.hands, "ISSUE-1", "")
    repo.git("branch", "issueflow/ISSUE-1/delivered", "main")
    stopped = repo.cli("advance", "1")
    assert stopped.returncode == 1
    assert "refs/heads/issueflow/ISSUE-1/delivered exists already" in stopped.stderr
    assert repo.position().status == "delivering"
    assert "delivered" not in repo.cli("status").stdout
    repo.git("branch", "-D", "issueflow/ISSUE-1/delivered")
    assert repo.advance().status == "delivered"
    assert (repo.path / "app.py").read_text() == "mine, not committed\n"
    assert "main has 1 commit" in repo.cli("status", "1").stdout


# ── what a reviewer gets ──


def reviewed(repo: Repo, *acts: dict[str, Any]) -> str:
    """The diff and its summary as the reviewer of these acts finds them."""
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    seen = sh("cat .issueflow-run/diff.stat .issueflow-run/diff.patch")
    repo.script({"develop": [[*acts, done()]], "review": [[seen, approve()]]})
    repo.advance(begin(repo, workflow="pair"), until="deliver")
    return (repo.run_folder("02-review") / "stdout.log").read_text(errors="replace")


def test_a_reviewer_gets_the_branch_s_own_changes_and_not_what_the_base_gained(repo: Repo) -> None:
    """BR-134"""
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    repo.script({"develop": [[EDIT, done()]], "review": [[sh("cat .issueflow-run/diff.patch"), approve()]]})
    issue = begin(repo, workflow="pair")
    repo.advance(issue, once=True)
    for number in range(5):
        repo.write(f"theirs-{number}", "x\n")
        repo.commit(f"theirs {number}")
    repo.advance(issue)
    shown = (repo.run_folder("02-review") / "stdout.log").read_text()
    assert "+print('two')" in shown and "theirs" not in shown
    assert repo.cli("diff", "1", "--stat").stdout.count("|") == 1
    assert "main has 5 commits more by now" in repo.cli("status", "1").stdout


ONLY = {
    "a new file": (sh("echo new > new.txt"), "create mode 100644 new.txt"),
    "an executable bit": (sh("chmod +x app.py"), "mode change 100644 => 100755 app.py"),
    "a binary": (sh("printf 'a\\0b' > new.bin"), "Binary files /dev/null and b/new.bin differ"),
    "a deletion": (sh("rm app.py"), "delete mode 100644 app.py"),
    "a new name": (sh("git mv app.py main.py"), "rename app.py => main.py (100%)"),
    "an empty file": (sh(": > empty"), "create mode 100644 empty"),
}


@pytest.mark.parametrize(("act", "words"), ONLY.values(), ids=ONLY.keys())
def test_whatever_the_only_change_is_the_reviewer_is_shown_it(repo: Repo, act: dict[str, Any], words: str) -> None:
    """BR-139"""
    assert words in reviewed(repo, act)


# ── the command line ──


def test_standard_output_holds_the_value_and_nothing_else(repo: Repo, requirement: Path) -> None:
    """BR-217: not even where git's hooks print."""
    hook = repo.path / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho chatter\n")
    hook.chmod(0o755)
    assert repo.cli("new", os.fspath(requirement)).stdout == "ISSUE-1\n"
    repo.advance()
    plan = repo.hands.store.issue("ISSUE-1").document("plan.md", 1)
    assert repo.cli("show", "1", "plan", "--path").stdout == f"{plan}\n"


FAILING = {
    # what cannot be done → exit code
    "show 9": 2,
    "show 1 nix": 2,
    "show 1 run 7": 2,
    "diff 1 nix": 2,
    "logs 1 7": 2,
    "log 9": 2,
    "status 9": 2,
    "advance 9": 2,
    "advance 1 --until nix": 2,
    "resume 9": 2,
    "approve 1": 1,
    "request-changes 1 -m x": 1,
    "request-changes 1": 2,
    "retry 1 --reason x": 1,
    "retry 1": 2,
    "skip 1 develop --reason x": 1,
    "skip 1 nix --reason x": 2,
    "reopen 1 --to nix --reason x": 2,
    "amend 1": 2,
    "amend 1 nix.md": 2,
    "note 9 x": 2,
    "cancel 9": 2,
    "cleanup 9": 2,
    "verify 1": 1,
    "verify 9": 2,
    "init": 1,
    "new nix.md": 2,
    "workflow validate nix": 1,
    "demo --dir .": 1,
    "nix": 2,
}


def test_each_failing_path_has_its_exit_code(repo: Repo) -> None:
    """BR-215: and the process ends with it, too."""
    begin(repo)
    assert {words: repo.cli(*words.split()).returncode for words in FAILING} == FAILING
    for words in ("approve 1", "nix"):
        assert repo.cli(*words.split(), env={}).returncode == FAILING[words]


# ── git's surroundings ──


@pytest.mark.more
def test_typed_by_a_hook_or_an_alias_of_one_repository_it_works_on_another(repo: Repo, make_repo: Any) -> None:
    """BR-163: git tells both where their own repository is, by variables that `git -C` obeys."""
    other = make_repo("other")
    linked = other.path.with_name("linked")
    other.git("worktree", "add", "-q", "-b", "side", os.fspath(linked))
    repo.script(quick([EDIT, done()]))
    begin(repo)
    begin(repo)
    call = f"{sys.executable} -m issueflow -C {repo.path} advance --once"
    hook = other.path / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {call} 1 >&2\n")
    hook.chmod(0o755)
    other.git("config", "alias.flow", f"!{call}")
    (linked / "staged").write_text("x\n")
    other.git("add", "staged", cwd=linked)
    index = other.path / ".git" / "worktrees" / "linked" / "index"
    was, refs = index.read_bytes(), other.git("for-each-ref")
    other.git("flow", "2", cwd=linked)
    assert (index.read_bytes(), other.git("for-each-ref")) == (was, refs)
    other.git("commit", "-q", "-m", "by hand", cwd=linked)
    assert other.git("show", "--format=", "--name-only", "side") == "staged"
    assert not (other.path / ".git" / "issueflow").exists()
    for issue in ("ISSUE-1", "ISSUE-2"):
        assert repo.position(issue).runs[0].ended.outcome.verdict == "done"


def test_in_a_linked_worktree_with_git_dir_set_the_same_issues_are_listed(repo: Repo, tmp_path: Path) -> None:
    """BR-165, BR-192"""
    begin(repo)
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", "-b", "side", os.fspath(linked))
    (linked / "deep").mkdir()
    env = {"GIT_DIR": repo.git("rev-parse", "--git-dir", cwd=linked)}
    listed = repo.cli("status", "--json").stdout
    for cwd in (linked, linked / "deep"):
        assert repo.cli("status", "--json", cwd=cwd, env=env).stdout == listed
        assert repo.cli("status", "1", cwd=cwd, env=env).returncode == 0


def test_no_commit_of_ours_waits_for_a_key(repo: Repo, tmp_path: Path) -> None:
    """BR-166, BR-167: nothing is signed, whatever the person's settings say: result, record, delivery."""
    program = tmp_path / "gpg"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nsleep 300\n")
    program.chmod(0o755)
    repo.script(quick([EDIT, done()]))
    for name, value in {"commit.gpgsign": "true", "tag.gpgsign": "true", "gpg.program": os.fspath(program)}.items():
        repo.git("config", name, value)
    begin(repo)
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().status == "delivered"
    assert not (tmp_path / "asked").exists()


def test_nothing_is_fetched_so_nobody_is_asked_for_a_password(repo: Repo, tmp_path: Path) -> None:
    """BR-172, BR-184: what a remote has by now is not looked at and not claimed; the base is a commit, and shown."""
    helper = f"!echo asked >> {tmp_path}/asked; sleep 300"
    repo.git("config", "credential.helper", helper)
    repo.git("config", "core.sshCommand", f"sh -c 'echo asked >> {tmp_path}/asked; sleep 300'")
    repo.git("remote", "add", "origin", "https://user@localhost:1/x.git")
    repo.script(quick([EDIT, done()]))
    begin(repo)
    for words in ("advance 1", "status 1", "verify 1", "cleanup --dry-run", "diff 1"):
        assert repo.cli(*words.split()).returncode in (0, 1)
    assert f"base      {repo.git('rev-parse', '--short=12', 'main')} (main)" in repo.cli("status", "1").stdout
    assert not (tmp_path / "asked").exists()


def test_an_agent_is_told_that_submodules_are_not_checked_out(repo: Repo, make_repo: Any) -> None:
    """BR-177: a new worktree has empty folders for them."""
    inner = make_repo("inner")
    words = ("-c", "protocol.file.allow=always", "submodule", "add", "-q", os.fspath(inner.path), "lib/$(x) [y]")
    repo.git(*words)
    repo.commit("a submodule")
    play(repo, EDIT, done())
    prompt = (repo.run_folder("01-develop") / "prompt.md").read_text()
    assert "These folders are submodules." in prompt and "\nlib/$(x) [y]\n" in prompt
    assert not list(repo.worktree("01-develop").glob("lib/*/*"))


def test_worktrees_below_a_symbolic_link_are_found_under_both_names(repo: Repo, tmp_path: Path) -> None:
    """BR-191"""
    (tmp_path / "var").mkdir()
    (tmp_path / "place").symlink_to(tmp_path / "var")
    repo.setup(walk_through(), worktrees={"root": os.fspath(tmp_path / "place")})
    repo.script(quick([EDIT, done()]))
    begin(repo)
    repo.advance()
    assert (tmp_path / "var" / "ISSUE-1" / "01-develop" / "app.py").read_text() == "print('two')\n"
    for cwd in (tmp_path / "place" / "ISSUE-1" / "01-develop", tmp_path / "var" / "ISSUE-1" / "01-develop"):
        assert "ISSUE-1" in repo.cli("status", cwd=cwd).stdout
    repo.cli("cancel", "1")
    assert "removed  01-develop" in repo.cli("cleanup", "1").stdout
    assert not (tmp_path / "var" / "ISSUE-1" / "01-develop").exists()


# ── trees that are in an unexpected state ──


def crashed(repo: Repo, point: str) -> None:
    """An `advance` of ISSUE-1 that is killed at a named act."""
    crash = {"ISSUEFLOW_CRASH": f"{point}#1@{repo.path.parent}/passed"}
    assert repo.cli("advance", "1", env=crash).returncode == -9


def test_an_agent_that_is_killed_leaves_its_work_where_it_is(repo: Repo) -> None:
    """BR-015: the end of an agent never removes anything; its runner lives on and takes the work in."""
    position = play(repo, EDIT, {"write": "new.txt", "text": "half\n"}, {"signal": "KILL"})
    run = position.runs[0]
    assert (run.ended.exit.status, run.ended.outcome.cls) == ("signalled", "missing")
    assert (repo.worktree("01-develop") / "new.txt").read_text() == "half\n"
    assert {"new.txt", "app.py"} <= repo.files(run.tip).keys()
    assert repo.advance().status == "held"
    assert (repo.worktree("01-develop") / "new.txt").exists()


@pytest.mark.parametrize("point", sampled(["prepare.branch", "prepare.worktree", "prepare.launch"], "prepare.worktree"))
def test_what_a_killed_preparation_left_holds_no_branch(repo: Repo, point: str) -> None:
    """BR-050: the tree was made and nothing says so; it is found by its name and made anew, and the run begins once."""
    repo.script(quick([sh("echo x >> $HOME/begun"), EDIT, done()]))
    begin(repo)
    crashed(repo, point)
    assert repo.advance(once=True).runs[0].is_accepted
    assert (Path.home() / "begun").read_text() == "x\n"
    listed = repo.git("worktree", "list", "--porcelain")
    assert listed.count("branch refs/heads/issueflow/") == 1


def test_a_folder_that_git_has_forgotten_is_taken_in_and_a_fresh_tree_made(repo: Repo) -> None:
    """BR-053: with one changed file, and the entry in `.git/worktrees` removed while its run was being taken in."""
    repo.script(quick([EDIT, {"result": {"verdict": "incomplete"}}], [{"write": "b", "text": "b"}, done()]))
    begin(repo)
    crashed(repo, "step.Collect")
    tree = repo.worktree("01-develop")
    (tree / "mine.txt").write_text("by hand\n")
    shutil.rmtree(repo.path / ".git" / "worktrees" / "01-develop")
    assert repo.cli("resume", "1").returncode == 0
    position = repo.position()
    assert [run.started.stage for run in position.runs] == ["develop", "develop", "verify"]
    assert {"b", "mine.txt", "app.py"} <= repo.files(position.head).keys()
    assert (tree / "mine.txt").read_text() == "by hand\n"
    assert "kept     01-develop  git no longer knows it" in repo.cli("cleanup").stdout


def test_a_forgotten_folder_of_a_run_that_never_began_is_put_aside_by_the_command_of_the_hint(repo: Repo) -> None:
    """BR-053: nothing says whose it is, so nothing is done to it; one command, and the run begins."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    crashed(repo, "prepare.launch")
    tree = repo.worktree("01-develop")
    (tree / "app.py").write_text("by hand\n")
    shutil.rmtree(repo.path / ".git" / "worktrees" / "01-develop")
    stopped = repo.cli("resume", "1")
    assert stopped.returncode == 1
    assert f"{tree} exists and is not a worktree of this run" in stopped.stderr
    hint = stopped.stderr.splitlines()[-1].removeprefix("hint: ")
    subprocess.run(["sh", "-ec", hint], check=True)
    assert repo.advance().stage == "deliver"
    assert tree.with_name("01-develop.aside").joinpath("app.py").read_text() == "by hand\n"


INSIDE = quick([sh("echo x > new; git add new; git commit -qm x || true; echo $? > $HOME/ran"), EDIT, done()])


def test_a_tree_inside_the_checkout_that_lost_its_git_file_is_given_to_nobody(repo: Repo) -> None:
    """BR-054: git would climb to the enclosing repository and every edit would land there."""
    repo.meddled = True  # the worktrees lie in the person's folder
    repo.setup(INSIDE, worktrees={"root": "inside"})
    begin(repo)
    crashed(repo, "prepare.launch")
    before = repo.git("for-each-ref", "refs/heads/main"), (repo.path / ".git" / "index").read_bytes()
    (repo.path / "inside/ISSUE-1/01-develop/.git").unlink()
    stopped = repo.cli("advance", "1")
    assert stopped.returncode == 1
    assert "01-develop exists and is not a worktree of this run" in stopped.stderr
    assert not (Path.home() / "ran").exists()
    assert (repo.git("for-each-ref", "refs/heads/main"), (repo.path / ".git" / "index").read_bytes()) == before


def test_a_tree_that_set_up_took_the_git_file_from_is_given_to_nobody(repo: Repo) -> None:
    """BR-054: after the set-up, before the agent."""
    repo.meddled = True
    repo.setup(INSIDE, worktrees={"root": "inside", "setup": ["rm .git"]})
    begin(repo)
    main = repo.git("rev-parse", "main")
    position = repo.advance()
    assert (position.status, position.hold.cause) == ("held", "setup")
    assert "01-develop/.git is no longer the one issueflow made" in position.hold.reason
    assert not (Path.home() / "ran").exists()
    assert repo.git("rev-parse", "main") == main
    repo.setup(INSIDE, worktrees={"root": "inside"})
    assert repo.advance(replace=True).stage == "deliver"


def test_no_state_is_read_through_a_checkout(repo: Repo) -> None:
    """BR-057: it lies in the git directory and in a ref; worktrees deleted by hand, prunable or gone, hinder nobody."""
    repo.script(quick([EDIT, {"result": {"verdict": "incomplete"}}], [done(no_change="all there")]))
    begin(repo)
    repo.advance(once=True)
    shutil.rmtree(repo.worktree("01-develop").parent)
    assert "prunable" in repo.git("worktree", "list", "--porcelain") or repo.git("worktree", "list")
    listed = repo.cli("status")
    assert (listed.returncode, "ISSUE-1" in listed.stdout) == (0, True)
    assert (
        repo.cli("status", "1").returncode == repo.cli("log", "1").returncode == repo.cli("diff", "1").returncode == 0
    )
    assert repo.advance().stage == "deliver"
    assert repo.cli("cleanup", "1").returncode == 0
    assert "ISSUE-1" not in repo.git("worktree", "list")


def test_what_was_checked_is_named_and_how_far_the_target_has_moved(repo: Repo) -> None:
    """BR-063: five commits on the base between develop and verify; every check has a tree of its own, made for it."""
    stand = "git rev-parse HEAD > $HOME/stood; ls > $HOME/seen"
    repo.setup(quick([EDIT, done()]), checks=[stand])
    begin(repo)
    base = repo.advance(once=True).base
    for number in range(5):
        repo.write(f"theirs-{number}", "x\n")
        repo.commit(f"theirs {number}")
    position = repo.advance()
    assert (Path.home() / "stood").read_text().strip() == position.head == position.runs[0].tip
    assert "theirs" not in (Path.home() / "seen").read_text()
    shown = repo.cli("status", "1").stdout
    assert f"base      {base[:12]} (main)" in shown
    assert "main has 5 commits more by now" in shown
    assert f"base      {position.head[:12]}\n" in repo.cli("show", "1", "checks").stdout
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().status == "delivered"
    assert f"verify           pass by checks, head {position.head[:12]}" in repo.cli("verify", "1").stdout
    assert "main has 5 commits more by now" in repo.cli("status", "1").stdout


# ── state in files ──


def issue_folder(repo: Repo) -> Path:
    return repo.hands.store.issue("ISSUE-1").folder


def test_twenty_commands_at_once_lose_no_word(repo: Repo) -> None:
    """BR-094: who is told that the Issue is busy says it again; who is told that it is done finds it there."""
    begin(repo)

    def say(number: int) -> None:
        while True:
            try:
                return decisions.note(repo.hands, "ISSUE-1", f"number {number}") and None
            except Busy:
                continue

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(say, range(20)))
    notes = [note.text for note in repo.position().notes]
    assert sorted(notes) == sorted(f"number {number}" for number in range(20))
    assert repo.cli("verify", "1").stdout.startswith("✓ journal          as recorded")
    assert from_yaml(issue_folder(repo) / "issue.yaml")["issue"] == "ISSUE-1"


def from_yaml(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


LONG = "printf '%s' \"a\\\\b  two  spaces\tand a tab \\ \" '{{x}}: #no comment' " * 23


def test_a_long_value_is_the_same_after_every_writing(repo: Repo) -> None:
    """BR-096: 1.5 kB with backslashes, tabs and double spaces, as a command and in what is said."""
    assert len(LONG) > 1_400
    repo.setup(quick([{"result": {"verdict": "blocked", "questions": [LONG[:500]]}}], [EDIT, done()]), checks=[LONG])
    begin(repo)
    repo.advance()
    folder, asked = issue_folder(repo), False
    for words in (["note", "1", LONG], ["request-changes", "1", "-m", LONG], ["advance", "1"], ["note", "1", "x"]):
        assert repo.cli(*words).returncode in (0, 4)
        asked = asked or words[0] == "request-changes"
        pinned = from_yaml(folder / "workflow.yaml")["pinned"]
        assert [check["run"] for check in pinned["checks"]] == [LONG]
        assert repo.position().pinned.checks[0].run == LONG
        assert repo.position().notes[0].text == LONG
        claims = [finding["claim"] for finding in from_yaml(folder / "issue.yaml")["open_findings"]]
        assert [claim[:1_000] for claim in claims] == ([LONG[:1_000]] if asked else [])
    assert LONG.strip() in (repo.run_folder("02-develop") / "prompt.md").read_text()
    assert "✓ workflow" in repo.cli("verify", "1").stdout


def test_comments_stay_and_an_edited_state_is_named_saved_and_not_obeyed(repo: Repo) -> None:
    """BR-098, BR-107"""
    for name in ("config.yaml", "workflows/quick.yaml"):
        path = repo.path / ".issueflow" / name
        path.write_text(f"# mine, at the top\n\n\n{path.read_text()}\n\n# between\n\n# blank lines\n")
    repo.script(quick([EDIT, done()]))
    written = {path: path.read_bytes() for path in (repo.path / ".issueflow").rglob("*") if path.is_file()}
    begin(repo)
    state = issue_folder(repo) / "issue.yaml"
    sound = state.read_text()
    edited = "# my remark\n\n" + sound.replace("status: ready", "status: delivered") + "\n\n# and another\n"
    state.write_text(edited)
    assert "ready" in repo.cli("status").stdout
    named = repo.cli("status", "1").stdout
    assert f"{state} was changed by hand; it is not read, and saved beside" in named
    assert "status: ready" in repo.cli("show", "1", "state").stdout
    assert repo.advance().stage == "deliver"
    assert [path.read_text() for path in state.parent.glob("issue.yaml.edited-*")] == [edited]
    assert from_yaml(state)["status"] == "waiting"
    assert "changed by hand" not in repo.cli("status", "1").stdout
    assert {path: path.read_bytes() for path in written} == written


def test_files_with_similar_names_are_no_state(repo: Repo) -> None:
    """BR-100: what editors and people leave in an Issue's directory, and beside it."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    names = ("issue.yaml~", ".issue.yaml.swp", "issue (copy).yaml", "README", "journal.jsonl~", "journal (copy).jsonl")
    for name in names:
        (issue_folder(repo) / name).write_text("status: delivered\n")
    for name in ("ISSUE-1 (copy)", "ISSUE-x", "README", "ISSUE-01"):
        (issue_folder(repo).with_name(name)).mkdir()
    assert repo.cli("status").stdout.count("ISSUE-") == 1
    assert repo.cli("status", "1").returncode == 0
    assert repo.advance().stage == "deliver"
    recorded = repo.git("ls-tree", "--name-only", "refs/issueflow-records/ISSUE-1").splitlines()
    assert not {*names} & {*recorded}
    assert repo.cli("cancel", "1").returncode == 0
    assert repo.cli("cleanup").returncode == 0
    assert repo.position().status == "cancelled"
    assert all((issue_folder(repo) / name).read_text() == "status: delivered\n" for name in names)
    assert begin(repo) == "ISSUE-2"


@pytest.mark.parametrize("point", sampled(["collect.judged", "journal.ended", "rendered.ended"], "journal.ended"))
def test_of_two_records_one_follows_from_the_other(repo: Repo, point: str) -> None:
    """BR-102: the run's says that it succeeded, the Issue's that it runs: a crash between the two."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    crashed(repo, point)
    accepted = json.loads((repo.run_folder("01-develop") / "accepted.json").read_text())
    state = from_yaml(issue_folder(repo) / "issue.yaml")["status"]
    assert (accepted["verdict"], state) == ("done", "ready" if point == "rendered.ended" else "running")
    assert repo.cli("resume", "1").returncode == 0
    position = repo.position()
    assert [run.started.stage for run in position.runs] == ["develop", "verify"]
    assert (position.status, from_yaml(issue_folder(repo) / "issue.yaml")["status"]) == ("waiting", "waiting")
    assert repo.cli("resume", "1").returncode == 0
    assert repo.position() == position
    assert repo.cli("cancel", "1").returncode == 0


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_a_state_file_that_is_empty_or_gone_is_made_again_from_the_journal(repo: Repo, how: str) -> None:
    """BR-104: what is written for people is derived, so its loss damages nothing."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    state = issue_folder(repo) / "issue.yaml"
    state.write_bytes(b"") if how == "emptied" else state.unlink()
    for words in (["status"], ["status", "1"], ["show", "1"], ["show", "1", "state"]):
        shown = repo.cli(*words)
        assert (shown.returncode, "ISSUE-1" in shown.stdout) == (0, True), shown.stderr
    assert how == "removed" or "was changed by hand" in repo.cli("status", "1").stdout
    assert begin(repo) == "ISSUE-2"
    assert repo.advance(once=True).runs[0].is_accepted
    assert from_yaml(state)["issue"] == "ISSUE-1"


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_a_journal_that_is_empty_or_gone_comes_back_from_its_record(repo: Repo, how: str) -> None:
    """BR-104: named with the way back; and without a record, as none, with its number taken."""
    repo.script(quick([EDIT, done()]))
    begin(repo)
    before = repo.advance(once=True)
    journal = issue_folder(repo) / "journal.jsonl"
    journal.write_bytes(b"") if how == "emptied" else journal.unlink()
    if how == "emptied":
        for words in (["status", "1"], ["show", "1"]):
            named = repo.cli(*words)
            assert (named.returncode, "hint: issueflow resume ISSUE-1" in named.stderr) == (1, True)
            assert f"{journal} is empty" in named.stderr
        assert repo.cli("status").returncode == 1
        assert repo.cli("resume", "1", "--dry-run").returncode == 0
    assert begin(repo) == "ISSUE-2"
    assert repo.cli("resume", "1").returncode == 0
    assert repo.position().runs[0] == before.runs[0]
    repo.git("update-ref", "-d", "refs/issueflow-records/ISSUE-1")
    journal.unlink()
    gone = repo.cli("status", "1")
    assert (gone.returncode, gone.stderr) == (2, "error: there is no ISSUE-1 here\nhint: issueflow status\n")
    assert begin(repo) == "ISSUE-3"


@pytest.mark.slow
def test_dead_runs_take_nobody_s_place(repo: Repo) -> None:
    """BR-105: two at a time, two that died, and a third that wants to begin."""
    die = sh("kill -9 $(cut -d' ' -f4 /proc/$PPID/stat) $PPID")
    repo.script(quick([EDIT, die, done()]))
    for issue in (begin(repo), begin(repo)):
        assert repo.cli("advance", issue).returncode == 4
        assert repo.position(issue).hold.cause == "died"
    repo.script(quick([EDIT, done()]))
    third = begin(repo)
    said = repo.cli("advance", "--all", "--jobs", "2", env={})
    assert (repo.position(third).stage, repo.position(third).status) == ("deliver", "waiting"), said.stderr


@pytest.mark.slow
def test_failed_runs_are_history_and_none_is_shown_as_living(repo: Repo) -> None:
    """BR-093: a cleanup takes their trees, a cancelled Issue has no next step, and its history stays."""
    repo.script(quick([sh("exit 1")]))
    issues = [begin(repo) for _ in range(4)]
    for issue in issues:
        assert repo.advance(issue).status == "held"
    assert sum(len(repo.position(issue).runs) for issue in issues) == 12
    assert "12 removed" in repo.cli("cleanup").stderr
    for issue in issues:
        repo.cli("cancel", issue)
    listed = repo.cli("status")
    assert "running" not in listed.stdout and listed.stdout.count("cancelled") == 4
    assert "next:" not in listed.stderr
    assert repo.cli("log", "1").stdout.count(": missing") == 3
    rows = json.loads(repo.cli("status", "--json").stdout)["issues"]
    assert [row["run"] for row in rows] == [None] * 4
    assert repo.cli("cleanup").returncode == 0
    assert repo.git("branch", "--list", "issueflow/*") == ""


# ── the person's folder ──


@pytest.mark.more
def test_nothing_of_ours_lies_in_the_person_s_folder(repo: Repo) -> None:
    """BR-196, BR-200: neither after `new` nor after any step, and the next step is not hindered by the last."""
    repo.script(walk_through())
    repo.commit("script")
    begin(repo, workflow=None)
    for goal in ({"once": True}, {"once": True}, {}):
        repo.advance(**goal)
        assert repo.git("status", "--porcelain", "-uall") == ""
        assert repo.git("add", "-A", "--dry-run") == ""
        assert repo.git("clean", "-ndx") == "Would remove .issueflow/issues"  # a link, for the eye
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().stage == "deliver"
    assert repo.git("status", "--porcelain", "-uall") == repo.git("add", "-A", "--dry-run") == ""


@pytest.mark.parametrize("ignores", [None, b"*.log", b"*.log\r\nbuild"])
def test_no_tracked_file_is_edited_to_hide_ours(repo: Repo, requirement: Path, ignores: bytes | None) -> None:
    """BR-197: without a .gitignore, and with one that lacks its last newline."""
    repo = Repo(repo.path.with_name("bare-minimum"))
    repo.path.mkdir()
    repo.git("init", "-q")
    if ignores is not None:
        repo.write(".gitignore", ignores)
    repo.write("app.py", "print('one')\n")
    repo.commit("first")
    excludes = (repo.path / ".git" / "info" / "exclude").read_bytes()
    assert repo.cli("init", "--agent", "scripted").returncode == 0
    assert repo.cli("new", str(requirement), "--workflow", "quick").returncode == 0
    repo.advance(once=True)
    assert repo.git("diff", "HEAD") == ""
    assert (repo.path / ".git" / "info" / "exclude").read_bytes() == excludes
    new = {line.split("/")[0] for line in repo.git("ls-files", "-o", "--exclude-standard").splitlines()}
    assert new == {".issueflow"}
    assert "issues" not in repo.git("ls-files", "-o", "--exclude-standard")  # by .issueflow/.gitignore


def test_a_stash_is_one_list_for_all_and_what_happens_to_it_is_told(repo: Repo) -> None:
    """BR-198: two runs at a time put aside and take back; the person has an older entry."""
    repo.meddled = True
    repo.write("app.py", "older\n")
    repo.git("stash", "-q")
    older = repo.git("rev-parse", "refs/stash")
    meet = 'touch "$HOME/$ISSUEFLOW_ISSUE"; while ! test -e $HOME/ISSUE-1 -a -e $HOME/ISSUE-2; do sleep 0.02; done'
    juggle = sh(f"{meet}; echo $ISSUEFLOW_ISSUE > app.py; git stash -q; git stash pop -q || true; git stash drop -q")
    repo.script(quick([juggle, {"write": "mine.txt", "text": "x"}, done()]))
    issues = [begin(repo), begin(repo)]
    assert repo.cli("advance", "--all", "--jobs", "2", "--once", env={}).returncode == 0
    told = [note for issue in issues for note in repo.position(issue).runs[0].ended.code.noticed]
    assert [note for note in told if "refs/stash" in note]
    assert "Do not use `git stash`" in (repo.run_folder("01-develop") / "prompt.md").read_text()
    assert repo.git("cat-file", "-t", older) == "commit"
    assert older in repo.git("for-each-ref", "--format=%(objectname)") or older in repo.git(
        "stash", "list", "--format=%H"
    )
