"""The listing of all Issues, and the shortest way to it: no git, no YAML, no pydantic, nothing but what it prints."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from issueflow.git.layout import Standing, locate
from issueflow.hosts.glance import glance, last_lines
from issueflow.store.index import ENDED, Listing, Row, listing
from issueflow.views import line, overview, printed, say, span

STATUS_VERSION = 1
WATCH_PAUSE = 1.0  # seconds


def show(start: Path, *, as_json: bool = False, everything: bool = False) -> int:
    """Print the Issues of the repository around `start`; 1 when one of them cannot be read."""
    standing = locate(start)
    root = standing.common / "issueflow"
    found = listing(root, lambda name: _reload(root, name), everything=everything)
    if as_json:
        print(json.dumps(_document(root, found), indent=2))
        return 1 if found.broken else 0
    if not found.rows and not found.broken:
        say("no Issues here yet")
        say(f"next: {_first_step(standing)}")
        return 0
    if found.rows:
        overview([(row, live(root, row)) for row in found.rows], sys.stdout)
    if found.hidden:
        say(f"{found.hidden} more have ended; issueflow status --all shows them")
    for sentence in found.broken.values():
        say(f"error: {line(sentence)}")
    for row in found.rows:
        if row["status"] not in ENDED and row["next"]:
            say(f"next: {row['next']}")
            break
    return 1 if found.broken else 0


def _first_step(standing: Standing) -> str:
    """What a person does where there is no Issue yet."""
    if standing.worktree is None:
        return "git worktree add ../work"  # a bare repository has no files for an agent to work on
    set_up = (standing.worktree / ".issueflow" / "config.yaml").exists()
    return "issueflow new REQUIREMENT.md" if set_up else "issueflow init"


def watch(start: Path, *, everything: bool = False, only: str | None = None) -> int:
    """Print the listing, or its line of one Issue, again and again until Ctrl-C.

    On a terminal it is drawn anew, with the last lines that live runs printed; elsewhere printed when it has changed.
    """
    standing = locate(start)
    root = standing.common / "issueflow"
    shown = ""
    while True:
        found = listing(root, lambda name: _reload(root, name), everything=everything)
        lines = [(row, live(root, row)) for row in found.rows if only in (None, row["issue"])]
        if sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
            overview(lines, sys.stdout)
            for row, _ in lines:
                _print_tail(root, row)
            print("Ctrl-C ends", flush=True)
        elif (now := repr([(row["issue"], row["stage"], row["status"]) for row, _ in lines])) != shown:
            shown = now
            overview(lines, sys.stdout)
            sys.stdout.flush()
        time.sleep(WATCH_PAUSE)


def _print_tail(root: Path, row: Row) -> None:
    """The last lines of an Issue's open run, as `advance` shows them."""
    run = row["run"]
    if run and (last := last_lines(root / "issues" / row["issue"] / "runs" / run["run"])):
        print(f"\n{row['issue']} {run['run']}")
        for text in last:
            printed(text, sys.stdout)


def rows(root: Path) -> list[Row]:
    """Every Issue that can be read, the long ended ones aside."""
    return listing(root, lambda name: _reload(root, name)).rows


def live(root: Path, row: Row) -> str | None:
    """An Issue's open run in a few words: how long, who, how quiet; or that it is dead."""
    run = row["run"]
    if run is None:
        return None
    seen = glance(root / "issues" / row["issue"] / "runs" / run["run"], run["mark"])
    match seen.what:
        case "ended":
            return "run ended, not taken in yet"
        case "interrupted":
            return f"interrupted: {seen.detail}"
        case "unknown":
            return f"cannot tell whether it runs: {seen.detail}"
        case "running":
            quiet = [f"quiet {span(seen.quiet)}"] if seen.quiet > 10 else []
            return ", ".join([f"running {span(seen.seconds)}", run["agent"] or "checks", *quiet])
        case what:
            return what


def _document(root: Path, found: Listing) -> dict[str, Any]:
    """What `status --json` prints (docs/files.md); `version` grows when a field changes its meaning."""
    issues = [{**{k: v for k, v in row.items() if k != "run"}, "run": _run(root, row)} for row in found.rows]
    broken = [{"issue": name, "error": sentence} for name, sentence in found.broken.items()]
    return {"version": STATUS_VERSION, "issues": issues, "hidden": found.hidden, "broken": broken}


def _run(root: Path, row: Row) -> dict[str, Any] | None:
    run = row["run"]
    if run is None:
        return None
    seen = glance(root / "issues" / row["issue"] / "runs" / run["run"], run["mark"])
    about = {"run": run["run"], "agent": run["agent"], "worktree": run["worktree"], "state": seen.what}
    return about | {"seconds": round(seen.seconds, 1), "quiet": round(seen.quiet, 1)}


def _reload(root: Path, name: str) -> Row:
    """A row from a journal that has no summary of its own; imports what the short way does without."""
    from issueflow.engine.issues import find, load
    from issueflow.machine.state import row
    from issueflow.project import Project
    from issueflow.store.issue import IssueFolder

    folder = IssueFolder(root / "issues" / name)
    return row(load(folder if folder.exists() else find(Project(root.parent).hands(), name)))


def run_status(words: list[str]) -> int | None:
    """`status` and `status --json` from the bare words of the command line; None when they say anything else."""
    if words not in (["status"], ["status", "--json"]):
        return None
    return show(Path.cwd(), as_json="--json" in words)
