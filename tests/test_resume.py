"""`resume`: what is found is said before it is done, the plan of --dry-run is that plan, and nothing is ever stuck."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, done, quick

from issueflow.engine import launch
from issueflow.engine.sight import look
from issueflow.hosts import processes
from issueflow.models import Life

EDIT = {"write": "app.py", "text": "print('two')\n"}
DIE = {"run": ["sh", "-c", "kill -9 $PPID"]}
UNTOLD = ("lock", "alive.lock", "index.json")  # names of holders, and the cache of `status`


def all_of(repo: Repo) -> dict[str, Any]:
    """Refs, worktrees, and everything in issueflow's folder but what no command promises to leave."""
    top = repo.path / ".git" / "issueflow"
    files = {os.fspath(p): p.read_bytes() for p in top.rglob("*") if p.is_file() and p.name not in UNTOLD}
    return {**files, "refs": repo.git("for-each-ref"), "worktrees": repo.git("worktree", "list", "--porcelain")}


def interrupt(*anything: object) -> bool:
    raise KeyboardInterrupt


def plan(repo: Repo, *words: str) -> list[dict[str, str]]:
    """What --dry-run --json finds; it changes nothing, and the text form says the same."""
    before = all_of(repo)
    done = repo.cli("resume", "--dry-run", "--json", *words)
    assert done.returncode == 0, done.stderr
    text = repo.cli("resume", "--dry-run", *words).stdout
    assert all_of(repo) == before
    value = json.loads(done.stdout)
    assert value["version"] == 1
    for finding in value["findings"]:
        assert f"{finding['issue']}  {finding['what']}: {finding['state']}" in text
        assert all(finding.values()), finding
    found: list[dict[str, str]] = value["findings"]
    return found


def about(findings: list[dict[str, str]], what: str) -> dict[str, str]:
    return next(finding for finding in findings if finding["what"].startswith(what))


def crash(repo: Repo, point: str, tmp: Path) -> None:
    env = {"ISSUEFLOW_CRASH": f"{point}#1@{tmp}/passed"}
    assert repo.cli("advance", "1", env=env).returncode == -9


def test_a_run_that_died_is_found_and_replaced(repo: Repo, tmp_path: Path) -> None:
    """BR-076, BR-078."""
    repo.script(quick([{"write": "left.txt", "text": "x"}, DIE], [EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    crash(repo, "submitted", tmp_path)
    run = repo.run_folder("01-develop")
    while not (run / "started.json").exists():
        time.sleep(0.05)
    runner = json.loads((run / "started.json").read_text())["runner"]["pid"]
    os.kill(runner, signal.SIGKILL)
    mark = repo.position().runs[0].started.mark("ISSUE-1")
    seen = None
    while seen is None or (seen.runner, seen.agent) != (Life.DEAD, Life.DEAD):
        processes.end(processes.marked(mark) or [])  # by its whole mark: every other test has an ISSUE-1 too
        seen = look(repo.hands.store.issue("ISSUE-1"), repo.position())
    (run / "exit.json").unlink(missing_ok=True)
    found = about(plan(repo, "1"), "run 01-develop")
    assert found["state"] == "dead"
    assert f"its runner (pid {runner}) and its agent are gone" in found["evidence"]
    assert found["action"].startswith("write off the run of develop, keeping its work")
    said = repo.cli("resume", "1")
    assert said.returncode == 0
    assert "run 01-develop: dead" in said.stderr
    assert repo.position().status == "waiting"


def test_each_record_that_is_behind_is_found_and_mended(repo: Repo, tmp_path: Path) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    crash(repo, "journal.started", tmp_path)
    folder = repo.hands.store.issue("ISSUE-1")
    with open(folder.journal, "ab") as journal:
        journal.write(b'{"half')
    (folder.folder / "issue.yaml").write_text("mine: now\n")
    found = plan(repo, "1")
    assert about(found, "journal")["state"] == "unfinished last line"
    assert about(found, "record")["state"] == "behind the journal"
    assert about(found, "issue.yaml")["action"] == "save it beside and write it anew"
    assert about(found, "run 01-develop")["state"] == "not started"
    assert about(found, "issue")
    assert repo.cli("resume", "1").returncode == 0
    assert [f["what"] for f in plan(repo, "1")] == ["issue"]
    assert (folder.folder / "issue.yaml.edited-").parent.glob("issue.yaml.edited-*")


def test_a_journal_cut_short_is_taken_back_from_its_record(repo: Repo) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    repo.advance(once=True)
    folder = repo.hands.store.issue("ISSUE-1")
    whole = folder.journal.read_bytes()
    folder.journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert about(plan(repo, "1"), "journal")["state"] == "shorter than its record"
    assert repo.cli("resume", "1").returncode == 0
    assert folder.journal.read_bytes().startswith(whole)


def test_a_damaged_journal_is_planned_too(repo: Repo) -> None:
    repo.new("# Do it\n", "--workflow", "quick")
    folder = repo.hands.store.issue("ISSUE-1")
    folder.journal.write_bytes(folder.journal.read_bytes() + b"nonsense\n")
    assert about(plan(repo, "1"), "journal")["state"] == "damaged"


def test_what_a_closed_run_left_running_is_found_and_ended(repo: Repo) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    position = repo.advance(once=True)
    mark = position.runs[0].started.mark("ISSUE-1")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "ISSUEFLOW_RUN": mark}, start_new_session=True) as stray:
        found = about(plan(repo, "1"), "process")
        assert (found["what"], found["state"]) == (f"process {stray.pid}", "left over")
        assert repo.cli("resume", "1").returncode == 0
        assert stray.wait(10) < 0


def test_a_run_of_another_machine_is_asked_about_by_its_name_and_given_up_on_a_word(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record says so when it comes here while the run goes on there."""
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    with monkeypatch.context() as there:
        there.setattr(processes, "machine", lambda: "elsewhere")
        there.setattr(launch, "prepare", interrupt)
        with pytest.raises(KeyboardInterrupt):
            repo.advance()
    shutil.rmtree(repo.hands.store.issue("ISSUE-1").folder)
    for verb in ("advance", "resume"):
        said = repo.cli(verb, "1")
        assert said.returncode == 4
        assert "it was started on elsewhere" in said.stdout
        assert "next: issueflow retry ISSUE-1 --reason TEXT" in said.stderr
    assert about(plan(repo, "1"), "run")["state"] == "cannot be told"
    assert repo.cli("retry", "1", "--reason", "that machine is gone").returncode == 0
    assert repo.position().runs[0].dropped.reason.startswith("given up by ")
    assert repo.advance().status == "waiting"


def test_all_issues_are_set_right_with_one_word(repo: Repo, tmp_path: Path) -> None:
    repo.script(quick([EDIT, done()]))
    for _ in range(2):
        repo.new("# Do it\n", "--workflow", "quick")
    crash(repo, "prepare.launch", tmp_path)
    assert {finding["issue"] for finding in plan(repo)} == {"ISSUE-1", "ISSUE-2"}
    assert repo.cli("resume", "--all").returncode == 0
    assert [repo.position(name).status for name in ("ISSUE-1", "ISSUE-2")] == ["waiting", "waiting"]
    before = all_of(repo)
    assert repo.cli("resume", "--all").returncode == 0
    assert all_of(repo) == before  # a second one changes no byte


def test_words_of_resume_that_do_not_go_together_do_nothing(repo: Repo) -> None:
    for words in (["--json"], ["--restore", "--dry-run"], ["--accept", "--all"], ["--restore", "--accept"]):
        assert repo.cli("resume", *words).returncode == 2, words


@pytest.mark.parametrize("what", ["worktree gone", "git file replaced", "branch gone"])
def test_what_became_of_a_dead_run_s_things_is_found_by_name(repo: Repo, tmp_path: Path, what: str) -> None:
    repo.script(quick([{"write": "a.txt", "text": "a"}, {"commit": "a"}, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    crash(repo, "step.Collect", tmp_path)
    tree = repo.worktree("01-develop")
    match what:
        case "worktree gone":
            tree.rename(tmp_path / "away")
        case "git file replaced":
            (tree / ".git").write_text("gitdir: /nowhere\n")
        case "branch gone":
            repo.git("update-ref", "-d", "refs/heads/issueflow/ISSUE-1/01-develop")
    found = plan(repo, "1")
    wanted = {
        "worktree gone": ("worktree of run 01-develop", "gone"),
        "git file replaced": ("worktree of run 01-develop", "replaced"),
        "branch gone": ("branch issueflow/ISSUE-1/01-develop", "gone"),
    }[what]
    assert wanted in [(f["what"], f["state"]) for f in found]
    assert repo.cli("resume", "1").returncode in (0, 4)
    assert "a.txt" in repo.files(repo.position().runs[0].tip)
