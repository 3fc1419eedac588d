"""What a person types and reads: codes for scripts, the question asked on the spot, the listing that stays fresh."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PAIR, Repo, approve, done, quick, reject

from issueflow.engine import decisions

EDIT = {"write": "app.py", "text": "print('two')\n"}


def code(repo: Repo, *words: str) -> int:
    return repo.cli(*words, "--exit-code").returncode


def test_a_script_learns_by_the_exit_code_where_an_issue_stands(repo: Repo) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    assert code(repo, "status", "1") == 0  # ready
    assert code(repo, "advance", "1") == 5  # a person is asked
    assert code(repo, "status", "1") == 5
    assert repo.cli("status", "1").returncode == 0
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert code(repo, "advance", "1") == 0  # delivered
    repo.script(quick([{"result": {"verdict": "blocked"}}]))
    repo.new("# Do it\n", "--workflow", "quick")
    assert code(repo, "advance", "2") == 4  # held
    assert code(repo, "status", "2") == 4


def test_a_live_run_makes_the_code_6(repo: Repo) -> None:
    repo.script(quick([{"sleep": 30}, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    walker = subprocess.Popen(
        [sys.executable, "-m", "issueflow", "advance", "1"], cwd=repo.path, stderr=subprocess.DEVNULL
    )
    while not (repo.run_folder("01-develop") / "started.json").exists():
        time.sleep(0.05)
    assert code(repo, "status", "1") == 6
    walker.send_signal(signal.SIGINT)
    assert walker.wait(10) == 130
    assert code(repo, "status", "1") == 6  # Ctrl-C leaves it running
    assert repo.cli("cancel", "1").returncode == 0


class Terminal:
    """The command on a terminal of its own, as a person has it."""

    def __init__(self, repo: Repo, *words: str, **env: str) -> None:
        self.handle, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "issueflow", *words],
            cwd=repo.path,
            env={**os.environ, "TERM": "dumb", **env},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen, self.read = "", 0

    def until(self, text: str) -> str:
        """What is printed up to and including `text`, from where the last call left off."""
        while text not in self.seen[self.read :]:
            try:
                self.seen += os.read(self.handle, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        assert text in self.seen[self.read :], self.seen
        begun, self.read = self.read, self.seen.index(text, self.read) + len(text)
        return self.seen[begun : self.read]

    def type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def end(self) -> int:
        try:
            while chunk := os.read(self.handle, 65536):
                self.seen += chunk.decode(errors="replace")
        except OSError:
            pass
        os.close(self.handle)
        return self.process.wait(10)


def test_the_question_is_asked_on_the_spot(repo: Repo) -> None:
    """-i: look at the diff, send back with a word, look again, approve."""
    repo.script(quick([EDIT, done()], [{"write": "app.py", "text": "print('three')\n"}, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    terminal = Terminal(repo, "advance", "1", "-i")
    terminal.until("> ")
    terminal.type("d\n")
    assert "print('two')" in terminal.until("> ").replace("\x1b[0m", "")
    terminal.type("r\n")
    terminal.until("what should change")
    terminal.type("three, please\n")
    terminal.until("[l]eave")
    terminal.until("> ")
    terminal.type("a\n")
    assert terminal.end() == 0
    position = repo.position()
    assert position.status == "delivered"
    assert [decision.verb for decision in position.decided] == ["request-changes", "approve"]
    assert position.decided[0].findings[0].claim == "three, please"


def test_leaving_the_question_decides_nothing(repo: Repo) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    terminal = Terminal(repo, "advance", "1", "-i")
    terminal.until("> ")
    terminal.type("l\n")
    assert terminal.end() == 0
    assert repo.position().status == "waiting"
    assert repo.position().decided == ()


@pytest.mark.more
def test_an_empty_line_opens_the_editor(repo: Repo, tmp_path: Path) -> None:
    editor = tmp_path / "my editor"
    editor.write_text(
        '#!/bin/sh\nprintf "from the editor; $(touch no)" > "$1"\n'.replace("$(touch no)", "\\$(touch no)")
    )
    editor.chmod(0o755)
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    repo.advance()
    terminal = Terminal(repo, "advance", "1", "-i", EDITOR=f"'{editor}'")
    terminal.until("> ")
    terminal.type("r\n")
    terminal.until("what should change")
    terminal.type("\n")
    terminal.end()
    assert repo.position().decided[0].findings[0].claim == "from the editor; $(touch no)"
    assert not (repo.path / "no").exists()


def test_the_watched_listing_tells_each_change_once_in_a_pipe(repo: Repo) -> None:
    repo.script(quick([EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    watching = subprocess.Popen(
        [sys.executable, "-m", "issueflow", "status", "--watch"], cwd=repo.path, stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    assert "ISSUE" in watching.stdout.readline()
    assert "ready" in watching.stdout.readline()
    repo.advance()
    rows = [watching.stdout.readline()]
    while "waiting" not in rows[-1]:
        rows.append(watching.stdout.readline())
        assert rows[-1], rows
    watching.send_signal(signal.SIGINT)
    assert watching.wait(10) == 130
    watching.stdout.close()


def test_the_watched_listing_on_a_terminal_draws_itself_anew(repo: Repo) -> None:
    repo.new()
    terminal = Terminal(repo, "status", "-w")
    terminal.until("Ctrl-C ends")
    terminal.until("Ctrl-C ends")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130


def test_the_watched_listing_shows_what_a_live_run_prints(repo: Repo) -> None:
    """The last lines, as `advance` shows them; of one Issue where it is named."""
    flood = "print('x' * 99 + '\\n' * 1_000_000); print('one'); print('two\x1b[31m'); print('three')"
    repo.script(quick([{"run": [sys.executable, "-c", flood]}, {"sleep": 60}, EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    repo.new("# Something else\n", "--workflow", "quick")
    walker = subprocess.Popen(
        [sys.executable, "-m", "issueflow", "advance", "1"], cwd=repo.path, stderr=subprocess.PIPE, text=True
    )
    terminal = Terminal(repo, "status", "1", "--watch")
    tail = terminal.until("three")
    assert re.search(r"ISSUE-1 01-develop\s+│ one\s+│ two\\x1b\[31m\s+│ three", tail)
    assert "Something else" not in terminal.seen
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert walker.stderr is not None
    shown = [walker.stderr.readline() for _ in range(1)]
    while "three" not in shown[-1]:
        shown.append(walker.stderr.readline())
    assert shown[-3:] == ["  │ one\n", "  │ two\\x1b[31m\n", "  │ three\n"]
    walker.send_signal(signal.SIGINT)
    walker.communicate(timeout=10)
    assert repo.cli("cancel", "1").returncode == 0


def test_a_followed_log_keeps_a_character_whole_that_comes_in_two_parts(repo: Repo) -> None:
    halves = (
        "import sys, time; w = sys.stdout.buffer; w.write(b'gr\\xc3'); w.flush(); time.sleep(1); w.write(b'\\xbcn\\n')"
    )
    repo.script(quick([{"run": [sys.executable, "-c", halves]}, EDIT, done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    walker = subprocess.Popen(
        [sys.executable, "-m", "issueflow", "advance", "1", "--once"], cwd=repo.path, stderr=subprocess.DEVNULL
    )
    log = repo.run_folder("01-develop") / "stdout.log"
    while not (log.exists() and log.stat().st_size):
        time.sleep(0.02)
    followed = repo.cli("logs", "1", "-f", cwd=repo.path)
    assert followed.stdout == "grün\n"
    assert walker.wait(20) == 0


def test_a_decision_is_shown_with_what_it_is_bound_to(repo: Repo) -> None:
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    repo.script(
        {"develop": [[EDIT, done()], [{"write": "b", "text": "b"}, done()]], "review": [[approve()], [approve()]]}
    )
    repo.commit()
    repo.new("# Do it\n", "--workflow", "pair")
    assert "nobody has decided anything" in repo.cli("show", "1", "decision").stderr
    repo.advance()
    decisions.request_changes(repo.hands, "ISSUE-1", "more, please")
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "fine")
    position = repo.position()
    newest, first = repo.cli("show", "1", "decision").stdout, repo.cli("show", "1", "decision", "1").stdout
    assert "2 of 2: approve at deliver" in newest
    assert "fine" in newest
    assert position.head[:12] in newest
    assert "1 of 2: request-changes at deliver" in first
    assert "more, please" in first
    assert repo.cli("show", "decision", "2").stdout == newest
    refused = repo.cli("show", "1", "decision", "3")
    assert refused.returncode == 2
    assert "has no decision 3 (it has 1 to 2)" in refused.stderr


def test_where_there_is_no_issue_yet_the_next_step_works(make_repo: Callable[..., Repo], tmp_path: Path) -> None:
    plain = make_repo("plain")
    assert "next: issueflow init" in plain.cli("status").stderr
    bare = Repo(tmp_path / "bare.git")
    plain.git("clone", "-q", "--bare", os.fspath(plain.path), os.fspath(bare.path))
    assert "next: git worktree add ../work" in bare.cli("status").stderr
    plain.setup()
    assert "next: issueflow new REQUIREMENT.md" in plain.cli("status").stderr


@pytest.mark.parametrize("verdict", ["approve", "request_changes"])
def test_a_review_may_be_read_with_its_run(repo: Repo, verdict: str) -> None:
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    said = approve() if verdict == "approve" else reject()
    repo.script({"develop": [[EDIT, done()]], "review": [[said]]})
    repo.commit()
    repo.new("# Do it\n", "--workflow", "pair")
    repo.advance(once=True)
    repo.advance(once=True)
    assert f"result    {verdict}" in repo.cli("show", "1", "review").stdout
