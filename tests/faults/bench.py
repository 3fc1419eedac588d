"""The bench: a walk is recorded once, undisturbed and counted; a trial goes on from its nearest moment, with a fault.

Needs Linux and a C compiler. A trial ends with what was broken, in words.
"""

import contextlib
import errno
import io
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from conftest import Repo

from faults import invariants
from faults.walks import WALKS, next_words
from issueflow.cli import run as typed

HERE = Path(__file__).resolve().parent
PIDS = 16384
HEAD = struct.Struct("=q4i1000s")  # struct shared of injector.c, without its table of processes
SLOT = struct.Struct("=ii")
LIMIT = 90  # seconds a command may take before it counts as hanging
MOST_COMMANDS = 60

CHANGES = ("open+", "write", "rename", "link", "unlink", "mkdir", "rmdir", "symlink", "truncate", "fsync", "chmod")
NEEDS_ROOM = ("open+", "write", "rename", "link", "mkdir", "symlink", "truncate", "fsync")
NEEDS_LEAVE = ("open", "open+", "rename", "link", "unlink", "mkdir", "rmdir", "symlink", "chmod")


class Fault(NamedTuple):
    """Whose calls count (c command and its git, r runner, a agent), which calls, and what happens at the k-th."""

    roles: str
    calls: tuple[str, ...]
    does: str

    @property
    def kills(self) -> bool:
        return not self.does.startswith("errno")


def _errno(number: int, calls: tuple[str, ...], roles: str = "c", *, on: bool = False) -> Fault:
    return Fault(roles, calls, f"errno:{number}{':on' if on else ''}")


FAULTS = {
    "machine": Fault("cra", CHANGES, "kill"),
    "machine, torn write": Fault("cra", ("write",), "torn"),
    "cli": Fault("c", CHANGES, "kill"),
    "runner": Fault("ra", CHANGES, "kill"),
    "ENOSPC": _errno(errno.ENOSPC, NEEDS_ROOM),
    "ENOSPC from then on": _errno(errno.ENOSPC, NEEDS_ROOM, on=True),
    "EIO": _errno(errno.EIO, ("open", *CHANGES)),
    "EIO from then on": _errno(errno.EIO, ("open", *CHANGES), on=True),
    "EACCES": _errno(errno.EACCES, NEEDS_LEAVE),
    "EACCES from then on": _errno(errno.EACCES, NEEDS_LEAVE, on=True),
    "runner ENOSPC": _errno(errno.ENOSPC, NEEDS_ROOM, "ra"),
    "runner ENOSPC from then on": _errno(errno.ENOSPC, NEEDS_ROOM, "ra", on=True),
}


def why_not() -> str | None:
    """Why no fault can be injected here, None when one can."""
    if sys.platform != "linux":
        return "faults are injected by LD_PRELOAD, on Linux only"
    return None if shutil.which("cc") else "no C compiler (cc) to build the injector with"


def build(folder: Path) -> Path:
    """The injector as a shared library in `folder`."""
    made = folder / "injector.so"
    if not made.exists():
        half = folder / f"injector.{os.getpid()}.so"
        source = os.fspath(HERE / "injector.c")
        words = ["cc", "-shared", "-fPIC", "-O1", "-D_FORTIFY_SOURCE=0", "-o", os.fspath(half), source, "-ldl"]
        subprocess.run(words, check=True, capture_output=True)
        half.replace(made)
    return made


class Call(NamedTuple):
    """A line of the injector's log."""

    pid: str
    role: str
    op: str
    path: str
    other: str


class Moment(NamedTuple):
    """A recorded walk between two commands: its copy on disk, and how many calls came before it."""

    copy: Path
    calls: int
    approvals: int


class Recording(NamedTuple):
    """An undisturbed walk: every call in order, moments to go on from, its outcome, and the person's things."""

    calls: list[Call]
    moments: list[Moment]
    outcomes: list[tuple[Any, ...]]
    persons: dict[str, Any]

    def points(self, fault: Fault) -> list[int]:
        """The calls at which the fault can strike, as indexes into `calls`."""
        return [n for n, c in enumerate(self.calls) if c.role in fault.roles and c.op in fault.calls]


class Trial(NamedTuple):
    """What came of a fault: `hit` says at which call it struck (empty: it was not reached), `broken` what was wrong."""

    hit: str
    broken: list[str]


class Shared:
    """The file that the injector's processes share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(HEAD.size + PIDS * SLOT.size))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def read(self) -> tuple[int, bool, str]:
        """Counted so far, whether the fault has struck, and where."""
        count, fired, _, _, _, hit = HEAD.unpack(self.map[: HEAD.size])
        return count, bool(fired), hit.rstrip(b"\0").decode(errors="replace")

    def stop(self) -> None:
        """No more faults, in whatever process is left."""
        self.map[12:16] = struct.pack("=i", 1)

    def living(self, roles: str) -> list[int]:
        """The processes of these roles that are still there."""
        used = min(HEAD.unpack(self.map[: HEAD.size])[3], PIDS)
        found = []
        for slot in range(used):
            pid, role = SLOT.unpack_from(self.map, HEAD.size + slot * SLOT.size)
            if chr(role) in roles and self._is_ours(pid):
                found.append(pid)
        return found

    def _is_ours(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"FAULT_FILE={self.path}".encode() in environment

    def end(self, roles: str) -> None:
        """SIGKILL what is left of these roles, and wait until it is gone."""
        until = time.monotonic() + 10
        while (left := self.living(roles)) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)


class Bench:
    """A folder where one walk at a time is walked, always at the same paths, so that a copy can be put back."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.work, self.log, self.home = top / "work", top / "log", top / "home"
        self.repo = self.work / "shop"
        self.home.mkdir(parents=True)
        self.requirement = top / "r3.md"
        self.requirement.write_text("# Go\n")
        self.library = build(top)
        (self.home / ".gitconfig").write_text("[user]\n\tname = Pat\n\temail = pat@localhost\n")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.fspath(self.home),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "BENCH": os.fspath(self.log),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": os.fspath(top),
        }
        self.recordings: dict[str, Recording] = {}

    @contextlib.contextmanager
    def sealed(self) -> Iterator[None]:
        """This process with the bench's environment and nothing else, standing in the repository."""
        before, here = dict(os.environ), Path.cwd()
        os.environ.clear()
        os.environ.update(self.environment)
        try:
            os.chdir(self.repo if self.repo.is_dir() else self.top)
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            os.chdir(here)

    # ── commands ──

    def command(self, words: list[str], more: dict[str, str]) -> tuple[int, str]:
        """Run issueflow in a process of its own; exit code and standard error."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "issueflow", *words],
                cwd=self.repo,
                env={**self.environment, **more},
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 1000, f"issueflow {' '.join(words)} hangs"
        return done.returncode, done.stderr.decode(errors="replace")

    def here(self, words: list[str]) -> tuple[int, str]:
        """Run issueflow in this process, which need not start Python again."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = typed(words)
        err.flush()
        return code, err.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]

    def next_words(self, name: str, recovery: bool) -> list[str] | None:
        walk, there = WALKS[name], invariants.positions(self.repo)
        return next_words(walk, there, os.fspath(self.requirement), recovery)

    # ── the undisturbed walk ──

    def record(self, name: str) -> Recording:
        """Walk undisturbed, counting, with a copy of everything between any two commands; once for each walk."""
        if name in self.recordings:
            return self.recordings[name]
        walk = WALKS[name]
        for folder in (self.work, self.log):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        with self.sealed():
            repo = Repo(self.repo)
            repo.path.mkdir()
            repo.git("init", "-q", "-b", "main", "--template=")
            repo.write("app.py", "print('one')\n")
            setup = {"setup": list(walk.setup), "copy": [], "link": []}
            repo.setup(walk.script, checks=list(walk.checks), worktrees=setup)
            before = invariants.persons(repo.path)
        counted, shared = self.top / f"{name}.calls", Shared(self.top / "shared")
        counted.touch()
        every = Fault("cra", ("open", *CHANGES), "kill")
        moments: list[Moment] = []
        approvals = 0
        with self.sealed():
            while words := self.next_words(name, recovery=False):
                moments.append(self._keep(name, len(moments), counted, approvals))
                approvals += words[0] == "approve"
                code, said = self.command(words, {**self._preload(every, 0, shared), "FAULT_LOG": os.fspath(counted)})
                assert code == 0, f"{words}: {said}"
                shared.end("ra")  # a runner that has ended may still be leaving
                assert len(moments) < MOST_COMMANDS
        there = invariants.positions(self.repo)
        calls = [Call(*row.split("\t")[1:]) for row in counted.read_text(errors="replace").splitlines()]
        self.recordings[name] = Recording(calls, moments, [invariants.outcome(p) for p in there], before)
        return self.recordings[name]

    def _keep(self, name: str, number: int, counted: Path, approvals: int) -> Moment:
        copy = self.top / "moments" / f"{name}-{number}"
        copy.mkdir(parents=True)
        subprocess.run(["cp", "-a", self.work, self.log, copy], check=True)
        return Moment(copy, len(counted.read_bytes().splitlines()), approvals)

    def _preload(self, fault: Fault, at: int, shared: Shared) -> dict[str, str]:
        return {
            "LD_PRELOAD": os.fspath(self.library),
            "FAULT_FILE": os.fspath(shared.path),
            "FAULT_ROOT": os.fspath(self.work),
            "FAULT_ROLES": fault.roles,
            "FAULT_OPS": ",".join(fault.calls),
            "FAULT_AT": str(at),
            "FAULT_DO": fault.does,
        }

    # ── a trial ──

    def trial(self, name: str, fault: Fault, point: int) -> Trial:
        """Walk on from the moment before call number `point` of the recording, with the fault at that call."""
        recording = self.record(name)
        moment = next(m for m in reversed(recording.moments) if m.calls <= point)
        for folder in (self.work, self.log):
            shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["cp", "-a", moment.copy / "work", moment.copy / "log", self.top], check=True)
        shared = Shared(self.top / "shared")
        at = sum(1 for n in recording.points(fault) if moment.calls <= n <= point)
        with self.sealed():
            approvals, wrong = self._disturbed(name, fault, at, shared, moment.approvals)
            _, fired, hit = shared.read()
            if fired:
                wrong += [*invariants.unreadable(self.repo), *self._recovered(name, fault, recording, approvals)]
        return Trial(hit, wrong)

    def _disturbed(self, name: str, fault: Fault, at: int, shared: Shared, approvals: int) -> tuple[int, list[str]]:
        """Go on until the fault has struck; how often a person has approved, and what the struck command did wrong."""
        preload = self._preload(fault, at, shared)
        while words := self.next_words(name, recovery=False):
            approvals += words[0] == "approve"
            code, said = self.command(words, preload)
            if not shared.read()[1]:
                continue
            if fault.kills:
                shared.end(fault.roles)
                return approvals, ["it hangs"] if code == 1000 else []
            shared.stop()
            return approvals, list(_told_badly(words, code, said))
        return approvals, []

    def _recovered(self, name: str, fault: Fault, recording: Recording, approvals: int) -> Iterator[str]:
        """Resume, by a process of its own first, and let the person answer; then everything must hold."""
        run = lambda words: self.command(words, {})  # noqa: E731
        first = [["resume", position.issue] for position in invariants.positions(self.repo)]
        for _ in range(MOST_COMMANDS):
            words = first.pop(0) if first else self.next_words(name, recovery=True)
            if words is None:
                break
            if words[0] == "retry" and (fault.kills or "r" not in fault.roles):
                yield "I1 it is held, and resume does not help"
                return
            approvals += words[0] == "approve"
            code, said = run(words)
            if words[0] == "resume":
                run = self.here
            if code not in (0, 4) or "Traceback" in said or "unforeseen" in said:
                yield f"I1 {' '.join(words)} gives {code}: {said.strip()[-300:]}"
                return
        else:
            yield "I1 it does not end"
            return
        got = [invariants.outcome(p) for p in invariants.positions(self.repo)]
        whole = fault.kills or "r" not in fault.roles
        if [o if whole else o[:3] for o in got] != [o if whole else o[:3] for o in recording.outcomes]:
            ended = [run.ended for p in invariants.positions(self.repo) for run in p.runs if run.ended]
            yield f"I1 it ends elsewhere: {got}, {[e.outcome.errors for e in ended if e.outcome.errors]}"
        yield from invariants.broken(self.repo, self.log, recording.persons, approvals)
        before = invariants.state(self.repo)
        for position in invariants.positions(self.repo):
            self.here(["resume", position.issue])
        after = invariants.state(self.repo)
        for changed in sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n)):
            yield f"I8 a further resume changes {changed}"


def _told_badly(words: list[str], code: int, said: str) -> Iterator[str]:
    """A command that met an error of the disk says so in one sentence with a path, or has done without."""
    if code == 1000:
        yield said
    own = "\n".join(line for line in said.splitlines() if not line.startswith("  │ "))  # without its agent's words
    if "Traceback" in own or "unforeseen" in own:
        yield f"{' '.join(words)} shows a programmer's error: {said.strip()[-400:]}"
    errors = [line for line in said.splitlines() if "error: " in line]
    gits = any("error: git " in line for line in errors)  # git's own words, which mostly name a path
    if code not in (0, 4) and not gits and (not errors or "/" not in errors[0]):
        yield f"{' '.join(words)} names no path: {said.strip()[-300:]}"


def temporary() -> Path:
    """A folder for benches, in memory where there is room: a trial syncs every file."""
    memory = Path("/dev/shm")
    there = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
    return Path(tempfile.mkdtemp(prefix="faults-", dir=memory if there else None))
