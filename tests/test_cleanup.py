"""Cleanup removes what is proven to be kept elsewhere, and says of everything else why it stays."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Repo, approve, done, quick, walk_through
from test_crash import named_points

from issueflow.engine import cleanup, decisions, launch
from issueflow.git import worktrees

IGNORING = {"write": ".gitignore", "text": "*.env\n*.db\nbuild/\n__pycache__/\n"}


BENCH: list[Path] = []  # one for each process of the suite: where the walk was made, its copy beside


@pytest.fixture
def finished(make_repo: Callable[..., Repo], tmp_path_factory: pytest.TempPathFactory) -> Repo:
    """An Issue of `quick`, delivered; its develop worktree still lies there.

    Walked once and copied back for each test, to the same place: worktrees know each other by absolute paths.
    """
    if not BENCH:
        bench = tmp_path_factory.mktemp("cleanup") / "bench"
        repo = make_repo(str(bench / "shop"))
        repo.setup(quick([IGNORING, {"write": "app.py", "text": "print('two')\n"}, done()]))
        repo.new("# Go\n", "--workflow", "quick")
        repo.advance()
        decisions.approve(repo.hands, "ISSUE-1", "")
        assert repo.advance().status == "delivered"
        bench.rename(bench.with_name("kept"))
        BENCH.append(bench)
    if BENCH[0].exists():
        subprocess.run(["chmod", "-R", "u+rwx", BENCH[0]], check=True)
        shutil.rmtree(BENCH[0])
    shutil.copytree(BENCH[0].with_name("kept"), BENCH[0], symlinks=True)
    return Repo(BENCH[0] / "shop")


def clean(repo: Repo, *, dry_run: bool = False, save: bool = False) -> list[cleanup.Finding]:
    return list(cleanup.clean(repo.hands, repo.hands.store.issue("ISSUE-1"), cleanup.Wish(dry_run, save)))


def test_a_worktree_whose_work_is_committed_goes_and_its_branch_stays(finished: Repo) -> None:
    tree, tip = finished.worktree("01-develop"), finished.git("rev-parse", "issueflow/ISSUE-1/01-develop")
    assert tree.is_dir()
    out = finished.cli("cleanup")
    assert out.returncode == 0
    assert f"removed  01-develop  (branch issueflow/ISSUE-1/01-develop is at {tip[:12]})" in out.stdout
    assert not tree.exists()
    assert finished.git("rev-parse", "issueflow/ISSUE-1/01-develop") == tip
    assert len(finished.git("worktree", "list").splitlines()) == 1
    assert not list((finished.path / ".git/issueflow/trash").iterdir())
    assert "nothing to clean up" in finished.cli("cleanup").stderr


def test_a_dry_run_says_the_same_and_changes_nothing(finished: Repo) -> None:
    (finished.worktree("01-develop") / "scratch.txt").write_text("x")
    said = clean(finished, dry_run=True)
    assert said == clean(finished)
    assert finished.worktree("01-develop").is_dir()


def edit(repo: Repo, tree: Path) -> None:
    (tree / "app.py").write_text("print('edited')\n")


def deleted(repo: Repo, tree: Path) -> None:
    (tree / "app.py").unlink()


def scratch(repo: Repo, tree: Path) -> None:
    (tree / "scratch.txt").write_text("an idea\n")
    (tree / "odd name\udcff").write_bytes(b"\0\1")
    (tree / "two\nlines").write_bytes(b"\r\n")


def ignored(repo: Repo, tree: Path) -> None:
    (tree / "local.env").write_text("KEY=1\n")
    (tree / "build").mkdir()
    (tree / "build" / "out.db").write_bytes(b"\0database")
    (tree / "build" / "two\nlines\udcff").write_bytes(b"")


def hidden_by_exclude(repo: Repo, tree: Path) -> None:
    (tree / "notes.txt").write_text("x\n")
    (repo.path / ".git" / "info" / "exclude").write_text("notes.txt\n")


def assume_unchanged(repo: Repo, tree: Path) -> None:
    repo.git("update-index", "--assume-unchanged", "app.py", cwd=tree)
    (tree / "app.py").write_text("print('hidden')\n")


def staged(repo: Repo, tree: Path) -> None:
    (tree / "half.txt").write_text("only in the index\n")
    repo.git("add", "half.txt", cwd=tree)
    (tree / "half.txt").unlink()


def detached(repo: Repo, tree: Path) -> None:
    repo.git("checkout", "-q", "--detach", cwd=tree)
    repo.git("commit", "-q", "--allow-empty", "-m", "on no branch", cwd=tree)


def amended(repo: Repo, tree: Path) -> None:
    repo.git("commit", "-q", "--allow-empty", "-m", "first try", cwd=tree)
    repo.git("commit", "-q", "--allow-empty", "--amend", "-m", "second try", cwd=tree)


def reset(repo: Repo, tree: Path) -> None:
    repo.git("commit", "-q", "--allow-empty", "-m", "first try", cwd=tree)
    repo.git("reset", "-q", "--hard", "HEAD~1", cwd=tree)


def stash(repo: Repo, tree: Path) -> None:
    (tree / "app.py").write_text("print('put aside')\n")
    repo.git("stash", cwd=tree)


def merging(repo: Repo, tree: Path) -> None:
    repo.write("app.py", "print('other')\n")
    repo.commit("other")
    assert repo.git("merge", "main", cwd=tree, check=False).startswith("Auto-merging")


def rebasing(repo: Repo, tree: Path) -> None:
    repo.write("app.py", "print('other')\n")
    repo.commit("other")
    repo.git("rebase", "main", cwd=tree, check=False)


def branch_deleted(repo: Repo, tree: Path) -> None:
    repo.git("update-ref", "-d", "refs/heads/issueflow/ISSUE-1/01-develop")
    repo.git("update-ref", "-d", "refs/heads/issueflow/ISSUE-1/delivered")


def nested(repo: Repo, tree: Path) -> None:
    (tree / "inner").mkdir()
    repo.git("init", "-q", cwd=tree / "inner")
    repo.git("commit", "-q", "--allow-empty", "-m", "inner", cwd=tree / "inner")
    (tree / "inner" / "file").write_text("x")


def nested_without_commits(repo: Repo, tree: Path) -> None:
    (tree / "build" / "inner").mkdir(parents=True)
    repo.git("init", "-q", cwd=tree / "build" / "inner")
    (tree / "build" / "inner" / "file").write_text("x")


def submodule(repo: Repo, tree: Path) -> None:
    allow = ("-c", "protocol.file.allow=always")
    library = repo.path.with_name("library")
    repo.git("init", "-q", str(library))
    repo.git("commit", "-q", "--allow-empty", "-m", "library", cwd=library)
    repo.git(*allow, "submodule", "--quiet", "add", str(library), "lib", cwd=tree)
    repo.git("commit", "-q", "-m", "use lib", cwd=tree)
    (tree / "lib" / "fix.txt").write_text("a fix\n")
    repo.git("add", "fix.txt", cwd=tree / "lib")
    repo.git("commit", "-q", "-m", "in lib", cwd=tree / "lib")
    repo.git("commit", "-q", "-a", "-m", "use the fix", cwd=tree)


def read_only(repo: Repo, tree: Path) -> None:
    (tree / "frozen").mkdir()
    (tree / "frozen" / "file").write_text("x")
    (tree / "frozen").chmod(0o555)


def pipe(repo: Repo, tree: Path) -> None:
    os.mkfifo(tree / "pipe")


def oversize(repo: Repo, tree: Path) -> None:
    (tree / "big.bin").write_bytes(bytes(range(256)) * 100_000)


def output(repo: Repo, tree: Path) -> None:
    (tree / ".issueflow-run" / "extra.md").write_text("nobody took this in\n")


def link_outside(repo: Repo, tree: Path) -> None:
    (repo.path.with_name("data")).mkdir()
    (repo.path.with_name("data") / "precious").write_text("x")
    (tree / "data.env").symlink_to(repo.path.with_name("data"))


AT_RISK = [
    (edit, "1 file changed and not committed: app.py"),
    (deleted, "1 file changed and not committed: app.py"),
    (scratch, "3 files untracked: odd name\\xff, scratch.txt, two\\nlines"),
    (ignored, "3 files ignored by git: build/out.db, build/two\\nlines\\xff, local.env"),
    (hidden_by_exclude, "notes.txt"),
    (assume_unchanged, "1 file changed and not committed: app.py"),
    (staged, "1 file staged and then changed on disk: half.txt"),
    (detached, "is on no branch"),
    (amended, "is on no branch"),
    (reset, "is on no branch"),
    (stash, "a stash entry was made in it"),
    (merging, "an unfinished merge, begun less than a minute ago; unresolved: app.py"),
    (rebasing, "an unfinished rebase"),
    (branch_deleted, "is on no branch"),
    (nested, "a repository of its own: inner/"),
    (nested_without_commits, "a repository of its own: build/inner/"),
    (submodule, "1 commit of the submodule lib in no other repository"),
    (read_only, "1 file untracked: frozen/file"),
    (pipe, "pipe (not a file)"),
    (oversize, "1 file untracked: big.bin"),
    (output, ".issueflow-run/extra.md"),
    (link_outside, "data.env"),
]
QUICK = (scratch, merging, nested)  # the others go the whole way among the slow tests


def contents(tree: Path) -> dict[str, object]:
    """Every path below `tree` with what is in it, but for git's own file and the exchange folder's copies."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name != ".issueflow-run"]
        for name in [*folders, *files]:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            what = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(mode) else ""
            found[str(path.relative_to(tree))] = (stat.S_IFMT(mode), what)
    found.pop(".git", None)
    return found


def reflog(repo: Repo) -> str:
    return (repo.path / ".git" / "worktrees" / "01-develop" / "logs" / "HEAD").read_text()


def everything(repo: Repo) -> dict[str, object]:
    """The whole bench but for lock files, which name who held them last."""
    found = contents(repo.path.parent)
    return {name: what for name, what in found.items() if not name.endswith("lock")}


@pytest.mark.parametrize(
    ("harm", "reason"),
    [pytest.param(h, r, id=h.__name__, marks=[] if h in QUICK else pytest.mark.slow) for h, r in AT_RISK],
)
def test_what_is_kept_nowhere_else_stays_or_is_saved_and_comes_back(
    finished: Repo, harm: Callable[[Repo, Path], None], reason: str
) -> None:
    """BR-002, BR-006, BR-008, BR-020, BR-061: each is named, shown by the hint, saved when asked, and brought back."""
    tree = finished.worktree("01-develop")
    harm(finished, tree)
    status = finished.git("status", "--porcelain", "--ignored", cwd=tree)
    seen = reflog(finished)
    before, whole = contents(tree), everything(finished)
    planned = finished.cli("cleanup", "--dry-run")
    assert everything(finished) == whole
    kept = finished.cli("cleanup")
    assert kept.stdout == planned.stdout
    assert kept.returncode == 0
    assert reason in kept.stdout
    assert "kept     01-develop" in kept.stdout
    hint = next(line for line in kept.stderr.splitlines() if line.startswith("hint: "))
    shown = subprocess.run(
        ["sh", "-c", hint.removeprefix("hint: ")], cwd=finished.path, capture_output=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert contents(tree) == before
    saved = finished.cli("cleanup", "--save")
    assert saved.returncode == 0, saved.stdout
    assert reason in saved.stdout
    assert not tree.exists()
    finished.git("gc", "-q", "--prune=now")
    assert finished.git("fsck", "--full", "--no-dangling") == ""
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert contents(tree) == before
    assert harm is branch_deleted or finished.git("status", "--porcelain", "--ignored", cwd=tree) == status
    assert reflog(finished) == seen
    assert "there is nothing to undo" in finished.cli("cleanup", "--undo").stderr
    if harm not in (detached, amended, reset, stash, branch_deleted):  # those have their keep refs now
        assert reason in finished.cli("cleanup", "--dry-run").stdout


def test_rebuildable_caches_do_not_keep_a_worktree(finished: Repo) -> None:
    cache = finished.worktree("01-develop") / "pkg" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "x.pyc").write_bytes(b"x")
    assert [finding.kept for finding in clean(finished)] == [()]
    assert not cache.exists()


def test_links_are_removed_and_their_targets_stay(finished: Repo, tmp_path: Path) -> None:
    """BR-013."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").write_text("x")
    tree = finished.worktree("01-develop")
    (tree / "node_modules").symlink_to(data)
    kept = clean(finished)[0].kept
    assert (data / "precious").read_text() == "x"
    assert kept == () or "node_modules" in kept[0].why


def test_a_process_in_the_tree_keeps_it(finished: Repo) -> None:
    """BR-010."""
    sleeper = subprocess.Popen(["sleep", "60"], cwd=finished.worktree("01-develop"))
    try:
        assert f"pid {sleeper.pid}" in clean(finished)[0].kept[0].why
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_person_s_worktrees_are_not_touched(finished: Repo, tmp_path: Path) -> None:
    """BR-018, BR-190, BR-202: own worktree under our prefix, an absent one, the main checkout through a link."""
    finished.git("worktree", "add", "-q", "-b", "issueflow/mine", str(tmp_path / "mine"))
    finished.git("worktree", "add", "-q", "-b", "absent", str(tmp_path / "absent"))
    shutil.rmtree(tmp_path / "absent")
    (tmp_path / "link").symlink_to(finished.path)
    assert finished.cli("cleanup", cwd=tmp_path / "link").returncode == 0
    listed = finished.git("worktree", "list", "--porcelain")
    assert str(tmp_path / "mine") in listed
    assert str(tmp_path / "absent") in listed
    assert (finished.path / "app.py").exists()


def test_counts_are_honest(finished: Repo) -> None:
    """BR-023: one removed, one gone before, one kept."""
    finished.script(walk_through() | {"code-review": [[approve()]]})
    shutil.rmtree(finished.worktree("01-develop"))
    out = finished.cli("cleanup")
    assert "gone     01-develop" in out.stdout
    assert "1 already gone" in out.stderr
    assert "01-develop" not in finished.git("worktree", "list")


def test_the_recorded_path_is_used_whatever_the_configuration_says_now(finished: Repo, tmp_path: Path) -> None:
    """BR-028."""
    config = finished.path / ".issueflow" / "config.yaml"
    elsewhere = json.loads(config.read_text()) | {"worktrees": {"root": str(tmp_path / "elsewhere")}}
    config.write_text(json.dumps(elsewhere))
    assert clean(finished)[0].path == finished.worktree("01-develop")
    assert not finished.worktree("01-develop").exists()


def test_reading_runs_leave_no_worktree_and_no_branch(repo: Repo) -> None:
    repo.new()
    repo.advance()
    assert len(repo.git("worktree", "list").splitlines()) == 1
    assert not repo.git("branch", "--list", "issueflow/*")


def test_a_removal_that_was_killed_half_way_is_finished(repo: Repo) -> None:
    repo.new()
    repo.advance()
    left = repo.path / ".git" / "issueflow" / "trash" / "123-01-analysis" / "folder"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    aside = repo.worktree(".01-analysis.gone")
    aside.mkdir(parents=True)
    repo.advance()
    assert not left.parent.exists()
    assert not aside.exists()


@pytest.mark.more
def test_the_entry_of_a_worktree_that_git_forgot_may_be_given_to_another_run(repo: Repo) -> None:
    """git names its entry after the folder, and every Issue has a folder called 01-develop."""
    repo.setup(quick([{"write": "app.py", "text": "print(2)\n"}, done()]))
    for name in ("ISSUE-1", "ISSUE-2"):
        repo.new("# Go\n", "--workflow", "quick")
        repo.advance(name)
        if name == "ISSUE-1":
            first = repo.worktree("01-develop")
            repo.git("worktree", "unlock", str(first))
            shutil.rmtree(first)
            repo.git("worktree", "prune")
    places = [launch.place_of(repo.run_folder("01-develop", name)) for name in ("ISSUE-1", "ISSUE-2")]
    assert places[0].admin == places[1].admin
    index = (places[1].admin / "index").read_bytes()
    assert [worktrees.is_registered(place) for place in places] == [False, True]
    assert "nothing to clean up" in repo.cli("cleanup", "1").stderr
    worktrees.forget(repo.hands.repository, places[0])
    assert (places[1].admin / "index").read_bytes() == index
    assert "01-develop" in repo.cli("cleanup", "2").stdout
    assert not places[1].path.exists()


# ── saving ──


def test_a_save_that_fails_keeps_the_tree_and_stops_no_other(finished: Repo) -> None:
    """BR-004."""
    finished.new("# More\n", "--workflow", "quick")
    finished.advance("ISSUE-2", until="deliver")
    for issue in ("ISSUE-1", "ISSUE-2"):
        (finished.worktree("01-develop", issue) / "scratch.txt").write_text(issue)
    finished.git("update-ref", "refs/issueflow-keep/ISSUE-1/01-develop", "HEAD")  # no ref below it can be made
    out = finished.cli("cleanup", "--save")
    assert out.returncode == 1
    assert "failed   ISSUE-1/01-develop  cannot be saved: git update-ref failed" in out.stdout
    assert (finished.worktree("01-develop") / "scratch.txt").read_text() == "ISSUE-1"
    assert not finished.worktree("01-develop", "ISSUE-2").exists()
    [saved] = finished.git("for-each-ref", "--format=%(refname)", "refs/issueflow-keep/ISSUE-2").splitlines()
    assert finished.git("show", f"{saved}:scratch.txt") == "ISSUE-2"


@pytest.mark.slow
def test_hooks_and_filters_have_no_part_in_saving(finished: Repo) -> None:
    """BR-005."""
    for name in ("pre-commit", "post-checkout", "reference-transaction", "commit-msg"):
        hook = finished.write(f".git/hooks/{name}", f"#!/bin/sh\ntouch {finished.path.parent}/ran\nexit 1\n")
        hook.chmod(0o755)
    scratch(finished, finished.worktree("01-develop"))
    assert finished.cli("cleanup", "--save").returncode == 0
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert (finished.worktree("01-develop") / "scratch.txt").read_text() == "an idea\n"
    assert not (finished.path.parent / "ran").exists()


def test_line_endings_come_back_byte_for_byte(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    config = finished.run_folder("01-develop") / "git" / "config"
    config.write_text(config.read_text() + "[core]\n\tautocrlf = true\n")
    mixed = b"one\r\ntwo\n"
    (tree / "mixed.txt").write_bytes(mixed)
    assert [finding.what for finding in clean(finished, save=True)] == ["removed"]
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert (tree / "mixed.txt").read_bytes() == mixed


def test_a_commit_on_the_run_s_branch_is_a_way_to_keep_a_file(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    scratch(finished, tree)
    finished.git("add", "-A", cwd=tree)
    finished.git("commit", "-q", "-m", "mine", cwd=tree)
    assert [finding.what for finding in clean(finished)] == ["removed"]


def test_what_cannot_be_saved_is_refused_by_name(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    replaced_git_file(finished, tree)
    kept = finished.cli("cleanup")
    assert "kept     01-develop  its .git file is no longer the one issueflow made" in kept.stdout
    assert kept.returncode == 0
    before = contents(tree)
    out = finished.cli("cleanup", "--save")
    assert "failed   01-develop  cannot be saved: its .git file is no longer the one" in out.stdout
    assert out.returncode == 1
    assert contents(tree) == before


def test_a_socket_is_refused_by_name(finished: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(finished.worktree("01-develop"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
    monkeypatch.chdir(finished.path)
    out = finished.cli("cleanup", "--save")
    assert "sock is a socket or a device, which no archive holds" in out.stdout
    assert out.returncode == 1
    assert not list(finished.hands.store.issue("ISSUE-1").folder.glob("saved/.*"))


def replaced_git_file(repo: Repo, tree: Path) -> None:
    (tree / ".git").unlink()
    repo.git("init", "-q", cwd=tree)


def without_powers(repo: Repo, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command as a user for whom file rights count: root is told to do without its powers."""
    argv = [sys.executable, "-m", "issueflow", *words]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root here, and no setpriv")
        argv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *argv]
    return subprocess.run(argv, cwd=repo.path, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.more
def test_an_unreadable_folder_keeps_its_tree_whatever_git_says(finished: Repo) -> None:
    """git lists such a folder as empty and ends with 0."""
    tree = finished.worktree("01-develop")
    (tree / "sec").mkdir()
    (tree / "sec" / "file").write_text("x")
    (tree / "sec").chmod(0)
    out = without_powers(finished, "cleanup")
    assert "kept     01-develop  cannot be read: sec" in out.stdout
    assert without_powers(finished, "cleanup", "--save").returncode == 1
    hint = next(line for line in out.stderr.splitlines() if line.startswith("hint: "))
    subprocess.run(["sh", "-c", hint.removeprefix("hint: ")], check=True)
    assert without_powers(finished, "cleanup", "--save").returncode == 0
    assert not tree.exists()


def test_files_of_another_user_are_told_apart_and_the_advice_is_about_ownership(finished: Repo) -> None:
    """BR-027."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    tree = finished.worktree("01-develop")
    cache = tree / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_text("x")
    os.chown(cache, 65534, 65534)
    out = without_powers(finished, "cleanup", "--save")
    assert "kept     01-develop  cannot be deleted, another user owns it: __pycache__" in out.stdout
    assert "hint: sudo chown -R" in out.stderr
    assert "force" not in out.stdout + out.stderr
    assert (cache / "x.pyc").exists()


def test_a_worktree_that_cannot_be_moved_is_counted_as_failed(finished: Repo) -> None:
    """BR-023, BR-025."""
    tree = finished.worktree("01-develop")
    tree.parent.chmod(0o555)
    out = without_powers(finished, "cleanup")
    tree.parent.chmod(0o755)
    assert "failed   01-develop" in out.stdout
    assert "Permission denied" in out.stdout
    assert "hint: ls -ld" in out.stderr
    assert "1 failed" in out.stderr
    assert out.returncode == 1
    assert (tree / "app.py").exists()
    assert "there is nothing to undo" in finished.cli("cleanup", "--undo").stderr
    assert [finding.what for finding in clean(finished)] == ["removed"]


def test_a_lock_of_a_person_is_respected(finished: Repo) -> None:
    """BR-025."""
    tree = str(finished.worktree("01-develop"))
    finished.git("worktree", "unlock", tree)
    finished.git("worktree", "lock", "--reason", "on the USB disk", tree)
    out = finished.cli("cleanup")
    assert "kept     01-develop  somebody locked it: on the USB disk" in out.stdout
    assert f"hint: git worktree unlock {tree}" in out.stderr
    finished.git("worktree", "unlock", tree)
    assert "removed  01-develop" in finished.cli("cleanup").stdout


def test_a_deleted_folder_s_commits_are_not_forgotten_with_it(finished: Repo) -> None:
    """The reflog in git's entry is all that knows them."""
    tree = finished.worktree("01-develop")
    detached(finished, tree)
    lost = finished.git("rev-parse", "HEAD", cwd=tree)
    shutil.rmtree(tree)
    assert f"kept     01-develop  commit {lost[:12]} is on no branch" in finished.cli("cleanup").stdout
    assert finished.cli("cleanup", "--save").returncode == 0
    assert lost in finished.git("for-each-ref", "--format=%(objectname)", "refs/issueflow-keep")


def test_a_running_run_is_refused_with_its_pid(repo: Repo) -> None:
    """BR-010."""
    repo.setup(quick([{"sleep": 60}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    walking = subprocess.Popen([sys.executable, "-m", "issueflow", "advance"], cwd=repo.path, stderr=subprocess.DEVNULL)
    try:
        while not (repo.run_folder("01-develop") / "started.json").exists():
            assert walking.poll() is None
        out = repo.cli("cleanup")
        assert "kept     01-develop  its run is not over (pid " in out.stdout
        assert repo.worktree("01-develop").is_dir()
    finally:
        repo.cli("cancel", "1")
        walking.wait()


# ── merged work ──


def by_squash(repo: Repo) -> None:
    repo.git("merge", "--squash", "-q", "issueflow/ISSUE-1/delivered")
    repo.git("commit", "-q", "-m", "squashed")


def by_squash_and_more(repo: Repo) -> None:
    by_squash(repo)
    repo.write("app.py", "print('three')\n")  # a merge of the branch would conflict by now
    repo.commit("later")


def by_rebase(repo: Repo) -> None:
    repo.write("other.txt", "x")
    repo.commit("meanwhile")
    repo.git("cherry-pick", "--keep-redundant-commits", "main~1..issueflow/ISSUE-1/delivered")


def by_merge(repo: Repo) -> None:
    repo.git("merge", "-q", "--no-ff", "-m", "merged", "issueflow/ISSUE-1/delivered")


def on_another_branch(repo: Repo) -> None:
    repo.git("branch", "release", "issueflow/ISSUE-1/delivered")


@pytest.mark.parametrize(
    ("deliver", "how", "keeps"),
    [
        (by_squash, "main (same tree)", True),
        (by_squash_and_more, "main (same patch)", True),
        (by_rebase, "main (", True),
        (by_merge, "main;", False),
        pytest.param(on_another_branch, "release;", False, marks=pytest.mark.slow),
    ],
    ids=["squash", "squash and more", "rebase", "merge", "another branch"],
)
def test_merged_branches_go_and_every_commit_stays_reachable(
    finished: Repo, deliver: Callable[[Repo], None], how: str, keeps: bool
) -> None:
    """BR-001, BR-021, BR-022."""
    tip = finished.git("rev-parse", "issueflow/ISSUE-1/delivered")
    deliver(finished)
    planned = finished.cli("cleanup", "--dry-run").stdout
    out = finished.cli("cleanup")
    assert out.returncode == 0
    assert out.stdout == planned.replace("would go", "removed ")
    assert f"removed  branch issueflow/ISSUE-1/delivered  merged into {how}" in out.stdout
    assert "1 removed" in out.stderr
    assert "2 branches removed" in out.stderr
    assert finished.git("branch", "--list", "issueflow/*") == ""
    kept = finished.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/issueflow-keep")
    assert kept == (
        f"refs/issueflow-keep/ISSUE-1/01-develop/tip {tip}\nrefs/issueflow-keep/ISSUE-1/delivered/tip {tip}"
        if keeps
        else ""
    )
    assert finished.git("for-each-ref", "--contains", tip)
    assert finished.cli("verify", "1").returncode == 0
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert finished.git("rev-parse", "issueflow/ISSUE-1/delivered", "issueflow/ISSUE-1/01-develop") == f"{tip}\n{tip}"
    assert (finished.worktree("01-develop") / "app.py").read_text() == "print('two')\n"


def test_unmerged_branches_and_branches_in_use_stay(finished: Repo, tmp_path: Path) -> None:
    assert [finding.branch for finding in clean(finished) if finding.path is None] == []
    finished.git("worktree", "add", "-q", str(tmp_path / "mine"), "issueflow/ISSUE-1/delivered")
    by_squash(finished)
    assert [f.branch for f in clean(finished) if f.what == "removed"] == ["issueflow/ISSUE-1/01-develop"]
    assert finished.git("rev-parse", "--abbrev-ref", "HEAD", cwd=tmp_path / "mine") == "issueflow/ISSUE-1/delivered"


def test_a_merge_driver_that_somebody_set_is_not_run(finished: Repo) -> None:
    finished.git("config", "merge.evil.driver", f"touch {finished.path.parent}/ran")
    finished.write(".git/info/attributes", "* merge=evil\n")
    finished.write("app.py", "print('one')\n\nprint('more')\n")
    finished.commit("meanwhile")
    assert finished.cli("cleanup").returncode == 0
    assert not (finished.path.parent / "ran").exists()


@pytest.mark.slow
def test_an_issue_can_be_reopened_and_delivered_after_its_branches_went(finished: Repo) -> None:
    by_squash(finished)
    clean(finished)
    finished.script(
        quick([{"write": "app.py", "text": "print('two')\n"}, done()], [{"write": "b", "text": "b"}, done()])
    )
    decisions.reopen(finished.hands, "ISSUE-1", "develop", "once more")
    finished.advance()
    decisions.approve(finished.hands, "ISSUE-1", "")
    assert finished.advance().status == "delivered"
    assert finished.git("rev-parse", "issueflow/ISSUE-1/delivered") == finished.position().head


# ── several Issues, strangers, scripts ──


def test_a_damaged_issue_stops_no_other(finished: Repo) -> None:
    finished.new("# More\n", "--workflow", "quick")
    journal = finished.hands.store.issue("ISSUE-2").journal
    journal.write_text("damaged\n")
    finished.git("update-ref", "-d", "refs/issueflow-records/ISSUE-2")
    out = finished.cli("cleanup")
    assert "failed   ISSUE-2" in out.stdout
    assert "removed  ISSUE-1/01-develop" in out.stdout
    assert out.returncode == 1


def test_a_damaged_issue_is_mended_from_its_record_and_cleaned_up(finished: Repo) -> None:
    journal = finished.hands.store.issue("ISSUE-1").journal
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]) + "garbage\n")
    out = finished.cli("cleanup")
    assert "the journal was damaged" in out.stderr
    assert "removed  01-develop" in out.stdout
    assert out.returncode == 0


def test_a_worktree_that_a_person_made_in_our_prefix_is_listed_and_left(finished: Repo, tmp_path: Path) -> None:
    """BR-018."""
    finished.git("worktree", "add", "-q", "-b", "issueflow/ISSUE-1/mine", str(tmp_path / "mine"))
    out = finished.cli("cleanup")
    assert f"left     {tmp_path / 'mine'}  not a worktree of a run (branch issueflow/ISSUE-1/mine)" in out.stdout
    assert (tmp_path / "mine" / "app.py").exists()
    assert out.returncode == 0


def test_what_a_killed_worktree_add_left_locked_is_cleared(repo: Repo) -> None:
    """BR-051."""
    repo.setup(quick([done()]))
    repo.new("# Go\n", "--workflow", "quick")
    crash = {"ISSUEFLOW_CRASH": f"prepare.branch#1@{repo.path.parent}/passed"}
    repo.cli("advance", "1", env=crash)
    entry = repo.path / ".git" / "worktrees" / "01-develop"
    entry.mkdir(parents=True)
    (entry / "gitdir").write_text(f"{repo.worktree('01-develop')}/.git\n")
    (entry / "locked").write_text("initializing")
    repo.cli("cancel", "1")
    assert [finding.what for finding in clean(repo) if finding.path] == ["removed"]
    assert not entry.exists()


def test_the_main_checkout_deleted_is_one_sentence(finished: Repo) -> None:
    """BR-060."""
    tree = finished.worktree("01-develop")
    shutil.rmtree(finished.path)
    out = finished.cli("cleanup", cwd=tree)
    assert out.returncode == 1
    assert "the main repository is missing or was moved" in out.stderr
    assert "Traceback" not in out.stderr
    assert (tree / "app.py").exists()


def test_one_cleanup_at_a_time(finished: Repo) -> None:
    with finished.hands.store.one_cleanup():
        out = finished.cli("cleanup")
        assert out.returncode == 3
        assert "another cleanup is at work" in out.stderr
    assert finished.worktree("01-develop").is_dir()


def test_json_says_the_same_and_nothing_else(finished: Repo) -> None:
    scratch(finished, finished.worktree("01-develop"))
    planned = json.loads(finished.cli("cleanup", "--dry-run", "--json").stdout)
    assert planned["version"] == 1
    assert planned["dry_run"] is True
    [finding] = planned["findings"]
    assert (finding["issue"], finding["run"], finding["what"]) == ("ISSUE-1", "01-develop", "kept")
    assert "scratch.txt" in finding["reasons"][0]["why"]
    saved = json.loads(finished.cli("cleanup", "--save", "--json").stdout)
    assert saved["counts"]["removed"] == 1
    assert saved["bytes"] > 0
    assert Path(saved["findings"][0]["saved"]["archive"]).is_file()
    [back] = json.loads(finished.cli("cleanup", "--undo", "--json").stdout)["undone"]
    assert (back["run"], back["error"]) == ("01-develop", None)


# ── undo ──


def test_undo_takes_back_the_last_cleanup_only_and_goes_with_no_other_word(finished: Repo) -> None:
    assert finished.cli("cleanup", "--undo", "--save").returncode == 2
    assert "there is nothing to undo" in finished.cli("cleanup", "--undo").stderr
    clean(finished)
    finished.cli("cleanup")  # nothing to do: the last cleanup is still the one before
    assert "back     ISSUE-1/01-develop" in finished.cli("cleanup", "--undo").stdout
    assert finished.worktree("01-develop").is_dir()
    assert [finding.what for finding in clean(finished)] == ["removed"]


def test_undo_does_not_take_a_place_that_is_taken(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    clean(finished)
    tree.mkdir(parents=True)
    (tree / "mine").write_text("x")
    out = finished.cli("cleanup", "--undo")
    assert out.returncode == 1
    assert "is taken by something else" in out.stdout
    assert [path.name for path in tree.iterdir()] == ["mine"]
    (tree / "mine").unlink()
    tree.rmdir()
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert (tree / "app.py").exists()


POINTS = [name for name in named_points() if name.startswith("cleanup.")]


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if n % 6 == 3 else pytest.mark.slow) for n, p in enumerate(POINTS)]
)
def test_a_cleanup_or_undo_killed_at_any_act_is_finished_by_the_same_command(finished: Repo, point: str) -> None:
    tree = finished.worktree("01-develop")
    scratch(finished, tree)
    ignored(finished, tree)
    nested(finished, tree)
    edit(finished, tree)
    by_squash(finished)
    before = contents(tree)
    branches = finished.git("for-each-ref", "refs/heads/issueflow")
    crash = {"ISSUEFLOW_CRASH": f"{point}#1@{finished.path.parent}/passed"}
    first = finished.cli("cleanup", "--save", env=crash)
    assert finished.cli("cleanup", "--save").returncode == 0
    assert not tree.exists()
    assert finished.git("for-each-ref", "refs/heads/issueflow") == ""
    killed = finished.cli("cleanup", "--undo", env=crash)
    assert -9 in (first.returncode, killed.returncode)
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert contents(tree) == before
    assert finished.git("for-each-ref", "refs/heads/issueflow") == branches
    assert not list(finished.hands.store.issue("ISSUE-1").folder.glob("saved/.*"))
    assert len(list(finished.hands.store.issue("ISSUE-1").folder.glob("saved/*"))) == 1


@pytest.mark.slow
def test_a_cleanup_killed_before_it_removed_anything_is_undone_by_leaving_it(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    scratch(finished, tree)
    crash = {"ISSUEFLOW_CRASH": f"cleanup.written#1@{finished.path.parent}/passed"}
    assert finished.cli("cleanup", "--save", env=crash).returncode == -9
    (tree / "scratch.txt").write_text("later\n")
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert (tree / "scratch.txt").read_text() == "later\n"


@pytest.mark.slow
def test_an_undo_killed_half_way_spares_what_was_written_meanwhile(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    edit(finished, tree)
    scratch(finished, tree)
    clean(finished, save=True)
    crash = {"ISSUEFLOW_CRASH": f"cleanup.undo-worktree#1@{finished.path.parent}/passed"}
    assert finished.cli("cleanup", "--undo", env=crash).returncode == -9
    (tree / "app.py").write_text("print('mine')\n")
    out = finished.cli("cleanup", "--undo")
    assert "left     ISSUE-1/01-develop  app.py was changed meanwhile; as it was saved: git show" in out.stdout
    assert (tree / "app.py").read_text() == "print('mine')\n"
    assert (tree / "scratch.txt").read_text() == "an idea\n"


def test_a_nested_repository_is_packed_without_its_caches_and_with_its_history(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    nested(finished, tree)
    (tree / "inner" / "node_modules").mkdir()
    (tree / "inner" / "node_modules" / "big.js").write_text("x")
    (tree / "node_modules").symlink_to(tree.parent)
    commit = finished.git("rev-parse", "HEAD", cwd=tree / "inner")
    [finding] = [finding for finding in clean(finished, save=True) if finding.path]
    with tarfile.open(str(finding.saved.archive)) as packed:
        names = packed.getnames()
    assert "tree/inner/.git/HEAD" in names
    assert "tree/node_modules" in names
    assert "tree/inner/node_modules" not in names
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert finished.git("rev-parse", "HEAD", cwd=tree / "inner") == commit


def test_a_plan_to_save_says_what_would_be_saved(finished: Repo) -> None:
    scratch(finished, finished.worktree("01-develop"))
    whole = everything(finished)
    planned = finished.cli("cleanup", "--dry-run", "--save")
    assert "save     01-develop  3 files untracked" in planned.stdout
    assert "would go 01-develop" in planned.stdout
    assert everything(finished) == whole


def test_a_cancelled_issue_without_work_leaves_nothing(repo: Repo) -> None:
    repo.setup(quick([done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    repo.cli("cancel", "1")
    assert repo.cli("cleanup").returncode == 0
    assert repo.git("branch", "--list", "issueflow/*") == ""
    assert len(repo.git("worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_submodules_come_back_where_git_has_another_name_for_the_worktree(finished: Repo) -> None:
    finished.new("# More\n", "--workflow", "quick")
    finished.advance("ISSUE-2", until="deliver")
    tree = finished.worktree("01-develop", "ISSUE-2")
    submodule(finished, tree)
    commit, before = finished.git("rev-parse", "HEAD", cwd=tree / "lib"), contents(tree)
    assert finished.cli("cleanup", "--save").returncode == 0
    assert finished.cli("cleanup", "--undo").returncode == 0
    after = contents(tree)
    assert before.pop("lib/.git") != after.pop("lib/.git")
    assert after == before
    assert finished.git("rev-parse", "HEAD", cwd=tree / "lib") == commit
    assert finished.git("status", "--porcelain", cwd=tree / "lib") == ""
    assert "1 commit of the submodule lib" in finished.cli("cleanup").stdout
    assert finished.worktree("01-develop").exists() is False


@pytest.mark.slow
def test_a_file_of_a_submodule_that_only_lies_there_is_saved_too(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    submodule(finished, tree)
    (tree / "lib" / "key.env").write_text("KEY=1")
    before = contents(tree)
    out = finished.cli("cleanup", "--save")
    assert "saved    01-develop  1 file not committed in the submodule lib: key.env" in out.stdout
    assert finished.cli("cleanup", "--undo").returncode == 0
    assert contents(tree) == before


def test_a_repository_whose_files_the_run_recorded_still_has_a_history_of_its_own(repo: Repo) -> None:
    """git passes over a `.git` folder below files it tracks."""
    acts = [
        {"run": ["sh", "-c", "git init -q app && cd app && echo x > f && git add f && git commit -qm inner"]},
        done(),
    ]
    repo.setup(quick(acts))
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    assert "app/f" in repo.files("issueflow/ISSUE-1/01-develop")
    assert "kept     01-develop  a repository of its own: app/" in repo.cli("cleanup").stdout


def test_a_worktree_an_agent_made_inside_its_own_stays(finished: Repo) -> None:
    tree = finished.worktree("01-develop")
    finished.git("worktree", "add", "-q", "-b", "inner", str(tree / "inner"))
    out = finished.cli("cleanup", "--save")
    assert (
        "failed   01-develop  cannot be saved: another worktree or a link to a repository elsewhere: inner/"
        in out.stdout
    )
    assert (tree / "inner" / "app.py").exists()
