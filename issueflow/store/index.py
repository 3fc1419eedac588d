"""What `status` lists, kept so that listing costs the same at ten Issues and at ten thousand; standard library only.

Each Issue directory holds a summary, written with issue.yaml. The index holds those of the open Issues and of the
last few that ended. Both are caches: a summary counts only for the journal it was made from, and what is missing or
stale is made again from the journals.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from issueflow.files import replace_file

SHOWN_ENDED = 10
RECORDS = "refs/issueflow-records"
VERSION = 1
ENDED = ("delivered", "cancelled", "failed")
Row = dict[str, Any]


class Listing:
    """Rows to show, how many ended Issues are not among them, and the names of Issues that cannot be read."""

    def __init__(self, rows: list[Row], hidden: int, broken: dict[str, str]) -> None:
        self.rows = rows
        self.hidden = hidden
        self.broken = broken


def save_summary(folder: Path, row: Row) -> None:
    """Write an Issue's summary for the journal as it is now; its caller holds the Issue's lock."""
    summary = {"stamp": _stamp(folder / "journal.jsonl"), "row": row}
    if _read(folder / "summary.json") != summary:
        replace_file(folder / "summary.json", json.dumps(summary))


def listing(root: Path, reload: Callable[[str], Row], *, everything: bool = False) -> Listing:
    """The Issues below `root` (`<git common dir>/issueflow`); `reload(name)` makes a row from a journal.

    An exception of `reload` marks that Issue as broken and leaves the others alone.
    """
    issues = root / "issues"
    stamp = [_changed(issues), _changed(root.parent / RECORDS), _changed(root.parent / "packed-refs")]
    cached = None if everything else _read(root / "index.json")
    if cached and cached.get("version") == VERSION and cached.get("stamp") == stamp:
        rows = [_fresh(issues, name, entry, reload) for name, entry in cached["rows"].items()]
        if all(entry is not None for entry in rows):
            changed = [e for e, old in zip(rows, cached["rows"].values(), strict=True) if e != old]
            if not changed:
                return Listing([entry["row"] for entry in rows if entry], cached["hidden"], {})
    return _rebuild(root, issues, stamp, reload, everything)


def _rebuild(root: Path, issues: Path, stamp: list[int], reload: Callable[[str], Row], everything: bool) -> Listing:
    names = sorted(_names(root, issues), key=lambda name: int(name[6:]))
    entries: dict[str, Row] = {}
    broken: dict[str, str] = {}
    for name in names:
        try:
            entries[name] = _entry(issues, name, reload)
        except Exception as error:  # whatever is wrong with one Issue must not hide the others
            broken[name] = str(error)
    ended = [name for name, entry in entries.items() if entry["row"]["status"] in ENDED]
    hidden = set() if everything else set(ended[:-SHOWN_ENDED])
    shown = {name: entry for name, entry in entries.items() if name not in hidden}
    if not broken and not everything:
        kept = {"version": VERSION, "stamp": stamp, "rows": shown, "hidden": len(hidden)}
        try:
            replace_file(root / "index.json", json.dumps(kept))
        except OSError:
            pass  # a read-only or full disk makes the next listing slower, no more
    return Listing([entry["row"] for entry in shown.values()], len(hidden), broken)


def _names(root: Path, issues: Path) -> set[str]:
    """The Issues that have a directory or a record; `reload` makes the directory of one that has only a record."""
    found = _listed(issues) + _listed(root.parent / RECORDS)
    try:
        packed = (root.parent / "packed-refs").read_text(errors="replace").splitlines()
        found += [row.rsplit("/", 1)[1] for row in packed if f" {RECORDS}/" in row]
    except OSError:
        pass
    return {name for name in found if name[:6] == "ISSUE-" and name[6:].isdigit()}


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _fresh(issues: Path, name: str, entry: Row, reload: Callable[[str], Row]) -> Row | None:
    """The entry, made again when its journal has changed; None when it cannot be."""
    if entry["row"]["status"] in ENDED:
        return entry  # whoever opens an ended Issue again forgets the index (`forget`)
    try:
        return entry if entry["stamp"] == _stamp(issues / name / "journal.jsonl") else _entry(issues, name, reload)
    except Exception:  # the rebuild names what is wrong
        return None


def _entry(issues: Path, name: str, reload: Callable[[str], Row]) -> Row:
    if not (issues / name / "journal.jsonl").exists():
        row = reload(name)
        return {"stamp": _stamp(issues / name / "journal.jsonl"), "row": row}
    stamp = _stamp(issues / name / "journal.jsonl")
    summary = _read(issues / name / "summary.json")
    if summary and summary.get("stamp") == stamp:
        return {"stamp": stamp, "row": summary["row"]}
    return {"stamp": stamp, "row": reload(name)}


def sweep(root: Path) -> None:
    """Remove what a killed listing left of an index; one that is at work makes none this time, and does without."""
    for left in root.glob(".index.json.*.tmp"):
        left.unlink(missing_ok=True)


def forget(root: Path) -> None:
    """Drop the index: an Issue that had ended goes on."""
    (root / "index.json").unlink(missing_ok=True)


def _stamp(journal: Path) -> list[int]:
    state = journal.stat()
    return [state.st_mtime_ns, state.st_size]


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
