"""An Issue goes on in another clone: stages, verdicts and approvals come along, and nothing is ever overwritten."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PAIR, Repo, approve, done, quick

from issueflow.engine import decisions

EDIT = {"write": "app.py", "text": "print('two')\n"}


@pytest.fixture
def clones(make_repo: Callable[..., Repo], tmp_path: Path) -> tuple[Repo, Repo]:
    """Two clones of one bare repository."""
    first = make_repo("first")
    first.setup({"develop": [[EDIT, done()]], "review": [[approve()]]}, checks=[])
    first.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    first.commit()
    server = tmp_path / "server.git"
    first.git("clone", "-q", "--bare", os.fspath(first.path), os.fspath(server))
    first.git("remote", "add", "origin", os.fspath(server))
    second = Repo(tmp_path / "second")
    first.git("clone", "-q", os.fspath(server), os.fspath(second.path))
    return first, second


def test_an_issue_goes_on_in_another_clone(clones: tuple[Repo, Repo]) -> None:
    first, second = clones
    first.new("# Do it\n", "--workflow", "pair")
    first.advance(until="review")
    pushed = first.cli("push")
    assert (pushed.returncode, pushed.stdout) == (0, "ISSUE-1: pushed\n"), pushed.stderr
    assert second.cli("fetch").stdout == "ISSUE-1: fetched\n"
    assert "review" in second.cli("status").stdout
    position = second.advance()
    assert position.status == "waiting"
    assert [run.started.stage for run in position.runs] == ["develop", "review"]
    decisions.approve(second.hands, "ISSUE-1", "")
    assert second.advance().status == "delivered"
    assert second.cli("verify", "1").returncode == 0
    second.cli("cleanup")
    assert first.worktree("01-develop").is_dir()  # its worktree is the other clone's
    assert second.cli("push").returncode == 0
    assert first.cli("fetch").stdout == "ISSUE-1: fetched\n"
    assert first.position().status == "delivered"
    assert first.cli("verify", "1").returncode == 0
    assert "approve by" in first.cli("log", "1").stdout
    assert first.git("rev-parse", "issueflow/ISSUE-1/delivered") == position.head
    assert first.cli("fetch").stderr == "nothing new\n"
    assert first.cli("push").stderr == "nothing new\n"


def test_documents_of_later_rounds_come_along(clones: tuple[Repo, Repo]) -> None:
    first, second = clones
    first.new("# Do it\n", "--workflow", "pair")
    first.cli("push")
    second.cli("fetch")
    amended = first.path.parent / "r4.md"
    amended.write_text("# Do more\n")
    assert first.cli("amend", "1", os.fspath(amended)).returncode == 0
    first.cli("push")
    second.cli("fetch")
    assert second.cli("show", "1", "requirement").stdout == "# Do more\n"


def test_plain_git_carries_an_issue_too(clones: tuple[Repo, Repo]) -> None:
    first, second = clones
    first.new("# Do it\n", "--workflow", "pair")
    first.advance()
    specs = [f"{space}/*:{space}/*" for space in ("refs/issueflow-records", "refs/heads/issueflow")]
    first.git("push", "-q", "origin", *specs)
    second.git("fetch", "-q", "origin", *specs)
    assert "waiting for you" in second.cli("status").stdout
    assert second.cli("approve", "1").returncode == 0


def test_clones_that_went_different_ways_are_named_and_nothing_is_overwritten(clones: tuple[Repo, Repo]) -> None:
    first, second = clones
    first.new("# Do it\n", "--workflow", "pair")
    first.cli("push")
    second.cli("fetch")
    decisions.note(first.hands, "ISSUE-1", "here")
    decisions.note(second.hands, "ISSUE-1", "there")
    assert first.cli("push").returncode == 0
    before = second.git("for-each-ref")
    for verb in ("push", "fetch"):
        refused = second.cli(verb)
        assert refused.returncode == 1
        assert "refs/issueflow-records/ISSUE-1 at origin and here went different ways" in refused.stderr
    assert second.git("for-each-ref") == before
    assert [note.text for note in second.position().notes] == ["there"]


def test_a_run_that_is_open_in_another_clone_is_left_to_it(clones: tuple[Repo, Repo], tmp_path: Path) -> None:
    first, second = clones
    first.script(quick([{"sleep": 30}, done()]))
    first.new("# Do it\n", "--workflow", "quick")
    env = {"ISSUEFLOW_CRASH": f"submitted#1@{tmp_path}/passed"}
    assert first.cli("advance", "1", env=env).returncode == -9
    first.cli("push")
    second.cli("fetch")
    said = second.cli("advance", "1")
    assert said.returncode == 4
    assert f"its worktree belongs to the repository at {first.path}, a copy or another clone" in said.stdout
    assert "next: issueflow retry ISSUE-1 --reason TEXT" in said.stderr
    first.cli("cancel", "1")


def test_a_base_that_did_not_come_along_is_named(clones: tuple[Repo, Repo]) -> None:
    first, second = clones
    first.write("local.txt", "only here")
    base = first.commit()
    first.new("# Do it\n", "--workflow", "pair")
    first.cli("push")
    second.cli("fetch")
    refused = second.cli("advance", "1")
    assert refused.returncode == 1
    assert f"the commit {base[:12]} that ISSUE-1 goes on from is not in this repository" in refused.stderr


def test_a_remote_that_is_none_is_refused(repo: Repo) -> None:
    refused = repo.cli("push", "nowhere")
    assert refused.returncode == 1
    assert "there is no remote nowhere" in refused.stderr
    assert "hint: git remote -v" in refused.stderr
