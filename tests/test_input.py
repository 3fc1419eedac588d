"""What people type and write, wrong or hostile: one sentence, a hint, the right exit code, and nothing half-made."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, done, quick

from issueflow.cli import run

HOSTILE = "[/x] [bold] \x1b[31mred\x1b]0;t\x07 \u202eabc\u2066 {{x}} {% x %} \x9b31m"
BAD = ("\x1b", "\x07", "\u202e", "\u2066", "\x9b")
ONE = quick([{"write": "x.txt", "text": "1"}, done()])


def refused(repo: Repo, code: int, *words: str) -> str:
    """Run it; it must be refused with this code, one sentence, at most one hint and no traceback. What it said."""
    said = repo.cli(*words)
    lines = said.stderr.splitlines()
    assert said.returncode == code, said.stderr
    assert lines[0].startswith("error: ")
    assert [line.split(":")[0] for line in lines[1:]] in ([], ["hint"])
    assert "unforeseen" not in said.stderr
    return said.stderr


def untouched(repo: Repo) -> None:
    """No Issue, no branch, no ref of ours came to be."""
    assert repo.hands.store.ids() == []
    assert repo.git("for-each-ref", "--format=%(refname)") == "refs/heads/main"


# ── the requirement ──


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"a\0b", "is not text"),
        (b"a" * 5_000_000, "is larger than 2 MiB"),
    ],
    ids=["missing", "empty", "blank", "binary", "5 MB"],
)
def test_a_requirement_that_is_no_text_is_refused(
    repo: Repo, tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "r.md"
    if content is not None:
        file.write_bytes(content)
    assert sentence in refused(repo, 2, "new", os.fspath(file))
    untouched(repo)


def test_a_closed_standard_input_is_refused(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refused(repo, 2, "new", "-")
    untouched(repo)


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_output_is_no_failure(repo: Repo, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    repo.new("# Do it\n", "--workflow", "quick")
    setattr(sys, closed, None)
    monkeypatch.chdir(repo.path)
    assert run(["status", "ISSUE-1"]) == 0


# ── words ──


@pytest.mark.parametrize(
    "words",
    [
        ["new", "r.md", "--workflow", "nix"],
        ["new", "r.md", "--base", "nix"],
        ["advance", "--until", "nix"],
        ["skip", "1", "nix", "--reason", "x"],
        ["reopen", "1", "--to", "nix", "--reason", "x"],
        ["show", "1", "nix"],
        ["diff", "1", "nix"],
        ["frob"],
        ["status", "--frob"],
        *([verb, issue] for verb in ("status", "advance", "cancel") for issue in ("99", "ISSUE-0", "abc", "../x", "")),
    ],
    ids=" ".join,
)
def test_words_without_meaning_end_with_2_and_a_hint(repo: Repo, words: list[str]) -> None:
    repo.write("r.md", "# Do it\n")
    repo.new("# Do it\n", "--workflow", "quick")
    assert "hint: " in refused(repo, 2, *words)
    assert repo.hands.store.ids() == ["ISSUE-1"]


# ── what is configured ──


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("config.yaml", "a: [b\n", "config.yaml, line 2, column 1: "),
        ("config.yaml", "version: 1\nagents:\n  a: {type: 7}\n", "config.yaml, line 3, column 7: agents.a.type"),
        ("config.yaml", b"\xff\xfe", "config.yaml is not UTF-8"),
        ("config.yaml", "", "config.yaml holds no keys"),
        ("workflows/quick.yaml", "name: quick\nstages: [\n", "quick.yaml, line 3, column 1: "),
    ],
    ids=["syntax", "value", "bytes", "empty", "workflow"],
)
def test_broken_yaml_is_named_with_its_place(repo: Repo, file: str, text: str | bytes, sentence: str) -> None:
    repo.write("r.md", "# Do it\n")
    good = (repo.path / ".issueflow" / file).read_bytes()
    repo.write(f".issueflow/{file}", text)
    said = refused(repo, 2, "new", "r.md", "--workflow", "quick")
    assert sentence in said
    assert "hint: git diff -- " in said
    repo.write(f".issueflow/{file}", good)
    untouched(repo)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"agents": {"scripted": {"type": "foo"}}}, "agent scripted has the unknown type foo (known: "),
        ({"agents": {"scripted": {"type": "command"}}}, "agent scripted has no argv"),
        ({"roles": {}}, "role developer is bound to no agent"),
        ({"roles": {"developer": "nobody"}}, "bound to the agent nobody, which config.yaml does not define"),
    ],
    ids=["agent type", "no program", "unbound role", "unknown agent"],
)
def test_a_role_nobody_can_play_is_refused_before_an_issue_begins(
    repo: Repo, config: dict[str, Any], sentence: str
) -> None:
    repo.setup(ONE, **config)
    repo.write("r.md", "# Do it\n")
    assert sentence in refused(repo, 2, "new", "r.md", "--workflow", "quick")
    untouched(repo)


def test_an_agent_s_program_that_is_not_there_holds_the_issue(repo: Repo) -> None:
    repo.setup(ONE, agents={"scripted": {"type": "command", "argv": ["no-such-program"]}})
    repo.new("# Do it\n", "--workflow", "quick")
    said = repo.cli("advance")
    assert said.returncode == 4
    assert "no-such-program could not be started: No such file or directory" in said.stderr
    assert said.stderr.endswith("next: issueflow resume ISSUE-1\n")


# ── the ground one stands on ──


def test_no_repository_is_said(tmp_path: Path) -> None:
    for verb in ("init", "status", "advance", "cleanup"):
        assert "is in no git repository\nhint: git init" in refused(Repo(tmp_path), 1, verb)


def test_a_repository_without_commit_is_refused(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "new")
    repo.path.mkdir()
    repo.git("init", "-q")
    repo.cli("init", "--agent", "scripted")
    repo.write("r.md", "# Do it\n")
    assert "hint: git commit --allow-empty -m start" in refused(repo, 1, "new", "r.md")
    assert repo.hands.store.ids() == []


def test_no_issueflow_folder_is_said(make_repo: Callable[..., Repo]) -> None:
    repo = make_repo()
    repo.write("r.md", "# Do it\n")
    assert "hint: issueflow init\n" in refused(repo, 1, "new", "r.md")


def test_a_branch_in_the_way_of_ours_is_named(repo: Repo) -> None:
    repo.write("r.md", "# Do it\n")
    repo.git("branch", "issueflow")
    assert "hint: git branch -m issueflow NEW-NAME" in refused(repo, 1, "new", "r.md")
    assert repo.hands.store.ids() == []


def test_a_place_where_no_worktree_can_be_made_may_be_changed(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    repo.setup(ONE, worktrees={"root": os.fspath(tmp_path / "file" / "below")})
    repo.new("# Do it\n", "--workflow", "quick")
    assert f"no worktree can be made in {tmp_path}/file/below: " in refused(repo, 1, "advance")
    assert repo.position().runs == ()
    repo.setup(ONE, worktrees={"root": os.fspath(tmp_path / "room")})
    assert repo.advance(once=True).runs[0].ended


# ── damage ──


def test_a_damaged_journal_hides_no_other_issue_and_resume_mends_it(repo: Repo) -> None:
    repo.setup(ONE)
    for _ in range(2):
        repo.new("# Do it\n", "--workflow", "quick")
    with repo.hands.store.issue("ISSUE-1").journal.open("a") as journal:
        journal.write("{broken\n")
    listed = repo.cli("status")
    assert listed.returncode == 1
    assert "ISSUE-2" in listed.stdout
    assert "journal.jsonl, line 2: not a journal entry" in listed.stderr
    assert "hint: issueflow resume ISSUE-1" in refused(repo, 1, "advance", "1")
    assert "its 1 sound entries stand" in repo.cli("resume", "1").stderr
    assert repo.position().status == "waiting"


def test_what_a_later_issueflow_wrote_is_not_mended(repo: Repo) -> None:
    repo.new("# Do it\n", "--workflow", "quick")
    journal = repo.hands.store.issue("ISSUE-1").journal
    newer = journal.read_bytes().replace(b'"format":1', b'"format":99')
    journal.write_bytes(newer)
    for verb in ("status", "advance", "resume"):
        assert "written by a newer issueflow (journal format 99)" in refused(repo, 1, verb, "1")
    assert journal.read_bytes() == newer


# ── text ──


def test_nothing_an_agent_or_a_person_wrote_is_obeyed_by_the_terminal(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = [
        {"say": HOSTILE + "z" * 200_000},
        {"write": "x\u202e\x1b.txt", "text": HOSTILE},
        done(summary=HOSTILE),
    ]
    repo.setup(quick(acts), checks=[])
    repo.write("r.md", f"# {HOSTILE}\n\n{HOSTILE}\n{'y' * 200_000}\n")
    said = [repo.cli("new", "r.md", "--workflow", "quick"), repo.cli("advance")]
    for words in ("status", "status 1", "status 1 --json", "log", "logs", "advance"):
        said.append(repo.cli(*words.split()))
    monkeypatch.setattr("issueflow.cli.look.is_terminal", lambda out: True)  # a pipe gets documents as they are
    for words in ("show", "show state", "show requirement", "show run 1", "diff", "diff --stat"):
        said.append(repo.cli(*words.split()))
    for one in said:
        assert one.returncode == 0, one.stderr
        assert not any(sign in one.stdout + one.stderr for sign in BAD), one.args
    assert "[/x] [bold] \\x1b[31mred" in said[2].stdout


def test_a_damaged_issue_can_be_cancelled(repo: Repo) -> None:
    repo.new()
    journal = repo.hands.store.issue("ISSUE-1").journal
    with journal.open("a") as file:
        file.write("not an entry\n")
    assert repo.cli("status").returncode == 1
    assert repo.cli("cancel", "1").returncode == 0
    assert repo.position().status == "cancelled"
    assert [path.read_text()[-13:] for path in journal.parent.glob("journal.jsonl.damaged-*")] == ["not an entry\n"]


def test_a_folder_that_is_not_there_is_wrong_words(repo: Repo) -> None:
    done_ = repo.cli("-C", "nowhere", "status")
    assert done_.returncode == 2
    assert "nowhere: No such file" in done_.stderr
