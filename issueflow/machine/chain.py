"""The chain of evidence: which verdict, check and approval is bound to what, and which of them still hold."""

from dataclasses import dataclass

from issueflow.machine.fold import Position, evidence
from issueflow.models import Evidence, Stage


@dataclass(frozen=True)
class Link:
    """One verdict with the tuple it is bound to; `stale` names the elements that have changed since."""

    stage: str
    verdict: str
    by: str
    bound: Evidence
    stale: tuple[str, ...]
    reason: str = ""


def binds(stage: Stage) -> tuple[str, ...]:
    """The elements a stage's verdict depends on: a judgement of a plan outlives the code that follows it."""
    about_code = stage.kind == "check" or stage.target == "diff" or "diff" in stage.presents
    if stage.kind == "check":
        return ("workflow", "base", "tree")
    return ("requirement", "workflow", "base", "plan", *(("tree",) if about_code else ()))


def changed(stage: Stage, bound: Evidence, now: Evidence) -> tuple[str, ...]:
    """Which of the elements that matter to `stage` differ. The head counts by its tree: a verdict carries over when
    only the commit changed."""
    return tuple(name for name in binds(stage) if getattr(bound, name) != getattr(now, name))


def chain(position: Position) -> list[Link]:
    """The newest verdict of every reviewing, checking and human stage, in the order they were given."""
    now = evidence(position)
    stages = position.workflow.stages
    newest: dict[str, tuple[int, Link]] = {}
    for run in position.runs:
        if run.started.stage in stages and run.stage.kind in ("review", "check") and run.is_accepted and run.ended:
            verdict, by = run.ended.outcome.verdict or "", run.started.agent or "checks"
            stale = changed(run.stage, run.ended.evidence, now)
            newest[run.started.stage] = (run.ended.n, Link(run.started.stage, verdict, by, run.ended.evidence, stale))
    for decision in position.decided:
        stage = stages.get(decision.stage)
        if (
            stage and (stage.kind == "human" and decision.verb in ("approve", "request-changes"))
        ) or decision.verb == "skip":
            assert stage is not None
            stale = changed(stage, decision.evidence, now)
            link = Link(decision.stage, decision.verb, decision.by, decision.evidence, stale, decision.message)
            if decision.n > newest.get(decision.stage, (0, link))[0]:
                newest[decision.stage] = (decision.n, link)
    return [link for _, link in sorted(newest.values(), key=lambda item: item[0])]


def skips(position: Position) -> list[Link]:
    """Skips that still hold."""
    return [link for link in chain(position) if link.verdict == "skip" and not link.stale]
