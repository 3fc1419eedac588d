"""What a run is told: its order, its prompt and its inputs, written into the exchange folder of its worktree."""

import json
import shutil
from pathlib import Path
from typing import Any

from issueflow import prompts
from issueflow.engine.hands import Hands
from issueflow.errors import Damaged
from issueflow.files import replace_file, to_json, write_file
from issueflow.git import review, worktrees
from issueflow.git.worktrees import Place
from issueflow.machine import Position
from issueflow.models import (
    RESULT_SCHEMA,
    RUN_FOLDER,
    VERDICTS,
    AgentResult,
    Finding,
    Result,
    ReviewResult,
    Stage,
    Started,
    WriteResult,
    order_document,
)
from issueflow.prompts import Fence, Input
from issueflow.store.issue import IssueFolder, sha256

OUTPUTS = "outputs"  # of a run without a usable result, for the one that is asked for the result only


def hand_over(hands: Hands, folder: IssueFolder, position: Position, started: Started, run: Path, place: Place) -> None:
    """Write order, prompt and inputs of the run into its worktree, and keep copies of the first two in its folder."""
    home = place.path / RUN_FOLDER
    home.mkdir()
    write_file(home / ".gitignore", "*\n")
    stage = position.workflow.stages[started.stage]
    if stage.kind == "check":
        replace_file(run / "prompt.md", "")
        return
    found = _inputs(hands, folder, position, started, stage)
    files = {name: hands.secrets.redact(data) for name, data in found.items()}
    for name, data in files.items():
        write_file(home / name, data)
    _previous_outputs(folder, position, started, stage, home)
    order = _order(position, started, stage, files)
    prompt = _prompt(hands, position, started, stage, files, order)
    for name, text in (("order.json", to_json(order)), ("prompt.md", prompt)):
        data = hands.secrets.redact(text.encode())
        replace_file(run / name, data)
        write_file(home / name, data)


def _previous_outputs(folder: IssueFolder, position: Position, started: Started, stage: Stage, home: Path) -> None:
    """A continuation finds again what the run before it had written for the stage's documents."""
    if not started.continuation:
        return
    earlier = folder.run(position.runs[-2].started.name) / OUTPUTS
    for name in stage.produces:
        if (earlier / name).is_file():
            shutil.copyfile(earlier / name, home / name)


def _inputs(hands: Hands, folder: IssueFolder, position: Position, started: Started, stage: Stage) -> dict[str, bytes]:
    """What the run reads, by file name; reviewers always get requirement, constraints and target."""
    wanted = dict.fromkeys(stage.inputs)
    if stage.kind == "review":
        wanted = dict.fromkeys(
            ("requirement", "constraints", stage.target or "diff", *stage.inputs, "checklist", "earlier")
        )
    found: dict[str, bytes] = {}
    for name in wanted:
        found |= _input(hands, folder, position, started, name)
    return found


def _input(hands: Hands, folder: IssueFolder, position: Position, started: Started, name: str) -> dict[str, bytes]:
    match name:
        case "requirement":
            return {"requirement.md": _requirement(folder, position)}
        case "constraints":
            path = hands.project / ".issueflow" / "context" / "constraints.md"
            return {"constraints.md": path.read_bytes()} if path.is_file() else {}
        case "diff":
            return {
                "diff.stat": review.stat(hands.repository, position.base, started.base),
                "diff.patch": review.patch(hands.repository, position.base, started.base),
            }
        case "checklist":
            lines = "".join(f"- {item.id}: {item.text} (from {item.source})\n" for item in position.checklist)
            return {"checklist.md": lines.encode()} if lines else {}
        case "checks":
            failed = [run for run in position.checks if run.exit_code != 0]
            text = "".join(f"## {run.command}\n\nexit code {run.exit_code}\n\n{run.tail}\n" for run in failed)
            return {"checks.md": text.encode(errors="replace")} if failed else {}
        case "earlier":
            return _earlier_findings(position, started.stage)
        case "feedback" | "findings":
            return {}  # stand in the prompt itself, each between its own fence
        case _:
            document = position.current(name)
            return {name: folder.document(name, document.version).read_bytes()} if document else {}


def _requirement(folder: IssueFolder, position: Position) -> bytes:
    path = folder.requirement(position.requirement.version)
    data = path.read_bytes() if path.exists() else b""
    if sha256(data) != position.requirement.sha256:
        sentence = f"{path} is not the requirement that was given; another one is given with `issueflow amend`"
        raise Damaged(sentence, f"issueflow resume {folder.name} --restore")
    return data


def _earlier_findings(position: Position, stage: str) -> dict[str, bytes]:
    """A reviewer's own earlier findings with the author's answers."""
    answers = {response.finding: response for response in position.responses}
    lines = []
    for run in position.runs:
        if run.ended and run.started.stage == stage and run.ended.outcome.cls == "accepted":
            for finding in run.ended.outcome.findings:
                answer = answers.get(finding.id)
                said = f"{answer.action}: {answer.reason}" if answer else "not answered"
                lines.append(
                    f"- {finding.id} ({finding.severity}) {finding.where}: {finding.claim}\n  answer: {said}\n"
                )
    return {"findings.md": "".join(lines).encode()} if lines else {}


def reviewed(position: Position, started: Started) -> str | None:
    """What a reviewer must say it read, word for word: the head commit, or the document's name, version and digest."""
    stage = position.workflow.stages[started.stage]
    if stage.kind != "review":
        return None
    if started.target:
        return f"{started.target.name} v{started.target.version} {started.target.sha256}"
    return started.base


def _order(position: Position, started: Started, stage: Stage, files: dict[str, bytes]) -> dict[str, Any]:
    return order_document(
        issue=position.issue,
        stage=started.stage,
        run=started.name,
        kind=stage.kind,
        access=stage.access,
        round=started.round,
        attempt=started.attempt,
        nonce=started.nonce,
        base=started.base,
        target=_target(position, started, stage),
        inputs=[{"name": name, "path": f"{RUN_FOLDER}/{name}", "sha256": sha256(data)} for name, data in files.items()],
        must_answer=[_due(finding) for finding in _due_findings(position, started)],
        checklist=[item.model_dump() for item in position.checklist] if stage.checklist == "partition" else [],
        result={
            "path": f"{RUN_FOLDER}/result.json",
            "json_schema": result_model(stage).model_json_schema(by_alias=True),
        },
    )


def result_model(stage: Stage) -> type[Result]:
    """The model a result of the stage must be valid by."""
    return ReviewResult if stage.kind == "review" else WriteResult if stage.writes else AgentResult


def _target(position: Position, started: Started, stage: Stage) -> dict[str, Any] | None:
    if stage.kind != "review":
        return None
    what: dict[str, Any] = {"reviewed": reviewed(position, started)}
    if started.target:
        return what | started.target.model_dump() | {"kind": "artifact"}
    return what | {"kind": "diff", "base": position.base, "head": started.base}


def _due_findings(position: Position, started: Started) -> list[Finding]:
    return [finding for finding in position.findings if finding.id in started.must_answer]


def _due(finding: Finding) -> dict[str, Any]:
    return finding.model_dump(exclude={"stage"})


def _prompt(
    hands: Hands, position: Position, started: Started, stage: Stage, files: dict[str, bytes], order: dict[str, Any]
) -> str:
    role = stage.role or stage.reviewers[0].role
    room = prompts.INLINE
    shown: list[Input] = []
    for name, data in files.items():
        shown.append(prompts.read_input(name, f"{RUN_FOLDER}/{name}", data, room))
        room -= len(shown[-1].text)
    values = {
        "issue": position.issue,
        "stage": started.stage,
        "round": started.round,
        "max_rounds": position.max_rounds,
        "attempt": started.attempt,
        "role": role,
        "role_text": position.workflow.roles[role],
        "base": started.base,
        "access": stage.access,
        "produces": stage.produces,
        "checklist_rule": stage.checklist,
        "has_plan": any(name in files for name in _plans(position)),
        "target": stage.target,
        "reviewed": reviewed(position, started),
        "diff_base": position.base,
        "diff_head": started.base,
        "inputs": shown,
        "submodules": worktrees.submodules(Path(started.worktree)),
        "feedback": [*position.feedback, *_said(position, started)],
        "must_answer": order["must_answer"],
        "verdicts": VERDICTS[stage.kind],
        "skeleton": _skeleton(position, started, stage),
        "fence": Fence(started.nonce),
    }
    kind = "continue" if started.continuation else stage.kind
    return prompts.render(kind, role, values, hands.project / ".issueflow" / "prompts")


def _plans(position: Position) -> list[str]:
    return [
        name for s in position.workflow.stages.values() if s.kind == "agent" and not s.writes for name in s.produces
    ]


def _said(position: Position, started: Started) -> list[str]:
    """What a person said on the way that is no finding: the word with an approval, the reason of a retry."""
    if position.workflow.stages[started.stage].kind != "agent":
        return []
    worded = [d for d in position.decided if d.verb in ("approve", "retry", "reopen") and d.message]
    return [f"{d.by}, {d.verb} at {d.stage}: {d.message}" for d in worded]


def _skeleton(position: Position, started: Started, stage: Stage) -> str:
    """The shape of the result, invalid as it stands, so that an echoed prompt is no result."""
    shape: dict[str, Any] = {
        "schema": RESULT_SCHEMA,
        "issue": position.issue,
        "stage": started.stage,
        "run": started.name,
        "nonce": started.nonce,
        "verdict": f"<one of {', '.join(VERDICTS[stage.kind])}>",
        "summary": "<what a colleague must know>",
    }
    if stage.kind == "review":
        finding = dict.fromkeys(("where", "claim", "evidence", "fix"), "<…>")
        shape |= {
            "reviewed": reviewed(position, started),
            "findings": [{"severity": "<blocker|major|minor|note>", **finding}],
        }
        if stage.checklist == "partition":
            shape |= {"covered": [{"id": "<C…>", "evidence": "<…>"}], "missing": [], "not_applicable": []}
        return json.dumps(shape, indent=2, ensure_ascii=False)
    if stage.produces:
        shape["artifacts"] = [{"name": name, "path": f"{RUN_FOLDER}/{name}"} for name in stage.produces]
    if stage.checklist == "define":
        shape["checklist"] = [{"id": "C1", "text": "<…>", "source": "<requirement|constraint|inferred>"}]
    shape |= {"questions": [], "risks": [], "assumptions": []}
    if started.must_answer:
        answer = {"action": "<fixed|disputed|deferred>", "reason": "<…>"}
        shape["responses"] = [{"finding": name, **answer} for name in started.must_answer]
    if stage.writes:
        shape["commands_run"] = [{"command": "<…>", "exit_code": 0, "covers": "<…>"}]
        shape["not_run"] = [{"item": "<…>", "reason": "<…>"}]
        shape["open_problems"] = []
    return json.dumps(shape, indent=2, ensure_ascii=False)
