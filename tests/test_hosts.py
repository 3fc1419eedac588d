"""What every host promises, asked of each in the table alike; and what only a host with a terminal does."""

import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from conftest import Repo, develop, done, quick, sampled, walk_through
from test_processes import (
    PLAY,
    STARTED,
    WAIT,
    WROTE,
    begun,
    kill,
    mark,
    reaped,  # noqa: F401  (a fixture)
    runner_pid,
    sight,
    start,
    starts,
    until,
    wait_dead,
)

from issueflow import hosts
from issueflow.engine import launch
from issueflow.engine.issues import load
from issueflow.errors import IssueflowError
from issueflow.hosts import pane, processes, tmux
from issueflow.models import Config, Life

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
EDIT = {"write": "app.py", "text": "print('two')\n"}


@pytest.fixture(params=[pytest.param(name, marks=[needs_tmux] if name == "tmux" else []) for name in hosts.table()])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Each host by its name; the tmux servers of a test end with it."""
    yield str(request.param)
    end_servers(tmp_path)


@pytest.fixture
def in_tmux(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    """An Issue on the host `tmux` whose developer has begun, and goes on when `go` is there."""
    yield waiting(repo, "tmux", tmp_path, monkeypatch)
    leave(repo, tmp_path)
    end_servers(tmp_path)


@pytest.fixture
def slow(repo: Repo, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repo]:
    """The same on each host."""
    yield waiting(repo, host, tmp_path, monkeypatch)
    leave(repo, tmp_path)


def waiting(repo: Repo, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    monkeypatch.setenv("BENCH", str(tmp_path))
    repo.setup(quick([WROTE, *PLAY, WAIT, EDIT, done()]), host=host)
    repo.new("# Go\n", "--workflow", "quick")
    return repo


def leave(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    for pid in processes.marked(mark(repo)) or [] if repo.position().runs else []:
        kill(pid)


def end_servers(tmp_path: Path) -> None:
    for process in STARTED:
        process.kill()  # it would go on to the next run, and show that
    for common in tmp_path.glob("*/.git"):
        socket = tmux.socket(common / "issueflow/issues/ISSUE-1/runs/01-develop")
        if socket.exists():
            ask(socket, "kill-server")
            socket.unlink(missing_ok=True)


def ask(socket: Path, *words: str) -> str:
    """What tmux answers."""
    done_ = subprocess.run(["tmux", "-S", str(socket), *words], capture_output=True, text=True, check=False)
    return done_.stdout


def sessions(repo: Repo, run: str = "01-develop") -> list[str]:
    return ask(tmux.socket(repo.run_folder(run)), "list-sessions", "-F", "#{session_name}").split()


def begin(repo: Repo, tmp_path: Path) -> "subprocess.Popen[str]":
    """An `advance` whose agent has begun."""
    first = start(repo, "advance")
    until(begun(tmp_path))
    return first


def dies(repo: Repo) -> None:
    """SIGKILL for the runner, its agent and all that the agent started."""
    for pid in [runner_pid(repo), *(processes.marked(mark(repo)) or [])]:
        kill(pid)
        wait_dead(repo, pid)
    until(lambda: not processes.marked(mark(repo)))


# ── what every host promises ──


def test_a_run_that_is_submitted_several_times_starts_once(slow: Repo, host: str, tmp_path: Path) -> None:
    folder = slow.hands.store.issue("ISSUE-1")
    (tmp_path / "go").touch()
    with folder.lock("test"):
        position = launch.start(slow.hands, folder, load(folder))
        assert launch.prepare(slow.hands, folder, position)
    run = slow.run_folder("01-develop")
    calls = [threading.Thread(target=hosts.host(host).submit, args=(run,)) for _ in range(3)]
    for call in calls:
        call.start()
    for call in calls:
        call.join(30)
    hosts.host(host).submit(run)
    assert slow.advance(once=True).runs[0].started.host == host
    hosts.host(host).submit(run)
    assert len(starts(tmp_path)) == 1


@pytest.mark.slow
def test_a_probe_tells_a_run_that_works_from_one_that_ended(slow: Repo, host: str, tmp_path: Path) -> None:
    run, first = slow.run_folder("01-develop"), begin(slow, tmp_path)
    seen = hosts.host(host).probe(run, mark(slow))
    assert (seen.started, seen.exited, seen.runner) == (True, False, Life.ALIVE)
    os.killpg(first.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    until((run / "exit.json").exists)
    until(lambda: hosts.host(host).probe(run, mark(slow)).runner is Life.DEAD)
    assert hosts.host(host).probe(run, mark(slow)).exited


@pytest.mark.slow
def test_a_probe_tells_a_run_that_was_killed_and_resume_goes_on_from_it(slow: Repo, host: str, tmp_path: Path) -> None:
    """BR-015: its work is kept."""
    first = begin(slow, tmp_path)
    os.killpg(first.pid, signal.SIGKILL)
    dies(slow)
    seen = hosts.host(host).probe(slow.run_folder("01-develop"), mark(slow))
    assert (seen.exited, seen.runner, seen.agent) == (False, Life.DEAD, Life.DEAD)
    assert "interrupted" in slow.cli("status").stdout
    assert slow.advance().hold.cause == "died"
    (tmp_path / "go").touch()
    position = slow.advance(replace=True)
    assert position.stage == "deliver"
    assert "half.txt" in slow.files(position.runs[0].tip)
    assert position.runs[1].started.base == position.runs[0].tip


@pytest.mark.slow
def test_cancel_ends_everything_the_agent_started(
    repo: Repo, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-084."""
    monkeypatch.setenv("BENCH", str(tmp_path))
    brood = 'sleep 987 & setsid sleep 988 & (setsid env -i sleep 989 &); trap "" TERM; touch "$BENCH/begun"; sleep 990'
    repo.setup(quick([{"run": ["sh", "-c", brood]}, done()]), host=host)
    repo.new("# Go\n", "--workflow", "quick")
    first = begin(repo, tmp_path)
    below = processes.descendants(runner_pid(repo))
    assert len(below) >= 5
    assert repo.cli("cancel", "1").returncode == 0
    first.wait(20)
    assert not [pid for pid in below if (row := processes.look_up(pid)) and row.state != "Z"]
    assert repo.position().runs[-1].ended.outcome.cls == "stopped"


@pytest.mark.parametrize("number", sampled([signal.SIGINT, signal.SIGHUP, signal.SIGKILL], signal.SIGKILL))
def test_a_run_survives_whoever_submitted_it(slow: Repo, tmp_path: Path, number: signal.Signals) -> None:
    first = begin(slow, tmp_path)
    os.killpg(first.pid, number)
    first.communicate(timeout=20)
    assert processes.marked(mark(slow))
    assert "running" in slow.cli("status").stdout
    (tmp_path / "go").touch()
    assert slow.advance().stage == "deliver"
    assert len(starts(tmp_path)) == 1


def test_an_agent_gets_the_environment_of_whoever_submits_and_no_other(
    repo: Repo, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-081: the second run is submitted by somebody else, while what the first one started is still there."""
    show = "import os; open(os.environ['SHOWN'], 'wb').write(b'\\0'.join(b'='.join(i) for i in os.environb.items()))"
    held = f"touch {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    act = {"run": [sys.executable, "-c", show]}
    repo.setup(quick([act, {"run": ["sh", "-c", held]}, EDIT, done()]), host=host)
    for text in ("# One\n", "# Two\n"):
        repo.new(text, "--workflow", "quick")
    monkeypatch.setenv("SHOWN", str(tmp_path / "one"))
    monkeypatch.setenv("ONLY_FIRST", "a secret of the first")
    first = start(repo, "advance", "1", "--once")
    until(begun(tmp_path))
    monkeypatch.delenv("ONLY_FIRST")
    monkeypatch.setenv("SHOWN", str(tmp_path / "two"))
    monkeypatch.setenv("LINES", "24")  # readline, which pytest loads, sets it behind Python's back
    monkeypatch.setenv("LONG", "x" * 40_000)
    monkeypatch.setenv("ODD", os.fsdecode(b"two\nlines; $(id) #{pid} '\"\\ and \xff"))
    second = start(repo, "advance", "2", "--once")
    until((tmp_path / "two").exists)
    (tmp_path / "go").touch()
    assert (first.wait(30), second.wait(30)) == (0, 0)
    given = dict(item.split("=", 1) for item in os.fsdecode((tmp_path / "two").read_bytes()).split("\0"))
    asked = json.loads((repo.run_folder("01-develop", "ISSUE-2") / "launch.json").read_text())
    wanted = {name: value for name, value in os.environ.items() if name not in asked["drop"]}
    wanted[processes.MINDS] = "ISSUE-2/01-develop/runner"
    assert given == wanted | asked["env"]
    assert b"ONLY_FIRST" in (tmp_path / "one").read_bytes()
    written = [path for path in repo.run_folder("01-develop").parents[1].rglob("*") if path.is_file()]
    assert [path for path in written if b"a secret of the first" in path.read_bytes()] == []


@pytest.mark.slow
def test_all_an_agent_prints_is_in_the_logs(repo: Repo, host: str) -> None:
    flood = "import sys\nfor n in range(200_000): print(n, file=(sys.stdout, sys.stderr)[n % 2])"
    repo.setup(quick([{"run": [sys.executable, "-c", flood]}, EDIT, done()]), host=host)
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance(once=True)
    run = repo.run_folder("01-develop")
    assert (run / "stdout.log").read_text() == "".join(f"{n}\n" for n in range(0, 200_000, 2))
    assert (run / "stderr.log").read_text() == "".join(f"{n}\n" for n in range(1, 200_000, 2))


ODD = ["sh op; touch q", "#{pid} %d #(touch q)", "$(touch q) `touch q` 'ü\"", "a.b:c\n漢", "shop;"]


@pytest.mark.parametrize("name", sampled(ODD))
def test_a_repository_may_have_any_name(make_repo: Callable[..., Repo], host: str, tmp_path: Path, name: str) -> None:
    """BR-080."""
    repo = make_repo(name)
    repo.setup(quick([EDIT, done()]), host=host)
    repo.new("# Go\n", "--workflow", "quick")
    assert repo.advance().stage == "deliver"
    assert not list(tmp_path.rglob("q"))
    assert not (Path("/") / "q").exists()


@pytest.mark.slow
def test_the_agent_stands_in_its_worktree_whatever_the_start_up_files_of_a_shell_say(
    repo: Repo, host: str, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-072: also when the run is resumed."""
    for name in (".profile", ".bash_profile", ".bashrc", ".zshenv", ".tmux.conf"):
        (sealed / name).write_text("cd /\nexit 7\n")
    monkeypatch.setenv("SHELL", shutil.which("bash") or "/bin/sh")
    monkeypatch.setenv("ENV", str(sealed / ".profile"))
    here = {"run": [sys.executable, "-c", "import os; print(os.getcwd())"]}
    repo.setup(quick([here, {"signal": "KILL"}], [here, EDIT, done()]), host=host)
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance(once=True)
    repo.advance(once=True, replace=True)
    said = {name: (repo.run_folder(name) / "stdout.log").read_text().split("\n")[0] for name in runs(repo)}
    assert len(said) == 2
    assert said == {name: str(repo.worktree(name)) for name in said}


def runs(repo: Repo) -> list[str]:
    return [run.started.name for run in repo.position().runs]


@pytest.mark.slow
def test_an_issue_is_walked_to_its_end(repo: Repo, host: str) -> None:
    """Each run is given to the host that the configuration names when it begins."""
    repo.setup(walk_through(), host=host)
    repo.new()
    assert repo.advance().stage == "plan-approval"
    repo.setup({**walk_through(), "develop": [develop(EDIT)]}, host="process")
    assert repo.cli("resume", "--accept", "1").returncode == 0
    assert repo.cli("approve", "1").returncode == 0
    assert repo.advance().stage == "deliver"
    given = [run.started.host for run in repo.position().runs]
    assert given == [host, host, "process", "process", "process"]


# ── what tmux shows ──


@needs_tmux
def test_a_run_goes_on_when_the_tmux_server_is_killed_and_can_be_shown_again(in_tmux: Repo, tmp_path: Path) -> None:
    first = begin(in_tmux, tmp_path)
    until(lambda: sessions(in_tmux) == ["ISSUE-1-01-develop"])
    run = in_tmux.run_folder("01-develop")
    server = int(ask(tmux.socket(run), "display-message", "-p", "#{pid}"))
    kill(server)
    wait_dead(in_tmux, server)
    assert "running" in in_tmux.cli("status").stdout
    assert sight(in_tmux).runner is Life.ALIVE
    tmux.attach(run, take_over=False)
    assert sessions(in_tmux) == ["ISSUE-1-01-develop"]
    ask(tmux.socket(run), "kill-server")
    (tmp_path / "go").touch()
    first.wait(30)
    assert in_tmux.position().stage == "deliver"
    assert len(starts(tmp_path)) == 1
    assert in_tmux.cli("resume").returncode == 0


@pytest.mark.slow
@needs_tmux
def test_a_tmux_server_that_hangs_holds_no_run_up(
    in_tmux: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(in_tmux, tmp_path)
    until(lambda: sessions(in_tmux))
    os.killpg(first.pid, signal.SIGKILL)
    run = in_tmux.run_folder("01-develop")
    server = int(ask(tmux.socket(run), "display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    try:
        monkeypatch.setattr(tmux, "PATIENCE", 0.2)
        (tmp_path / "go").touch()
        assert in_tmux.advance().stage == "deliver"
        with pytest.raises(IssueflowError, match="the tmux server does not answer"):
            tmux.attach(run, take_over=False)
        assert tmux.shown(run) is None
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.mark.slow
@needs_tmux
def test_a_session_with_a_bare_shell_is_no_run(in_tmux: Repo, tmp_path: Path) -> None:
    """BR-075: the agent was killed, its session is left; status tells, and resume starts a run of its own."""
    first = begin(in_tmux, tmp_path)
    socket = tmux.socket(in_tmux.run_folder("01-develop"))
    until(lambda: sessions(in_tmux))
    ask(socket, "new-window", "-d", "-t", "=ISSUE-1-01-develop:")
    os.killpg(first.pid, signal.SIGKILL)
    dies(in_tmux)
    assert sessions(in_tmux) == ["ISSUE-1-01-develop"]
    assert "interrupted" in in_tmux.cli("status").stdout
    found = in_tmux.cli("resume", "1", "--dry-run").stdout.splitlines()
    assert {"ISSUE-1  run 01-develop: dead", "ISSUE-1  tmux session ISSUE-1-01-develop: open"} <= set(found)
    refused = in_tmux.cli("attach", "1")
    assert (refused.returncode, "no run that is alive" in refused.stderr) == (1, True)
    (tmp_path / "go").touch()
    assert in_tmux.advance(replace=True).stage == "deliver"
    assert len(starts(tmp_path)) == 2
    assert "ISSUE-1-01-develop" in sessions(in_tmux), "what a person has opened is left"


@pytest.mark.slow
@needs_tmux
def test_a_session_ends_with_its_run(in_tmux: Repo, tmp_path: Path) -> None:
    """BR-093: also when the run is killed."""
    first = begin(in_tmux, tmp_path)
    until(lambda: sessions(in_tmux))
    os.killpg(first.pid, signal.SIGKILL)
    dies(in_tmux)
    until(lambda: sessions(in_tmux) == [])
    (tmp_path / "go").touch()
    assert in_tmux.advance(replace=True).stage == "deliver"
    until(lambda: sessions(in_tmux) == [])


@pytest.mark.slow
@needs_tmux
def test_a_session_is_known_by_its_whole_name(in_tmux: Repo, tmp_path: Path) -> None:
    """BR-079: tmux takes the beginning of a name for the name."""
    begin(in_tmux, tmp_path)
    until(lambda: sessions(in_tmux))
    run = in_tmux.run_folder("01-develop")
    assert tmux._is_there(run, tmux.session(run))
    assert not tmux._is_there(run, "ISSUE-1-01-dev")
    assert not tmux._is_there(run, "ISSUE-1")


@pytest.mark.slow
@needs_tmux
def test_a_session_is_found_whatever_the_repository_is_called(
    make_repo: Callable[..., Repo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-080: tmux changes dots and colons in the names it is given."""
    repo = waiting(make_repo("a.b: c漢"), "tmux", tmp_path, monkeypatch)
    begin(repo, tmp_path)
    until(lambda: sessions(repo))
    argv = tmux.attach(repo.run_folder("01-develop"), take_over=True)
    assert [f"={name}" for name in sessions(repo)] == [argv[argv.index("-t") + 1]]
    assert argv[-1] == str(repo.worktree("01-develop"))
    leave(repo, tmp_path)
    end_servers(tmp_path)


@pytest.mark.slow
@needs_tmux
def test_nothing_of_who_starts_the_server_stays_in_it(
    in_tmux: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "a secret of the first")
    begin(in_tmux, tmp_path)
    until(lambda: sessions(in_tmux))
    socket = tmux.socket(in_tmux.run_folder("01-develop"))
    server = int(ask(socket, "display-message", "-p", "#{pid}"))
    shown = ask(socket, "show-environment", "-g") + ask(socket, "show-environment", "-t", "=ISSUE-1-01-develop")
    names = {row.split("=")[0] for row in shown.splitlines()}
    assert names <= {"PATH", "HOME", "LC_ALL", "PWD", "TMUX", "TMUX_PANE"}
    assert b"A_TOKEN" not in Path(f"/proc/{server}/environ").read_bytes()
    assert os.readlink(f"/proc/{server}/cwd") == "/", "it keeps nobody's folder"
    wanted = {"status": "off", "set-clipboard": "off", "default-shell": "/bin/sh"}
    assert {name: ask(socket, "show-options", "-gv", name).strip() for name in wanted} == wanted
    assert (socket.parent.stat().st_mode & 0o777, socket.parent.stat().st_uid) == (0o700, os.getuid())


def terminal(repo: Repo, *words: str) -> tuple[int, "subprocess.Popen[bytes]"]:
    """The command on a terminal of its own, inside another tmux as it seems."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 90, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "issueflow", *words],
        cwd=repo.path,
        env={**os.environ, "TERM": "xterm", "TMUX": "/tmp/other,1,0"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    return ours, process


def shown(handle: int, wanted: bytes, limit: float = 20) -> bytes:
    """What comes on a terminal, up to `wanted`."""
    seen, end = b"", time.monotonic() + limit
    while wanted not in seen:
        assert time.monotonic() < end, seen
        if select.select([handle], [], [], 0.1)[0]:
            seen += os.read(handle, 65536)
    return seen


def press(handle: int, *keys: bytes) -> None:
    """As fingers do: what comes faster than a key in a millisecond is taken for a paste, which means nothing."""
    for key in keys:
        time.sleep(0.05)
        os.write(handle, key)


@needs_tmux
def test_attach_shows_what_the_agent_prints_and_leaves_it_running(
    in_tmux: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = [*PLAY, {"say": "hello\x1b[31m from the agent\u009b"}, {"say": "and this", "to": "stderr"}, WAIT]
    in_tmux.script(quick([*spoken, EDIT, done()]))
    in_tmux.commit("script")
    first = begin(in_tmux, tmp_path)
    handle, client = terminal(in_tmux, "attach", "1")
    try:
        seen = shown(handle, b"and this")
        wide = ask(tmux.socket(in_tmux.run_folder("01-develop")), "list-windows", "-a", "-F", "#{window_width}")
        assert wide == "90\n", "as wide as the terminal"
        assert b"hello\\x1b[31m from the agent" in seen, "shown, not obeyed"
        press(handle, b"\x03", b"\x02", b"d")
        shown(handle, b"[detached")
        assert client.wait(20) == 0
    finally:
        os.close(handle)
        client.kill()
        client.wait()
    assert sessions(in_tmux) == ["ISSUE-1-01-develop"], "Ctrl-C did not reach the pane"
    (tmp_path / "go").touch()
    first.wait(30)
    assert in_tmux.position().stage == "deliver"


@pytest.mark.slow
@needs_tmux
def test_who_takes_over_may_open_a_shell_in_the_worktree_and_end_the_pane(
    in_tmux: Repo, tmp_path: Path, sealed: Path
) -> None:
    first = begin(in_tmux, tmp_path)
    socket = tmux.socket(in_tmux.run_folder("01-develop"))
    handle, client = terminal(in_tmux, "attach", "1", "--take-over")
    try:
        shown(handle, b"leaves it running")
        press(handle, b"\x02", b"c")
        press(handle, b'pwd > "$HOME/where"; exit\n')
        until(lambda: (sealed / "where").exists() and (sealed / "where").read_text().endswith("\n"))
        assert (sealed / "where").read_text().strip() == str(in_tmux.worktree("01-develop"))
        until(lambda: ask(socket, "list-windows", "-t", "=ISSUE-1-01-develop").count("\n") == 1)
        press(handle, b"\x03")
        shown(handle, b"[exited]")
        assert client.wait(20) == 0
    finally:
        os.close(handle)
        client.kill()
        client.wait()
    assert sessions(in_tmux) == []
    assert "running" in in_tmux.cli("status").stdout
    (tmp_path / "go").touch()
    first.wait(30)
    assert in_tmux.position().stage == "deliver"


@pytest.mark.slow
def test_what_cannot_be_attached_to_is_said(slow: Repo, host: str, tmp_path: Path) -> None:
    idle = slow.cli("attach", "1")
    assert (idle.returncode, idle.stderr.splitlines()[-1]) == (1, "hint: issueflow status ISSUE-1")
    begin(slow, tmp_path)
    told = slow.cli("attach", "1", stdin=subprocess.DEVNULL)
    assert (told.returncode, told.stderr.splitlines()[-1]) == (1, "hint: issueflow logs ISSUE-1 -f")
    assert ("on the host process, which has no terminal" if host == "process" else "needs a terminal") in told.stderr
    inside = slow.cli("attach", "1", env={processes.MARK: mark(slow)})
    assert (inside.returncode, "attach is a person's decision" in inside.stderr) == (1, True)


def test_without_tmux_no_run_is_given_to_it(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.setup(host="tmux")
    repo.new()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(shutil.which("git") or "git")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    told = repo.cli("advance", "1")
    assert told.returncode == 1
    assert told.stderr.splitlines() == [
        "error: the host tmux needs the program tmux, which is not on PATH; without it, set `host: process`",
        "hint: git grep -n host: -- :/.issueflow/config.yaml",
    ]
    assert repo.position().runs == ()
    monkeypatch.setenv("PATH", path)
    repo.setup(host="process")
    assert repo.advance().stage == "plan-approval"


@pytest.mark.slow
@needs_tmux
def test_a_folder_for_sockets_that_others_can_reach_is_not_used_and_the_run_goes_on(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmux, "ROOM", tmp_path)
    home = tmp_path / f"issueflow-{os.getuid()}"
    home.mkdir()
    home.chmod(0o755)
    repo.setup(quick([EDIT, done()]), host="tmux")
    repo.new("# Go\n", "--workflow", "quick")
    assert repo.advance().stage == "deliver"
    with pytest.raises(IssueflowError, match="not a folder that is yours alone"):
        tmux.attach(repo.run_folder("01-develop"), take_over=False)
    home.rmdir()
    home.symlink_to(tmp_path / "home")
    with pytest.raises(IssueflowError, match="not a folder that is yours alone"):
        tmux.socket(repo.run_folder("01-develop"))


def test_the_configuration_knows_every_host_and_no_other(repo: Repo) -> None:
    assert set(get_args(Config.model_fields["host"].annotation)) == set(hosts.table())
    repo.setup(host="moon")
    told = repo.cli("new", "-", input="# Go\n")
    assert (told.returncode, "host: Input should be 'process' or 'tmux'" in told.stderr) == (2, True)


def test_a_host_of_a_later_version_is_named(repo: Repo) -> None:
    with pytest.raises(IssueflowError, match="the host moon, which this issueflow does not know"):
        hosts.host("moon")


def test_a_pane_shows_the_end_of_what_it_has_missed(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A hundred megabytes are not read to show a screen of them."""
    folder = tmp_path / "ISSUE-1" / "runs" / "01-develop"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_bytes(b"x" * 5_000_000 + b"\nthe end\x07\n")
    (folder / "exit.json").write_text("{}")
    assert pane.main(folder) == 0
    said = capfdbinary.readouterr().out
    assert said.startswith(b"ISSUE-1 01-develop")
    assert said.endswith(b"\nthe end\\x07\n")
    assert len(said) < 300_000
