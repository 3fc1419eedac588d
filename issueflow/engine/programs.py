"""Looks for agent CLIs on this machine: where they are, which version, whether anything speaks for a login."""

import os
import re
import secrets
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from issueflow import agents
from issueflow.agents.known import KNOWN, is_older, sign_of_login
from issueflow.errors import IssueflowError
from issueflow.hosts import processes
from issueflow.models import AgentSettings, Config

VERSION_LIMIT = 10.0  # seconds a CLI may take to say its version; gemini takes two, and ten on a busy machine
BEAT = 0.05  # seconds
MOST_SAID = 4096  # bytes; a version stands at the beginning
VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+){1,3})")


@dataclass(frozen=True)
class Program:
    """A CLI that issueflow knows. `path` is None when it is not installed; `version` is only asked for with a check.

    `login` names what speaks for a login. `needs` says what is missing or wrong, empty when nothing is seen; `hint` is
    the command that helps.
    """

    name: str
    path: str | None
    version: str | None
    tried: str
    login: str
    needs: str
    hint: str


@dataclass(frozen=True)
class Configured:
    """An agent of config.yaml: its roles, the program it starts, and what keeps it from being started."""

    name: str
    type: str
    roles: tuple[str, ...]
    program: str
    path: str | None
    needs: str
    hint: str


def known_programs(*, check: bool) -> list[Program]:
    """Every CLI that issueflow knows; with `check`, those that are installed are asked for their version."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # more at once would make each of them late
        return list(pool.map(lambda name: _look(name, check=check), KNOWN))


def _look(name: str, *, check: bool) -> Program:
    known = KNOWN[name]
    path = shutil.which(name)
    login = sign_of_login(known)
    if path is None:
        return Program(name, None, None, known.tried, login, "not installed", known.install)
    version, problem = ask_version(path) if check else (None, "")
    if problem:
        return Program(name, path, None, known.tried, login, problem, shlex.join([name, "--version"]))
    if version and is_older(version, known.tried):
        older = f"older than {known.tried}, the oldest that was tried"
        return Program(name, path, version, known.tried, login, older, known.install)
    if not login:
        return Program(name, path, version, known.tried, "", "no sign of a login", known.login)
    return Program(name, path, version, known.tried, login, "", "")


def configured_agents(config: Config, project: Path) -> list[Configured]:
    """Every agent of config.yaml, with what keeps it from being started."""
    return [_configured(name, settings, config, project) for name, settings in config.agents.items()]


def _configured(name: str, settings: AgentSettings, config: Config, project: Path) -> Configured:
    roles = tuple(role for role, agent in config.roles.items() if agent == name)
    program = settings.argv[0] if settings.argv else settings.type if settings.type in KNOWN else ""
    path, needs, hint = None, "", ""
    try:
        agents.usable(name, settings)
    except IssueflowError as error:
        needs, hint = str(error), error.hint or ""
    if settings.script and not needs:
        program = settings.script
        path = os.fspath(project / program) if (project / program).is_file() else None
    elif program:
        # A relative path is looked for in the worktree, which has what the checkout has committed.
        path = shutil.which(os.fspath(project / program) if "/" in program else program)
    if not needs and program and path is None:
        known = KNOWN.get(program)
        needs = f"{program} is not there" if settings.script else f"{program} is not installed"
        words = ["ls", "-l", program] if "/" in program or settings.script else ["command", "-v", program]
        hint = known.install if known else shlex.join(words)
    return Configured(name, settings.type, roles, program, path, needs, hint)


# ── asking for a version ──


def ask_version(program: str, limit: float = VERSION_LIMIT) -> tuple[str | None, str]:
    """The version that `PROGRAM --version` prints, and what is wrong when it prints none.

    It runs in an empty folder, with nothing on standard input, in a session of its own; whatever it leaves running is
    ended with it, and at `limit` seconds so is it.
    """
    mark = f"version/{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="issueflow-version-") as empty:
        try:
            process = subprocess.Popen(
                [program, "--version"],
                cwd=empty,
                env={**os.environ, processes.MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return None, f"cannot be started: {error.strerror}"
        try:
            said, code = _listen(process, limit)
        finally:
            _end(process, mark)
    if code is None:
        return None, f"does not say its version within {limit:g} s"
    text = said.decode(errors="replace")
    found = VERSION.search(text)
    if code != 0:
        return None, f"--version ended with {code}: {_beginning(text)}"
    return (found[1], "") if found else (None, f"says no version: {_beginning(text)}")


def _listen(process: "subprocess.Popen[bytes]", limit: float) -> tuple[bytes, int | None]:
    """The beginning of what it says and its exit code, None when it did not end in time.

    Its end counts, not that of the pipe: a process that it leaves behind may hold that for ever. What goes beyond the
    beginning is read and thrown away.
    """
    assert process.stdout is not None
    said, is_open = b"", True
    until = time.monotonic() + limit
    while time.monotonic() < until:
        code = process.poll()
        if is_open and select.select([process.stdout], [], [], 0 if code is not None else BEAT)[0]:
            piece = os.read(process.stdout.fileno(), MOST_SAID)
            is_open = bool(piece) and (code is None or len(said) < MOST_SAID)
            said = (said + piece)[:MOST_SAID]
        elif code is not None:
            return said, code
        elif not is_open:
            time.sleep(BEAT)
    return said, None


def _end(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """End it with all that it started; what had left its tree is known by the mark."""
    ended: set[int] = set()
    while left := [pid for pid in _family(process, mark) if pid not in ended]:
        ended.update(left)
        processes.end(left)
    process.wait()
    if process.stdout:
        process.stdout.close()


def _family(process: "subprocess.Popen[bytes]", mark: str) -> list[int]:
    own = [process.pid] if process.poll() is None else []
    return [*own, *processes.descendants(process.pid), *(processes.marked(mark) or [])]


def _beginning(text: str) -> str:
    return " ".join(text.split())[:60] or "nothing"
