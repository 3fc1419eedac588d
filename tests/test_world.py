"""The world changes behind issueflow's back, in any order: it says what is true and goes on, or asks.

ISSUEFLOW_EXAMPLES sets how many walks are tried (2000 for a long search). A failure prints the lines that repeat it.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIR, Repo, approve, done
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import issueflow.cli
from issueflow import files
from issueflow.cli.app import VERBS
from issueflow.engine.issues import load
from issueflow.errors import Damaged, IssueflowError
from issueflow.files import read_json
from issueflow.git import refs
from issueflow.git.environment import clean_environment
from issueflow.hosts import processes
from issueflow.machine import Position
from issueflow.store import issue as store_issue

# Agents and people of these tests change what is the person's, on purpose.
meddling = pytest.fixture(autouse=True)(lambda monkeypatch: monkeypatch.setattr(Repo, "meddled", True))

EXAMPLES = int(os.environ.get("ISSUEFLOW_EXAMPLES", "150"))
LONG_SEARCH = "ISSUEFLOW_EXAMPLES" in os.environ  # by chance; otherwise the same walks every time
PARTS = 6  # the walks are shared out among this many tests, for machines with several cores
STEPS = 5  # rules in one walk; each is a change and then a command

# A writer and a person: the shortest workflow there is.
SOLO = {
    "name": "solo",
    "version": 1,
    "start": "develop",
    "roles": {"developer": "writes"},
    "stages": {
        "develop": {
            "kind": "agent",
            "role": "developer",
            "access": "write",
            "next": {"done": "deliver", "blocked": "hold"},
        },
        "deliver": {
            "kind": "human",
            "presents": ["diff"],
            "next": {"approve": "delivered", "request_changes": "develop", "cancel": "cancelled"},
        },
    },
}

# What agents do besides their work. Every commit they make is noted in $BENCH/commits, every start in $BENCH/starts.
NOTE = 'git rev-parse HEAD >> "$BENCH/commits"; '
COMMIT = f'date +%N > "made-$(date +%N).txt"; git add -A; git commit -qm work; {NOTE}'
HABITS = {
    "writes": "date > left.txt",
    "commits": COMMIT,
    "switches branch": f"git checkout -q -b elsewhere-$$; {COMMIT}",
    "detaches": f"git checkout -q --detach; {COMMIT}",
    "detaches and comes back": f"git checkout -q --detach; {COMMIT} git checkout -q -",
    "amends": f"{COMMIT} date > more; git add -A; git commit -q --amend --no-edit; {NOTE}",
    "resets": f"{COMMIT} git reset -q --hard HEAD~1",
    "rebases its own": f"{COMMIT} {COMMIT} git rebase -q --force-rebase HEAD~2; {NOTE}",
    "stashes": "date > app.py; git stash -q; date > after.txt",
    "leaves a conflict": f"git checkout -q -b side-$$; echo side > app.py; {COMMIT} git checkout -q -; "
    f"echo here > app.py; {COMMIT} git merge -q side-$$",
    "deletes its branch": f"{COMMIT} b=$(git symbolic-ref HEAD); git checkout -q --detach; git update-ref -d $b",
    "renames its branch": f"{COMMIT} git branch -m renamed-$$",
    "leaves a lock": f'{COMMIT} touch "$(git rev-parse --git-dir)/index.lock"',
    "removes its worktree's link": "rm .git",
    "is killed": f"{COMMIT} date > half.txt; kill -9 $PPID",
    "is killed with its runner": f"{COMMIT} date > half.txt; "
    "kill -9 $(awk '{print $4}' /proc/$PPID/stat); kill -9 $PPID",
}

POINTS = (
    "journal.started",
    "rendered.started",
    "prepare.withdrawn",
    "prepare.branch",
    "prepare.worktree",
    "prepare.order",
    "prepare.launch",
    "submitted",
    "step.Collect",
    "collect.looked",
    "collect.committed",
    "collect.branch",
    "collect.judged",
    "journal.ended",
    "tidy.worktree",
    "tidy.branch",
    "deliver.branch",
    "journal.delivered",
)
number = st.integers(0, 7)
small = st.integers(0, 3)


# A command, its Issue, what agents do in runs that it starts, and where it dies.
VERB = st.sampled_from(
    [*["advance"] * 6, *["request-changes"] * 3, "resume", "resume", "approve", "retry", "cleanup", "cancel", "look"]
)
HABIT = st.lists(st.sampled_from(sorted(HABITS)), min_size=1, max_size=2, unique=True)
DEATH = st.one_of(st.none(), st.none(), st.none(), st.sampled_from(POINTS))
COMMAND = st.tuples(VERB, small, HABIT, DEATH)


def change(**drawn: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule of the world: the change, and a command right after it."""

    def make(method: Callable[..., None]) -> Any:
        @functools.wraps(method)
        def both(self: "World", then: tuple[str, int, list[str], str | None], **given: Any) -> None:
            method(self, **given)
            self.act(*then)

        return rule(then=COMMAND, **drawn)(both)

    return make


class Died(BaseException):
    """The process was killed at a crash point; what is caught here is only what a test process cannot die of."""


def template(folder: Path) -> Path:
    """A repository that is set up, made once and copied for every walk."""
    repo = Repo(folder / "template" / "shop")
    repo.path.mkdir(parents=True)
    repo.git("init", "-q")
    repo.write("app.py", "print('one')\n")
    repo.commit("first")
    agent = {"scripted": {"type": "scripted", "script": "../script.yaml"}}
    repo.setup({}, agents=agent)
    for workflow in (SOLO, PAIR):
        repo.write(f".issueflow/workflows/{workflow['name']}.yaml", json.dumps(workflow))
    repo.commit("workflows")
    repo.write("mine.txt", "not committed\n")
    return repo.path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else "-"


class World(RuleBasedStateMachine):
    """A person, agents, and everybody else who can write into the same repository."""

    home: Path  # set for each test
    source: Path
    walks = 0

    @initialize(workflows=st.lists(st.sampled_from(["solo", "solo", "solo", "pair", "quick"]), min_size=1, max_size=2))
    def begin(self, workflows: list[str]) -> None:
        type(self).walks += 1
        self.top = self.home / f"w{self.walks}"
        self.top.mkdir()
        shutil.copytree(self.source, self.top / "shop", symlinks=True)
        os.environ["BENCH"] = str(self.top)
        self.repo = Repo(self.top / "shop")
        self.persons: set[str] = set()  # branches the person has made where ours go
        self.forgiven: set[str] = set()  # commits that the world, not issueflow, made unreachable
        self.behave("commits")
        for workflow in workflows:
            self.repo.new("# Go\n", "--workflow", workflow)
        self.count = len(workflows)
        self.person = self.look()

    # ── what is looked at ──

    @property
    def common(self) -> Path:
        return self.repo.path / ".git"

    def name(self, which: int) -> str:
        return f"ISSUE-{which % self.count + 1}"

    def position(self, name: str) -> Position:
        return load(self.repo.hands.store.issue(name))

    def look(self) -> dict[str, str]:
        """Everything that is the person's: branch, commits, index, files, settings."""
        kept = {p: digest(self.repo.path / p) for p in (".git/HEAD", ".git/index", ".git/config")}
        for folder, folders, names in os.walk(self.repo.path):
            folders[:] = [name for name in folders if name not in (".git", "issues")]
            for name in names:
                path = Path(folder) / name
                kept[str(path.relative_to(self.repo.path))] = digest(path)
        main = self.repo.git("rev-parse", "refs/heads/main")
        return kept | {"main": main}

    def lost(self) -> set[str]:
        """Commits of agents that no ref reaches."""
        made = set(self.lines("commits"))
        if not made:
            return set()
        known = self.repo.git("cat-file", "--batch-check", input="\n".join(made).encode() + b"\n")
        gone = {line.split()[0] for line in known.splitlines() if line.endswith("missing")}
        words = [*sorted(made - gone), "--not", "--single-worktree", "--all"]
        return gone | (set(self.repo.git("rev-list", *words, "--").split()) & made if made > gone else set())

    def lines(self, name: str) -> list[str]:
        path = self.top / name
        return path.read_text().split() if path.exists() else []

    # ── issueflow ──

    def behave(self, *habits: str) -> None:
        """The next run of a writer does this; a reviewer approves."""
        begun = 'echo "$ISSUEFLOW_RUN" >> "$BENCH/starts"; '
        acts = [{"run": ["sh", "-c", begun + "\n".join(HABITS[habit] for habit in habits)]}]
        acts += [{"write": "work.txt", "text": " ".join(habits)}, done()]
        script = {"develop": [acts], "review": [[{"run": ["sh", "-c", begun]}, approve()]]}
        (self.top / "script.yaml").write_text(json.dumps(script))

    def type(self, *words: str, die: str | None = None) -> IssueflowError | None:
        """Type a command; its error. Any exception that is no IssueflowError fails the walk."""
        with self.mortal(die):
            error = self.call(list(words))
        if error is not None:
            sentence = str(error)
            assert sentence and "\n" not in sentence.strip(), sentence
            assert error.hint, sentence
            assert sensible(error.hint), error.hint
        return error

    def call(self, words: list[str]) -> IssueflowError | None:
        before = Path.cwd()
        os.chdir(self.repo.path)
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace")
        try:
            clean_environment()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                issueflow.cli._call(words)
        except IssueflowError as error:
            return error
        except Died:
            return None
        finally:
            os.chdir(before)
            out.flush()
            self.said = out.detach().getvalue().decode(errors="replace")
        return None

    @contextlib.contextmanager
    def mortal(self, point: str | None) -> Iterator[None]:
        """Within, the process "dies" at the crash point by an exception that nothing catches."""
        if point is None:
            yield
            return

        def kill(pid: int, number: int) -> None:
            raise Died

        (self.top / "passed").unlink(missing_ok=True)
        files.CRASH_AT = f"{point}#1@{self.top}/passed"
        files.os = types.SimpleNamespace(**{**vars(os), "kill": kill})  # type: ignore[attr-defined]
        try:
            yield
        finally:
            files.CRASH_AT = ""
            files.os = os  # type: ignore[attr-defined]

    @rule(command=COMMAND)
    def nothing_changes(self, command: tuple[str, int, list[str], str | None]) -> None:
        self.act(*command)

    def act(self, verb: str, which: int, habits: list[str], die: str | None) -> None:
        """Type a command for an Issue."""
        self.behave(*habits)
        name = self.name(which)
        more = {"advance": ["--once"], "request-changes": ["-m", "more of it"], "retry": ["--reason", "again"]}
        if verb == "look":
            for word in ("status", "show", "log", "diff", "verify", "logs"):
                self.type(word, name)
        else:
            self.type(verb, name, *more.get(verb, []), die=die)
        if verb == "request-changes":  # what it asks for is done at once
            self.type("advance", name, "--once")
        self.settle()

    # ── the world ──

    def refs_below(self, prefix: str) -> list[str]:
        return self.repo.git("for-each-ref", "--format=%(refname)", prefix).splitlines()

    def changed(self) -> None:
        """What the world has made unreachable is not issueflow's loss."""
        self.forgiven |= self.lost()

    @change(which=number)
    def a_branch_is_deleted(self, which: int) -> None:
        if found := self.refs_below("refs/heads/issueflow"):
            self.repo.git("update-ref", "-d", found[which % len(found)], check=False)
            self.changed()

    @change(which=number, to=st.sampled_from(["main", "onward", "orphan"]))
    def a_branch_is_moved(self, which: int, to: str) -> None:
        if found := self.refs_below("refs/heads/issueflow"):
            ref = found[which % len(found)]
            target = "refs/heads/main"
            if to != "main":
                tree = self.repo.git("rev-parse", "refs/heads/main^{tree}")
                parent = ["-p", ref] if to == "onward" else []
                target = self.repo.git("commit-tree", tree, *parent, "-m", "moved")
            self.repo.git("update-ref", ref, target, check=False)
            self.changed()

    @change(which=number)
    def a_record_is_deleted(self, which: int) -> None:
        if found := self.refs_below("refs/issueflow-records"):
            self.repo.git("update-ref", "-d", found[which % len(found)], check=False)
            self.changed()

    def worktrees(self) -> list[Path]:
        """Folders of runs, by their place in the files."""
        return sorted(p for p in self.top.glob("*.issueflow/ISSUE-*/*") if p.is_dir())

    @change(which=number, stranger=st.booleans())
    def a_worktree_is_deleted(self, which: int, stranger: bool) -> None:
        if found := self.worktrees():
            path = found[which % len(found)]
            shutil.rmtree(path)
            if stranger:
                path.mkdir()
                (path / "precious.txt").write_text("a stranger's\n")
            self.changed()

    @change(
        which=number,
        what=st.sampled_from(
            ["index", "HEAD", "branch", "next", "record", "packed-refs", "config", "main-index", "main-HEAD"]
        ),
    )
    def a_lock_is_left_lying(self, which: int, what: str) -> None:
        common = self.common
        admins = sorted((common / "worktrees").glob("*")) if (common / "worktrees").is_dir() else []
        name, paths = self.name(which), {"packed-refs": common / "packed-refs.lock", "config": common / "config.lock"}
        paths |= {"main-index": common / "index.lock", "main-HEAD": common / "HEAD.lock"}
        paths["record"] = common / f"refs/issueflow-records/{name}.lock"
        with contextlib.suppress(IssueflowError):
            paths["next"] = common / f"refs/heads/issueflow/{name}/{len(self.position(name).runs) + 1:02}-develop.lock"
        if found := self.refs_below("refs/heads/issueflow"):
            paths["branch"] = common / f"{found[which % len(found)]}.lock"
        if admins:
            paths |= {word: admins[which % len(admins)] / f"{word}.lock" for word in ("index", "HEAD")}
        if what in paths:
            with contextlib.suppress(OSError):  # a branch where a folder should be
                paths[what].parent.mkdir(parents=True, exist_ok=True)
                paths[what].touch()

    @change(words=st.sampled_from(["gc -q --prune=now", "pack-refs --all", "worktree prune"]))
    def git_tidies(self, words: str) -> None:
        self.repo.git(*words.split(), check=False)
        self.changed()

    @change()
    def the_person_commits(self) -> None:
        self.repo.write("mine.txt", f"commit {len(self.lines('starts'))}\n")
        self.repo.git("commit", "-qam", "mine", check=False)
        self.person = self.look()

    @change()
    def the_repository_is_moved(self) -> None:
        target = self.repo.path.with_name(f"{self.repo.path.name}x"[:12])
        if not target.exists():
            self.repo.path.rename(target)
            self.repo = Repo(target)
            self.person = self.look()

    @change(which=small)
    def an_issue_directory_is_deleted(self, which: int) -> None:
        shutil.rmtree(self.common / "issueflow" / "issues" / self.name(which), ignore_errors=True)
        self.changed()

    @change(which=small, lines=st.integers(0, 3), torn=st.booleans())
    def a_journal_is_cut(self, which: int, lines: int, torn: bool) -> None:
        path = self.common / "issueflow" / "issues" / self.name(which) / "journal.jsonl"
        if path.exists():
            whole = path.read_bytes().splitlines(keepends=True)
            rest = b"".join(whole[: len(whole) - lines])
            path.write_bytes(rest[:-9] if torn else rest)

    @change(which=small)
    def issue_yaml_is_edited(self, which: int) -> None:
        path = self.common / "issueflow" / "issues" / self.name(which) / "issue.yaml"
        if path.exists():
            path.write_text(path.read_text() + "status: delivered\n")

    @change(which=small, what=st.sampled_from(["lock", "../../lock", "summary.json", "../../index.json", "runs"]))
    def a_file_of_ours_is_deleted(self, which: int, what: str) -> None:
        path = self.common / "issueflow" / "issues" / self.name(which) / what
        if what == "runs":
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    @change()
    def the_link_is_removed(self) -> None:
        (self.repo.path / ".issueflow" / "issues").unlink(missing_ok=True)

    @change(which=small, what=st.sampled_from(["mine", "next", "delivered", "in the way"]))
    def the_person_has_a_worktree_below_our_prefix(self, which: int, what: str) -> None:
        name = self.name(which)
        branch = {"mine": "issueflow/mine", "delivered": f"issueflow/{name}/delivered"}.get(what)
        if what == "in the way":
            branch = f"issueflow/{name}"
        with contextlib.suppress(IssueflowError):
            branch = branch or f"issueflow/{name}/{len(self.position(name).runs) + 1:02}-develop"
        path = self.top / f"persons-{which}-{what.replace(' ', '')}"
        if branch and not path.exists():
            self.persons.add(branch)
            self.repo.git("worktree", "add", "-q", "-b", branch, os.fspath(path), check=False)

    @change(years=st.sampled_from([-10, 0, 10]))
    def the_clock_jumps(self, years: int) -> None:
        Clock.offset = years * 365.25 * 86400

    # ── what must hold ──

    def settle(self) -> None:
        """Whatever a run had going when its walk "died" comes to rest, so that a walk can be repeated."""
        runs = [*(self.common / "issueflow" / "issues").glob("*/runs/*")]
        for run in runs:
            if (run / "launch.json").exists() and not (run / "exit.json").exists():
                wait_for(run)

    @invariant()
    def everything_can_be_read_or_is_named(self) -> None:
        if not hasattr(self, "repo"):
            return
        for which in range(self.count):
            folder = self.repo.hands.store.issue(self.name(which))
            if folder.exists():
                try:
                    load(folder)
                except Damaged as error:
                    assert error.hint
            for path in [*folder.folder.glob("*.json"), *folder.folder.glob("runs/*/*.json")]:
                read_json(path)
        self.type("status")
        assert "unforeseen" not in self.said

    @invariant()
    def what_is_the_persons_is_as_it_was(self) -> None:
        if hasattr(self, "repo"):
            now = self.look()
            assert {k: v for k, v in now.items() if self.person.get(k) != v} == {}
            assert not self.person.keys() - now.keys()

    @invariant()
    def no_run_begins_twice_and_no_commit_is_lost(self) -> None:
        if hasattr(self, "repo"):
            starts = self.lines("starts")
            assert len(starts) == len(set(starts))
            lost = self.lost() - self.forgiven - self.still_open()
            assert not lost, lost

    def still_open(self) -> set[str]:
        """Commits that the reflog of a run's worktree holds: until the run is taken in, nothing else has to."""
        held: set[str] = set()
        for which in range(self.count):
            with contextlib.suppress(IssueflowError, OSError):
                position = self.position(self.name(which))
                if position.open_run:
                    logs = self.common.glob("worktrees/*/logs/HEAD")
                    held |= {word for log in logs for word in log.read_text().split()}
        return held

    def teardown(self) -> None:
        if not hasattr(self, "repo"):
            return
        try:
            Clock.offset = 0.0
            self.tidy_up()
            self.behave("commits")
            for which in range(self.count):
                self.end(self.name(which))
            self.no_run_begins_twice_and_no_commit_is_lost()
            self.what_is_the_persons_is_as_it_was()
        finally:
            shutil.rmtree(self.top, ignore_errors=True)

    def tidy_up(self) -> None:
        """The person takes away what only a person can: locks of all refs, strangers' folders, own branches."""
        for name in ("packed-refs.lock", "config.lock", "index.lock", "HEAD.lock"):
            (self.common / name).unlink(missing_ok=True)
        for path in self.worktrees():
            if (path / "precious.txt").exists():
                shutil.rmtree(path)
        for path in self.top.glob("persons-*"):
            shutil.rmtree(path)
        if self.persons:
            self.repo.git("worktree", "prune")
        for branch in self.persons:
            self.repo.git("branch", "-q", "-D", branch, check=False)
        self.changed()

    def end(self, name: str) -> None:
        """`resume` with a person's answers comes to an end, or keeps to one question that names what is wrong."""
        asked: list[str] = []
        for _ in range(30):
            error = self.type("resume", name)
            self.settle()
            if error:
                asked.append(str(error))
                if str(error.hint).startswith("issueflow resume"):
                    self.type(*str(error.hint).split()[1:])  # --restore or --accept: a person does as the hint says
            else:
                position = self.position(name)
                if position.is_over:
                    return
                assert position.status in ("waiting", "held"), (position.status, self.said)
                if position.status == "waiting":
                    error = self.type("approve", name)
                else:
                    assert position.hold and position.hold.reason
                    asked.append(position.hold.reason)
                    error = self.type("retry", name, "--reason", "go on")
            if len(asked) > 8:
                break
        assert len(asked) > 8, "it neither ends nor asks"
        assert any(words in asked[-1] for words in ANSWERED_ELSEWHERE), asked


# Questions that a person cannot answer with resume, approve and retry alone.
ANSWERED_ELSEWHERE = (
    "there is no ISSUE-",  # its directory and its record were both deleted
    "exists already, at",  # a branch of the run's name was moved or made by somebody else
)


class Clock:
    """Seconds by which the clock of this process is wrong."""

    offset = 0.0


def wait_for(run: Path) -> None:
    import time

    for _ in range(1000):
        known = (read_json(run / "started.json") or {}).get("runner")
        if (run / "exit.json").exists() or (known and not processes.is_alive(processes.Identity(**known))):
            return
        time.sleep(0.01)


VERB_NAMES = {verb.__name__.strip("_").replace("_", "-") for verb in VERBS}


def sensible(hint: str) -> bool:
    """Is the hint a command: a verb of ours, or a tool everybody has?"""
    words = hint.split()
    return words[0] in ("git", "ls", "ps", "df", "cat", "rm") or (words[0] == "issueflow" and words[1] in VERB_NAMES)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], None]]:
    """Tries `count` walks, the `part`-th share of a search."""
    import time

    real_now, real_time = store_issue.now, time.time
    monkeypatch.setattr(refs, "LOCK_PAUSE", 0.002)

    def now() -> str:
        at = time.gmtime(real_time() + Clock.offset)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", at) if Clock.offset else real_now()

    monkeypatch.setattr(store_issue, "now", now)
    monkeypatch.setattr(time, "time", lambda: real_time() + Clock.offset)
    monkeypatch.setenv("BENCH", str(tmp_path))
    World.home, World.source = tmp_path, template(tmp_path)

    def search(part: int, count: int) -> None:
        profile: Any = settings(
            max_examples=count,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            derandomize=not LONG_SEARCH,
        )
        share = type(f"World{part}", (World,), {})
        run_state_machine_as_test(share, settings=profile)

    yield search
    Clock.offset = 0.0


@pytest.mark.more
def test_a_few_changes_behind_our_back(world: Callable[[int, int], None]) -> None:
    world(0, 8)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_many_changes_behind_our_back(world: Callable[[int, int], None], part: int) -> None:
    world(part, max(1, EXAMPLES // PARTS))
