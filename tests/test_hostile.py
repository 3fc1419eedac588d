"""Hostile text through every verb: shown it is harmless, handed on it is what it was, and nothing falls over."""

import base64
import contextlib
import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
import typer
from conftest import Repo, approve, develop, done, plan, quick
from hostile import HOSTILE, file_name, obeyed, text, word

from issueflow import prompts
from issueflow.cli.app import app
from issueflow.engine import begin, decisions
from issueflow.models import Noted

ALL = b"\n".join(raw for name, raw in HOSTILE.items() if name != "long line")
JOINED = text(ALL)
LINES = [text(raw)[:1_900] or "-" for raw in HOSTILE.values()]
RUN = ".issueflow-run"

# What each verb is asked for, once everything it shows is hostile. What changes something stands last.
ASKED: dict[str, list[list[str]]] = {
    "status": [["status"], ["status", "--all"], ["status", "1"], ["status", "--json"], ["status", "1", "--json"]],
    "show": [["show", "1", *what.split()] for what in ("", "requirement", "plan", "report", "review", "checks")]
    + [["show", "1", *what.split()] for what in ("findings", "checklist", "state", "run 1", "run 2", "run 3")],
    "diff": [["diff", "1"], ["diff", "1", "--stat"], ["diff", "1", "develop"]],
    "log": [["log", "1"]],
    "logs": [["logs", "1"], ["logs", "1", "1"], ["logs", "1", "3"]],
    "verify": [["verify", "1"]],
    "workflow": [["workflow", "list"], ["workflow", "validate"]],
    "advance": [["advance", "1"], ["advance", "--all"]],
    "resume": [["resume", "1"]],
    "cleanup": [["cleanup", "--dry-run"], ["cleanup"]],
    "agents": [["agents"], ["agents", "--json"]],
    "doctor": [["doctor"], ["doctor", "--json"]],
    "note": [["note", "1", JOINED]],
    "approve": [["approve", "1", "-m", JOINED]],
    "request-changes": [["request-changes", "1", "-m", JOINED]],
    "retry": [["retry", "1", "--reason", JOINED]],
    "skip": [["skip", "1", "verify", "--reason", JOINED]],
    "reopen": [["reopen", "1", "--to", "code-review", "--reason", JOINED]],
    "amend": [["amend", "1", "r2.md"]],
    "cancel": [["cancel", "1", "-m", JOINED]],
    # asked below: they make the Issue, the folder or the repository, or need another one
    "attach": [],  # tests/test_hosts.py: tmux shows the log, cleaned
    "push": [],
    "fetch": [],
    "new": [],
    "init": [],
    "demo": [],
}
RAW = ("show", "diff")  # into a pipe, a document is what it is


def test_every_verb_is_asked() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {name for name, verb in verbs.items() if not verb.hidden} == set(ASKED)


def asked(repo: Repo, *words: str, codes: tuple[int, ...] = (0,), raw: bool = False) -> str:
    """Run it: an expected exit code, nothing a terminal would obey, no failure nobody foresaw; what was shown."""
    said = repo.cli(*words)
    shown = said.stdout + said.stderr
    assert said.returncode in codes, (words[:2], said.returncode, said.stderr[-2_000:])
    assert "unforeseen" not in shown and "Traceback" not in shown
    assert not obeyed(said.stderr if raw else shown), (words[:3], obeyed(shown))
    if "--json" in words:
        json.loads(said.stdout)
    return shown


def say(data: bytes) -> list[dict[str, Any]]:
    """Acts that print bytes, to both outputs."""
    held = {"write": f"{RUN}/said", "base64": base64.b64encode(data).decode()}
    return [held, {"run": ["sh", "-c", f"cat {RUN}/said; cat {RUN}/said >&2"]}]


def files() -> list[dict[str, Any]]:
    """Acts that write a file under each name, with the string in it."""
    script = "import base64, os, sys\nfor row in open('.issueflow-run/names'):\n"
    script += "    name, data = map(base64.b64decode, row.split(','))\n    open(name, 'wb').write(data)\n"
    rows = [f"{base64.b64encode(file_name(raw)).decode()},{base64.b64encode(raw).decode()}" for raw in HOSTILE.values()]
    return [{"write": f"{RUN}/names", "text": "\n".join(rows)}, {"run": [sys.executable, "-c", script]}]


def findings() -> list[dict[str, str]]:
    return [{"severity": "note", "where": line, "claim": line, "evidence": line, "fix": line} for line in LINES]


@pytest.fixture
def told(repo: Repo) -> Repo:
    """An Issue of `default` in which everything that a person, an agent, a check or a file can say is hostile."""
    (repo.path / "c.sh").write_bytes(b"cat all; cat all >&2; exit 1\n")
    (repo.path / "all").write_bytes(ALL)
    analysis = plan(JOINED)
    analysis[-1]["result"] |= {"summary": JOINED[:2_000], "risks": LINES, "assumptions": LINES}
    analysis[-1]["result"]["checklist"] = [
        {"id": f"C{n}", "text": line, "source": line} for n, line in enumerate(LINES, 1)
    ]
    more = {
        "summary": JOINED[-1_000:],
        "commands_run": [{"command": line, "exit_code": 0, "covers": line} for line in LINES],
        "not_run": [{"item": line, "reason": line} for line in LINES],
        "open_problems": LINES,
        "artifacts": [{"name": "report.md", "text": JOINED}],
    }
    covered = [{"id": f"C{n}", "evidence": line} for n, line in enumerate(LINES, 1)]
    repo.setup(
        {
            "analysis": [[*say(ALL), *analysis]],
            "plan-review": [[*say(ALL), approve(summary=LINES[0], findings=findings())]],
            "develop": [[*say(HOSTILE["long line"]), *files(), *develop(**more)]],
            "code-review": [[approve(summary=JOINED[:2_000], findings=findings(), covered=covered)]],
        },
        checks=["true", "sh c.sh"],
    )
    (repo.path / "r.md").write_bytes(ALL + b"\n" + HOSTILE["long line"])
    (repo.path / "r2.md").write_bytes(ALL)
    asked(repo, "new", "r.md", "--title", JOINED[:200].replace("\n", " "))
    asked(repo, "advance", "1")
    assert repo.position().stage == "plan-approval"
    return repo


@pytest.mark.more
def test_whatever_is_shown_is_harmless(told: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = told
    for words in ASKED["show"][:1] + ASKED["status"]:
        asked(repo, *words, raw=words[0] in RAW)
    for verb in ("request-changes", "advance", "approve"):
        asked(repo, *ASKED[verb][0])
    asked(repo, "advance", "1", "--until", "verify")
    asked(repo, *ASKED["reopen"][0])
    asked(repo, "advance", "1", "--until", "verify")
    asked(repo, *ASKED["skip"][0])
    asked(repo, "reopen", "1", "--to", "verify", "--reason", JOINED)
    asked(repo, "advance", "1", "--once")
    position = repo.position()
    assert [run.ended.outcome.verdict for run in position.runs if run.ended][-1] == "fail"
    for verb in ("status", "show", "diff", "log", "logs", "verify", "workflow", "cleanup"):
        for words in ASKED[verb]:
            asked(repo, *words, codes=(0, 1) if verb == "verify" else (0,), raw=verb in RAW)
    monkeypatch.setattr("issueflow.cli.look.is_terminal", lambda out: True)
    for verb in RAW:
        for words in ASKED[verb]:
            asked(repo, *words)
    for verb in ("note", "amend", "advance", "resume", "cancel"):
        for words in ASKED[verb]:
            asked(repo, *words)
    for words in (*ASKED["log"], *ASKED["status"]):
        asked(repo, *words)
    assert not (repo.path / "pwned").exists()
    assert not list(repo.worktree("").parent.rglob("pwned"))


def test_a_held_issue_is_tried_again_for_a_hostile_reason(repo: Repo) -> None:
    repo.setup(quick([*say(ALL), {"result": {"verdict": "blocked", "summary": JOINED[:2_000], "questions": LINES}}]))
    repo.new("# Do it\n", "--workflow", "quick")
    asked(repo, "advance", "1", codes=(4,))
    asked(repo, "status", "1")
    asked(repo, *ASKED["retry"][0])


# ── one by one ──


@pytest.mark.slow
def test_any_title_branch_and_remark_is_shown_and_kept_as_it_is(repo: Repo) -> None:
    repo.setup(quick([done()]))
    for raw in HOSTILE.values():
        title, said = " ".join(text(raw)[:200].split()) or "Do it", text(raw)[:20_000]
        branch = b"b" + file_name(raw).replace(b"x" * 200, b"x")
        words = [b"git", b"checkout", b"-q", b"-b", branch]
        made = subprocess.run(words, cwd=repo.path, capture_output=True, check=False)
        name = begin.create(repo.hands, b"# Do it\n", title, "r.md", "quick", None)
        decisions.note(repo.hands, name, said)
        position, entry = repo.position(name), repo.hands.store.issue(name).entries()[-1]
        assert position.created.title == title
        assert isinstance(entry, Noted) and entry.text == said
        if made.returncode == 0 and text(branch).encode() == branch:
            assert position.created.base_name == f"refs/heads/{branch.decode()}"
    assert len(repo.hands.store.ids()) == len(HOSTILE)
    asked(repo, "status")
    listed = json.loads(repo.cli("status", "--json").stdout)["issues"]
    assert {row["title"] for row in listed} >= {"[/] [/bold] [/x]", text(HOSTILE["template"])}
    for name in repo.hands.store.ids()[::6]:
        asked(repo, "status", name)
        asked(repo, "log", name)
        asked(repo, "show", name, "state", raw=True)


QUICK = ("markup", "clipboard", "not UTF-8", "long option", "substitution")  # the others are asked for their own sake


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in HOSTILE])
def test_the_command_line_takes_any_word(repo: Repo, name: str) -> None:
    """As every argument that is text, behind a `--` where it begins with a dash."""
    repo.new("# Do it\n", "--workflow", "quick")
    raw = word(HOSTILE[name])
    repo.write("r.md", "# Do it\n")
    ways: list[list[str]] = [
        ["note", "1", "--", raw],
        ["new", "--workflow=quick", f"--title={raw[:150]}", "r.md"],
        ["new", f"--workflow={raw}", "r.md"],
        ["new", f"--base={raw}", "r.md"],
        ["new", "--", raw],
        ["status", "--", raw],
        ["show", "1", "--", raw],
        ["diff", "1", "--", raw],
        ["advance", f"--until={raw}", "1"],
        ["reopen", f"--to={raw}", f"--reason={raw}", "1"],
        ["skip", f"--reason={raw}", "--", "1", raw],
        ["request-changes", f"--file={raw}", "1"],
        ["init", f"--agent={raw}"],
        ["workflow", "validate", "--", raw],
        [raw],
        ["-C", raw, "status"],
    ]
    for words in ways:
        asked(repo, *words, codes=(0, 1, 2))
    assert not (repo.path / "pwned").exists()


# ── what reaches the agent ──

KEEPER = """
import json, pathlib, shutil, sys
run = pathlib.Path(".issueflow-run")
pathlib.Path("stdin").write_bytes(sys.stdin.buffer.read())
for name in ("prompt.md", "requirement.md"):
    shutil.copy(run / name, name)
order = json.loads((run / "order.json").read_text())
head = {key: order[key] for key in ("issue", "stage", "run", "nonce")}
answers = [{"finding": item["id"], "action": "fixed", "reason": item["claim"][:2000]} for item in order["must_answer"]]
more = {"commands_run": [], "not_run": [], "open_problems": [], "responses": answers}
result = {"schema": "issueflow.result/1", **head, "verdict": "done", "summary": "kept", **more}
(run / "result.json").write_text(json.dumps(result))
"""


def test_text_reaches_the_agent_byte_for_byte(repo: Repo) -> None:
    """BR-082: by a file and standard input, so that nothing has to be submitted and nothing is typed."""
    agents = {"keeper": {"type": "command", "argv": [sys.executable, ".issueflow/keeper.py", *LINES[:-1]]}}
    repo.write(".issueflow/keeper.py", KEEPER)
    repo.setup(agents=agents, roles=dict.fromkeys(("analyst", "reviewer", "developer"), "keeper"), checks=["true"])
    data = ALL + b"\r\n" + HOSTILE["long line"]
    (repo.path / "r.md").write_bytes(data)
    (repo.path / "said").write_bytes(ALL)
    asked(repo, "new", "r.md", "--workflow", "quick")
    asked(repo, "advance")
    asked(repo, "request-changes", "1", "-F", "said")
    asked(repo, "advance")
    run = repo.position().head_run
    assert run is not None and run.started.must_answer == ("F1",)
    kept = {name: git_bytes(repo, f"{run.tip}:{name}") for name in ("stdin", "prompt.md", "requirement.md")}
    assert kept["requirement.md"] == data
    assert kept["stdin"] == kept["prompt.md"] == (repo.run_folder(run.started.name) / "prompt.md").read_bytes()
    assert JOINED.encode() in kept["stdin"]  # the finding
    assert run.ended and run.ended.outcome.responses[0].reason == JOINED[:2_000]


@pytest.mark.slow
def test_twenty_long_prompts_arrive_whole(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    """BR-083: 30 kB of quotes, backticks, `$()`, semicolons, blank lines, and a backslash at the end, twenty times."""
    monkeypatch.setattr(prompts, "INLINE", 40_000)  # a text this long would else be named and not shown
    agents = {"keeper": {"type": "command", "argv": [sys.executable, ".issueflow/keeper.py"]}}
    repo.write(".issueflow/keeper.py", KEEPER)
    repo.setup(agents=agents, roles=dict.fromkeys(("analyst", "reviewer", "developer"), "keeper"), checks=["true"])
    line = "\"two\" 'one' `touch pwned` $(touch pwned); return 0;\n\nEnter\n"
    text = "# Do it\n" + line * (30_000 // len(line)) + "\\"
    for _ in range(20):
        issue = repo.new(text, "--workflow", "quick")
        run = repo.advance(issue, once=True).runs[0]
        assert run.ended and run.ended.outcome.verdict == "done"
        assert git_bytes(repo, f"{run.tip}:requirement.md") == text.encode()
        prompt = (repo.run_folder("01-develop", issue) / "prompt.md").read_bytes()
        assert git_bytes(repo, f"{run.tip}:stdin") == prompt
        assert len(prompt) > 30_000 and text.encode() in prompt
    assert not list(repo.path.parent.rglob("pwned"))


def git_bytes(repo: Repo, name: str) -> bytes:
    return subprocess.run(["git", "show", name], cwd=repo.path, capture_output=True, check=True).stdout


def test_names_of_files_are_shown_harmless_and_kept(repo: Repo) -> None:
    repo.setup(quick([*files(), done()]))
    repo.new("# Do it\n", "--workflow", "quick")
    asked(repo, "advance")
    listed = git_bytes(repo, f"{repo.position().head}:")
    names = set(listed.split(b"\n\n", 1)[1].split(b"\n"))
    plain = {file_name(raw) for raw in HOSTILE.values() if file_name(raw).isalnum()}
    assert plain <= names
    recorded = set(os.fsencode(repo.git("ls-tree", "-z", "--name-only", repo.position().head)).split(b"\0"))
    assert {file_name(raw) for raw in HOSTILE.values()} <= recorded


# ── a real terminal ──


def on_terminal(repo: Repo, *words: str) -> str:
    """What the command sends to a terminal it is started in, one without colours."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "dumb", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "issueflow", *words], cwd=repo.path, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    sent = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while piece := os.read(ours, 65536):
            sent += piece
    os.close(ours)
    assert process.wait() == 0, sent
    return sent.decode(errors="replace").replace("\r\n", "\n").replace("\r\x1b[2K", "")  # the line of a live run


@pytest.mark.more
def test_a_real_terminal_gets_nothing_to_obey(repo: Repo) -> None:
    repo.setup(quick([*say(ALL), *files(), done(summary=JOINED[:2_000], open_problems=LINES)]))
    (repo.path / "r.md").write_bytes(ALL)
    asked(repo, "new", "r.md", "--workflow", "quick", "--title", JOINED[:200])
    for words in (
        "advance",
        "status",
        "status 1",
        "show 1",
        "show 1 requirement",
        "diff 1",
        "logs 1 1",
        "show 1 run 1",
    ):
        shown = on_terminal(repo, *words.split())
        assert not obeyed(shown), (words, obeyed(shown))
        assert "Traceback" not in shown
        if words == "logs 1 1":
            assert "[bold red]FAILED[/bold red] fix [a/b] list[int]" in shown
        if words == "status":
            assert "ISSUE-1  [/] [/bold] [/x] [bold red]FAILED" in shown and "waiting for you" in shown


# ── what once fell over ──

FRONT = {
    "a NUL in the title": ('title: "a\\0b"', 2),
    "half a character": ('title: "\\ud800"', 2),
    "a NUL in the base": ('base: "\\0"', 2),
    "a thirteenth month": ("title: 2001-13-45", 2),
    "a number that is none": ("x: !!int x", 2),
    "a thousand brackets": ("x: " + "[" * 1_000, 2),
    "a blank title": ('title: "\u0085 \u2028"', 0),
}


@pytest.mark.parametrize(("fields", "code"), FRONT.values(), ids=FRONT.keys())
def test_a_front_matter_of_any_kind_is_taken_or_refused(repo: Repo, fields: str, code: int) -> None:
    repo.write("r.md", f"---\n{fields}\n---\n# Do it\n")
    asked(repo, "new", "r.md", codes=(code,))
    assert [repo.position(name).created.title for name in repo.hands.store.ids()] == ([] if code else ["Do it"])


CONFIG = {
    "a NUL in an argument": 'agents: {a: {type: command, argv: ["x\\0"]}}',
    "a NUL in a path": 'agents: {a: {type: command, argv: [x]}}\nworktrees: {root: "\\0"}',
    "a variable that is none": 'agents: {a: {type: command, argv: [x], env: {"A=B": x}}}',
    "an agent's name": 'agents: {"[/x]\\e[31m": {type: command, argv: [x]}}',
    "half a character": 'agents: {a: {type: command, argv: ["\\ud800"]}}',
    "brackets": "agents: " + "[" * 1_000,
    "a number that is none": "agents: !!int x",
    "a tag": "agents: !!python/object/apply:os.system [touch pwned]",
    "an alias of itself": "agents: &a {a: *a}",
}


@pytest.mark.parametrize("lines", CONFIG.values(), ids=CONFIG.keys())
def test_a_configuration_of_any_kind_is_refused_in_a_sentence(repo: Repo, lines: str) -> None:
    repo.write("r.md", "# Do it\n")
    repo.write(".issueflow/config.yaml", f"version: 1\n{lines}\nroles: {{analyst: a, reviewer: a, developer: a}}\n")
    asked(repo, "new", "r.md", codes=(2,))
    asked(repo, "workflow", "validate", codes=(1, 2))
    assert not (repo.path / "pwned").exists()


def test_a_nul_in_what_is_said_stops_no_issue(repo: Repo) -> None:
    """git takes no NUL in a message: such a remark once left an Issue that nothing could move, not even `cancel`."""
    repo.setup(quick([done(summary="a\0b", no_change="\0")]))
    repo.new("# Do it\n", "--workflow", "quick")
    decisions.note(repo.hands, "ISSUE-1", "a\0b")
    asked(repo, "advance", "1")
    repo.write("said", "a\0b")
    asked(repo, "request-changes", "1", "-F", "said")
    asked(repo, "log", "1")
    asked(repo, "cancel", "1")


@pytest.mark.parametrize("name", [b"caf\xe9", b"<.>", b" ", b"a\nb", "\u202ex".encode(), b"$(x)"], ids=repr)
def test_a_person_may_be_called_anything(repo: Repo, name: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.setup(quick([{"write": "x", "text": "1"}, done()]))
    subprocess.run([b"git", b"config", b"user.name", name], cwd=repo.path, check=True)
    monkeypatch.setenv("LOGNAME", os.fsdecode(name))
    repo.new("# Do it\n", "--workflow", "quick")
    asked(repo, "note", "1", "hello")
    asked(repo, "advance", "1")
    asked(repo, "log", "1")


@pytest.mark.parametrize("verb", ["approve -m", "request-changes -m", "retry --reason", "cancel -m", "note"])
def test_a_text_that_is_too_long_is_refused_and_never_cut(repo: Repo, verb: str) -> None:
    repo.new("# Do it\n", "--workflow", "quick")
    name, *option = verb.split()
    assert "longer than 20000 characters" in asked(repo, name, "1", *option, "x" * 20_001, codes=(2,))
    assert "longer than 200 characters" in asked(repo, "new", "--title", "x" * 201, "app.py", codes=(2,))


def test_a_log_is_shown_whole_however_it_is_read(repo: Repo) -> None:
    """A character or a line's end that stands across two pieces of a log is shown as what it is."""
    piece = "漢\r\n" * 40_000
    repo.setup(quick([*say(b"x" + piece.encode()), done(no_change="-")]))
    repo.new("# Do it\n", "--workflow", "quick")
    repo.advance()
    assert repo.cli("logs", "1", "1").stdout == ("x" + piece.replace("\r", "")) * 2
