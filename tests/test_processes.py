"""What happens to a run when the processes around it stop, are stopped, or die."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Repo, done, quick

from issueflow.engine import decisions
from issueflow.hosts import processes
from issueflow.models import Life

PLAY = [{"run": ["sh", "-c", 'echo "$ISSUEFLOW_RUN" >> "$BENCH/starts"; touch "$BENCH/begun"']}]
WAIT = {"run": ["sh", "-c", 'while ! test -e "$BENCH/go"; do sleep 0.02; done']}
WROTE = {"write": "half.txt", "text": "half of the work\n"}


@pytest.fixture
def slow(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    """An Issue of `quick` whose developer has written a file, says so by `begun`, and goes on when `go` is there."""
    monkeypatch.setenv("BENCH", str(tmp_path))
    repo.setup(quick([WROTE, *PLAY, WAIT, {"write": "app.py", "text": "print('two')\n"}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    yield repo
    (tmp_path / "go").touch()
    for pid in processes.marked(repo.position().runs[-1].started.mark("ISSUE-1")) if repo.position().runs else []:
        kill(pid)


def until(what: Callable[[], object], limit: float = 20) -> None:
    end = time.monotonic() + limit
    while not what():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.02)


STARTED: list["subprocess.Popen[str]"] = []


@pytest.fixture(autouse=True)
def reaped() -> Iterator[None]:
    """Whatever a test started is waited for, its pipes closed."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.stdout and not process.stdout.closed:
            process.communicate(timeout=60)


def start(repo: Repo, *words: str) -> "subprocess.Popen[str]":
    """The real command, in a session of its own as a terminal gives it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "issueflow", *words],
        cwd=repo.path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def begun(tmp_path: Path) -> Callable[[], bool]:
    return (tmp_path / "begun").exists


def starts(tmp_path: Path) -> list[str]:
    return (tmp_path / "starts").read_text().split()


def mark(repo: Repo) -> str:
    return repo.position().runs[-1].started.mark("ISSUE-1")


def runner_pid(repo: Repo, run: str = "01-develop") -> int:
    return int(json.loads((repo.run_folder(run) / "started.json").read_text())["runner"]["pid"])


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may just have ended
        os.kill(pid, signal.SIGKILL)


def wait_dead(repo: Repo, pid: int) -> None:
    until(lambda: (row := processes.look_up(pid)) is None or row.state == "Z")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, -1), (signal.SIGKILL, -9)])
def test_whatever_ends_advance_the_agent_goes_on_and_advance_picks_it_up(
    slow: Repo, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """BR-016 and a closed terminal."""
    first = start(slow, "advance")
    until(begun(tmp_path))
    os.killpg(first.pid, number)
    _, err = first.communicate(timeout=20)
    assert first.returncode == code
    if number == signal.SIGINT:
        assert "issueflow cancel ISSUE-1 stops it" in err
    assert processes.marked(mark(slow))
    assert "running" in slow.cli("status").stdout
    (tmp_path / "go").touch()
    assert slow.advance().stage == "deliver"
    assert len(starts(tmp_path)) == 1


def test_a_second_advance_follows_the_live_run(slow: Repo, tmp_path: Path) -> None:
    first = start(slow, "advance")
    until(begun(tmp_path))
    second = start(slow, "advance")
    time.sleep(0.5)
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert len(starts(tmp_path)) == 1
    assert [r.started.stage for r in slow.position().runs] == ["develop", "verify"]


def test_cancel_ends_the_agent_with_all_its_descendants(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-084: a background server, a session of its own, a double fork that drops its environment."""
    monkeypatch.setenv("BENCH", str(tmp_path))
    brood = """
        sleep 987 &
        setsid sleep 988 &
        (setsid sh -c 'env -i sleep 989 & echo $! >> "$BENCH/pids"' &)
        trap '' TERM
        touch "$BENCH/begun"
        sleep 990
    """
    repo.setup(quick([WROTE, {"run": ["sh", "-c", brood]}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    first = start(repo, "advance")
    until(begun(tmp_path))
    until((tmp_path / "pids").exists)
    runner = runner_pid(repo)
    brood_pids = processes.descendants(runner)
    assert len(brood_pids) >= 5
    done_ = repo.cli("cancel", "1")
    assert done_.returncode == 0, done_.stderr
    first.wait(20)
    assert not [pid for pid in brood_pids if (row := processes.look_up(pid)) and row.state != "Z"]
    position = repo.position()
    assert position.status == "cancelled"
    assert position.runs[-1].ended.outcome.cls == "stopped"
    assert "half.txt" in repo.files(position.runs[-1].tip)


def test_a_dead_run_asks_and_resume_goes_on_from_what_it_had_written(slow: Repo, tmp_path: Path) -> None:
    first = start(slow, "advance")
    until(begun(tmp_path))
    os.killpg(first.pid, signal.SIGKILL)
    for pid in [runner_pid(slow), *processes.marked(mark(slow))]:
        kill(pid)
        wait_dead(slow, pid)
    until(lambda: not processes.marked(mark(slow)))  # a shell's last `sleep` may outlive it for an instant
    first.communicate()
    assert "interrupted" in slow.cli("status").stdout  # BR-076: read-only status says so
    asked = slow.cli("advance")
    assert asked.returncode == 4
    assert "next: issueflow resume ISSUE-1" in asked.stderr
    position = slow.position()
    assert position.hold.cause == "died"
    assert slow.git("show", f"{position.runs[0].tip}:half.txt") == "half of the work"
    (tmp_path / "go").touch()
    assert slow.advance(replace=True).stage == "deliver"
    position = slow.position()
    assert position.runs[1].started.base == position.runs[0].tip
    assert len(starts(tmp_path)) == len(set(starts(tmp_path))) == 2
    assert slow.advance(replace=True).entries == position.entries  # a further resume changes nothing


def test_a_run_whose_runner_died_is_followed_to_its_end_and_its_result_counts(slow: Repo, tmp_path: Path) -> None:
    first = start(slow, "advance")
    until(begun(tmp_path))
    runner = runner_pid(slow)
    os.kill(runner, signal.SIGKILL)
    wait_dead(slow, runner)
    assert processes.marked(mark(slow)), "the agent goes on without its runner"
    time.sleep(1.5)
    assert first.poll() is None, "it is followed, not written off"
    (tmp_path / "go").touch()
    first.wait(30)
    position = slow.position()
    assert position.runs[0].ended.exit.status == "lost"
    assert position.stage == "deliver"
    assert len(starts(tmp_path)) == 1


def test_a_stopped_runner_is_quiet_and_not_dead(slow: Repo, tmp_path: Path) -> None:
    first = start(slow, "advance")
    until(begun(tmp_path))
    runner = runner_pid(slow)
    os.kill(runner, signal.SIGSTOP)
    (tmp_path / "go").touch()
    until(lambda: (slow.worktree("01-develop") / ".issueflow-run" / "result.json").exists())
    time.sleep(1.2)
    assert first.poll() is None
    assert len(slow.position().runs) == 1
    os.kill(runner, signal.SIGCONT)
    first.wait(30)
    assert slow.position().stage == "deliver"
    assert len(starts(tmp_path)) == 1


def test_a_lock_that_is_not_free_names_its_holder(repo: Repo) -> None:
    repo.new()
    with (repo.hands.store.issue("ISSUE-1").folder / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"pid {os.getpid()} (a test)")
        lock.flush()
        busy = repo.cli("approve", "1")
    assert busy.returncode == 3
    assert f"pid {os.getpid()}" in busy.stderr


def test_eight_that_call_new_at_once_get_eight_numbers(repo: Repo, tmp_path: Path) -> None:
    """BR-044, BR-040."""
    (tmp_path / "r.md").write_text("# Go\n")
    all_ = [start(repo, "new", str(tmp_path / "r.md")) for _ in range(8)]
    names = [process.communicate(timeout=60)[0].strip() for process in all_]
    assert sorted(names) == [f"ISSUE-{n}" for n in range(1, 9)]
    assert len(repo.git("for-each-ref", "refs/issueflow-records").splitlines()) == 8


def test_a_run_cannot_decide_for_a_person(repo: Repo) -> None:
    """A guard against accidents: the mark in the own environment, or in an ancestor's behind `env -i`."""
    call = f"{sys.executable} -m issueflow -C {repo.path} cancel 1"
    repo.script(quick([{"run": ["sh", "-c", f"{call}; env -i {call}"]}, {"write": "a", "text": ""}, done()]))
    repo.commit("script")
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance(once=True)
    err = (repo.run_folder("01-develop") / "stderr.log").read_text()
    assert err.count("cancel is a person's decision") == 2
    assert repo.position().status != "cancelled"


def test_a_process_is_known_by_more_than_its_pid() -> None:
    """BR-087: a reused pid, another boot, a zombie are not taken for the process."""
    child = subprocess.Popen(["sleep", "60"])
    identity = processes.identify(child.pid)
    assert identity is not None
    assert processes.is_alive(identity)
    assert not processes.is_alive(processes.Identity(identity.pid, str(int(identity.start) - 1), identity.boot))
    assert not processes.is_alive(processes.Identity(identity.pid, identity.start, "another boot"))
    child.kill()
    until(lambda: (row := processes.look_up(child.pid)) is not None and row.state == "Z")
    assert not processes.is_alive(identity)
    child.wait()
    assert not processes.is_alive(identity)


def test_a_run_started_by_another_machine_is_never_taken_for_dead(slow: Repo, tmp_path: Path) -> None:
    first = start(slow, "advance")
    until(begun(tmp_path))
    os.killpg(first.pid, signal.SIGKILL)
    for pid in [runner_pid(slow), *processes.marked(mark(slow))]:
        kill(pid)
    path = slow.run_folder("01-develop") / "started.json"
    started = json.loads(path.read_text())
    path.write_text(json.dumps({**started, "machine": "elsewhere", "runner": {**started["runner"], "boot": "other"}}))
    from issueflow.engine.walk import look

    sight = look(slow.hands.store.issue("ISSUE-1"), slow.position())
    assert (sight.runner, sight.agent) == (Life.UNKNOWN, Life.UNKNOWN)
    assert "elsewhere" in sight.detail
    position = slow.advance(replace=True)
    assert position.open_run is not None
    assert decisions.cancel(slow.hands, "ISSUE-1", "").status == "cancelled"
