"""What happens to a run when the processes around it stop, are stopped, or die."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Repo, done, quick

from issueflow.engine import decisions
from issueflow.engine.sight import look
from issueflow.hosts import processes, runner
from issueflow.models import Life, Sight

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


def test_what_a_screen_shows_says_nothing_about_a_run(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-091: a prompt sign while it works, and words of success; state is told from processes and records alone."""
    monkeypatch.setenv("BENCH", str(tmp_path))
    screen = [{"say": "done. idle, waiting for input\n❯ "}, {"say": "\x1b[2J\x1b[H$ ", "to": "stderr"}]
    repo.setup(quick([*screen, *PLAY, WAIT, *screen, WROTE, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    first = start(repo, "advance")
    until(begun(tmp_path))
    until(lambda: (repo.run_folder("01-develop") / "stdout.log").stat().st_size)
    for words in (["status"], ["status", "1"]):
        assert "running" in repo.cli(*words).stdout
    [row] = json.loads(repo.cli("status", "--json").stdout)["issues"]
    assert (row["status"], row["run"]["state"]) == ("running", "running")
    for pid in [runner_pid(repo), *processes.marked(mark(repo))]:
        kill(pid)
    until(lambda: not processes.marked(mark(repo)))
    first.wait(30)
    assert repo.position().hold.cause == "died", "and neither is a dead one alive for its last screen"
    (tmp_path / "go").touch()


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


@pytest.mark.more
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


@pytest.mark.more
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


@pytest.mark.more
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
    from issueflow.engine.sight import look

    sight = look(slow.hands.store.issue("ISSUE-1"), slow.position())
    assert (sight.runner, sight.agent) == (Life.UNKNOWN, Life.UNKNOWN)
    assert "elsewhere" in sight.detail
    position = slow.advance(replace=True)
    assert position.open_run is not None
    assert decisions.cancel(slow.hands, "ISSUE-1", "").status == "cancelled"


# ── who lives, seen with /proc and without ──


@pytest.fixture(params=["proc", "ps"])
def seen_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Processes are looked at through /proc, or as on macOS through ps and lsof."""
    if request.param == "ps":
        without_proc(monkeypatch)
    return str(request.param)


def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUEFLOW_NO_PROC", "1")
    monkeypatch.setattr(processes, "HAS_PROC", False)


def interrupted(repo: Repo, tmp_path: Path, *, agent: bool = True) -> None:
    """Kill advance and runner of the run that has begun, and its agent too unless told otherwise."""
    first = start(repo, "advance")
    until(begun(tmp_path))
    os.killpg(first.pid, signal.SIGKILL)
    for pid in [runner_pid(repo), *(processes.marked(mark(repo)) or [] if agent else [])]:
        kill(pid)
        wait_dead(repo, pid)
    if agent:
        until(lambda: not processes.marked(mark(repo)))


def sight(repo: Repo) -> Sight:
    seen = look(repo.hands.store.issue("ISSUE-1"), repo.position())
    assert seen is not None
    return seen


def test_identity_marks_groups_and_folders_are_seen(seen_by: str, tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    env = {**os.environ, processes.MARK: "ISSUE-1/01-develop/abc"}
    child = subprocess.Popen(["sleep", "60"], cwd=folder, env=env, start_new_session=True)
    until(lambda: processes.marked("ISSUE-1/01-develop/abc"))
    identity = processes.identify(child.pid)
    assert identity is not None
    assert processes.is_alive(identity)
    assert processes.is_alive(processes.Identity(identity.pid, identity.start, processes.UNKNOWN_BOOT))
    assert not processes.is_alive(identity._replace(start="another start"))
    assert not processes.is_alive(identity._replace(boot="another boot"))
    assert processes.marked("ISSUE-1/01-develop/abc") == processes.group(identity) == [child.pid]
    assert processes.marked("ISSUE-1/01-develop/ab") == processes.group(identity._replace(start="another start")) == []
    assert processes.inside(folder) == [child.pid]
    assert processes.run_of(child.pid) == "ISSUE-1/01-develop/abc"
    child.kill()
    until(lambda: (row := processes.look_up(child.pid)) is None or row.state == "Z")
    seen = [processes.is_alive(identity), *(processes.marked("ISSUE-1/01-develop/abc") or [])]
    assert seen == [False], "a zombie is dead"
    assert processes.group(identity) == processes.inside(folder) == []
    child.wait()
    assert processes.is_alive(identity) is False


def test_a_group_outlives_its_leader() -> None:
    shell = subprocess.Popen(["sh", "-c", "env -i sleep 60 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    identity = processes.identify(shell.pid)
    assert identity is not None
    assert shell.stdout is not None
    left = int(shell.stdout.readline())
    shell.stdout.close()
    shell.wait()
    assert processes.group(identity) == [left]
    kill(left)
    until(lambda: processes.group(identity) == [])


def test_where_no_process_is_shown_none_is_taken_for_dead(
    slow: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No /proc, and ps and lsof missing or forbidden: a question, not a second agent; a person can answer it."""
    interrupted(slow, tmp_path)
    without_proc(monkeypatch)
    path = os.environ["PATH"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    me = processes.Identity(os.getpid(), "0", processes.boot_id())
    assert processes.is_alive(me) is processes.marked("x") is processes.group(me) is processes.inside(tmp_path) is None
    assert (sight(slow).runner, sight(slow).agent) == (Life.DEAD, Life.UNKNOWN)
    entries = slow.position().entries
    assert slow.advance(replace=True).entries == entries
    assert "cannot tell whether it runs" in slow.cli("status").stdout
    decisions.retry(slow.hands, "ISSUE-1", "I have looked: it is gone")
    position = slow.position()
    assert position.runs[0].dropped is not None
    assert "half.txt" in slow.files(position.runs[0].tip)
    kept = slow.cli("cleanup").stdout
    assert "kept     01-develop  this system does not show whether a process works in it" in kept
    monkeypatch.setenv("PATH", path)
    (tmp_path / "go").touch()
    assert slow.advance().stage == "deliver"
    assert len(starts(tmp_path)) == 2


@pytest.mark.more
def test_a_run_is_followed_and_taken_for_dead_alike(slow: Repo, tmp_path: Path, seen_by: str) -> None:
    interrupted(slow, tmp_path, agent=False)
    assert (sight(slow).runner, sight(slow).agent) == (Life.DEAD, Life.ALIVE)
    assert "running" in slow.cli("status").stdout
    for pid in processes.marked(mark(slow)) or []:
        kill(pid)
    until(lambda: sight(slow).agent is Life.DEAD)
    assert "interrupted" in slow.cli("status").stdout
    assert slow.advance().hold.cause == "died"
    assert len(starts(tmp_path)) == 1
    (tmp_path / "go").touch()
    assert slow.advance(replace=True).stage == "deliver"


def test_an_agent_with_an_environment_of_its_own_is_known_without_its_runner(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = f"touch {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    agents = {"scripted": {"type": "command", "argv": ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", work]}}
    repo.setup(agents=agents)
    repo.new("# Go\n", "--workflow", "quick")
    interrupted(repo, tmp_path, agent=False)
    assert processes.marked(mark(repo)) == []
    assert sight(repo).agent is Life.ALIVE
    assert "running" in repo.cli("status").stdout
    decisions.cancel(repo.hands, "ISSUE-1", "")
    assert repo.advance().status == "cancelled", "and it can be ended"
    assert repo.position().open_run is None


def test_a_run_of_another_container_is_never_taken_for_dead(slow: Repo, tmp_path: Path) -> None:
    interrupted(slow, tmp_path)
    path = slow.run_folder("01-develop") / "started.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "space": "pid:[1]"}))
    assert (sight(slow).runner, sight(slow).agent) == (Life.UNKNOWN, Life.UNKNOWN)
    assert "cannot tell whether it runs: it was started in another container" in slow.cli("status").stdout
    assert slow.cli("resume").returncode == 4  # a question to a person
    assert len(slow.position().runs) == 1
    assert slow.cli("retry", "--reason", "that container is gone").returncode == 0
    (tmp_path / "go").touch()
    assert slow.advance().stage == "deliver"


@pytest.mark.parametrize("years", [-10, 10])
def test_neither_hours_of_silence_nor_the_clock_make_a_run_dead(
    slow: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    first = start(slow, "advance")
    until(begun(tmp_path))
    run = slow.run_folder("01-develop")
    for path in (run / "started.json", run / "stdout.log", run / "stderr.log"):
        os.utime(path, (time.time() - 9 * 3600,) * 2)
    assert re.search(r"running (9h|8h|5\d\dm).*quiet", slow.cli("status").stdout)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + years * 365 * 86400)
    assert "running" in slow.cli("status").stdout
    assert sight(slow).runner is Life.ALIVE
    (tmp_path / "go").touch()
    assert slow.advance().stage == "deliver"
    first.wait(30)
    assert len(starts(tmp_path)) == 1


BROOD = {
    "background": "sleep 600 & echo $!",
    "setsid": "setsid sh -c 'echo $$; exec sleep 600' &",
    "no environment": "env -i setsid sh -c 'echo $$; exec sleep 600' &",
    "python session": f'{sys.executable} -c "import subprocess as s; '
    "print(s.Popen(['sleep', '600'], start_new_session=True).pid)\"",
    "double fork": f"{sys.executable} -c 'import os, time; os.fork() and os._exit(0); os.setsid(); "
    "os.fork() and os._exit(0); print(os.getpid(), flush=True); os.closerange(0, 256); time.sleep(600)'",
    "nohup": "nohup sleep 600 >/dev/null 2>&1 & echo $!",
    "tmux": "tmux -L issueflow-$$ -f /dev/null new-session -d 'sleep 600'; tmux -L issueflow-$$ display -p '#{pid}'",
}


def test_daemons_that_an_agent_leaves_end_with_its_run(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen_by: str
) -> None:
    """Without /proc an orphan leaves its runner's family, so one that drops the run's mark as well is lost sight of."""
    monkeypatch.setenv("BENCH", str(tmp_path))
    kinds = [kind for kind in BROOD if kind != "tmux" or shutil.which("tmux")]
    if seen_by == "ps":
        kinds.remove("no environment")
    script = "\n".join(f'({BROOD[kind]}) >> "$BENCH/pids.{number}"' for number, kind in enumerate(kinds))
    script += f'\nwhile test "$(cat "$BENCH"/pids.* | wc -l)" -lt {len(kinds)}; do sleep 0.02; done'
    repo.setup(quick([WROTE, {"run": ["sh", "-c", script]}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance(once=True)
    left = {kind: int((tmp_path / f"pids.{number}").read_text()) for number, kind in enumerate(kinds)}
    assert {kind: pid for kind, pid in left.items() if (row := processes.look_up(pid)) and row.state != "Z"} == {}
    exit_ = json.loads((repo.run_folder("01-develop") / "exit.json").read_text())
    assert exit_["left_over"] >= len(kinds)
    assert repo.position().stage == "verify"


def test_a_process_that_cannot_be_ended_does_not_keep_a_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's `sudo` daemon is another user's; here nothing is signalled at all."""
    child = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(processes, "end", lambda pids: None)
    assert runner._end_tree(child.pid, "none") == 0
    child.kill()
    child.wait()
