"""The nouns: what workflows, configuration, journal entries and results look like; shape checks only, no acts."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

JOURNAL_FORMAT = 1
RESULT_SCHEMA = "issueflow.result/1"
ORDER_SCHEMA = "issueflow.order/1"
RUN_FOLDER = ".issueflow-run"
ISSUE_ID = re.compile(r"ISSUE-([1-9][0-9]{0,8})")
CONVERSATION = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
ENDS = ("delivered", "cancelled", "failed")
HOLD = "hold"

StageKind = Literal["agent", "review", "check", "human"]
Access = Literal["read-only", "write"]
Severity = Literal["blocker", "major", "minor", "note"]
ResultClass = Literal[
    "accepted", "missing", "malformed", "foreign", "contradicted", "violation", "stopped", "setup", "unavailable"
]

VERDICTS: dict[StageKind, tuple[str, ...]] = {
    "agent": ("done", "incomplete", "needs_input", "blocked"),
    "review": ("approve", "request_changes", "blocked"),
    "check": ("pass", "fail", "error", "none"),
    "human": ("approve", "request_changes", "cancel"),
}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(value: object) -> object:
    """A duration as people write it (`90`, `45m`, `8h`) in whole seconds; anything else is pydantic's to refuse."""
    if isinstance(value, str) and (match := re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", value)):
        return int(match[1]) * UNITS[match[2]]
    return value


Duration = Annotated[int, BeforeValidator(seconds), Field(gt=0)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
ConversationId = Annotated[str, StringConstraints(pattern=CONVERSATION)]
Text = Annotated[str, StringConstraints(max_length=20_000)]
Line = Annotated[str, StringConstraints(max_length=2_000)]


def inside_the_project(value: str) -> str:
    """A path as `worktrees.copy` takes it, without `.` and double slashes: the same place in every worktree."""
    parts = PurePosixPath(value).parts
    if not parts or value.startswith(("/", "~")) or ".." in parts:
        raise ValueError(f"{value!r} is no path of a file or folder inside the project")
    if parts[0].casefold() in (".git", RUN_FOLDER):
        raise ValueError(f"{value!r} belongs to git or to the run itself")
    return "/".join(parts)


ProjectPath = Annotated[str, AfterValidator(inside_the_project)]


class Noun(BaseModel):
    """A value: frozen, strict, and without room for keys nobody knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


# ── the workflow ──────────────────────────────────────────────────────────────


class Command(Noun):
    """One check command: a shell line, and how long it may take."""

    run: Annotated[str, StringConstraints(min_length=1)]
    timeout: Duration = 1800


def as_command(value: object) -> object:
    """A check may be written as the bare shell line."""
    if isinstance(value, bool | int | float) or value is None:
        raise ValueError("a command is a shell line; put it in quotes, or YAML reads it as something else")
    return {"run": value} if isinstance(value, str) else value


CommandLine = Annotated[Command, BeforeValidator(as_command)]


class Reviewer(Noun):
    """Who reviews: an id within the stage and the role that plays it."""

    id: Name
    role: Name


class Branch(Noun):
    """A conditional way on: taken when each named stage's latest verdict is among those listed; no `when`: always."""

    when: dict[Name, tuple[str, ...]] = {}
    to: str


class Stage(Noun):
    """One declared stage; which keys make sense depends on `kind` and is checked by machine.rules."""

    kind: StageKind
    role: Name | None = None
    access: Access = "read-only"
    inputs: tuple[str, ...] = ()
    produces: tuple[FileName, ...] = ()
    presents: tuple[str, ...] = ()
    target: str | None = None
    reviewers: tuple[Reviewer, ...] = ()
    commands: tuple[CommandLine, ...] | None = None
    checklist: Literal["define", "partition"] | None = None
    session: Literal["fresh", "resume"] = "fresh"
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    timeout: Duration | None = None
    next: dict[str, str] | tuple[Branch, ...]

    @property
    def writes(self) -> bool:
        """May this stage change code?"""
        return self.kind == "agent" and self.access == "write"


class NoProgress(Noun):
    """Leave the loop when the watched combination was seen in an earlier round, from round `rounds` on."""

    rounds: Annotated[int, Field(ge=2, le=100)] = 2
    watch: Annotated[tuple[Literal["tree", "open_findings", "failing_checks"], ...], Field(min_length=1)]
    to: str


class Loop(Noun):
    """Stages that may be walked again, at most `max_rounds` times without a person."""

    stages: tuple[Name, ...]
    back_to: Name
    max_rounds: Annotated[int, Field(ge=1, le=100)]
    on_exhausted: str
    no_progress: NoProgress | None = None


class Budget(Noun):
    """What an Issue may use before a person is asked: runs started, seconds of agents at work."""

    runs: Annotated[int, Field(ge=1)] = 40
    wall_clock: Duration | None = None


class Workflow(Noun):
    """Declared stages and loops; `roles` says in one line what each role is."""

    name: Name
    version: int
    start: Name
    roles: dict[Name, str]
    stages: dict[Name, Stage]
    loops: dict[Name, Loop] = {}
    budget: Budget = Budget()


# ── the project's configuration ───────────────────────────────────────────────


class AgentSettings(Noun):
    """How one agent is started; which keys are used depends on its type (docs/guides.md)."""

    type: Name
    argv: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    model: str | None = None
    env: dict[Annotated[str, StringConstraints(pattern=r"^[^=]+$")], str] = {}
    keys: tuple[Variable, ...] = ()
    timeout: Duration = 3600
    script: str | None = None

    @field_validator("keys")
    @classmethod
    def _for_the_program_alone(cls, keys: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for name in sorted(info.data.get("env", {}).keys() & set(keys)):
            raise ValueError(f"{name} also stands in env, which set-up commands get too; export it instead")
        return keys


class Environment(Noun):
    """Which of the person's variables a run gets (`pass` None: all of them), and what is set for every run."""

    pass_: tuple[Variable, ...] | None = Field(default=None, alias="pass")
    set_: dict[Variable, str] = Field(default={}, alias="set")
    drop: tuple[Variable, ...] = ()


class Worktrees(Noun):
    """Where worktrees lie and how each is prepared before the agent starts."""

    root: str | None = None
    setup: tuple[CommandLine, ...] = ()
    copy_: tuple[ProjectPath, ...] = Field(default=(), alias="copy")
    link: tuple[ProjectPath, ...] = ()


class Config(Noun):
    """`.issueflow/config.yaml`, every key of it."""

    version: Literal[1]
    agents: dict[Name, AgentSettings]
    roles: dict[Name, Name]
    workflow: Name = "default"
    checks: tuple[CommandLine, ...] = ()
    prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")] = "issueflow"
    worktrees: Worktrees = Worktrees()
    env: Environment = Environment()
    host: Literal["process", "tmux"] = "process"
    secrets: tuple[Variable, ...] = ()
    caches: tuple[str, ...] = (
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        "node_modules",
    )

    @field_validator("env")
    @classmethod
    def _leaves_keys_alone(cls, env: Environment, info: ValidationInfo) -> Environment:
        for name, agent in info.data.get("agents", {}).items():
            for variable in agent.keys:
                if variable in env.set_ or variable in env.drop:
                    where = "set" if variable in env.set_ else "drop"
                    raise ValueError(f"{variable} is a key of the agent {name} and cannot stand in env.{where} too")
        return env

    @field_validator("secrets")
    @classmethod
    def _written_nowhere(cls, secrets: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        own = {f"agents.{name}.env": agent.env for name, agent in info.data.get("agents", {}).items()}
        whole = info.data.get("env", Environment())
        for where, values in {**own, "env.set": whole.set_}.items():
            for variable in sorted(values.keys() & set(secrets)):
                raise ValueError(f"{variable} also stands in {where}; export it where issueflow is started")
        return secrets


# ── what an agent submits ─────────────────────────────────────────────────────


class Artifact(Noun):
    """A document a stage produces: where the agent wrote it, or its text."""

    name: FileName
    path: Line | None = None
    text: Annotated[str, StringConstraints(max_length=262_144)] | None = None


class ChecklistItem(Noun):
    """One acceptance item, and where it comes from."""

    id: Annotated[str, StringConstraints(pattern=r"^C[1-9][0-9]{0,3}$")]
    text: Line
    source: Line


class Decision(Noun):
    """A choice only a person can make, with what the agent would choose."""

    id: Name | Annotated[str, StringConstraints(pattern=r"^D[1-9][0-9]{0,2}$")]
    question: Line
    options: tuple[Line, ...]
    recommendation: Line


class CommandRun(Noun):
    """A command the agent says it ran."""

    command: Line
    exit_code: int
    covers: Line


class NotRun(Noun):
    """Verification that was foreseen and did not happen."""

    item: Line
    reason: Line


class Response(Noun):
    """The author's answer to one finding."""

    finding: Annotated[str, StringConstraints(pattern=r"^F[1-9][0-9]{0,5}$")]
    action: Literal["fixed", "disputed", "deferred"]
    reason: Line


class ClaimedFinding(Noun):
    """What a reviewer found wrong: where, what, how one can see it, what would settle it."""

    severity: Severity
    where: Line
    claim: Text
    evidence: Text
    fix: Text


class Covered(Noun):
    """A checklist item the reviewer saw fulfilled, and the evidence."""

    id: str
    evidence: Line


class NotApplicable(Noun):
    """A checklist item that does not apply, and why."""

    id: str
    reason: Line


class Head(Noun):
    """What every result begins with; `nonce` tells this run's result from any other's."""

    schema_: Literal["issueflow.result/1"] = Field(alias="schema")
    issue: str
    stage: str
    run: str
    nonce: str
    verdict: str
    summary: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]


class AgentResult(Head):
    """What a run of an `agent` stage submits."""

    artifacts: tuple[Artifact, ...] = ()
    checklist: tuple[ChecklistItem, ...] = ()
    questions: tuple[Line, ...] = ()
    decisions: tuple[Decision, ...] = ()
    risks: tuple[Line, ...] = ()
    assumptions: tuple[Line, ...] = ()
    responses: tuple[Response, ...] = ()


class WriteResult(AgentResult):
    """What a run with `access: write` submits; `no_change` says why nothing had to be changed, where that is so."""

    commands_run: tuple[CommandRun, ...]
    not_run: tuple[NotRun, ...]
    open_problems: tuple[Line, ...]
    no_change: Line | None = None


class ReviewResult(Head):
    """What a reviewer submits; `reviewed` is exactly what was read."""

    reviewed: Line
    findings: tuple[ClaimedFinding, ...] = ()
    covered: tuple[Covered, ...] = ()
    missing: tuple[Line, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()


Result = AgentResult | WriteResult | ReviewResult


# ── the journal ───────────────────────────────────────────────────────────────


class Document(Noun):
    """A version of an artifact or of the requirement, as it lies in the Issue directory."""

    name: str
    version: int
    sha256: str
    bytes: int


class Evidence(Noun):
    """The tuple that a verdict, a check and an approval bind: change one element and they are stale."""

    requirement: str
    workflow: str
    plan: str | None
    base: str
    head: str
    tree: str


class Finding(Noun):
    """A numbered finding: what a reviewer, a failing check or a person wants settled."""

    id: str
    stage: str
    severity: Severity
    where: Line
    claim: Text
    evidence: Text
    fix: Text


class CheckRun(Noun):
    """One check command as it went: `exit_code` is None when it was ended at its time limit or could not start."""

    command: str
    exit_code: int | None
    seconds: float
    timed_out: bool
    tail: str


class Exit(Noun):
    """How a run's process ended, as the runner saw it; `lost` means that nobody saw it.

    `setup` failed in preparation, `stopped` was cancelled, `finished` was ended after its result lay there unchanged.
    """

    status: Literal["exited", "signalled", "timeout", "finished", "stopped", "setup", "unstarted", "lost"]
    code: int | None = None
    ended: int
    seconds: float = 0.0
    detail: str = ""
    left_over: int = 0


class Usage(Noun):
    """What a run used, by the word of its CLI; None is unknown, and no price is ever guessed.

    `input` counts every token that was read, those from a cache (`cached`) included.
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cost_usd: float | None = None


PROBLEMS = {
    "limit": "waiting for a limit",
    "auth": "its service does not know who it is",
    "refusal": "its model refused",
    "context": "the conversation is too long for its model",
    "turns": "it used the turns it may take",
    "budget": "it used the money it may spend",
    "endpoint": "its service cannot be used",
    "usage": "its program does not take how it was started",
    "no-conversation": "the conversation to go on with is gone",
}


class Problem(Noun):
    """Why an agent could not do its work: the kind, its CLI's words, and when a limit ends, in seconds since 1970."""

    kind: Literal["limit", "auth", "refusal", "context", "turns", "budget", "endpoint", "usage", "no-conversation"]
    words: str
    resets: int | None = None

    @property
    def is_outside(self) -> bool:
        """Does it lie outside of the agent's work, so that the same run can succeed later?"""
        return self.kind in ("limit", "auth", "endpoint", "usage", "no-conversation")

    def say(self) -> str:
        """In words, a limit's end as the time here."""
        ends = f", resets {datetime.fromtimestamp(self.resets):%Y-%m-%d %H:%M}" if self.resets else ""
        return f"{PROBLEMS[self.kind]}{ends}: {self.words}"


class Outcome(Noun):
    """What the engine made of a run: exactly one class, and what follows from an accepted result."""

    cls: ResultClass
    verdict: str | None = None
    summary: str = ""
    errors: tuple[str, ...] = ()
    reviewed: str | None = None
    documents: tuple[Document, ...] = ()
    checklist: tuple[ChecklistItem, ...] = ()
    covered: tuple[Covered, ...] = ()
    missing: tuple[str, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    findings: tuple[Finding, ...] = ()
    responses: tuple[Response, ...] = ()
    questions: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    risks: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    open_problems: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    commands_run: tuple[CommandRun, ...] = ()
    no_change: str | None = None
    checks: tuple[CheckRun, ...] = ()
    problem: Problem | None = None


class Code(Noun):
    """What became of a run's tree: the commit that holds it, and what the person should know about it."""

    tip: str
    tree: str
    changed: bool
    kept: tuple[str, ...] = ()
    noticed: tuple[str, ...] = ()


class Identity(Noun):
    """Who issueflow's commits of this run are by."""

    name: str
    email: str


class Entry(Noun):
    """One line of the journal: its number, when, and the digest of the line before it."""

    n: int
    at: str
    prev: str


class Pinned(Noun):
    """The workflow as it was resolved, who plays its roles, the project's checks; `digest` is of workflow.yaml."""

    version: int
    workflow: Workflow
    digest: str
    roles: dict[str, str]
    checks: tuple[Command, ...]


class Created(Entry):
    """The Issue: what was asked, and everything that was promised when it began."""

    kind: Literal["created"] = "created"
    format: int
    issue: str
    title: str
    origin: str
    requirement: Document
    pinned: Pinned
    prefix: str
    base: str
    base_tree: str
    base_name: str | None


class Started(Entry):
    """The intent to run: every name the run will use follows from this entry."""

    kind: Literal["started"] = "started"
    run: int
    stage: str
    round: int
    attempt: int
    play: int
    continuation: bool
    reviewer: str | None
    agent: str | None
    host: str
    base: str
    base_tree: str
    worktree: str
    nonce: str
    identity: Identity
    target: Document | None
    must_answer: tuple[str, ...]
    settings: str
    session: ConversationId | None = None
    resumes: bool = False
    machine: str = ""

    @property
    def name(self) -> str:
        """`06-develop`: the run's folder, the last part of its branch and of its worktree."""
        return run_name(self.run, self.stage)

    def mark(self, issue: str) -> str:
        """What the run's processes carry in their environment, so that they are known again."""
        return f"{issue}/{self.name}/{self.nonce}"


class Ended(Entry):
    """The commit point of a run: what came of it."""

    kind: Literal["ended"] = "ended"
    run: int
    exit: Exit
    code: Code
    outcome: Outcome
    evidence: Evidence
    session: ConversationId | None = None
    usage: Usage | None = None


class Dropped(Entry):
    """A run that died: proven dead with no exit record; what it had written is in `code`."""

    kind: Literal["dropped"] = "dropped"
    run: int
    reason: str
    code: Code
    session: ConversationId | None = None


class Presented(Entry):
    """What a person is asked to decide on; an approval binds to this entry."""

    kind: Literal["presented"] = "presented"
    stage: str
    evidence: Evidence


Verb = Literal["approve", "request-changes", "cancel", "retry", "resume", "skip", "reopen"]


class Decided(Entry):
    """What a person said, when, and about which evidence."""

    kind: Literal["decided"] = "decided"
    verb: Verb
    by: str
    stage: str
    message: str
    findings: tuple[Finding, ...]
    evidence: Evidence


class Amended(Entry):
    """The next version of the requirement, of the workflow, or of both; the Issue begins again from its head."""

    kind: Literal["amended"] = "amended"
    by: str
    requirement: Document | None = None
    origin: str | None = None
    pinned: Pinned | None = None


class Adopted(Entry):
    """What somebody changed by hand and the Issue now goes on from: a document, or the head of its code."""

    kind: Literal["adopted"] = "adopted"
    document: Document | None = None
    branch: str | None = None
    commit: str | None = None
    tree: str | None = None


class Noted(Entry):
    """A remark, for whoever reads the history."""

    kind: Literal["noted"] = "noted"
    by: str
    text: Text


class Delivered(Entry):
    """The branch a person merges has been made at `commit`."""

    kind: Literal["delivered"] = "delivered"
    branch: str
    commit: str


JournalEntry = Annotated[
    Created | Started | Ended | Dropped | Presented | Decided | Amended | Adopted | Noted | Delivered,
    Field(discriminator="kind"),
]


# ── what is seen ──────────────────────────────────────────────────────────────


class Life(Enum):
    """Whether a process lives. Silence, a failed probe or a missing file is UNKNOWN, never DEAD."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Sight:
    """What a host saw of a run: is `started.json` there, `exit.json`, who lives; `detail` is evidence in words."""

    started: bool
    exited: bool
    runner: Life
    agent: Life
    detail: str = ""


# ── names ─────────────────────────────────────────────────────────────────────


def run_name(number: int, stage: str) -> str:
    """The name of run `number` of `stage`, the same everywhere."""
    return f"{number:02}-{stage}"


def branch_name(prefix: str, issue: str, name: str) -> str:
    """The short branch name of a run (`06-develop`) or of the delivery (`delivered`)."""
    return f"{prefix}/{issue}/{name}"


def record_ref(issue: str) -> str:
    """The ref whose history is the Issue's history."""
    return f"refs/issueflow-records/{issue}"


def keep_ref(issue: str, run: str, what: str) -> str:
    """Where work that no branch holds is kept: `what` is `tip` or `dropped-COMMIT`."""
    return f"refs/issueflow-keep/{issue}/{run}/{what}"


def order_document(**fields: Any) -> dict[str, Any]:
    """The order as an agent reads it (docs/agent-contract.md); keys are fixed by ORDER_SCHEMA."""
    return {"schema": ORDER_SCHEMA, **fields}
