"""The agent `command`: any program; the prompt on its standard input, the result by file or as its final message."""

from issueflow.agents import Capabilities, Launch, Report, Task, refuse_others
from issueflow.errors import WrongWords
from issueflow.models import AgentSettings

CAPABILITIES = Capabilities()


def check(name: str, settings: AgentSettings) -> None:
    """A command needs its program."""
    refuse_others(name, settings, {"argv", "script"})
    if not settings.argv:
        raise WrongWords(f"agent {name} has no argv: what program is it?", "issueflow init --help")


def launch(settings: AgentSettings, task: Task) -> Launch:
    """The configured words as they are: nothing is added, nothing is expanded, no shell."""
    return Launch(list(settings.argv), task.prompt, dict(settings.env))


def read(stdout: str, stderr: str, ended: int) -> Report:
    """All of its output: a command has no events that would tell the last message from the others."""
    return Report(stdout)
