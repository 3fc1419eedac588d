"""The test bench: a sealed home, real repositories, the scripted agent in the place of mocks."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from issueflow.cli import run
from issueflow.engine import begin, walk
from issueflow.engine.hands import Hands
from issueflow.engine.issues import load
from issueflow.errors import IssueflowError
from issueflow.git.layout import locate
from issueflow.machine import Position
from issueflow.machine.requirement import read_requirement
from issueflow.project import Project

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / ".issueflow-example"
EXAMPLE_CONFIG: dict[str, Any] = YAML(typ="safe", pure=True).load((EXAMPLE / "config.yaml").read_text())


def pytest_configure(config: pytest.Config) -> None:
    """Repositories in memory where there is room: a suite that syncs every file to a disk waits for nothing else."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", metavar="K/M", help="run only every M-th of the collected tests, beginning with the K-th"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A rotating sample of a large matrix: the part is chosen by the caller, so that a failure can be run again."""
    thin(items)
    if part := config.getoption("--part"):
        number, of = (int(word) for word in part.split("/"))
        marker = "more" if config.option.markexpr == "more" else "slow"
        wanted = [item for item in items if item.get_closest_marker(marker)]
        items[:] = wanted[number::of]


REAL = {"repo", "make_repo", "at_deliver"}  # fixtures that make a repository


def thin(items: list[pytest.Item]) -> None:
    """Of each family of cases on a real repository the quick suite takes the first; the others are marked `more`."""
    seen: set[tuple[object, str]] = set()
    for item in items:
        if isinstance(item, pytest.Function) and REAL & set(item.fixturenames):
            family = item.path, item.originalname or item.name
            if family in seen and not item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.more)
            seen.add(family)


@pytest.fixture(autouse=True)
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, no system configuration of git, fixed language: nothing of this machine's person comes in."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith(("GIT_", "ISSUEFLOW_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("COLUMNS", "100")
    (home / ".gitconfig").write_text("[user]\n\tname = Pat\n\temail = pat@localhost\n[init]\n\tdefaultBranch = main\n")
    monkeypatch.chdir(tmp_path)
    yield home


class Repo:
    """A real repository with `.issueflow/`, and the handful of things tests do with one."""

    meddled = False  # set by a test whose agent changes what is the person's

    def __init__(self, path: Path) -> None:
        self.path = path
        self.prefix = "issueflow"

    # ── files and git ──

    def git(self, *words: str, cwd: Path | None = None, check: bool = True, **more: Any) -> str:
        """Run plain git, as a person would; its output as text."""
        done = subprocess.run(["git", *words], cwd=cwd or self.path, capture_output=True, check=False, **more)
        assert done.returncode == 0 or not check, done.stderr.decode(errors="replace")
        return os.fsdecode(done.stdout).removesuffix("\n")

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    # ── issueflow ──

    def setup(self, script: dict[str, Any] | None = None, checks: list[str] | None = None, **config: Any) -> None:
        """Write `.issueflow/` from the example with this script and these checks, and commit it."""
        self.script(script if script is not None else walk_through())
        (self.path / ".issueflow" / "workflows").mkdir(parents=True, exist_ok=True)
        for workflow in (EXAMPLE / "workflows").glob("*.yaml"):
            self.write(f".issueflow/workflows/{workflow.name}", workflow.read_text())
        self.write(".issueflow/context/constraints.md", (EXAMPLE / "context" / "constraints.md").read_text())
        self.write(".issueflow/.gitignore", "/issues\n")
        self.prefix = config.get("prefix", self.prefix)
        whole = {**EXAMPLE_CONFIG, "checks": ["true"] if checks is None else checks, **config}
        self.write(".issueflow/config.yaml", json.dumps(whole))
        self.commit("Use issueflow")

    def script(self, script: dict[str, Any]) -> None:
        self.write(".issueflow/scripted.yaml", json.dumps(script))

    @property
    def hands(self) -> Hands:
        return Project(self.path).hands()

    def new(self, text: str = "# Do it\n\nPlease.\n", *options: str) -> str:
        """Begin an Issue; its id. `options` are `--workflow NAME`; what else `new` takes is asked of the command."""
        wanted = dict(zip(options[::2], options[1::2], strict=True))
        title = read_requirement(text.encode(), "r3.md").title
        return begin.create(self.hands, text.encode(), title, "r3.md", wanted.get("--workflow"), wanted.get("--base"))

    def cli(self, *words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        """Run the command as a person types it: here when nothing else is asked, else in a process of its own.

        After every command the person's things are as they were, unless the agent of this test meddles with them.
        """
        with self.left_alone(words):
            return self._spawned(words, more) if more else self._typed(words)

    @contextlib.contextmanager
    def left_alone(self, words: tuple[str, ...]) -> Iterator[None]:
        """Asserts that what happens meanwhile leaves everything of the person's byte for byte as it was."""
        before = self.belongings()
        yield
        if not self.meddled and words[0] != "init":
            after = self.belongings()
            moved = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            assert not moved, f"{' '.join(words)} touched what is the person's: {moved}"

    def belongings(self) -> dict[str, object]:
        """All that is the person's, by name, read without git: HEAD, index, refs, stash, settings, hooks, files."""
        try:
            standing = locate(self.path)
        except IssueflowError:
            return {}
        common = standing.common
        own = self.path / ".git"
        if own.is_file():
            own = self.path / own.read_text().removeprefix("gitdir:").strip()
        watched = [own / "HEAD", own / "index", common / "config", common / "packed-refs", common / "logs/refs/stash"]
        watched += [path for folder in ("hooks", "info") for path in (common / folder).glob("*")]
        seen: dict[str, object] = {os.fspath(path): path.read_bytes() for path in watched if path.is_file()}
        packed = seen.pop(os.fspath(common / "packed-refs"), b"")
        assert isinstance(packed, bytes)
        rows = [row.split(" ", 1) for row in packed.decode().splitlines() if " " in row and row[0] not in "#^"]
        refs = {name: value for value, name in rows}
        for path in (common / "refs").rglob("*"):
            if path.is_file() and path.suffix != ".lock":
                refs[os.fspath(path.relative_to(common))] = path.read_text().strip()
        ours = (f"refs/heads/{self.prefix}/", f"refs/remotes/origin/{self.prefix}/", "refs/issueflow-")
        seen |= {name: value for name, value in refs.items() if not name.startswith(ours)}
        for folder, folders, files in os.walk(os.fsencode(standing.worktree or common / "none")):
            folders[:] = [name for name in folders if name != b".git"]
            for name in files:
                state = os.lstat(os.path.join(folder, name))
                seen[os.fsdecode(os.path.join(folder, name))] = (state.st_mode, state.st_size, state.st_mtime_ns)
        return seen

    def _spawned(self, words: tuple[str, ...], more: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, **more.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "issueflow", *words],
            cwd=more.pop("cwd", self.path),
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
            **more,
        )

    def _typed(self, words: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", newline="") for _ in range(2))
        before = Path.cwd()
        os.chdir(self.path)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(list(words))
        finally:
            os.chdir(before)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.detach().getvalue().decode(errors="replace").replace("\r\n", "\n"))
        return subprocess.CompletedProcess(list(words), code, *texts)

    def advance(self, issue: str = "ISSUE-1", **goal: Any) -> Position:
        """Walk an Issue on in this process."""
        with self.left_alone(("advance", issue)):
            return walk.advance(self.hands, issue, Silent(), walk.Goal(**goal))

    def position(self, issue: str = "ISSUE-1") -> Position:
        return load(self.hands.store.issue(issue))

    def run_folder(self, name: str, issue: str = "ISSUE-1") -> Path:
        return self.hands.store.issue(issue).run(name)

    def worktree(self, name: str, issue: str = "ISSUE-1") -> Path:
        return self.path.with_name(self.path.name + ".issueflow") / issue / name

    def files(self, commit: str) -> dict[str, str]:
        """Path to mode and content id of everything in a commit."""
        listing = self.git("ls-tree", "-r", "-z", commit)
        rows = [row.split("\t", 1) for row in listing.split("\0") if row]
        return {name: head for head, name in rows}


class Silent:
    """A watcher that tells nobody."""

    def began(self, position: Position) -> None: ...

    def followed(self, position: Position, why: str, seconds: float, run: Path) -> None: ...

    def moved(self, before: Position, after: Position) -> None: ...


@pytest.fixture
def make_repo(tmp_path: Path) -> Callable[..., Repo]:
    """Makes a repository with one commit; `name` may be anything a folder can be called."""

    def make(name: str = "shop", **options: Any) -> Repo:
        repo = Repo(tmp_path / name)
        repo.path.mkdir(parents=True)
        repo.git("init", "-q", *options.get("init", ()))
        repo.write("app.py", "print('one')\n")
        repo.commit("first")
        return repo

    return make


@pytest.fixture
def repo(make_repo: Callable[..., Repo]) -> Repo:
    """A repository that is set up with a script that goes straight through `default` and `quick`."""
    made = make_repo()
    made.setup()
    return made


def sampled(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of which only those in `quick` run every time; the others are for the rotating sample."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


# ── scripts ──


def done(**more: Any) -> dict[str, Any]:
    """An act that submits `done`."""
    return {"result": {"verdict": "done", **more}}


def approve(**more: Any) -> dict[str, Any]:
    """An act that submits `approve`."""
    return {"result": {"verdict": "approve", **more}}


def finding(severity: str = "major", claim: str = "it is wrong") -> dict[str, str]:
    return {"severity": severity, "where": "app.py:1", "claim": claim, "evidence": "one can see it", "fix": "mend it"}


def reject(*findings: dict[str, str], **more: Any) -> dict[str, Any]:
    """An act that submits `request_changes`."""
    return {"result": {"verdict": "request_changes", "findings": list(findings) or [finding()], **more}}


def plan(text: str = "# Plan\n") -> list[dict[str, Any]]:
    """Acts of an analysis that hands in a plan with a checklist of one item."""
    return [
        {"write": ".issueflow-run/plan.md", "text": text},
        done(
            artifacts=[{"name": "plan.md", "path": ".issueflow-run/plan.md"}],
            checklist=[{"id": "C1", "text": "it works", "source": "requirement"}],
        ),
    ]


def develop(*acts: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Acts of a developer in `default`: `acts`, then a report and `done`."""
    report = [{"name": "report.md", "text": "what was done"}]
    return [*acts, done(**{"artifacts": report, **more})]


def walk_through() -> dict[str, Any]:
    """A script that goes straight through `default`."""
    return {
        "analysis": [plan()],
        "plan-review": [[approve()]],
        "develop": [develop({"write": "app.py", "text": "print('two')\n"})],
        "code-review": [[approve()]],
    }


def quick(*plays: list[dict[str, Any]]) -> dict[str, Any]:
    """A script for `quick`: each play is the acts of one develop run, its result included."""
    return {"develop": list(plays)}


# A workflow of a writer and a reviewer, for what `quick` has no reviewer for.
PAIR = {
    "name": "pair",
    "version": 1,
    "start": "develop",
    "roles": {"developer": "writes", "reviewer": "reads"},
    "stages": {
        "develop": {
            "kind": "agent",
            "role": "developer",
            "access": "write",
            "next": {"done": "review", "blocked": "hold"},
        },
        "review": {
            "kind": "review",
            "target": "diff",
            "reviewers": [{"id": "one", "role": "reviewer"}],
            "next": {"approve": "deliver", "request_changes": "develop", "blocked": "hold"},
        },
        "deliver": {
            "kind": "human",
            "presents": ["diff", "review"],
            "next": {"approve": "delivered", "request_changes": "develop", "cancel": "cancelled"},
        },
    },
    "loops": {
        "coding": {"stages": ["develop", "review"], "back_to": "develop", "max_rounds": 3, "on_exhausted": "deliver"}
    },
}
