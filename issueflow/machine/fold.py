"""Where an Issue stands, computed from its journal alone; any prefix of a journal is a legal place to stand."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from issueflow.models import (
    ENDS,
    HOLD,
    Adopted,
    Amended,
    Branch,
    ChecklistItem,
    CheckRun,
    Created,
    Decided,
    Decision,
    Delivered,
    Document,
    Dropped,
    Ended,
    Evidence,
    Finding,
    JournalEntry,
    Loop,
    Noted,
    NotRun,
    Outcome,
    Pinned,
    Presented,
    Response,
    Stage,
    Started,
    Workflow,
)

Status = Literal["ready", "running", "waiting", "held", "delivering", "delivered", "cancelled", "failed"]
Cause = Literal[
    "died", "setup", "unavailable", "blocked", "question", "fault", "violation", "exhausted", "stalled", "budget"
]
OUTSIDE: tuple[Cause, ...] = ("died", "setup", "unavailable")  # nobody's answer is needed: `resume` runs it again


@dataclass(frozen=True)
class Hold:
    """A question to a person: why nothing moves, and the stage that `retry` would run again.

    `until`: when it settles itself, in seconds since 1970, where that is known.
    """

    cause: Cause
    reason: str
    stage: str
    until: int | None = None


@dataclass(frozen=True)
class Run:
    """One run: how it began, by which declaration of its stage, and, once known, how it ended."""

    started: Started
    stage: Stage
    ended: Ended | None = None
    dropped: Dropped | None = None

    @property
    def was_played(self) -> bool:
        """Did its agent come to an end of its own? The scripted agent plays the same again for one that did not."""
        return self.ended is not None and self.ended.outcome.cls not in ("setup", "stopped", "unavailable")

    @property
    def session(self) -> str | None:
        """The conversation it was, None where its CLI has none or never told."""
        closing = self.ended or self.dropped
        return (closing.session if closing else None) or self.started.session

    @property
    def lost_conversation(self) -> bool:
        """Was it to go on with a conversation that its CLI no longer has?"""
        problem = self.ended.outcome.problem if self.ended else None
        return self.started.resumes and problem is not None and problem.kind == "no-conversation"

    @property
    def was_cut_off(self) -> bool:
        """Did it end in the middle of its work, for reasons outside of it?"""
        return self.dropped is not None or (self.ended is not None and self.ended.outcome.cls == "unavailable")

    @property
    def is_accepted(self) -> bool:
        """Did it end with a result that counts?"""
        return self.ended is not None and self.ended.outcome.cls == "accepted"

    @property
    def tip(self) -> str:
        """The commit that holds what the run left; its base while it is open."""
        closing = self.ended or self.dropped
        return closing.code.tip if closing else self.started.base


@dataclass(frozen=True)
class Rounds:
    """A loop's count: the round it is in, and all rounds ever, which no decision resets."""

    round: int
    total: int


@dataclass(frozen=True)
class Position:
    """Everything that follows from a journal."""

    created: Created
    requirement: Document
    pinned: Pinned
    status: Status
    stage: str
    round: int
    max_rounds: int | None
    attempt: int
    play: int
    continuation: bool
    start: str
    start_tree: str
    head: str
    tree: str
    hold: Hold | None
    open_run: Started | None
    presented: Presented | None
    runs: tuple[Run, ...]
    rounds: dict[str, Rounds]
    documents: dict[str, tuple[Document, ...]]
    checklist: tuple[ChecklistItem, ...]
    findings: tuple[Finding, ...]
    must_answer: tuple[str, ...]
    responses: tuple[Response, ...]
    checks: tuple[CheckRun, ...]
    not_run: tuple[NotRun, ...]
    questions: tuple[str, ...]
    decisions: tuple[Decision, ...]
    feedback: tuple[str, ...]
    decided: tuple[Decided, ...]
    notes: tuple[Noted, ...]
    delivered: Delivered | None
    at: str
    entries: int

    @property
    def issue(self) -> str:
        """The Issue's id."""
        return self.created.issue

    @property
    def base(self) -> str:
        """The commit the Issue began at; `start` is where its next run begins."""
        return self.created.base

    @property
    def workflow(self) -> Workflow:
        """The workflow as it was pinned at `new`, or by the last `amend`."""
        return self.pinned.workflow

    @property
    def is_over(self) -> bool:
        """Has the Issue ended?"""
        return self.status in ENDS

    @property
    def next_finding(self) -> int:
        """The number of the next finding; numbers are never used again."""
        found = [finding for run in self.runs if run.ended for finding in run.ended.outcome.findings]
        found += [finding for decision in self.decided for finding in decision.findings]
        return max([0, *(int(finding.id[1:]) for finding in found)]) + 1

    @property
    def head_run(self) -> Run | None:
        """The newest writing run with an accepted result: whose branch holds the head."""
        return next((run for run in reversed(self.runs) if run.is_accepted and run.stage.writes), None)

    def conversation(self, agent: str) -> str | None:
        """The conversation that the next run of `agent` may go on with: that of the last run of its stage.

        Only where the stage says so, or where that run did not finish its work in this very round.
        """
        last = next((run for run in reversed(self.runs) if run.started.stage == self.stage), None)
        if last is None or last.started.agent != agent or last.lost_conversation:
            return None
        unfinished = last.started.round == self.round and (self.continuation or last.was_cut_off)
        return last.session if unfinished or self.kind().session == "resume" else None

    def kind(self) -> Stage:
        """The declaration of the stage the Issue stands at."""
        return self.workflow.stages[self.stage]

    def current(self, name: str) -> Document | None:
        """The newest version of the document `name`, None where none was accepted yet."""
        versions = self.documents.get(name)
        return versions[-1] if versions else None


def fold(entries: Iterable[JournalEntry]) -> Position:
    """The position after `entries`, whose first must be `created`; ValueError when they contradict each other."""
    iterator = iter(entries)
    first = next(iterator, None)
    if not isinstance(first, Created):
        raise ValueError("a journal begins with a `created` entry")
    walk = _Walk(first)
    for entry in iterator:
        walk.apply(entry)
    return walk.position()


def evidence(position: Position) -> Evidence:
    """The tuple that holds at `position`; the plan is every current document of the stages that do not write code."""
    plans = [
        document
        for stage in position.workflow.stages.values()
        if stage.kind == "agent" and not stage.writes
        for name in stage.produces
        if (document := position.current(name))
    ]
    return Evidence(
        requirement=position.requirement.sha256,
        workflow=position.pinned.digest,
        plan=", ".join(f"{d.name} v{d.version} {d.sha256}" for d in plans) or None,
        base=position.base,
        head=position.head,
        tree=position.tree,
    )


def loops_of(workflow: Workflow, stage: str) -> list[tuple[str, Loop]]:
    """The loops that hold `stage`, innermost (fewest stages) first."""
    holding = [(name, loop) for name, loop in workflow.loops.items() if stage in loop.stages]
    return sorted(holding, key=lambda item: len(item[1].stages))


@dataclass
class _Visit:
    """One stay at a stage: it ends when a verdict leads on."""

    attempts: int = 0
    continued: bool = False
    contradicted: int = 0
    continuation: bool = False
    base: tuple[str, str] | None = None
    feedback: list[str] = field(default_factory=list)


@dataclass
class _Count:
    round: int = 1
    total: int = 0
    seen: set[str] = field(default_factory=set)


class _Walk:
    """The mutable side of `fold`: one short method an entry kind."""

    def __init__(self, created: Created) -> None:
        self.created = created
        self.requirement = created.requirement
        self.pinned = created.pinned
        self.status: Status = "ready"
        self.stage = self.workflow.start
        self.head, self.tree = created.base, created.base_tree
        self.hold: Hold | None = None
        self.open_run: Started | None = None
        self.presented: Presented | None = None
        self.delivered: Delivered | None = None
        self.runs: dict[int, Run] = {}
        self.counts = {name: _Count(total=int(self.stage in loop.stages)) for name, loop in self.workflow.loops.items()}
        self.visit = _Visit()
        self.verdicts: dict[str, str] = {}
        self.documents: dict[str, tuple[Document, ...]] = {}
        self.checklist: tuple[ChecklistItem, ...] = ()
        self.findings: dict[str, Finding] = {}
        self.due: dict[str, None] = {}
        self.responses: dict[str, Response] = {}
        self.checks: tuple[CheckRun, ...] = ()
        self.not_run: tuple[NotRun, ...] = ()
        self.questions: tuple[str, ...] = ()
        self.decisions: tuple[Decision, ...] = ()
        self.decided: list[Decided] = []
        self.notes: list[Noted] = []
        self.spent_from = 0
        self.at = created.at
        self.entries = 1

    @property
    def workflow(self) -> Workflow:
        return self.pinned.workflow

    def apply(self, entry: JournalEntry) -> None:
        self.entries += 1
        self.at = entry.at
        match entry:
            case Started():
                self.on_started(entry)
            case Ended():
                self.on_ended(entry)
            case Dropped():
                self.on_dropped(entry)
            case Presented():
                self.presented, self.status = entry, "waiting"
            case Decided():
                self.on_decided(entry)
            case Delivered():
                self.delivered, self.status = entry, "delivered"
            case Amended():
                self.on_amended(entry)
            case Adopted():
                self.on_adopted(entry)
            case Noted():
                self.notes.append(entry)
            case Created():
                raise ValueError("a journal holds one `created` entry")

    # ── entries ──

    def on_started(self, entry: Started) -> None:
        if self.open_run:
            raise ValueError(f"run {entry.run} started while run {self.open_run.run} was open")
        if entry.stage not in self.workflow.stages:
            raise ValueError(f"run {entry.run} is of a stage that the workflow does not have: {entry.stage}")
        self.runs[entry.run] = Run(entry, self.workflow.stages[entry.stage])
        self.open_run, self.status = entry, "running"
        if entry.continuation:
            self.visit.continued = True
        else:
            self.visit.attempts += 1

    def close(self, number: int) -> Started:
        if not self.open_run or self.open_run.run != number:
            raise ValueError(f"run {number} ended but was not open")
        started, self.open_run = self.open_run, None
        return started

    def on_ended(self, entry: Ended) -> None:
        started = self.close(entry.run)
        self.runs[entry.run] = replace(self.runs[entry.run], ended=entry)
        if self.status in ENDS:
            return
        self.status = "ready"
        self.visit.continuation = False
        if self.workflow.stages[started.stage].writes and entry.outcome.cls not in ("setup", "stopped"):
            self.visit.base = (entry.code.tip, entry.code.tree)
        if entry.outcome.cls == "accepted":
            self.accept(started, entry)
        else:
            self.refuse(started, entry.outcome)

    def on_dropped(self, entry: Dropped) -> None:
        started = self.close(entry.run)
        self.runs[entry.run] = replace(self.runs[entry.run], dropped=entry)
        if self.status in ENDS:
            return
        if self.workflow.stages[started.stage].writes:
            self.visit.base = (entry.code.tip, entry.code.tree)
        self.visit.feedback.append(f"The run before this one died ({entry.reason}); what it had written is here.")
        self.ask("died", f"run {started.name} died: {entry.reason}", started.stage)

    def on_decided(self, entry: Decided) -> None:
        self.decided.append(entry)
        if self.ask_about_budget():
            self.spent_from = len(self.runs)
        for finding in entry.findings:
            self.findings[finding.id] = finding
            self.due[finding.id] = None
        match entry.verb:
            case "cancel":
                self.status, self.hold = "cancelled", None
            case "approve":
                self.findings.clear()
                self.due.clear()
                self.questions, self.decisions = (), ()
                self.leave(entry.stage, "approve", by_person=True)
            case "skip" if entry.stage == self.stage and not self.open_run:
                passed = {"review": "approve", "check": "pass"}[self.workflow.stages[entry.stage].kind]
                self.leave(entry.stage, passed, by_person=True)
            case "reopen" if entry.stage in self.workflow.stages and not self.open_run:
                self.enter(entry.stage, None)
            case "request-changes" if self.hold:
                self.enter(self.rework(self.hold.stage), None)
            case "request-changes":
                self.leave(entry.stage, "request_changes", by_person=True)
            case "retry" | "resume" if self.hold:
                self.again(self.hold)
            case _:
                raise ValueError(f"{entry.verb} was recorded while nothing was asked")

    def on_amended(self, entry: Amended) -> None:
        """Begin again with what is new; the code stays, and so do documents, findings and totals."""
        self.requirement = entry.requirement or self.requirement
        if entry.pinned:
            self.pinned = entry.pinned
            self.counts = {name: self.counts.get(name, _Count()) for name in self.workflow.loops}
        self.enter(self.workflow.start, None)

    def on_adopted(self, entry: Adopted) -> None:
        """Go on from what was changed by hand: whatever was bound to it is asked again."""
        if entry.document:
            self.documents[entry.document.name] = (*self.documents.get(entry.document.name, ()), entry.document)
            self.enter(self.judge_of(entry.document.name) or self.stage, None)
        elif entry.commit and entry.tree:
            same = entry.tree == self.tree
            self.head, self.tree = entry.commit, entry.tree
            self.visit.base = None
            if not same:
                self.enter(self.after_writing() or self.stage, None)
            elif self.status == "waiting":
                self.presented, self.status = None, "ready"

    def judge_of(self, document: str) -> str | None:
        """The first stage that judges a document: its review, else the person it is presented to."""
        stages = self.workflow.stages.items()
        reviews = [name for name, stage in stages if stage.target == document]
        return next(iter([*reviews, *(name for name, stage in stages if document in stage.presents)]), None)

    def after_writing(self) -> str | None:
        """Where the newest accepted writing run led: what judges the code first."""
        written = (run for run in reversed(self.runs.values()) if run.is_accepted and run.stage.writes)
        run = next(written, None)
        known = run is not None and run.started.stage in self.workflow.stages
        return self.route(run.started.stage, "done") if run and known else None

    # ── results ──

    def accept(self, started: Started, entry: Ended) -> None:
        stage, outcome = self.workflow.stages[started.stage], entry.outcome
        if stage.writes:
            self.head, self.tree = entry.code.tip, entry.code.tree
            self.not_run = outcome.not_run
        for document in outcome.documents:
            self.documents[document.name] = (*self.documents.get(document.name, ()), document)
        if outcome.checklist:
            self.checklist = outcome.checklist
        if stage.kind == "agent":
            self.questions, self.decisions = outcome.questions, outcome.decisions
        if stage.kind == "check":
            self.checks = outcome.checks
        self.settle(started.stage, stage, outcome)
        verdict = outcome.verdict or "blocked"
        if verdict != "incomplete":
            self.leave(started.stage, verdict)
        elif self.visit.attempts < stage.attempts:
            self.visit.feedback.append(f"The last attempt said it was incomplete: {outcome.summary}")
        else:
            self.leave(started.stage, "blocked")

    def settle(self, name: str, stage: Stage, outcome: Outcome) -> None:
        """Close the findings that this outcome answers or replaces, and open its own."""
        for response in outcome.responses:
            self.responses[response.finding] = response
            self.due.pop(response.finding, None)
        if stage.kind in ("review", "check") and outcome.verdict not in ("blocked", "error"):
            for finding in [f for f in self.findings.values() if f.stage == name]:
                del self.findings[finding.id]
                self.due.pop(finding.id, None)
        for finding in outcome.findings:
            self.findings[finding.id] = finding
            if outcome.verdict in ("request_changes", "fail"):
                self.due[finding.id] = None

    def refuse(self, started: Started, outcome: Outcome) -> None:
        """What follows from a result that is not accepted; nothing unclear ever becomes a pass."""
        visit, limit = self.visit, self.workflow.stages[started.stage].attempts
        why = "; ".join(outcome.errors) or outcome.cls
        visit.feedback.append(f"Run {started.name} was refused ({outcome.cls}): {why}")
        match outcome.cls:
            case "violation":
                visit.base = None
                self.ask("violation", f"run {started.name} wrote where it must not: {why}", started.stage)
            case "setup":
                if started.continuation:
                    visit.continuation, visit.continued = True, False
                else:
                    visit.attempts -= 1
                self.ask("setup", f"{started.name} could not begin: {why}", started.stage)
            case "unavailable":
                if started.continuation:
                    visit.continuation, visit.continued = True, False
                else:
                    visit.attempts -= 1
                if not self.runs[started.run].lost_conversation:  # else it begins a new one, without being asked
                    until = outcome.problem.resets if outcome.problem else None
                    self.ask("unavailable", f"{started.name} could not go on: {why}", started.stage, until)
            case "contradicted":
                visit.contradicted += 1
                if visit.contradicted >= 2 or visit.attempts >= limit:
                    self.ask("fault", f"run {started.name} is contradicted by the facts: {why}", started.stage)
            case _ if not visit.continued and self.workflow.stages[started.stage].kind != "check":
                visit.continuation = True
            case _ if visit.attempts < min(2, limit):
                pass
            case _:
                self.ask("fault", f"run {started.name} gave no usable result ({outcome.cls}): {why}", started.stage)

    # ── moving ──

    def leave(self, stage: str, verdict: str, *, by_person: bool = False) -> None:
        self.verdicts[stage] = verdict
        target = self.route(stage, verdict)
        if target == HOLD and verdict in ("blocked", "needs_input", "error"):
            last = max(self.runs) if self.runs else 0
            ended = self.runs[last].ended if last else None
            said = ended.outcome.summary if ended else ""
            cause: Cause = "question" if verdict == "needs_input" else "blocked"
            self.ask(cause, f"{stage} says {verdict}: {said}", stage)
            return
        self.enter(target, None if by_person else stage)

    def route(self, stage: str, verdict: str) -> str:
        following = self.workflow.stages[stage].next
        if isinstance(following, dict):
            return following.get(verdict, HOLD)
        return next(branch.to for branch in following if self.holds(branch))

    def holds(self, branch: Branch) -> bool:
        return all(self.verdicts.get(stage) in verdicts for stage, verdicts in branch.when.items())

    def enter(self, target: str, source: str | None) -> None:
        """Go to `target`; from `source`, or from a person (None), whose decision buys new rounds."""
        self.hold = None
        if source and (bound := self.back_edge(source, target)):
            name, loop = bound
            halted = self.spend(name, loop, source)
            if halted:
                return
        self.arrive(target, source)

    def back_edge(self, source: str, target: str) -> tuple[str, Loop] | None:
        return next(((n, loop) for n, loop in loops_of(self.workflow, source) if loop.back_to == target), None)

    def spend(self, name: str, loop: Loop, source: str) -> bool:
        """Spend a round of `loop`; True when there is none to spend and the walk has gone elsewhere."""
        count = self.counts[name]
        signature = self.signature(loop)
        seen, limit = signature in count.seen, loop.no_progress
        count.seen.add(signature)
        if limit and seen and count.round >= limit.rounds:
            reason = f"no progress in {name}: round {count.round} of {source} ended where an earlier one did"
            self.divert("stalled", limit.to, reason, loop, source)
            return True
        if count.round >= loop.max_rounds:
            self.divert("exhausted", loop.on_exhausted, f"{name} has used its {loop.max_rounds} rounds", loop, source)
            return True
        count.round += 1
        count.total += 1
        return False

    def divert(self, cause: Cause, target: str, reason: str, loop: Loop, source: str) -> None:
        if target == HOLD:
            self.ask(cause, reason, loop.back_to)
        else:
            self.arrive(target, source)
            self.visit.feedback.append(reason)

    def signature(self, loop: Loop) -> str:
        watch = loop.no_progress.watch if loop.no_progress else ()
        seen = {
            "tree": self.tree,
            "open_findings": sorted([f.where, f.claim] for f in self.findings.values()),
            "failing_checks": sorted(c.command for c in self.checks if c.exit_code != 0),
        }
        return hashlib.sha256(json.dumps([seen[name] for name in watch]).encode()).hexdigest()

    def arrive(self, target: str, source: str | None) -> None:
        for name, loop in self.workflow.loops.items():
            if target in loop.stages and (source is None or source not in loop.stages):
                count = self.counts[name]
                count.round, count.seen = 1, set()
                count.total += 1
        self.visit = _Visit()
        self.presented = None
        if target == HOLD:
            self.ask("blocked", f"the workflow asks after {self.stage}", self.stage)
        elif target == "delivered":
            self.status = "delivering"
        elif target == "cancelled":
            self.status = "cancelled"
        elif target == "failed":
            self.status = "failed"
        else:
            self.stage, self.status = target, "ready"

    def ask(self, cause: Cause, reason: str, stage: str, until: int | None = None) -> None:
        self.hold, self.status = Hold(cause, reason, stage, until), "held"

    def again(self, hold: Hold) -> None:
        """A person lets the held stage run again: from the last snapshot where it only died, else as new."""
        self.spent_from = len(self.runs)
        if hold.cause in OUTSIDE or hold.cause == "budget":
            self.hold, self.status = None, "ready"
        else:
            kept, feedback = self.visit.base, self.visit.feedback
            self.enter(hold.stage, None)
            if hold.stage == self.stage:
                self.visit.feedback = [*feedback, hold.reason]
                if hold.cause == "fault":
                    self.visit.base = kept

    def rework(self, stage: str) -> str:
        """Where a person's request for changes leads while `stage` is held: back to the work it judges."""
        loops = loops_of(self.workflow, stage)
        return loops[0][1].back_to if loops else stage

    def ask_about_budget(self) -> bool:
        kind = self.workflow.stages[self.stage].kind
        if self.status != "ready" or kind == "human" or not (reason := self.over_budget()):
            return False
        self.ask("budget", reason, self.stage)
        return True

    def over_budget(self) -> str | None:
        budget = self.workflow.budget
        spent = [run for number, run in self.runs.items() if number > self.spent_from]
        worked = sum(run.ended.exit.seconds for run in spent if run.ended)
        if len(spent) >= budget.runs:
            return f"the budget of {budget.runs} runs is used"
        if budget.wall_clock and worked >= budget.wall_clock:
            return f"the budget of {budget.wall_clock} s of agents at work is used"
        return None

    # ── the answer ──

    def position(self) -> Position:
        self.ask_about_budget()
        loops = loops_of(self.workflow, self.stage)
        writes = self.workflow.stages[self.stage].writes
        start, start_tree = (self.visit.base if writes else None) or (self.head, self.tree)
        return Position(
            created=self.created,
            requirement=self.requirement,
            pinned=self.pinned,
            status=self.status,
            stage=self.stage,
            round=self.counts[loops[0][0]].round if loops else 1,
            max_rounds=loops[0][1].max_rounds if loops else None,
            attempt=self.visit.attempts if self.visit.continuation or self.open_run else self.visit.attempts + 1,
            play=1 + sum(run.started.stage == self.stage and run.was_played for run in self.runs.values()),
            continuation=self.visit.continuation,
            start=start,
            start_tree=start_tree,
            head=self.head,
            tree=self.tree,
            hold=self.hold,
            open_run=self.open_run,
            presented=self.presented,
            runs=tuple(self.runs.values()),
            rounds={name: Rounds(count.round, count.total) for name, count in self.counts.items()},
            documents=dict(self.documents),
            checklist=self.checklist,
            findings=tuple(self.findings.values()),
            must_answer=tuple(self.due),
            responses=tuple(self.responses.values()),
            checks=self.checks,
            not_run=self.not_run,
            questions=self.questions,
            decisions=self.decisions,
            feedback=tuple(self.visit.feedback),
            decided=tuple(self.decided),
            notes=tuple(self.notes),
            delivered=self.delivered,
            at=self.at,
            entries=self.entries,
        )
