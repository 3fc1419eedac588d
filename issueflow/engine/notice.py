"""What was changed by hand between two steps: a document edited, commits put on the run's branch; the Issue goes on
from it, and what had been bound to the old state is asked again."""

from issueflow.engine.hands import Hands
from issueflow.engine.issues import write
from issueflow.files import replace_file
from issueflow.git import record
from issueflow.machine import Position
from issueflow.models import Adopted, Document, branch_name
from issueflow.store.issue import IssueFolder, sha256


def adopt(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    """The position after every change by hand has been journalled; the same one when there is none. With the lock."""
    if position.open_run or position.is_over or position.status == "delivering":
        return position
    for name, versions in position.documents.items():
        position = _document(hands, folder, position, name, versions[-1])
    return _head(hands, folder, position)


def _document(hands: Hands, folder: IssueFolder, position: Position, name: str, accepted: Document) -> Position:
    """An edit of the current version becomes the next one; the accepted one is put back from the record."""
    path = folder.document(name, accepted.version)
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        found = None
    if found is not None and sha256(found) == accepted.sha256:
        return position
    kept = record.recorded_file(hands.repository, folder.name, f"artifacts/{path.name}")
    edited = found if found and found.strip() else None
    version = accepted.version + 1
    if edited is not None:
        replace_file(folder.document(name, version), edited)
    if kept is not None and sha256(kept) == accepted.sha256:
        replace_file(path, kept)
    if edited is None:
        return position
    document = Document(name=name, version=version, sha256=sha256(edited), bytes=len(edited))
    return write(hands, folder, lambda **head: Adopted(**head, document=document))


def _head(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    """Commits that somebody put on top of the newest accepted work; a branch moved elsewhere is left alone."""
    run = position.head_run
    if run is None:
        return position
    branch = branch_name(position.created.prefix, position.issue, run.started.name)
    at = hands.repository.refs(f"refs/heads/{branch}").get(f"refs/heads/{branch}")
    if at in (None, position.head) or not hands.repository.is_ancestor(position.head, at or ""):
        return position
    tree = hands.repository.tree(at or "")
    return write(hands, folder, lambda **head: Adopted(**head, branch=branch, commit=at, tree=tree))
