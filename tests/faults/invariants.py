"""What must hold after a fault and one `issueflow resume`, read from disk: I1 to I9 of docs/faults.md."""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from issueflow.engine.issues import load
from issueflow.machine import Position
from issueflow.store.issue import Store

OURS = ("lock", "alive.lock")  # held by a process, not by being there


def git(repo: Path, *words: str) -> str:
    """Plain git, as a person runs it; AssertionError when it fails."""
    done = subprocess.run(["git", "-C", os.fspath(repo), *words], capture_output=True, check=False)
    assert done.returncode == 0, f"git {' '.join(words)}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode(errors="replace")


def positions(repo: Path) -> list[Position]:
    """Where every Issue stands, read without changing anything."""
    store = Store(repo / ".git")
    return [load(store.issue(name)) for name in store.ids()]


def outcome(position: Position) -> tuple[Any, ...]:
    """What two walks to the same end have in common."""
    accepted = [f"{r.started.stage}:{r.ended.outcome.verdict}" for r in position.runs if r.ended]
    return position.status, position.stage, position.tree, accepted, [f.claim for f in position.findings]


def persons(repo: Path) -> dict[str, Any]:
    """Everything that is the person's: branch, index, settings, stash, and the files of the checkout."""
    files = {
        os.fspath(path.relative_to(repo)): digest(path)
        for path in sorted(repo.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(repo).parts
    }
    state = {name: digest(repo / ".git" / name) for name in ("index", "config", "HEAD")}
    return {**files, **state, "main": git(repo, "rev-parse", "main"), "status": git(repo, "status", "--porcelain")}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def state(repo: Path) -> dict[str, str]:
    """Every file of issueflow's, every ref and every worktree, to tell whether a command changed anything."""
    top = repo / ".git" / "issueflow"
    found = {os.fspath(p.relative_to(top)): digest(p) for p in top.rglob("*") if p.is_file() and p.name not in OURS}
    return found | {"refs": git(repo, "for-each-ref"), "worktrees": git(repo, "worktree", "list", "--porcelain")}


def unreadable(repo: Path) -> Iterator[str]:
    """I4, at every moment: files of ours that cannot be parsed."""
    for folder in (repo / ".git" / "issueflow" / "issues").glob("ISSUE-*"):
        for path in [*folder.glob("*.json"), *folder.glob("runs/*/*.json"), folder / "issue.yaml"]:
            try:
                if path.suffix == ".json":
                    json.loads(path.read_bytes())
                elif path.exists():
                    YAML(typ="safe", pure=True).load(path.read_text())
            except Exception as error:
                yield f"I4 {path.name} cannot be read: {error}"


def broken(repo: Path, bench: Path, before: dict[str, Any], approvals: int) -> Iterator[str]:
    """I2 to I7 and I9 at the end of a walk; `approvals` is how often a person typed `approve`."""
    issues = positions(repo)
    yield from _starts(bench)
    yield from _lost(repo, bench, issues)
    yield from unreadable(repo)
    checked = subprocess.run(
        ["git", "-C", os.fspath(repo), "fsck", "--full", "--no-dangling"], capture_output=True, text=True, check=False
    )
    if checked.returncode or checked.stderr.strip() or checked.stdout.strip():
        yield f"I5 fsck: {checked.stdout} {checked.stderr}"
    after = persons(repo)
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            yield f"I6 the person's {name} has changed"
    yield from _left_over(repo, issues)
    given = sum(1 for position in issues for decision in position.decided if decision.verb == "approve")
    if given > approvals:
        yield f"I9 {given} approvals, and a person gave {approvals}"


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _starts(bench: Path) -> Iterator[str]:
    marks = [words[0] for words in _lines(bench / "starts") if words]
    for mark in {mark for mark in marks if marks.count(mark) > 1}:
        yield f"I2 the agent of {mark} was started {marks.count(mark)} times"


def _lost(repo: Path, bench: Path, issues: list[Position]) -> Iterator[str]:
    tips = {f"{p.issue}/{r.started.name}": r.tip for p in issues for r in p.runs}
    reachable = set(git(repo, "rev-list", "--all").split())
    for mark, commit in _lines(bench / "commits"):
        if commit not in reachable:
            yield f"I3 commit {commit[:12]} of {mark} is on no ref"
    for mark, name in _lines(bench / "wrote"):
        tip = tips.get("/".join(mark.split("/")[:2]))
        if tip is None or name not in git(repo, "ls-tree", "-r", "--name-only", tip).split():
            yield f"I3 file {name} of {mark} is lost"


def _left_over(repo: Path, issues: list[Position]) -> Iterator[str]:
    common = repo / ".git"
    ours = {r.started.worktree for p in issues for r in p.runs}
    for entry in (common / "worktrees").glob("*"):
        back = os.path.dirname((entry / "gitdir").read_text().strip()) if (entry / "gitdir").exists() else ""
        if back not in ours or not os.path.isdir(back):
            yield f"I7 worktree entry {entry.name} of nothing ({back})"
    for folder in repo.with_name(repo.name + ".issueflow").glob("*/*"):
        if os.fspath(folder) not in ours:
            yield f"I7 left-over worktree {folder}"
    for path in common.rglob("*"):
        name = path.name
        if (name.endswith(".lock") and name not in OURS) or name.endswith((".tmp", ".gone", "refs.new")):
            yield f"I7 left-over {path.relative_to(common)}"
    for folder in ("trash", "new"):
        yield from (f"I7 left in {folder}: {path.name}" for path in (common / "issueflow" / folder).glob("*"))
