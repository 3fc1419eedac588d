"""What a submitted result is worth: one class for each, told apart without any model; nothing unclear is a pass."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, get_args

import pytest
from conftest import EXAMPLE, finding
from transcripts import AROUND, Around, payloads

from issueflow.machine import Facts, Submission, judge
from issueflow.machine.judge import MOST_BYTES, MOST_DEPTH, judge_checks
from issueflow.models import (
    VERDICTS,
    AgentResult,
    CheckRun,
    Exit,
    Identity,
    Outcome,
    ResultClass,
    ReviewResult,
    Stage,
    Started,
    Workflow,
    WriteResult,
    run_name,
)
from issueflow.project import read_yaml

ISSUE = "ISSUE-7"
NONCE = "3f9a41c2d0e87b16"
OTHER_NONCE = "0000000000000001"
COMMIT = "9f31c2a0" * 5
PLAN = f"plan.md v2 {'ab' * 32}"
CHECKLIST = ("C1", "C2")
GONE = object()  # the key is taken out
EXITED = Exit(status="exited", code=0, ended=0)

STAGES = {"analysis": "default", "plan-review": "default", "develop": "default", "code-review": "default"}
HONEST: dict[str, dict[str, Any]] = {
    "analysis": {
        "verdict": "done",
        "artifacts": [{"name": "plan.md", "path": ".issueflow-run/plan.md"}],
        "checklist": [{"id": "C1", "text": "it works", "source": "requirement"}],
    },
    "plan-review": {"verdict": "approve", "reviewed": PLAN},
    "develop": {
        "verdict": "done",
        "artifacts": [{"name": "report.md", "text": "what was done"}],
        "commands_run": [{"command": "pytest -q", "exit_code": 0, "covers": "C1"}],
        "not_run": [{"item": "load test", "reason": "needs staging"}],
        "open_problems": [],
    },
    "code-review": {
        "verdict": "approve",
        "reviewed": COMMIT,
        "covered": [{"id": "C1", "evidence": "tests/test_app.py"}, {"id": "C2", "evidence": "app.py:7"}],
    },
}


@cache
def stage(name: str) -> Stage:
    return read_yaml(EXAMPLE / "workflows" / f"{STAGES[name]}.yaml", Workflow).stages[name]


def started(name: str, must_answer: tuple[str, ...] = ()) -> Started:
    return Started(
        n=2,
        at="2026-01-01T00:00:00Z",
        prev="",
        run=6,
        stage=name,
        round=1,
        attempt=1,
        play=1,
        continuation=False,
        reviewer=None,
        agent="scripted",
        host="process",
        base=COMMIT,
        base_tree="tree",
        worktree="/nowhere",
        nonce=NONCE,
        identity=Identity(name="Pat", email="pat@localhost"),
        target=None,
        must_answer=must_answer,
        settings="",
    )


def facts(name: str, **changes: Any) -> Facts:
    """What the engine knows about an honest run of the stage."""
    writes = stage(name).writes
    known: dict[str, Any] = {
        "exit": EXITED,
        "changed": writes,
        "differs_from_head": writes,
        "unfinished": None,
        "target": {"plan-review": PLAN, "code-review": COMMIT}.get(name),
        "checklist": CHECKLIST if name == "code-review" else (),
        "next_finding": 4,
    }
    return Facts(**known | changes)


def result(name: str, **changes: Any) -> dict[str, Any]:
    """What an honest run of the stage submits, with changes; GONE takes a key out."""
    head = {"schema": "issueflow.result/1", "issue": ISSUE, "stage": name, "run": run_name(6, name), "nonce": NONCE}
    whole = {**head, "summary": "what a colleague must know", **deepcopy(HONEST[name]), **changes}
    return {key: value for key, value in whole.items() if value is not GONE}


def judged(
    name: str, file: Any = None, output: str = "", must_answer: tuple[str, ...] = (), **known: Any
) -> tuple[Outcome, Any]:
    """The judgement of a result file (a value or bytes) or an output."""
    raw = file if file is None or isinstance(file, bytes) else json.dumps(file).encode()
    submission = Submission(raw, output)
    outcome, parsed = judge(ISSUE, started(name, must_answer), stage(name), submission, facts(name, **known))
    assert (parsed is not None) == (outcome.cls == "accepted")
    assert (outcome.verdict is not None) == (outcome.cls == "accepted")
    assert outcome.errors or outcome.cls == "accepted"
    return outcome, parsed


# ── claims and facts ──

LATE = Exit(status="timeout", ended=0, detail="after 3600 s")
FAILED = Exit(status="exited", code=1, ended=0)
SERIOUS = [finding("blocker", "it loses data")]

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str, str]] = {
    # stage, changes to an honest result, changes to the facts → class, the telling part of what is said
    "an honest analyst": ("analysis", {}, {}, "accepted", ""),
    "an honest developer": ("develop", {}, {}, "accepted", ""),
    "an honest approval of a plan": ("plan-review", {}, {}, "accepted", ""),
    "an honest approval of a change": ("code-review", {}, {}, "accepted", ""),
    "approval with notes": ("code-review", {"findings": [finding("minor"), finding("note")]}, {}, "accepted", ""),
    "an honest rejection": (
        "code-review",
        {"verdict": "request_changes", "findings": SERIOUS},
        {},
        "accepted",
        "",
    ),
    "a rejection for a missing item alone": (
        "code-review",
        {"verdict": "request_changes", "covered": [{"id": "C1", "evidence": "seen"}], "missing": ["C2"]},
        {},
        "accepted",
        "",
    ),
    "an item that does not apply": (
        "code-review",
        {"covered": [{"id": "C1", "evidence": "seen"}], "not_applicable": [{"id": "C2", "reason": "no such platform"}]},
        {},
        "accepted",
        "",
    ),
    "a reviewer that could not look": ("code-review", {"verdict": "blocked", "covered": GONE}, {}, "accepted", ""),
    "a reviewer that could not even find it": (
        "code-review",
        {"verdict": "blocked", "covered": GONE, "reviewed": "nothing"},
        {},
        "accepted",
        "",
    ),
    "a rejection by an agent that then failed": (
        "code-review",
        {"verdict": "request_changes", "findings": SERIOUS},
        {"exit": FAILED},
        "accepted",
        "",
    ),
    "a question": (
        "analysis",
        {"verdict": "needs_input", "questions": ["which?"], "artifacts": GONE, "checklist": GONE},
        {},
        "accepted",
        "",
    ),
    "a choice to make": (
        "develop",
        {
            "verdict": "needs_input",
            "decisions": [{"id": "D1", "question": "which?", "options": ["a", "b"], "recommendation": "a"}],
        },
        {},
        "accepted",
        "",
    ),
    "incomplete with nothing but a word": (
        "develop",
        {"verdict": "incomplete", "artifacts": GONE, "commands_run": []},
        {"changed": False, "differs_from_head": False},
        "accepted",
        "",
    ),
    "blocked after a time limit": ("develop", {"verdict": "blocked"}, {"exit": LATE}, "accepted", ""),
    "no change, and a reason": (
        "develop",
        {"no_change": "the flag is there already"},
        {"changed": False, "differs_from_head": False},
        "accepted",
        "",
    ),
    "no change, and every finding disputed": (
        "develop",
        {"responses": [{"finding": "F1", "action": "disputed", "reason": "it is tested"}]},
        {"changed": False, "differs_from_head": False},
        "accepted",
        "",
    ),
    "a failing command that is owned up to": (
        "develop",
        {
            "commands_run": [{"command": "pytest", "exit_code": 1, "covers": ""}],
            "open_problems": ["test_a fails on main, too"],
        },
        {},
        "accepted",
        "",
    ),
    "ended because its result lay there": ("develop", {}, {"exit": Exit(status="finished", ended=0)}, "accepted", ""),
    "found after its runner was lost": ("develop", {}, {"exit": Exit(status="lost", ended=0)}, "accepted", ""),
    "two plans in the summary's words": ("analysis", {"summary": "x" * 2_000}, {}, "accepted", ""),
    # ── malformed ──
    "an unknown verdict": (
        "code-review",
        {"verdict": "APPROVED"},
        {},
        "malformed",
        "verdict is 'APPROVED', not one of",
    ),
    "a verdict of another kind": ("code-review", {"verdict": "pass"}, {}, "malformed", "verdict is 'pass'"),
    "an agent that approves": ("develop", {"verdict": "approve"}, {}, "malformed", "verdict is 'approve'"),
    "a person's verdict": ("code-review", {"verdict": "cancel"}, {}, "malformed", "verdict is 'cancel'"),
    "no verdict": ("code-review", {"verdict": GONE}, {}, "malformed", "verdict: Field required"),
    "an empty verdict": ("code-review", {"verdict": ""}, {}, "malformed", "verdict is ''"),
    "the skeleton's verdict": (
        "code-review",
        {"verdict": "<one of approve, request_changes, blocked>"},
        {},
        "malformed",
        "verdict is '<one of approve",
    ),
    "an unknown key": ("code-review", {"confidence": 0.9}, {}, "malformed", "confidence: Extra inputs"),
    "a misspelt key": ("develop", {"open_problem": []}, {}, "malformed", "open_problem: Extra inputs"),
    "an unknown key inside": (
        "code-review",
        {"findings": [{**finding("note"), "class": "code"}]},
        {},
        "malformed",
        "findings.0.class: Extra inputs",
    ),
    "a reader that claims commands": ("analysis", {"commands_run": []}, {}, "malformed", "commands_run: Extra inputs"),
    "a reviewer that hands in documents": (
        "code-review",
        {"artifacts": []},
        {},
        "malformed",
        "artifacts: Extra inputs",
    ),
    "no summary": ("code-review", {"summary": GONE}, {}, "malformed", "summary: Field required"),
    "an empty summary": ("code-review", {"summary": ""}, {}, "malformed", "summary: String should have at least"),
    "a summary without end": (
        "code-review",
        {"summary": "x" * 2_001},
        {},
        "malformed",
        "summary: String should have at",
    ),
    "another schema": ("code-review", {"schema": "issueflow.result/2"}, {}, "malformed", "schema: Input should be"),
    "no schema": ("code-review", {"schema": GONE}, {}, "malformed", "schema: Field required"),
    "a number for text": ("code-review", {"summary": 7}, {}, "malformed", "summary: Input should be a valid string"),
    "text for a list": ("code-review", {"missing": "C1"}, {}, "malformed", "missing: Input should be a valid"),
    "null for a list": ("develop", {"open_problems": None}, {}, "malformed", "open_problems: Input should be a valid"),
    "a fraction for a number": (
        "develop",
        {"commands_run": [{"command": "pytest", "exit_code": 1.0, "covers": ""}]},
        {},
        "malformed",
        "commands_run.0.exit_code: Input should be a valid integer",
    ),
    "a text for a number": (
        "develop",
        {"commands_run": [{"command": "pytest", "exit_code": "0", "covers": ""}]},
        {},
        "malformed",
        "commands_run.0.exit_code: Input should be a valid integer",
    ),
    "a yes for a number": (
        "develop",
        {"commands_run": [{"command": "pytest", "exit_code": False, "covers": ""}]},
        {},
        "malformed",
        "commands_run.0.exit_code: Input should be a valid integer",
    ),
    "a yes for a reason": (
        "develop",
        {"no_change": True},
        {},
        "malformed",
        "no_change: Input should be a valid string",
    ),
    "what was run is left out": ("develop", {"commands_run": GONE}, {}, "malformed", "commands_run: Field required"),
    "what was not run is left out": ("develop", {"not_run": GONE}, {}, "malformed", "not_run: Field required"),
    "known problems are left out": (
        "develop",
        {"open_problems": GONE},
        {},
        "malformed",
        "open_problems: Field required",
    ),
    "an unknown severity": (
        "code-review",
        {"findings": [finding("critical")]},
        {},
        "malformed",
        "findings.0.severity: Input should be",
    ),
    "a finding without evidence": (
        "code-review",
        {"verdict": "request_changes", "findings": [{k: v for k, v in finding().items() if k != "evidence"}]},
        {},
        "malformed",
        "findings.0.evidence: Field required",
    ),
    "done with a failing command": (
        "develop",
        {"commands_run": [{"command": "pytest -q", "exit_code": 1, "covers": "C1"}]},
        {},
        "malformed",
        "done with a failing command and no open problem: pytest -q",
    ),
    "needs_input without a question": ("develop", {"verdict": "needs_input"}, {}, "malformed", "asks no question"),
    "approval with an open blocker": (
        "code-review",
        {"findings": SERIOUS},
        {},
        "malformed",
        "approve with an open blocker finding: it loses data",
    ),
    "approval with an open major": (
        "plan-review",
        {"findings": [finding("note"), finding("major")]},
        {},
        "malformed",
        "approve with an open major finding",
    ),
    "approval while something is missing": (
        "code-review",
        {"covered": [{"id": "C1", "evidence": "seen"}], "missing": ["C2"]},
        {},
        "malformed",
        "approve while C2 is missing",
    ),
    "approval of a plan while something is missing": (
        "plan-review",
        {"missing": ["tests"]},
        {},
        "malformed",
        "approve while tests is missing",
    ),
    "rejection without a finding": (
        "code-review",
        {"verdict": "request_changes"},
        {},
        "malformed",
        "request_changes names no finding and no missing item",
    ),
    "an item left out": (
        "code-review",
        {"covered": [{"id": "C1", "evidence": "seen"}]},
        {},
        "malformed",
        "checklist item C2 is not classified",
    ),
    "no item at all": ("code-review", {"covered": GONE}, {}, "malformed", "checklist item C1 is not classified"),
    "an invented item": (
        "code-review",
        {"covered": [{"id": name, "evidence": "seen"} for name in ("C1", "C2", "C3")]},
        {},
        "malformed",
        "checklist item C3 does not exist",
    ),
    "an item in two places": (
        "code-review",
        {"verdict": "request_changes", "missing": ["C2"], "findings": SERIOUS},
        {},
        "malformed",
        "checklist item C2 is given twice",
    ),
    "the item after the tenth left out": (
        "code-review",
        {"covered": [{"id": f"C{n}", "evidence": "seen"} for n in range(1, 11)]},
        {"checklist": tuple(f"C{n}" for n in range(1, 12))},
        "malformed",
        "checklist item C11 is not classified",
    ),
    "covered without evidence": ("code-review", {"covered": [{"id": "C1"}]}, {}, "malformed", "covered.0.evidence"),
    "the plan is missing": ("analysis", {"artifacts": GONE}, {}, "malformed", "artifact plan.md is missing"),
    "the report is missing": ("develop", {"artifacts": []}, {}, "malformed", "artifact report.md is missing"),
    "a document nobody asked for": (
        "develop",
        {"artifacts": [*HONEST["develop"]["artifacts"], {"name": "plan.md", "text": "mine"}]},
        {},
        "malformed",
        "artifact plan.md is not one this stage produces",
    ),
    "a document twice": (
        "analysis",
        {"artifacts": HONEST["analysis"]["artifacts"] * 2},
        {},
        "malformed",
        "artifact plan.md is given twice",
    ),
    "a document without content": (
        "analysis",
        {"artifacts": [{"name": "plan.md"}]},
        {},
        "malformed",
        "artifact plan.md needs a path or a text",
    ),
    "a document with two contents": (
        "analysis",
        {"artifacts": [{"name": "plan.md", "path": "plan.md", "text": "# Plan"}]},
        {},
        "malformed",
        "artifact plan.md needs a path or a text",
    ),
    "a document's name that leads elsewhere": (
        "analysis",
        {"artifacts": [{"name": "../plan.md", "text": "# Plan"}]},
        {},
        "malformed",
        "artifacts.0.name",
    ),
    "no acceptance items": ("analysis", {"checklist": []}, {}, "malformed", "the checklist is missing"),
    "an acceptance item twice": (
        "analysis",
        {"checklist": HONEST["analysis"]["checklist"] * 2},
        {},
        "malformed",
        "checklist item C1 is given twice",
    ),
    "an acceptance item with a name of its own": (
        "analysis",
        {"checklist": [{"id": "A1", "text": "it works", "source": "requirement"}]},
        {},
        "malformed",
        "checklist.0.id",
    ),
    "a developer that rewrites the acceptance items": (
        "develop",
        {"checklist": [{"id": "C1", "text": "whatever I did", "source": "inferred"}]},
        {},
        "malformed",
        "checklist",
    ),
    # ── foreign ──
    "copied from an earlier run": (
        "code-review",
        {"run": "04-code-review", "nonce": OTHER_NONCE},
        {},
        "foreign",
        "run is '04-code-review', this run's is '06-code-review'",
    ),
    "right run, wrong nonce": ("code-review", {"nonce": OTHER_NONCE}, {}, "foreign", "nonce is '0000000000000001'"),
    "a nonce of another type": ("code-review", {"nonce": [NONCE]}, {}, "foreign", "nonce is"),
    "another Issue": ("develop", {"issue": "ISSUE-8"}, {}, "foreign", "issue is 'ISSUE-8', this run's is 'ISSUE-7'"),
    "another stage": ("code-review", {"stage": "plan-review"}, {}, "foreign", "stage is 'plan-review'"),
    "without a nonce": ("code-review", {"nonce": GONE}, {}, "malformed", "nonce is missing"),
    # ── contradicted ──
    "done after exit 1": (
        "develop",
        {},
        {"exit": FAILED},
        "contradicted",
        "it says done but the agent ended with exit",
    ),
    "approve after exit 1": (
        "code-review",
        {},
        {"exit": FAILED},
        "contradicted",
        "it says approve but the agent ended",
    ),
    "done at the time limit": ("develop", {}, {"exit": LATE}, "contradicted", "was ended: timeout after 3600 s"),
    "approve after a signal": (
        "code-review",
        {},
        {"exit": Exit(status="signalled", code=9, ended=0)},
        "contradicted",
        "was ended: signalled",
    ),
    "done, and nothing changed": (
        "develop",
        {},
        {"changed": False, "differs_from_head": False},
        "contradicted",
        "nothing was changed and no reason is given",
    ),
    "done with commits that change nothing": (
        "develop",
        {},
        {"changed": True, "differs_from_head": False},
        "contradicted",
        "nothing was changed",
    ),
    "says it fixed what it did not touch": (
        "develop",
        {"responses": [{"finding": "F1", "action": "fixed", "reason": "guard added"}]},
        {"changed": False, "differs_from_head": False},
        "contradicted",
        "nothing was changed",
    ),
    "done in the middle of a merge": ("develop", {}, {"unfinished": "merge"}, "contradicted", "an unfinished merge"),
    "approves another commit": (
        "code-review",
        {"reviewed": "1234567890" * 4},
        {},
        "contradicted",
        "it reviewed '1234567890",
    ),
    "approves an abbreviated commit": ("code-review", {"reviewed": COMMIT[:12]}, {}, "contradicted", "it reviewed"),
    "approves another version of the plan": (
        "plan-review",
        {"reviewed": PLAN.replace("v2", "v1")},
        {},
        "contradicted",
        "it reviewed 'plan.md v1",
    ),
    "rejects another commit": (
        "code-review",
        {"verdict": "request_changes", "findings": SERIOUS, "reviewed": "HEAD"},
        {},
        "contradicted",
        "it reviewed 'HEAD'",
    ),
    # ── violation, and what no result can change ──
    "a reviewer that changed code": ("code-review", {}, {"changed": True}, "violation", "may only read"),
    "a rejecting reviewer that changed code": (
        "code-review",
        {"verdict": "request_changes", "findings": SERIOUS},
        {"changed": True},
        "violation",
        "may only read",
    ),
    "an analyst that changed code": ("analysis", {}, {"changed": True}, "violation", "may only read"),
    "cancelled": ("develop", {}, {"exit": Exit(status="stopped", ended=0)}, "stopped", "it was cancelled"),
    "set-up failed": (
        "develop",
        {},
        {"exit": Exit(status="setup", code=1, ended=0, detail="npm ci: exit code 1")},
        "setup",
        "npm ci: exit code 1",
    ),
}


@pytest.mark.parametrize(("name", "changes", "known", "cls", "told"), CASES.values(), ids=CASES.keys())
def test_a_result_falls_into_exactly_one_class(
    name: str, changes: dict[str, Any], known: dict[str, Any], cls: str, told: str
) -> None:
    """BR-114, BR-128, BR-136, BR-140 among others: claim against fact, by rules alone."""
    outcome, _ = judged(name, result(name, **changes), **known)
    assert outcome.cls == cls, outcome.errors
    assert any(told in error for error in outcome.errors) or cls == "accepted", outcome.errors
    if cls == "accepted":
        assert outcome.verdict == changes.get("verdict", HONEST[name]["verdict"])


@pytest.mark.parametrize(("name", "changes", "known", "cls", "told"), CASES.values(), ids=CASES.keys())
def test_the_output_is_never_worth_more_than_the_file(
    name: str, changes: dict[str, Any], known: dict[str, Any], cls: str, told: str
) -> None:
    """The second channel takes the same results; what names no verdict or another run is no result there."""
    outcome, _ = judged(name, None, f"Done.\n```json\n{json.dumps(result(name, **changes), indent=2)}\n```\n", **known)
    verdict = changes.get("verdict", HONEST[name]["verdict"])
    unseen = verdict not in VERDICTS[stage(name).kind] or changes.get("nonce", NONCE) != NONCE
    expected = "missing" if unseen and cls in ("malformed", "foreign") else cls
    assert outcome.cls == expected, outcome.errors


MUST_ANSWER = {
    # answers to the open findings F1 and F2 → class, the telling part
    "both answered": ([("F1", "fixed"), ("F2", "deferred")], "accepted", ""),
    "one forgotten": ([("F1", "fixed")], "malformed", "finding F2 is not answered"),
    "none answered": ([], "malformed", "finding F1 is not answered"),
    "one answered twice": ([("F1", "fixed"), ("F2", "fixed"), ("F2", "disputed")], "malformed", "F2 is answered twice"),
    "an unknown answer": ([("F1", "fixed"), ("F2", "ignored")], "malformed", "responses.1.action"),
    "a number that is none": ([("F1", "fixed"), ("F02", "fixed")], "malformed", "responses.1.finding"),
}


@pytest.mark.parametrize(("answers", "cls", "told"), MUST_ANSWER.values(), ids=MUST_ANSWER.keys())
@pytest.mark.parametrize("name", ["analysis", "develop"])
def test_every_open_finding_is_answered_once(name: str, answers: list[tuple[str, str]], cls: str, told: str) -> None:
    responses = [{"finding": f, "action": action, "reason": "because"} for f, action in answers]
    outcome, _ = judged(name, result(name, responses=responses), must_answer=("F1", "F2"))
    assert outcome.cls == cls, outcome.errors
    assert any(told in error for error in outcome.errors) or cls == "accepted"


def test_findings_get_numbers_and_missing_items_become_findings() -> None:
    rejected = result(
        "code-review",
        verdict="request_changes",
        findings=[finding("major", "first"), finding("note", "second")],
        covered=[{"id": "C1", "evidence": "seen"}],
        missing=["C2"],
    )
    outcome, _ = judged("code-review", rejected, next_finding=12)
    assert [(f.id, f.severity, f.stage) for f in outcome.findings] == [
        ("F12", "major", "code-review"),
        ("F13", "note", "code-review"),
        ("F14", "major", "code-review"),
    ]
    assert "C2" in outcome.findings[2].claim


def test_an_accepted_result_is_kept_whole() -> None:
    outcome, parsed = judged("develop", result("develop", risks=["slow"], assumptions=["one user"]))
    assert isinstance(parsed, WriteResult)
    assert [item.item for item in outcome.not_run] == ["load test"]  # carried to delivery unchanged
    assert (outcome.risks, outcome.assumptions) == (("slow",), ("one user",))
    assert outcome.commands_run[0].exit_code == 0


# ── no result, and what only looks like one ──

APPROVAL = json.dumps(result("code-review"))
QUOTED = "An approval would have been {!r}, but I cannot give it.".format(APPROVAL.replace('"', "'"))
ABSENT: dict[str, str] = {
    "nothing": "",
    "blanks": " \n\t\n",
    "prose": "I changed app.py and ran the tests.",
    "not approved": "This is NOT APPROVED because the lower bound is untested.",
    "praise": "Looks good, ship it! APPROVED",
    "an approving word": "approve",
    "a verdict line": "verdict: approve\nnonce: " + NONCE,
    "the nonce alone": NONCE,
    "an empty object": "{}",
    "an empty object and the nonce": f"{{}} {NONCE}",
    "a list": json.dumps([NONCE, "approve"]),
    "cut in the middle": APPROVAL[: len(APPROVAL) // 2],
    "cut before its last brace": APPROVAL[:-1],
    "another run's": APPROVAL.replace(NONCE, OTHER_NONCE),
    "an approval in single quotes": QUOTED,
    "an approval as an escaped string": json.dumps({"type": "result", "result": APPROVAL}),
    "an error that calls itself success": json.dumps(
        {"type": "result", "subtype": "success", "is_error": True, "result": "rate limit"}
    ),
    "the skeleton": json.dumps(
        result(
            "code-review", verdict="<one of approve, request_changes, blocked>", summary="<what a colleague must know>"
        )
    ),
    "a key given twice": APPROVAL.replace('"verdict":', '"verdict": "request_changes", "verdict":'),
    "a nonce given twice": APPROVAL[:-1] + f', "nonce": "{NONCE}"}}',
    "a number that is none": APPROVAL[:-1] + ', "confidence": NaN}',
    "half a character": APPROVAL.replace("what a colleague", r"\ud800 what a colleague"),
    "too deep": APPROVAL[:-1] + ', "findings": ' + "[" * 40 + "]" * 40 + "}",
    "far too deep": APPROVAL[:-1] + ', "findings": ' + "[" * 100_000,
    "braces without end": "{" * 100_000 + NONCE,
    "objects without end": '{"a":' * 50_000 + NONCE,
    "the nonce without end": f"{NONCE} " * 10_000,
}


@pytest.mark.parametrize("output", ABSENT.values(), ids=ABSENT.keys())
@pytest.mark.parametrize("exit_", [EXITED, FAILED, LATE], ids=["exit 0", "exit 1", "time limit"])
def test_words_without_a_result_are_no_verdict(output: str, exit_: Exit) -> None:
    """BR-118, BR-121, BR-122, BR-125, BR-127, BR-162: neither a pass nor a rejection, whatever it exits with."""
    outcome, _ = judged("code-review", None, output, exit=exit_)
    assert outcome.cls == "missing"


@pytest.mark.parametrize("changed", [False, True], ids=["tree as it was", "tree changed"])
def test_a_developer_that_hands_in_nothing_has_not_finished(changed: bool) -> None:
    """BR-115, BR-122: exit 0 without a result, with work in the tree or without, is unfinished."""
    for exit_ in (EXITED, FAILED, LATE, Exit(status="signalled", code=9, ended=0)):
        outcome, _ = judged("develop", None, "", changed=changed, differs_from_head=changed, exit=exit_)
        assert outcome.cls == "missing"


@pytest.mark.parametrize("raw", [b"", b" \n", b"\n" * 5000], ids=["empty", "blank", "lines"])
def test_an_empty_file_is_no_result_and_hides_none_in_the_output(raw: bytes) -> None:
    assert judged("code-review", raw)[0].cls == "missing"
    assert judged("code-review", raw, APPROVAL)[0].verdict == "approve"


# ── reading: the file ──

NOISY = {
    "colour and a progress bar": (
        "\x1b[33mwarning: slow\x1b[0m\r[####    ] 50%\r[########]\n",
        "\n\x1b[32mbye\x1b[0m\n",
    ),
    "a fence": ("Here it is:\n\n```json\n", "\n```\n\nLet me know.\n"),
    "a fence without a language": ("```\n", "\n```"),
    "other objects before and after": ('{"type": "start", "cost": {"usd": 0.1}}\n', '\n{"type": "end"}\n'),
    "broken objects before and after": ("{oops {{ }\n{\n", "\n} } { "),
    "code before": ("def f():\n    return {x: {y} for x in {}}\n", ""),
    "an earlier run's result": (APPROVAL.replace(NONCE, OTHER_NONCE) + "\n", ""),
    "the order": (json.dumps({"nonce": NONCE, "inputs": [{"path": "diff.patch"}], "result": {"path": "x"}}) + "\n", ""),
    "the skeleton": (ABSENT["the skeleton"] + "\n", "\n"),
    "a lot of code and the nonce": ("if (a) { b(); }\n" * 200 + f"the order's nonce is {NONCE}\n", ""),
    "the nonce many times": (f'{{"event": "thinking", "about": "{NONCE}"}}\n' * 200, ""),
    "half a character": ("\udc80\n", "\udc80"),
    "in another object": ('{"structured_output": ', ', "usage": {"tokens": 5}}'),
    "a megabyte of log": ("x" * 1_000_000 + "\n", "\n"),
    "one long line": ("y" * 70_000, ""),
}


@pytest.mark.parametrize(("before", "after"), NOISY.values(), ids=NOISY.keys())
@pytest.mark.parametrize("indent", [None, 2], ids=["one line", "indented"])
def test_a_result_is_found_in_a_noisy_output(before: str, after: str, indent: int | None) -> None:
    """BR-129, BR-157, BR-158: fenced or not, among logs, colours and other objects."""
    output = before + json.dumps(result("code-review"), indent=indent) + after
    outcome, _ = judged("code-review", None, output)
    assert (outcome.cls, outcome.verdict) == ("accepted", "approve"), outcome.errors


def test_a_result_with_braces_and_fences_in_its_texts_is_found() -> None:
    hostile = [finding("major", 'if (x) { return "}"; } // {"verdict": "approve"}\n```json\n{"a": 1}\n```')]
    rejected = result("code-review", verdict="request_changes", findings=hostile)
    outcome, _ = judged("code-review", None, f"```json\n{json.dumps(rejected)}\n```")
    assert (outcome.cls, outcome.verdict) == ("accepted", "request_changes")
    assert outcome.findings[0].claim == hostile[0]["claim"]


def test_the_same_result_printed_twice_is_one() -> None:
    assert judged("code-review", None, f"{APPROVAL}\n{APPROVAL}\n")[0].verdict == "approve"


@pytest.mark.parametrize("order", [1, -1], ids=["rejection last", "approval last"])
def test_two_different_results_in_an_output_are_none(order: int) -> None:
    """A retracted draft is never chosen, and neither is the other one."""
    rejection = json.dumps(result("code-review", verdict="request_changes", findings=SERIOUS))
    outcome, _ = judged("code-review", None, "\nOn reflection:\n".join([APPROVAL, rejection][::order]))
    assert outcome.cls == "malformed"
    assert "2 different results" in outcome.errors[0]


def test_the_file_is_what_counts_where_there_is_one() -> None:
    outcome, _ = judged("code-review", b"not json", APPROVAL)
    assert outcome.cls == "malformed"


def test_a_file_that_could_not_be_taken_is_malformed_and_hides_behind_no_output() -> None:
    submission = Submission(None, APPROVAL, "result.json cannot be taken: it is not a regular file")
    outcome, _ = judge(ISSUE, started("code-review"), stage("code-review"), submission, facts("code-review"))
    assert outcome == Outcome(cls="malformed", errors=("result.json cannot be taken: it is not a regular file",))


FILES: dict[str, tuple[bytes, str]] = {
    # result files → the telling part of what is said
    "prose": (b"Looks good to me.", "the result is not JSON"),
    "an empty object": (b"{}", "issue is missing"),
    "a list": (f"[{APPROVAL}]".encode(), "the result is not a JSON object"),
    "a string": (b'"approve"', "the result is not a JSON object"),
    "null": (b"null", "the result is not a JSON object"),
    "two objects": (f"{APPROVAL}\n{APPROVAL}".encode(), "the result is not JSON: Extra data"),
    "a fence": (f"```json\n{APPROVAL}\n```".encode(), "the result is not JSON"),
    "a comment": (f"// mine\n{APPROVAL}".encode(), "the result is not JSON"),
    "a comma too many": (APPROVAL[:-1].encode() + b",}", "the result is not JSON"),
    "single quotes": (APPROVAL.replace('"', "'").encode(), "the result is not JSON"),
    "cut in the middle": (APPROVAL[: len(APPROVAL) // 2].encode(), "the result is not JSON"),
    "cut in a character": ('{"a": "ü'.encode()[:-1], "the result is not UTF-8"),
    "YAML": (b"verdict: approve\n", "the result is not JSON"),
    "a YAML alias bomb": (b"a: &a [x]\nb: &b [*a, *a]\n", "the result is not JSON"),
    "a key given twice": (
        APPROVAL.replace('"verdict":', '"verdict": "request_changes", "verdict":').encode(),
        "a key is given twice",
    ),
    "a key given twice inside": (
        APPROVAL.replace('"evidence":', '"id": "C2", "evidence":', 1).encode(),
        "a key is given twice",
    ),
    "a key given twice, once escaped": (
        APPROVAL.replace('"verdict":', r'"verdic\u0074": "request_changes", "verdict":').encode(),
        "a key is given twice",
    ),
    "NaN": (APPROVAL[:-1].encode() + b', "confidence": NaN}', "NaN is not JSON"),
    "Infinity": (APPROVAL[:-1].encode() + b', "confidence": -Infinity}', "-Infinity is not JSON"),
    "a number too large to be one": (APPROVAL[:-1].encode() + b', "confidence": 1e999}', "confidence"),
    "a number of ten thousand digits": (APPROVAL[:-1].encode() + b', "n": ' + b"9" * 10_000 + b"}", "not JSON"),
    "a depth bomb": (b'{"a":' * 50_000, f"nested deeper than {MOST_DEPTH}"),
    "a depth bomb of lists": (b"[" * 200_000, f"nested deeper than {MOST_DEPTH}"),
    "one level too deep": (b'{"a":' * 33 + b"1" + b"}" * 33, f"nested deeper than {MOST_DEPTH}"),
    "brackets in a text are no depth": (json.dumps({"a": '\\"[' * 50}).encode(), "issue is missing"),
    "300 kB": (json.dumps(result("code-review", summary="x" * 300_000)).encode(), f"more than {MOST_BYTES}"),
    "300 kB of blanks": (APPROVAL.encode() + b" " * 300_000, f"more than {MOST_BYTES}"),
    "half a character": (
        APPROVAL.replace("what a colleague", r"\ud800 what a colleague").encode(),
        "half a character",
    ),
    "half a character in a key": (APPROVAL[:-1].encode() + rb', "\udfff": 1}', "half a character"),
    "half a character, raw": (b'{"a": "\xed\xa0\x80"}', "the result is not UTF-8"),
    "UTF-16": (APPROVAL.encode("utf-16"), "the result is not UTF-8"),
    "Latin-1": ('{"summary": "für"}'.encode("latin-1"), "the result is not UTF-8"),
    "NUL bytes": (APPROVAL.encode() + b"\0" * 10, "the result is not JSON"),
    "a line break in a text": (APPROVAL.replace("what a", "what\na").encode(), "the result is not JSON"),
}


@pytest.mark.parametrize(("raw", "told"), FILES.values(), ids=FILES.keys())
def test_a_file_that_is_no_strict_json_object_is_malformed(raw: bytes, told: str) -> None:
    """BR-127: what is cut or empty fails loudly and never approves."""
    outcome, _ = judged("code-review", raw)
    assert outcome.cls == "malformed"
    assert any(told in error for error in outcome.errors), outcome.errors


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbf" + APPROVAL.encode(),
        APPROVAL.replace(", ", ",\r\n").encode() + b"\r\n",
        b"\n\n  " + APPROVAL.encode() + b"\n",
        json.dumps(result("code-review", summary="für 日本 🎉 \u202e"), ensure_ascii=False).encode(),
        json.dumps(result("code-review", summary="für 日本 🎉 \u202e")).encode(),
        json.dumps(dict(reversed(result("code-review").items()))).encode(),
    ],
    ids=["a byte-order mark", "CRLF", "blanks around", "text as it is", "text escaped", "keys in another order"],
)
def test_what_a_careful_agent_may_write_is_accepted(raw: bytes) -> None:
    assert judged("code-review", raw)[0].verdict == "approve"


@pytest.mark.parametrize("item", ["tests", "x" * 3_000, "x" * 30_000, "x" * 200_000], ids=len)
def test_a_missing_item_of_any_length_is_judged(item: str) -> None:
    """A plan review has no list to hold its items against; its words must not take the engine down."""
    rejection = result("plan-review", verdict="request_changes", missing=[item])
    outcome, _ = judged("plan-review", rejection)
    assert outcome.cls in ("accepted", "malformed")
    assert all(len(error) < 3_000 for error in outcome.errors)


@pytest.mark.parametrize(
    "changes",
    [{"verdict": "x" * 200_000}, {"y" * 200_000: 1}, {"covered": [{"id": "z" * 200_000, "evidence": ""}]}],
    ids=["verdict", "key", "item"],
)
def test_what_is_said_about_a_result_stays_short(changes: dict[str, Any]) -> None:
    """Errors go into the journal, the next prompt and the person's status line."""
    outcome, _ = judged("code-review", result("code-review", **changes))
    assert outcome.cls == "malformed"
    assert sum(len(error) for error in outcome.errors) < 20_000


# ── checks ──


def ran(command: str, exit_code: int | None = 0, timed_out: bool = False) -> CheckRun:
    return CheckRun(command=command, exit_code=exit_code, seconds=1.0, timed_out=timed_out, tail="the last lines")


CHECKS: dict[str, tuple[tuple[CheckRun, ...], Exit, str, str]] = {
    "all pass": ((ran("a"), ran("b")), EXITED, "accepted", "pass"),
    "one fails": ((ran("a"), ran("b", 3)), EXITED, "accepted", "fail"),
    "by a signal": ((ran("a", -9),), EXITED, "accepted", "fail"),
    "none configured": ((), EXITED, "accepted", "none"),
    "none run, and exit 1": ((), FAILED, "accepted", "error"),
    "one at its time limit": ((ran("a"), ran("b", None, True)), EXITED, "accepted", "error"),
    "one at its time limit, with a code": ((ran("a", 0, True),), EXITED, "accepted", "error"),
    "one cannot start": ((ran("a", 127),), EXITED, "accepted", "error"),
    "one may not start": ((ran("a", 126),), EXITED, "accepted", "error"),
    "one fails and one cannot start": ((ran("a", 1), ran("b", None)), EXITED, "accepted", "error"),
    "the whole at its time limit": ((ran("a"),), LATE, "accepted", "error"),
    "the whole by a signal": ((ran("a"),), Exit(status="signalled", code=9, ended=0), "accepted", "error"),
    "lost after all passed": ((ran("a"),), Exit(status="lost", ended=0), "missing", ""),
    "set-up failed": ((), Exit(status="setup", ended=0, detail="npm ci"), "setup", ""),
    "cancelled": ((ran("a"),), Exit(status="stopped", ended=0), "stopped", ""),
}


@pytest.mark.parametrize(("runs", "exit_", "cls", "verdict"), CHECKS.values(), ids=CHECKS.keys())
def test_checks_are_judged_by_their_exit_codes(runs: tuple[CheckRun, ...], exit_: Exit, cls: str, verdict: str) -> None:
    """A time limit is an error and no failure; no checks are `none`, never a pass."""
    outcome = judge_checks(runs, exit_, "verify", 5)
    assert (outcome.cls, outcome.verdict or "") == (cls, verdict)
    failed = [run.command for run in runs if run.exit_code]
    assert [f.id for f in outcome.findings] == [f"F{5 + i}" for i in range(len(failed) if verdict == "fail" else 0)]


def test_a_failing_check_becomes_a_finding_of_bounded_size() -> None:
    huge = CheckRun(command="x" * 50_000, exit_code=1, seconds=1.0, timed_out=False, tail="y" * 100_000)
    outcome = judge_checks((huge,), EXITED, "verify", 1)
    assert outcome.findings[0].evidence.endswith("y" * 100)
    assert len(outcome.model_dump_json(include={"findings"})) < 30_000


# ── mutations ──

JUNK: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1.0,
        1e300,
        10**30,
        "",
        "approve",
        "yes",
        "C1",
        "F1",
        NONCE,
        COMMIT,
        PLAN,
        "\0",
        "\ud800",
    ),
    *([], {}, [[]], [{}], ["C1", "C2"], {"id": "C1"}, [finding()], "x" * 3_000),
)
MUTATE: tuple[Callable[[Random, Any], Any], ...] = (
    lambda random, value: random.choice(JUNK),
    lambda random, value: [value, value],
    lambda random, value: {"verdict": value},
    lambda random, value: str(value),
    lambda random, value: value[:-1] if isinstance(value, str | list) else value,
    lambda random, value: value * 2 if isinstance(value, str | list) else value,
)


def mutated(random: Random, value: Any) -> Any:
    """The value with something in it changed, taken out, added or swapped, at any depth."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice([*value])
        match random.randrange(5):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return value | {random.choice([key.upper(), key + "s", "verdict", "findings", "missing"]): value[key]}
            case 2:
                return value | {key: value[random.choice([*value])]}
            case _:
                return value | {key: mutated(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], mutated(random, value[at]), *value[at + random.randrange(2) :]]
    return random.choice(MUTATE)(random, value)


def scratched(random: Random, raw: bytes) -> bytes:
    """The bytes with a few of them changed, cut out, doubled or put in."""
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(raw) + 1)
        span = raw[at : at + random.choice([1, 2, 10, 100])]
        put = random.choice(
            [b"", span * 2, bytes([random.randrange(256)]), b'"', b"{", b"}", b"[", b",", b"\\", b"\xff"]
        )
        raw = raw[:at] + put + raw[at + len(span) :]
    return raw


def seeds(name: str) -> list[dict[str, Any]]:
    """Valid results of the stage to begin from."""
    if stage(name).kind == "review":
        rejected = {"verdict": "request_changes", "findings": [finding("major"), finding("note")]}
        return [result(name), result(name, findings=[finding("minor")]), result(name, **rejected)]
    asked = {"verdict": "needs_input", "questions": ["which?"]}
    answered = {"responses": [{"finding": "F1", "action": "fixed", "reason": "done"}]}
    return [result(name), result(name, **asked), result(name, **answered)]


def assert_honest(name: str, parsed: Any, raw: bytes | None) -> None:
    """What was accepted holds by rules written down here once more, apart from the code under test."""
    model = ReviewResult if stage(name).kind == "review" else WriteResult if stage(name).writes else AgentResult
    assert type(parsed) is model
    identity = (parsed.issue, parsed.stage, parsed.run, parsed.nonce)
    assert identity == (ISSUE, name, run_name(6, name), NONCE)
    assert parsed.verdict in VERDICTS[stage(name).kind]
    assert 1 <= len(parsed.summary) <= 2_000
    again = json.loads(parsed.model_dump_json(by_alias=True))
    if raw is not None:  # nothing was left out, filled up or converted on the way
        given = json.loads(raw.decode("utf-8-sig"))
        assert given.keys() <= again.keys()
        assert {key: again[key] for key in given}.keys() == given.keys()
        assert all(same(given[key], again[key]) for key in given)
    if parsed.verdict == "approve":
        assert parsed.reviewed == facts(name).target
        assert not parsed.missing
        assert not [f for f in parsed.findings if f.severity in ("blocker", "major")]
        if stage(name).checklist == "partition":
            placed = [c.id for c in (*parsed.covered, *parsed.not_applicable)]
            assert sorted(placed) == sorted(facts(name).checklist)
    if parsed.verdict == "done":
        assert [a.name for a in parsed.artifacts] == [*stage(name).produces]


def same(given: Any, kept: Any) -> bool:
    """Equal with the types equal, too; a key that was not given may be there with its default."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return given.keys() <= kept.keys() and all(same(given[key], kept[key]) for key in given)
    if isinstance(given, list) and isinstance(kept, list):
        return len(given) == len(kept) and all(map(same, given, kept))
    return type(given) is type(kept) and bool(given == kept)


EXITS = (EXITED, FAILED, LATE, Exit(status="signalled", code=-9, ended=0), Exit(status="lost", ended=0))
MANY = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else []) for seed in range(20)]


@pytest.mark.parametrize("seed", MANY)
def test_no_mutation_of_a_result_raises_or_passes_for_an_honest_approval(seed: int) -> None:
    """20,000 mutated results in all, by file and by output, of runs that ended well and of others."""
    random = Random(f"mutations {seed}")
    seen: dict[str, int] = {}
    for _ in range(1_000):
        name = random.choice([*STAGES])
        value = random.choice(seeds(name))
        for _ in range(random.randrange(3)):
            value = mutated(random, value)
        raw = json.dumps(value, ensure_ascii=random.random() < 0.8).encode(errors="surrogatepass")
        if random.random() < 0.4:
            raw = scratched(random, raw)
        by_file = random.random() < 0.6
        text = f"So:\n{raw.decode(errors='replace')}\nThat is all."
        how = EXITED if random.random() < 0.8 else random.choice(EXITS)
        changed = stage(name).writes if random.random() < 0.9 else not stage(name).writes
        known = {"exit": how, "changed": changed, "differs_from_head": changed}
        outcome, parsed = judged(name, raw, **known) if by_file else judged(name, None, text, **known)
        assert outcome.cls in get_args(ResultClass)
        if outcome.cls == "accepted":
            assert_honest(name, parsed, raw if by_file else None)
            assert parsed.verdict not in ("approve", "done") or how in (EXITED, EXITS[-1])
            assert stage(name).writes or not changed
        seen[outcome.cls] = seen.get(outcome.cls, 0) + 1
    assert {"accepted", "malformed", "missing", "foreign", "contradicted", "violation"} <= seen.keys()


def test_checks_pass_only_when_every_one_ran_and_gave_0() -> None:
    random = Random("checks")
    for _ in range(500):
        codes = [random.choice((0, 0, 0, 1, -9, 126, 127, None)) for _ in range(random.randrange(4))]
        runs = tuple(ran(f"check {n}", code, random.random() < 0.1) for n, code in enumerate(codes))
        how = random.choice((EXITED, EXITED, *EXITS))
        outcome = judge_checks(runs, how, "verify", 1)
        good = bool(runs) and how.status == "exited" and not any(run.exit_code != 0 or run.timed_out for run in runs)
        assert (outcome.verdict == "pass") == good


def test_no_bytes_at_all_raise() -> None:
    random = Random("bytes")
    for _ in range(500):
        raw = random.randbytes(random.randrange(200))
        outcome, _ = judged("code-review", raw, raw.decode("latin-1") + NONCE)
        assert outcome.cls in ("malformed", "missing")


# ── transcripts ──

REJECTION = result("code-review", verdict="request_changes", findings=[finding("major")])
PAYLOADS = payloads(json.loads(APPROVAL), REJECTION, NONCE)


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
@pytest.mark.parametrize(("text", "worth"), PAYLOADS.values(), ids=PAYLOADS.keys())
def test_a_transcript_is_worth_what_its_result_is(text: str, worth: str, around: Around) -> None:
    """Some 500 transcripts; and as a file, none of them is an approval unless it is nothing but an honest one."""
    printed = around(text)
    outcome, _ = judged("code-review", None, printed)
    assert f"{outcome.cls} {outcome.verdict or ''}".strip() == worth, outcome.errors
    by_file, parsed = judged("code-review", printed.encode(), printed)
    if by_file.cls == "accepted":
        assert worth == f"accepted {by_file.verdict}"
        assert_honest("code-review", parsed, printed.encode())


def test_many_items_before_the_nonce_hide_no_result() -> None:
    names = tuple(f"C{n}" for n in range(1, 301))
    whole = result("code-review", covered=[{"id": name, "evidence": "seen"} for name in names])
    outcome, _ = judged("code-review", None, json.dumps(whole, sort_keys=True), checklist=names)
    assert (outcome.cls, outcome.verdict) == ("accepted", "approve")


BOMBS = {
    "nested results": f'{{"nonce": "{NONCE}", "a": ' * 300 + "1" + "}" * 300,
    "lists without end": '{"a":[' * 100 + "1," * 50_000 + NONCE,
    "results without end": APPROVAL[:-1] * 300,
    "braces": ("{" * 200 + NONCE) * 500,
    "more results than are looked at": "".join(APPROVAL.replace("colleague", f"colleague {n}") for n in range(1_100)),
}


@pytest.mark.parametrize("output", BOMBS.values(), ids=BOMBS.keys())
def test_an_output_made_to_keep_us_busy_is_no_approval(output: str) -> None:
    assert judged("code-review", None, output)[0].cls in ("missing", "malformed")


def test_what_was_not_looked_at_any_more_may_hold_another_result() -> None:
    noise = f'{{"about": "{NONCE}"}}\n' * 1_100
    outcome, _ = judged("code-review", None, json.dumps(REJECTION) + noise + APPROVAL)
    assert outcome.cls == "malformed"
