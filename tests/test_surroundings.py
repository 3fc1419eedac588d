"""What lies around the repository — settings, hooks, layouts, places — changes neither the walk nor is it changed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, done, quick

Make = Callable[..., Repo]
ONE = quick([{"write": "x.txt", "text": "1"}, done()])
HOOKS = (
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-rewrite",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "reference-transaction",
)


def standing(repo: Repo) -> dict[str, Any]:
    """All that belongs to the person: HEAD, branches, status, index bytes, stash, configuration, hooks."""
    own = Path(repo.git("rev-parse", "--absolute-git-dir"))
    common = Path(repo.git("rev-parse", "--path-format=absolute", "--git-common-dir"))
    heads = repo.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads").splitlines()
    return {
        "HEAD": (own / "HEAD").read_bytes(),
        "branches": [head for head in heads if not head.startswith("refs/heads/issueflow/")],
        "index": {path.name: path.read_bytes() for path in own.glob("*index*") if path.is_file()},
        "status": repo.git("--no-optional-locks", "status", "--porcelain=v2"),
        "stash": repo.git("stash", "list"),
        "config": (common / "config").read_bytes(),
        "hooks": {path.name: path.read_bytes() for path in (common / "hooks").glob("*")},
    }


def walk(repo: Repo, *before: str, **process: Any) -> None:
    """Begin an Issue and let its develop stage run, as a person types it; nothing of the person's may have moved."""
    was = standing(repo)
    requirement = repo.path.parent / "r3.md"
    requirement.write_text("# Do it\n\nPlease.\n")
    for words in (["new", os.fspath(requirement), "--workflow", "quick"], ["advance", "ISSUE-1", "--once"]):
        done = repo.cli(*before, *words, **process)
        assert done.returncode == 0, done.stderr
    shown = repo.cli(*before, "diff", "ISSUE-1", **process).stdout
    assert shown.startswith("diff --git a/x.txt b/x.txt\n")
    assert shown.endswith("@@ -0,0 +1 @@\n+1\n\\ No newline at end of file\n")
    assert standing(repo) == was
    head = repo.git("rev-parse", "refs/heads/issueflow/ISSUE-1/01-develop")
    files = repo.files("HEAD")
    made = repo.files(head)
    assert made.pop("x.txt")
    assert made == files


def ready(make: Make, name: str = "shop", **options: Any) -> Repo:
    repo = make(name, **options)
    repo.setup(ONE, checks=[])
    return repo


# ── variables, settings, hooks ──


@pytest.mark.more
def test_git_variables_that_point_to_another_repository_are_not_obeyed(
    make_repo: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, other = ready(make_repo), make_repo("other")
    was, git = standing(other), other.path / ".git"
    variables = {
        "GIT_DIR": git,
        "GIT_INDEX_FILE": git / "index",
        "GIT_WORK_TREE": other.path,
        "GIT_OBJECT_DIRECTORY": git / "objects",
        "GIT_NAMESPACE": "x",
        "GIT_EXTERNAL_DIFF": "/bin/true",
        "GIT_CONFIG_PARAMETERS": "'core.bare=true'",
    }
    walk(repo, env={name: os.fspath(value) for name, value in variables.items()})
    assert standing(other) == was


@pytest.mark.parametrize(
    "body",
    ["exit 1", "sleep 300", 'echo evil > x.txt; test -z "$1" || echo evil > "$1"'],
    ids=["failing", "hanging", "rewriting"],
)
def test_no_hook_runs(make_repo: Make, tmp_path: Path, body: str) -> None:
    """BR-176: none of the person's hooks runs, so none can harm, whatever it does."""
    repo = ready(make_repo)
    hooks = tmp_path / "hooks"
    for name in HOOKS:
        for folder in (hooks, repo.path / ".git" / "hooks"):
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(f"#!/bin/sh\necho $0 >> {tmp_path}/ran\n{body}\n")
            (folder / name).chmod(0o755)
    repo.git("config", "core.hooksPath", os.fspath(hooks))
    walk(repo)
    assert not (tmp_path / "ran").exists()


SETTINGS = {
    "branch.autoSetupMerge": "always",
    "color.diff": "always",
    "color.ui": "always",
    "commit.gpgsign": "true",
    "core.autocrlf": "input",
    "core.editor": "false",
    "core.fsmonitor": "/bin/false",
    "core.pager": "false",
    "core.quotePath": "true",
    "core.untrackedCache": "true",
    "diff.algorithm": "patience",
    "diff.external": "/bin/true",
    "diff.mnemonicPrefix": "true",
    "diff.noprefix": "true",
    "diff.wsErrorHighlight": "all",
    "gpg.program": "false",
    "log.showSignature": "true",
    "status.showUntrackedFiles": "no",
    "tag.gpgsign": "true",
    "worktree.guessRemote": "true",
}


def test_no_setting_of_the_person_s_changes_anything(make_repo: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """BR-167, BR-168, BR-170: signing, languages, colours, external diffs."""
    repo = ready(make_repo, init=("-b", "trunk"))
    for name, value in SETTINGS.items():
        repo.git("config", name, value)
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    walk(repo)


def test_a_person_without_git_identity_is_served(make_repo: Make, sealed: Path) -> None:
    repo = ready(make_repo)
    (sealed / ".gitconfig").unlink()
    walk(repo)
    assert repo.git("log", "-1", "--format=%an <%ae>", "issueflow/ISSUE-1/01-develop") == (
        "issueflow <issueflow@localhost>"
    )


def test_a_character_set_without_our_signs_shows_codes(make_repo: Make) -> None:
    repo = ready(make_repo)
    walk(repo, env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""})


# ── where it is, and from where the command is typed ──


@pytest.mark.parametrize(
    "name",
    ["a b", "日本語", "new\nline", "$HOME ~x", 'it\'s "q"', "-dash", "#h;&|*?", "%s{x}[/x]"],
    ids=["space", "CJK", "newline", "variable", "quotes", "dash", "shell", "markup"],
)
def test_the_folder_may_have_any_name(make_repo: Make, name: str) -> None:
    walk(ready(make_repo, name))


@pytest.mark.parametrize("place", ["subfolder", "linked worktree", ".git", "symbolic link", "-C"])
def test_the_command_may_be_typed_anywhere(
    make_repo: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """BR-192: the same Issues from wherever one stands."""
    repo = ready(make_repo)
    match place:
        case "subfolder":
            at = repo.path / "deep" / "down"
            at.mkdir(parents=True)
        case "linked worktree":
            at = tmp_path / "linked"
            repo.git("worktree", "add", "-q", "-b", "other", os.fspath(at))
        case "symbolic link":
            at = tmp_path / "link"
            at.symlink_to(repo.path)
        case _:
            at = repo.path / ".git" / "refs" if place == ".git" else repo.path
    walk(repo, "-C", os.fspath(at))
    assert repo.worktree("01-develop").is_dir()


# ── kinds of repositories ──


def test_a_path_that_is_no_utf_8_is_refused_before_anything_is_made(make_repo: Make) -> None:
    repo = ready(make_repo, os.fsdecode(b"b\xff"))
    requirement = repo.path.parent / "r3.md"
    requirement.write_text("# Do it\n")
    refused = repo.cli("new", os.fspath(requirement), "--workflow", "quick")
    assert refused.returncode == 1
    assert "is not UTF-8" in refused.stderr
    assert repo.hands.store.ids() == []


def test_a_required_filter_that_is_not_installed_is_named_and_the_run_begins_once_it_is(make_repo: Make) -> None:
    """BR-179: said in a sentence, and nothing is left over."""
    repo = make_repo()
    repo.write(".gitattributes", "*.bin filter=lfs\n")
    repo.write("big.bin", "pointer\n")
    repo.setup(ONE, checks=[])
    for key, value in {"clean": "no-git-lfs", "smudge": "no-git-lfs", "required": "true"}.items():
        repo.git("config", f"filter.lfs.{key}", value)
    repo.new("# Do it\n", "--workflow", "quick")
    refused = repo.cli("advance", "ISSUE-1", "--once")
    assert refused.returncode == 1
    assert "big.bin: smudge filter lfs failed" in refused.stderr
    for key in ("clean", "smudge"):
        repo.git("config", f"filter.lfs.{key}", "cat")
    assert repo.cli("advance", "ISSUE-1", "--once").returncode == 0


def submodule(make: Make, tmp_path: Path) -> Repo:
    inner, repo = make("inner"), make()
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", os.fspath(inner.path), "mod")
    return repo


def sparse(make: Make, tmp_path: Path) -> Repo:
    repo = make()
    repo.write("in/f", "f")
    repo.write("out/f", "f")
    repo.commit()
    repo.git("sparse-checkout", "set", "--sparse-index", "in", ".issueflow")
    return repo


def index_4(make: Make, tmp_path: Path) -> Repo:
    repo = make()
    repo.git("update-index", "--index-version", "4")
    return repo


def split_index(make: Make, tmp_path: Path) -> Repo:
    repo = make()
    repo.git("config", "core.splitIndex", "true")
    repo.git("update-index", "--split-index")
    return repo


def sha256(make: Make, tmp_path: Path) -> Repo:
    return make(init=("--object-format=sha256",))


def separate(make: Make, tmp_path: Path) -> Repo:
    return make(init=(f"--separate-git-dir={tmp_path}/elsewhere.git",))


@pytest.mark.parametrize("kind", [submodule, sparse, index_4, split_index, sha256, separate])
def test_a_repository_of_any_kind(make_repo: Make, tmp_path: Path, kind: Callable[[Make, Path], Repo]) -> None:
    repo = kind(make_repo, tmp_path)
    repo.setup(ONE, checks=[])
    walk(repo)


@pytest.mark.parametrize("how", [["--depth", "1"], ["--filter=blob:none"]], ids=["shallow", "partial"])
def test_a_clone_that_has_not_everything(make_repo: Make, tmp_path: Path, how: list[str]) -> None:
    """BR-185: the base is recorded, and nothing beyond it is needed."""
    origin = ready(make_repo, "origin")
    origin.git("config", "uploadpack.allowFilter", "true")
    clone = Repo(tmp_path / "clone")
    origin.git("clone", "-q", *how, f"file://{origin.path}", os.fspath(clone.path))
    walk(clone)


def test_a_worktree_of_a_bare_repository(make_repo: Make, tmp_path: Path) -> None:
    """BR-183: a bare clone has no remote branches; the base is a local commit."""
    origin, bare = ready(make_repo, "origin"), Repo(tmp_path / "bare.git")
    origin.git("clone", "-q", "--bare", os.fspath(origin.path), os.fspath(bare.path))
    refused = bare.cli("init")
    assert refused.returncode == 1
    assert "a bare repository has no files" in refused.stderr
    linked = Repo(tmp_path / "linked")
    bare.git("worktree", "add", "-q", os.fspath(linked.path), "main")
    walk(linked)


@pytest.mark.parametrize("state", ["detached", "dirty, with a stash", "in a merge"])
def test_a_checkout_in_the_middle_of_something(make_repo: Make, state: str) -> None:
    """BR-175 among others: a detached HEAD is as good as a branch."""
    repo = ready(make_repo)
    if state == "detached":
        repo.git("checkout", "-q", "--detach")
    elif state == "in a merge":
        repo.git("checkout", "-q", "-b", "other")
        repo.write("app.py", "other\n")
        repo.commit()
        repo.git("checkout", "-q", "main")
        repo.write("app.py", "main\n")
        repo.commit()
        repo.git("merge", "other", check=False)
    else:
        repo.write("app.py", "put away\n")
        repo.git("stash")
        repo.write("app.py", "staged\n")
        repo.git("add", "app.py")
        repo.write("app.py", "dirty\n")
        repo.write("untracked", "")
    walk(repo)


def test_two_shells_that_advance_all_start_every_run_once(make_repo: Make) -> None:
    repo = ready(make_repo)
    names = [repo.new("# Do it\n", "--workflow", "quick") for _ in range(2)]
    command = [sys.executable, "-m", "issueflow", "advance", "--all", "--jobs", "2", "--once"]
    shells = [subprocess.Popen(command, cwd=repo.path, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    said = ["".join(shell.communicate(timeout=60)) for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0], said
    assert "lock" not in "".join(said)
    for name in names:
        journal = repo.hands.store.issue(name).journal.read_text().splitlines()
        stages = [entry["stage"] for entry in map(json.loads, journal) if entry["kind"] == "started"]
        assert stages == sorted(set(stages))
