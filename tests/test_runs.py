"""One run from its worktree to its end: where it works, what it may do, what it hands in, how it is ended."""

import json
import os
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIR, Repo, approve, done, plan, quick, reject, walk_through

from issueflow.engine import decisions, launch
from issueflow.engine.begin import create
from issueflow.machine import Position, Run

Act = dict[str, Any]
EDIT = {"write": "app.py", "text": "print('two')\n"}
RUN = ".issueflow-run"


def sh(script: str) -> Act:
    return {"run": ["sh", "-c", script]}


def py(code: str) -> Act:
    return {"run": [sys.executable, "-c", code]}


def begin(repo: Repo, workflow: str = "quick") -> str:
    return create(repo.hands, b"# Do it\n", "Do it", "r3.md", workflow, None)


def play(repo: Repo, *acts: Act, workflow: str = "quick", stage: str = "develop") -> Run:
    """The first run of a new Issue, which plays `acts` and nothing else."""
    repo.script({stage: [list(acts)]})
    return repo.advance(begin(repo, workflow), once=True).runs[-1]


def errors(run: Run) -> str:
    return "; ".join(run.ended.outcome.errors)


# ── where a run works ──


def test_a_run_works_beside_the_repository_on_a_branch_of_its_own(repo: Repo) -> None:
    run = play(repo, EDIT, done())
    tree = Path(run.started.worktree)
    assert tree == repo.path.parent / "shop.issueflow" / "ISSUE-1" / "01-develop"
    assert not tree.is_relative_to(repo.path)
    assert repo.git("symbolic-ref", "HEAD", cwd=tree) == "refs/heads/issueflow/ISSUE-1/01-develop"
    listing = repo.git("worktree", "list", "--porcelain").split("\n\n")
    assert "locked issueflow ISSUE-1 01-develop" in next(entry for entry in listing if str(tree) in entry).splitlines()
    assert repo.git("status", "--porcelain", "--ignored", cwd=tree) == f"!! {RUN}/"


def test_worktrees_go_where_the_configuration_says_and_the_path_is_recorded(repo: Repo, tmp_path: Path) -> None:
    repo.setup(quick([{"result": {"verdict": "incomplete"}}]), worktrees={"root": "~/trees"})
    begin(repo)
    first = repo.advance(once=True).runs[-1]
    assert Path(first.started.worktree) == tmp_path / "home" / "trees" / "ISSUE-1" / "01-develop"
    repo.setup(quick([done()]), worktrees={"root": "../elsewhere"})
    second = repo.advance(once=True).runs[-1]
    assert Path(second.started.worktree).resolve() == tmp_path / "elsewhere" / "ISSUE-1" / "02-develop"
    assert Path(first.started.worktree).is_dir()


def test_a_worktree_that_lost_its_git_file_does_not_reach_the_person_s_checkout(repo: Repo) -> None:
    """Nested, git would climb up and `reset --hard` would wipe the person's work."""
    repo.write("app.py", "the person's, not committed\n")
    index = (repo.path / ".git" / "index").read_bytes()
    play(repo, sh("rm .git; git reset -q --hard; git add -A; git commit -qm x"), done())
    assert (repo.path / "app.py").read_text() == "the person's, not committed\n"
    assert (repo.path / ".git" / "index").read_bytes() == index
    assert "not a git repository" in (repo.run_folder("01-develop") / "stderr.log").read_text()


def test_copied_and_linked_files_are_there_and_are_nobody_s_work(repo: Repo) -> None:
    repo.write(".gitignore", ".env\n/data\n")
    repo.commit("ignore")
    repo.write(".env", "KEY=1\n")
    repo.write("data/big", "rows\n")
    repo.write("conf/local/x.yaml", "x\n")
    prepare = {"copy": [".env", "conf/local", "not-there"], "link": ["data", "nor-this"]}
    repo.setup(quick(), worktrees=prepare)
    repo.git("rm", "-rq", "--cached", "conf")
    repo.git("commit", "-qm", "conf is local")
    run = play(repo, sh("cat .env data/big conf/local/x.yaml > seen; echo KEY=2 > .env"), done())
    tree = Path(run.started.worktree)
    assert (tree / "seen").read_text() == "KEY=1\nrows\nx\n"
    assert (tree / "data").readlink() == repo.path / "data"
    assert (repo.path / ".env").read_text() == "KEY=1\n"
    assert repo.git("diff", "--name-only", run.started.base, run.tip) == "seen"


# ── reviewers may only read ──

TOUCH = {
    "an edit": [EDIT],
    "a new file": [{"write": "new.py", "text": ""}],
    "both, committed": [EDIT, {"write": "new.py", "text": ""}, {"commit": "helpful"}],
    "a deletion": [{"delete": "app.py"}],
    "a mode change": [sh("chmod +x app.py")],
    "an empty commit": [sh("git commit -q --allow-empty -m looked")],
    "its branch moved": [sh("git commit -q --allow-empty -m x; git reset -q --hard HEAD~2")],
}


def reviewed(repo: Repo, *plays: list[Act]) -> Position:
    """An Issue whose developer has written `app.py` and whose reviews play `plays`, one after the other."""
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    work = [{"write": "app.py", "text": "print('reviewed')\n"}, done()]
    repo.script({"develop": [work], "review": list(plays)})
    return repo.advance(begin(repo, "pair"))


@pytest.mark.parametrize("acts", TOUCH.values(), ids=TOUCH)
def test_a_reviewer_that_changes_something_is_void_and_a_person_is_asked(repo: Repo, acts: list[Act]) -> None:
    """BR-136: the reviewed commit stays what it was, and what the reviewer did is kept apart."""
    position = reviewed(repo, [*acts, approve()])
    written, review = position.runs
    assert review.ended.outcome.cls == "violation"
    assert (position.status, position.hold.cause) == ("held", "violation")
    assert position.head == written.tip == review.started.base
    assert repo.git("rev-parse", "issueflow/ISSUE-1/01-develop") == written.tip
    assert repo.git("show", f"{written.tip}:app.py") == "print('reviewed')"
    assert Path(review.started.worktree).is_dir()
    assert repo.cli("advance", "1").returncode == 4
    assert "02-review" in repo.cli("status", "1").stdout


def test_after_a_violation_the_review_is_made_again_at_the_same_commit(repo: Repo) -> None:
    position = reviewed(repo, [EDIT, approve()], [approve()])
    decisions.retry(repo.hands, "ISSUE-1", "it was told to read only")
    position = repo.advance()
    assert position.stage == "deliver"
    assert position.runs[2].started.base == position.runs[0].tip
    assert repo.git("show", f"{position.head}:app.py") == "print('reviewed')"


@pytest.mark.parametrize("act", [approve(), reject()], ids=["approve", "request_changes"])
def test_a_reviewer_that_only_reads_leaves_neither_worktree_nor_branch(repo: Repo, act: Act) -> None:
    position = reviewed(repo, [sh("cat app.py; git log -1; mkdir -p __pycache__; echo x > __pycache__/a.pyc"), act])
    review = position.runs[1]
    assert review.ended.outcome.cls == "accepted"
    assert not Path(review.started.worktree).exists()
    assert repo.git("for-each-ref", "refs/heads/issueflow/ISSUE-1/02-review") == ""


def test_an_analyst_that_changes_code_is_void(repo: Repo) -> None:
    run = play(repo, EDIT, *plan(), workflow="default", stage="analysis")
    assert run.ended.outcome.cls == "violation"
    assert repo.position().head == repo.position().base
    assert repo.position().current("plan.md") is None


def test_what_a_check_writes_never_becomes_part_of_the_work(repo: Repo) -> None:
    repo.setup(quick([EDIT, done()]), checks=["echo report > coverage.txt; echo spoiled > app.py"])
    begin(repo)
    position = repo.advance()
    assert position.runs[1].started.stage == "verify"
    assert position.head == position.runs[0].tip
    assert "coverage.txt" not in repo.files(position.head)
    assert repo.git("show", f"{position.head}:app.py") == "print('two')"


# ── what is handed in ──

SECRET = "the person's secret"
RESULTS = {
    "a link": (sh(f"echo '{{}}' > $HOME/r.json; ln -s $HOME/r.json {RUN}/result.json"), "link"),
    "a link to nowhere": (sh(f"ln -s /nowhere {RUN}/result.json"), "link"),
    "a pipe": (sh(f"mkfifo {RUN}/result.json"), "not a regular file"),
    "a folder": (sh(f"mkdir {RUN}/result.json"), "irectory"),
    "300 kB": (py(f"open('{RUN}/result.json', 'w').write('{{\"a\": \"' + 'x' * 300_000 + '\"}}')"), "more than 262144"),
    "an exchange folder that is a link": (sh(f"mv {RUN} $HOME/moved; ln -s $HOME/moved {RUN}"), "irectory"),
}


@pytest.mark.parametrize(("act", "reason"), RESULTS.values(), ids=RESULTS)
def test_a_result_that_is_no_plain_small_file_is_refused_with_the_reason(repo: Repo, act: Act, reason: str) -> None:
    """No link is followed, no pipe waited for, nothing huge is read."""
    later = [] if "link" not in reason and "irectory" not in reason else [{**done(), "channel": "output"}]
    if reason == "irectory":
        later = [sh(f"echo '{{}}' > {RUN}/result.json")]
    run = play(repo, EDIT, act, *later)
    assert run.ended.outcome.cls == "malformed"
    assert reason in errors(run)
    assert run.ended.exit.seconds < 60
    assert repo.git("show", f"{run.tip}:app.py") == "print('two')"


ARTIFACTS = {
    "a path that leaves the worktree": ("../../../secret", "leaves the worktree"),
    "a path that goes out and in again": ("docs/../../01-analysis/app.py", "leaves the worktree"),
    "an absolute path": ("/etc/passwd", "leaves the worktree"),
    "a link": (f"{RUN}/link", "link"),
    "through a linked folder": (f"{RUN}/outside/secret", "irectory"),
    "a pipe": (f"{RUN}/pipe", "not a regular file"),
    "a folder": (f"{RUN}/folder", "irectory"),
    "nothing there": (f"{RUN}/none.md", "No such file"),
    "an empty file": (f"{RUN}/empty", "is empty"),
    "two megabytes": (f"{RUN}/big", "larger than"),
    "an empty path": ("", "leaves the worktree"),
}


@pytest.mark.parametrize(("path", "reason"), ARTIFACTS.values(), ids=ARTIFACTS)
def test_a_document_that_is_no_plain_file_of_the_worktree_is_refused_with_the_reason(
    repo: Repo, tmp_path: Path, path: str, reason: str
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    make = f"""
        cd {RUN}; ln -s {tmp_path}/secret link; ln -s {tmp_path} outside; mkfifo pipe; mkdir folder; : > empty
        head -c 2000000 /dev/zero | tr '\\0' x > big
    """
    claim = done(
        artifacts=[{"name": "plan.md", "path": path}],
        checklist=[{"id": "C1", "text": "it works", "source": "requirement"}],
    )
    run = play(repo, sh(make), claim, workflow="default", stage="analysis")
    assert run.ended.outcome.cls == "malformed"
    assert reason in errors(run)
    assert "plan.md" in errors(run)
    folder = repo.hands.store.issue("ISSUE-1").folder
    assert list((folder / "artifacts").iterdir()) == []
    kept = [p for p in folder.rglob("*") if p.is_file() and SECRET in p.read_text(errors="replace")]
    assert kept == []


def test_a_pipe_left_where_issueflow_looks_stops_nobody(repo: Repo) -> None:
    """Opening a pipe waits for a writer that never comes, with the Issue's lock held."""
    plant = f"""
        for folder in {RUN} "$(git rev-parse --git-path hooks)" "$(git rev-parse --git-path info)"; do
            mkdir -p "$folder"; mkfifo "$folder/odd"
        done
    """
    repo.script(quick([EDIT, sh(plant), done()]))
    begin(repo)
    for words in (["advance", "1"], ["cleanup"]):
        command = [sys.executable, "-m", "issueflow", *words]
        subprocess.run(command, cwd=repo.path, capture_output=True, timeout=20, check=True)
    assert repo.position().stage == "deliver"
    assert repo.worktree("01-develop").is_dir()


def test_a_refused_result_is_asked_for_once_more_with_what_was_wrong(repo: Repo) -> None:
    repo.script(quick([EDIT, {"raw": "{not json"}], [done()]))
    begin(repo)
    position = repo.advance(once=True)
    assert position.runs[0].ended.outcome.cls == "malformed"
    position = repo.advance(once=True)
    again = position.runs[1]
    assert again.started.continuation
    assert again.started.base == position.runs[0].tip
    assert "not JSON" in (repo.run_folder("02-develop") / "prompt.md").read_text()
    assert (again.ended.outcome.verdict, again.started.attempt) == ("done", 1)
    assert repo.git("show", f"{position.head}:app.py") == "print('two')"


@pytest.mark.parametrize("channel", ["file", "output"])
def test_a_result_of_another_run_is_foreign(repo: Repo, channel: str) -> None:
    act = {"result": {"verdict": "done", "run": "09-develop"}, "channel": channel}
    assert play(repo, EDIT, act).ended.outcome.cls == "foreign"


# ── how a run is ended ──


@pytest.fixture
def token() -> Iterator[str]:
    """A word for command lines by which a process is found again, whatever it did to its environment."""
    word = f"mark{uuid.uuid4().hex}"
    yield word
    for pid in living(word):
        os.kill(pid, 9)


def living(word: str) -> list[int]:
    """The pids of all processes, zombies apart, with `word` in their command line or their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if word.encode() in words and state != "Z":
            found.append(int(entry.name))
    return found


def brood(token: str) -> Act:
    """A child, a session of its own, a double fork that drops environment and files, one that ignores SIGTERM."""
    sleep = f"exec -a {token} sleep 300"
    return {
        "run": [
            "bash",
            "-c",
            f"""
            ({sleep}) &
            setsid bash -c '{sleep}' &
            (setsid env -i bash -c '({sleep}) <&- >&- 2>&- &' &)
            bash -c 'trap "" TERM; while :; do sleep 0.1; done' {token} &
            (cd /; nohup setsid bash -c '{sleep}' > /dev/null 2>&1 &)
            for i in $(seq 100); do
                [ $(grep -lsa {token} /proc/[0-9]*/cmdline | wc -l) -ge 6 ] && break; sleep 0.02
            done
            grep -lsa {token} /proc/[0-9]*/cmdline > counted
            """,
        ]
    }


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


@needs_proc
@pytest.mark.more
def test_at_its_time_limit_a_run_is_ended_with_all_its_descendants(repo: Repo, token: str) -> None:
    agents = {"scripted": {"type": "scripted", "script": ".issueflow/scripted.yaml", "timeout": 2}}
    repo.setup(quick(), agents=agents)
    begun = time.monotonic()
    run = play(repo, EDIT, brood(token), {"sleep": 300}, done())
    assert time.monotonic() - begun < 60
    assert run.ended.exit.status == "timeout"
    assert "2 s" in run.ended.exit.detail
    assert len((Path(run.started.worktree) / "counted").read_text().splitlines()) >= 5
    assert living(token) == []
    assert living(f"ISSUE-1/01-develop/{run.started.nonce}") == []
    assert run.ended.outcome.cls == "missing"
    assert repo.git("show", f"{run.tip}:app.py") == "print('two')"


@needs_proc
@pytest.mark.more
def test_what_an_agent_leaves_running_ends_with_it_and_is_counted(repo: Repo, token: str) -> None:
    run = play(repo, EDIT, brood(token), done())
    assert run.ended.outcome.verdict == "done"
    assert run.ended.exit.left_over >= 4
    assert living(token) == []
    assert living(f"ISSUE-1/01-develop/{run.started.nonce}") == []


@needs_proc
def test_a_check_at_its_time_limit_leaves_nothing_running(repo: Repo, token: str) -> None:
    line = f"setsid bash -c 'exec -a {token} sleep 300' & bash -c 'exec -a {token} sleep 300'"
    repo.setup(quick([EDIT, done()]), checks=[{"run": line, "timeout": 1}])
    begin(repo)
    position = repo.advance(until="deliver")
    assert position.runs[-1].ended.outcome.verdict == "error"
    assert position.runs[-1].ended.outcome.checks[0].timed_out
    assert living(token) == []


@pytest.mark.more
def test_done_at_the_time_limit_is_contradicted(repo: Repo) -> None:
    agents = {"scripted": {"type": "scripted", "script": ".issueflow/scripted.yaml", "timeout": 2}}
    repo.setup(quick(), agents=agents)
    run = play(repo, EDIT, done(), {"sleep": 300})
    assert (run.ended.exit.status, run.ended.outcome.cls) == ("timeout", "contradicted")
    assert "timeout" in errors(run)


@pytest.mark.parametrize(
    ("act", "status", "cls"),
    [
        ({"exit": 3}, "exited", "contradicted"),
        ({"signal": "KILL"}, "signalled", "contradicted"),
        ({"exit": 0}, "exited", "accepted"),
    ],
    ids=["exit 3", "killed", "exit 0"],
)
def test_how_the_agent_ended_is_compared_with_what_it_says(repo: Repo, act: Act, status: str, cls: str) -> None:
    run = play(repo, EDIT, done(), act)
    assert (run.ended.exit.status, run.ended.outcome.cls) == (status, cls)


def test_a_complete_result_left_alone_ends_an_agent_that_never_does(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "RESULT_GRACE", 1.0)
    begun = time.monotonic()
    run = play(repo, EDIT, done(), {"sleep": 300})
    assert 1 < time.monotonic() - begun < 60
    assert run.ended.exit.status == "finished"
    assert (run.ended.outcome.cls, run.ended.outcome.verdict) == ("accepted", "done")


def test_a_result_that_is_not_complete_yet_ends_nobody(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "RESULT_GRACE", 0.2)
    half = sh(f"printf '{{\"half\": ' > {RUN}/result.json")
    run = play(repo, EDIT, half, {"sleep": 1}, done())
    assert (run.ended.exit.status, run.ended.outcome.verdict) == ("exited", "done")


# ── set-up ──


@pytest.fixture
def unprepared(repo: Repo, tmp_path: Path) -> Repo:
    """Set-up fails until `tool` is there."""
    command = f"test -e {tmp_path}/tool || {{ echo the tool is missing; exit 3; }}"
    repo.setup(quick([EDIT, done()]), worktrees={"setup": ["echo first >> ../setup", command]})
    begin(repo)
    return repo


def test_a_failed_set_up_names_the_command_and_is_no_attempt(unprepared: Repo, tmp_path: Path) -> None:
    held = unprepared.cli("advance", "1")
    assert held.returncode == 4
    position = unprepared.position()
    assert (position.status, position.hold.cause) == ("held", "setup")
    for words in ("test -e", "exit code 3", "the tool is missing"):
        assert words in position.hold.reason
        assert words in unprepared.cli("status", "1").stdout
    assert "next: issueflow resume ISSUE-1" in held.stderr
    assert unprepared.advance().entries == position.entries  # `advance` alone does not try again
    (tmp_path / "tool").touch()
    assert unprepared.cli("resume", "1").returncode == 0
    position = unprepared.position()
    assert position.stage == "deliver"
    assert [(r.started.stage, r.started.attempt) for r in position.runs[:2]] == [("develop", 1), ("develop", 1)]
    assert position.runs[1].started.base == position.base


@pytest.mark.more
def test_set_up_that_fails_again_and_again_never_uses_up_the_attempts(unprepared: Repo, tmp_path: Path) -> None:
    for _ in range(4):
        assert unprepared.advance(replace=True, once=True).hold.cause == "setup"
    (tmp_path / "tool").touch()
    position = unprepared.advance(replace=True)
    assert (position.stage, position.runs[4].started.attempt) == ("deliver", 1)


def test_resume_tries_a_failed_set_up_once_and_asks_again(unprepared: Repo) -> None:
    """Leave to try again is given once: else `resume` makes worktrees for as long as the tool is missing."""
    unprepared.advance()
    words = [sys.executable, "-m", "issueflow", "resume", "1"]
    resumed = subprocess.run(words, cwd=unprepared.path, capture_output=True, text=True, timeout=20, check=False)
    assert resumed.returncode == 4
    assert "the tool is missing" in resumed.stderr
    assert len(unprepared.position().runs) == 2


def test_set_up_that_takes_too_long_is_ended_and_named(repo: Repo) -> None:
    repo.setup(quick([EDIT, done()]), worktrees={"setup": [{"run": "sleep 300", "timeout": 1}]})
    begin(repo)
    position = repo.advance()
    assert position.hold.cause == "setup"
    assert "`sleep 300` ran longer than its time limit" in position.hold.reason


def test_set_up_prepares_every_worktree_before_anything_else_runs_in_it(repo: Repo) -> None:
    repo.write(".gitignore", "/deps\n")
    prepare = {"setup": ["mkdir deps; echo lib > deps/lib"]}
    repo.setup(quick([sh("cat deps/lib > seen"), done()]), checks=["test -e deps/lib"], worktrees=prepare)
    begin(repo)
    position = repo.advance()
    assert position.stage == "deliver"
    assert repo.git("show", f"{position.head}:seen") == "lib"
    assert "deps/lib" not in repo.files(position.head)


# ── agents that cannot be started ──


@pytest.mark.more
def test_a_program_that_is_not_there_is_named_and_tried_again_after_a_fix(repo: Repo, tmp_path: Path) -> None:
    roles = {"developer": "mine"}
    repo.setup(quick(), agents={"mine": {"type": "command", "argv": ["no-such-agent", "-p"]}}, roles=roles)
    begin(repo)
    held = repo.cli("advance", "1")
    assert held.returncode == 4
    assert "no-such-agent could not be started" in held.stderr
    position = repo.position()
    assert "no-such-agent" in position.hold.reason
    assert len(position.runs) == 1, "a program that is not there is not looked for three times"
    agent = tmp_path / "agent"
    agent.write_text(
        f"#!{sys.executable}\nimport json, pathlib\n"
        "o = json.loads(pathlib.Path('.issueflow-run/order.json').read_text())\n"
        "pathlib.Path('app.py').write_text('two')\n"
        "r = {'schema': 'issueflow.result/1', **{k: o[k] for k in ('issue', 'stage', 'run', 'nonce')},\n"
        "     'verdict': 'done', 'summary': 'x', 'commands_run': [], 'not_run': [], 'open_problems': []}\n"
        "pathlib.Path(o['result']['path']).write_text(json.dumps(r))\n"
    )
    agent.chmod(0o755)
    repo.setup(quick(), agents={"mine": {"type": "command", "argv": [str(agent)]}}, roles=roles)
    again = held.stderr.rpartition("next: issueflow ")[2].replace("TEXT", "installed").split()
    assert repo.cli(*again).returncode == 0
    assert repo.advance().stage == "deliver"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("a text file", "Permission denied"), ("a folder", "Permission denied"), ("no program at all", "Exec format")],
)
def test_a_program_that_cannot_be_run_is_named(repo: Repo, tmp_path: Path, kind: str, words: str) -> None:
    path = tmp_path / "agent"
    if kind == "a folder":
        path.mkdir()
    else:
        path.write_text("words\n")
        path.chmod(0o755 if kind == "no program at all" else 0o644)
    agents = {"mine": {"type": "command", "argv": [str(path)]}}
    repo.setup(quick(), agents=agents, roles={"developer": "mine"})
    begin(repo)
    position = repo.advance()
    assert f"{path} could not be started: {words}" in position.hold.reason


# ── output ──


def test_a_flood_of_output_is_logged_whole_and_does_not_stop_the_agent(repo: Repo) -> None:
    code = (
        "import sys\nfor n in range(20000): print(f'{n:06} ' + 'x' * 92)\n"
        "print('y' * 1_000_000)\nprint('last')\nprint('z' * 500_000, file=sys.stderr)"
    )
    run = play(repo, EDIT, py(code), done())
    assert run.ended.outcome.verdict == "done"
    out = (repo.run_folder("01-develop") / "stdout.log").read_bytes()
    assert len(out) == 20000 * 100 + 1_000_001 + 5
    assert out.endswith(b"last\n")
    assert (repo.run_folder("01-develop") / "stderr.log").stat().st_size == 500_001
    logs = repo.cli("logs", "1").stdout
    assert len(logs) > 3_000_000


def test_a_flood_of_output_does_not_flood_the_person(repo: Repo) -> None:
    code = "for n in range(20000): print(f'{n:06} ' + 'x' * 92)\nprint('y' * 1_000_000)\nprint('last')"
    repo.script(quick([EDIT, py(code), done()]))
    begin(repo)
    shown = repo.cli("advance", "1", "--once")
    assert shown.returncode == 0
    assert "last" in shown.stderr
    assert len(shown.stderr) < 100_000


def test_a_result_is_found_behind_a_flood_of_output(repo: Repo) -> None:
    run = play(repo, EDIT, py("print('x' * 2_000_000)"), {**done(), "channel": "output"})
    assert run.ended.outcome.verdict == "done"


def test_output_without_a_last_newline_and_bytes_that_are_no_text_are_kept(repo: Repo) -> None:
    play(repo, EDIT, py("import sys; sys.stdout.buffer.write(b'\\xff\\x00\\x1b[2J no newline')"), done())
    assert (repo.run_folder("01-develop") / "stdout.log").read_bytes() == b"\xff\x00\x1b[2J no newline"
    assert "\x1b" not in repo.cli("logs", "1").stdout


# ── who may read what issueflow writes ──


def modes(folder: Path) -> dict[str, str]:
    """Every path below `folder` that others than the owner may use, git's own in runs/*/git apart, with its mode."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        mode = path.lstat().st_mode
        inside = path.relative_to(folder).parts
        if (len(inside) > 5 and inside[2] == "runs" and inside[4] == "git") or stat.S_ISLNK(mode):
            continue
        wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
        if stat.S_IMODE(mode) != wanted:
            found[str(path.relative_to(folder))] = oct(stat.S_IMODE(mode))
    return found


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_state_is_for_its_owner_alone_whatever_the_umask(repo: Repo, umask: int) -> None:
    repo.setup(walk_through(), worktrees={"setup": ["echo prepared"]})
    before = os.umask(umask)
    try:
        issue = begin(repo, "default")
        assert repo.advance(issue, once=True).current("plan.md") is not None
        store = repo.path / ".git" / "issueflow"
        assert modes(store) == {}
        (store / "issues" / issue).rename(repo.path.parent / "aside")
        assert repo.cli("show", issue, "plan").stdout == "# Plan\n"  # rebuilt from the record
        assert modes(store) == {}
    finally:
        os.umask(before)


def test_nobody_else_can_put_anything_beside_the_worktrees(repo: Repo) -> None:
    repo.script(quick([EDIT, done()]))
    before = os.umask(0)
    try:
        repo.advance(begin(repo), once=True)
    finally:
        os.umask(before)
    places = repo.worktree("01-develop").parent
    assert [stat.S_IMODE(path.stat().st_mode) for path in (places.parent, places)] == [0o700, 0o700]


# ── the environment of a run ──


def environment(repo: Repo, options: Callable[[], None] | None = None, **env: str) -> dict[str, str]:
    """The environment that the agent of a run finds, when `issueflow` itself is started in `env`."""
    dump = py(f"import json, os; json.dump(dict(os.environ), open('{RUN}/env.json', 'w'))")
    settings = sh(f"git config --get-all gc.auto > {RUN}/gc; git config --get-all maintenance.auto > {RUN}/maintenance")
    repo.script(quick([dump, settings, EDIT, done()]))
    begin(repo)
    ended = repo.cli("advance", "1", "--once", env=env)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str] = json.loads((repo.worktree("01-develop") / RUN / "env.json").read_text())
    return found


def test_a_run_knows_what_it_is_and_git_does_not_climb_out_of_it(repo: Repo) -> None:
    found = environment(repo, SOME_KEY="kept")
    run = repo.position().runs[0].started
    home = repo.worktree("01-develop") / RUN
    assert found["ISSUEFLOW_ISSUE"] == "ISSUE-1"
    assert found["ISSUEFLOW_RUN"] == f"ISSUE-1/01-develop/{run.nonce}"
    assert found["GIT_CEILING_DIRECTORIES"] == str(Path(run.worktree).parent)
    assert ((home / "gc").read_text(), (home / "maintenance").read_text()) == ("0\n", "false\n")
    assert found["SOME_KEY"] == "kept"
    assert found["HOME"] == os.environ["HOME"]
    assert found["PWD"] == run.worktree or "PWD" not in found or not Path(found["PWD"]).is_relative_to(repo.path)


NESTED = {
    "CLAUDECODE": "1",
    "CLAUDE_CODE_ENTRYPOINT": "cli",
    "CLAUDE_CODE_SESSION_ID": "s",
    "CODEX_THREAD_ID": "t",
    "CODEX_SANDBOX_NETWORK_DISABLED": "1",
    "OPENCODE": "1",
    "AI_AGENT": "x",
    "ISSUEFLOW_CRASH": "nowhere#1@/dev/null",
    "ISSUEFLOW_READY": "9",
}


def test_marks_of_another_agent_s_session_are_dropped(repo: Repo) -> None:
    assert not NESTED.keys() & environment(repo, **NESTED).keys()


def test_git_variables_of_the_caller_reach_neither_issueflow_nor_the_agent(
    repo: Repo, make_repo: Callable[..., Repo], tmp_path: Path
) -> None:
    """A hook exports GIT_DIR, and `git -C elsewhere` still obeys it."""
    victim = make_repo("victim")
    before = (victim.git("for-each-ref"), victim.git("status", "--porcelain"))
    caller = {
        "GIT_DIR": str(victim.path / ".git"),
        "GIT_WORK_TREE": str(victim.path),
        "GIT_INDEX_FILE": str(victim.path / ".git" / "index"),
        "GIT_OBJECT_DIRECTORY": str(victim.path / ".git" / "objects"),
        "GIT_COMMON_DIR": str(victim.path / ".git"),
        "GIT_NAMESPACE": "x",
        "GIT_AUTHOR_NAME": "Caller",
        "GIT_COMMITTER_DATE": "@1 +0000",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_CONFIG_PARAMETERS": "'core.autocrlf'='true'",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_EDITOR": "false",
        "GIT_PREFIX": "docs/",
    }
    found = environment(repo, **caller)
    assert not [name for name, value in caller.items() if found.get(name) == value]
    assert (found["GIT_CONFIG_KEY_0"], found["GIT_AUTHOR_NAME"]) == ("gc.auto", "Pat")
    run = repo.position().runs[0]
    assert run.ended.outcome.verdict == "done"
    assert repo.git("log", "-1", "--format=%an %ct", run.tip).split()[0] == "Pat"
    assert (victim.git("for-each-ref"), victim.git("status", "--porcelain")) == before


def test_an_agent_s_own_variables_are_added_and_cannot_change_what_the_run_is(repo: Repo) -> None:
    own = {"MODEL": "large", "ISSUEFLOW_RUN": "ISSUE-9/x/y", "GIT_CEILING_DIRECTORIES": "/"}
    agent = {"type": "scripted", "script": ".issueflow/scripted.yaml", "env": own}
    repo.setup(quick(), agents={"scripted": agent})
    found = environment(repo)
    assert found["MODEL"] == "large"
    assert found["ISSUEFLOW_RUN"].startswith("ISSUE-1/01-develop/")
    assert found["GIT_CEILING_DIRECTORIES"] != "/"


def test_python_files_planted_in_a_worktree_are_not_run_by_the_runner(repo: Repo, tmp_path: Path) -> None:
    for name in ("json.py", "issueflow.py", "sitecustomize.py", "subprocess.py"):
        repo.write(name, f"open({str(tmp_path / 'planted')!r}, 'w').close()\n")
    repo.setup(quick([EDIT, done()]), worktrees={"setup": ["true"]})
    begin(repo)
    position = repo.advance()
    assert position.stage == "deliver"
    assert not (tmp_path / "planted").exists()
