"""Whether the evidence holds: files against digests, commits against refs, verdicts against what they are bound to."""

from collections.abc import Iterator
from dataclasses import dataclass

from issueflow.engine.hands import Hands
from issueflow.engine.issues import delivered_branch
from issueflow.git import record
from issueflow.machine import Position
from issueflow.machine.chain import Link, chain
from issueflow.models import Document, branch_name
from issueflow.store.issue import IssueFolder, sha256

KEEP = "refs/issueflow-keep"


@dataclass(frozen=True)
class Finding:
    """One link of the chain: what it is, whether it holds, and the evidence in words."""

    what: str
    holds: bool
    detail: str


def examine(hands: Hands, folder: IssueFolder, position: Position) -> Iterator[Finding]:
    """The chain from requirement to delivered head, link by link. Changes nothing."""
    yield _journal(hands, folder)
    yield _requirement(folder, position)
    yield _workflow(folder, position)
    base = position.base
    yield Finding(
        "base", hands.repository.commit(base) == base, f"{base[:12]} {position.created.base_name or ''}".strip()
    )
    for versions in position.documents.values():
        yield _document(folder, versions[-1])
    links = chain(position)
    for link in links:
        yield _link(link)
    if not position.is_over:  # afterwards a person may delete what was merged
        yield from _refs(hands, position)
    yield from _head(hands, position, {link.stage for link in links})


def _journal(hands: Hands, folder: IssueFolder) -> Finding:
    recorded, ours = record.journal(hands.repository, folder.name), folder.journal.read_bytes()
    if recorded is None:
        return Finding("journal", False, "it has no record ref")
    return Finding("journal", recorded == ours, "as recorded" if recorded == ours else "differs from its record ref")


def _requirement(folder: IssueFolder, position: Position) -> Finding:
    document = position.requirement
    path = folder.requirement(document.version)
    held = path.exists() and sha256(path.read_bytes()) == document.sha256
    return Finding(
        "requirement",
        held,
        f"v{document.version} sha256 {document.sha256[:12]}" + ("" if held else ": the file differs"),
    )


def _workflow(folder: IssueFolder, position: Position) -> Finding:
    path = folder.workflow(position.pinned.version)
    held = path.exists() and sha256(path.read_bytes()) == position.pinned.digest
    detail = f"{position.workflow.name} sha256 {position.pinned.digest[:12]}"
    return Finding("workflow", held, detail + ("" if held else f": {path.name} differs from what was pinned"))


def _document(folder: IssueFolder, document: Document) -> Finding:
    path = folder.document(document.name, document.version)
    held = path.exists() and sha256(path.read_bytes()) == document.sha256
    detail = f"v{document.version} sha256 {document.sha256[:12]}" + ("" if held else ": the file differs or is gone")
    return Finding(document.name, held, detail)


def _link(link: Link) -> Finding:
    bound = f"{link.verdict} by {link.by}, head {link.bound.head[:12]}"
    good = link.verdict in ("approve", "pass", "none", "skip")
    stale = f"; stale: {', '.join(link.stale)} changed since" if link.stale else ""
    return Finding(link.stage, good and not link.stale, bound + stale)


def _refs(hands: Hands, position: Position) -> Iterator[Finding]:
    """The refs that hold the work: only those that are gone, or no longer hold it, are told."""
    at = hands.repository.refs(f"refs/heads/{position.created.prefix}/{position.issue}", f"{KEEP}/{position.issue}")
    for run in position.runs:
        closing = run.ended or run.dropped
        for ref in closing.code.kept if closing else ():
            if ref not in at:
                yield Finding("kept work", False, f"{ref} is gone")
    if position.head_run is None:
        return
    branch = branch_name(position.created.prefix, position.issue, position.head_run.started.name)
    tip = at.get(f"refs/heads/{branch}")
    if tip is None or not hands.repository.is_ancestor(position.head, tip):
        detail = f"{branch} {'is gone' if tip is None else f'was moved to {tip[:12]}'}; `git branch -f` puts it back"
        yield Finding("branch", False, detail)


def _head(hands: Hands, position: Position, judged: set[str]) -> Iterator[Finding]:
    held = hands.repository.commit(position.head) == position.head
    yield Finding("head", held, position.head[:12] + ("" if held else ": the commit is gone"))
    if position.status != "delivered" or not position.delivered:
        yield Finding("delivered", False, f"not delivered: {position.status} at {position.stage}")
        return
    for name, stage in position.workflow.stages.items():
        if stage.kind != "agent" and name not in judged:
            yield Finding(name, False, "no verdict")
    at = hands.repository.refs(f"refs/heads/{delivered_branch(position)}").get(
        f"refs/heads/{delivered_branch(position)}"
    )
    same = at == position.head == position.delivered.commit
    where = f"{position.delivered.branch} at {(at or 'nothing')[:12]}"
    if at is None and position.head == position.delivered.commit and (holder := _holder(hands, position)):
        same, where = True, f"{position.delivered.branch} is gone, {position.head[:12]} is in {holder}"
    yield Finding("delivered", same, where + ("" if same else f", but the accepted head is {position.head[:12]}"))


def _holder(hands: Hands, position: Position) -> str | None:
    """What holds the delivered commit once cleanup has taken its branch away: a person's branch, or a keep ref."""
    if not hands.repository.commit(position.head):
        return None
    ours = (f"refs/heads/{position.created.prefix}/{position.issue}/", "refs/issueflow-records/")
    return min((name for name in hands.repository.holders(position.head) if not name.startswith(ours)), default=None)
