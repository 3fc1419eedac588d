"""Issues as the engine holds them: loaded, restored from their record, and recorded."""

import calendar
import time
from collections.abc import Callable

from issueflow.engine.hands import Hands
from issueflow.errors import Damaged, TooNew, WrongWords
from issueflow.files import crash_point, make_folder, replace_file, to_json
from issueflow.git import record
from issueflow.machine import Position, fold
from issueflow.machine.state import row, state
from issueflow.models import (
    Adopted,
    Amended,
    Created,
    Decided,
    Delivered,
    Document,
    Dropped,
    Ended,
    JournalEntry,
    Noted,
    Presented,
    Started,
    branch_name,
    record_ref,
)
from issueflow.store import index
from issueflow.store.issue import IssueFolder, sha256


def find(hands: Hands, name: str) -> IssueFolder:
    """The Issue's folder, rebuilt from its record when it is gone; WrongWords when there is no such Issue."""
    folder = hands.store.issue(name)
    if not folder.exists():
        files = record.recorded(hands.repository, name)
        if files is None:
            raise WrongWords(f"there is no {name} here", "issueflow status")
        _restore(hands, folder, files)
    return folder


def _take_back(hands: Hands, folder: IssueFolder) -> None:
    """Bring the directory up to a record that is longer than its journal: cut short here, or fetched from elsewhere."""
    files = record.recorded(hands.repository, folder.name)
    assert files is not None
    _restore(hands, folder, files)


def _restore(hands: Hands, folder: IssueFolder, files: dict[str, bytes]) -> None:
    """Write the record back. A run that was open may have begun: its start counts as taken, lest it begin twice."""
    hands.store.ensure()
    make_folder(folder.folder)
    journal = files.pop("journal.jsonl")
    folder.restore(files)
    replace_file(folder.journal, journal)
    open_run = fold(folder.entries()).open_run
    if open_run:
        run = make_folder(folder.run(open_run.name))
        if not (run / "started.json").exists():
            replace_file(run / "started.json", to_json({"restored": True, "machine": open_run.machine}))


def load(folder: IssueFolder) -> Position:
    """Where the Issue stands; Damaged when its journal cannot be read."""
    entries = folder.entries()
    try:
        return fold(entries)
    except ValueError as error:
        raise Damaged(f"{folder.journal}: {error}", f"issueflow resume {folder.name}") from error


def repair(hands: Hands, folder: IssueFolder) -> str | None:
    """Mend a damaged journal from its own sound part and its record; what was done in words, None when it is sound.

    The damaged file is kept beside. Damaged when journal and record tell different stories: that is a person's to see;
    TooNew when a later issueflow wrote it.
    """
    try:
        load(folder)
        return None
    except TooNew:
        raise
    except Damaged:
        raw = folder.journal.read_bytes()
    sound, recorded = folder.sound_part(), record.journal(hands.repository, folder.name) or b""
    whole = sound if sound.startswith(recorded) else recorded if recorded.startswith(sound) else b""
    if not whole:
        raise _two_stories(folder)
    aside = folder.journal.with_name(f"journal.jsonl.damaged-{sha256(raw)[:8]}")
    replace_file(aside, raw)
    replace_file(folder.journal, whole)
    lines = whole.count(b"\n")
    return f"{folder.name}: the journal was damaged; its {lines} sound entries stand, the damaged file is {aside}"


def _two_stories(folder: IssueFolder) -> Damaged:
    ref = record_ref(folder.name)
    return Damaged(f"{folder.journal} and the record {ref} tell different stories", f"git show {ref}:journal.jsonl")


def settle(hands: Hands, folder: IssueFolder) -> Position:
    """Bring record and issue.yaml up to the journal, and the journal up to a longer record; with the lock held."""
    recorded = record.journal(hands.repository, folder.name) or b""
    ours = folder.journal.read_bytes()
    whole = ours[: ours.rfind(b"\n") + 1]
    if recorded.startswith(whole) and len(recorded) > len(whole):
        _take_back(hands, folder)
    elif not whole.startswith(recorded):
        raise _two_stories(folder)
    position = load(folder)
    folder.sweep(position.open_run.name if position.open_run else None)
    index.sweep(hands.store.root)
    if len(whole) > len(recorded):
        publish(hands, folder, position, folder.entries()[-1])
    else:
        render(folder, position)
    return position


def render(folder: IssueFolder, position: Position) -> None:
    """Write what people and `status` read: issue.yaml and the summary."""
    folder.render(state(position), position.entries)
    index.save_summary(folder.folder, row(position))


def write(hands: Hands, folder: IssueFolder, make: Callable[..., JournalEntry]) -> Position:
    """Append an entry, then bring issue.yaml and the record up to it; the caller holds the lock."""
    entry = folder.append(make)
    crash_point(f"journal.{entry.kind}")
    position = load(folder)
    publish(hands, folder, position, entry)
    return position


def publish(hands: Hands, folder: IssueFolder, position: Position, entry: JournalEntry) -> None:
    """Render issue.yaml and commit the Issue directory to its record ref, with a message people can read."""
    render(folder, position)
    crash_point(f"rendered.{entry.kind}")
    fresh = {"journal.jsonl", "issue.yaml"}
    runs = [position.runs[-1].started.name] if position.runs else []
    fresh |= {name for name in folder.recordable() if name.split("/")[1:2] == runs}
    record.commit(
        hands.repository,
        folder.name,
        folder.folder,
        folder.recordable(),
        fresh,
        message(position, entry),
        hands.repository.identity,
        calendar.timegm(time.strptime(entry.at, "%Y-%m-%dT%H:%M:%SZ")),
    )
    crash_point(f"recorded.{entry.kind}")


def message(position: Position, entry: JournalEntry) -> str:
    """The record's commit message: what happened in a line, then trailers for scripts."""
    trailers = {"Issueflow-Entry": str(entry.n)}
    run = next((r.started for r in position.runs if r.started.run == getattr(entry, "run", None)), None)
    where = f"{run.stage} round {run.round}" if run else position.stage
    if run:
        trailers |= {"Issueflow-Run": run.name, "Issueflow-Base": run.base}
    match entry:
        case Created():
            what = f"created: {entry.title}"
        case Started():
            what = f"{where}: started"
        case Ended():
            what = f"{where}: {entry.outcome.verdict or entry.outcome.cls}"
            trailers |= {
                "Issueflow-Verdict": entry.outcome.verdict or entry.outcome.cls,
                "Issueflow-Head": entry.code.tip,
            }
        case Dropped():
            what = f"{where}: dropped, {entry.reason}"
            trailers |= {"Issueflow-Head": entry.code.tip}
        case Presented():
            what = f"{entry.stage}: waiting for a person"
        case Decided():
            what = f"{entry.stage}: {entry.verb} by {entry.by}"
            trailers |= {"Issueflow-Verdict": entry.verb, "Issueflow-Head": entry.evidence.head}
        case Amended():
            parts = [f"requirement v{entry.requirement.version}"] if entry.requirement else []
            parts += [f"workflow {entry.pinned.workflow.name}"] if entry.pinned else []
            what = f"amended by {entry.by}: {', '.join(parts)}"
        case Adopted(document=Document() as document):
            what = f"{document.name} was changed by hand: version {document.version}"
        case Adopted():
            what = f"{entry.branch} was moved by hand"
            trailers |= {"Issueflow-Head": entry.commit or ""}
        case Noted():
            what = f"note by {entry.by}: {entry.text}"
        case Delivered():
            what = f"delivered on {entry.branch}"
            trailers |= {"Issueflow-Head": entry.commit}
    subject = " ".join(f"{position.issue}: {what}".split())[:200]
    return subject + "\n\n" + "".join(f"{key}: {value}\n" for key, value in trailers.items())


def delivered_branch(position: Position) -> str:
    """The branch a person merges."""
    return branch_name(position.created.prefix, position.issue, "delivered")
