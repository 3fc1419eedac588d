"""The agent `scripted`: plays a YAML script of edits, commits, results, delays and misbehaviour, always the same way.

It is what `demo`, the tests and people who want to try a workflow use; docs/guides.md lists its acts.
"""

import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from issueflow.agents import Capabilities, Launch, Report, Task, player, refuse_others
from issueflow.errors import WrongWords
from issueflow.files import replace_file, to_json
from issueflow.models import AgentSettings

CAPABILITIES = Capabilities()


class _Act(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Write(_Act):
    """Write a file: its text, or bytes as base64; `mode` is octal as a string; `link` makes a symbolic link instead."""

    write: str
    text: str | None = None
    base64: str | None = None
    mode: str | None = None
    link: str | None = None


class Delete(_Act):
    """Delete a file or a folder."""

    delete: str


class Run(_Act):
    """Run a program, words as they are; its exit code does not matter."""

    run: list[str]


class Commit(_Act):
    """Commit everything with git, as an agent would."""

    commit: str


class Say(_Act):
    """Print to standard output, or to standard error."""

    say: str
    to: Literal["stdout", "stderr"] = "stdout"


class Sleep(_Act):
    """Wait this many seconds."""

    sleep: float


class Submit(_Act):
    """Submit a result; the head is filled in from the order, and `reviewed`, `responses` and `covered` where absent."""

    result: dict[str, Any]
    channel: Literal["file", "output"] = "file"


class Raw(_Act):
    """Write this very text as the result file, or print it."""

    raw: str
    channel: Literal["file", "output"] = "file"


class Leave(_Act):
    """End at once with this exit code, or by this signal."""

    exit: int | None = None
    signal: str | None = None


Act = Write | Delete | Run | Commit | Say | Sleep | Submit | Raw | Leave
SCRIPT: TypeAdapter[dict[str, list[list[Act]]]] = TypeAdapter(dict[str, list[list[Act]]])


def check(name: str, settings: AgentSettings) -> None:
    """A scripted agent needs its script."""
    refuse_others(name, settings, {"argv", "script"})
    if not settings.script:
        raise WrongWords(f"agent {name} has no script: what shall it play?", "issueflow demo")


def load(path: Path) -> dict[str, list[list[Any]]]:
    """The script at `path`: stage to plays, a play being a list of acts. WrongWords when it is not one."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
        plays = SCRIPT.validate_python(data or {})
    except OSError as error:
        raise WrongWords(f"the script {path} cannot be read: {error.strerror}", "issueflow demo") from error
    except (YAMLError, ValueError, RecursionError) as error:  # ValidationError is a ValueError
        reason = " ".join(str(error).split())[:300]
        raise WrongWords(f"the script {path} is not a script: {reason}", "issueflow demo") from error
    return {stage: [[act.model_dump() for act in play] for play in list_] for stage, list_ in plays.items()}


def launch(settings: AgentSettings, task: Task) -> Launch:
    """Start the player with the acts of this play: the n-th run of a stage plays the n-th list, the last repeats."""
    plays = load(task.project / (settings.script or "")).get(task.stage, [])
    acts = plays[min(task.play, len(plays)) - 1] if plays else []
    script = task.run_folder / "script.json"
    replace_file(script, to_json({"acts": acts}))
    argv = [sys.executable, "-I", str(Path(player.__file__).resolve()), str(script)]
    return Launch(argv, task.prompt, dict(settings.env))


def read(stdout: str, stderr: str, ended: int) -> Report:
    """All of its output."""
    return Report(stdout)
