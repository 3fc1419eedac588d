"""Acts 5 to 7 of a run: record what the agent left, judge what it claims, write the entry that makes it count."""

import contextlib
import os
import shlex
import stat
import time
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from issueflow import agents
from issueflow.agents.stream import shorten
from issueflow.engine import launch, order, surroundings
from issueflow.engine.hands import Hands
from issueflow.engine.issues import write
from issueflow.errors import Damaged, IssueflowError
from issueflow.files import claim_file, crash_point, make_folder, read_json, replace_file, to_json
from issueflow.git import review, snapshot, worktrees
from issueflow.git.command import ZERO
from issueflow.git.worktrees import Place
from issueflow.hosts import process, processes
from issueflow.machine import Facts, Position, Submission, evidence, judge, usage
from issueflow.machine.judge import MOST_BYTES, judge_checks
from issueflow.models import (
    RUN_FOLDER,
    AgentResult,
    CheckRun,
    Code,
    Document,
    Dropped,
    Ended,
    Exit,
    Outcome,
    Result,
    Started,
    Usage,
    branch_name,
    keep_ref,
)
from issueflow.store.issue import IssueFolder, sha256

MOST_OUTPUT = 256 * 1024  # bytes of an agent's output in which a result is looked for, from its end
MOST_STREAM = 16 * 1024 * 1024  # bytes of an agent's events that are read; of more, the beginning and the end
BEGINNING = 64 * 1024
MOST_DOCUMENT = 1024 * 1024  # bytes of one produced document


def collect(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    """Take in an ended run: snapshot, outputs, judgement, `ended`."""
    started = _open(position)
    run = folder.run(started.name)
    if not process.is_over(run):
        raise _not_its_runner(position, run)
    how = _exit(run)
    return _finish(hands, folder, position, started, how)


def drop(hands: Hands, folder: IssueFolder, position: Position, reason: str) -> Position:
    """Write off a run that is proven dead, keeping all it had written.

    A complete and valid result that it had handed in before it died still counts: nothing was left for it to do.
    """
    started = _open(position)
    run = make_folder(folder.run(started.name))
    lost = Exit(status="lost", ended=int(time.time()), detail=reason[:500])
    claim_file(run / "exit.json", to_json(lost.model_dump()))
    crash_point("drop.lost")
    return _finish(hands, folder, position, started, _exit(run))


def _open(position: Position) -> Started:
    assert position.open_run is not None
    return position.open_run


def _not_its_runner(position: Position, run: Path) -> IssueflowError:
    """An exit record beside a living runner, which would have written it last, is set aside: the run goes on."""
    aside = run / "exit.json.foreign"
    (run / "exit.json").replace(aside)
    sentence = f"the exit record of run {run.name} was not written by its runner, which still works; it is now {aside}"
    return IssueflowError(sentence, f"issueflow advance {position.issue}")


def _exit(run: Path) -> Exit:
    try:
        return Exit.model_validate(read_json(run / "exit.json"))
    except (ValueError, ValidationError) as error:
        raise Damaged(
            f"{run / 'exit.json'} cannot be read: {error}", f"cat {shlex.quote(str(run / 'exit.json'))}"
        ) from error


def _finish(hands: Hands, folder: IssueFolder, position: Position, started: Started, how: Exit) -> Position:
    run = folder.run(started.name)
    code, facts = _record_code(hands, position, started, run, how)
    report, agent = _report(hands, started, run, how)
    facts = replace(facts, failed=report.succeeded is False, problem=report.problem)
    outcome, result = _judge(hands, position, started, run, facts, report)
    code = _about_report(code, report, outcome)
    code = _about_secrets(hands, started, run, code, result)
    if how.status == "lost" and outcome.cls != "accepted":
        return write(
            hands,
            folder,
            lambda **head: Dropped(**head, run=started.run, reason=how.detail, code=code, session=report.session),
        )
    if result is not None:
        outcome = outcome.model_copy(
            update={"documents": _keep_documents(hands, folder, position, started, run, result)}
        )
    crash_point("collect.documents")
    replace_file(run / "accepted.json", outcome.model_dump_json(indent=2, exclude_defaults=True))
    crash_point("collect.judged")
    bound = evidence(position)
    return write(
        hands,
        folder,
        lambda **head: Ended(
            **head,
            run=started.run,
            exit=how,
            code=code,
            outcome=outcome,
            evidence=bound,
            session=report.session,
            usage=_used(position, started, report, agent),
        ),
    )


def _used(position: Position, started: Started, report: agents.Report, agent: agents.Agent | None) -> Usage | None:
    """The run's own usage: of what its CLI tells of a whole conversation, what earlier runs used is taken off."""
    if report.usage is None or agent is None:
        return None
    can, running = agent.CAPABILITIES, set()
    running |= {"input", "output", "cached"} if can.usage == "conversation" else set()
    running |= {"cost_usd"} if can.cost == "conversation" else set()
    return usage.own_share(position, report.session or started.session, report.usage, frozenset(running))


def _about_report(code: Code, report: agents.Report, outcome: Outcome) -> Code:
    """What its CLI told that a result beside it must not hide."""
    told = [f"its CLI denied it {denied}" for denied in report.denials]
    if outcome.cls == "accepted" and report.succeeded is False:
        told.append(f"its CLI told of a failure: {report.problem.say() if report.problem else 'it did not say why'}")
    return code.model_copy(update={"noticed": (*code.noticed, *told)})


# ── act 5: the code ──


def _record_code(hands: Hands, position: Position, started: Started, run: Path, how: Exit) -> tuple[Code, Facts]:
    """Commit what the agent left on its branch, keep what it committed elsewhere, and note what else it did."""
    place = launch.place_of(run)
    noticed: list[str] = []
    tip, tree, changed, kept = started.base, started.base_tree, False, []
    unfinished = None
    if place is not None:
        unfinished = worktrees.unfinished(place)
        branch = f"refs/heads/{branch_name(position.created.prefix, position.issue, started.name)}"
        _free_locks(place, hands.repository.lock_of(branch))
        found = hands.repository.refs(branch).get(branch, ZERO)
        tip, tree = _snapshot(hands, position, started, run, place, found, how, noticed)
        changed = tree != started.base_tree or (found not in (ZERO, started.base))
        before = read_json(run / "baseline.json") or {}
        known = [value for name, value in before.items() if name.startswith("ref ")]
        kept = _keep_strays(hands, position, started, place, known, found, tip)
        if tip != found:
            hands.repository.move(branch, tip, found)
        crash_point("collect.branch")
        _refresh_index(place, run)
        noticed += surroundings.compare(hands, position, run)
    tampered = (read_json(run / "tampered.json") or {}).get("files", [])
    noticed += [f"the run's {name} was changed while it worked, and put back" for name in tampered]
    code = Code(tip=tip, tree=tree, changed=changed, kept=tuple(kept), noticed=tuple(noticed))
    facts = Facts(
        exit=how,
        changed=changed,
        differs_from_head=tree != position.tree,
        unfinished=unfinished,
        target=order.reviewed(position, started),
        checklist=tuple(item.id for item in position.checklist),
        next_finding=position.next_finding,
    )
    return code, facts


def _free_locks(place: Place, branch_lock: Path) -> None:
    """Remove the lock files of a git that was killed with the run, unless somebody is at work in the worktree."""
    locks = [lock for lock in (branch_lock, *place.admin.glob("*.lock")) if lock.exists()]
    if locks and not processes.inside(place.path):
        for lock in locks:
            lock.unlink(missing_ok=True)


def _snapshot(
    hands: Hands,
    position: Position,
    started: Started,
    run: Path,
    place: Place,
    found: str,
    how: Exit,
    noticed: list[str],
) -> tuple[str, str]:
    """The commit that holds the run's work, and its tree; the same every time it is made again."""
    repository, tip = hands.repository, found or started.base
    if not place.path.is_dir():
        noticed.append(f"the worktree {place.path} is gone; what was not committed in it went with it")
        return tip, repository.tree(tip)
    if not worktrees.is_ours(place):
        noticed.append(f"the .git file of {place.path} was replaced or removed")
    lens = launch.lens_of(repository.common, run, place)
    if lens is None:
        noticed.append("the private git directory of this run is gone; compared with its base instead")
        lens = snapshot.grind(repository, place, run / "git", hands.config.caches, touched=True)
    before = (read_json(run / "before.json") or {}).get("tree", started.base_tree)
    looked = snapshot.look(lens, more=snapshot.forced(lens, place, started.base, tip))
    special = snapshot.special_files(place.path, hands.config.caches)
    crash_point("collect.looked")
    noticed += [f"not recorded: {path} ({reason})" for path, reason in {*looked.left_out, *special}]
    tree = snapshot.overlay(lens, started.base, started.base_tree, tip, before, looked.tree)
    noticed += _unfiltered(lens, snapshot.differing(lens, started.base_tree, tree))
    descends = tip == started.base or repository.is_ancestor(started.base, tip)
    if descends and tree == (started.base_tree if tip == started.base else repository.tree(tip)):
        return tip, tree
    parent = tip if descends else started.base
    if not descends:
        noticed.append("it rewrote history before its base; its work is recorded on top of the base")
    message = f"{position.issue}: {started.stage} round {started.round} (run {started.name})\n"
    made = repository.commit_tree(tree, [parent], message, started.identity, how.ended)
    crash_point("collect.committed")
    return made, tree


def _unfiltered(lens: snapshot.Lens, paths: set[bytes]) -> list[str]:
    return [
        f"the filter {name} that git attributes ask for is not set up here; recorded without it: {_some(files)}"
        for name, files in snapshot.unfiltered(lens, paths).items()
    ]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _keep_strays(
    hands: Hands, position: Position, started: Started, place: Place, known: list[str], found: str, tip: str
) -> list[str]:
    """Give a ref to every commit the worktree's HEAD ever was at: detached, on another branch, amended, reset away.

    Those that `tip` holds need none, nor does what refs held before the run (`known`): the agent only visited that.
    """
    seen = worktrees.commits_seen(place) + ([found] if found else [])
    kept = []
    strange = [commit for commit in dict.fromkeys(seen) if commit not in (tip, started.base)]
    for commit in worktrees.unreachable(hands.repository, strange, [tip, *known]):
        ref = keep_ref(position.issue, started.name, f"dropped-{commit}")
        hands.repository.make(ref, commit)
        kept.append(ref)
    return kept


def _refresh_index(place: Place, run: Path) -> None:
    """Let the worktree's own index show what is recorded, so that a person who looks in there sees a clean tree."""
    ours, theirs = run / "git" / "index", place.admin / "index"
    if ours.exists() and worktrees.is_registered(place) and not (place.admin / "index.lock").exists():
        replace_file(theirs, ours.read_bytes())


def _about_secrets(hands: Hands, started: Started, run: Path, code: Code, result: Result | None) -> Code:
    """What a person must know of secrets: where the run left one, and which could not be looked for.

    Copies of ours hold `[secret NAME]` in its place; what is committed is the agent's own and stays as it is.
    """
    secrets, place = hands.secrets, launch.place_of(run)
    asked = (read_json(run / "started.json") or {}).get("secrets", [])
    told = [
        f"{name} is not set here: what the run handed in was not searched for it"
        for name in asked
        if name not in secrets.values
    ]
    if secrets.values and place is not None:
        for name in secrets.found_in(_handed_in(place, result)):
            told.append(f"what it handed in holds the value of {name}; the copies of it say [secret {name}]")
        if code.tip != started.base:
            for name in secrets.found_in(review.added(hands.repository, started.base, code.tip)):
                told.append(f"the commit {code.tip[:12]} contains the value of {name}")
    noticed = (*(secrets.redact_text(words) for words in code.noticed), *told)
    return code.model_copy(update={"noticed": noticed})


def _handed_in(place: Place, result: Result | None) -> bytes:
    """The result file and the documents as they lie in the worktree."""
    named = [artifact.path for artifact in result.artifacts if artifact.path] if isinstance(result, AgentResult) else []
    found = b""
    for name in (f"{RUN_FOLDER}/result.json", *named):
        with contextlib.suppress(OSError):
            found += read_regular(place.path, name, MOST_DOCUMENT) + b"\n"
    return found


# ── act 6: outputs and judgement ──


def _judge(
    hands: Hands, position: Position, started: Started, run: Path, facts: Facts, report: agents.Report
) -> tuple[Outcome, Result | None]:
    stage = position.workflow.stages[started.stage]
    if stage.kind == "check":
        return judge_checks(_checks(run), facts.exit, started.stage, facts.next_finding), None
    place = launch.place_of(run)
    submission = _submission(hands, run, place, report)
    if submission.file is not None:
        replace_file(run / "result.json", submission.file)
    outcome, result = judge(position.issue, started, stage, submission, facts)
    if isinstance(result, AgentResult) and place is not None:
        errors = _document_errors(hands, result, place)
        if errors:
            return Outcome(cls="malformed", errors=tuple(errors)), None
    if result is None and place is not None:
        _save_outputs(hands, stage.produces, place, run)
    return outcome, result


def _checks(run: Path) -> tuple[CheckRun, ...]:
    found = read_json(run / "checks.json") or {"checks": []}
    return tuple(CheckRun.model_validate(item) for item in found["checks"])


def _report(hands: Hands, started: Started, run: Path, how: Exit) -> tuple[agents.Report, agents.Agent | None]:
    """What the agent's output says, read as its type in config.yaml writes it, and that type."""
    output = _ends(run / "stdout.log") if started.agent else ""
    settings = hands.config.agents.get(started.agent or "")
    agent = agents.agent(settings) if settings else None
    if agent is None:
        return agents.Report(output), None
    return agent.read(output, _tail(run / "stderr.log", MOST_OUTPUT), how.ended), agent


def _submission(hands: Hands, run: Path, place: Place | None, report: agents.Report) -> Submission:
    kept = run / "result.json"
    if kept.exists():  # taken in before a crash; the worktree may be gone by now
        return Submission(kept.read_bytes())
    message = report.message[-MOST_OUTPUT:]
    # A stream of events ends with figures; what the agent said stands before them.
    words = shorten(report.message) if report.succeeded is not None and report.message else _last_words(run)
    if place is None:
        return Submission(None, message, last_words=words)
    try:
        data = read_regular(place.path, f"{RUN_FOLDER}/result.json", MOST_BYTES + 1)
        return Submission(hands.secrets.redact(data), message)
    except FileNotFoundError:
        return Submission(None, message, last_words=words)
    except OSError as error:
        return Submission(None, message, f"result.json cannot be taken: {error.strerror}")


def _last_words(run: Path) -> str:
    """The last line the agent printed, on standard error if anything is there."""
    for name in ("stderr.log", "stdout.log"):
        lines = [row for row in _tail(run / name, 4_000).splitlines() if row.strip()]
        if lines:
            return lines[-1].strip()[:300]
    return ""


def _ends(path: Path) -> str:
    """A log, without its middle when it is too long to be read."""
    if not path.exists() or path.stat().st_size <= MOST_STREAM:
        return _tail(path, MOST_STREAM)
    with path.open("rb") as stream:
        return stream.read(BEGINNING).decode(errors="replace") + "\n" + _tail(path, MOST_STREAM - BEGINNING)


def _tail(path: Path, most: int) -> str:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - most))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def read_regular(folder: Path, name: str, most: int) -> bytes:
    """The content of a regular file below `folder`, at most `most` bytes of it; no link is followed in any component.

    Raises OSError with the reason: a link, a pipe, a folder, a name that leaves the folder.
    """
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
        raise OSError(0, "the name leaves the worktree")
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = below
        # O_NONBLOCK: opening a pipe for reading would wait for a writer that never comes.
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=handle)
    finally:
        os.close(handle)
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file")
        with os.fdopen(file, "rb", closefd=False) as stream:
            return stream.read(most)
    finally:
        os.close(file)


def _document_errors(hands: Hands, result: AgentResult, place: Place) -> list[str]:
    errors = []
    for artifact in result.artifacts:
        try:
            data = _document(hands, artifact.path, artifact.text, place.path)
        except OSError as error:
            errors.append(f"artifact {artifact.name} cannot be taken from {artifact.path}: {error.strerror}")
            continue
        if not data.strip():
            errors.append(f"artifact {artifact.name} is empty")
        elif len(data) > MOST_DOCUMENT:
            errors.append(f"artifact {artifact.name} is larger than {MOST_DOCUMENT} bytes")
    return errors


def _document(hands: Hands, path: str | None, text: str | None, worktree: Path) -> bytes:
    data = text.encode() if text is not None else read_regular(worktree, path or "", MOST_DOCUMENT + 1)
    return hands.secrets.redact(data)


def _keep_documents(
    hands: Hands, folder: IssueFolder, position: Position, started: Started, run: Path, result: Result
) -> tuple[Document, ...]:
    """Copy the produced documents into the Issue directory, each as its next version."""
    if not isinstance(result, AgentResult):
        return ()
    place = launch.place_of(run)
    assert place is not None
    kept = []
    make_folder(folder.folder / "artifacts")
    for artifact in result.artifacts:
        data = _document(hands, artifact.path, artifact.text, place.path)
        current = position.current(artifact.name)
        version = current.version + 1 if current else 1
        replace_file(folder.document(artifact.name, version), data)
        kept.append(Document(name=artifact.name, version=version, sha256=sha256(data), bytes=len(data)))
    return tuple(kept)


def _save_outputs(hands: Hands, names: tuple[str, ...], place: Place, run: Path) -> None:
    """Documents of a run without a usable result, for the run that is asked for the result only."""
    for name in names:
        try:
            data = read_regular(place.path, f"{RUN_FOLDER}/{name}", MOST_DOCUMENT)
        except OSError:
            continue
        replace_file(make_folder(run / order.OUTPUTS) / name, hands.secrets.redact(data))
