"""What git does and nobody expects, and what issueflow makes of it; where each such trap is pinned by a test."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, done, quick
from test_cleanup import without_powers

from issueflow.engine import decisions
from issueflow.errors import GitFailed
from issueflow.git import command

EDIT = {"write": "app.py", "text": "print('two')\n"}
TESTS = Path(__file__).parent

# Number of the trap → the test that pins what comes of it; the words after it say what git does.
WHERE: dict[int, str] = {
    1: "test_scenarios.py::test_no_commit_of_ours_waits_for_a_key",  # signing asks for a passphrase, for ever
    2: "test_surroundings.py::test_no_hook_runs",  # also `--no-verify`, plumbing and `worktree add` run hooks
    3: "test_git_traps.py::test_a_worktree_that_git_reports_as_failed_is_judged_by_what_is_there",  # rc 3, tree there
    4: "test_scenarios.py::test_a_failing_hook_of_the_repository_has_no_effect",  # reference-transaction aborts
    5: "test_git_traps.py::test_a_commit_of_the_agent_s_that_hooks_rewrote_is_known_by_its_id",  # another message
    6: "test_git_traps.py::test_a_git_that_hangs_ends_in_time_with_all_it_has_started",  # a child holds the pipes
    7: "test_git_traps.py::test_hooks_below_a_tracked_folder_hinder_nothing",  # core.hooksPath=.husky, not installed
    8: "test_surroundings.py::test_a_person_without_git_identity_is_served",  # no commit without a name
    9: "test_git_traps.py::test_a_repository_of_another_user_is_explained_by_every_command",  # dubious ownership
    10: "test_git_traps.py::test_mixed_line_endings_are_no_reason_to_refuse_a_file",  # safecrlf adds nothing at all
    11: "test_snapshot.py::test_files_that_are_dirty_as_soon_as_they_are_checked_out_are_no_change",  # eol later
    12: "test_git_traps.py::test_a_file_whose_filter_is_not_set_up_is_named",  # past git-lfs, without a word
    13: "test_surroundings.py::test_a_required_filter_that_is_not_installed_is_named_and_the_run_begins_once_it_is",
    14: "test_scenarios.py::test_an_agent_is_told_that_submodules_are_not_checked_out",  # empty folders
    15: "test_cleanup.py::test_what_is_kept_nowhere_else_stays_or_is_saved_and_comes_back",  # a submodule's
    16: "test_snapshot.py::test_what_a_sparse_checkout_leaves_off_the_disk_is_not_deleted",  # not added
    17: "test_git_traps.py::test_a_partial_clone_whose_remote_is_away_begins_once_it_is_back",  # no tree
    18: "test_surroundings.py::test_a_worktree_of_a_bare_repository",  # no toplevel
    19: "test_scenarios.py::test_a_repository_without_a_commit_is_refused_before_anything_is_made",
    20: "test_scenarios.py::test_a_detached_head_without_main_or_remote_is_a_base_like_any_other",
    21: "test_scenarios.py::test_a_branch_in_the_way_is_named_before_anything_is_made",  # a branch is no folder
    22: "test_git_traps.py::test_a_branch_that_somebody_has_checked_out_is_not_taken_by_force",  # `-f`, `-B` do
    23: "test_git_traps.py::test_a_stranger_s_folder_in_the_place_of_a_worktree_stays",  # registered, and somebody's
    24: "test_runs.py::test_a_worktree_that_lost_its_git_file_does_not_reach_the_person_s_checkout",  # git climbs up
    25: "test_moved.py::test_a_copy_leaves_the_worktrees_of_the_original_alone",  # a copy commits into the original
    26: "test_git_traps.py::test_lock_files_of_the_person_s_git_hinder_nothing_and_stay",  # 0 bytes, no owner
    27: "test_surroundings.py::test_git_variables_that_point_to_another_repository_are_not_obeyed",  # -C is not enough
    28: "test_snapshot.py::test_a_commit_the_agent_left_behind_is_kept",  # its branch stays where it was
    29: "test_cleanup.py::test_a_deleted_folder_s_commits_are_not_forgotten_with_it",  # only a reflog knows
    30: "test_snapshot.py::test_rewritten_history_ends_on_top_of_the_base",  # no merge base any more
    31: "test_snapshot.py::test_a_deleted_branch_is_made_again",  # HEAD is unborn, the next commit a root
    32: "test_snapshot.py::test_done_with_an_unfinished_operation_is_contradicted",  # conflict markers committed
    33: "test_scenarios.py::test_a_stash_is_one_list_for_all_and_what_happens_to_it_is_told",  # of all worktrees
    34: "test_tampering.py::test_refs_stashes_hooks_and_settings_are_put_back_by_one_command",  # shared by worktrees
    35: "test_git_traps.py::test_another_run_s_worktree_is_locked_against_an_agent_that_tidies_up",  # --force
    36: "test_snapshot.py::test_what_the_agent_does_to_the_person_s_repository_is_reported",  # any ref can be moved
    37: "test_runs.py::test_a_run_knows_what_it_is_and_git_does_not_climb_out_of_it",  # gc takes what another staged
    38: "test_snapshot.py::test_the_files_of_a_nested_repository_are_recorded_as_files",  # a link without content
    39: "test_snapshot.py::test_a_repository_made_where_tracked_files_are_hides_no_change",  # nothing is added at all
    40: "test_cleanup.py::test_what_is_kept_nowhere_else_stays_or_is_saved_and_comes_back",  # ignored: deleted silently
    41: "test_git_traps.py::test_many_and_large_files_are_recorded_like_any_other",  # slow, and huge
    42: "test_snapshot.py::test_any_name_that_a_file_can_have_is_recorded",  # quoted, cut short
    43: "test_runs.py::test_a_document_that_is_no_plain_file_of_the_worktree_is_refused_with_the_reason",  # links out
    44: "test_runs.py::test_a_pipe_left_where_issueflow_looks_stops_nobody",  # reading waits for ever
    45: "test_git_traps.py::test_what_may_not_be_read_is_named_and_neither_lost_nor_taken_for_deleted",  # left out
    46: "test_cleanup.py::test_files_of_another_user_are_told_apart_and_the_advice_is_about_ownership",  # half removed
    47: "test_snapshot.py::test_what_lies_on_disk_is_what_is_recorded",  # mode changes
    48: "test_snapshot.py::test_nothing_the_agent_tells_git_hides_its_work",  # `*` in info/exclude
    49: "test_planted.py::test_the_reviewer_sees_what_was_hidden",  # assume-unchanged
    50: "test_planted.py::test_the_reviewer_sees_what_was_hidden",  # `git show HEAD` shows another commit
    51: "test_evidence.py::test_an_attribute_hides_nothing_from_the_reviewer",  # "Binary files differ"
    52: "test_disk.py::test_a_full_disk_under_the_worktrees",  # the folder is removed, the branch is left
}
BY_HAND: dict[int, str] = {}  # traps that no test can play, with the reason


def sh(script: str) -> dict[str, Any]:
    return {"run": ["sh", "-ec", script]}


def crashed(repo: Repo, point: str) -> None:
    """An `advance` that dies at a named act."""
    crash = {"ISSUEFLOW_CRASH": f"{point}#1@{repo.path.parent}/passed"}
    assert repo.cli("advance", "1", env=crash).returncode == -9


@cache
def functions_of(name: str) -> frozenset[str]:
    parsed = ast.parse((TESTS / name).read_text())
    return frozenset(node.name for node in parsed.body if isinstance(node, ast.FunctionDef))


def test_every_trap_has_its_test() -> None:
    """One that is renamed or removed takes its place in the table with it, or this fails."""
    assert sorted([*WHERE, *BY_HAND]) == list(range(1, 53))
    assert len(WHERE) >= 48
    missing = [place for place in WHERE.values() if place.split("::")[1] not in functions_of(place.split("::")[0])]
    assert missing == []


@pytest.fixture
def begun(repo: Repo) -> Repo:
    """An Issue of `quick` that nobody has advanced yet."""
    repo.script(quick([EDIT, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    return repo


def play(repo: Repo, *acts: dict[str, Any]) -> Any:
    """The first run, with these acts."""
    repo.script(quick([*acts, done()]))
    return repo.advance(once=True).runs[0]


# ── hooks, hanging programs ──


@pytest.mark.parametrize("whole", [True, False], ids=["the tree is whole", "killed half-way"])
def test_a_worktree_that_git_reports_as_failed_is_judged_by_what_is_there(
    begun: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """`worktree add` fails with a whole tree, by a hook, and dies leaving half of one: the index is what comes last."""
    monkeypatch.setattr(Repo, "meddled", True)
    kill = f'test -e {tmp_path}/whole || kill -9 $(cut -d" " -f4 /proc/$PPID/stat) $PPID; cat'
    begun.write(".gitattributes", "late.txt filter=deadly\n")
    begun.write("late.txt", "late\n")
    begun.commit("filtered")
    begun.git("config", "filter.deadly.smudge", kill)
    begun.new("# Go\n", "--workflow", "quick")
    real = command.run

    def failing(folder: Path, *words: str, **more: Any) -> Any:
        code, out, err = real(folder, *words, **more)
        return (3, out, b"error: a hook said no") if whole and "add" in words else (code, out, err)

    if whole:
        (tmp_path / "whole").touch()
        monkeypatch.setattr("issueflow.git.worktrees.run", failing)
        assert begun.advance("ISSUE-2").stage == "deliver"
        return
    stopped = begun.cli("advance", "2")
    assert (stopped.returncode, "error: git worktree " in stopped.stderr) == (1, True)
    assert not begun.position("ISSUE-2").runs[0].ended
    (tmp_path / "whole").touch()
    assert begun.advance("ISSUE-2").stage == "deliver"
    assert (begun.worktree("01-develop", "ISSUE-2") / "late.txt").read_text() == "late\n"


def test_a_commit_of_the_agent_s_that_hooks_rewrote_is_known_by_its_id(begun: Repo) -> None:
    """The person's hooks do run in an agent's own `git commit`: another content and another message are its work."""
    hooks = {"pre-commit": "echo formatted >> app.py; git add app.py", "commit-msg": 'echo "JIRA-1: rewritten" > "$1"'}
    for name, body in hooks.items():
        begun.write(f".git/hooks/{name}", f"#!/bin/sh\n{body}\n").chmod(0o755)
    run = play(begun, EDIT, sh("git commit -qam mine; git rev-parse HEAD > $HOME/made"))
    assert run.tip == (Path.home() / "made").read_text().strip()
    assert begun.git("log", "-1", "--format=%s", run.tip) == "JIRA-1: rewritten"
    assert begun.git("show", f"{run.tip}:app.py") == "print('two')\nformatted"
    assert begun.advance().head == run.tip


@pytest.mark.parametrize(
    "words",
    [["-c", "alias.slow=!SLEEP", "slow"], ["-c", "filter.slow.clean=SLEEP", "add", "a.bin"]],
    ids=lambda w: w[1],
)
def test_a_git_that_hangs_ends_in_time_with_all_it_has_started(
    make_repo: Callable[..., Repo], words: list[str]
) -> None:
    """What git has started holds its pipes: ended alone, git would be waited for until its filter ends, if ever."""
    repo = make_repo()
    repo.write(".gitattributes", "*.bin filter=slow\n")
    repo.write("a.bin", "x\n")
    sleep = f"sleep 300.{os.getpid()}"
    with pytest.raises(GitFailed, match="did not end in time"):
        command.git(repo.path, *(word.replace("SLEEP", f"{sleep}; cat") for word in words), limit=0.5)
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert sleep not in left
    assert not list((repo.path / ".git").glob("*.lock"))


def test_hooks_below_a_tracked_folder_hinder_nothing(begun: Repo) -> None:
    """As husky has it: `core.hooksPath=.husky`, whose programs are not installed in a fresh worktree."""
    begun.write(".husky/pre-commit", "#!/bin/sh\nexec no-such-tool-is-installed\n").chmod(0o755)
    begun.write(".husky/post-checkout", "#!/bin/sh\nexit 1\n").chmod(0o755)
    begun.commit("husky")
    begun.git("config", "core.hooksPath", ".husky")
    begun.new("# Go\n", "--workflow", "quick")
    begun.script(quick([EDIT, sh("! git commit -qam mine 2> $HOME/said"), done()]))
    assert begun.advance("ISSUE-2").stage == "deliver"
    assert "no-such-tool" in (Path.home() / "said").read_text()
    assert begun.git("show", f"{begun.position('ISSUE-2').head}:app.py") == "print('two')"


# ── settings, filters, kinds of repositories ──


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_repository_of_another_user_is_explained_by_every_command(begun: Repo) -> None:
    """git then answers nothing, which reads like `no such commit`; whether to trust is the person's to say."""
    subprocess.run(["chown", "-R", "nobody", begun.path], check=True)
    begun.write("r.md", "# Another\n")
    for words in ("new r.md", "advance 1", "status 1", "diff 1", "verify 1", "resume 1", "cleanup", "approve 1"):
        said = begun.cli(*words.split())
        assert said.returncode == 1, words
        assert f"error: git does not work in {begun.path}, which belongs to another user\n" in said.stderr
        assert said.stderr.endswith(f"hint: git config --global --add safe.directory {begun.path}\n")
    assert begun.hands.store.ids() == ["ISSUE-1"]
    assert "safe" not in (Path.home() / ".gitconfig").read_text()
    subprocess.run(["sh", "-c", said.stderr.rpartition("hint: ")[2]], check=True)
    assert begun.advance().stage == "deliver"


def test_mixed_line_endings_are_no_reason_to_refuse_a_file(begun: Repo) -> None:
    """With `core.safecrlf` git refuses what would not come back as it was, and everything else with it."""
    begun.git("config", "core.safecrlf", "true")
    begun.git("config", "core.autocrlf", "true")
    run = play(begun, EDIT, sh("printf 'a\\r\\nb\\n' > mixed.txt; printf 'a\\n' > unix.txt"))
    assert run.ended.code.noticed == ()
    shown = {name: begun.git("show", f"{run.tip}:{name}") for name in ("mixed.txt", "unix.txt", "app.py")}
    assert shown == {"mixed.txt": "a\nb", "unix.txt": "a", "app.py": "print('two')"}


@pytest.mark.parametrize("set_up", [False, True])
def test_a_file_whose_filter_is_not_set_up_is_named(begun: Repo, set_up: bool) -> None:
    """Where nobody has configured it git takes the file raw, and a large one goes into the history past git-lfs."""
    begun.write(".gitattributes", "*.bin filter=lfs diff=lfs -text\n*.raw -filter\n*.odd filter\n")
    begun.commit("lfs")
    if set_up:
        begun.git("config", "filter.lfs.clean", "cat")
    begun.new("# Go\n", "--workflow", "quick")
    names = ["one.bin", "two.bin", "a b\n.bin", "z.bin", "plain.raw", "plain.odd"]
    begun.script(quick([EDIT, *({"write": name, "text": "x"} for name in names), done()]))
    run = begun.advance("ISSUE-2", once=True).runs[0]
    assert run.ended.code.noticed == (
        ()
        if set_up
        else (
            "the filter lfs that git attributes ask for is not set up here; recorded without it: "
            "a b\n.bin, one.bin, two.bin and 1 more",
        )
    )
    assert {*names} <= begun.files(run.tip).keys()


def test_a_partial_clone_whose_remote_is_away_begins_once_it_is_back(
    make_repo: Callable[..., Repo], tmp_path: Path
) -> None:
    """The files of a base that was only fetched are not here: git makes no tree, and leaves the branch."""
    origin = make_repo("origin")
    origin.setup(quick([EDIT, done()]))
    origin.git("config", "uploadpack.allowFilter", "true")
    clone = Repo(tmp_path / "clone")
    origin.git("clone", "-q", "--filter=blob:none", f"file://{origin.path}", os.fspath(clone.path))
    origin.write("later.txt", "later\n")
    origin.commit("later")
    clone.git("fetch", "-q")
    clone.new("# Go\n", "--workflow", "quick", "--base", "origin/main")
    origin.path.rename(tmp_path / "away")
    stopped = clone.cli("advance", "1")
    assert (stopped.returncode, "Traceback" in stopped.stderr) == (1, False)
    assert "error: git worktree " in stopped.stderr
    assert not clone.worktree("01-develop").exists()
    assert "01-develop" not in clone.git("worktree", "list")
    (tmp_path / "away").rename(origin.path)
    assert clone.advance().stage == "deliver"
    assert "later.txt" in clone.files(clone.position().head)


# ── branches, folders and locks that are somebody's ──


def test_a_branch_that_somebody_has_checked_out_is_not_taken_by_force(begun: Repo, tmp_path: Path) -> None:
    """`worktree add -f` puts two worktrees on one branch, `-B` drops what is on it."""
    crashed(begun, "prepare.branch")
    branch = "issueflow/ISSUE-1/01-develop"
    begun.git("worktree", "add", "-q", os.fspath(tmp_path / "mine"), branch)
    begun.git("commit", "-q", "--allow-empty", "-m", "mine", cwd=tmp_path / "mine")
    tip = begun.git("rev-parse", branch)
    stopped = begun.cli("advance", "1")
    assert stopped.returncode == 1
    assert f"refs/heads/{branch} exists already" in stopped.stderr
    begun.git("reset", "-q", "--hard", "HEAD~1", cwd=tmp_path / "mine")
    stopped = begun.cli("advance", "1")
    assert stopped.returncode == 1
    assert f"already checked out at '{tmp_path}/mine'" in stopped.stderr
    assert stopped.stderr.endswith("hint: git worktree list\n")
    assert begun.git("cat-file", "-t", tip) == "commit"
    begun.git("worktree", "remove", os.fspath(tmp_path / "mine"))
    assert begun.advance().stage == "deliver"


FORCED = {"--force", "-f", "-B", "-D", "-A", "stash", "prune", "reset", "clean", "gc"}


def test_no_git_command_of_ours_is_forced() -> None:
    """Whatever git refuses is told; `prune` would forget a person's absent worktrees, `stash` is one list for all."""
    found = []
    for path in (TESTS.parent / "issueflow" / "git").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, (ast.Call, ast.Tuple, ast.List)):
                parts = call.args if isinstance(call, ast.Call) else call.elts
                words = {part.value for part in parts if isinstance(part, ast.Constant)}
                found += [(path.name, word) for word in words & FORCED]
    # `git config -f FILE` reads one file; `clean` is a filter's key too
    assert [item for item in found if item not in (("worktrees.py", "-f"), ("oddities.py", "clean"))] == []


def test_a_stranger_s_folder_in_the_place_of_a_worktree_stays(begun: Repo) -> None:
    """git still has the path in its list, and removes by path."""
    begun.advance()
    tree = begun.worktree("01-develop")
    shutil.rmtree(tree)
    tree.mkdir()
    (tree / "theirs.txt").write_text("theirs\n")
    begun.cli("cancel", "1")
    for words in (["cleanup"], ["cleanup", "--save"]):
        assert "01-develop  " in begun.cli(*words).stdout
        assert [path.name for path in tree.iterdir()] == ["theirs.txt"]
    assert "its .git file is no longer the one issueflow made" in begun.cli("cleanup").stdout


LOCKS = ("index.lock", "HEAD.lock", "config.lock", "refs/heads/main.lock", "objects/maintenance.lock", "gc.pid.lock")


def test_lock_files_of_the_person_s_git_hinder_nothing_and_stay(begun: Repo) -> None:
    """They are empty and have no owner: a person's git may be at work, and none of them is of anything we change."""
    for lock in LOCKS:
        begun.write(f".git/{lock}", "")
    assert begun.advance().stage == "deliver"
    decisions.approve(begun.hands, "ISSUE-1", "")
    assert begun.advance().status == "delivered"
    assert begun.cli("cleanup").returncode == 0
    assert not begun.worktree("01-develop").exists()
    assert [lock for lock in LOCKS if not (begun.path / ".git" / lock).exists()] == []


def test_another_run_s_worktree_is_locked_against_an_agent_that_tidies_up(begun: Repo) -> None:
    """`worktree remove --force` takes uncommitted work with it and asks nothing; a locked one it leaves."""
    play(begun, EDIT)
    (begun.worktree("01-develop") / "unsaved.txt").write_text("x\n")
    begun.new("# Tidy\n", "--workflow", "quick")
    tidy = "! git worktree remove --force ../../ISSUE-1/01-develop 2> $HOME/said; git worktree prune"
    begun.script(quick([sh(tidy), EDIT, done()]))
    assert begun.advance("ISSUE-2", once=True).runs[0].is_accepted
    assert "locked working tree, lock reason: issueflow ISSUE-1 01-develop" in (Path.home() / "said").read_text()
    assert (begun.worktree("01-develop") / "unsaved.txt").exists()


# ── what git leaves out ──


def test_what_may_not_be_read_is_named_and_neither_lost_nor_taken_for_deleted(begun: Repo) -> None:
    """git lists such a folder as empty, with exit code 0; what it tracks in there reads as gone."""
    begun.write("kept/deep/file.txt", "tracked\n")
    begun.commit("kept")
    begun.new("# Go\n", "--workflow", "quick")
    close = "mkdir sec; echo x > sec/new.txt; echo y > closed.txt; echo z > kept/deep/file.txt"
    begun.script(quick([EDIT, sh(f"{close}; chmod 000 sec closed.txt kept"), done()]))
    walked = without_powers(begun, "advance", "2", "--once")
    tree = begun.worktree("01-develop", "ISSUE-2")
    try:
        assert walked.returncode == 0, walked.stderr
        run = begun.position("ISSUE-2").runs[0]
        named = {f"not recorded: {name} (unreadable)" for name in ("sec/", "closed.txt", "kept/", "kept/deep/file.txt")}
        assert named == {*run.ended.code.noticed}
        assert begun.git("diff", "--name-only", run.started.base, run.tip) == "app.py"
        assert "kept     ISSUE-2/01-develop  cannot be read: " in without_powers(begun, "cleanup").stdout
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", tree], check=True)
    assert (tree / "sec" / "new.txt").read_text() == "x\n"


@pytest.mark.slow
def test_many_and_large_files_are_recorded_like_any_other(begun: Repo) -> None:
    """git takes seconds for them, and issueflow its time; nothing is left out for its size or number."""
    make = "import pathlib\nfor n in range(20_000):\n    path = pathlib.Path(f'many/{n % 100}/{n}')\n"
    make += "    path.parent.mkdir(parents=True, exist_ok=True)\n    path.write_text(str(n))\n"
    make += "with open('huge.bin', 'wb') as file:\n    file.truncate(1 << 30)\n"
    run = play(begun, {"run": [sys.executable, "-c", make]})
    files = begun.files(run.tip)
    assert sum(name.startswith("many/") for name in files) == 20_000
    assert begun.git("cat-file", "-s", files["huge.bin"].split()[2]) == str(1 << 30)
    assert run.is_accepted
    assert re.search(r"huge.bin +\| Bin 0 -> 1073741824 bytes", begun.cli("diff", "1", "--stat").stdout)
