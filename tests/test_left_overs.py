"""What a killed process leaves behind goes with the next command; what the disk refuses is told with its path."""

import errno
import fcntl
import os
import resource
import shutil
from pathlib import Path

import pytest
from conftest import Repo, done, quick

from issueflow.engine import decisions
from issueflow.git import refs
from issueflow.hosts import process
from issueflow.models import Noted

ONE_RUN = quick([{"write": "a.txt", "text": "a"}, done()])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refs, "LOCK_AGE", 0.1)
    monkeypatch.setattr(refs, "PACKING_AGE", 0.1)


@pytest.fixture
def begun(repo: Repo) -> Repo:
    repo.setup(ONE_RUN)
    repo.new("# Go\n", "--workflow", "quick")
    return repo


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lock", ["refs/issueflow-records/ISSUE-1.lock", "packed-refs.lock"])
def test_a_lock_file_that_a_killed_git_left_stops_nothing(begun: Repo, lock: str) -> None:
    (begun.path / ".git" / lock).touch()
    assert begun.advance().stage == "deliver"
    assert not (begun.path / ".git" / lock).exists()


@pytest.mark.usefixtures("impatient")
def test_the_lock_file_of_a_deletion_that_was_killed_after_the_deed_goes_too(begun: Repo) -> None:
    position = begun.advance()
    (begun.run_folder("02-verify") / "tidy.json").unlink()
    (begun.path / ".git" / "packed-refs.lock").touch()
    assert begun.advance() == position
    assert not (begun.path / ".git" / "packed-refs.lock").exists()


@pytest.mark.parametrize("back", [None, "/elsewhere/02-verify/.git\n"], ids=["half removed", "another's by now"])
def test_git_s_entry_for_a_removed_worktree_stops_nothing(begun: Repo, back: str | None) -> None:
    position = begun.advance()
    (begun.run_folder("02-verify") / "tidy.json").unlink()
    entry = begun.path / ".git" / "worktrees" / "02-verify"
    entry.mkdir()
    if back:
        (entry / "gitdir").write_text(back)
    assert begun.advance() == position
    assert entry.exists() == bool(back)


def test_git_s_entry_of_a_killed_worktree_add_goes_when_the_run_is_prepared(begun: Repo) -> None:
    """With `--lock --reason` git marks it by the reason, not by `initializing`."""
    entry = begun.path / ".git" / "worktrees" / "01-develop"
    entry.mkdir(parents=True)
    (entry / "locked").write_text("issueflow ISSUE-1 01-develop\n")
    begun.advance(until="verify")
    assert [path.name for path in entry.parent.iterdir()] == ["01-develop"]


def test_a_lock_file_that_changes_hands_is_somebody_s_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "x.lock"
    lock.touch()
    monkeypatch.setattr(refs.time, "sleep", lambda seconds: lock.write_text("another git's"))
    assert refs._outwait(lock, 60)
    assert lock.read_text() == "another git's"


def test_lock_files_in_a_run_s_private_git_directory_stop_nothing(begun: Repo) -> None:
    begun.advance(until="verify")
    (begun.run_folder("01-develop") / "git" / "index.lock").touch()
    assert begun.cli("cleanup", "1").returncode == 0
    assert not begun.worktree("01-develop").exists()


def test_lock_files_of_the_agent_s_killed_git_go_with_the_run(begun: Repo) -> None:
    branch = '"$(git rev-parse --git-common-dir)/$(git symbolic-ref HEAD).lock"'
    leave = f'touch "$(git rev-parse --git-dir)/index.lock" {branch}'
    begun.script(quick([{"write": "a.txt", "text": "a"}, {"run": ["sh", "-c", leave]}, done()]))
    assert begun.advance().stage == "deliver"
    left = [path for path in (begun.path / ".git").rglob("*.lock") if path.name != "alive.lock"]
    assert left == []


def test_the_half_made_folder_of_a_killed_new_is_removed_and_a_living_one_s_is_not(begun: Repo) -> None:
    hidden = begun.path / ".git" / "issueflow" / "new"
    for name in ("1-1", "2-2"):
        (hidden / name / "ISSUE-2").mkdir(parents=True)
        (hidden / name / "ISSUE-2" / "requirement.v1.md").write_text("x")
    handle = os.open(hidden / "2-2", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        assert begun.new() == "ISSUE-2"
        assert [path.name for path in hidden.iterdir()] == ["2-2"]
    finally:
        os.close(handle)
    begun.cli("note", "1", "hello")
    assert list(hidden.iterdir()) == []


def test_temporary_files_are_removed_but_for_those_a_living_run_is_about_to_publish(begun: Repo) -> None:
    """The runner holds no lock of the Issue: whoever steps it meanwhile must not take `exit.json` out of its hands."""
    folder = begun.hands.store.issue("ISSUE-1")
    begun.advance(until="verify")
    closed = folder.run("01-develop") / ".exit.json.1.tmp"
    living = folder.run("02-verify") / ".exit.json.2.tmp"
    index = begun.path / ".git" / "issueflow" / ".index.json.3.tmp"
    living.parent.mkdir()
    for path in (closed, living, index, folder.folder / ".issue.yaml.4.tmp"):
        path.touch()
    folder.sweep("02-verify")
    assert list(folder.folder.rglob(".*.tmp")) == [living]
    begun.cli("note", "1", "hello")
    assert list((begun.path / ".git" / "issueflow").rglob(".*.tmp")) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds its runner by /proc")
@pytest.mark.more
def test_checks_whose_runner_was_killed_run_again_on_resume(repo: Repo) -> None:
    die_once = 'test -e "$HOME/once" || { touch "$HOME/once"; kill -9 $(cut -d" " -f4 /proc/$PPID/stat) $PPID; }'
    repo.setup(ONE_RUN, checks=[die_once])
    repo.new("# Go\n", "--workflow", "quick")
    assert repo.advance().status == "held"
    position = repo.advance(replace=True)
    assert (position.stage, [bool(run.dropped) for run in position.runs]) == ("deliver", [False, True, False])


# ── what the disk refuses ──


def test_an_entry_that_only_fits_in_part_is_an_error_and_no_entry(begun: Repo) -> None:
    """A write(2) on a filling disk takes what fits and reports no error; the next one does."""
    folder = begun.hands.store.issue("ISSUE-1")
    before = folder.journal.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            folder.append(lambda **head: Noted(**head, by="Pat", text="x" * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == os.fspath(folder.journal)
    assert len(folder.entries()) == 1
    folder.append(lambda **head: Noted(**head, by="Pat", text="y"))
    assert folder.journal.read_bytes().startswith(before)
    assert len(folder.entries()) == 2


def test_what_the_disk_refuses_is_told_with_its_path(begun: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    said = begun.cli("note", "1", "hello")
    monkeypatch.undo()
    journal = begun.path / ".git" / "issueflow" / "issues" / "ISSUE-1" / "journal.jsonl"
    assert (said.returncode, said.stderr) == (1, f"error: {journal}: No space left on device\nhint: df -h\n")


def test_a_folder_that_cannot_be_deleted_stops_no_issue_and_cleanup_names_it_whole(
    begun: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """shutil.rmtree names what it could not remove by its name in its folder only."""
    begun.advance()
    decisions.approve(begun.hands, "ISSUE-1", "")
    assert begun.advance().status == "delivered"

    def refuse(path: object, **how: object) -> None:
        if how.get("ignore_errors"):
            return
        raise OSError(errno.EIO, os.strerror(errno.EIO), ".gitignore")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    said = begun.cli("cleanup", "1")
    assert said.returncode == 1
    assert f"Input/output error: '{begun.path}/.git/issueflow/trash/" in said.stdout


def test_a_runner_that_cannot_work_is_not_started_for_ever(
    begun: Repo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its disk is full where ours is not, its Python is broken: it is told, and the run is as before its start."""
    broken = tmp_path / "runner.py"
    broken.write_text("raise OSError(28, 'No space left on device', 'started.json')\n")
    monkeypatch.setattr(process.runner, "__file__", os.fspath(broken))
    said = begun.cli("advance", "1")
    log = begun.run_folder("01-develop") / "runner.log"
    assert said.returncode == 1
    assert "ends before it has started the agent: OSError: [Errno 28] No space left on device" in said.stderr
    assert said.stderr.endswith(f"hint: cat {log}\n")
    monkeypatch.undo()
    assert begun.advance().stage == "deliver"


def test_an_agent_whose_log_cannot_be_made_can_print_what_it_likes(repo: Repo) -> None:
    """Its output is drained all the same: a full pipe would stop it until its time limit."""
    log = repo.path / ".git" / "issueflow" / "issues" / "ISSUE-1" / "runs" / "01-develop" / "stdout.log"
    script = quick([{"write": "a.txt", "text": "a"}, {"say": "x" * 200_000}, done()])
    repo.setup(script, worktrees={"setup": [f"ln -sfn /nowhere/at/all {log}"], "copy": [], "link": []})
    repo.new("# Go\n", "--workflow", "quick")
    assert repo.advance(until="verify").stage == "verify"


def test_the_temporary_file_of_a_photograph_that_the_disk_refused_goes(begun: Repo) -> None:
    left = begun.path / ".git" / "issueflow" / "open" / ".ISSUE-1.01-develop.json.1a2b3c4d.tmp"
    left.parent.mkdir(exist_ok=True)
    left.touch()
    begun.advance()
    assert not left.exists()
