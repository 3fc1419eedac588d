"""What the engine works with, put together once by the project."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from issueflow.git.refs import Repository
from issueflow.models import Config, Workflow
from issueflow.store.issue import Store


@dataclass
class Hands:
    """The repository, its Issues, and the project's choices; the latter are only read when a verb needs them."""

    repository: Repository
    store: Store
    project: Path
    read_config: Callable[[], Config]
    read_workflow: Callable[[str], Workflow]

    @cached_property
    def config(self) -> Config:
        """`.issueflow/config.yaml`; WrongWords when it cannot be used."""
        return self.read_config()

    @property
    def worktrees(self) -> Path:
        """Where worktrees go: beside the repository, where neither `git clean` nor a lost `.git` file can reach it."""
        root = self.config.worktrees.root
        if root:
            return (self.project / Path(root).expanduser()).absolute()
        return self.project.with_name(self.project.name + ".issueflow")
