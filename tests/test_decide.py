"""The one next step, for everything that can be seen of a run and every place an Issue can stand at."""

from itertools import product
from typing import get_args

import pytest
from test_fold import begin, end, open_run, say, start, tell, told

from issueflow.machine import (
    Ask,
    Collect,
    Deliver,
    Drop,
    End,
    Position,
    Present,
    Start,
    Step,
    Wait,
    decide,
    fold,
)
from issueflow.models import Life, Presented, Sight

LIVES = {"alive": Life.ALIVE, "dead": Life.DEAD, "?": Life.UNKNOWN}

# What is seen of an open run without exit.json, and the step that follows while the Issue goes on or when it is over.
SEEN = """
    started  runner  agent  goes-on  over
    no       alive   alive  Wait     Stop
    no       alive   dead   Wait     Stop
    no       alive   ?      Wait     Stop
    no       dead    alive  Wait     Stop
    no       dead    dead   Prepare  Drop
    no       dead    ?      Prepare  Drop
    no       ?       alive  Wait     Stop
    no       ?       dead   Prepare  Drop
    no       ?       ?      Prepare  Drop
    yes      alive   alive  Wait     Stop
    yes      alive   dead   Wait     Stop
    yes      alive   ?      Wait     Stop
    yes      dead    alive  Wait     Stop
    yes      dead    dead   Drop     Drop
    yes      dead    ?      Ask      Ask
    yes      ?       alive  Wait     Stop
    yes      ?       dead   Ask      Ask
    yes      ?       ?      Ask      Ask
"""
ROWS = [line.split() for line in SEEN.strip().splitlines()[1:]]


def position(over: bool) -> Position:
    """An Issue with an open run, cancelled meanwhile when it is `over`."""
    journal = open_run("quick")
    if over:
        say(journal, "cancel")
    return fold(journal)


@pytest.mark.parametrize(("column", "over"), [(3, False), (4, True)], ids=["goes on", "over"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:3]))
def test_an_open_run_without_an_exit_record_leads_to_one_step(row: list[str], column: int, over: bool) -> None:
    """BR-076, BR-089: silence is not death, and nothing is guessed dead, also when the Issue is over."""
    sight = Sight(row[0] == "yes", False, LIVES[row[1]], LIVES[row[2]], "what was seen")
    assert type(decide(position(over), sight)).__name__ == row[column]


def test_the_table_has_every_row() -> None:
    assert [tuple(row[:3]) for row in ROWS] == list(product(("no", "yes"), LIVES, LIVES))


@pytest.mark.parametrize("over", [False, True], ids=["goes on", "over"])
@pytest.mark.parametrize("started", [False, True], ids=["not started", "started"])
@pytest.mark.parametrize(("runner", "agent"), [*product(Life, Life)], ids=lambda life: life.value)
def test_an_exit_record_outranks_whatever_else_is_seen(over: bool, started: bool, runner: Life, agent: Life) -> None:
    assert decide(position(over), Sight(started, True, runner, agent)) == Collect()


def test_a_question_about_a_run_holds_the_evidence() -> None:
    step = decide(
        position(False), Sight(True, False, Life.UNKNOWN, Life.UNKNOWN, "it was started on box, this is desk")
    )
    assert isinstance(step, Ask)
    assert "it was started on box, this is desk" in step.question


def test_a_written_off_run_says_what_was_seen() -> None:
    gone = Sight(True, False, Life.DEAD, Life.DEAD, "the machine was restarted since it began")
    assert decide(position(False), gone) == Drop("the machine was restarted since it began")
    step = decide(position(False), Sight(True, False, Life.DEAD, Life.DEAD))
    assert isinstance(step, Drop)
    assert step.reason


def test_waiting_tells_a_runner_from_an_orphaned_agent() -> None:
    seen = [
        Sight(False, False, Life.ALIVE, Life.UNKNOWN),
        Sight(True, False, Life.ALIVE, Life.UNKNOWN),
        Sight(True, False, Life.DEAD, Life.ALIVE),
        Sight(False, False, Life.DEAD, Life.ALIVE),
    ]
    steps = [decide(position(False), sight) for sight in seen]
    assert all(isinstance(step, Wait) and step.why for step in steps)
    assert len(set(steps)) == 4


def test_an_open_run_must_be_looked_at_first() -> None:
    for over in (False, True):
        with pytest.raises(ValueError, match="looked at"):
            decide(position(over), None)


PLACES: dict[str, tuple[str, str, Step]] = {
    # workflow, story → step, with no run open
    "an agent stage": ("default", "", Start()),
    "a review": ("default", "done", Start()),
    "a check": ("quick", "done@A", Start()),
    "a continuation": ("quick", "missing", Start()),
    "a person is asked": ("default", "done approve", Ask("plan-approval waits for you")),
    "a person is asked to deliver": ("quick", "done@A pass", Ask("deliver waits for you")),
    "held: blocked": ("quick", "blocked", Ask("develop says blocked: what run 1 says")),
    "held: a violation": (
        "default",
        "violation",
        Ask("run 01-analysis wrote where it must not: violation for a reason"),
    ),
    "held: died": ("quick", "died", Ask("run 01-develop died: it is gone")),
    "held: set-up": ("quick", "setup", Ask("01-develop could not begin: setup for a reason")),
    "delivered": ("quick", "done@A pass !approve", End()),
    "cancelled": ("quick", "done@A pass !cancel", End()),
}


@pytest.mark.parametrize(("workflow", "story", "step"), PLACES.values(), ids=PLACES.keys())
def test_without_an_open_run_the_place_alone_decides(workflow: str, story: str, step: Step) -> None:
    here = told(story, workflow)
    assert decide(here, None) == step
    for started, exited, runner, agent in product((False, True), (False, True), Life, Life):
        assert decide(here, Sight(started, exited, runner, agent)) == step  # an earlier run's remains change nothing


def test_a_person_is_first_shown_something_and_then_asked() -> None:
    journal = begin("quick")
    tell(journal, "done@A")
    start(journal, fold(journal))
    end(journal, "pass")
    assert decide(fold(journal), None) == Present()
    tell(journal, "")
    assert isinstance(journal[-1], Presented)
    assert isinstance(decide(fold(journal), None), Ask)


def test_what_is_approved_is_delivered_and_then_over() -> None:
    journal = begin("quick")
    tell(journal, "done@A pass")
    say(journal, "approve")
    assert decide(fold(journal), None) == Deliver()
    tell(journal, "")
    assert decide(fold(journal), None) == End()


def test_every_step_there_is_follows_from_something() -> None:
    """The tables above leave no kind of step out, and no other exists."""
    named = {row[column] for row in ROWS for column in (3, 4)} | {type(step).__name__ for *_, step in PLACES.values()}
    assert named | {"Collect", "Present", "Deliver"} == {step.__name__ for step in get_args(Step)}


def test_deciding_twice_gives_the_same_step() -> None:
    """A step is a value: `status` prints the very one that `advance` would do."""
    here = position(False)
    for started, exited, runner, agent in product((False, True), (False, True), Life, Life):
        sight = Sight(started, exited, runner, agent, "seen")
        assert decide(here, sight) == decide(here, sight)
