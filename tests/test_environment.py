"""What a run finds around it: the variables it gets and does not get, its ports, the files that are brought along."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE_CONFIG, Repo, approve, done, quick

from issueflow.engine import environment
from issueflow.engine.begin import create
from issueflow.errors import WrongWords
from issueflow.machine import Run

RUN = ".issueflow-run"
EDIT = {"write": "app.py", "text": "print('two')\n"}
KEY, OTHER = "AUTHORS_KEY", "REVIEWERS_KEY"
LONG = "0123456789-secret-value"


def sh(script: str) -> dict[str, Any]:
    return {"run": ["sh", "-c", script]}


def scripted(**more: Any) -> dict[str, Any]:
    return {"type": "scripted", "script": ".issueflow/scripted.yaml", **more}


def dump(path: Path) -> dict[str, Any]:
    code = f"import json, os; json.dump(dict(os.environ), open({str(path)!r}, 'w'))"
    return {"run": [sys.executable, "-c", code]}


def play(repo: Repo, *acts: dict[str, Any]) -> Run:
    repo.script(quick([*acts, EDIT, done()]))
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    return repo.advance(once=True).runs[-1]


def found(repo: Repo, tmp_path: Path, config: dict[str, Any], **agent: Any) -> dict[str, str]:
    """The environment of an agent under this `env:` and with these settings of its own."""
    repo.setup(quick(), agents={"scripted": scripted(**agent)}, env=config)
    play(repo, dump(tmp_path / "env.json"))
    seen: dict[str, str] = json.loads((tmp_path / "env.json").read_text())
    return seen


# ── which variables a run gets ──


def test_without_a_word_a_run_gets_what_the_person_has(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME", "thing")
    seen = found(repo, tmp_path, {})
    assert seen["SOME"] == "thing"
    assert seen["PATH"] == os.environ["PATH"]


def test_a_list_of_names_keeps_everything_else_out(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DECLARED", "OTHERWISE", "CLAUDECODE"):
        monkeypatch.setenv(name, "x")
    seen = found(repo, tmp_path, {"pass": ["DECLARED", "NOT_SET", "CLAUDECODE"]})
    assert seen["DECLARED"] == "x"
    assert seen["PATH"] == os.environ["PATH"] and seen["HOME"] == os.environ["HOME"]
    assert seen["ISSUEFLOW_ISSUE"] == "ISSUE-1"
    theirs = {"LC_CTYPE", "PWD", "SHLVL", "_", "__CF_USER_TEXT_ENCODING"}  # added by the system or a shell
    ours = {name for name in seen if name.startswith(("GIT_", "ISSUEFLOW_"))}
    assert seen.keys() - ours - theirs <= {*environment.NEEDED, "DECLARED"}


def test_a_name_is_dropped_and_one_is_set(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOISE", "x")
    monkeypatch.setenv("LEVEL", "the person's")
    config = {"drop": ["NOISE", "LANG"], "set": {"LEVEL": "the project's", "MODEL": "small", "ISSUEFLOW_RUN": "x"}}
    seen = found(repo, tmp_path, config, env={"MODEL": "large"})
    assert not {"NOISE", "LANG"} & seen.keys()
    assert (seen["LEVEL"], seen["MODEL"]) == ("the project's", "large")
    assert seen["ISSUEFLOW_RUN"].startswith("ISSUE-1/")


@pytest.mark.more
def test_what_is_set_reaches_set_up_and_checks_too(repo: Repo, tmp_path: Path) -> None:
    config = {"set": {"LEVEL": "the project's"}}
    log = tmp_path / "log"
    line = f'echo "$LEVEL" >> {log}'
    repo.setup(quick([EDIT, done()]), env=config, worktrees={"setup": [line]}, checks=[line])
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    assert repo.advance().stage == "deliver"
    assert log.read_text().split("\n")[:-1] == ["the project's"] * 3


def test_a_variable_of_the_person_s_is_written_down_by_name_only(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DECLARED", "DROPPED", KEY):
        monkeypatch.setenv(name, f"{LONG}-{name}")
    seen = found(repo, tmp_path, {"pass": ["DECLARED"], "drop": ["DROPPED"]}, keys=[KEY])
    assert (seen["DECLARED"], seen[KEY], seen.get("DROPPED")) == (f"{LONG}-DECLARED", f"{LONG}-{KEY}", None)
    written = [path for path in (repo.path / ".git" / "issueflow").rglob("*") if path.is_file()]
    assert "launch.json" in [path.name for path in written]
    assert [path.name for path in written if LONG.encode() in path.read_bytes()] == []


# ── keys ──


@pytest.mark.more
def test_a_key_reaches_only_the_agent_that_needs_it(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the other agent nor set-up nor checks."""
    for name in (KEY, OTHER):
        monkeypatch.setenv(name, "the key")
    log = tmp_path / "log"
    say = f'echo "%s ${{{KEY}:-none}} ${{{OTHER}:-none}}" >> {log}'
    script = {
        "develop": [[sh(say % "author"), EDIT, done()]],
        "review": [[sh(say % "reviewer"), approve()]],
    }
    workflow = {
        "name": "pair",
        "version": 1,
        "start": "develop",
        "roles": {"developer": "writes", "reviewer": "reads"},
        "stages": {
            "develop": {
                "kind": "agent",
                "role": "developer",
                "access": "write",
                "next": {"done": "verify", "blocked": "hold"},
            },
            "verify": {"kind": "check", "next": {"pass": "review", "fail": "hold", "error": "hold"}},
            "review": {
                "kind": "review",
                "target": "diff",
                "reviewers": [{"id": "one", "role": "reviewer"}],
                "next": {"approve": "deliver", "request_changes": "hold", "blocked": "hold"},
            },
            "deliver": {
                "kind": "human",
                "presents": ["diff"],
                "next": {"approve": "delivered", "request_changes": "hold", "cancel": "cancelled"},
            },
        },
    }
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(workflow))
    repo.setup(
        script,
        agents={"author": scripted(keys=[KEY]), "reader": scripted(keys=[OTHER])},
        roles={"developer": "author", "reviewer": "reader"},
        worktrees={"setup": [say % "set-up"]},
        checks=[say % "check"],
    )
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "pair", None)
    assert repo.advance().stage == "deliver"
    assert sorted(set(log.read_text().splitlines())) == [
        "author the key none",
        "check none none",
        "reviewer none the key",
        "set-up none none",
    ]


@pytest.mark.parametrize("env", [{}, {"pass": []}], ids=["everything passed", "nothing passed"])
def test_a_secret_that_no_check_may_see_is_still_taken_out_of_what_checks_print(
    repo: Repo, monkeypatch: pytest.MonkeyPatch, env: dict[str, Any]
) -> None:
    """A `.env` that was copied into the worktree may hold it."""
    monkeypatch.setenv(KEY, LONG)
    repo.write(".gitignore", ".env\n")
    repo.write(".env", f"{KEY}={LONG}\n")
    repo.setup(
        quick([EDIT, done()]),
        agents={"scripted": scripted(keys=[KEY] if not env else [])},
        secrets=[KEY],
        env=env,
        worktrees={"copy": [".env"]},
        checks=[f'cat .env; echo "seen: ${{{KEY}:-nothing}}"; false'],
    )
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    repo.advance(until="verify")
    repo.advance(once=True)
    run = repo.run_folder("02-verify")
    tail = json.loads((run / "checks.json").read_text())["checks"][0]["tail"]
    assert tail == f"{KEY}=[secret {KEY}]\nseen: nothing\n"
    assert LONG not in (run / "stdout.log").read_text()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"env": {"pass": "HOME"}}, "env.pass"),
        ({"env": {"pass": ["A=B"]}}, "env.pass.0"),
        ({"env": {"set": {"A B": "x"}}}, "env.set.A B"),
        ({"env": {"sets": {}}}, "env.sets"),
        ({"agents": {"scripted": scripted(keys=["A-B"])}}, "agents.scripted.keys.0"),
        ({"agents": {"scripted": scripted(keys=[KEY], env={KEY: "x"})}}, f"{KEY} also stands in env"),
        ({"agents": {"scripted": scripted(keys=[KEY])}, "env": {"drop": [KEY]}}, "cannot stand in env.drop"),
        ({"agents": {"scripted": scripted(keys=[KEY])}, "env": {"set": {KEY: "x"}}}, "cannot stand in env.set"),
        ({"secrets": [KEY], "env": {"set": {KEY: "x"}}}, f"{KEY} also stands in env.set"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(repo: Repo, config: dict[str, Any], words: str) -> None:
    repo.write(".issueflow/config.yaml", json.dumps({**EXAMPLE_CONFIG, **config}))
    with pytest.raises(WrongWords, match=r"config.yaml, line 1, column .*" + words):
        repo.hands.config  # noqa: B018


# ── ports ──


@pytest.mark.more
def test_a_run_has_ports_of_its_own(repo: Repo, tmp_path: Path) -> None:
    log = tmp_path / "log"
    say = f'echo "$ISSUEFLOW_PORT_BASE" >> {log}'
    repo.setup(quick([sh(say), EDIT, done()]), worktrees={"setup": [say]}, checks=[say])
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    assert repo.advance().stage == "deliver"
    assert log.read_text().split() == ["20410", "20410", "20420", "20420"]  # set-up and program of two runs


def test_ranges_of_neighbouring_issues_and_their_runs_do_not_meet() -> None:
    bases = [environment.port_base(f"ISSUE-{issue}", run) for issue in range(971, 1001) for run in range(1, 41)]
    assert len(set(bases)) == len(bases)
    assert min(bases) >= 20_000 and max(bases) + 9 < 32_768
    assert all(base % 10 == 0 for base in bases)
    assert environment.port_base("ISSUE-999999999", 1) == environment.port_base("ISSUE-999999999", 1)


# ── files that are brought along ──

LINKS = {
    "its folder is a link": ("conf/x", "ln -s {out} conf"),
    "it is a link itself": ("conf/x", "mkdir conf; ln -s {out}/x conf/x"),
    "it is a link to nothing": ("conf/x", "mkdir conf; ln -s {out}/new conf/x"),
    "a folder in it is a link": ("conf", "mkdir conf; ln -s {out} conf/deep"),
    "it is a folder": ("conf/x", "mkdir -p conf/x; touch conf/x/y"),
}


@pytest.mark.parametrize(("name", "act"), LINKS.values(), ids=LINKS)
def test_nothing_is_written_through_a_link_that_an_agent_committed(
    repo: Repo, tmp_path: Path, name: str, act: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "x").write_text("precious\n")
    repo.write(".gitignore", "conf\n")
    repo.write("conf/x", "from the checkout\n")
    repo.write("conf/deep/x", "from the checkout\n")
    plant = sh(f"rm -rf conf; {act.format(out=out)}; git add -f conf; git commit -qm link")
    repo.setup(quick([plant, done()]), worktrees={"copy": [name]})
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    said = repo.cli("advance", "1")
    assert said.returncode == 1
    assert "worktrees.copy or .link brings something to" in said.stderr and "hint: ls -ld " in said.stderr
    assert [path.name for path in out.iterdir()] == ["x"]
    assert (out / "x").read_text() == "precious\n"
    repo.setup(quick([plant, done()]), worktrees={"copy": []})
    assert repo.advance().stage == "deliver"


def test_a_link_is_not_made_below_a_link_either(repo: Repo, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    repo.write(".gitignore", "conf\n")
    repo.write("conf/data/rows", "1\n")
    plant = sh(f"rm -rf conf; ln -s {out} conf; git add -f conf; git commit -qm link")
    repo.setup(quick([plant, done()]), worktrees={"link": ["conf/data"]})
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    assert "has a link" in repo.cli("advance", "1").stderr
    assert list(out.iterdir()) == []


def test_a_folder_is_copied_with_its_links_and_without_what_is_no_file(repo: Repo, tmp_path: Path) -> None:
    """A tracked link that is there already, as it is, is no obstacle."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "far").write_text("far\n")
    repo.write("conf/default", "tracked\n")
    (repo.path / "conf" / "current").symlink_to("default")
    repo.commit("conf")
    repo.write(".gitignore", "conf/local\nconf/up\nconf/pipe\n/aside\n")
    repo.commit("ignore")
    repo.write("conf/local/x", "x\n")
    os.mkfifo(repo.path / "conf" / "pipe")
    (repo.path / "conf" / "up").symlink_to(tmp_path / "out")
    (repo.path / "aside").symlink_to(tmp_path / "out" / "far")
    repo.setup(quick(), worktrees={"copy": ["conf", "./aside", "not//there", "conf/pipe"]})
    run = play(repo, sh("cat conf/local/x conf/current conf/up/far aside > seen"))
    tree = Path(run.started.worktree)
    assert (tree / "seen").read_text() == "x\ntracked\nfar\nfar\n"
    assert (tree / "conf" / "up").readlink() == tmp_path / "out"
    assert not (tree / "aside").is_symlink() and not (tree / "conf" / "pipe").exists()
    assert run.ended.outcome.cls == "accepted"


@pytest.mark.parametrize("key", ["copy", "link"])
@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "//etc/passwd",
        "../beside",
        "a/../../b",
        "~/.npmrc",
        ".",
        "",
        ".git",
        ".GIT/config",
        ".issueflow-run/x",
    ],
)
def test_a_path_that_is_not_the_project_s_is_refused(repo: Repo, key: str, path: str) -> None:
    repo.write(".issueflow/config.yaml", json.dumps({**EXAMPLE_CONFIG, "worktrees": {key: [path]}}))
    with pytest.raises(WrongWords, match=rf"worktrees\.{key}\.0: .*(inside the project|belongs to git)"):
        repo.hands.config  # noqa: B018


# ── set-up ──


@pytest.mark.more
def test_set_up_that_fails_before_a_check_is_named_and_tried_again_and_the_work_stands(
    repo: Repo, tmp_path: Path
) -> None:
    """No attempt of the check is spent, and the developer is not asked again."""
    command = f"test ! -e app.lock || test -e {tmp_path}/tool"
    lock = {"write": "app.lock", "text": ""}
    repo.setup(quick([lock, EDIT, done()]), worktrees={"setup": [command]}, checks=["true"])
    create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    position = repo.advance()
    assert (position.stage, position.status, position.hold.cause) == ("verify", "held", "setup")
    assert command in position.hold.reason
    (tmp_path / "tool").touch()
    assert repo.cli("resume", "1").returncode == 0
    position = repo.position()
    assert (position.stage, position.status) == ("deliver", "waiting")
    runs = [(run.started.stage, run.started.attempt, run.ended.outcome.cls) for run in position.runs]
    assert runs == [("develop", 1, "accepted"), ("verify", 1, "setup"), ("verify", 1, "accepted")]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="macOS has no setsid")
def test_set_up_reads_nothing_and_leaves_nothing_running(repo: Repo, tmp_path: Path) -> None:
    """BR-150 for set-up: standard input ends at once, whatever the caller's is; a server it starts ends with it."""
    log = tmp_path / "log"
    token = f"5{os.getpid()}{time.monotonic_ns() % 10**9}"
    setup = [f"cat >> {log}; setsid sleep {token} & printf 'x\\377\\0\\033[31m'; echo set up >> {log}"]
    repo.setup(quick(), worktrees={"setup": setup})
    run = play(repo, sh(f"ps -eo args | grep -c '^sleep {token}' >> {log}; true"))
    assert run.ended.outcome.cls == "accepted"
    assert log.read_text() == "set up\n0\n"
