"""`doctor` names what stops work and what may surprise, and changes nothing."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import EXAMPLE_CONFIG, Repo

from issueflow.engine import doctor

Finding = dict[str, Any]


@pytest.fixture(autouse=True)
def nothing_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repositories of tests lie in a temporary folder."""
    monkeypatch.setattr(doctor, "SWEPT", ("/nowhere",))
    monkeypatch.setenv("TMPDIR", "/nowhere")


def examine(repo: Repo, code: int = 0, **more: Any) -> list[Finding]:
    """What `doctor --json` found; it ended with `code`."""
    said = repo.cli("doctor", "--json", **more)
    assert said.returncode == code, said.stdout + said.stderr
    whole = json.loads(said.stdout)
    assert whole["ok"] == (code == 0)
    for one in whole["findings"]:
        assert one["level"] == "ok" or one["hint"], f"{one} has no hint"
        assert "\n" not in one["sentence"]
    found: list[Finding] = whole["findings"]
    return found


def told(repo: Repo, about: str, code: int = 0, **more: Any) -> Finding:
    """The one finding that is no `ok`."""
    odd = [one for one in examine(repo, code, **more) if one["level"] != "ok"]
    assert [one["about"] for one in odd] == [about], odd
    assert odd[0]["level"] == ("stop" if code else "note")
    return odd[0]


def configure(repo: Repo, **config: Any) -> None:
    repo.write(".issueflow/config.yaml", json.dumps({**EXAMPLE_CONFIG, **config}))


def test_where_all_is_well_nothing_stops_work_and_nothing_is_made(repo: Repo) -> None:
    before = sorted(path for path in (repo.path / ".git").rglob("*"))
    said = repo.cli("doctor")
    assert (said.returncode, said.stderr) == (0, "nothing stops work\n")
    assert {row.split()[0] for row in said.stdout.splitlines()} == {"ok"}
    for words in ("python", "git", "tmux", "config.yaml can be read", "go to ", "nothing unusual"):
        assert words in said.stdout
    assert sorted(path for path in (repo.path / ".git").rglob("*")) == before


def test_a_repository_and_a_configuration_need_not_be_there_yet(make_repo: Callable[..., Repo], tmp_path: Path) -> None:
    plain = make_repo()
    assert told(plain, "config")["hint"] == "issueflow init"
    (tmp_path / "plain").mkdir()
    outside = [one for one in examine(Repo(tmp_path / "plain"), 1) if one["level"] == "stop"]
    assert (outside[0]["about"], outside[0]["hint"]) == ("repository", "git init")


def test_a_broken_configuration_and_an_agent_that_is_not_there_stop_work(repo: Repo) -> None:
    repo.write(".issueflow/config.yaml", "version: [\n")
    assert "config.yaml, line 2" in told(repo, "config", 1)["sentence"]
    mine = {"type": "command", "argv": ["no-such-agent"]}
    configure(repo, agents={"mine": mine, "unused": mine, **EXAMPLE_CONFIG["agents"]}, roles={"developer": "mine"})
    assert told(repo, "agents", 1)["sentence"] == "mine, developer: no-such-agent is not installed"


# ── git and the machine ──


def with_git(tmp_path: Path, version: str) -> dict[str, str]:
    """A PATH on which git says that it is of this version."""
    folder = tmp_path / "old"
    folder.mkdir(exist_ok=True)
    real = next(Path(name) / "git" for name in os.environ["PATH"].split(":") if (Path(name) / "git").exists())
    script = f'for last; do :; done\n[ "$last" = version ] && exec echo "git version {version}"\nexec {real} "$@"\n'
    (folder / "git").write_text(f"#!/bin/sh\n{script}")
    (folder / "git").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("version", "level", "words"),
    [
        ("2.30.2", "stop", ["2.30.2 is too old: worktrees need 2.33 or newer"]),
        ("2.35.1.windows.2", "note", ["(needs 2.36)", "(needs 2.38)"]),
        ("2.37.0 (Apple Git-1)", "note", ["(needs 2.38)"]),
        ("2.50.1", "note", []),
        ("3.0.0", "note", []),
    ],
)
def test_what_an_older_git_cannot_do_is_named(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, level: str, words: list[str]
) -> None:
    monkeypatch.setenv("PATH", with_git(tmp_path, version)["PATH"])
    odd = [one for one in examine(repo, 1 if level == "stop" else 0) if one["about"] == "git" and one["level"] != "ok"]
    assert len(odd) == len(words)
    for one, word in zip(odd, words, strict=True):
        assert one["level"] == level and word in one["sentence"]


def test_without_git_that_is_all_there_is_to_say(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = examine(repo, 1, env={"PATH": str(tmp_path / "empty")})
    assert [one["about"] for one in found if one["level"] == "stop"] == ["git"]
    assert found[-1]["about"] in ("tmux", "lingering")


@pytest.mark.parametrize(("says", "noted"), [("Linger=no", True), ("Linger=yes", False), ("what?", False)])
def test_lingering_is_looked_at_where_systemd_is(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, noted: bool
) -> None:
    tool = tmp_path / "bin" / "loginctl"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho {says}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "SYSTEMD", tmp_path / "none")
    assert "lingering" not in [one["about"] for one in examine(repo)]
    monkeypatch.setattr(doctor, "SYSTEMD", tmp_path)
    hints = [one["hint"] for one in examine(repo) if one["about"] == "lingering"]
    assert hints == (["loginctl enable-linger"] if noted else [])


# ── where things lie ──


def test_a_worktree_root_that_the_system_sweeps_is_named(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-014: a reboot empties it."""
    (tmp_path / "swept").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "swept")
    configure(repo, worktrees={"root": str(tmp_path / "other" / "trees")})
    assert {one["level"] for one in examine(repo)} == {"ok"}
    monkeypatch.setattr(doctor, "SWEPT", (str(tmp_path / "swept"),))
    assert "systems empty by themselves (worktrees.root" in told(repo, "worktrees")["sentence"]
    monkeypatch.setattr(doctor, "SWEPT", ("/nowhere",))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "swept"))
    assert "systems empty by themselves (worktrees.root" in told(repo, "worktrees")["sentence"]


def test_a_repository_in_a_folder_that_is_swept_is_named(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SWEPT", (str(tmp_path),))
    odd = [one["about"] for one in examine(repo) if one["level"] != "ok"]
    assert odd == ["repository", "worktrees"]


def test_a_worktree_root_inside_the_checkout_is_named(repo: Repo) -> None:
    configure(repo, worktrees={"root": "trees"})
    assert "inside the checkout" in told(repo, "worktrees")["sentence"]


def test_a_worktree_root_where_nothing_can_be_made_stops_work(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    configure(repo, worktrees={"root": str(tmp_path / "file" / "trees")})
    found = told(repo, "worktrees", 1)
    assert f"{tmp_path / 'file'} is no folder" in found["sentence"] and found["hint"].startswith("ls -ld ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_stops_work(repo: Repo, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    configure(repo, worktrees={"root": str(tmp_path / "locked" / "trees")})
    assert "cannot be written" in told(repo, "worktrees", 1)["sentence"]


def test_a_disk_that_is_nearly_full_is_told_before_it_is_full(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE_ROOM", 1 << 60)
    assert told(repo, "repository")["hint"].startswith("df -h ")
    monkeypatch.setattr(doctor, "LEAST_ROOM", 1 << 60)
    assert "MiB are free" in told(repo, "repository", 1)["sentence"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user_that_git_refuses_stops_work(repo: Repo) -> None:
    for path in (repo.path, repo.path / ".git"):
        os.chown(path, 12345, 12345)
    found = told(repo, "repository", 1)
    assert "belongs to another user" in found["sentence"]
    assert found["hint"] == f"git config --global --add safe.directory {repo.path}"


# ── what is unusual about a repository ──


def lock(repo: Repo, name: str, age: float = 7200) -> None:
    path = repo.write(f".git/{name}", "")
    os.utime(path, (time.time() - age,) * 2)


def hook(repo: Repo, name: str) -> None:
    repo.write(name, "#!/bin/sh\nexit 1\n").chmod(0o755)


def submodule(repo: Repo) -> None:
    repo.write(".gitmodules", '[submodule "lib"]\n\tpath = lib\n\turl = ../lib\n')


def lfs(repo: Repo, **settings: str) -> None:
    repo.write("deep/.gitattributes", "# filter=none\n*.bin filter=lfs diff=lfs -text\n")
    repo.commit("attributes")
    for key, value in settings.items():
        repo.git("config", f"filter.lfs.{key}", value)


ODD: dict[str, tuple[Callable[[Repo], object], str, str]] = {
    "LFS without its filter": (lfs, "filter", "stay pointers of git LFS"),
    "LFS that is not installed": (lambda r: lfs(r, process="no-git-lfs filter-process"), "filter", "stay pointers"),
    "a submodule": (submodule, "submodules", "unless worktrees.setup fills them: lib"),
    "a sparse checkout": (lambda r: r.git("sparse-checkout", "set", ".issueflow"), "sparse", "only a part"),
    "a shallow clone": (lambda r: r.write(".git/shallow", r.git("rev-parse", "HEAD") + "\n"), "shallow", "its end"),
    "a partial clone": (lambda r: r.git("config", "remote.origin.promisor", "true"), "partial", "have to fetch"),
    "hooks": (lambda r: hook(r, ".git/hooks/pre-commit"), "hooks", "not run for commits of issueflow: pre-commit;"),
    "hooks elsewhere": (
        lambda r: (hook(r, ".husky/commit-msg"), r.git("config", "core.hooksPath", ".husky")),
        "hooks",
        "commit-msg",
    ),
    "a disk that ignores case": (lambda r: r.git("config", "core.ignorecase", "yes"), "disk", "differ only in case"),
    "an old lock": (lambda r: lock(r, "index.lock"), "lock", "index.lock is 120 minutes old"),
    "an old lock of a ref": (lambda r: lock(r, "refs/heads/x.lock"), "lock", "x.lock is 120 minutes old"),
}


@pytest.mark.parametrize(("make", "about", "words"), ODD.values(), ids=ODD)
def test_what_is_unusual_is_told_and_stops_nothing(
    repo: Repo, make: Callable[[Repo], object], about: str, words: str
) -> None:
    make(repo)
    assert words in told(repo, about)["sentence"]


def test_a_lock_of_another_user_is_told_however_young(repo: Repo) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    lock(repo, "packed-refs.lock", 0)
    assert {one["level"] for one in examine(repo)} == {"ok"}
    os.chown(repo.path / ".git" / "packed-refs.lock", 12345, 12345)
    assert "packed-refs.lock is another user's" in told(repo, "lock")["sentence"]


def test_a_required_filter_that_is_missing_stops_work(repo: Repo) -> None:
    """BR-179"""
    lfs(repo, smudge="no-git-lfs smudge", required="true")
    found = told(repo, "filter", 1)
    assert "no worktree can be made" in found["sentence"] and "no-git-lfs is not there" in found["sentence"]
    repo.git("config", "filter.lfs.smudge", "cat")
    assert {one["level"] for one in examine(repo)} == {"ok"}


def test_submodules_that_set_up_fills_are_nothing_unusual(repo: Repo) -> None:
    submodule(repo)
    configure(repo, worktrees={"setup": ["git submodule update --init"]})
    assert {one["level"] for one in examine(repo)} == {"ok"}


def test_a_repository_that_git_cannot_read_is_said(repo: Repo) -> None:
    repo.write(".git/config", "[core\n")
    found = told(repo, "repository", 1)
    assert "bad config line 1" in found["sentence"] and found["hint"] == "git status"


def test_doctor_runs_nothing_of_the_repository(repo: Repo, tmp_path: Path) -> None:
    """Neither a filter nor a hook nor an agent."""
    plant = f"touch {tmp_path}/planted"
    lfs(repo, smudge=f"sh -c '{plant}'", clean="cat")
    repo.write("x.bin", "x")
    repo.write(".git/hooks/post-checkout", f"#!/bin/sh\n{plant}\n").chmod(0o755)
    repo.git("config", "core.fsmonitor", plant)
    configure(repo, agents={"mine": {"type": "command", "argv": ["sh", "-c", plant]}}, roles={"developer": "mine"})
    examine(repo)
    assert not (tmp_path / "planted").exists()


def test_status_warns_of_worktrees_in_a_folder_that_is_swept(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BR-014: the default is not in one."""
    monkeypatch.setattr(doctor, "SWEPT", (str(tmp_path / "swept"),))
    repo.new("# One\n", "--workflow", "quick")
    repo.advance(once=True)
    assert "empty by themselves" not in repo.cli("status", "1").stdout
    repo.setup(worktrees={"root": str(tmp_path / "swept" / "trees")})
    repo.new("# Two\n", "--workflow", "quick")
    repo.advance("ISSUE-2", once=True)
    assert f"worktrees {tmp_path}/swept/trees/ISSUE-2 is in a folder" in repo.cli("status", "2").stdout
