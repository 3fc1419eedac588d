"""What lies around a run — settings, hooks, refs, the person's checkout: kept before it, compared after it, put back.

Nothing here acts by itself: anybody may have made a change. But what decides which programs are run counts for no
further run once it has changed during one, until a person has put it back or said that it is meant.
"""

import base64
import os
import shutil
from pathlib import Path
from typing import Any

from issueflow.engine import person
from issueflow.engine.hands import Hands
from issueflow.engine.issues import find, settle, take_files, take_journal, take_record, write
from issueflow.errors import GitFailed, IssueflowError
from issueflow.files import make_folder, read_json, replace_file, to_json
from issueflow.git import baseline
from issueflow.git.command import ZERO
from issueflow.machine import Position
from issueflow.models import Noted, keep_ref
from issueflow.store.issue import IssueFolder

SUSPECTS = "suspects.json"
OPEN = "open"  # what decides which programs are run, as it was before each run that is not taken in yet
MOVABLE = (
    "refs/heads/",
    "refs/tags/",
    "refs/stash",
    "refs/replace/",
)  # refs that may be put back; a fetch moves others


def photograph(hands: Hands, position: Position, run: Path) -> None:
    """Keep what is there before the agent: digests of all of it, the content of small files, the list of stashes."""
    seen = baseline.take(hands.repository, position.created.prefix, hands.project)
    kept = {"files": baseline.contents(hands.repository, hands.project), "stashes": _stashes(hands)}
    replace_file(run / "kept.json", to_json(kept))
    replace_file(run / "baseline.json", to_json(seen))
    replace_file(make_folder(hands.store.root / OPEN) / _open_name(position, run), to_json(_executing(seen)))


def compare(hands: Hands, position: Position, run: Path) -> list[str]:
    """What is different after the run, in words; what a ref or the stash held is given a ref of ours."""
    before = read_json(run / "baseline.json")
    if before is None:
        return []
    after = baseline.take(hands.repository, position.created.prefix, hands.project)
    replace_file(run / "after.json", to_json(after))
    names = baseline.changed(before, after)
    for name in names:
        if name.startswith("ref "):
            _keep(hands, position, run, before.get(name), after.get(name))
    for stash in (read_json(run / "kept.json") or {}).get("stashes", []):
        if stash not in _stashes(hands):
            _keep(hands, position, run, stash, None)
    _suspect(hands, position, run, {name: after.get(name, "") for name in names if _is_executing(name)})
    (hands.store.root / OPEN / _open_name(position, run)).unlink(missing_ok=True)
    words = [baseline.in_words(name, before, after) for name in names]
    if any(_may_put_back(hands, name, before.get(name), after.get(name)) for name in names):
        words.append(f"to put back what was changed around it: issueflow resume {position.issue} --restore")
    return words


def _open_name(position: Position, run: Path) -> str:
    return f"{position.issue}.{run.name}.json"


def _is_executing(name: str) -> bool:
    return name.startswith(("setting ", "project "))


def _executing(seen: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in seen.items() if _is_executing(name)}


def _stashes(hands: Hands) -> list[str]:
    """Every stash, the newest last; read from the log, since the ref itself only names the newest."""
    try:
        lines = (hands.repository.common / "logs" / "refs" / "stash").read_bytes().splitlines()
    except OSError:
        return []
    return [line.split(b" ")[1].decode(errors="replace") for line in lines if line.count(b" ") >= 2]


def _keep(hands: Hands, position: Position, run: Path, old: str | None, new: str | None) -> None:
    """A commit that a ref no longer names would be swept away by a gc; what the new value contains needs no help."""
    if old is None or not hands.repository.commit(old):
        return
    if new is None or not hands.repository.commit(new) or not hands.repository.is_ancestor(old, new):
        hands.repository.make(keep_ref(position.issue, run.name, f"was-{old}"), old)


# ── what decides which programs are run ──


def _suspect(hands: Hands, position: Position, run: Path, found: dict[str, str]) -> None:
    if found:
        with hands.store.lock():
            known = read_json(hands.store.root / SUSPECTS) or {}
            known |= {name: {"digest": digest, "run": f"{position.issue}/{run.name}"} for name, digest in found.items()}
            replace_file(hands.store.root / SUSPECTS, to_json(known))


def refuse_changed(hands: Hands, issue: str, run: str = "") -> None:
    """IssueflowError when what would decide on the programs of the next run was changed during another run.

    `run` is the name of the run that is about to be prepared, whose own earlier preparation does not count.
    """
    suspects = read_json(hands.store.root / SUSPECTS) or {}
    others = [path for path in _open_runs(hands) if path.name != f"{issue}.{run}.json"]
    if not suspects and not others:
        return
    now = baseline.executing(hands.repository, hands.project)
    named = {name: about["run"] for name, about in suspects.items() if now.get(name, "") == about["digest"]}
    for path in others:
        before = read_json(path)
        if before is None:  # taken in a moment ago, by another process
            continue
        named |= dict.fromkeys(baseline.changed(before, now), path.stem.replace(".", "/", 1))
    if not named:
        (hands.store.root / SUSPECTS).unlink(missing_ok=True)
        return
    name, by = sorted(named.items())[0]
    kind, _, rest = os.fsencode(name).decode(errors="backslashreplace").partition(" ")
    what = f"{baseline.PROJECT}/{rest}"
    if kind == "setting":
        what = f"the git setting {rest} (`git config --show-origin --get-all {rest}` says where it stands)"
    more = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    raise IssueflowError(
        f"{what} was changed during run {by}{more}, by its agent or by you, and it decides which programs are run;"
        " --accept instead of --restore says that it is meant",
        f"issueflow resume {issue} --restore",
    )


def _open_runs(hands: Hands) -> list[Path]:
    """What was kept of runs that are not taken in yet; that of a run whose Issue was deleted meanwhile is no more."""
    found = []
    for path in (hands.store.root / OPEN).glob("*.json"):
        issue, _, run = path.stem.partition(".")
        if hands.store.issue(issue).run(run).is_dir():
            found.append(path)
    return found


def accept(hands: Hands) -> bool:
    """A person says that all is as it should be: further runs go by what is there now. Was anything in question?"""
    with hands.store.lock():
        suspected = (hands.store.root / SUSPECTS).exists()
        (hands.store.root / SUSPECTS).unlink(missing_ok=True)
        now = baseline.executing(hands.repository, hands.project)
        for path in _open_runs(hands):
            suspected = suspected or read_json(path) != now
            replace_file(path, to_json(now))
    return suspected


# ── putting back ──


def set_right(hands: Hands, name: str, *, restore: bool) -> list[str]:
    """A person has looked: put back what was changed, or take it as it is; what was done, in words, also as a note."""
    person.refuse_inside_run("resume")
    folder = find(hands, name)
    with folder.lock("resume"):
        story = take_record(hands, folder) if restore else take_journal(hands, folder)
        position = settle(hands, folder)
        said = [story] if story else []
        if restore:
            said += take_files(hands, folder, position) + put_back(hands, folder, position)
            said += _left(hands, name)
        if not restore and accept(hands):
            said.append("what was changed around the runs is meant")
        if said:
            text = "; ".join(said)[:20_000]
            write(hands, folder, lambda **head: Noted(**head, by=person.who(), text=text))
        return said


def _left(hands: Hands, name: str) -> list[str]:
    """What could not be put back, as it lies outside of the repository or belongs to a run that goes on."""
    try:
        refuse_changed(hands, name)
    except IssueflowError as error:
        return [f"not put back: {error}"]
    return []


def put_back(hands: Hands, folder: IssueFolder, position: Position) -> list[str]:
    """Put back what was changed during the Issue's runs and has not been changed since; what was done, in words.

    Newest run first, so that several changes of one thing are undone one after the other. What is replaced goes into
    the run's folder `replaced/`, or on a keep ref.
    """
    said: list[str] = []
    for ended in reversed(position.runs):
        run = folder.run(ended.started.name)
        before, after = read_json(run / "baseline.json"), read_json(run / "after.json")
        if before is None or after is None:
            continue
        now = baseline.take(hands.repository, position.created.prefix, hands.project)
        kept: dict[str, Any] = (read_json(run / "kept.json") or {}).get("files", {})
        for name in baseline.changed(before, after):
            if now.get(name) != after.get(name):
                continue
            path = baseline.place(hands.repository, hands.project, name)
            if path is not None and (name in kept or name not in before):
                _put_back(path, kept.get(name), run / "replaced" / name.partition(" ")[2])
                said.append(f"{path} is as it was before run {run.name}")
            elif name.startswith("ref ") and _may_move(hands, name[4:], before.get(name), after.get(name)):
                _move_back(hands, position, run, name[4:], before.get(name), after.get(name))
                said.append(f"{name[4:]} is as it was before run {run.name}")
    return said


def _may_put_back(hands: Hands, name: str, before: str | None, after: str | None) -> bool:
    if name.startswith("ref "):
        return _may_move(hands, name[4:], before, after)
    return baseline.place(hands.repository, hands.project, name) is not None


def _put_back(path: Path, kept: dict[str, Any] | None, aside: Path) -> None:
    if os.path.lexists(path):
        make_folder(aside.parent)
        while os.path.lexists(aside):
            aside = aside.with_name(f"{aside.name}~")
        if kept is None:
            shutil.move(path, aside)
            return
        shutil.copy2(path, aside, follow_symlinks=False)
    if kept is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, base64.b64decode(kept["base64"]))
        path.chmod(kept["mode"])


def _may_move(hands: Hands, ref: str, before: str | None, after: str | None) -> bool:
    """A ref that only went forward was moved by whoever works on it, and a new one is in nobody's way."""
    if not ref.startswith(MOVABLE):
        return False
    if before is None:
        return ref.startswith("refs/replace/")
    known = hands.repository.commit(before) is not None
    return known and (after is None or ref == "refs/stash" or not hands.repository.is_ancestor(before, after))


def _move_back(hands: Hands, position: Position, run: Path, ref: str, before: str | None, after: str | None) -> None:
    _keep(hands, position, run, after, before)
    try:
        if before is None:
            hands.repository.delete(ref, after or ZERO)
        else:
            hands.repository.move(ref, before, after or ZERO)
    except GitFailed as error:
        raise IssueflowError(f"{ref} was moved meanwhile: {error}", f"git log -1 {ref}") from error
