"""`advance --detach`: the same walk without anybody in front of it, at most one for an Issue."""

import re
import time
from pathlib import Path

import pytest
from conftest import Repo
from test_processes import (
    begun,
    kill,
    mark,
    reaped,  # noqa: F401  (a fixture)
    slow,  # noqa: F401  (a fixture)
    start,
    starts,
    until,
    wait_dead,
)

from issueflow.hosts import processes


def detach(repo: Repo, *words: str) -> int:
    """The pid that is named."""
    done = repo.cli("advance", "1", "--detach", *words, cwd=repo.path)
    assert done.returncode == 0, done.stderr
    named = re.fullmatch(r"ISSUE-1: advanced (already, )?by pid (\d+)\n", done.stdout)
    assert named, done.stdout
    return int(named[2])


def is_over(pid: int) -> bool:
    row = processes.look_up(pid)
    return row is None or row.state == "Z"


def test_a_detached_advance_walks_on_and_says_so_in_its_log(slow: Repo, tmp_path: Path) -> None:  # noqa: F811
    pid = detach(slow)
    until(begun(tmp_path))
    assert detach(slow) == pid, "a second one is not started"
    assert "running" in slow.cli("status").stdout
    (tmp_path / "go").touch()
    until(lambda: is_over(pid))
    assert slow.position().stage == "deliver"
    assert len(starts(tmp_path)) == 1
    log = slow.hands.store.issue("ISSUE-1").folder / "advance.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert "▸ ISSUE-1 develop" in log.read_text()
    assert "ISSUE-1 deliver: waiting for you" in log.read_text()
    assert "advance" not in slow.git("ls-tree", "-r", "--name-only", "refs/issueflow-records/ISSUE-1")


@pytest.mark.more
def test_the_death_of_a_detached_advance_is_a_crash_like_any_other(slow: Repo, tmp_path: Path) -> None:  # noqa: F811
    pid = detach(slow)
    until(begun(tmp_path))
    kill(pid)
    wait_dead(slow, pid)
    assert processes.marked(mark(slow)), "the run goes on"
    other = detach(slow)
    assert other != pid
    first = start(slow, "advance")  # beside one that a person watches
    time.sleep(0.3)
    (tmp_path / "go").touch()
    assert first.wait(30) == 0
    until(lambda: is_over(other))
    assert slow.position().stage == "deliver"
    assert len(starts(tmp_path)) == 1


def test_a_detached_advance_is_of_no_terminal_and_goes_as_far_as_it_is_told(repo: Repo) -> None:
    repo.new()
    pid = detach(repo, "--until", "plan-review")
    row = processes.look_up(pid)
    assert row is None or row.group == pid, "a session of its own: no Ctrl-C and no closed terminal reaches it"
    until(lambda: is_over(pid))
    position = repo.position()
    assert (position.stage, position.status) == ("plan-review", "ready")


@pytest.mark.parametrize("more", [["--all"], ["-i"], ["--dry-run"], ["--exit-code"], ["2"]])
def test_what_does_not_go_with_detach_is_said(repo: Repo, more: list[str]) -> None:
    repo.new()
    done = repo.cli("advance", "1", "--detach", *more)
    assert (done.returncode, "--detach takes one Issue" in done.stderr) == (2, True)
    assert repo.cli("advance", "1", "--detach", "--until", "nowhere").returncode == 2
    assert repo.position().runs == ()
