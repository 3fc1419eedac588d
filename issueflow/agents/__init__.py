"""Which programs can play a role, and how each is started; one small file an agent, one row in the table."""

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from issueflow.errors import WrongWords
from issueflow.models import AgentSettings

# type in config.yaml → the module here that knows it. A new agent is one file and one row.
TYPES = {
    "command": "issueflow.agents.command",
    "scripted": "issueflow.agents.scripted",
}


@dataclass(frozen=True)
class Task:
    """What an agent is given: the prompt file, the order's folder in its worktree, which play of its stage this is."""

    prompt: Path
    worktree: Path
    run_folder: Path
    stage: str
    play: int
    project: Path


@dataclass(frozen=True)
class Launch:
    """How to start the agent: program and arguments, the file on its standard input, variables to add."""

    argv: list[str]
    stdin: Path
    env: dict[str, str] = field(default_factory=dict)


class Agent(Protocol):
    """What a module in the table offers."""

    def check(self, name: str, settings: AgentSettings) -> None:
        """Refuse settings this type cannot use: WrongWords with the sentence."""

    def launch(self, settings: AgentSettings, task: Task) -> Launch:
        """How to start the agent for `task`; may write files of its own into `task.run_folder`."""

    def final_message(self, stdout: str) -> str:
        """The part of the output in which a result may stand, for sandboxes that can write no file."""


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
