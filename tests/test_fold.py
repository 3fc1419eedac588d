"""Where an Issue stands, computed from its journal: rounds, attempts, holds, and what each class of result leads to.

Stories are told in words: a verdict is an accepted result, `request_changes:slow` has the finding "slow", `done@A`
leaves the tree A, a class (`missing`) is a refused result, `died` is a dropped run, and `!verb` is a person; so is
`!reopen:develop`.
"""

import json
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, get_args

import pytest
from conftest import EXAMPLE, Repo, done, plan, reject

from issueflow.engine import decisions
from issueflow.machine import (
    Ask,
    Collect,
    Deliver,
    Drop,
    End,
    Position,
    Prepare,
    Present,
    Start,
    Step,
    Stop,
    decide,
    evidence,
    fold,
)
from issueflow.machine.state import next_command, state, waits_for
from issueflow.models import (
    VERDICTS,
    CheckRun,
    Code,
    Created,
    Decided,
    Delivered,
    Document,
    Dropped,
    Ended,
    Exit,
    Finding,
    Identity,
    JournalEntry,
    Life,
    Outcome,
    Pinned,
    Presented,
    Response,
    ResultClass,
    Sight,
    Started,
    Workflow,
)
from issueflow.project import read_yaml

Journal = list[JournalEntry]
DEAD = Sight(started=True, exited=False, runner=Life.DEAD, agent=Life.DEAD)
APPROVED = "done approve !approve"  # `default` up to a plan that a person approved


# ── telling stories ──


@cache
def shipped(name: str) -> Workflow:
    return read_yaml(EXAMPLE / "workflows" / f"{name}.yaml", Workflow)


def begin(workflow: str | Workflow = "default", **budget: Any) -> Journal:
    """A journal with its first entry; `budget` replaces the workflow's."""
    flow = shipped(workflow) if isinstance(workflow, str) else workflow
    if budget:
        flow = changed(flow, budget=budget)
    requirement = Document(name="requirement.md", version=1, sha256="0" * 64, bytes=1)
    roles = dict.fromkeys(flow.roles, "scripted")
    created = Created(
        **head([]),
        format=1,
        issue="ISSUE-1",
        title="Do it",
        origin="r3.md",
        requirement=requirement,
        pinned=Pinned(version=1, workflow=flow, digest="w" * 64, roles=roles, checks=()),
        prefix="issueflow",
        base="base",
        base_tree="tree of base",
        base_name="main",
    )
    return [created]


def changed(workflow: str | Workflow, **changes: Any) -> Workflow:
    """The workflow with `stages__develop__attempts=1` and the like."""
    flow = shipped(workflow) if isinstance(workflow, str) else workflow
    data = flow.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in changes.items():
        *way, last = path.split("__")
        inner = data
        for key in way:
            inner = inner[key.replace("_", "-") if key.replace("_", "-") in inner else key]
        inner[last] = value
    return Workflow.model_validate_json(json.dumps(data))


def head(journal: Journal) -> dict[str, Any]:
    return {"n": len(journal) + 1, "at": "2026-01-01T00:00:00Z", "prev": ""}


def start(journal: Journal, position: Position) -> None:
    journal.append(
        Started(
            **head(journal),
            run=len(position.runs) + 1,
            stage=position.stage,
            round=position.round,
            attempt=position.attempt,
            play=position.play,
            continuation=position.continuation,
            reviewer=None,
            agent="scripted",
            host="process",
            base=position.start,
            base_tree=position.start_tree,
            worktree="/nowhere",
            nonce="5" * 16,
            identity=Identity(name="Pat", email="pat@localhost"),
            target=None,
            must_answer=position.must_answer if position.kind().kind == "agent" else (),
            settings="",
        )
    )


def code(position: Position, tree: str) -> Code:
    """What a run leaves: with a tree of its own, or `tree` from another one, always in a commit of its own."""
    run = position.runs[-1].started
    return Code(tip=f"commit {run.run}", tree=tree or run.base_tree, changed=bool(tree))


def outcome(position: Position, word: str) -> Outcome:
    """What `word` says; findings get numbers, and all that must be answered is."""
    verdict, _, claims = word.partition(":")
    run = position.runs[-1].started
    if verdict in get_args(ResultClass):
        return Outcome(cls=verdict, errors=(f"{verdict} for a reason",))  # type: ignore[arg-type]
    claimed = claims.split(",") if claims else ["it is wrong"] * (verdict in ("request_changes", "fail"))
    findings = tuple(finding(position, i, run.stage, claim) for i, claim in enumerate(claimed))
    checks = tuple(CheckRun(command=c, exit_code=1, seconds=0, timed_out=False, tail="") for c in claimed)
    answers = tuple(Response(finding=f, action="fixed", reason="done") for f in run.must_answer if verdict == "done")
    return Outcome(
        cls="accepted",
        verdict=verdict,
        summary=f"what run {run.run} says",
        findings=findings,
        checks=checks if verdict in ("fail", "pass") else (),
        responses=answers,
        questions=("which?",) if verdict == "needs_input" else (),
    )


def finding(position: Position, i: int, stage: str, claim: str) -> Finding:
    number = f"F{position.next_finding + i}"
    return Finding(id=number, stage=stage, severity="major", where="app.py", claim=claim, evidence="", fix="")


def end(journal: Journal, word: str, seconds: float = 1.0) -> None:
    """The open run ends with `word`."""
    position = fold(journal)
    assert position.open_run
    says, _, tree = word.partition("@")
    left = code(position, tree)
    number = position.open_run.run
    if says == "died":
        journal.append(Dropped(**head(journal), run=number, reason="it is gone", code=left))
        return
    how = Exit(status="exited", code=0, ended=0, seconds=seconds)
    said = outcome(position, says)
    journal.append(Ended(**head(journal), run=number, exit=how, code=left, outcome=said, evidence=evidence(position)))


def say(journal: Journal, words: str) -> None:
    """A person says a verb, at times with a stage behind it; a request for changes comes with a finding."""
    position = fold(journal)
    verb, _, stage = words.partition(":")
    said = (finding(position, 0, position.stage, "a wish"),) if verb == "request-changes" else ()
    journal.append(
        Decided(
            **head(journal),
            verb=verb,  # type: ignore[arg-type]
            by="pat",
            stage=stage or position.stage,
            message="",
            findings=said,
            evidence=evidence(position),
        )
    )


def settle(journal: Journal) -> Position:
    """Do every step that needs neither run nor person, as `advance` does, and give where that leads."""
    while True:
        position = fold(journal)
        match decide(position, DEAD if position.open_run else None):
            case Present():
                bound = evidence(position)
                journal.append(Presented(**head(journal), stage=position.stage, evidence=bound))
            case Deliver():
                journal.append(Delivered(**head(journal), branch="delivered", commit=position.head))
            case _:
                return position


def tell(journal: Journal, story: str) -> Position:
    """Go on as the words of `story` say and give where the Issue stands then."""
    for word in story.split():
        position = settle(journal)
        if word.startswith("!"):
            say(journal, word[1:])
            continue
        assert decide(position, None) == Start(), f"{word} cannot happen: {position.status} {position.hold}"
        start(journal, position)
        end(journal, word)
    return settle(journal)


def told(story: str, workflow: str | Workflow = "default", **budget: Any) -> Position:
    """Where a new Issue stands after `story`."""
    return tell(begin(workflow, **budget), story)


# ── any prefix of a journal is a legal place to stand ──


def prefixes(journal: Journal) -> Iterator[Position]:
    for length in range(1, len(journal) + 1):
        position = fold(journal[:length])
        assert position.entries == length
        yield position


def assert_legal(position: Position) -> Step:
    """Everything that reads a position can read this one, and exactly one step follows."""
    step = decide(position, DEAD if position.open_run else None)
    assert isinstance(step, get_args(Step))
    assert state(position)["status"] == position.status
    assert evidence(position).base == position.base
    assert (position.status == "held") == (position.hold is not None)
    assert not position.hold or position.hold.reason
    if not position.is_over:
        assert waits_for(position)
        assert next_command(position)
    return step


@pytest.fixture
def told_for_real(repo: Repo) -> dict[str, Journal]:
    """Journals of real walks: a change that fails its check, sent back, then delivered; a plan sent back, cancelled."""
    script = {
        "analysis": [plan()],
        "plan-review": [[reject()]],
        "develop": [[{"write": "bad", "text": ""}, done()], [{"delete": "bad"}, {"write": "a", "text": "1"}, done()]],
    }
    repo.setup(script, checks=["test ! -e bad"])
    repo.new("# Go\n", "--workflow", "quick")
    repo.advance()
    decisions.approve(repo.hands, "ISSUE-1", "")
    assert repo.advance().status == "delivered"
    repo.new()
    repo.advance("ISSUE-2", once=True)
    repo.advance("ISSUE-2", once=True)
    decisions.cancel(repo.hands, "ISSUE-2", "not needed")
    store = repo.hands.store
    return {issue: store.issue(issue).entries() for issue in store.ids()}


def classes(journal: Journal) -> list[str]:
    return [run.ended.outcome.verdict or run.ended.outcome.cls for run in fold(journal).runs if run.ended]


def test_any_prefix_of_a_real_journal_is_a_legal_place_to_stand(told_for_real: dict[str, Journal]) -> None:
    for journal in told_for_real.values():
        totals: dict[str, int] = {}
        for position in prefixes(journal):
            assert_legal(position)
            assert all(rounds.total >= totals.get(name, 0) for name, rounds in position.rounds.items())
            totals = {name: rounds.total for name, rounds in position.rounds.items()}
    assert classes(told_for_real["ISSUE-1"]) == ["done", "fail", "done", "pass"]
    assert classes(told_for_real["ISSUE-2"]) == ["done", "request_changes"]
    delivered, cancelled = (fold(told_for_real[issue]) for issue in ("ISSUE-1", "ISSUE-2"))
    assert (delivered.status, delivered.rounds["coding"].total) == ("delivered", 2)
    assert (cancelled.status, cancelled.rounds["planning"].total) == ("cancelled", 2)
    assert [f.id for f in cancelled.findings] == ["F1"]


STORIES = {
    "straight on": f"{APPROVED} done@A approve pass !approve",
    "every class": "missing malformed foreign !retry contradicted contradicted !retry violation !retry done approve",
    "set-up and death": "setup !resume died !resume died !resume done approve",
    "both loops used up": " ".join(
        ["done request_changes:a done request_changes:b done request_changes:c !approve"]
        + [f"done@{tree} request_changes:{tree}" for tree in "ABCD"]
        + ["!retry done@E approve fail done@F approve error !request-changes done@G approve none !approve"]
    ),
    "cancelled while held": "blocked !cancel",
    "questions": f"needs_input !approve needs_input !request-changes {APPROVED} done@A",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_any_prefix_of_a_story_is_a_legal_place_to_stand(story: str) -> None:
    journal = begin()
    tell(journal, story)
    for position in prefixes(journal):
        assert_legal(position)


def test_folding_twice_gives_the_same_and_leaves_the_journal_alone() -> None:
    journal = begin()
    position = tell(journal, STORIES["both loops used up"])
    copies = [entry.model_copy(deep=True) for entry in journal]
    assert fold(journal) == fold(iter(journal)) == position
    assert journal == copies


IMPOSSIBLE = {
    "empty": list,
    "without a beginning": lambda: [entry(begin(), "presented"), *begin()],
    "two beginnings": lambda: [*begin(), *begin()],
    "an end without a start": lambda: [*begin(), entry(begin(), "ended")],
    "a death without a start": lambda: [*begin(), entry(begin(), "dropped")],
    "the end of another run": lambda: [*open_run(), entry(open_run(), "ended").model_copy(update={"run": 9})],
    "two starts": lambda: [*open_run(), open_run()[-1]],
    "a stage that is not there": lambda: [*begin(), open_run()[-1].model_copy(update={"stage": "nowhere"})],
    "a retry of nothing": lambda: [*begin(), entry(begin(), "retry")],
}


def open_run(workflow: str | Workflow = "default") -> Journal:
    journal = begin(workflow)
    start(journal, fold(journal))
    return journal


def entry(journal: Journal, kind: str) -> JournalEntry:
    """An entry of that kind as it would come after a first run."""
    longer = open_run()
    if kind in ("ended", "dropped"):
        end(longer, "done" if kind == "ended" else "died")
    elif kind == "presented":
        longer.append(Presented(**head(journal), stage="deliver", evidence=evidence(fold(longer))))
    else:
        say(longer, kind)
    return longer[-1]


@pytest.mark.parametrize("make", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_journal_that_contradicts_itself_is_named_so(make: Any) -> None:
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        fold(make())


# ── random walks ──


def any_end(random: Random, position: Position) -> str:
    """A way for a run of this stage to end: mostly a verdict of its kind, at times none."""
    if random.random() < 0.2:
        return random.choice([*get_args(ResultClass)[1:], "died"])
    verdict = random.choice(VERDICTS[position.kind().kind])
    tree = f"@{random.choice('ABC')}" if position.kind().writes else ""
    claims = f":{random.choice('xyz')}" if verdict in ("request_changes", "fail") else ""
    return f"{verdict}{claims}{tree}"


def any_answer(random: Random, position: Position) -> str:
    """A decision that the verbs would take down at this place."""
    if random.random() < 0.1:
        return f"reopen:{random.choice([*position.workflow.stages])}"
    if position.status == "waiting":
        return random.choice(["approve", "request-changes", "request-changes", "cancel"])
    again = "resume" if position.hold and position.hold.cause in ("died", "setup") else "retry"
    skip = ["skip"] if position.kind().kind in ("review", "check") else []
    return random.choice([again, again, "request-changes", "cancel", *skip])


def walk(random: Random, journal: Journal, answers: int) -> Position:
    """Walk at random until the Issue is over, or a person who has given `answers` is asked again."""
    runs = asked_at = 0
    while True:
        position = settle(journal)
        step = decide(position, None)
        match step:
            case Start():
                assert len(position.runs) == runs
                runs += 1
                assert runs - asked_at <= position.workflow.budget.runs
                start(journal, position)
                end(journal, any_end(random, position))
            case Ask(question):
                assert question
                assert_legal(position)
                if not answers:
                    return position
                answers -= 1
                asked_at = runs
                answer = any_answer(random, position)
                say(journal, answer)
                after = fold(journal)
                assert after.is_over == (answer == "cancel") or after.status == "delivering"
                if isinstance(decide(after, None), Ask):  # only another question may follow: the budget ran out as well
                    assert after.hold, answer
                    causes = (position.hold.cause if position.hold else None, after.hold.cause)
                    assert causes[0] != "budget", f"{answer} moves nothing"
                    assert causes[1] == "budget", f"{answer} at {position.hold} leads to {after.hold}"
                assert all(after.rounds[name].total >= count.total for name, count in position.rounds.items())
            case End():
                assert position.is_over
                return position
            case _:
                raise AssertionError(f"stuck at {step}")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workflow", ["default", "quick"])
def test_every_random_walk_ends_or_asks_a_person(workflow: str, seed: int) -> None:
    """2,000 walks in all, each with up to three decisions; none is stuck, none runs past its budget unasked."""
    random = Random(f"{workflow} {seed}")
    ends = [walk(random, begin(workflow), answers=random.randrange(4)).status for _ in range(250)]
    assert {"held", "waiting", "cancelled"} <= set(ends)
    if workflow == "quick":
        assert "delivered" in ends


@pytest.mark.parametrize("workflow", ["default", "quick"])
def test_a_person_can_lead_a_walk_on_for_as_long_as_they_like(workflow: str) -> None:
    """Forty walks of up to 25 decisions over a small budget, so that each runs out of it."""
    random = Random(f"long {workflow}")
    for _ in range(20):
        walk(random, begin(workflow, runs=5), answers=25)


def test_no_walk_delivers_what_nobody_approved() -> None:
    random = Random("delivered")
    for _ in range(300):
        journal = begin("quick")
        if walk(random, journal, answers=3).status == "delivered":
            decided = [entry for entry in journal if isinstance(entry, Decided)]
            assert decided[-1].verb == "approve"
            assert decided[-1].stage == "deliver"


# ── loops ──

LOOPS: dict[str, tuple[str, str, str, tuple[int, int], tuple[int, int]]] = {
    # story → stage, status, planning (round, total), coding (round, total)
    "at the beginning": ("", "analysis", "ready", (1, 1), (1, 0)),
    "after a rejection": ("done request_changes", "analysis", "ready", (2, 2), (1, 0)),
    "a refused result spends none": ("done request_changes missing", "analysis", "ready", (2, 2), (1, 0)),
    "an attempt spends none": ("incomplete", "analysis", "ready", (1, 1), (1, 0)),
    "all planning rounds used": (
        "done request_changes:a done request_changes:b done request_changes:c",
        "plan-approval",
        "waiting",
        (3, 3),
        (1, 0),
    ),
    "a person buys planning rounds": (
        "done request_changes:a done request_changes:b done request_changes:c !request-changes",
        "analysis",
        "ready",
        (1, 4),
        (1, 0),
    ),
    "coding begins": (APPROVED, "develop", "ready", (1, 1), (1, 1)),
    "review and check share a loop": (
        f"{APPROVED} done@A request_changes done@B approve fail",
        "develop",
        "ready",
        (1, 1),
        (3, 3),
    ),
    "all coding rounds used": (
        f"{APPROVED} done@A request_changes:a done@B request_changes:b done@C approve fail:c done@D request_changes:d",
        "code-review",
        "held",
        (1, 1),
        (4, 4),
    ),
    "retry buys coding rounds": (
        f"{APPROVED} done@A request_changes:a done@B request_changes:b done@C approve fail:c done@D request_changes:d"
        " !retry",
        "develop",
        "ready",
        (1, 1),
        (1, 5),
    ),
    "a wish at the held loop buys coding rounds": (
        f"{APPROVED} done@A request_changes:a done@B request_changes:b done@C approve fail:c done@D request_changes:d"
        " !request-changes done@E request_changes:e",
        "develop",
        "ready",
        (1, 1),
        (2, 6),
    ),
    "a wish at delivery buys coding rounds": (
        f"{APPROVED} done@A request_changes done@B approve pass !request-changes",
        "develop",
        "ready",
        (1, 1),
        (1, 3),
    ),
    "back to planning from coding": (
        f"{APPROVED} needs_input !request-changes",
        "analysis",
        "ready",
        (1, 2),
        (1, 1),
    ),
    "death spends none": (f"{APPROVED} died !resume", "develop", "ready", (1, 1), (1, 1)),
}


@pytest.mark.parametrize(("story", "stage", "status", "planning", "coding"), LOOPS.values(), ids=LOOPS.keys())
def test_rounds_are_counted_by_loop_and_totals_are_never_reset(
    story: str, stage: str, status: str, planning: tuple[int, int], coding: tuple[int, int]
) -> None:
    """BR-142, BR-149: a cap is never extended by itself, only by a person."""
    position = told(story)
    assert (position.stage, position.status) == (stage, status)
    assert {name: (r.round, r.total) for name, r in position.rounds.items()} == {"planning": planning, "coding": coding}


def test_totals_are_numbers_from_the_first_entry_on() -> None:
    """issue.yaml shows them."""
    assert [type(rounds.total) for rounds in told("").rounds.values()] == [int, int]


def test_an_exhausted_loop_says_which_and_how_many_rounds() -> None:
    """BR-149: the final message names the loop and the count."""
    story = "done@A fail:a done@B fail:b done@C fail:c"
    position = told(story, changed("quick", loops__coding__on_exhausted="hold"))
    assert position.hold
    assert (position.hold.cause, position.hold.reason) == ("exhausted", "coding has used its 3 rounds")
    assert told(story, "quick").status == "waiting"  # `quick` as shipped asks at deliver
    assert [f.claim for f in told(story, "quick").findings] == ["c"]


def test_a_loop_entered_by_another_loop_s_way_out_counts_from_there() -> None:
    """Here planning gives up into develop: coding is in its first round, and has had one."""
    workflow = changed("default", loops__planning__on_exhausted="develop")
    position = told("done request_changes:a done request_changes:b done request_changes:c", workflow)
    assert position.stage == "develop"
    assert (position.rounds["coding"].round, position.rounds["coding"].total) == (1, 1)


def test_a_nested_loop_is_spent_first_and_starts_anew_when_entered_again() -> None:
    inner = {"stages": ["develop", "code-review"], "back_to": "develop", "max_rounds": 2, "on_exhausted": "verify"}
    workflow = changed("default", loops__inner=inner, loops__coding__no_progress=None)
    journal = begin(workflow)
    position = tell(journal, f"{APPROVED} done@A request_changes done@B request_changes")
    assert position.stage == "verify"
    assert (position.rounds["inner"].round, position.rounds["coding"].round) == (2, 1)
    position = tell(journal, "fail")
    assert (position.stage, position.rounds["inner"].round, position.rounds["coding"].round) == ("develop", 1, 2)
    assert position.rounds["inner"].total == 3


SKIPS = {
    # story → stage, status
    "a review that is held": (f"{APPROVED} done@A blocked !skip", "verify", "ready"),
    "a review without a result": ("done violation !skip", "plan-approval", "waiting"),
    "a check that cannot run": (f"{APPROVED} done@A approve error !skip", "deliver", "waiting"),
    "a used-up loop": (
        f"{APPROVED} done@A request_changes:a done@B request_changes:b done@C request_changes:c"
        " done@D request_changes:d !skip",
        "verify",
        "ready",
    ),
}


@pytest.mark.parametrize(("story", "stage", "status"), SKIPS.values(), ids=SKIPS.keys())
def test_a_skipped_stage_counts_as_passed_by_a_person(story: str, stage: str, status: str) -> None:
    position = told(story)
    assert (position.stage, position.status) == (stage, status)
    assert position.decided[-1].verb == "skip"


REOPENED = {
    "after delivery": ("done@A pass !approve !reopen:develop", "develop", (1, 2)),
    "after cancelling": ("done@A !cancel !reopen:verify", "verify", (1, 2)),
    "while a person is asked": ("done@A pass !reopen:develop", "develop", (1, 2)),
    "while held": ("blocked !reopen:verify", "verify", (1, 2)),
    "in a later round": ("done@A fail:x done@B fail:y blocked !reopen:develop", "develop", (1, 4)),
}


@pytest.mark.parametrize(("story", "stage", "coding"), REOPENED.values(), ids=REOPENED.keys())
def test_a_reopened_stage_begins_with_new_rounds_and_the_old_totals(
    story: str, stage: str, coding: tuple[int, int]
) -> None:
    position = told(story, "quick")
    assert (position.stage, position.status, position.attempt) == (stage, "ready", 1)
    assert (position.rounds["coding"].round, position.rounds["coding"].total) == coding


# ── progress ──

PROGRESS: dict[str, tuple[list[str], str | None, int]] = {
    # rounds of `default`'s coding loop → why it is held, in which round; None: it goes on
    "real work, each round": (
        ["done@A request_changes:x", "done@B request_changes:x", "done@C request_changes:x"],
        None,
        4,
    ),
    "only the message changes": (["done@A request_changes:x", "done@A request_changes:x"], "stalled", 2),
    "nothing changes": (["done request_changes:x", "done request_changes:x"], "stalled", 2),
    "a flip-flop between two versions": (
        ["done@A request_changes:x", "done@B request_changes:x", "done@A request_changes:x"],
        "stalled",
        3,
    ),
    "a flip-flop with other words": (
        ["done@A request_changes:x", "done@B request_changes:y", "done@A request_changes:z"],
        None,
        4,
    ),
    "no code, but findings get closed": (["done@A request_changes:x,y", "done@A request_changes:x"], None, 3),
    "findings closed and opened again": (
        ["done@A request_changes:x,y", "done@A request_changes:x", "done@A request_changes:y,x"],
        "stalled",
        3,
    ),
    "fewer failing checks": (["done@A approve fail:p,q", "done@A approve fail:p"], None, 3),
    "the same failing check": (["done@A approve fail:p", "done@A approve fail:p"], "stalled", 2),
    "churn around the same failing check": (
        [f"done@{tree} approve fail:p" for tree in "ABCD"],
        "exhausted",
        4,
    ),
    "review and check in turn": (["done@A request_changes:x", "done@A approve fail:p"], None, 3),
}


@pytest.mark.parametrize(("rounds", "cause", "round_"), PROGRESS.values(), ids=PROGRESS.keys())
def test_a_loop_is_stalled_when_the_combination_was_seen_in_any_earlier_round(
    rounds: list[str], cause: str | None, round_: int
) -> None:
    """BR-142, and the table of progress signatures: each run's commit and summary are new ones throughout."""
    position = told(f"{APPROVED} {' '.join(rounds)}")
    assert (position.hold.cause if position.hold else None) == cause
    assert position.round == round_
    assert (position.status == "ready") == (cause is None)


def test_no_progress_waits_for_the_round_it_is_declared_for() -> None:
    lenient = {"rounds": 3, "watch": ["tree", "open_findings"], "to": "failed"}
    workflow = changed("default", loops__coding__no_progress=lenient)
    same = "done@A request_changes:x"
    assert told(f"{APPROVED} {same} {same}", workflow).status == "ready"
    assert told(f"{APPROVED} {same} {same} {same}", workflow).status == "failed"


def test_a_person_s_decision_makes_a_stalled_loop_go_on_and_what_was_seen_before_it_is_forgotten() -> None:
    same = "done@A request_changes:x"
    journal = begin()
    assert tell(journal, f"{APPROVED} {same} {same}").status == "held"
    assert tell(journal, f"!retry {same}").status == "ready"
    position = tell(journal, same)
    assert position.hold
    assert (position.hold.cause, position.rounds["coding"].total) == ("stalled", 4)


# ── what each class of result leads to ──

CLASSES: dict[str, tuple[str, str, str | None, bool, int]] = {
    # what runs say → status, why it is held, is only the result asked for, which attempt
    **{
        f"{cls}: {what}": (story.replace("X", cls), *rest)
        for cls in ("missing", "malformed", "foreign")
        for what, (story, *rest) in {
            "one continuation": ("X", "ready", None, True, 1),
            "then one attempt": ("X X", "ready", None, False, 2),
            "then a person": ("X X X", "held", "fault", False, 3),
            "whichever comes in between": ("X missing malformed", "held", "fault", False, 3),
        }.items()
    },
    "contradicted once: another attempt": ("contradicted", "ready", None, False, 2),
    "contradicted twice: a person": ("contradicted contradicted", "held", "fault", False, 3),
    "contradicted in a continuation": ("missing contradicted", "ready", None, False, 2),
    "contradicted in a continuation and again": ("missing contradicted contradicted", "held", "fault", False, 3),
    "contradicted, then missing": ("contradicted missing", "ready", None, True, 2),
    "contradicted, then missing twice": ("contradicted missing missing", "held", "fault", False, 3),
    "violation: a person at once": ("violation", "held", "violation", False, 2),
    "set-up failed: a person at once, not charged": ("setup", "held", "setup", False, 1),
    "set-up failed and repaired": ("setup !resume", "ready", None, False, 1),
    "set-up failed many times": ("setup !resume setup !retry setup !resume missing", "ready", None, True, 1),
    "set-up failed for a continuation": ("missing setup !resume", "ready", None, True, 1),
    "died: a person": ("died", "held", "died", False, 2),
    "died and replaced": ("died !resume", "ready", None, False, 2),
    "incomplete: another attempt": ("incomplete", "ready", None, False, 2),
    "incomplete twice": ("incomplete incomplete", "ready", None, False, 3),
    "incomplete three times is blocked": ("incomplete incomplete incomplete", "held", "blocked", False, 4),
    "incomplete after a continuation": ("missing incomplete", "ready", None, False, 2),
    "blocked": ("blocked", "held", "blocked", False, 2),
    "retried after a fault": ("missing missing missing !retry", "ready", None, False, 1),
    "a continuation for the retried one, too": ("missing missing missing !retry missing", "ready", None, True, 1),
    "retried after a violation": ("violation !retry", "ready", None, False, 1),
}


@pytest.mark.parametrize("workflow", ["default", "quick"])  # a stage that reads, a stage that writes
@pytest.mark.parametrize(("story", "status", "cause", "continuation", "attempt"), CLASSES.values(), ids=CLASSES.keys())
def test_every_class_has_its_one_consequence(
    workflow: str, story: str, status: str, cause: str | None, continuation: bool, attempt: int
) -> None:
    """BR-115, BR-121, BR-125, BR-145, BR-162: no result is never a pass, a rejection, or an endless retry."""
    position = told(story, workflow)
    assert position.stage == shipped(workflow).start
    assert (position.status, position.hold.cause if position.hold else None) == (status, cause)
    assert position.continuation == continuation
    if position.status == "ready":
        assert position.attempt == attempt


@pytest.mark.parametrize(
    ("before", "stage"),
    [("done", "plan-review"), (f"{APPROVED} done@A", "code-review")],
    ids=["of a plan", "of a change"],
)
@pytest.mark.parametrize("cls", ["missing", "malformed", "foreign", "contradicted", "violation", "setup", "died"])
def test_a_review_without_a_usable_result_is_neither_an_approval_nor_a_rejection(
    before: str, stage: str, cls: str
) -> None:
    """BR-125, BR-127: a missing verdict is unfinished, not a round and not a pass; a person is asked in the end."""
    journal = begin()
    position = tell(journal, before)
    rounds = position.rounds
    for _ in range(3):
        position = tell(journal, cls)
        assert (position.stage, position.rounds) == (stage, rounds)
        if position.status == "held":
            break
    assert position.status == "held"
    assert not position.findings


def test_a_single_attempt_is_tried_once() -> None:
    """With `attempts: 1` there is the one continuation, and no second attempt."""
    workflow = changed("quick", stages__develop__attempts=1)
    assert told("missing", workflow).continuation
    for story in ("missing missing", "contradicted", "incomplete"):
        assert told(story, workflow).status == "held", story


@pytest.mark.parametrize("said", ["error", "setup", "died"])
def test_a_check_that_cannot_be_run_asks_a_person(said: str) -> None:
    position = told(f"done@A {said}", "quick")
    assert position.status == "held"
    assert position.stage == "verify"
    assert tell(begin("quick"), f"done@A {said} !retry pass").stage == "deliver"


@pytest.mark.parametrize("cls", ["missing", "malformed", "foreign", "contradicted"])
def test_the_next_prompt_is_told_why_the_last_result_was_refused(cls: str) -> None:
    position = told(cls)
    assert len(position.feedback) == 1
    assert f"({cls})" in position.feedback[0]
    assert f"{cls} for a reason" in position.feedback[0]


@pytest.mark.parametrize(
    "story", ["violation", "blocked", "missing missing missing", "contradicted contradicted", "died"]
)
@pytest.mark.parametrize("workflow", ["default", "quick"])
def test_a_run_that_a_person_lets_start_again_is_told_what_was_tried(workflow: str, story: str) -> None:
    """A prompt is never the same as the last: else the same thing is bound to happen again."""
    journal = begin(workflow)
    before = tell(journal, story)
    after = tell(journal, "!resume" if story == "died" else "!retry")
    assert before.status == "held"
    assert after.status == "ready"
    assert after.feedback


BASES = {
    # what runs of a writing stage leave → where the next one begins
    "the first run": ("", "base"),
    "after missing": ("missing@A", "commit 1"),
    "after a continuation": ("missing@A missing@B", "commit 2"),
    "after malformed": ("malformed@A", "commit 1"),
    "after contradicted": ("contradicted@A", "commit 1"),
    "after incomplete": ("incomplete@A", "commit 1"),
    "after death": ("died@A !resume", "commit 1"),
    "after a violation": ("violation@A !retry", "base"),
    "after a violation behind an attempt": ("missing@A violation@B !retry", "base"),
    "after a failed set-up": ("setup@A !resume", "base"),
    "after a failed set-up behind an attempt": ("missing@A setup@B !resume", "commit 1"),
    "after a fault a person lets go on": ("missing@A missing@B missing@C !retry", "commit 3"),
    "in the next round": ("done@A fail:x", "commit 1"),
    "in the next round, after its first attempt": ("done@A fail:x missing@B", "commit 3"),
}


@pytest.mark.parametrize(("story", "base"), BASES.values(), ids=BASES.keys())
def test_a_new_attempt_starts_from_the_last_one_s_snapshot_and_everything_else_from_head(story: str, base: str) -> None:
    assert told(story, "quick").start == base


def test_head_moves_with_accepted_results_of_writing_runs_alone() -> None:
    journal = begin("quick")
    assert tell(journal, "missing@A died@B !resume contradicted@C").head == "base"
    position = tell(journal, "done@D")
    assert (position.head, position.tree) == ("commit 4", "D")
    assert tell(journal, "setup@E !resume pass@F").head == "commit 4"
    assert evidence(fold(journal)).head == "commit 4"


def test_reviews_and_checks_start_at_exactly_the_head_they_judge() -> None:
    position = told(f"{APPROVED} missing@A done@B missing@C")
    assert (position.stage, position.start, position.start_tree) == ("code-review", "commit 4", "B")


# ── findings ──


def test_findings_are_numbered_once_and_must_be_answered_by_the_next_author() -> None:
    journal = begin()
    position = tell(journal, "done request_changes:a,b")
    assert position.must_answer == ("F1", "F2")
    position = tell(journal, "done")
    assert position.must_answer == ()
    position = tell(journal, "request_changes:c")
    assert [(f.id, f.claim) for f in position.findings] == [("F3", "c")]
    position = tell(journal, "done approve !request-changes")
    assert position.must_answer == ("F4",)
    assert [f.claim for f in position.findings] == ["a wish"]


def test_a_review_that_could_not_look_settles_nothing() -> None:
    """BR-128: not reviewed is neither a pass nor a return; what was open before is open still."""
    position = told("done request_changes:a done blocked")
    assert (position.stage, position.status) == ("plan-approval", "waiting")
    assert [f.claim for f in position.findings] == ["a"]
    held = told(f"{APPROVED} done@A request_changes:a done@B blocked")
    assert (held.stage, held.status) == ("code-review", "held")
    assert [f.claim for f in held.findings] == ["a"]


def test_a_check_that_could_not_run_settles_nothing() -> None:
    position = told("done@A fail:p done@B error", "quick")
    assert position.status == "held"
    assert [f.claim for f in position.findings] == ["p"]


def test_a_passing_check_closes_what_an_earlier_one_opened() -> None:
    assert told("done@A fail:p done@B pass", "quick").findings == ()


# ── budget ──


def test_the_budget_of_runs_asks_a_person_who_can_let_it_go_on() -> None:
    journal = begin("quick", runs=3)
    position = tell(journal, "done@A fail:x done@B")
    assert position.hold
    assert (position.hold.cause, position.hold.reason) == ("budget", "the budget of 3 runs is used")
    assert (position.stage, position.round) == ("verify", 2)
    position = tell(journal, "!retry")
    assert (position.status, position.stage, position.round) == ("ready", "verify", 2)  # it buys runs, not rounds
    position = tell(journal, "fail:y done@C fail:z")
    assert len(position.runs) == 6  # three more; the end at deliver needs none
    assert position.stage == "deliver"


def test_a_wish_at_a_used_budget_is_heard() -> None:
    position = told("done@A fail:x done@B !request-changes", "quick", runs=3)
    assert (position.status, position.stage) == ("ready", "develop")
    assert [f.claim for f in position.findings if f.id in position.must_answer] == ["a wish"]


def test_a_used_budget_does_not_keep_a_person_from_delivering() -> None:
    assert told("done@A pass !approve", "quick", runs=2).status == "delivered"


def test_the_budget_of_time_counts_what_agents_worked() -> None:
    journal = begin("quick", wall_clock=100)
    for word, seconds in (("done@A", 60.0), ("fail:x", 39.0)):
        start(journal, settle(journal))
        end(journal, word, seconds)
    assert settle(journal).status == "ready"
    start(journal, settle(journal))
    end(journal, "done@B", 2.0)
    position = settle(journal)
    assert position.hold
    assert position.hold.reason == "the budget of 100 s of agents at work is used"
    assert tell(journal, "!retry pass").stage == "deliver"


def test_an_endless_workflow_is_bounded_by_forty_runs() -> None:
    """A default cap always exists, whatever the loops say (BR-141)."""
    loop = {"stages": ["develop", "verify"], "back_to": "develop", "max_rounds": 100, "on_exhausted": "hold"}
    journal = begin(changed("quick", loops__coding=loop))
    for number in range(20):
        tell(journal, f"done@{number} fail:{number}")
    position = fold(journal)
    assert (len(position.runs), position.hold.cause if position.hold else None) == (40, "budget")


# ── the end ──


@pytest.mark.parametrize("said", ["done@A", "missing@A", "died@A"])
def test_a_run_that_ends_after_the_issue_was_cancelled_changes_nothing(said: str) -> None:
    journal = open_run("quick")
    say(journal, "cancel")
    cancelled = fold(journal)
    assert (cancelled.status, cancelled.open_run is not None) == ("cancelled", True)
    assert isinstance(decide(cancelled, DEAD), Stop | Drop | Collect)
    end(journal, said)
    position = fold(journal)
    assert (position.status, position.head, position.open_run, position.hold) == ("cancelled", "base", None, None)
    assert decide(position, None) == End()
    assert position.runs[0].tip == "commit 1"  # what it did is known all the same


@pytest.mark.parametrize(
    ("story", "workflow"),
    [("", "default"), ("done approve", "default"), ("blocked", "quick"), ("died", "quick"), ("done@A pass", "quick")],
    ids=["ready", "waiting", "held", "after a death", "at the end"],
)
def test_cancel_is_taken_everywhere(story: str, workflow: str) -> None:
    position = told(f"{story} !cancel", workflow)
    assert position.is_over
    assert (position.status, position.hold, decide(position, None)) == ("cancelled", None, End())


def test_an_open_run_is_prepared_dropped_or_collected_and_nothing_else_is_begun() -> None:
    position = fold(open_run())
    seen = Sight(started=False, exited=False, runner=Life.DEAD, agent=Life.DEAD)
    assert decide(position, seen) == Prepare()
    assert isinstance(decide(position, DEAD), Drop)
    assert position.status == "running"


def test_questions_are_shown_until_a_person_has_decided() -> None:
    journal = begin()
    assert tell(journal, "needs_input").questions == ("which?",)
    assert tell(journal, "!approve").questions == ()
    held = told("needs_input", "quick")  # `quick` does not route it: a question to a person
    assert held.hold
    assert held.hold.cause == "question"
