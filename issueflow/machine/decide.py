"""What to do next: a pure function of where the Issue stands and what was seen of its open run."""

from dataclasses import dataclass

from issueflow.machine.fold import Position
from issueflow.models import Life, Sight


@dataclass(frozen=True)
class Start:
    """Write the intent of the next run."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would start {position.stage}, round {position.round}, attempt {position.attempt}"


@dataclass(frozen=True)
class Prepare:
    """Make worktree, order and launch file of the open run, again if need be, and hand it to the host."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would prepare and launch {position.stage} again"


@dataclass(frozen=True)
class Wait:
    """Follow the open run; `why` says what is seen of it."""

    why: str

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would follow the run of {position.stage}: {self.why}"


@dataclass(frozen=True)
class Collect:
    """Take in what the ended run left."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would take in what the run of {position.stage} left"


@dataclass(frozen=True)
class Drop:
    """Write off the open run, which is proven dead, and keep what it had written."""

    reason: str

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would write off the run of {position.stage}, keeping its work: {self.reason}"


@dataclass(frozen=True)
class Stop:
    """End the processes of a run whose Issue is over."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return "would end the processes of the run"


@dataclass(frozen=True)
class Present:
    """Fix what a person is asked to decide on."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would ask you to decide at {position.stage}"


@dataclass(frozen=True)
class Deliver:
    """Make the branch a person merges."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return "would make the branch to merge"


@dataclass(frozen=True)
class Ask:
    """Nothing moves until a person answers."""

    question: str

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"would wait: {self.question}"


@dataclass(frozen=True)
class End:
    """The Issue is over."""

    def say(self, position: Position) -> str:
        """In words, as --dry-run prints it."""
        return f"is over: {position.status}"


Step = Start | Prepare | Wait | Collect | Drop | Stop | Present | Deliver | Ask | End


def decide(position: Position, sight: Sight | None) -> Step:
    """The one next step at `position`; `sight` is of the open run and None when there is none."""
    if position.open_run:
        if sight is None:
            raise ValueError("an open run must be looked at before deciding")
        return _with_open_run(position, sight)
    match position.status:
        case "waiting":
            return Ask(f"{position.stage} waits for you")
        case "held":
            return Ask(position.hold.reason if position.hold else "held")
        case "delivering":
            return Deliver()
        case "ready" if position.kind().kind == "human":
            return Present()
        case "ready":
            return Start()
        case _:
            return End()


def _with_open_run(position: Position, sight: Sight) -> Step:
    """The table of docs/design.md, one row a case, in this order."""
    if sight.exited:
        return Collect()  # an exit record outranks any pid
    alive = Life.ALIVE in (sight.runner, sight.agent)
    if position.is_over:
        if alive:
            return Stop()
        if sight.started and Life.UNKNOWN in (sight.runner, sight.agent):
            return Ask(f"cannot tell whether the run is alive: {sight.detail}")
        return Drop("it had not ended when the Issue was closed")
    match (sight.started, sight.runner, sight.agent):
        case (False, Life.ALIVE, _):
            return Wait("setting up")
        case (False, _, Life.ALIVE):
            return Wait("the agent works; its start record is gone")
        case (False, _, _):
            return Prepare()
        case (True, Life.ALIVE, _):
            return Wait("running")
        case (True, _, Life.ALIVE):
            return Wait("the runner died, its agent goes on")
        case (True, Life.DEAD, Life.DEAD):
            return Drop(sight.detail or "runner and agent are gone and left no exit record")
        case _:
            return Ask(f"cannot tell whether the run is alive: {sight.detail}")
