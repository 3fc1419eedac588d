"""A repository moved or copied: its Issues go on where it stands now, and a copy touches nothing of the original."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import Repo, done, quick

from issueflow.engine import decisions

EDIT = {"write": "app.py", "text": "print('two')\n"}


def everything(folder: Path) -> dict[str, bytes]:
    return {os.fspath(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()}


@pytest.fixture
def held(repo: Repo) -> Repo:
    """An Issue whose developer left a file uncommitted and was killed before it had handed in a result."""
    dying = [{"write": "left.txt", "text": "kept\n"}, {"run": ["sh", "-c", "kill -9 $PPID"]}]
    repo.script(quick([EDIT, {"result": {"verdict": "incomplete"}}], dying, [done(no_change="all is there")]))
    repo.commit()
    repo.new("# Do it\n", "--workflow", "quick")
    return repo


@pytest.mark.parametrize("together", [False, True], ids=["the repository alone", "with its worktrees"])
def test_a_moved_repository_goes_on_and_knows_its_worktrees(held: Repo, tmp_path: Path, together: bool) -> None:
    """BR-058."""
    held.advance(once=True)
    target = tmp_path / "elsewhere"
    target.mkdir()
    held.path.rename(target / "shop")
    if together:
        (tmp_path / "shop.issueflow").rename(target / "shop.issueflow")
    here = Repo(target / "shop")
    assert "ISSUE-1" in here.cli("status").stdout
    assert here.cli("resume", "1").returncode in (0, 4)
    for _ in range(3):
        if here.position().status != "waiting":
            here.cli("resume", "1")
    decisions.approve(here.hands, "ISSUE-1", "")
    assert here.advance().status == "delivered"
    tree = (target if together else tmp_path) / "shop.issueflow" / "ISSUE-1" / "01-develop"
    assert here.git("status", "--porcelain", cwd=tree) == ""
    shown = here.cli("cleanup")
    assert shown.returncode == 0
    assert "kept" not in shown.stdout, shown.stdout
    assert not tree.exists()
    assert here.git("worktree", "list", "--porcelain").count("worktree ") == 1


@pytest.mark.more
def test_a_copy_leaves_the_worktrees_of_the_original_alone(held: Repo, tmp_path: Path) -> None:
    held.advance(once=True)
    shutil.copytree(held.path, tmp_path / "copy", symlinks=True)
    copy = Repo(tmp_path / "copy")
    before = everything(tmp_path / "shop.issueflow") | everything(held.path / ".git")
    for words in (["status"], ["cleanup"], ["resume", "1"], ["verify", "1"], ["cancel", "1"], ["cleanup"]):
        copy.cli(*words)
    assert everything(tmp_path / "shop.issueflow") | everything(held.path / ".git") == before
    assert held.advance().status in ("held", "waiting")


@pytest.mark.more
def test_a_copy_made_while_a_run_is_open_asks_and_names_the_original(held: Repo, tmp_path: Path) -> None:
    crash = {"ISSUEFLOW_CRASH": f"prepare.launch#1@{tmp_path}/passed"}
    assert held.cli("advance", "1", env=crash).returncode == -9
    shutil.copytree(held.path, tmp_path / "copy", symlinks=True)
    copy = Repo(tmp_path / "copy")
    before = everything(tmp_path / "shop.issueflow") | everything(held.path / ".git")
    said = copy.cli("advance", "1")
    named = f"its worktree belongs to the repository at {held.path}, a copy or another clone of this one"
    assert named in said.stdout
    copy.cli("resume", "1")
    assert everything(tmp_path / "shop.issueflow") | everything(held.path / ".git") == before
    assert held.cli("resume", "1").returncode in (0, 4)


def test_cleanup_alone_finds_the_worktrees_of_a_moved_repository(repo: Repo, tmp_path: Path) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    repo.advance()
    repo.path.rename(tmp_path / "elsewhere")
    here = Repo(tmp_path / "elsewhere")
    assert "removed  01-develop" in here.cli("cleanup", "1").stdout
    assert not (tmp_path / "shop.issueflow" / "ISSUE-1" / "01-develop").exists()
