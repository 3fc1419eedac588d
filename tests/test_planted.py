"""Nothing an agent plants in the repository is ever run by issueflow, and nothing it hides stays hidden."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIR, Repo, approve, develop, done, plan, quick, sampled, walk_through

from issueflow.cli.app import VERBS

# Agents and people of these tests change what is the person's, on purpose.
meddling = pytest.fixture(autouse=True)(lambda monkeypatch: monkeypatch.setattr(Repo, "meddled", True))

# Settings under which git runs a program; those below `STOPPING` cannot be switched off by name on a command line.
KEYS = (
    "core.fsmonitor",
    "core.hooksPath",
    "diff.external",
    "diff.evil.command",
    "diff.evil.textconv",
    "gpg.program",
    "gpg.ssh.program",
    "core.sshCommand",
    "core.gitProxy",
    "core.pager",
    "pager.diff",
    "core.editor",
    "sequence.editor",
    "credential.helper",
    "credential.https://evil.example.helper",
    "core.askPass",
    "trailer.evil.command",
    "trailer.Issueflow-Entry.command",
    "alias.status",
    "alias.diff-tree",
    "uploadpack.packObjectsHook",
    "core.alternateRefsCommand",
    "merge.evil.driver",
    "interactive.diffFilter",
    "browser.evil.cmd",
)
STOPPING = (
    "filter.evil.clean",
    "filter.evil.smudge",
    "filter.evil.process",
    "remote.evil.uploadpack",
    "include.path",
    "includeIf.onbranch:**.path",
)
HOOKS = (
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
)


class Evil:
    """Programs that leave a mark when they are run, each under the name of what would have run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marker = folder / "marker"
        folder.mkdir()

    def program(self, name: str) -> Path:
        path = self.folder / name.replace("/", "_").replace(":", "_")
        path.write_text(f"#!/bin/sh\necho '{name}' >> {self.marker}\ncat 2> /dev/null\n")
        path.chmod(0o755)
        return path

    def ran(self) -> list[str]:
        return self.marker.read_text().splitlines() if self.marker.exists() else []


@pytest.fixture
def evil(tmp_path: Path) -> Evil:
    return Evil(tmp_path / "evil")


def sh(script: str) -> dict[str, Any]:
    """An agent's act; `$common` is the git directory that all worktrees share, `$git` the worktree's own."""
    head = (
        'common="$(git rev-parse --path-format=absolute --git-common-dir)"; git="$(git rev-parse --absolute-git-dir)"'
    )
    return {"run": ["sh", "-c", f"{head}\n{script}"]}


def set_key(key: str, value: object) -> str:
    return f"git config -f \"$common/config\" --add '{key}' '{value}'\n"


def plant_all(evil: Evil) -> dict[str, Any]:
    """Every program git has a setting for, every hook, attributes that ask for drivers, and a second settings file."""
    script = "".join(set_key(key, evil.program(key)) for key in KEYS)
    script += set_key("commit.gpgsign", "true") + set_key("core.attributesFile", evil.folder / "attributes")
    script += set_key("core.excludesFile", evil.folder / "excludes") + set_key("extensions.worktreeConfig", "true")
    script += f'git config -f "$common/config.worktree" core.fsmonitor {evil.program("config.worktree")}\n'
    script += f'git config -f "$git/config.worktree" core.fsmonitor {evil.program("own config.worktree")}\n'
    for hook in HOOKS:
        script += f'mkdir -p "$common/hooks"; cp {evil.program(f"hook {hook}")!s} "$common/hooks/{hook}"\n'.replace(
            "evil/hook ", "evil/hook\\ "
        )
    script += 'echo "* filter=evil diff=evil merge=evil" >> "$common/info/attributes"\n'
    (evil.folder / "attributes").write_text("* filter=evil diff=evil\n")
    (evil.folder / "excludes").write_text("*\n")
    return sh(script)


def traps(evil: Evil) -> list[dict[str, Any]]:
    """Modules that Python would import from the folder it stands in, and a plugin that pytest would."""
    text = f"open({str(evil.marker)!r}, 'a').write(__name__ + ' imported\\n')\n"
    names = ("json.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "typing.py", "issueflow/__init__.py")
    return [{"write": name, "text": text} for name in names]


def arguments(tmp_path: Path) -> dict[str, list[list[str]]]:
    """Words to call each verb with while an Issue waits; refused or not, git is asked things."""
    requirement = tmp_path / "r.md"
    requirement.write_text("# Another\n")
    return {
        "init": [[]],
        "new": [[str(requirement), "--workflow", "quick"]],
        "advance": [["1"], ["1", "--dry-run"], ["2", "--once"]],
        "status": [[], ["1"], ["--json"], ["1", "--json"]],
        "approve": [["2"]],
        "request-changes": [["2", "-m", "no"]],
        "resume": [["1"]],
        "cleanup": [["--dry-run"], ["1"]],
        "show": [["1"], ["1", "plan"], ["1", "requirement"]],
        "diff": [["1"], ["1", "--stat"]],
        "log": [["1"]],
        "logs": [["1"]],
        "attach": [["1"]],
        "verify": [["1"]],
        "retry": [["2", "--reason", "x"]],
        "skip": [["2", "verify", "--reason", "x"]],
        "reopen": [["2", "--to", "develop", "--reason", "x"]],
        "amend": [["2", "--workflow", "quick"]],
        "note": [["1", "a word"]],
        "cancel": [["2"]],
        "push": [["origin"]],
        "fetch": [["origin"]],
        "agents": [[]],
        "doctor": [[]],
        "demo": [],  # makes a repository of its own
    }


def run_every_verb(repo: Repo, tmp_path: Path) -> None:
    words = arguments(tmp_path)
    assert set(words) >= {verb.__name__.replace("_", "-") for verb in VERBS}, "a new verb is tried here too"
    for verb, calls in words.items():
        for call in calls:
            assert "Traceback" not in repo.cli(verb, *call).stderr
    for call in (["list"], ["validate"]):
        repo.cli("workflow", *call)


@pytest.mark.more
def test_no_setting_hook_or_attribute_of_an_agent_runs_anything(repo: Repo, evil: Evil, tmp_path: Path) -> None:
    """Planted in the first run; then every verb, and the whole way to the delivered branch."""
    script = walk_through()
    script["analysis"] = [[plant_all(evil), *plan()]]
    attributes = {"write": ".gitattributes", "text": "* filter=evil diff=evil merge=evil\n"}
    script["develop"] = [develop({"write": "app.py", "text": "print('two')\n"}, attributes, *traps(evil))]
    repo.script(script)
    repo.new()
    assert repo.advance().stage == "plan-approval"
    assert repo.cli("approve", "1").returncode == 0
    assert repo.advance().stage == "deliver"
    run_every_verb(repo, tmp_path)
    for words in (["status"], ["diff", "1"]):
        typed = [sys.executable, "-P", "-m", "issueflow", *words]
        done_ = subprocess.run(typed, cwd=repo.worktree("03-develop"), capture_output=True, text=True, check=False)
        assert "Traceback" not in done_.stderr
    repo.cli("approve", "1")
    assert repo.advance().status == "delivered"
    assert repo.cli("cleanup", "1").returncode == 0
    assert evil.ran() == []
    noticed = "\n".join(repo.position().runs[0].ended.code.noticed)
    for name in ("file config was changed", "file config.worktree was made", "file hooks/pre-commit was", "attributes"):
        assert name in noticed


@pytest.mark.parametrize("key", sampled(STOPPING, "filter.evil.smudge"))
def test_a_setting_that_cannot_be_switched_off_stops_the_walk_until_it_is_put_back(
    repo: Repo, evil: Evil, key: str
) -> None:
    included = evil.folder / "included"
    included.write_text(f'[filter "evil"]\n\tsmudge = {evil.program("included")}\n')
    value = included if "path" in key else evil.program(key)
    attributes = 'echo "* filter=evil" | tee -a "$common/info/attributes" > .gitattributes\n'
    repo.script(quick([sh(set_key(key, value) + attributes), {"write": "app.py", "text": "2\n"}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    stopped = repo.cli("advance", "1")
    assert stopped.returncode == 1
    assert "was changed during run ISSUE-1/01-develop" in stopped.stderr
    assert "hint: issueflow resume ISSUE-1 --restore" in stopped.stderr
    for verb in (["status", "1"], ["diff", "1"], ["verify", "1"], ["cleanup", "--dry-run"], ["resume", "1"]):
        repo.cli(*verb)
    put_back = repo.cli("resume", "1", "--restore")
    assert put_back.returncode == 0, put_back.stderr
    assert "config is as it was before run 01-develop" in put_back.stdout
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert evil.ran() == []
    assert "evil" in next(repo.run_folder("01-develop").glob("replaced/config")).read_text()
    assert "is as it was before run" in repo.position().notes[-1].text


@pytest.mark.slow
def test_a_setting_outside_of_the_repository_stops_the_walk_too(repo: Repo, evil: Evil) -> None:
    """A home directory is the person's to put right; once it is, the walk goes on without another word."""
    program = evil.program("global")
    setting = {"run": ["git", "config", "--global", "filter.evil.smudge", str(program)]}
    repo.script(quick([setting, {"write": ".gitattributes", "text": "* filter=evil\n"}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    assert "filter.evil.smudge" in repo.cli("advance", "1").stderr
    assert "not put back: the git setting filter.evil.smudge" in repo.cli("resume", "1", "--restore").stdout
    assert repo.cli("advance", "1").returncode == 1
    repo.git("config", "--global", "--unset", "filter.evil.smudge")
    assert repo.advance().stage == "deliver"
    assert evil.ran() == []


def test_a_setting_that_a_person_means_is_obeyed_again(repo: Repo, evil: Evil) -> None:
    program = evil.program("filter.mine.smudge")
    acts = [sh(set_key("filter.mine.smudge", program)), {"write": ".gitattributes", "text": "*.py filter=mine\n"}]
    repo.script(quick([*acts, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    assert repo.cli("advance", "1").returncode == 1
    assert evil.ran() == []
    assert repo.cli("resume", "1", "--accept").returncode == 0
    assert repo.advance().stage == "deliver"
    assert set(evil.ran()) == {"filter.mine.smudge"}


@pytest.mark.slow
def test_the_run_of_another_issue_does_not_start_by_what_a_run_still_going_on_has_planted(
    repo: Repo, evil: Evil
) -> None:
    """Two Issues in parallel: nothing has been compared yet when the second one wants a worktree."""
    setting = sh(set_key("filter.evil.smudge", evil.program("smudge")))
    wait = {"run": ["sh", "-c", f"touch {evil.folder}/planted; while ! test -e {evil.folder}/go; do sleep 0.05; done"]}
    repo.script(quick([setting, wait, {"write": "a", "text": ""}, done()]))
    repo.new("# Go\n", "--workflow", "quick")
    other = repo.new("# Stay\n", "--workflow", "quick")
    first = subprocess.Popen([sys.executable, "-m", "issueflow", "advance", "1"], cwd=repo.path, stderr=subprocess.PIPE)
    while not (evil.folder / "planted").exists():
        assert first.poll() is None
    stopped = repo.cli("advance", other)
    (evil.folder / "go").touch()
    first.communicate(timeout=50)
    assert stopped.returncode == 1
    assert "the git setting filter.evil.smudge" in stopped.stderr
    assert "was changed during run ISSUE-1/01-develop" in stopped.stderr
    assert not repo.position(other).runs
    assert evil.ran() == []


def test_a_promisor_remote_is_asked_for_nothing(repo: Repo, evil: Evil) -> None:
    """A commit that is nowhere, named in the reflog, makes git fetch it; by a path, that runs `uploadpack`."""
    repo.git("clone", "-q", "--bare", str(repo.path), str(evil.folder / "there.git"))
    keys = {"url": evil.folder / "there.git", "promisor": "true", "uploadpack": evil.program("uploadpack")}
    nowhere = f"echo {'0' * 40} {'1' * 40} x '<x>' 1 +0000 x >> \"$git/logs/HEAD\""
    script = "".join(set_key(f"remote.evil.{key}", value) for key, value in keys.items()) + nowhere
    repo.script(quick([{"write": "a", "text": ""}, sh(script), done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.cli("advance", "1")
    assert repo.position().runs[0].is_accepted
    repo.cli("cleanup", "1")
    repo.cli("verify", "1")
    assert evil.ran() == []


def replaced_git_file(trap: Path) -> str:
    return f"rm .git; echo 'gitdir: {trap}/.git' > .git"


def replaced_git_folder(trap: Path) -> str:
    return f"rm .git; cp -r {trap}/.git .git"


def rewritten_commondir(trap: Path) -> str:
    return f'echo {trap}/.git > "$git/commondir"'


def rewritten_gitdir(trap: Path) -> str:
    return f'echo {trap}/.git > "$git/gitdir"'


def own_settings(trap: Path) -> str:
    return (
        f'cp {trap}/.git/config "$git/config"; git config -f "$common/config" extensions.worktreeConfig true;'
        f'cp {trap}/.git/config "$git/config.worktree"'
    )


def alternates(trap: Path) -> str:
    return f'echo {trap}/.git/objects > "$common/objects/info/alternates"'


def private_directory(trap: Path) -> str:
    """The folder through which issueflow reads the tree afterwards."""
    lens = '"$common/issueflow/issues/ISSUE-1/runs/01-develop/git"'
    return f"cp {trap}/.git/config {lens}/config; echo {trap}/.git > {lens}/commondir; mkdir -p {lens}/hooks"


def no_private_directory(trap: Path) -> str:
    return (
        f'rm -rf "$common/issueflow/issues/ISSUE-1/runs/01-develop/git"; cp {trap}/.git/config "$git/config.worktree"'
    )


SWAPS: list[Callable[[Path], str]] = [
    replaced_git_file,
    replaced_git_folder,
    rewritten_commondir,
    rewritten_gitdir,
    own_settings,
    alternates,
    private_directory,
    no_private_directory,
]


@pytest.mark.parametrize(
    "swap", sampled(SWAPS, rewritten_commondir, no_private_directory), ids=lambda swap: swap.__name__
)
def test_a_worktree_that_is_made_to_belong_elsewhere_runs_nothing_and_is_recorded(
    repo: Repo, evil: Evil, swap: Callable[[Path], str]
) -> None:
    """The other repository is full of programs, and its attributes ask for them."""
    trap = Repo(evil.folder / "trap")
    trap.path.mkdir()
    trap.git("init", "-q")
    trap.write(".gitattributes", "* filter=evil diff=evil\n")
    trap.commit("trap")
    for key in (*KEYS, "filter.evil.clean", "filter.evil.smudge", "filter.evil.process"):
        trap.git("config", key, str(evil.program(key)))
    acts = [{"write": "app.py", "text": "2\n"}, {"write": ".gitattributes", "text": "* filter=evil diff=evil\n"}]
    repo.script(quick([*acts, sh(swap(trap.path)), done()]))
    evil.marker.unlink(missing_ok=True)
    repo.new("# Go\n", "--workflow", "quick")
    position = repo.advance()
    for verb in (["status", "1"], ["diff", "1"], ["verify", "1"], ["cleanup", "1"], ["log", "1"]):
        assert "Traceback" not in repo.cli(*verb).stderr
    assert evil.ran() == []
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert repo.git("show", f"{position.head}:app.py") == "2"


ASSUME = "echo hidden >> app.py; git update-index --assume-unchanged app.py"
SKIP = "echo hidden >> app.py; git update-index --skip-worktree app.py"
EXCLUDE = "echo hidden > new.txt; echo '*' >> \"$common/info/exclude\"; echo '*' > \"$common/excludes\""
IGNORE = "echo hidden > new.txt; echo '*' > .gitignore"
GLOBAL_IGNORE = 'echo hidden > new.txt; git config -f "$common/config" core.excludesFile "$PWD/all"; echo \'*\' > all'
REPLACE = (
    "cp app.py old; echo hidden >> app.py; git commit -qam x; git replace -f HEAD HEAD~1;"
    " git replace -f $(git --no-replace-objects rev-parse HEAD:app.py) $(git rev-parse HEAD~1:app.py); rm old"
)
GRAFT = 'echo hidden >> app.py; git commit -qam x; echo $(git rev-parse HEAD) > "$common/info/grafts"'
NO_DIFF = "echo hidden >> app.py; echo '* -diff' | tee .gitattributes > \"$common/info/attributes\""
BINARY = "echo hidden >> app.py; echo 'app.py binary' | tee .gitattributes > \"$common/info/attributes\""
SUPPRESS = "echo hidden >> app.py; git config -f \"$common/config\" diff.ignoreSubmodules all; echo 'app.py diff=x' >"
SUPPRESS += ' "$common/info/attributes"; git config -f "$common/config" diff.x.xfuncname nothing;'
SUPPRESS += ' git config -f "$common/config" diff.x.binary true'
STALE = "touch -d 2001-01-01 app.py; git update-index -q --refresh; printf 'hidden     \\n' > app.py;"
STALE += " touch -d 2001-01-01 app.py"
HIDING = {
    "assume-unchanged": ASSUME,
    "skip-worktree": SKIP,
    "info-exclude": EXCLUDE,
    "gitignore": IGNORE,
    "excludesFile": GLOBAL_IGNORE,
    "replace": REPLACE,
    "graft": GRAFT,
    "no-diff": NO_DIFF,
    "binary": BINARY,
    "driver": SUPPRESS,
    "old-time": STALE,
}


@pytest.mark.parametrize("how", sampled(HIDING, "assume-unchanged", "replace", "no-diff"))
def test_the_reviewer_sees_what_was_hidden(repo: Repo, tmp_path: Path, how: str) -> None:
    look = {"run": ["cp", ".issueflow-run/diff.patch", str(tmp_path / "seen")]}
    repo.setup(
        {"develop": [[sh(HIDING[how]), done()]], "review": [[look, approve()]]},
        roles=dict.fromkeys(("developer", "reviewer"), "scripted"),
    )
    repo.write(".issueflow/workflows/pair.yaml", json.dumps(PAIR))
    repo.new("# Go\n", "--workflow", "pair")
    assert repo.advance().stage == "deliver"
    for shown in ((tmp_path / "seen").read_text(), repo.cli("diff", "1").stdout):
        assert "\n+hidden" in shown


def test_a_filter_of_the_person_s_goes_on_working(repo: Repo, evil: Evil) -> None:
    """As git-lfs does it: a pointer is committed, the content lies in the git directory and in every worktree."""
    store = 'store="$(git config lfs.storage || echo "$(git rev-parse --git-common-dir)/lfs")"; mkdir -p "$store"\n'
    put = 'cat > "$store/new"; s=$(sha1sum < "$store/new"); mv "$store/new" "$store/${s%% *}"; echo ${s%% *}\n'
    for word, text in (("clean", put), ("smudge", 'read s; cat "$store/$s"\n')):
        (evil.folder / word).write_text(store + text)
        repo.git("config", f"filter.store.{word}", f"sh {evil.folder / word}")
    repo.git("config", "filter.store.required", "true")
    repo.write(".gitattributes", "*.bin filter=store\n")
    repo.write("big.bin", "content one\n")
    look = {"run": ["cp", "big.bin", str(evil.folder / "seen")]}
    script = quick([look, {"write": "big.bin", "text": "content two\n"}, done()])
    repo.setup(script, checks=["grep -q 'content two' big.bin"])
    repo.new("# Go\n", "--workflow", "quick")
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert (evil.folder / "seen").read_text() == "content one\n"
    assert "content" not in repo.git("cat-file", "blob", f"{position.head}:big.bin")


@pytest.mark.slow
def test_settings_that_move_the_worktree_elsewhere_move_nothing(repo: Repo, evil: Evil) -> None:
    """core.worktree in the settings that all worktrees share."""
    other = evil.folder / "other"
    other.mkdir()
    repo.script(quick([{"write": "app.py", "text": "2\n"}, sh(set_key("core.worktree", other)), done()]))
    repo.new("# Go\n", "--workflow", "quick")
    repo.cli("advance", "1")
    assert os.listdir(other) == []
    assert repo.cli("resume", "1", "--restore").returncode == 0
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
