"""Where runs happen: a host starts a runner for a run folder and tells later, from any process, what became of it.

No module that needs an installed package is imported with this one: the runner loads it with the standard library
alone.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from issueflow.errors import IssueflowError

if TYPE_CHECKING:
    from issueflow.models import Sight


class Host(Protocol):
    """What a module in the table offers; what a run hands in is collected from its folder, whatever the host."""

    def require(self) -> None:
        """Refuse to be given runs where this machine lacks something: IssueflowError with the sentence."""

    def submit(self, folder: Path) -> None:
        """Have the prepared run in `folder` minded; of any number of calls one starts its agent."""

    def probe(self, folder: Path, mark: str) -> "Sight":
        """What can be seen of the run, from any process and without waiting; `mark` is what its agent carries."""

    def cancel(self, folder: Path, mark: str) -> None:
        """End the run's agent with all its descendants."""

    def shown(self, folder: Path) -> str | None:
        """What shows the run at this moment, in words; it proves nothing about the run."""

    def attach(self, folder: Path, *, take_over: bool) -> list[str] | None:
        """The program that shows the live run on a terminal, None when this host has none.

        Keys reach it only with `take_over`. IssueflowError when it should have one and cannot.
        """


def table() -> dict[str, Host]:
    """Every host by the name it has in config.yaml. A new host is one file and one row."""
    from issueflow.hosts import process, tmux

    return {"process": process, "tmux": tmux}


def host(name: str) -> Host:
    """The host a run was given to; IssueflowError when this version has none of that name."""
    found = table().get(name)
    if found is None:
        raise IssueflowError(
            f"the run is on the host {name}, which this issueflow does not know", "issueflow --version"
        )
    return found
