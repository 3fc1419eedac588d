"""Cleanup removes what is proven to be kept elsewhere, and says of everything else why it stays."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Repo, approve, done, quick, walk_through

from issueflow.engine import cleanup, decisions, launch
from issueflow.git import worktrees

IGNORING = {"write": ".gitignore", "text": "*.env\n*.db\nbuild/\n__pycache__/\n"}


@pytest.fixture
def finished(repo: Repo) -> Repo:
    """An Issue of `quick`, delivered; its develop worktree still lies there."""
    repo.setup(quick([IGNORING, {"write": "app.py", "text": "print('two')\n"}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().status == "delivered"
    return repo


def clean(repo: Repo, *, dry_run: bool = False) -> list[cleanup.Finding]:
    return list(cleanup.clean(repo.hands, repo.hands.store.issue("ISSUE-1"), dry_run=dry_run))


def test_a_worktree_whose_work_is_committed_goes_and_its_branch_stays(finished: Repo) -> None:
    tree, tip = finished.worktree("01-develop"), finished.git("rev-parse", "issueflow/ISSUE-1/01-develop")
    assert tree.is_dir()
    out = finished.cli("cleanup")
    assert out.returncode == 0
    assert f"removed  01-develop  (branch issueflow/ISSUE-1/01-develop stays at {tip[:12]})" in out.stdout
    assert not tree.exists()
    assert finished.git("rev-parse", "issueflow/ISSUE-1/01-develop") == tip
    assert len(finished.git("worktree", "list").splitlines()) == 1
    assert not list((finished.path / ".git/issueflow/trash").iterdir())
    assert "nothing to clean up" in finished.cli("cleanup").stderr


def test_a_dry_run_says_the_same_and_changes_nothing(finished: Repo) -> None:
    (finished.worktree("01-develop") / "scratch.txt").write_text("x")
    said = clean(finished, dry_run=True)
    assert said == clean(finished)
    assert finished.worktree("01-develop").is_dir()


def edit(repo: Repo, tree: Path) -> None:
    (tree / "app.py").write_text("print('edited')\n")


def scratch(repo: Repo, tree: Path) -> None:
    (tree / "scratch.txt").write_text("an idea\n")


def ignored(repo: Repo, tree: Path) -> None:
    (tree / "local.env").write_text("KEY=1\n")


def hidden_by_exclude(repo: Repo, tree: Path) -> None:
    (tree / "notes.txt").write_text("x\n")
    (repo.path / ".git" / "info" / "exclude").write_text("notes.txt\n")


def assume_unchanged(repo: Repo, tree: Path) -> None:
    repo.git("update-index", "--assume-unchanged", "app.py", cwd=tree)
    (tree / "app.py").write_text("print('hidden')\n")


def detached(repo: Repo, tree: Path) -> None:
    repo.git("checkout", "-q", "--detach", cwd=tree)
    repo.git("commit", "-q", "--allow-empty", "-m", "on no branch", cwd=tree)


def amended(repo: Repo, tree: Path) -> None:
    repo.git("commit", "-q", "--allow-empty", "-m", "first try", cwd=tree)
    repo.git("reset", "-q", "--hard", "HEAD~1", cwd=tree)


def merging(repo: Repo, tree: Path) -> None:
    (repo.path / ".git" / "worktrees" / "01-develop" / "MERGE_HEAD").write_text(repo.git("rev-parse", "HEAD") + "\n")


def nested(repo: Repo, tree: Path) -> None:
    (tree / "inner").mkdir()
    repo.git("init", "-q", cwd=tree / "inner")
    repo.git("commit", "-q", "--allow-empty", "-m", "inner", cwd=tree / "inner")
    (tree / "inner" / "file").write_text("x")


def pipe(repo: Repo, tree: Path) -> None:
    os.mkfifo(tree / "pipe")


def replaced_git_file(repo: Repo, tree: Path) -> None:
    (tree / ".git").unlink()
    repo.git("init", "-q", cwd=tree)


def output(repo: Repo, tree: Path) -> None:
    (tree / ".issueflow-run" / "extra.md").write_text("nobody took this in\n")


AT_RISK = [
    (edit, "1 file changed and not committed: app.py"),
    (scratch, "1 file changed and not committed: scratch.txt"),
    (ignored, "1 ignored file: local.env"),
    (hidden_by_exclude, "notes.txt"),
    (assume_unchanged, "1 file changed and not committed: app.py"),
    (detached, "is on no branch"),
    (amended, "is on no branch"),
    (merging, "an unfinished merge"),
    (nested, "inner/"),
    (pipe, "pipe (not a file)"),
    (replaced_git_file, "no longer the one issueflow made"),
    (output, ".issueflow-run/extra.md"),
]


@pytest.mark.parametrize(("harm", "reason"), AT_RISK, ids=[harm.__name__ for harm, _ in AT_RISK])
def test_what_is_kept_nowhere_else_stays_with_its_reason(
    finished: Repo, harm: Callable[[Repo, Path], None], reason: str
) -> None:
    """BR-002, BR-006, BR-008, BR-020, BR-061: each is named, and a command that shows it is given."""
    tree = finished.worktree("01-develop")
    harm(finished, tree)
    before = sorted(str(p) for p in tree.rglob("*"))
    out = finished.cli("cleanup")
    assert reason in out.stdout
    assert "kept     01-develop" in out.stdout
    assert "hint: " in out.stderr
    assert sorted(str(p) for p in tree.rglob("*")) == before


def test_rebuildable_caches_do_not_keep_a_worktree(finished: Repo) -> None:
    cache = finished.worktree("01-develop") / "pkg" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "x.pyc").write_bytes(b"x")
    assert [finding.kept for finding in clean(finished)] == [()]
    assert not cache.exists()


def test_links_are_removed_and_their_targets_stay(finished: Repo, tmp_path: Path) -> None:
    """BR-013."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").write_text("x")
    tree = finished.worktree("01-develop")
    (tree / "node_modules").symlink_to(data)
    kept = clean(finished)[0].kept
    assert (data / "precious").read_text() == "x"
    assert kept == () or "node_modules" in kept[0].why


def test_a_process_in_the_tree_keeps_it(finished: Repo) -> None:
    """BR-010."""
    import subprocess

    sleeper = subprocess.Popen(["sleep", "60"], cwd=finished.worktree("01-develop"))
    try:
        assert f"pid {sleeper.pid}" in clean(finished)[0].kept[0].why
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_person_s_worktrees_are_not_touched(finished: Repo, tmp_path: Path) -> None:
    """BR-018, BR-190, BR-202: own worktree under our prefix, an absent one, the main checkout through a link."""
    finished.git("worktree", "add", "-q", "-b", "issueflow/mine", str(tmp_path / "mine"))
    finished.git("worktree", "add", "-q", "-b", "absent", str(tmp_path / "absent"))
    shutil.rmtree(tmp_path / "absent")
    (tmp_path / "link").symlink_to(finished.path)
    assert finished.cli("cleanup", cwd=tmp_path / "link").returncode == 0
    listed = finished.git("worktree", "list", "--porcelain")
    assert str(tmp_path / "mine") in listed
    assert str(tmp_path / "absent") in listed
    assert (finished.path / "app.py").exists()


def test_counts_are_honest(finished: Repo) -> None:
    """BR-023: one removed, one gone before, one kept."""
    finished.script(walk_through() | {"code-review": [[approve()]]})
    shutil.rmtree(finished.worktree("01-develop"))
    out = finished.cli("cleanup")
    assert "gone     01-develop" in out.stdout
    assert "1 already gone" in out.stderr
    assert "01-develop" not in finished.git("worktree", "list")


def test_the_recorded_path_is_used_whatever_the_configuration_says_now(finished: Repo, tmp_path: Path) -> None:
    """BR-028."""
    config = finished.path / ".issueflow" / "config.yaml"
    elsewhere = json.loads(config.read_text()) | {"worktrees": {"root": str(tmp_path / "elsewhere")}}
    config.write_text(json.dumps(elsewhere))
    assert clean(finished)[0].path == finished.worktree("01-develop")
    assert not finished.worktree("01-develop").exists()


def test_reading_runs_leave_no_worktree_and_no_branch(repo: Repo) -> None:
    repo.new()
    repo.advance()
    assert len(repo.git("worktree", "list").splitlines()) == 1
    assert not repo.git("branch", "--list", "issueflow/*")


def test_a_removal_that_was_killed_half_way_is_finished(repo: Repo) -> None:
    repo.new()
    repo.advance()
    left = repo.path / ".git" / "issueflow" / "trash" / "123-01-analysis" / "folder"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    aside = repo.worktree(".01-analysis.gone")
    aside.mkdir(parents=True)
    repo.advance()
    assert not left.parent.exists()
    assert not aside.exists()


def test_the_entry_of_a_worktree_that_git_forgot_may_be_given_to_another_run(repo: Repo) -> None:
    """git names its entry after the folder, and every Issue has a folder called 01-develop."""
    repo.setup(quick([{"write": "app.py", "text": "print(2)\n"}, done()]))
    for name in ("ISSUE-1", "ISSUE-2"):
        repo.new("# Go\n", "--workflow", "quick")
        repo.advance(name)
        if name == "ISSUE-1":
            first = repo.worktree("01-develop")
            repo.git("worktree", "unlock", str(first))
            shutil.rmtree(first)
            repo.git("worktree", "prune")
    places = [launch.place_of(repo.run_folder("01-develop", name)) for name in ("ISSUE-1", "ISSUE-2")]
    assert places[0].admin == places[1].admin
    index = (places[1].admin / "index").read_bytes()
    assert [worktrees.is_registered(place) for place in places] == [False, True]
    assert "nothing to clean up" in repo.cli("cleanup", "1").stderr
    worktrees.forget(repo.hands.repository, places[0])
    assert (places[1].admin / "index").read_bytes() == index
    assert "01-develop" in repo.cli("cleanup", "2").stdout
    assert not places[1].path.exists()
