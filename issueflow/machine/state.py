"""A position as plain data: what issue.yaml shows people and what scripts read; all of it follows from the journal."""

from typing import Any

from issueflow.machine import usage
from issueflow.machine.fold import OUTSIDE, Position, Run
from issueflow.models import branch_name


def state(position: Position) -> dict[str, Any]:
    """The state of an Issue as JSON-ready data (docs/files.md describes it field by field)."""
    created = position.created
    return {
        "issue": position.issue,
        "title": created.title,
        "status": position.status,
        "stage": position.stage,
        "round": position.round,
        "max_rounds": position.max_rounds,
        "attempt": position.attempt,
        "waits_for": waits_for(position),
        "workflow": position.workflow.name,
        "base": created.base,
        "base_name": created.base_name,
        "head": position.head,
        "delivered": position.delivered.branch if position.delivered and position.status == "delivered" else None,
        "requirement": {
            "origin": created.origin,
            "sha256": position.requirement.sha256,
            "version": position.requirement.version,
        },
        "rounds": {name: {"now": r.round, "ever": r.total} for name, r in position.rounds.items()},
        "documents": {
            name: {"version": d[-1].version, "sha256": d[-1].sha256} for name, d in position.documents.items()
        },
        "open_findings": [
            {"id": f.id, "stage": f.stage, "severity": f.severity, "where": f.where, "claim": f.claim}
            for f in position.findings
        ],
        "approvals": [
            {"stage": d.stage, "by": d.by, "at": d.at, "head": d.evidence.head, "plan": d.evidence.plan}
            for d in position.decided
            if d.verb == "approve"
        ],
        "runs": [run_state(position, run) for run in position.runs],
        "created": created.at,
        "updated": position.at,
        **_used(position),
    }


def _used(position: Position) -> dict[str, Any]:
    """What all runs used, and of how many nothing is known; absent as long as nothing is known of any."""
    sum_ = usage.total(position.runs)
    return {"usage": {**sum_.model_dump(), "unknown_runs": usage.unknown(position.runs)}} if sum_ else {}


def row(position: Position) -> dict[str, Any]:
    """The little that a listing of many Issues shows."""
    run = position.open_run
    live = None
    if run:
        live = {"run": run.name, "agent": run.agent, "mark": run.mark(position.issue), "worktree": run.worktree}
    return {
        "issue": position.issue,
        "title": position.created.title,
        "status": position.status,
        "stage": position.stage,
        "round": position.round,
        "max_rounds": position.max_rounds,
        "waits_for": waits_for(position),
        "next": next_command(position),
        "head": position.head,
        "run": live,
        "created": position.created.at,
        "updated": position.at,
    }


def run_state(position: Position, run: Run) -> dict[str, Any]:
    """One run as plain data."""
    started, ended = run.started, run.ended
    return {
        "run": started.name,
        "round": started.round,
        "attempt": started.attempt,
        "continuation": started.continuation,
        "agent": started.agent,
        "base": started.base,
        "tip": run.tip if ended or run.dropped else None,
        "branch": branch_name(position.created.prefix, position.issue, started.name),
        "worktree": started.worktree,
        "class": ended.outcome.cls if ended else "dropped" if run.dropped else "open",
        "verdict": ended.outcome.verdict if ended else None,
        "exit": ended.exit.status if ended else None,
        "seconds": ended.exit.seconds if ended else None,
        **({"session": run.session} if run.session else {}),
        **({"usage": ended.usage.model_dump()} if ended and ended.usage else {}),
    }


def waits_for(position: Position) -> str | None:
    """What has to happen for the Issue to move, None when nothing has to."""
    match position.status:
        case "waiting":
            return f"a person: approve or request changes at {position.stage}"
        case "held" if position.hold:
            return f"a person: {position.hold.reason}"
        case "running" if position.open_run:
            return f"run {position.open_run.name}"
        case "ready" | "delivering":
            return "issueflow advance"
        case _:
            return None


def next_command(position: Position) -> str | None:
    """The exact command that takes the Issue on, None when it is over and delivered nothing."""
    issue = position.issue
    match position.status:
        case "waiting":
            return f"issueflow approve {issue}"
        case "held" if position.hold and position.hold.cause in OUTSIDE:
            return f"issueflow resume {issue}"
        case "held":
            return f"issueflow retry {issue} --reason TEXT"
        case "ready" | "running" | "delivering":
            return f"issueflow advance {issue}"
        case "delivered" if position.delivered:
            return f"git merge {position.delivered.branch}"
        case _:
            return None
