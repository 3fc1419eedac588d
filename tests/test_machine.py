"""What a person is told of the machine: which agent CLIs are here, and what `init` makes of them."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE_CONFIG, Repo, sampled

from issueflow.agents import usable
from issueflow.agents.known import KNOWN, is_older
from issueflow.engine.programs import ask_version
from issueflow.hosts import processes
from issueflow.models import Config
from issueflow.project import read_yaml

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a CLI, a shell script, on PATH; no other is there, and nobody is logged in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), *_without_clis(tmp_path / "shadow")]))
    for known in KNOWN.values():
        for name in (*known.keys, known.home[0]):
            monkeypatch.delenv(name or "NONE", raising=False)

    def install(name: str, script: str = "echo 99.1.0") -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return install


def agents(repo: Repo, *words: str, code: int = 0) -> dict[str, Any]:
    """What `agents --json` says, known and configured by name."""
    said = repo.cli("agents", "--json", *words)
    assert said.returncode == code, said.stderr
    whole = json.loads(said.stdout)
    return {**whole, **{key: {one["name"]: one for one in whole[key]} for key in ("known", "configured")}}


def _without_clis(shadow: Path) -> list[str]:
    """The folders on PATH; one that holds an agent CLI is replaced by links to everything else in it."""
    folders = []
    for number, name in enumerate(os.environ["PATH"].split(os.pathsep)):
        if any((Path(name) / cli).exists() for cli in KNOWN):
            (shadow / str(number)).mkdir(parents=True)
            for path in Path(name).iterdir():
                if path.name not in KNOWN:
                    (shadow / str(number) / path.name).symlink_to(path)
            name = str(shadow / str(number))
        folders.append(name)
    return folders


# ── agents ──


def test_what_is_installed_is_listed_with_its_path_and_the_rest_with_the_way_to_get_it(
    repo: Repo, install: Install
) -> None:
    path = install("claude")
    known = agents(repo)["known"]
    assert known["claude"]["path"] == str(path)
    assert (known["codex"]["path"], known["codex"]["needs"]) == (None, "not installed")
    assert known["codex"]["hint"] == "npm install -g @openai/codex"
    assert known.keys() == KNOWN.keys()
    shown = repo.cli("agents").stdout
    assert str(path) in shown and "not installed: npm install -g @openai/codex" in shown


def test_without_a_check_no_program_is_started(repo: Repo, install: Install, tmp_path: Path) -> None:
    install("codex", f"touch {tmp_path}/started")
    assert agents(repo)["known"]["codex"]["version"] is None
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("codex-cli 0.171.0", "0.171.0"),
        ("2.1.332 (Claude Code)", "2.1.332"),
        ("v1.2", "1.2"),
        ("x\n2025.9.18-7ae", "2025.9.18"),
    ],
)
def test_a_version_is_found_in_what_a_cli_says(install: Install, said: str, version: str) -> None:
    assert ask_version(str(install("codex", f"echo '{said}'"))) == (version, "")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 3", "--version ended with 3: nothing"),
        ("echo 1.2.3; exit 3", "--version ended with 3: 1.2.3"),
        ("true", "says no version: nothing"),
        (r"printf '\033[31m\0\377\n garbage'", "says no version: \x1b[31m\0\ufffd garbage"),
        ("head -c 1000000 /dev/zero", "says no version: " + "\0" * 60),
    ],
)
def test_a_cli_that_says_no_version_is_named_with_what_it_says(install: Install, script: str, problem: str) -> None:
    assert ask_version(str(install("codex", script))) == (None, problem)


def test_a_file_that_is_no_program_is_said(install: Install) -> None:
    path = install("codex")
    path.write_bytes(b"\x7fnot a program")
    version, problem = ask_version(str(path))
    assert version is None and problem.startswith("cannot be started: ")


def living(token: str) -> list[int]:
    return [pid for pid in processes.table() or {} if token in words(pid)]


def words(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


HANGING = {
    "it hangs": "sleep {token} & wait",
    "it hangs and refuses to go": "trap '' TERM; sleep {token} & wait; sleep {token}",
    "it talks for ever": "sleep {token} & yes 1.2.3",
    "it hangs in a session of its own": f'{sys.executable} -c "import os; os.setsid()" & setsid sleep {{token}} & wait',
}


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
@pytest.mark.parametrize("script", HANGING.values(), ids=HANGING)
def test_a_cli_that_hangs_is_ended_with_all_it_started(install: Install, tmp_path: Path, script: str) -> None:
    token = f"3{os.getpid()}{time.monotonic_ns() % 10**9}"
    version, problem = ask_version(str(install("codex", script.format(token=token))), limit=0.5)
    assert (version, problem) == (None, "does not say its version within 0.5 s")
    assert living(token) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_what_a_cli_leaves_running_is_ended_and_is_not_waited_for(install: Install) -> None:
    """It holds the pipe, so its end cannot be waited for."""
    token = f"4{os.getpid()}{time.monotonic_ns() % 10**9}"
    script = f"setsid sleep {token} & echo 1.2.3"
    assert ask_version(str(install("codex", script))) == ("1.2.3", "")
    assert living(token) == []


def test_a_version_is_asked_for_in_an_empty_folder_with_nothing_to_read(
    repo: Repo, install: Install, tmp_path: Path
) -> None:
    """BR-150: nor is the caller's standard input handed on, from which some read for ever."""
    log = tmp_path / "log"
    install("codex", f'{{ pwd; ls -A; cat; }} > {log}; touch left; echo "codex 99.0.0"')
    assert agents(repo, "--check")["known"]["codex"]["version"] == "99.0.0"
    folder, *rest = log.read_text().splitlines()
    assert rest == [] and not Path(folder).exists()


def test_a_version_older_than_any_that_was_tried_is_said(repo: Repo, install: Install) -> None:
    """npm quietly installs an older one where Node is too old."""
    install("claude", "echo '2.1.197 (Claude Code)'")
    claude = agents(repo, "--check")["known"]["claude"]
    assert (claude["version"], claude["needs"]) == ("2.1.197", "older than 2.1.332, the oldest that was tried")
    assert is_older("0.9.10", "0.10.0") and not is_older("0.10.0", "0.10.0") and not is_older("1.0", "")


def test_a_login_is_told_from_a_variable_or_a_file_and_neither_is_shown(
    repo: Repo, install: Install, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("codex", "claude", "gemini", "opencode"):
        install(name)
    monkeypatch.setenv("CODEX_API_KEY", "sk-very-secret")
    monkeypatch.setenv("GEMINI_API_KEY", "")
    (sealed / ".claude").mkdir()
    (sealed / ".claude" / ".credentials.json").write_text('{"token": "sk-very-secret"}')
    (sealed / ".claude" / ".credentials.json").chmod(0)
    monkeypatch.setenv("XDG_DATA_HOME", str(sealed / "data"))
    (sealed / "data" / "opencode").mkdir(parents=True)
    (sealed / "data" / "opencode" / "auth.json").write_text("sk-very-secret")
    known = agents(repo)["known"]
    assert known["codex"]["login"] == "CODEX_API_KEY"
    assert known["claude"]["login"] == str(sealed / ".claude" / ".credentials.json")
    assert known["opencode"]["login"] == str(sealed / "data" / "opencode" / "auth.json")
    assert (known["gemini"]["login"], known["gemini"]["needs"]) == ("", "no sign of a login")
    for words in (("agents",), ("agents", "--check"), ("agents", "--json")):
        said = repo.cli(*words)
        assert "very-secret" not in said.stdout + said.stderr


def test_the_agents_of_the_project_are_listed_with_what_keeps_them_from_working(repo: Repo, install: Install) -> None:
    install("mine")
    repo.write("tools/own", "#!/bin/sh\n").chmod(0o755)
    own = {
        "fine": {"type": "command", "argv": ["mine", "-p"]},
        "here": {"type": "command", "argv": ["tools/own"]},
        "gone": {"type": "command", "argv": ["claude", "-p"]},
        "lost": {"type": "command", "argv": ["/no/such/program"]},
        "empty": {"type": "command"},
        "odd": {"type": "odd"},
        "play": {"type": "scripted", "script": "none.yaml"},
    }
    roles = {"analyst": "fine", "developer": "here", "reviewer": "fine"}
    repo.write(".issueflow/config.yaml", json.dumps({**EXAMPLE_CONFIG, "agents": own, "roles": roles}))
    found = agents(repo)["configured"]
    assert {name: one["needs"] for name, one in found.items()} == {
        "fine": "",
        "here": "",
        "gone": "claude is not installed",
        "lost": "/no/such/program is not installed",
        "empty": "agent empty has no argv: what program is it?",
        "odd": "agent odd has the unknown type odd (known: claude, codex, command, gemini, opencode, scripted)",
        "play": "none.yaml is not there",
    }
    assert found["fine"]["roles"] == ["analyst", "reviewer"]
    assert found["gone"]["hint"] == "npm install -g @anthropic-ai/claude-code"
    repo.write(".issueflow/config.yaml", json.dumps({**EXAMPLE_CONFIG, "agents": own, "roles": {"analyst": "gone"}}))
    said = repo.cli("agents")
    assert said.returncode == 1
    assert said.stderr == "hint: npm install -g @anthropic-ai/claude-code\n"


def test_agents_needs_no_repository_and_survives_a_broken_configuration(
    repo: Repo, install: Install, tmp_path: Path
) -> None:
    install("codex")
    (tmp_path / "plain").mkdir()
    assert "codex" in repo.cli("agents", cwd=tmp_path / "plain").stdout
    repo.write(".issueflow/config.yaml", "version: [\n")
    said = repo.cli("agents")
    assert said.returncode == 2
    assert "codex" in said.stdout and "config.yaml, line 2" in said.stderr


# ── init ──

WORKER = """
import json, pathlib, sys
sys.stdin.read()
order = json.loads(pathlib.Path(".issueflow-run/order.json").read_text())
pathlib.Path("app.py").write_text("print('two')")
result = {"schema": "issueflow.result/1", **{key: order[key] for key in ("issue", "stage", "run", "nonce")}}
result |= {"verdict": "done", "summary": "did it", "commands_run": [], "not_run": [], "open_problems": []}
pathlib.Path(order["result"]["path"]).write_text(json.dumps(result))
"""


def configured(repo: Repo) -> Config:
    return read_yaml(repo.path / ".issueflow" / "config.yaml", Config)


@pytest.fixture
def plain(make_repo: Callable[..., Repo]) -> Repo:
    """A repository that knows nothing of issueflow."""
    return make_repo()


@pytest.mark.parametrize("name", sampled(KNOWN, "codex"))
def test_what_init_writes_works_at_once(plain: Repo, install: Install, tmp_path: Path, name: str) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    install(name, f"exec {sys.executable} {tmp_path}/worker.py")
    plain.write("Makefile", "test:\n\tgrep -q two app.py\n")
    plain.commit("a check")
    assert plain.cli("init").returncode == 0
    plain.commit("Use issueflow")
    plain.new("# Go\n", "--workflow", "quick")
    position = plain.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert [run.ended.outcome.verdict for run in position.runs] == ["done", "pass"]


def test_two_clis_are_author_and_reviewer(plain: Repo, install: Install) -> None:
    for name in ("gemini", "claude"):
        install(name)
    said = plain.cli("init")
    assert "agents: claude writes, gemini reviews" in said.stderr
    assert "no sign of a login: claude, gemini" in said.stderr
    config = configured(plain)
    assert config.roles == {"analyst": "claude", "developer": "claude", "reviewer": "gemini"}
    assert set(config.agents) == {"claude", "gemini"}
    for name, settings in config.agents.items():
        usable(name, settings)


def test_a_cli_that_shows_a_login_comes_first(plain: Repo, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("codex", "claude", "opencode"):
        install(name)
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert "agents: opencode writes, codex reviews" in plain.cli("init").stderr


def test_without_any_cli_init_says_what_is_missing(plain: Repo, install: Install) -> None:
    said = plain.cli("init")
    assert said.returncode == 0
    assert "agents: codex in every role, which is not installed" in said.stderr
    assert "hint: issueflow agents\n" in said.stderr
    assert plain.cli("agents").returncode == 1
    assert set(configured(plain).roles.values()) == {"codex"}


def test_the_cli_that_was_asked_for_is_taken(plain: Repo, install: Install) -> None:
    install("codex")
    assert "agents: qwen in every role, as asked, which is not installed" in plain.cli("init", "--agent", "qwen").stderr
    assert plain.cli("init").returncode == 1
    refused = plain.cli("init", "--agent", "hal")
    assert refused.returncode == 1 and "exists already" in refused.stderr


@pytest.mark.parametrize(
    ("files", "checks", "setup"),
    [
        ({}, [], []),
        ({"package.json": '{"scripts": {"test": "x"}}', "package-lock.json": "{}"}, ["npm test"], ["npm ci"]),
        ({"package.json": "[]", "yarn.lock": ""}, [], ["yarn install --frozen-lockfile"]),
        ({"package.json": b"\xff"}, [], []),
        ({"Cargo.toml": "", "Makefile": "test: all\n"}, ["cargo test --quiet", "make test"], []),
        ({"build.gradle": "", "gradlew": ""}, ["./gradlew test"], []),
        ({"build.gradle": ""}, ["gradle test"], []),
        ({"tests/test_x.py": ""}, ["python3 -m unittest discover -q -s tests -t ."], []),
        ({".gitmodules": ""}, [], ["git submodule update --init"]),
    ],
)
def test_checks_and_set_up_are_told_from_the_files(
    plain: Repo, install: Install, files: dict[str, str | bytes], checks: list[str], setup: list[str]
) -> None:
    for name, text in files.items():
        plain.write(name, text)
    said = plain.cli("init").stderr
    config = configured(plain)
    assert [command.run for command in config.checks] == checks
    assert [command.run for command in config.worktrees.setup] == setup
    for command in (*checks, *setup):
        assert command in said
