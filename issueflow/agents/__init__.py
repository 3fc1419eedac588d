"""Which programs can play a role, how each is started and read; one small file an agent, one row in the table."""

from collections.abc import Collection
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol, cast

from issueflow.errors import WrongWords
from issueflow.models import Access, AgentSettings, Problem, StageKind, Usage

# type in config.yaml → the module here that knows it. A new agent is one file and one row.
TYPES = {
    "claude": "issueflow.agents.claude",
    "codex": "issueflow.agents.codex",
    "command": "issueflow.agents.command",
    "gemini": "issueflow.agents.gemini",
    "opencode": "issueflow.agents.opencode",
    "scripted": "issueflow.agents.scripted",
}

# What a figure in a report is of: this run alone, the whole conversation so far, or the CLI does not say.
Extent = Literal["run", "conversation", "unknown"]


@dataclass(frozen=True)
class Capabilities:
    """What a CLI can do; by this, and never by its name, the engine tells agents apart.

    `session_id_choice`: a conversation's id can be chosen beforehand. `resume_elsewhere`: in another worktree too, and
    there it works in that one. `schema`: its final message can be bound to a JSON schema. `trust`: it must be told
    that a folder is trusted.
    """

    session_id_choice: bool = False
    resume: bool = False
    resume_elsewhere: bool = False
    schema: bool = False
    max_turns: bool = False
    budget: bool = False
    usage: Extent = "unknown"
    cost: Extent = "unknown"
    add_dirs: bool = False
    trust: bool = False


@dataclass(frozen=True)
class Session:
    """A conversation: its id, and whether it is to be gone on with or to begin."""

    id: str
    resume: bool


@dataclass(frozen=True)
class Task:
    """What an agent is given: the prompt file, the order's folder in its worktree, which play of its stage this is.

    `commands`: may it run commands; `git`: the git directories that a commit in the worktree writes to; `session`: None
    where the CLI picks an id of its own; `schema`: a file with the JSON schema of the result.
    """

    prompt: Path
    worktree: Path
    run_folder: Path
    stage: str
    play: int
    project: Path
    kind: StageKind
    access: Access
    commands: bool
    git: tuple[Path, ...]
    session: Session | None
    schema: Path


@dataclass(frozen=True)
class Launch:
    """How to start the agent: program and arguments, the file on its standard input, variables to add."""

    argv: list[str]
    stdin: Path
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What an agent's output says; claims and facts of the CLI, which decide nothing by themselves.

    `message`: the part in which a result may stand, for sandboxes that can write no file. `succeeded`: True or False
    when its last word was an event of success or failure, None when it never said. `denials`: what it wanted to do and
    was not allowed to.
    """

    message: str
    session: str | None = None
    usage: Usage | None = None
    succeeded: bool | None = None
    denials: tuple[str, ...] = ()
    problem: Problem | None = None


class Agent(Protocol):
    """What a module in the table offers."""

    CAPABILITIES: Capabilities

    def check(self, name: str, settings: AgentSettings) -> None:
        """Refuse settings this type cannot use: WrongWords with the sentence."""

    def launch(self, settings: AgentSettings, task: Task) -> Launch:
        """How to start the agent for `task`; may write files of its own into `task.run_folder`."""

    def read(self, stdout: str, stderr: str, ended: int) -> Report:
        """What the output says, however it was cut off; `ended` is when, in seconds since 1970."""


def agent(settings: AgentSettings) -> Agent | None:
    """The agent of this type, None when there is none of that name."""
    module = TYPES.get(settings.type)
    return cast(Agent, import_module(module)) if module else None


def usable(name: str, settings: AgentSettings) -> Agent:
    """The agent of this type, with settings it can use; WrongWords when there is none, or when it refuses them."""
    found = agent(settings)
    if found is None:
        known = ", ".join(sorted(TYPES))
        raise WrongWords(f"agent {name} has the unknown type {settings.type} (known: {known})", "issueflow init --help")
    found.check(name, settings)
    return found


def resuming(settings: dict[str, AgentSettings]) -> set[str]:
    """Those of the agents whose conversations can go on in another worktree."""
    found = {name: agent(one) for name, one in settings.items()}
    return {name for name, one in found.items() if one and one.CAPABILITIES.resume_elsewhere}


def refuse_others(name: str, settings: AgentSettings, used: Collection[str]) -> None:
    """WrongWords when a key is set that this type would silently leave unread."""
    for key in sorted(settings.model_fields_set - {"type", "env", "keys", "timeout", *used}):
        raise WrongWords(f"agent {name}: {key} has no meaning for the type {settings.type}", "issueflow init --help")
