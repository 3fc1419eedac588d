"""What a person says: checked against what is asked, bound to the evidence, journalled; never from inside a run."""

from issueflow.engine import collect, notice, sight
from issueflow.engine.hands import Hands
from issueflow.engine.issues import find, repair, settle, write
from issueflow.engine.person import refuse_inside_run, who
from issueflow.errors import IssueflowError, WrongWords
from issueflow.machine import Position, evidence
from issueflow.models import Decided, Document, Finding, Noted, Verb
from issueflow.store import index
from issueflow.store.issue import IssueFolder


def approve(hands: Hands, name: str, message: str) -> Position:
    """Approve what the Issue's human stage presents."""
    refuse_inside_run("approve")
    folder = find(hands, name)
    with folder.lock("approve"):
        position = notice.adopt(hands, folder, settle(hands, folder))
        _require_waiting(position)
        presented = position.presented
        if presented is None or presented.evidence != evidence(position):
            raise IssueflowError(
                f"{name} has changed since it was presented at {position.stage}", f"issueflow advance {name}"
            )
        for missing in _not_there(folder, position):
            raise IssueflowError(f"{position.stage} presents {missing}, which is missing", f"issueflow status {name}")
        return _record(hands, folder, position, "approve", message)


def request_changes(hands: Hands, name: str, text: str) -> Position:
    """Send the work back; the text becomes a finding that the next round must answer."""
    refuse_inside_run("request-changes")
    folder = find(hands, name)
    with folder.lock("request-changes"):
        position = settle(hands, folder)
        if position.status not in ("waiting", "held") or position.open_run:
            raise _not_asked(position)
        return _record(hands, folder, position, "request-changes", text, (_finding(position, text),))


def cancel(hands: Hands, name: str, message: str) -> Position:
    """End the Issue. What it has made stays where it is."""
    refuse_inside_run("cancel")
    folder = find(hands, name)
    with folder.lock("cancel"):
        repair(hands, folder)  # a damaged Issue must be possible to end
        position = settle(hands, folder)
        if position.is_over:
            raise IssueflowError(f"{name} is {position.status} already", f"issueflow status {name}")
        return _record(hands, folder, position, "cancel", message)


def retry(hands: Hands, name: str, reason: str) -> Position:
    """Let the held stage run again; or give up a run of which nobody can tell from here whether it is alive."""
    refuse_inside_run("retry")
    folder = find(hands, name)
    with folder.lock("retry"):
        position = settle(hands, folder)
        if sight.question(folder, position):
            position = collect.drop(hands, folder, position, f"given up by {who()}: {reason}")
        if position.status != "held":
            raise IssueflowError(f"{name} is not held ({_standing(position)})", f"issueflow status {name}")
        return _record(hands, folder, position, "retry", reason)


def skip(hands: Hands, name: str, stage: str, reason: str) -> Position:
    """Let a review or a check pass unseen: bound to what it would have judged, and listed at delivery."""
    refuse_inside_run("skip")
    folder = find(hands, name)
    with folder.lock("skip"):
        position = notice.adopt(hands, folder, settle(hands, folder))
        _require_stage(position, stage)
        kind = position.workflow.stages[stage].kind
        if kind not in ("review", "check"):
            what = "a person's decision" if kind == "human" else "work, not a judgement of it"
            raise IssueflowError(f"{stage} cannot be skipped: it is {what}", f"issueflow status {name}")
        if position.open_run or position.is_over or position.stage != stage:
            raise IssueflowError(
                f"{name} does not stand at {stage} ({_standing(position)})", f"issueflow status {name}"
            )
        return _record(hands, folder, position, "skip", reason)


def reopen(hands: Hands, name: str, stage: str, reason: str) -> Position:
    """Go back, or on, to a stage by a person's will; also after the end."""
    refuse_inside_run("reopen")
    folder = find(hands, name)
    with folder.lock("reopen"):
        position = settle(hands, folder)
        _require_stage(position, stage)
        if position.open_run:
            raise IssueflowError(f"{name} has a run going on; wait for it or cancel", f"issueflow advance {name}")
        index.forget(hands.store.root)
        return _record(hands, folder, position, "reopen", reason, stage=stage)


def note(hands: Hands, name: str, text: str) -> Position:
    """Put a remark into the Issue's history."""
    hands.refuse_secrets("the remark", text.encode())
    folder = find(hands, name)
    with folder.lock("note"):
        repair(hands, folder)
        settle(hands, folder)
        return write(hands, folder, lambda **head: Noted(**head, by=who(), text=text))


def _require_stage(position: Position, stage: str) -> None:
    if stage not in position.workflow.stages:
        known = ", ".join(position.workflow.stages)
        raise WrongWords(
            f"{position.issue} has no stage {stage} (it has {known})", f"issueflow status {position.issue}"
        )


def allow_again(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    """`resume` gives leave to replace a run that died; the caller holds the lock."""
    return _record(hands, folder, position, "resume", "")


def _record(
    hands: Hands,
    folder: IssueFolder,
    position: Position,
    verb: Verb,
    message: str,
    findings: tuple[Finding, ...] = (),
    stage: str | None = None,
) -> Position:
    hands.refuse_secrets("the text", message.encode())
    bound = evidence(position)
    return write(
        hands,
        folder,
        lambda **head: Decided(
            **head,
            verb=verb,
            by=who(),
            stage=stage or position.stage,
            message=message,
            findings=findings,
            evidence=bound,
        ),
    )


def _require_waiting(position: Position) -> None:
    if position.status != "waiting":
        raise _not_asked(position)


def _not_asked(position: Position) -> IssueflowError:
    hint = f"issueflow advance {position.issue}" if position.status == "ready" else f"issueflow status {position.issue}"
    if position.status == "held":
        hint = f"issueflow retry {position.issue} --reason TEXT"
    return IssueflowError(f"{position.issue} is not waiting for anyone ({_standing(position)})", hint)


def _standing(position: Position) -> str:
    return position.status if position.is_over else f"stage {position.stage}, {position.status}"


def _finding(position: Position, text: str) -> Finding:
    return Finding(
        id=f"F{position.next_finding}",
        stage=position.stage,
        severity="major",
        where=f"a person, at {position.stage}",
        claim=text[:20_000],
        evidence="said by the person who decides",
        fix="do as asked, or say why not",
    )


def _not_there(folder: IssueFolder, position: Position) -> list[str]:
    """Documents the human stage presents that are not on disk as they were accepted."""
    produced = {name for stage in position.workflow.stages.values() for name in stage.produces}
    missing = []
    for name in position.kind().presents:
        document: Document | None = position.current(name)
        if name in produced and (document is None or not folder.document(name, document.version).exists()):
            missing.append(name)
    return missing
