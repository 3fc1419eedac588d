"""The thinking: where an Issue stands, what to do next, what a result is worth; pure functions, no file, no process."""

from issueflow.machine.decide import (
    Ask,
    Collect,
    Deliver,
    Drop,
    End,
    Prepare,
    Present,
    Start,
    Step,
    Stop,
    Wait,
    decide,
)
from issueflow.machine.fold import OUTSIDE, Hold, Position, Run, evidence, fold
from issueflow.machine.judge import Facts, Submission, judge
from issueflow.machine.rules import check_workflow

__all__ = [
    "OUTSIDE",
    "Ask",
    "Collect",
    "Deliver",
    "Drop",
    "End",
    "Facts",
    "Hold",
    "Position",
    "Prepare",
    "Present",
    "Run",
    "Start",
    "Step",
    "Stop",
    "Submission",
    "Wait",
    "check_workflow",
    "decide",
    "evidence",
    "fold",
    "judge",
]
