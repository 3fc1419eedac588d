"""What a submitted result is worth: claim against facts, exactly one class for each, decided without any model."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from issueflow.models import (
    VERDICTS,
    AgentResult,
    CheckRun,
    Exit,
    Finding,
    Outcome,
    Problem,
    Result,
    ReviewResult,
    Stage,
    Started,
    WriteResult,
)

MOST_BYTES = 256 * 1024
MOST_DEPTH = 32
MOST_TRIES = 1_024  # opening braces of an output from which an object is read; with sorted keys the nonce comes late
MOST_WORDS = 500
STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
OBJECT = re.compile(r'\{\s*"')


@dataclass(frozen=True)
class Submission:
    """What a run handed in: the result file, the CLI's final output, why the file could not be taken, if so, and the
    last words the agent printed, for the person who wonders why there is none."""

    file: bytes | None
    output: str = ""
    unreadable: str | None = None
    last_words: str = ""


@dataclass(frozen=True)
class Facts:
    """What the engine itself knows about a run; `target` is what a reviewer had to read, in the words of the order.

    `failed`: its CLI's last word was a failure; `problem`: what it was, as far as its output tells.
    """

    exit: Exit
    changed: bool
    differs_from_head: bool
    unfinished: str | None
    target: str | None
    checklist: tuple[str, ...]
    next_finding: int
    failed: bool = False
    problem: Problem | None = None


class _Refused(Exception):
    """The result is of class `cls`, for the reasons in `errors`."""

    def __init__(self, cls: str, *errors: str) -> None:
        super().__init__(cls)
        self.cls = cls
        self.errors = tuple(error if len(error) <= MOST_WORDS else error[:MOST_WORDS] + " …" for error in errors[:20])


def judge(
    issue: str, started: Started, stage: Stage, submission: Submission, facts: Facts
) -> tuple[Outcome, Result | None]:
    """The outcome of a run, and the parsed result when it was accepted; a check's outcome comes from `judge_checks`."""
    if facts.exit.status == "stopped":
        return Outcome(cls="stopped", errors=("it was cancelled",)), None
    if facts.exit.status in ("setup", "unstarted"):
        return Outcome(cls="setup", errors=(facts.exit.detail,)), None
    if facts.changed and not stage.writes:
        return Outcome(cls="violation", errors=("it changed files and may only read",)), None
    try:
        result = _parse(issue, started, stage, submission, facts)
        _compare(started, stage, result, facts)
    except _Refused as refused:
        return _refused(refused, facts.problem), None
    return _accepted(started, result, facts), result


def _refused(refused: _Refused, problem: Problem | None) -> Outcome:
    """A run without a usable result; what lay outside of its work is not held against it."""
    if problem and problem.is_outside and refused.cls != "foreign":
        return Outcome(cls="unavailable", errors=(problem.say(),), problem=problem)
    errors = (*refused.errors, problem.say()) if problem else refused.errors
    return Outcome.model_validate({"cls": refused.cls, "errors": errors, "problem": problem})


def judge_checks(runs: tuple[CheckRun, ...], exit: Exit, stage: str, next_finding: int) -> Outcome:
    """The outcome of a check stage from its commands' exit codes: none run is `none`, never a pass."""
    if exit.status == "stopped":
        return Outcome(cls="stopped", errors=("it was cancelled",))
    if exit.status in ("setup", "unstarted"):
        return Outcome(cls="setup", errors=(exit.detail,))
    if exit.status == "lost":  # nobody saw how it ended; the commands can be run again
        return Outcome(cls="missing", errors=("the checks did not end by themselves: lost",))
    unsure = [run for run in runs if run.timed_out or run.exit_code is None or run.exit_code in (126, 127)]
    failed = [run for run in runs if run.exit_code != 0 and run not in unsure]
    if exit.status != "exited" or (exit.code and not runs):
        return Outcome(cls="accepted", verdict="error", summary=f"the checks did not end by themselves: {exit.status}")
    if not runs:
        return Outcome(cls="accepted", verdict="none", summary="no check commands are configured: not run")
    if unsure:
        names = ", ".join(f"{run.command} ({_how(run)})" for run in unsure)
        return Outcome(cls="accepted", verdict="error", summary=f"could not be checked: {names}", checks=runs)
    findings = tuple(_check_finding(run, stage, next_finding + i) for i, run in enumerate(failed))
    verdict = "fail" if failed else "pass"
    summary = f"{len(runs) - len(failed)} of {len(runs)} checks passed"
    return Outcome(cls="accepted", verdict=verdict, summary=summary, checks=runs, findings=findings)


def _how(run: CheckRun) -> str:
    if run.timed_out:
        return "ended at its time limit"
    return "could not start" if run.exit_code is None else f"exit {run.exit_code}: could not start"


def _check_finding(run: CheckRun, stage: str, number: int) -> Finding:
    return Finding(
        id=f"F{number}",
        stage=stage,
        severity="blocker",
        where=f"check: {run.command}"[:2_000],
        claim=f"`{run.command}` ends with exit code {run.exit_code}"[:20_000],
        evidence=run.tail[-4_000:],
        fix="make the command pass without weakening it",
    )


# ── reading a result ──


def _parse(issue: str, started: Started, stage: Stage, submission: Submission, facts: Facts) -> Result:
    data = _load(started, stage, submission)
    _identify(issue, started, data)
    model: type[Result] = ReviewResult if stage.kind == "review" else WriteResult if stage.writes else AgentResult
    try:
        # Back through JSON text: strict mode takes a list for a tuple only there.
        result = model.model_validate_json(json.dumps(data))
    except ValidationError as invalid:
        raise _Refused("malformed", *_sentences(invalid)) from invalid
    except (ValueError, RecursionError) as invalid:
        raise _Refused("malformed", str(invalid)) from invalid
    if result.verdict not in VERDICTS[stage.kind]:
        raise _Refused("malformed", f"verdict is {result.verdict!r}, not one of {', '.join(VERDICTS[stage.kind])}")
    return result


def _load(started: Started, stage: Stage, submission: Submission) -> dict[str, Any]:
    if submission.unreadable:
        raise _Refused("malformed", submission.unreadable)
    if submission.file is not None and submission.file.strip():
        return load_strictly(submission.file)
    found = list(_in_output(submission.output, started.nonce, VERDICTS[stage.kind]))
    if not found:
        words = f"it said last: {submission.last_words}" if submission.last_words else "it printed nothing"
        raise _Refused("missing", f"no result file was written and the output holds no result; {words}")
    if len(found) > 1:
        raise _Refused("malformed", "the output holds 2 different results, if not more")
    return found[0]


def load_strictly(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`, or a refusal: too big, too deep, not UTF-8, a repeated key, NaN, not an object."""
    if len(raw) > MOST_BYTES:
        raise _Refused("malformed", f"the result is {len(raw)} bytes, more than {MOST_BYTES}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Refused("malformed", f"the result is not UTF-8: {error.reason} at byte {error.start}") from error
    if _depth(text) > MOST_DEPTH:
        raise _Refused("malformed", f"the result is nested deeper than {MOST_DEPTH}")
    try:
        value = json.loads(text, object_pairs_hook=_no_repeats, parse_constant=_no_constant)
        text.encode("utf-8")
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Refused("malformed", "the result holds half a character (a lone surrogate)") from error
    except (ValueError, RecursionError) as error:
        raise _Refused("malformed", f"the result is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _Refused("malformed", "the result is not a JSON object")
    return value


def _depth(text: str) -> int:
    """How deep brackets nest outside of strings: counted, not parsed, so that no parser meets a bomb."""
    deepest = depth = 0
    for match in STRING_OR_BRACKET.finditer(text):
        if match[0] in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in ("]", "}"):
            depth -= 1
    return deepest


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        raise ValueError("a key is given twice")
    return seen


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _in_output(output: str, nonce: str, verdicts: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The results with this run's nonce in a CLI's final output, two at most; an echoed prompt's skeleton is none.

    Each place where the nonce stands is tried from the nearest opening brace backwards, each brace once and a bounded
    number of them. Refused when one result can be read and another, that names this run and a verdict too, cannot:
    which of them is meant is unclear.
    """
    found: list[dict[str, Any]] = []
    rest: list[str] = []  # the output without the objects that could be read, from its end
    seen: set[int] = set()
    tries, end, at = 0, len(output), output.rfind(nonce)
    while at != -1 and tries < MOST_TRIES and len(found) < 2:
        start = output.rfind("{", 0, at)
        while start != -1 and start not in seen and tries < MOST_TRIES and at - start < MOST_BYTES:
            seen.add(start)
            looks = OBJECT.match(output, start) is not None
            tries += looks
            value, after = _object_at(output, start, nonce) if looks else (None, start)
            if value is not None:
                if value.get("verdict") in verdicts and value not in found:
                    found.append(value)
                if after <= end:
                    rest.append(output[after:end])
                    end = start
                break
            start = output.rfind("{", 0, start)
        at = output.rfind(nonce, 0, at)
    rest.append(output[:end])
    if len(found) == 1 and _claims(" ".join(rest), nonce, verdicts):
        raise _Refused("malformed", "beside the result, the output holds one of this run that cannot be read")
    yield from found


def _claims(text: str, nonce: str, verdicts: tuple[str, ...]) -> bool:
    """Does what looks like a part of a result with this nonce stand in `text`, and a verdict of this stage?"""
    verdict = rf'"verdict"\s*:\s*"({"|".join(verdicts)})"'
    return bool(re.search(rf'"nonce"\s*:\s*"{re.escape(nonce)}"', text) and re.search(verdict, text))


def _object_at(text: str, start: int, nonce: str) -> tuple[dict[str, Any] | None, int]:
    """The object with this nonce that begins at `start`, and where it ends; None when there is none to be relied on."""
    decoder = json.JSONDecoder(object_pairs_hook=_no_repeats, parse_constant=_no_constant)
    try:
        value, end = decoder.raw_decode(text, start)
        if isinstance(value, dict) and value.get("nonce") == nonce:
            return load_strictly(text[start:end].encode()), end
    except (ValueError, RecursionError, _Refused):
        pass
    return None, start


def _identify(issue: str, started: Started, data: dict[str, Any]) -> None:
    expected = {"issue": issue, "stage": started.stage, "run": started.name, "nonce": started.nonce}
    for key, value in expected.items():
        if key not in data:
            raise _Refused("malformed", f"{key} is missing")
        if data[key] != value:
            raise _Refused("foreign", f"{key} is {str(data[key])[:80]!r}, this run's is {value!r}")


def _sentences(invalid: ValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in error['loc']) or 'result'}: {error['msg']}" for error in invalid.errors()[:20]
    ]


# ── claim against fact ──


def _compare(started: Started, stage: Stage, result: Result, facts: Facts) -> None:
    malformed = _form_errors(started, stage, result, facts)
    if malformed:
        raise _Refused("malformed", *malformed)
    contradicted = _contradictions(stage, result, facts)
    if contradicted:
        raise _Refused("contradicted", *contradicted)


def _form_errors(started: Started, stage: Stage, result: Result, facts: Facts) -> list[str]:
    match result:
        case ReviewResult():
            return _review_errors(stage, result, facts)
        case WriteResult():
            return [*_agent_errors(started, stage, result), *_command_errors(result)]
        case AgentResult():
            return _agent_errors(started, stage, result)


def _agent_errors(started: Started, stage: Stage, result: AgentResult) -> list[str]:
    errors = []
    if result.verdict == "done":
        given = [artifact.name for artifact in result.artifacts]
        errors += [f"artifact {name} is missing" for name in stage.produces if name not in given]
        answered = [response.finding for response in result.responses]
        errors += [f"finding {name} is not answered" for name in started.must_answer if name not in answered]
        errors += [f"finding {name} is answered twice" for name in sorted(set(answered)) if answered.count(name) > 1]
        if stage.checklist == "define" and not result.checklist:
            errors.append("the checklist is missing")
    errors += [
        f"artifact {a.name} is not one this stage produces" for a in result.artifacts if a.name not in stage.produces
    ]
    errors += [
        f"artifact {a.name} needs a path or a text" for a in result.artifacts if (a.path is None) == (a.text is None)
    ]
    if result.checklist and stage.checklist != "define":
        errors.append("this stage does not define the checklist")
    errors += _repeated("artifact", [artifact.name for artifact in result.artifacts])
    errors += _repeated("checklist item", [item.id for item in result.checklist])
    if result.verdict == "needs_input" and not (result.questions or result.decisions):
        errors.append("needs_input asks no question")
    return errors


def _command_errors(result: WriteResult) -> list[str]:
    failing = [run.command for run in result.commands_run if run.exit_code != 0]
    if result.verdict == "done" and failing and not result.open_problems:
        return [f"done with a failing command and no open problem: {failing[0]}"]
    return []


def _review_errors(stage: Stage, result: ReviewResult, facts: Facts) -> list[str]:
    errors = []
    serious = [finding for finding in result.findings if finding.severity in ("blocker", "major")]
    if result.verdict == "approve" and serious:
        errors.append(f"approve with an open {serious[0].severity} finding: {serious[0].claim[:200]}")
    if result.verdict == "approve" and result.missing:
        errors.append(f"approve while {', '.join(result.missing)} is missing")
    if result.verdict == "request_changes" and not (result.findings or result.missing):
        errors.append("request_changes names no finding and no missing item")
    if stage.checklist == "partition":
        errors += _partition_errors(result, facts.checklist)
    return errors


def _partition_errors(result: ReviewResult, checklist: tuple[str, ...]) -> list[str]:
    if result.verdict == "blocked":
        return []
    placed = [*(c.id for c in result.covered), *result.missing, *(n.id for n in result.not_applicable)]
    return [
        *(f"checklist item {name} is not classified" for name in checklist if name not in placed),
        *(f"checklist item {name} does not exist" for name in placed if name not in checklist),
        *_repeated("checklist item", placed),
    ]


def _repeated(what: str, names: list[str]) -> list[str]:
    return [f"{what} {name} is given twice" for name in sorted(set(names)) if names.count(name) > 1]


def _contradictions(stage: Stage, result: Result, facts: Facts) -> list[str]:
    """Where the claim is against what the engine knows; `blocked` and the like claim nothing that facts could deny."""
    errors = []
    if result.verdict in ("done", "approve") and facts.exit.status not in ("exited", "finished", "lost"):
        errors.append(f"it says {result.verdict} but was ended: {facts.exit.status} {facts.exit.detail}".strip())
    if result.verdict in ("done", "approve") and facts.exit.status == "exited" and facts.exit.code:
        errors.append(f"it says {result.verdict} but the agent ended with exit code {facts.exit.code}")
    if result.verdict in ("done", "approve") and facts.failed:
        what = facts.problem.say() if facts.problem else "it did not say why"
        errors.append(f"it says {result.verdict} but its CLI told of a failure: {what}")
    if isinstance(result, ReviewResult) and result.verdict != "blocked" and result.reviewed != facts.target:
        errors.append(f"it reviewed {result.reviewed[:100]!r}, the target is {facts.target!r}")
    if isinstance(result, WriteResult) and result.verdict == "done":
        answered = bool(result.responses) and all(r.action != "fixed" for r in result.responses)
        if not facts.differs_from_head and not result.no_change and not answered:
            errors.append("it says done, but nothing was changed and no reason is given (no_change)")
        if facts.unfinished:
            errors.append(f"it says done, but left an unfinished {facts.unfinished} behind")
    return errors


def _accepted(started: Started, result: Result, facts: Facts) -> Outcome:
    match result:
        case ReviewResult():
            findings = tuple(
                Finding(id=f"F{facts.next_finding + i}", stage=started.stage, **claimed.model_dump())
                for i, claimed in enumerate(result.findings)
            )
            findings += tuple(
                _missing_item(started.stage, item, facts.next_finding + len(findings) + i)
                for i, item in enumerate(result.missing)
            )
            return Outcome(
                cls="accepted",
                verdict=result.verdict,
                summary=result.summary,
                reviewed=result.reviewed,
                findings=findings,
                covered=result.covered,
                missing=result.missing,
                not_applicable=result.not_applicable,
            )
        case AgentResult():
            return Outcome(
                cls="accepted",
                verdict=result.verdict,
                summary=result.summary,
                checklist=result.checklist,
                questions=result.questions,
                decisions=result.decisions,
                risks=result.risks,
                assumptions=result.assumptions,
                responses=result.responses,
                open_problems=result.open_problems if isinstance(result, WriteResult) else (),
                not_run=result.not_run if isinstance(result, WriteResult) else (),
                no_change=result.no_change if isinstance(result, WriteResult) else None,
                commands_run=result.commands_run if isinstance(result, WriteResult) else (),
            )


def _missing_item(stage: str, item: str, number: int) -> Finding:
    """A checklist item that a reviewer did not see fulfilled is a finding like any other: it must be answered."""
    return Finding(
        id=f"F{number}",
        stage=stage,
        severity="major",
        where=f"checklist {item}"[:2_000],
        claim=f"checklist item {item} is not covered",
        evidence="the reviewer lists it as missing",
        fix="fulfil the item and show how one can see it",
    )
