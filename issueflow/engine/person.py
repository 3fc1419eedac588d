"""Who decides: a person, by the name the system knows, and never a process of a run."""

import getpass
import os

from issueflow.errors import IssueflowError
from issueflow.hosts import processes


def refuse_inside_run(verb: str) -> None:
    """A run cannot decide for a person: IssueflowError when this process, or one above it, belongs to a run.

    A guard against accidents and eager agents, no wall against a hostile one (docs/concepts.md).
    """
    mark = os.environ.get(processes.MARK) or processes.run_of(os.getppid())
    if mark:
        raise IssueflowError(f"{verb} is a person's decision; this is run {mark.rsplit('/', 1)[0]}", "issueflow status")


def who() -> str:
    """The name of the person at work, as the system knows it; text that can be stored."""
    try:
        return os.fsencode(getpass.getuser()).decode(errors="replace")
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
