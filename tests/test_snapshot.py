"""What a run that may write leaves in its worktree is what its commit holds: no more, no less, whatever git is told."""

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Repo, done, quick

from issueflow.engine.begin import create
from issueflow.machine import Run

Act = dict[str, Any]
FAILED = "agent-failed"


def sh(script: str) -> Act:
    """An act that runs shell lines, stopping at the first that fails; `play` then says so."""
    return {"run": ["sh", "-ec", f"trap '[ $? = 0 ] || touch \"$HOME/{FAILED}\"' EXIT\n{script}"]}


def py(code: str) -> Act:
    """An act that runs Python, for names that neither YAML nor a shell can hold."""
    return sh(f"exec {sys.executable} - <<'END'\n{code}\nEND")


def write(name: str, text: str, **more: Any) -> Act:
    return {"write": name, "text": text, **more}


def play(repo: Repo, *acts: Act) -> Run:
    """One develop run of `quick` that plays `acts` and says `done`."""
    repo.meddled = True  # half of these agents do
    repo.script(quick([*acts, done()]))
    name = create(repo.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    run = repo.advance(name, once=True).runs[-1]
    assert not (Path.home() / FAILED).exists(), "a shell line of the scripted agent failed"
    return run


def worktree(run: Run) -> Path:
    return Path(run.started.worktree)


def on_disk(folder: Path, algorithm: str = "sha1") -> dict[str, str]:
    """What lies in a folder, as `Repo.files` has it: computed without git, so that git cannot be wrong about it."""
    found = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", ".issueflow-run")]
        for name in [*names, *(f for f in folders if os.path.islink(os.path.join(top, f)))]:
            path = os.path.join(top, name)
            mode = os.lstat(path).st_mode
            if name == ".git" or not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                continue
            data = os.fsencode(os.readlink(path)) if stat.S_ISLNK(mode) else Path(path).read_bytes()
            kind = "120000" if stat.S_ISLNK(mode) else "100755" if mode & 0o100 else "100644"
            digest = hashlib.new(algorithm, b"blob %d\0" % len(data) + data).hexdigest()
            found[os.path.relpath(path, folder)] = f"{kind} blob {digest}"
    return found


def changes(repo: Repo, run: Run) -> dict[str, str]:
    """Path to A, D, M or T for all that differs between the run's base and what was recorded."""
    parts = repo.git("diff-tree", "-r", "-z", "--no-renames", "--name-status", run.started.base, run.tip).split("\0")
    return dict(zip(parts[1::2], parts[0::2], strict=False))


def content(repo: Repo, run: Run, name: str) -> bytes:
    return subprocess.run(
        ["git", "cat-file", "blob", f"{run.tip}:{name}"], cwd=repo.path, capture_output=True, check=True
    ).stdout


def noticed(run: Run) -> str:
    return "\n".join(run.ended.code.noticed)


def stock(repo: Repo) -> Repo:
    """Something of every kind to change, committed."""
    repo.write("docs/guide.md", "# Guide\n")
    repo.write("docs/more.md", "more\n")
    repo.write("bin/tool", "#!/bin/sh\n").chmod(0o755)
    repo.write("data.bin", bytes(range(256)) * 8)
    (repo.path / "link").symlink_to("app.py")
    repo.setup(quick())
    return repo


@pytest.fixture
def stocked(make_repo: Callable[..., Repo]) -> Repo:
    return stock(make_repo())


# ── what lies on disk is what is recorded ──

WORK: dict[str, tuple[list[Act], dict[str, str]]] = {
    "edits nobody committed": (
        [write("app.py", "two\n"), sh("echo more >> docs/guide.md")],
        {"app.py": "M", "docs/guide.md": "M"},
    ),
    "new files": ([write("new.py", "new\n"), write("a/b/c/deep.py", "")], {"new.py": "A", "a/b/c/deep.py": "A"}),
    "the agent committed all of it": (
        [write("app.py", "two\n"), write("new.py", ""), {"commit": "mine"}],
        {"app.py": "M", "new.py": "A"},
    ),
    "several commits": (
        [write("app.py", "two\n"), {"commit": "one"}, write("app.py", "three\n"), {"commit": "two"}],
        {"app.py": "M"},
    ),
    "committed, then edited further": (
        [write("app.py", "two\n"), {"commit": "half"}, write("app.py", "three\n"), write("new.py", "")],
        {"app.py": "M", "new.py": "A"},
    ),
    "committed, then put back on disk": (
        [
            write("docs/more.md", "else\n"),
            write("app.py", "two\n"),
            {"commit": "both"},
            sh("git show HEAD~1:app.py > app.py"),
        ],
        {"docs/more.md": "M"},
    ),
    "a new file committed, then deleted on disk": (
        [write("new.py", ""), write("app.py", "two\n"), {"commit": "both"}, {"delete": "new.py"}],
        {"app.py": "M"},
    ),
    "a deletion committed, then made again on disk": (
        [{"delete": "app.py"}, {"delete": "docs/more.md"}, {"commit": "gone"}, write("app.py", "back\n")],
        {"app.py": "M", "docs/more.md": "D"},
    ),
    "staged only": ([write("new.py", "new\n"), sh("git add new.py")], {"new.py": "A"}),
    "staged, then edited on disk": (
        [write("app.py", "two\n"), sh("git add app.py"), write("app.py", "three\n")],
        {"app.py": "M"},
    ),
    "taken out of the index, still on disk": ([sh("git rm -q --cached app.py"), write("b", "")], {"b": "A"}),
    "a deleted file": ([{"delete": "app.py"}], {"app.py": "D"}),
    "a deleted folder": ([{"delete": "docs"}], {"docs/guide.md": "D", "docs/more.md": "D"}),
    "a renamed file": ([sh("mv app.py main.py")], {"app.py": "D", "main.py": "A"}),
    "a renamed folder": (
        [sh("git mv docs text")],
        {"docs/guide.md": "D", "docs/more.md": "D", "text/guide.md": "A", "text/more.md": "A"},
    ),
    "a mode change": ([sh("chmod +x app.py; chmod -x bin/tool")], {"app.py": "M", "bin/tool": "M"}),
    "a new link": ([write("there", "", link="docs")], {"there": "A"}),
    "a link that points outside and nowhere": (
        [write("out", "", link="/etc/passwd"), write("void", "", link="no/such")],
        {"out": "A", "void": "A"},
    ),
    "a link that points elsewhere": ([write("link", "", link="docs/guide.md")], {"link": "M"}),
    "a link becomes a file": ([write("link", "plain\n")], {"link": "T"}),
    "a file becomes a link": ([write("app.py", "", link="docs/guide.md")], {"app.py": "T"}),
    "a binary": ([sh("head -c 70000 /dev/urandom > data.bin")], {"data.bin": "M"}),
    "an empty file": ([sh(": > app.py; : > empty")], {"app.py": "M", "empty": "A"}),
    "a file becomes a folder": (
        [sh("rm app.py; mkdir app.py; echo x > app.py/main.py")],
        {"app.py": "D", "app.py/main.py": "A"},
    ),
    "a folder becomes a file": (
        [sh("rm -r docs; echo flat > docs")],
        {"docs/guide.md": "D", "docs/more.md": "D", "docs": "A"},
    ),
    "a file becomes a folder in a commit and a file again on disk": (
        [sh("rm app.py; mkdir app.py; echo x > app.py/x"), {"commit": "folder"}, sh("rm -r app.py; echo y > app.py")],
        {"app.py": "M"},
    ),
    "a folder becomes a file in a commit and a folder again on disk": (
        [sh("rm -r docs; echo x > docs"), {"commit": "file"}, sh("rm docs; mkdir docs; echo y > docs/new.md")],
        {"docs/guide.md": "D", "docs/more.md": "D", "docs/new.md": "A"},
    ),
    "a folder becomes a link to a new folder that holds the same names": (
        [sh("mv docs text; ln -s text docs")],
        {"docs/guide.md": "D", "docs/more.md": "D", "docs": "A", "text/guide.md": "A", "text/more.md": "A"},
    ),
    "a folder becomes a link to a copy of it": (
        [sh("cp -r docs text; rm -r docs; ln -s text docs")],
        {"docs/guide.md": "D", "docs/more.md": "D", "docs": "A", "text/guide.md": "A", "text/more.md": "A"},
    ),
    "a folder becomes a link to a changed copy outside": (
        [sh("cp -r docs $HOME/text; rm -r docs; ln -s $HOME/text docs; echo x > docs/guide.md")],
        {"docs/guide.md": "D", "docs/more.md": "D", "docs": "A"},
    ),
    "the same size and the same time as before": (
        [
            sh("touch -r app.py $HOME/then; tr one two < app.py > $HOME/x; cat $HOME/x > app.py"),
            sh("touch -r $HOME/then app.py"),
        ],
        {"app.py": "M"},
    ),
    "a folder with a .git that is none": (
        [sh("mkdir -p a/.git b; echo x > a/x; echo 'gitdir: /nowhere' > b/.git; echo y > b/y")],
        {"a/x": "A", "b/y": "A"},
    ),
}


@pytest.mark.parametrize(("acts", "expected"), WORK.values(), ids=WORK)
def test_what_lies_on_disk_is_what_is_recorded(stocked: Repo, acts: list[Act], expected: dict[str, str]) -> None:
    """BR-110, BR-113: uncommitted work and the agent's own commits alike."""
    run = play(stocked, *acts)
    assert changes(stocked, run) == expected
    assert stocked.files(run.tip) == on_disk(worktree(run))
    assert run.ended.code.changed
    assert stocked.git("rev-parse", "refs/heads/issueflow/ISSUE-1/01-develop") == run.tip
    assert stocked.git("status", "--porcelain", cwd=worktree(run)) == ""
    assert stocked.git("fsck", "--full", "--no-dangling") == ""


def test_what_the_agent_committed_itself_stays_its_commit(stocked: Repo) -> None:
    """BR-113: three commits and a clean tree are work; they are not committed over again."""
    acts = [act for n in (1, 2, 3) for act in (write("app.py", f"{n}\n"), {"commit": f"step {n}"})]
    run = play(stocked, *acts)
    log = stocked.git("log", "--reverse", "--format=%s", f"{run.started.base}..{run.tip}").splitlines()
    assert log == ["step 1", "step 2", "step 3"]


def test_work_on_top_of_the_agent_s_commit_becomes_one_commit_after_it(stocked: Repo) -> None:
    run = play(stocked, write("app.py", "two\n"), {"commit": "half"}, write("app.py", "three\n"))
    subjects = stocked.git("log", "--reverse", "--format=%an: %s", f"{run.started.base}..{run.tip}").splitlines()
    assert subjects == ["Pat: half", "Pat: ISSUE-1: develop round 1 (run 01-develop)"]


def test_an_empty_commit_counts_as_done_by_the_agent_and_changes_no_file(stocked: Repo) -> None:
    run = play(stocked, sh("git commit -q --allow-empty -m nothing"))
    assert run.ended.code.changed
    assert changes(stocked, run) == {}
    assert stocked.git("log", "-1", "--format=%s", run.tip) == "nothing"


def test_nothing_done_is_nothing_recorded(stocked: Repo) -> None:
    run = play(stocked, sh("touch app.py; git status -s"))
    assert (run.tip, run.ended.code.changed) == (run.started.base, False)


def test_a_second_attempt_goes_on_from_all_the_first_left(stocked: Repo) -> None:
    first = [write("one", ""), {"delete": "docs"}, {"result": {"verdict": "incomplete"}}]
    second = [write("two", ""), done()]
    stocked.script(quick(first, second))
    create(stocked.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    stocked.advance(once=True)
    run = stocked.advance(once=True).runs[-1]
    assert run.started.base == stocked.position().runs[0].tip
    assert {"one", "two"} <= stocked.files(run.tip).keys()
    assert "docs/guide.md" not in stocked.files(run.tip)


# ── names ──

NAMES = [
    b"new\nline",
    b"tab\there",
    b'quo"te',
    b"apo'strophe",
    b"back\\slash",
    b" space before",
    b"space after ",
    b"-rf",
    b"--help",
    b"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e.txt",
    b"caf\xc3\xa9",
    b"cafe\xcc\x81",
    b"\xff\xfe not utf-8",
    b":(top)",
    b":!none",
    b"*",
    b"[a-z]?",
    b"#hash",
    b"!bang",
    b"$HOME",
    b"{{braces}}",
    b"\x01\x1b[31mred",
    b"CASE",
    b"case",
    b".hidden",
    b"n" * 255,
]
TEXT = {os.fsdecode(name) for name in NAMES}
MAKE = f"import os\nfor n in {NAMES!r}:\n    open(n, 'wb').write(b'made')"
EDIT = f"import os\nfor n in {NAMES!r}:\n    open(n, 'ab').write(b'more')"
DROP = f"import os\nfor n in {NAMES!r}:\n    os.unlink(n)"
FOLDERS = f"import os\nfor n in {NAMES!r}:\n    os.mkdir(n); open(n + b'/in', 'wb').write(n)"


def with_names(repo: Repo) -> None:
    for name in NAMES:
        Path(os.fsdecode(os.path.join(os.fsencode(repo.path), name))).write_bytes(b"base")
    repo.commit("odd names")


@pytest.mark.parametrize(
    ("tracked", "acts", "expected"),
    [
        (False, [py(MAKE)], dict.fromkeys(TEXT, "A")),
        (False, [py(MAKE), {"commit": "mine"}], dict.fromkeys(TEXT, "A")),
        (False, [py(MAKE), {"commit": "mine"}, py(EDIT)], dict.fromkeys(TEXT, "A")),
        (False, [py(FOLDERS)], dict.fromkeys((f"{name}/in" for name in TEXT), "A")),
        (True, [py(EDIT)], dict.fromkeys(TEXT, "M")),
        (True, [py(DROP)], dict.fromkeys(TEXT, "D")),
        (True, [py(DROP + "\n" + FOLDERS)], {**dict.fromkeys(TEXT, "D"), **{f"{name}/in": "A" for name in TEXT}}),
    ],
    ids=["new", "committed", "committed and edited", "folders", "edited", "deleted", "files become folders"],
)
def test_any_name_that_a_file_can_have_is_recorded(
    stocked: Repo, tracked: bool, acts: list[Act], expected: dict[str, str]
) -> None:
    """BR-188: names exact in the result."""
    if tracked:
        with_names(stocked)
    run = play(stocked, *acts)
    assert changes(stocked, run) == expected
    assert stocked.files(run.tip) == on_disk(worktree(run))


@pytest.mark.parametrize("name", ["git~1", ".git.", ".GIT"])
def test_a_name_that_git_refuses_is_named(stocked: Repo, name: str) -> None:
    """`update-index` passes over what a Windows or Mac disk would take for `.git`, with a word on stderr only."""
    run = play(stocked, write(name, "text\n"), write("app.py", "two\n"))
    assert changes(stocked, run) == {"app.py": "M"} or name in changes(stocked, run)
    assert name in noticed(run) or name in changes(stocked, run)


def test_a_name_that_is_no_text_is_named_when_it_is_left_out(stocked: Repo) -> None:
    run = play(stocked, py("import os\nos.mkfifo(b'pipe\\xff\\n')"), write("app.py", "two\n"))
    assert changes(stocked, run) == {"app.py": "M"}
    assert r"pipe\xff" in noticed(run)


# ── the exchange folder ──


@pytest.mark.parametrize(
    "acts",
    [
        [sh("git add -f .issueflow-run; git commit -qm all")],
        [sh("rm .issueflow-run/.gitignore; git add -A; git commit -qm all")],
        [sh("rm .issueflow-run/.gitignore")],
        [sh("git add -f .issueflow-run; git commit -qm all; rm .issueflow-run/prompt.md")],
        [sh("mv .issueflow-run $HOME/moved; ln -s $HOME/moved .issueflow-run; git add -f .issueflow-run")],
        [sh("mkdir -p x; echo '!/.issueflow-run' > .gitignore; echo '!/.issueflow-run/**' >> .gitignore")],
    ],
    ids=["forced", "its .gitignore deleted", "the same uncommitted", "committed and edited", "a link", "unignored"],
)
def test_the_exchange_folder_is_never_recorded(stocked: Repo, acts: list[Act]) -> None:
    run = play(stocked, write("app.py", "two\n"), *acts)
    files = stocked.files(run.tip)
    assert [name for name in files if name.startswith(".issueflow-run")] == []
    assert changes(stocked, run).items() >= {"app.py": "M"}.items()


def test_a_file_further_down_that_is_called_like_the_exchange_folder_is_work(stocked: Repo) -> None:
    run = play(stocked, write("docs/.issueflow-run", "mine\n"), write("sub/.issueflow-run/x", "mine\n"))
    assert changes(stocked, run) == {"docs/.issueflow-run": "A", "sub/.issueflow-run/x": "A"}


# ── nested repositories, pipes ──

NEST = "mkdir -p app; cd app; git init -q; echo one > one; mkdir src; echo two > src/two"
NESTED = {
    "without a commit": sh(NEST),
    "with a commit": sh(f"{NEST}; git add -A; git commit -qm inner; echo three > src/two"),
    "with a commit, committed outside as a link": sh(
        f"{NEST}; git add -A; git commit -qm inner; cd ..; git add app 2>/dev/null; git commit -qm outer"
    ),
    "committed outside, then edited": sh(
        f"{NEST}; git add -A; git commit -qm i; cd ..; git add app 2>/dev/null; git commit -qm o; echo x > app/one"
    ),
    "with another inside": sh(f"{NEST}; mkdir in; cd in; git init -q; echo deep > deep; git add .; git commit -qm d"),
    "a worktree of its own repository": sh(
        "git worktree add -q --detach app; cd app; git rm -qrf .; mkdir src; echo 1 > one; echo 2 > src/two"
    ),
}


@pytest.mark.parametrize("act", NESTED.values(), ids=NESTED)
def test_the_files_of_a_nested_repository_are_recorded_as_files(stocked: Repo, act: Act) -> None:
    run = play(stocked, act)
    files = stocked.files(run.tip)
    assert [entry for entry in files.values() if entry.startswith("160000")] == []
    assert files == on_disk(worktree(run))
    assert {"app/one", "app/src/two"} <= files.keys()
    assert "app" in noticed(run)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (
            sh("cd docs; git init -q; git add -A; git commit -qm inner; echo x > guide.md; echo y > new.md"),
            {"docs/guide.md": "M", "docs/new.md": "A"},
        ),
        (
            sh("rm app.py; git init -q app.py; cd app.py; echo x > x; git add x; git commit -qm inner"),
            {"app.py": "D", "app.py/x": "A"},
        ),
        (
            sh("rm -r docs; git init -q docs; cd docs; echo x > guide.md; git add -A; git commit -qm inner"),
            {"docs/guide.md": "M", "docs/more.md": "D"},
        ),
    ],
    ids=["made in a tracked folder", "in place of a file", "in place of a folder"],
)
def test_a_repository_made_where_tracked_files_are_hides_no_change(
    stocked: Repo, act: Act, expected: dict[str, str]
) -> None:
    run = play(stocked, act)
    assert changes(stocked, run) == expected
    assert stocked.files(run.tip) == on_disk(worktree(run))


def test_a_filter_of_a_nested_repository_is_not_run(stocked: Repo) -> None:
    """`add -A`, `status` and `diff-files` run it once the agent has committed the link."""
    planted = (
        f"{NEST}; echo '* filter=evil' > .gitattributes; git add -A; git commit -qm i; "
        "cd ..; git add app 2>/dev/null; git commit -qm o; cd app; "
        "git config filter.evil.clean 'touch $HOME/executed; cat'; echo changed > one"
    )
    run = play(stocked, sh(planted))
    assert content(stocked, run, "app/one") == b"changed\n"
    assert not (Path.home() / "executed").exists()


@pytest.fixture
def with_submodule(make_repo: Callable[..., Repo], sealed: Path) -> Repo:
    """A project with the submodule `lib`, which agents may check out."""
    with (sealed / ".gitconfig").open("a") as settings:
        settings.write('[protocol "file"]\n\tallow = always\n')
    library, repo = make_repo("library"), make_repo()
    repo.git("submodule", "--quiet", "add", str(library.path), "lib")
    return stock(repo)


CHECK_OUT = "git submodule --quiet update --init"


@pytest.mark.parametrize("script", ["true", CHECK_OUT], ids=["left alone", "checked out"])
def test_a_submodule_is_no_change_whether_or_not_it_is_checked_out(with_submodule: Repo, script: str) -> None:
    run = play(with_submodule, sh(script), write("new.py", ""))
    assert changes(with_submodule, run) == {"new.py": "A"}
    assert with_submodule.files(run.tip)["lib"].startswith("160000")


def test_a_commit_in_a_submodule_moves_its_link(with_submodule: Repo) -> None:
    script = f"{CHECK_OUT}; cd lib; echo two > app.py; git commit -qam inner; git rev-parse HEAD > $HOME/inner"
    run = play(with_submodule, sh(script))
    assert changes(with_submodule, run) == {"lib": "M"}
    assert with_submodule.files(run.tip)["lib"] == f"160000 commit {(Path.home() / 'inner').read_text().strip()}"


def test_uncommitted_work_in_a_submodule_is_named(with_submodule: Repo) -> None:
    run = play(with_submodule, sh(f"{CHECK_OUT}; echo two > lib/app.py; echo new > lib/new.py"), write("new.py", ""))
    assert "lib" in noticed(run)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_is_left_out_and_named(stocked: Repo, kind: str) -> None:
    make = {"pipe": "import os\nos.mkfifo('odd')", "socket": "import socket\nsocket.socket(1).bind('odd')"}[kind]
    run = play(stocked, py(make), write("new.py", ""))
    assert changes(stocked, run) == {"new.py": "A"}
    assert "odd" in noticed(run)


@pytest.mark.parametrize(
    ("acts", "gone"),
    [
        ([sh("rm app.py; mkfifo app.py")], "app.py"),
        ([sh("rm -r docs; mkfifo docs")], "docs/guide.md"),
        ([sh("echo x > new; git add new; git commit -qm n; rm new; mkfifo new")], "new"),
    ],
    ids=["a tracked file", "a tracked folder", "a file the agent had committed"],
)
def test_a_pipe_in_the_place_of_a_file_records_the_file_as_gone_and_is_named(
    stocked: Repo, acts: list[Act], gone: str
) -> None:
    run = play(stocked, *acts, write("docs2/new.md", ""))
    assert gone not in stocked.files(run.tip)
    assert "docs2/new.md" in stocked.files(run.tip)
    assert gone.split("/")[0] in noticed(run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_nobody_can_read_is_named_and_stops_nothing(stocked: Repo) -> None:
    run = play(stocked, sh("echo x > secret; chmod 000 secret"), write("app.py", "two\n"))
    assert changes(stocked, run) == {"app.py": "M"}
    assert "secret" in noticed(run)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("core.quotePath=true", "*.txt working-tree-encoding=UTF-16\n"),
        ("filter.strict.required=true", "*.txt filter=strict\n"),
    ],
    ids=["an encoding the file does not have", "a required filter that cannot run"],
)
def test_attributes_that_git_cannot_obey_stop_nothing(stocked: Repo, setting: str, rule: str) -> None:
    """git refuses the file and with it the whole command; the run would never be taken in."""
    stocked.git("config", *setting.split("="))
    run = play(stocked, write(".gitattributes", rule), write("a.txt", "plain\n"), write("app.py", "two\n"))
    assert changes(stocked, run).items() >= {".gitattributes": "A", "app.py": "M"}.items()
    assert "a.txt" in stocked.files(run.tip) or "a.txt" in noticed(run)


# ── nothing hides ──

HIDDEN = {
    "info/exclude": [sh('echo "*" > "$(git rev-parse --git-path info/exclude)"'), write("secret.py", "x\n")],
    "core.excludesFile": [
        sh('echo "*" > $HOME/all; git config core.excludesFile $HOME/all'),
        write("secret.py", "x\n"),
    ],
    "a .gitignore beside it": [write("secret.py", "x\n"), write(".gitignore", "secret.py\n")],
    "assume-unchanged": [sh("git update-index --assume-unchanged app.py"), write("app.py", "x\n")],
    "skip-worktree": [sh("git update-index --skip-worktree app.py"), write("app.py", "x\n")],
    "assume-unchanged and deleted": [sh("git update-index --assume-unchanged app.py"), {"delete": "app.py"}],
    "a replaced index": [sh('rm "$(git rev-parse --git-path index)"'), write("secret.py", "x\n")],
    "a locked index": [sh('touch "$(git rev-parse --git-path index).lock"'), write("secret.py", "x\n")],
    "a torn index": [sh('echo torn > "$(git rev-parse --git-path index)"'), write("secret.py", "x\n")],
    "fileMode off": [sh("git config core.fileMode false; chmod +x app.py")],
    "attributes in info": [
        sh('echo "* -text filter=none" > "$(git rev-parse --git-path info/attributes)"'),
        write("secret.py", "x\n"),
    ],
    "sparse settings": [
        sh("git config core.sparseCheckout true; git config core.sparseCheckoutCone true"),
        sh('mkdir -p "$(git rev-parse --git-dir)/info"; echo "/*" > "$(git rev-parse --git-dir)/info/sparse-checkout"'),
        write("secret.py", "x\n"),
    ],
}


@pytest.mark.parametrize("acts", HIDDEN.values(), ids=HIDDEN)
def test_nothing_the_agent_tells_git_hides_its_work(stocked: Repo, acts: list[Act]) -> None:
    run = play(stocked, *acts, write("docs/guide.md", "seen\n"))
    assert changes(stocked, run)["docs/guide.md"] == "M"
    assert stocked.files(run.tip) == on_disk(worktree(run))


def test_a_gitignore_the_agent_puts_into_a_folder_hides_nothing(stocked: Repo) -> None:
    """Excludes are those from before the agent; else a `*` of its own takes new code out of the reviewer's sight."""
    run = play(stocked, write("vendor/.gitignore", "*\n"), write("vendor/code.py", "x\n"))
    assert changes(stocked, run) == {"vendor/.gitignore": "A", "vendor/code.py": "A"}


def test_a_file_that_the_agent_took_off_the_ignore_rules_is_work(stocked: Repo) -> None:
    stocked.write(".gitignore", "*.log\n/dist/\n")
    stocked.commit("ignore")
    rules = write(".gitignore", "*.log\n!kept.log\n")
    run = play(stocked, rules, *(write(name, "x\n") for name in ("kept.log", "other.log", "dist/app.js")))
    assert changes(stocked, run) == {".gitignore": "M", "kept.log": "A", "dist/app.js": "A"}


def test_what_the_project_and_the_person_ignore_stays_out(stocked: Repo) -> None:
    stocked.write(".gitignore", "*.log\n/build/\n")
    stocked.write("docs/.gitignore", "draft.md\n")
    stocked.commit("ignore")
    stocked.write(".git/info/exclude", "local.txt\n")
    (Path.home() / ".config" / "git").mkdir(parents=True)
    (Path.home() / ".config" / "git" / "ignore").write_text("*.swp\n")
    names = ["a.log", "build/out", "docs/draft.md", "local.txt", "app.py.swp", "__pycache__/app.pyc"]
    run = play(stocked, *(write(name, "x\n") for name in names), write("build.py", "x\n"))
    assert changes(stocked, run) == {"build.py": "A"}


def test_a_tracked_file_in_an_ignored_folder_is_work(stocked: Repo) -> None:
    for name in ("edited", "deleted", "swapped"):
        stocked.write(f"build/{name}", "base\n")
    stocked.commit("kept builds")
    stocked.write(".gitignore", "/build/\n")
    stocked.commit("ignore")
    acts = [write("build/edited", "x\n"), {"delete": "build/deleted"}, write("build/swapped", "", link="edited")]
    run = play(stocked, *acts, write("build/new", "ignored\n"))
    assert changes(stocked, run) == {"build/edited": "M", "build/deleted": "D", "build/swapped": "T"}


def test_an_ignored_file_that_the_agent_added_by_force_is_work(stocked: Repo) -> None:
    stocked.write(".gitignore", "*.log\n")
    stocked.commit("ignore")
    run = play(stocked, write("a.log", "x\n"), sh("git add -f a.log; git commit -qm log"), write("a.log", "y\n"))
    assert changes(stocked, run) == {"a.log": "A"}
    assert content(stocked, run, "a.log") == b"y\n"


def test_a_cache_folder_that_the_project_tracks_is_work(stocked: Repo) -> None:
    stocked.write("node_modules/kept.js", "1\n")
    stocked.git("add", "-f", "node_modules")
    stocked.commit("vendored")
    run = play(stocked, write("node_modules/new.js", "2\n"), write("__pycache__/app.pyc", ""))
    assert changes(stocked, run) == {"node_modules/new.js": "A"}


def test_settings_the_agent_planted_execute_nothing(stocked: Repo) -> None:
    planted = """
        run="touch $HOME/executed; cat"
        hooks="$(git rev-parse --git-path hooks)"
        mkdir -p "$hooks" $HOME/hooks
        for hook in pre-commit post-commit post-checkout post-index-change reference-transaction; do
            printf '#!/bin/sh\\ntouch $HOME/executed\\n' > "$hooks/$hook"; chmod +x "$hooks/$hook"
            cp "$hooks/$hook" $HOME/hooks
        done
        echo '*.py filter=evil diff=evil' > .gitattributes
        echo two > app.py
        config="$(git rev-parse --path-format=absolute --git-common-dir)/config"
        git config -f "$config" filter.evil.clean "$run"
        git config -f "$config" filter.evil.smudge "$run"
        git config -f "$config" diff.evil.command "$run"
        git config -f "$config" diff.evil.textconv "$run"
        git config -f "$config" diff.external "$run"
        git config -f "$config" core.hooksPath $HOME/hooks
        git config -f "$config" core.fsmonitor "$run"
        git config -f "$config" gpg.program "$run"
        git config -f "$config" commit.gpgsign true
    """
    run = play(stocked, sh(planted))
    assert content(stocked, run, "app.py") == b"two\n"
    assert stocked.cli("diff", "1").stdout.count("+two") == 1
    assert stocked.cli("cleanup", "--dry-run").returncode == 0
    assert not (Path.home() / "executed").exists()
    assert "file config was changed during the run" in noticed(run)
    assert "file hooks/pre-commit was made during the run" in noticed(run)


def test_line_ending_settings_are_those_from_before_the_agent(stocked: Repo) -> None:
    run = play(stocked, sh("git config core.autocrlf true; printf 'a\\r\\nb\\r\\n' > dos.txt"))
    assert content(stocked, run, "dos.txt") == b"a\r\nb\r\n"


# ── what was different from the start is nobody's work ──


def test_files_that_are_dirty_as_soon_as_they_are_checked_out_are_no_change(stocked: Repo) -> None:
    """BR-187: neither committed nor counted as work. CRLF blobs under `text`, declared after the fact."""
    stocked.write("old.txt", "a\r\nb\r\n")
    stocked.write("other.txt", "c\r\nd\r\n")
    stocked.commit("dos files")
    stocked.write(".gitattributes", "*.txt text\n")
    stocked.git("add", ".gitattributes")
    stocked.git("commit", "-qm", "declared")
    run = play(stocked, write("app.py", "two\n"), sh("printf 'c\\r\\nnew\\r\\n' > other.txt"))
    assert changes(stocked, run) == {"app.py": "M", "other.txt": "M"}
    assert content(stocked, run, "old.txt") == b"a\r\nb\r\n"
    assert content(stocked, run, "other.txt") == b"c\nnew\n"


def test_with_autocrlf_files_are_recorded_as_git_would(stocked: Repo) -> None:
    stocked.git("config", "core.autocrlf", "true")
    stocked.write(".git/info/attributes", "data.bin -text\n")
    run = play(stocked, sh("printf 'dos\\r\\n' > new.txt; printf 'unix\\n' > app.py; echo more >> data.bin"))
    assert (worktree(run) / "docs" / "guide.md").read_bytes() == b"# Guide\r\n"
    assert changes(stocked, run) == {"new.txt": "A", "app.py": "M", "data.bin": "M"}
    assert (content(stocked, run, "new.txt"), content(stocked, run, "app.py")) == (b"dos\n", b"unix\n")
    assert content(stocked, run, "data.bin") == (worktree(run) / "data.bin").read_bytes()


def test_a_filter_of_the_person_s_is_applied(stocked: Repo) -> None:
    stocked.git("config", "filter.upper.clean", "tr a-z A-Z")
    stocked.git("config", "filter.upper.smudge", "tr A-Z a-z")
    stocked.write(".gitattributes", "*.up filter=upper\n")
    stocked.write("old.up", "old\n")
    stocked.commit("filtered")
    run = play(stocked, write("new.up", "new\n"))
    assert changes(stocked, run) == {"new.up": "A"}
    assert (content(stocked, run, "old.up"), content(stocked, run, "new.up")) == (b"OLD\n", b"NEW\n")


@pytest.fixture
def prepared(make_repo: Callable[..., Repo]) -> Repo:
    """A project whose set-up command rewrites a tracked lock file and leaves a new one."""
    repo = make_repo()
    repo.write("lock.json", "old\n")
    repo.setup(quick(), worktrees={"setup": ["echo resolved > lock.json; echo x > made-by-setup"]})
    return repo


@pytest.mark.parametrize(
    ("acts", "expected"),
    [
        ([], {}),
        ([write("lock.json", "bumped\n")], {"lock.json": "M"}),
        ([sh("git checkout -q lock.json")], {}),
        ([write("app.py", "three\n"), {"commit": "all"}], {"lock.json": "M", "made-by-setup": "A"}),
        ([sh("echo three > app.py; git commit -qm some app.py"), write("app.py", "two\n")], {}),
        ([{"delete": "made-by-setup"}], {}),
    ],
    ids=["left alone", "edited", "put back", "committed with all else", "not committed", "what set-up made is deleted"],
)
def test_what_set_up_rewrote_is_not_the_agent_s_change(
    prepared: Repo, acts: list[Act], expected: dict[str, str]
) -> None:
    run = play(prepared, write("app.py", "two\n"), *acts)
    assert changes(prepared, run) == {"app.py": "M", **expected}


def test_what_set_up_ignores_stays_ignored(make_repo: Callable[..., Repo]) -> None:
    """A virtual environment brings its own `*`; what an agent installs into it later is no work."""
    repo = make_repo()
    repo.setup(quick(), worktrees={"setup": ["mkdir .venv; echo '*' > .venv/.gitignore; echo 1 > .venv/one"]})
    run = play(repo, write("app.py", "two\n"), write(".venv/two", "2\n"))
    assert changes(repo, run) == {"app.py": "M"}


@pytest.fixture
def sparse(make_repo: Callable[..., Repo]) -> Repo:
    repo = make_repo()
    for name in ("in/a", "out/b", "out/deep/c"):
        repo.write(name, "base\n")
    repo.setup(quick())
    repo.git("sparse-checkout", "set", "--cone", "in", ".issueflow")
    return repo


NEW_BLOB = "$(echo new | git hash-object -w --stdin)"
SPARSE = {
    "nothing outside": ([write("in/a", "two\n")], {"in/a": "M"}),
    "a new file outside": ([write("out/new", "x\n")], {"out/new": "A"}),
    "a file outside made again with other content": ([write("out/b", "two\n")], {"out/b": "M"}),
    "committed outside": ([sh("mkdir out; echo x > out/n; git add --sparse out/n; git commit -qm n")], {"out/n": "A"}),
    "widened": ([sh("git sparse-checkout disable"), write("new", "")], {"new": "A"}),
    "widened and edited": ([sh("git sparse-checkout disable; echo two > out/b")], {"out/b": "M"}),
    "widened and deleted in a commit": (
        [sh("git sparse-checkout disable; git rm -qr out/deep; git commit -qm gone")],
        {"out/deep/c": "D"},
    ),
    "changed outside by a commit, not on disk": (
        [sh(f"git update-index --cacheinfo 100644,{NEW_BLOB},out/b; git commit -qm b")],
        {"out/b": "M"},
    ),
}


@pytest.mark.parametrize(("acts", "expected"), SPARSE.values(), ids=SPARSE)
def test_what_a_sparse_checkout_leaves_off_the_disk_is_not_deleted(
    sparse: Repo, acts: list[Act], expected: dict[str, str]
) -> None:
    """BR-181: a run's worktree has the same cone as the person's checkout."""
    run = play(sparse, *acts)
    assert changes(sparse, run) == expected
    person = sparse.git("ls-files", "-t", "out")
    assert person.splitlines() == ["S out/b", "S out/deep/c"]


# ── every kind of repository ──


def split_index(repo: Repo) -> None:
    repo.git("config", "core.splitIndex", "true")
    repo.git("update-index", "--split-index")


def index_version_4(repo: Repo) -> None:
    repo.git("config", "index.version", "4")
    repo.git("update-index", "--index-version", "4")


def many_files(repo: Repo) -> None:
    repo.git("config", "feature.manyFiles", "true")
    repo.git("update-index", "--untracked-cache")


def worktree_config(repo: Repo) -> None:
    repo.git("config", "extensions.worktreeConfig", "true")
    repo.git("config", "--worktree", "core.autocrlf", "false")


def sparse_index(repo: Repo) -> None:
    repo.git("sparse-checkout", "set", "--cone", "--sparse-index", "docs", "bin", ".issueflow")


def packed(repo: Repo) -> None:
    repo.git("gc", "-q", "--prune=now")


KINDS: dict[str, tuple[dict[str, Any], Callable[[Repo], None] | None]] = {
    "sha256": ({"init": ("--object-format=sha256",)}, None),
    "split index": ({}, split_index),
    "index version 4": ({}, index_version_4),
    "many files": ({}, many_files),
    "worktree settings": ({}, worktree_config),
    "sparse index": ({}, sparse_index),
    "packed": ({}, packed),
    "safecrlf": ({}, lambda repo: repo.git("config", "core.safecrlf", "true") and None),
    "separate git directory": ({"init": ("--separate-git-dir", "elsewhere.git")}, None),
    "a folder with spaces, quotes and other letters": ({"name": 'it\'s "a" 店  '}, None),
    "a folder with a dollar": ({"name": "a $HOME"}, None),
    "a folder with a colon": ({"name": "a:b"}, None),
    "a folder with a line break": ({"name": "a\nb"}, None),
    "a folder with a hash, a percent and a semicolon": ({"name": "#a%20;b"}, None),
}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "then"), KINDS.values(), ids=KINDS)
def test_every_kind_of_repository_records_the_same(
    make_repo: Callable[..., Repo], options: dict[str, Any], then: Callable[[Repo], None] | None
) -> None:
    repo = stock(make_repo(**options))
    if then:
        then(repo)
    acts = [write("app.py", "two\n"), {"commit": "half"}, write("new.py", ""), {"delete": "docs/more.md"}]
    run = play(repo, *acts, sh(NEST), sh("rm link; mkdir link; echo x > link/x"))
    expected = {"app.py": "M", "new.py": "A", "docs/more.md": "D", "app/one": "A", "app/src/two": "A"}
    assert changes(repo, run) == {**expected, "link": "D", "link/x": "A"}
    assert repo.files(run.tip) == on_disk(worktree(run), "sha256" if len(run.tip) == 64 else "sha1")
    assert repo.git("fsck", "--full", "--no-dangling") == ""
    assert repo.advance().status == "waiting"


def test_a_clone_that_borrows_its_objects_records_the_same(make_repo: Callable[..., Repo], tmp_path: Path) -> None:
    origin = stock(make_repo("origin"))
    origin.git("clone", "-q", "--shared", str(origin.path), str(tmp_path / "shop"))
    repo = Repo(tmp_path / "shop")
    run = play(repo, write("app.py", "two\n"), {"delete": "docs"})
    assert repo.files(run.tip) == on_disk(worktree(run))


# ── commits that are on no branch ──

LOSE = "echo lost > lost.txt; git add lost.txt; git commit -qm lost; git rev-parse HEAD > $HOME/lost"
BRANCH = "issueflow/ISSUE-1/01-develop"
STRAYS = {
    "on a detached HEAD, then back": f"git checkout -q --detach; {LOSE}; git checkout -q {BRANCH}",
    "on a detached HEAD, still there": f"git checkout -q --detach; {LOSE}; git rm -q lost.txt; git commit -qm without",
    "amended": f"{LOSE}; git rm -q lost.txt; git commit -q --amend -m other --allow-empty",
    "reset away": f"{LOSE}; git reset -q --hard HEAD~1",
    "on another branch": f"git checkout -q -b other; {LOSE}; git checkout -q {BRANCH}",
    "on another branch, still there": f"git checkout -q -b other; {LOSE}",
    "on a branch that was deleted": f"git checkout -q -b other; {LOSE}; git checkout -q {BRANCH}; git branch -qD other",
    "its branch moved elsewhere": (
        f"{LOSE}; git checkout -q --detach HEAD~1; git commit -q --allow-empty -m x; "
        f"git branch -qf {BRANCH}; git checkout -q {BRANCH}"
    ),
    "two, one after the other": f"{LOSE}; echo 2 > 2; git add 2; git commit -qm 2; git reset -q --hard HEAD~2",
}


def forget(repo: Repo, run: Run) -> None:
    """All that a person can do to lose commits: worktree, agent's branches and reflogs gone, then a gc."""
    repo.git("worktree", "remove", "-f", "-f", str(worktree(run)))
    repo.git("branch", "-qD", "other", check=False)
    repo.git("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
    repo.git("gc", "-q", "--prune=now")


@pytest.mark.parametrize("script", STRAYS.values(), ids=STRAYS)
def test_a_commit_the_agent_left_behind_is_kept(stocked: Repo, script: str) -> None:
    run = play(stocked, sh(script), write("app.py", "two\n"))
    lost = (Path.home() / "lost").read_text().strip()
    kept = stocked.git("for-each-ref", "--format=%(refname)", "refs/issueflow-keep/ISSUE-1/01-develop").splitlines()
    assert kept == sorted(run.ended.code.kept)
    forget(stocked, run)
    assert stocked.git("cat-file", "-t", lost, check=False) == "commit"
    assert stocked.git("show", f"{lost}:lost.txt") == "lost"
    assert stocked.git("fsck", "--full", "--no-dangling") == ""


def test_a_commit_left_behind_is_kept_where_the_person_turned_reflogs_off(stocked: Repo) -> None:
    """The worktree's reflog is the only place that knows of it."""
    stocked.git("config", "core.logAllRefUpdates", "false")
    run = play(stocked, sh(STRAYS["amended"]))
    forget(stocked, run)
    assert stocked.git("cat-file", "-t", (Path.home() / "lost").read_text().strip(), check=False) == "commit"


def test_a_commit_that_a_branch_or_the_run_itself_holds_needs_no_keep_ref(stocked: Repo) -> None:
    stocked.git("branch", "feature")
    run = play(stocked, sh("git checkout -q feature; git checkout -q -"), write("app.py", "two\n"), {"commit": "mine"})
    assert run.ended.code.kept == ()
    assert stocked.git("for-each-ref", "refs/issueflow-keep") == ""


TAKE_OVER = f"git branch -qf {BRANCH}; git checkout -q {BRANCH}"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"git checkout -q --orphan fresh; git commit -qm root; {TAKE_OVER}", {}),
        (
            f"git checkout -q --orphan fresh; git rm -qrf docs; git commit -qm root; {TAKE_OVER}",
            {"docs/guide.md": "D", "docs/more.md": "D"},
        ),
        ("git commit -q --amend -m other", {}),
    ],
    ids=["orphan", "orphan without some", "the base amended"],
)
def test_rewritten_history_ends_on_top_of_the_base(stocked: Repo, script: str, expected: dict[str, str]) -> None:
    """The run's commit is a descendant of its base whatever the agent did, so that a diff means it."""
    run = play(stocked, sh(script), write("app.py", "two\n"))
    assert stocked.git("log", "-1", "--format=%P", run.tip) == run.started.base
    assert changes(stocked, run) == {"app.py": "M", **expected}
    assert "rewrote history" in noticed(run)
    assert len(run.ended.code.kept) == 1


def test_going_back_behind_the_base_is_recorded_as_taking_the_files_away(stocked: Repo) -> None:
    run = play(stocked, sh("git reset -q --hard HEAD~1"))
    assert stocked.git("merge-base", run.started.base, run.tip) == run.started.base
    assert stocked.files(run.tip) == on_disk(worktree(run))


@pytest.mark.parametrize(
    "script",
    [
        f"git checkout -q --detach; git branch -qD {BRANCH}",
        f"git update-ref -d refs/heads/{BRANCH}",
        "git branch -m other",
        f"git symbolic-ref HEAD refs/heads/nowhere; git update-ref -d refs/heads/{BRANCH}",
    ],
    ids=["deleted", "deleted from under HEAD", "renamed", "HEAD unborn"],
)
def test_a_deleted_branch_is_made_again(stocked: Repo, script: str) -> None:
    """Deleted or renamed: HEAD is unborn and the next commit would be a root."""
    run = play(stocked, sh(f"{LOSE}\n{script}"), write("app.py", "two\n"))
    assert stocked.git("rev-parse", f"refs/heads/{BRANCH}") == run.tip
    assert stocked.files(run.tip) == on_disk(worktree(run))
    forget(stocked, run)
    assert stocked.git("cat-file", "-t", (Path.home() / "lost").read_text().strip(), check=False) == "commit"


SIDE = (
    "git checkout -q -b side; echo side > app.py; git commit -qam side; "
    "git checkout -q -; echo ours > app.py; git commit -qam ours; "
)


@pytest.mark.parametrize(
    ("operation", "script"),
    [
        ("merge", "git merge -q side || true"),
        ("rebase", "git rebase -q side 2>/dev/null || true"),
        ("cherry-pick", "git cherry-pick side 2>/dev/null || true"),
        ("revert", "echo x > app.py; git commit -qam x; git revert --no-edit HEAD~1 2>/dev/null || true"),
    ],
    ids=["merge", "rebase", "cherry-pick", "revert"],
)
def test_done_with_an_unfinished_operation_is_contradicted(stocked: Repo, operation: str, script: str) -> None:
    """Else conflict markers go on as finished work."""
    run = play(stocked, sh(SIDE + script))
    assert run.ended.outcome.cls == "contradicted"
    assert f"unfinished {operation}" in run.ended.outcome.errors[0]
    assert stocked.files(run.tip) == on_disk(worktree(run))
    assert "<<<<<<<" in content(stocked, run, "app.py").decode()


def test_done_in_the_middle_of_a_bisect_is_contradicted(stocked: Repo) -> None:
    run = play(stocked, sh("git bisect start HEAD HEAD~1 > /dev/null"), write("app.py", "two\n"))
    assert run.ended.outcome.cls == "contradicted"
    assert "unfinished bisect" in run.ended.outcome.errors[0]


def test_a_finished_merge_is_the_agent_s_work(stocked: Repo) -> None:
    run = play(stocked, sh(SIDE + "git merge -q -X ours -m merged side"))
    assert run.ended.outcome.cls == "accepted"
    assert stocked.git("log", "-1", "--format=%s", run.tip) == "merged"


# ── the worktree itself ──


def test_a_git_file_replaced_by_a_repository_of_the_agent_s_own_changes_nothing(stocked: Repo) -> None:
    run = play(stocked, sh("rm .git; git init -q; git add -A; git commit -qm mine"), write("app.py", "two\n"))
    assert changes(stocked, run) == {"app.py": "M"}
    assert "was replaced or removed" in noticed(run)


def test_a_git_file_that_points_at_another_repository_leaves_that_one_alone(
    stocked: Repo, make_repo: Callable[..., Repo]
) -> None:
    victim = make_repo("victim")
    before = victim.git("for-each-ref")
    run = play(stocked, sh(f"echo 'gitdir: {victim.path}/.git' > .git"), write("app.py", "two\n"))
    assert changes(stocked, run) == {"app.py": "M"}
    assert (victim.git("for-each-ref"), victim.git("status", "--porcelain")) == (before, "")


def test_a_worktree_the_agent_deleted_keeps_what_it_had_committed(stocked: Repo) -> None:
    run = play(stocked, write("app.py", "two\n"), {"commit": "mine"}, sh('rm -rf "$PWD"'))
    assert stocked.git("log", "-1", "--format=%s", run.tip) == "mine"
    assert "is gone" in noticed(run)
    assert run.ended.outcome.cls == "missing"


def test_what_the_agent_does_to_the_person_s_repository_is_reported(stocked: Repo) -> None:
    stocked.git("branch", "feature")
    stocked.write("app.py", "mine\n")
    stocked.git("stash", "-q")
    acts = [
        sh("git stash drop -q; git branch -qD feature; git tag v1; git config user.email evil@localhost"),
        write("app.py", "two\n"),
    ]
    said = noticed(play(stocked, *acts))
    assert "ref refs/stash was removed during the run" in said
    assert "ref refs/heads/feature was removed during the run" in said
    assert "ref refs/tags/v1 was made during the run" in said
    assert "file config was changed during the run" in said


# ── once more is the same ──

MIXTURE = [
    write("app.py", "two\n"),
    {"commit": "one"},
    sh("git rev-parse HEAD > $HOME/lost; git commit -q --amend -m other"),
    write("app.py", "three\n"),
    write("new\nname", "x\n"),
    {"delete": "docs"},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["collect.looked", "collect.committed", "collect.branch", "collect.documents", "collect.judged", "journal.ended"],
)
def test_taking_a_run_in_again_after_a_kill_makes_the_same_commit(stocked: Repo, tmp_path: Path, point: str) -> None:
    stocked.script(quick([*MIXTURE, done()]))
    create(stocked.hands, b"# Do it\n", "Do it", "r3.md", "quick", None)
    crash = {"ISSUEFLOW_CRASH": f"{point}#1@{tmp_path}/passed"}
    assert stocked.cli("advance", "1", "--once", env=crash).returncode == -9
    assert stocked.cli("resume", "1").returncode == 0
    run = stocked.position().runs[0]
    assert run.tip == same_commit(stocked, run)
    assert stocked.files(run.tip) == on_disk(worktree(run))
    commits = stocked.git("rev-list", f"{run.started.base}..{run.tip}").splitlines()
    assert len(commits) == 2  # the agent's and ours, once
    lost = (Path.home() / "lost").read_text().strip()
    assert run.ended.code.kept == (f"refs/issueflow-keep/ISSUE-1/01-develop/dropped-{lost}",)
    assert [r.started.stage for r in stocked.position().runs] == ["develop", "verify"]


def same_commit(repo: Repo, run: Run) -> str:
    """The id that the run's commit has by its facts: tree, parent, the agent's last second, the pinned identity."""
    by, when = run.started.identity, f"@{run.ended.exit.ended} +0000"
    env = {
        **os.environ,
        **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), by.name),
        **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), by.email),
        **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), when),
    }
    message = f"ISSUE-1: develop round 1 (run {run.started.name})\n".encode()
    return repo.git("commit-tree", run.ended.code.tree, "-p", f"{run.tip}^", env=env, input=message)


def test_two_walks_of_the_same_script_record_the_same_tree(make_repo: Callable[..., Repo]) -> None:
    runs = [play(stock(make_repo(name)), *MIXTURE) for name in ("one", "two")]
    assert runs[0].ended.code.tree == runs[1].ended.code.tree
