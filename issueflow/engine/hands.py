"""What the engine works with, put together once by the project."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from issueflow.errors import IssueflowError, WrongWords
from issueflow.git.refs import Repository
from issueflow.hosts.redact import Secrets
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

    @cached_property
    def secrets(self) -> Secrets:
        """The declared secrets; none where the configuration cannot be read: `cancel` and `note` work all the same."""
        try:
            return Secrets(self.config.secrets)
        except IssueflowError:
            return Secrets(())

    def refuse_secrets(self, what: str, text: bytes) -> None:
        """WrongWords when `what` a person gives holds a secret's value: journal and prompts would hold it too."""
        for name in self.secrets.found_in(text):
            raise WrongWords(f"{what} holds the value of the secret {name}, which would be written down")

    @property
    def worktrees(self) -> Path:
        """Where worktrees go: beside the repository, where neither `git clean` nor a lost `.git` file can reach it."""
        root = self.config.worktrees.root
        if root:
            return (self.project / Path(root).expanduser()).absolute()
        return self.project.with_name(self.project.name + ".issueflow")
