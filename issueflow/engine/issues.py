"""Issues as the engine holds them: loaded, restored from their record, and recorded."""

import calendar
import time
from collections.abc import Callable
from pathlib import Path

from issueflow.engine.hands import Hands
from issueflow.errors import Damaged, TooNew, WrongWords
from issueflow.files import crash_point, make_folder, replace_file, to_json
from issueflow.git import record
from issueflow.git.refs import Repository
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
        if "journal.jsonl" not in files:
            ref = record_ref(name)
            raise Damaged(f"{name} has no directory, and its record {ref} holds no journal", f"git log {ref}")
        _restore(hands, folder, files)
    return folder


def catch_up(hands: Hands, folder: IssueFolder) -> None:
    """Bring the directory up to a record that goes on from its journal: cut short here, or fetched from elsewhere."""
    files = record.recorded(hands.repository, folder.name) or {}
    if files.get("journal.jsonl", b"").startswith(folder.whole()):
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

    A person's word that the record lacks is taken back: it must be said again. What is replaced is kept beside.
    Damaged when journal and record tell different stories: that is a person's to see; TooNew when a later issueflow
    wrote it.
    """
    try:
        load(folder)
    except TooNew:
        raise
    except Damaged:
        return _mend(hands, folder)
    last = _unrecorded(folder, record.journal(hands.repository, folder.name))
    if last is None or last.kind not in SAID:
        return None
    aside = _take_back(folder)
    return f"{folder.name}: {_words(last)} was not recorded and does not count; it is kept in {aside}: say it again"


def _mend(hands: Hands, folder: IssueFolder) -> str:
    sound, recorded = folder.sound_part(), record.journal(hands.repository, folder.name) or b""
    whole = sound if sound.startswith(recorded) else recorded if recorded.startswith(sound) else b""
    if not whole:
        raise _two_stories(folder)
    aside = _replace_journal(folder, whole, "damaged")
    lines = whole.count(b"\n")
    return f"{folder.name}: the journal was damaged; its {lines} sound entries stand, the damaged file is {aside}"


def _two_stories(folder: IssueFolder) -> Damaged:
    ref = record_ref(folder.name)
    return Damaged(
        f"{folder.journal} and the record {ref} tell different stories; compare them with `git show"
        f" {ref}:journal.jsonl`; --accept instead of --restore takes the journal",
        f"issueflow resume {folder.name} --restore",
    )


# What a crash between journal and record can leave is one last line that the record lacks; so can anybody who writes
# into the journal. What issueflow does, it does again from the facts; what a person said, a person must say again.
KEPT = ("created", "adopted", "noted")  # decide nothing: what they change is judged again
SAID = ("decided", "amended")


def settle(hands: Hands, folder: IssueFolder) -> Position:
    """Bring journal, record and issue.yaml to one story, or raise Damaged where only a person can; with the lock held.

    No entry that decides anything counts before the record holds it.
    """
    recorded, whole = record.journal(hands.repository, folder.name), folder.whole()
    if recorded != whole:
        _agree(hands, folder, whole, recorded)
    position = load(folder)
    folder.sweep(position.open_run.name if position.open_run else None)
    index.sweep(hands.store.root)
    for left in hands.store.root.glob(f"open/.{folder.name}.*.tmp"):  # of a run's photograph (engine.surroundings)
        left.unlink(missing_ok=True)
    hands.store.sweep()
    if folder.whole() != recorded:
        publish(hands, folder, position, folder.entries()[-1])
    else:
        render(folder, position)
    return position


def dispute(repository: Repository, folder: IssueFolder) -> Damaged | None:
    """What is wrong between journal and record that only a person can settle; changes nothing."""
    recorded, whole = record.journal(repository, folder.name), folder.whole()
    return _dispute(folder, whole, recorded) if recorded != whole else None


def _dispute(folder: IssueFolder, whole: bytes, recorded: bytes | None) -> Damaged | None:
    ref, name = record_ref(folder.name), folder.name
    if recorded is not None and recorded.startswith(whole):
        if folder.rendered() >= recorded.count(b"\n"):  # issue.yaml is written between the two
            return None
        sentence = f"the record {ref} holds entries that {folder.journal} never had; --restore takes them in"
        return Damaged(sentence, f"issueflow resume {name} --restore")
    last = _unrecorded(folder, recorded)
    if recorded is None and (last is None or last.kind != "created"):
        sentence = f"the record {ref} is gone or holds no journal; --accept makes it again from {folder.journal}"
        return Damaged(sentence, f"issueflow resume {name} --accept")
    if last is None:
        return _two_stories(folder)
    if last.kind in SAID:
        sentence = f"{_words(last)} stands in {folder.journal} and not in the record: it does not count"
        return Damaged(sentence, f"issueflow resume {name}")
    if isinstance(last, Started) and folder.run(last.name).exists():
        return _two_stories(folder)  # its preparation comes after the record: that was moved back
    return None


def _agree(hands: Hands, folder: IssueFolder, whole: bytes, recorded: bytes | None) -> None:
    """Make the journal what the record says, or its one lawful continuation."""
    if wrong := _dispute(folder, whole, recorded):
        raise wrong
    if recorded is not None and recorded.startswith(whole):
        catch_up(hands, folder)
    elif folder.entries()[-1].kind not in KEPT:
        _take_back(folder)


def _unrecorded(folder: IssueFolder, recorded: bytes | None) -> JournalEntry | None:
    """The journal's last entry if it is the only one that the record lacks, else None."""
    whole, known = folder.whole(), recorded or b""
    if not whole.startswith(known) or whole[len(known) :].count(b"\n") != 1:
        return None
    return folder.entries()[-1]


def _words(entry: JournalEntry) -> str:
    return f"{entry.verb} by {entry.by}" if isinstance(entry, Decided) else f"entry {entry.n} ({entry.kind})"


def _take_back(folder: IssueFolder) -> Path:
    whole = folder.whole()
    return _replace_journal(folder, whole[: whole[:-1].rfind(b"\n") + 1], "unrecorded")


def _replace_journal(folder: IssueFolder, data: bytes, why: str) -> Path:
    """Put `data` in the journal's place; the journal as it was is kept beside, and where is given."""
    raw = folder.journal.read_bytes()
    aside = folder.journal.with_name(f"journal.jsonl.{why}-{sha256(raw)[:8]}")
    replace_file(aside, raw)
    replace_file(folder.journal, data)
    return aside


def take_record(hands: Hands, folder: IssueFolder) -> str | None:
    """Put the journal as recorded in the place of one that tells another story; what was done, None when they agree."""
    recorded = record.journal(hands.repository, folder.name)
    if recorded is None or recorded == folder.whole():
        return None
    aside = _replace_journal(folder, recorded, "replaced")
    return f"{folder.journal} is as recorded; what was there is {aside}"


def take_files(hands: Hands, folder: IssueFolder, position: Position) -> list[str]:
    """Put back what the record holds of the Issue directory and what is not as recorded; what was done, in words.

    Documents aside, since an edit of one is its next version, and the files of a run that is open.
    """
    open_run = f"runs/{position.open_run.name}/" if position.open_run else "journal.jsonl"
    said = []
    for name, data in (record.recorded(hands.repository, folder.name) or {}).items():
        path = folder.folder / name
        if name in ("journal.jsonl", "issue.yaml") or name.startswith(("artifacts/", open_run)):
            continue
        found = path.read_bytes() if path.is_file() else None
        if found == data:
            continue
        make_folder(path.parent)
        if found is not None:
            replace_file(path.with_name(f"{path.name}.replaced-{sha256(found)[:8]}"), found)
        replace_file(path, data)
        said.append(f"{path} is as recorded")
    return said


def take_journal(hands: Hands, folder: IssueFolder) -> str | None:
    """Record the journal as it is, whatever the record says; what was done, None when they agree."""
    if record.journal(hands.repository, folder.name) == folder.whole():
        return None
    position = load(folder)
    publish(hands, folder, position, folder.entries()[-1])
    return f"{record_ref(folder.name)} is as {folder.journal} tells it"


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
