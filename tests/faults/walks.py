"""Four ways of an Issue, or of several, to the end: scripts of honest agents, and what a person types when."""

from collections.abc import Callable
from typing import Any, NamedTuple

from conftest import approve, develop, done, finding, plan, reject

from issueflow.machine import Position

# The bench's folder comes by the environment, so that the script, and with it the tree, is the same in every walk.
LOG_START = {"run": ["sh", "-c", 'echo "$ISSUEFLOW_RUN" >> "$BENCH/starts"']}
LOG_COMMIT = {"run": ["sh", "-c", 'id=$(git rev-parse HEAD) && echo "$ISSUEFLOW_RUN $id" >> "$BENCH/commits"']}


def log_wrote(name: str) -> dict[str, Any]:
    """An act that logs that a file was written, once it was."""
    return {"run": ["sh", "-c", f'echo "$ISSUEFLOW_RUN {name}" >> "$BENCH/wrote"']}


def wrote(name: str, text: str) -> list[dict[str, Any]]:
    return [{"write": name, "text": text}, log_wrote(name)]


def honest(text: str) -> list[dict[str, Any]]:
    """Acts of a developer who commits one file and leaves another uncommitted, and logs what it has written."""
    return [
        LOG_START,
        {"write": "committed.txt", "text": text},
        {"commit": f"agent: {text}"},
        LOG_COMMIT,
        log_wrote("committed.txt"),
        *wrote("left.txt", text),
    ]


def default_script() -> dict[str, Any]:
    """`default` with one rejection in each review."""
    start = LOG_START
    return {
        "analysis": [[start, *plan("# One\n")], [start, *plan("# Two\n")]],
        "plan-review": [[start, reject(finding(claim="plan"))], [start, approve()]],
        "develop": [develop(*honest("one")), develop(*honest("two"))],
        "code-review": [[start, reject(finding(claim="code"))], [start, approve()]],
    }


def quick_script() -> dict[str, Any]:
    """`quick`, straight through."""
    return {"develop": [[*honest("one"), done()]]}


def twice_script() -> dict[str, Any]:
    """`quick` in two rounds: the first leaves a file `bad` behind, the second takes it away."""
    first = [*honest("one"), *wrote("bad", "x"), done()]
    return {"develop": [first, [*honest("two"), {"delete": "bad"}, done()]]}


Word = Callable[[Position], list[str]]


def approves(position: Position) -> list[str]:
    """A person who approves whatever is asked."""
    return ["approve", position.issue]


def asks_once(position: Position) -> list[str]:
    """A person who wants changes at the first question, and approves from then on."""
    if any(decision.verb == "request-changes" for decision in position.decided):
        return approves(position)
    return ["request-changes", position.issue, "-m", "take bad away"]


class Walk(NamedTuple):
    """How many Issues go which way, and what the person in front of them says."""

    workflow: str
    script: dict[str, Any]
    word: Word = approves
    issues: int = 1
    checks: tuple[str, ...] = ("true",)
    setup: tuple[str, ...] = ()


WALKS = {
    "quick": Walk("quick", quick_script()),
    "default": Walk("default", default_script()),
    "checks": Walk("quick", twice_script(), checks=("test ! -e bad",)),
    "human": Walk("quick", twice_script(), word=asks_once, setup=("true",)),
    "parallel": Walk("quick", quick_script(), issues=3),
}

SWEPT = [name for name in WALKS if name != "quick"]  # `quick` is what every other walk is, with less to it


def next_words(walk: Walk, positions: list[Position], requirement: str, recovery: bool) -> list[str] | None:
    """What a person types next; None when all is over. In recovery each Issue is resumed, one after the other."""
    if len(positions) < walk.issues:
        return ["new", requirement, "--workflow", walk.workflow]
    moving = [p for p in positions if not p.is_over and p.status not in ("waiting", "held")]
    if moving and recovery:
        return ["resume", moving[0].issue]
    if moving:
        return ["advance", "--once", *(["--all", "--jobs", "2"] if walk.issues > 1 else [moving[0].issue])]
    if held := [p for p in positions if p.status == "held"]:
        died = held[0].hold is not None and held[0].hold.cause in ("died", "setup")
        return ["resume", held[0].issue] if died else ["retry", held[0].issue, "--reason", "once more"]
    waiting = [p for p in positions if p.status == "waiting"]
    return walk.word(waiting[0]) if waiting else None
