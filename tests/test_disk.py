"""A disk that is really full: what was asked is refused in one sentence, nothing is lost, and it goes on with room."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Repo, done, quick

from issueflow.errors import FULL

EDIT = {"write": "app.py", "text": "print('two')\n"}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB; skipped where none can be mounted."""
    disk = tmp_path / "small"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no disk can be mounted here: only root may")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path, room: int = 0) -> Path:
    """Fill the disk up to `room` bytes; the file to delete for room."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        if room:
            file.truncate(max(0, file.tell() - room))
    return ballast


def full(repo: Repo, *words: str) -> None:
    """The command is refused in one sentence that names the reason, with a hint."""
    said = repo.cli(*words)
    assert said.returncode == 1, said.stdout + said.stderr
    assert any(words in said.stderr for words in FULL)
    assert "hint: df -h" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("room", [0, 8_192, 20_480, 40_960])
def test_a_full_disk_under_the_repository(
    make_repo: Callable[..., Repo], small: Path, tmp_path: Path, room: int
) -> None:
    made = make_repo("small/shop")
    made.setup(quick([EDIT, done()]), worktrees={"root": os.fspath(tmp_path / "trees")})
    requirement = tmp_path / "r.md"
    requirement.write_text("# Do it\n" + "word " * 4000)
    ballast = fill(small, room)
    full(made, "new", os.fspath(requirement), "--workflow", "quick")
    ballast.unlink()
    assert made.cli("status").stderr.startswith("no Issues here yet")
    assert made.cli("new", os.fspath(requirement), "--workflow", "quick").returncode == 0
    ballast = fill(small, room)
    full(made, "advance", "1")
    assert "ISSUE-1" in made.cli("status").stdout
    ballast.unlink()
    assert made.cli("resume", "1").returncode == 0
    assert made.position().status == "waiting"
    assert made.git("fsck", "--full", "--no-dangling") == ""


def test_a_full_disk_under_the_worktrees(make_repo: Callable[..., Repo], small: Path) -> None:
    repo = make_repo()
    repo.write("big.bin", os.urandom(2 << 20))
    repo.setup(quick([EDIT, done()]), worktrees={"root": os.fspath(small / "trees")})
    repo.new("# Do it\n", "--workflow", "quick")
    ballast = fill(small, 1 << 20)
    full(repo, "advance", "1")
    assert not repo.git("worktree", "list", "--porcelain").count("01-develop")
    assert list((small / "trees").rglob("*")) == [small / "trees" / "ISSUE-1"]
    ballast.unlink()
    assert repo.cli("resume", "1").returncode == 0
    position = repo.position()
    assert position.status == "waiting"
    assert [run.started.stage for run in position.runs] == ["develop", "verify"]


def test_where_a_worktree_does_not_fit_the_others_are_named_with_their_size(
    make_repo: Callable[..., Repo], small: Path
) -> None:
    """BR-106: git gives the half-made tree back and leaves the branch; the next attempt takes both as they are."""
    repo = make_repo()
    repo.write("big.bin", os.urandom(5 << 20))
    repo.setup(quick([EDIT, done()]), worktrees={"root": os.fspath(small / "trees")})
    for _ in range(2):
        repo.new("# Do it\n", "--workflow", "quick")
    repo.advance("ISSUE-1", until="verify")
    said = repo.cli("advance", "2")
    assert said.returncode == 1
    assert f"there is not enough space for a worktree in {small}/trees" in said.stderr
    assert "those that are there take 5 MiB\nhint: issueflow cleanup --dry-run\n" in said.stderr
    assert list((small / "trees" / "ISSUE-2").iterdir()) == []
    assert "02-develop" not in repo.git("worktree", "list")
    assert "ISSUE-2" in repo.cli("status").stdout
    assert repo.cli("cleanup", "1").returncode == 0
    assert repo.advance("ISSUE-2", until="verify").stage == "verify"
