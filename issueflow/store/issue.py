"""One repository's Issues and one Issue's directory: journal, lock, documents, run folders."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from issueflow.errors import Busy, Damaged, TooNew
from issueflow.files import make_folder, naming, private, replace_file, sync_folder
from issueflow.models import ISSUE_ID, JOURNAL_FORMAT, JournalEntry
from issueflow.store.text import to_yaml

LOCK_LIMIT = 5.0  # seconds a command waits for an Issue that another command is stepping
LOCK_PAUSE = 0.05
DIGEST = re.compile(r"# entry (\d+), sha256 ([0-9a-f]{64})\n")
ENTRY: TypeAdapter[JournalEntry] = TypeAdapter(JournalEntry)


def now() -> str:
    """The time as the journal writes it: UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha256(data: bytes) -> str:
    """The digest by which documents, prompts and journal lines are known."""
    return hashlib.sha256(data).hexdigest()


class Store:
    """All Issues of one repository: `root` is `<git common dir>/issueflow`."""

    def __init__(self, common: Path) -> None:
        self.root = common / "issueflow"
        self.issues = self.root / "issues"
        self.trash = self.root / "trash"
        self.hidden = self.root / "new"

    def ensure(self) -> None:
        """Make the folders, readable by their owner only."""
        for folder in (self.root, self.issues, self.trash):
            make_folder(folder)

    def ids(self) -> list[str]:
        """The Issues that have a directory here, by number; other names in there are nobody's business."""
        try:
            names = os.listdir(self.issues)
        except FileNotFoundError:
            return []
        return sorted((n for n in names if ISSUE_ID.fullmatch(n)), key=lambda name: int(name[6:]))

    def issue(self, name: str) -> "IssueFolder":
        """The directory of an Issue, whether or not it exists."""
        return IssueFolder(self.issues / name)

    def claim(self, taken: int, fill: Callable[["IssueFolder", str], None]) -> str:
        """Make a new Issue directory under the next free number above `taken` and give its id.

        `fill(folder, id)` writes into a folder that nobody sees; renaming it into place is the claim, and fails when
        somebody else was faster. Numbers that exist are never used again.
        """
        self.ensure()
        number = max([taken, *(int(name[6:]) for name in self.ids())])
        with self._hidden() as hidden:
            while True:
                number += 1
                name = f"ISSUE-{number}"
                shutil.rmtree(hidden / name, ignore_errors=True)
                fill(IssueFolder(make_folder(hidden / name)), name)
                try:
                    (hidden / name).rename(self.issues / name)
                except OSError:
                    if not (self.issues / name).exists():
                        raise
                    continue
                sync_folder(self.issues)
                return name

    @contextmanager
    def _hidden(self) -> Iterator[Path]:
        """A folder nobody looks into, flocked while its maker lives: `sweep` takes those whose makers were killed."""
        self.sweep()
        while True:
            hidden = make_folder(self.hidden / f"{os.getpid()}-{time.monotonic_ns()}")
            handle = _open_folder(hidden)
            if handle is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if hidden.exists():  # else another command swept it before the flock
                    break
                os.close(handle)
        try:
            yield hidden
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
            os.close(handle)

    def withdraw(self, name: str) -> None:
        """Take back an Issue that was claimed a moment ago and has not been recorded; its caller holds its lock."""
        with self._hidden() as hidden:
            (self.issues / name).rename(hidden / name)

    def sweep(self) -> None:
        """Remove the half-made Issues of a `new` that was killed."""
        for left in self.hidden.glob("*"):
            _remove_if_free(left)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """The repository's lock, for adding and removing worktrees and branches; waited for as long as it takes."""
        self.ensure()
        with open(self.root / "lock", "a", opener=private) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    @contextmanager
    def one_cleanup(self) -> Iterator[None]:
        """Held by a cleanup for as long as it takes; Busy when another one is at work."""
        self.ensure()
        with open(self.root / "cleanup.lock", "a", opener=private) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy("another cleanup is at work in this repository", "issueflow status") from None
            yield


def _open_folder(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _remove_if_free(folder: Path) -> None:
    """Remove a folder whose flock no process holds; held meanwhile, so that nobody moves in."""
    handle = _open_folder(folder)
    if handle is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # its maker is at it
    finally:
        os.close(handle)


class IssueFolder:
    """One Issue's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "journal.jsonl"

    @property
    def name(self) -> str:
        """The Issue's id."""
        return self.folder.name

    def exists(self) -> bool:
        """Is there a journal?"""
        return self.journal.exists()

    # ── journal ──

    def entries(self) -> list[JournalEntry]:
        """The journal without an unfinished last line; Damaged names file and line of what cannot be read."""
        lines = self.journal.read_bytes().split(b"\n")[:-1]
        found: list[JournalEntry] = []
        previous = ""
        for number, line in enumerate(lines, 1):
            found.append(self._entry(line, number, previous))
            previous = sha256(line)
        if not found:
            raise Damaged(f"{self.journal} is empty", f"issueflow resume {self.name}")
        return found

    def whole(self) -> bytes:
        """The journal as bytes, without a last line that a crash left unfinished."""
        raw = self.journal.read_bytes()
        return raw[: raw.rfind(b"\n") + 1]

    def sound_part(self) -> bytes:
        """The journal up to its first line that cannot be read or does not follow the one before it."""
        sound, previous = b"", ""
        for number, line in enumerate(self.journal.read_bytes().split(b"\n")[:-1], 1):
            try:
                self._entry(line, number, previous)
            except Damaged:
                break
            sound, previous = sound + line + b"\n", sha256(line)
        return sound

    def _entry(self, line: bytes, number: int, previous: str) -> JournalEntry:
        where = f"{self.journal}, line {number}"
        try:
            if number == 1 and (made := json.loads(line).get("format")) and made > JOURNAL_FORMAT:
                raise TooNew(f"{where}: written by a newer issueflow (journal format {made})", "issueflow --version")
            entry = ENTRY.validate_json(line)
        except (ValueError, ValidationError, AttributeError) as error:
            raise Damaged(f"{where}: not a journal entry", f"issueflow resume {self.name}") from error
        if entry.n != number or entry.prev != previous:
            raise Damaged(f"{where}: does not follow the line before it", f"issueflow resume {self.name}")
        return entry

    def append(self, make: Callable[..., JournalEntry]) -> JournalEntry:
        """Append the entry that `make(n, at, prev)` gives and return it; the caller holds the lock.

        A line that a crash left without its end is cut off first. On disk when this returns.
        """
        raw = self.journal.read_bytes() if self.journal.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        entry: JournalEntry = make(n=len(lines) + 1, at=now(), prev=sha256(lines[-1]) if lines else "")
        line = ENTRY.dump_json(entry, by_alias=True, exclude_defaults=False) + b"\n"
        new = not self.journal.exists()
        handle = os.open(self.journal, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with naming(self.journal), os.fdopen(handle, "wb") as stream:
            stream.truncate(len(whole))
            stream.seek(len(whole))
            stream.write(line)  # all of it or an error: a bare write(2) on a filling disk takes a part and says so
            stream.flush()
            os.fsync(handle)
        if new:
            sync_folder(self.folder)
        return entry

    # ── the state for people ──

    def render(self, state: dict[str, Any], entries: int) -> None:
        """Write issue.yaml for the state after `entries`; an edit somebody made by hand is saved beside it first."""
        path = self.folder / "issue.yaml"
        if self._is_rendered(entries):
            return
        body = to_yaml(state)
        text = f"# What {self.name} looks like, written from journal.jsonl; issueflow never reads it back.\n"
        text += f"# entry {entries}, sha256 {sha256(body.encode())}\n{body}"
        try:
            old = path.read_text()
        except (FileNotFoundError, UnicodeDecodeError):
            old = ""
        if old == text:
            return
        if (edited := self.edited()) is not None and edited.strip():
            replace_file(self.folder / f"issue.yaml.edited-{sha256(edited)[:8]}", edited)
        replace_file(path, text)

    def rendered(self) -> int:
        """How many entries the journal had when issue.yaml was written; 0 when it is not there, or was edited."""
        try:
            head = (self.folder / "issue.yaml").read_text(errors="replace").partition("\n")[2]
        except OSError:
            return 0
        match = DIGEST.match(head)
        return int(match[1]) if match and self.edited() is None else 0

    def _is_rendered(self, entries: int) -> bool:
        """Does issue.yaml stand for the journal as it is, untouched?"""
        return self.rendered() == entries

    def edited(self) -> bytes | None:
        """The content of issue.yaml if somebody changed it by hand, None if it is as it was rendered or absent."""
        try:
            raw = (self.folder / "issue.yaml").read_bytes()
        except FileNotFoundError:
            return None
        head, _, rest = raw.decode(errors="replace").partition("\n")
        match = DIGEST.match(rest)
        if head.startswith("#") and match and sha256(rest[match.end() :].encode()) == match[2]:
            return None
        return raw

    # ── documents and runs ──

    def document(self, name: str, version: int) -> Path:
        """Where a version of a document lies: `plan.md` 2 is artifacts/plan.v2.md."""
        stem, dot, ending = name.rpartition(".")
        return self.folder / "artifacts" / (f"{stem}.v{version}.{ending}" if dot and stem else f"{name}.v{version}")

    def requirement(self, version: int = 1) -> Path:
        """The copy of what the person wrote."""
        return self.folder / f"requirement.v{version}.md"

    def workflow(self, version: int) -> Path:
        """The workflow as it was pinned: workflow.yaml, workflow.v2.yaml …"""
        return self.folder / ("workflow.yaml" if version == 1 else f"workflow.v{version}.yaml")

    def run(self, name: str) -> Path:
        """A run's folder: the contract between the engine and any process."""
        return self.folder / "runs" / name

    def recordable(self) -> list[str]:
        """The files that belong in the record, by name: everything a person could want back, no logs and no locks."""
        found = [name for name in ("journal.jsonl", "issue.yaml") if (self.folder / name).exists()]
        found += [p.name for pattern in ("requirement.v*.md", "workflow*.yaml") for p in self.folder.glob(pattern)]
        found += [f"artifacts/{p.name}" for p in (self.folder / "artifacts").glob("*") if not p.name.startswith(".")]
        for run in (self.folder / "runs").glob("*"):
            found += [f"runs/{run.name}/{name}" for name in RECORDED if (run / name).is_file()]
        return sorted(found)

    def restore(self, files: dict[str, bytes]) -> None:
        """Write back what a record holds; a file that is here already stays as it is."""
        for name, data in files.items():
            path = self.folder / name
            if not path.exists():
                make_folder(path.parent)
                replace_file(path, data)

    def sweep(self, live: str | None) -> None:
        """Remove temporary files that a crash left behind; the caller holds the lock.

        Not those of the run `live`: its runner holds no lock of ours and may be about to publish one.
        """
        for pattern in (".*.tmp", "artifacts/.*.tmp", "runs/*/.*.tmp", "runs/*/*/.*.tmp"):
            for left in self.folder.glob(pattern):
                if live is None or self.run(live) not in left.parents:
                    left.unlink(missing_ok=True)

    @contextmanager
    def lock(self, who: str, limit: float = LOCK_LIMIT) -> Iterator[None]:
        """The Issue's lock for one step; Busy, naming the holder, when it is not free within `limit` seconds."""
        with open(self.folder / "lock", "a+", opener=private) as handle:
            until = time.monotonic() + limit
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        handle.seek(0)
                        holder = handle.read().strip() or "another process"
                        raise Busy(f"{self.name} is held by {holder}", f"issueflow status {self.name}") from None
                    time.sleep(LOCK_PAUSE)
            with naming(self.folder / "lock"):
                handle.seek(0)
                handle.truncate()
                handle.write(f"pid {os.getpid()} ({who})")
                handle.flush()
            yield


# What the record holds of a run; the worktree's place among it, so that cleanup knows it again after a restore.
RECORDED = (
    "order.json",
    "prompt.md",
    "place.json",
    "before.json",
    "started.json",
    "exit.json",
    "result.json",
    "accepted.json",
    "checks.json",
)
