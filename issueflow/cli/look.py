"""Verbs that only look: status, show, diff, log, logs, attach, verify; none takes a lock."""

import os
import sys
import time
from codecs import getincrementaldecoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from issueflow.cli.common import IssueArgument, is_issue, issue_id, project, say_next
from issueflow.errors import IssueflowError, WrongWords
from issueflow.views import answer, clean, is_terminal, line, say
from issueflow.views import diff as show_diff

if TYPE_CHECKING:
    from issueflow.machine import Position, Run
    from issueflow.project import Project
    from issueflow.store.issue import IssueFolder

PAUSE = 0.25  # seconds between looks at a log that is followed


def status(
    issue: Annotated[
        str | None, typer.Argument(metavar="[ISSUE]", show_default=False, help="One Issue in full.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts; docs/files.md describes it.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the Issues that ended long ago.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again every second until Ctrl-C, on a terminal with what runs print.")
    ] = False,
    tell_code: Annotated[
        bool,
        typer.Option("--exit-code", help="With ISSUE: 4 held or failed, 5 waiting for you, 6 running."),
    ] = False,
) -> int:
    """Show where everything stands, and what is next

    Example: issueflow status ISSUE-7
    """
    from issueflow.cli import overview

    if watch:
        only = issue_id(project(), issue) if issue else None
        return overview.watch(Path.cwd(), everything=everything, only=only)
    if issue is None:
        return overview.show(Path.cwd(), as_json=as_json, everything=everything)
    here = project()
    name = issue_id(here, issue)
    code = _status_of(here, name, as_json)
    return standing_code(here.store.issue(name)) if tell_code else code


def standing_code(folder: "IssueFolder") -> int:
    """The exit code that tells where an Issue stands."""
    from issueflow.engine.issues import load

    return {"held": 4, "failed": 4, "waiting": 5, "running": 6}.get(load(folder).status, 0)


def _status_of(here: "Project", name: str, as_json: bool) -> int:
    from issueflow.cli import overview
    from issueflow.engine.issues import find, load
    from issueflow.machine.state import row, state
    from issueflow.views import detail

    folder = here.store.issue(name)
    if not folder.exists():
        folder = find(here.hands(), name)
    position = load(folder)
    if as_json:
        _print_json({"version": overview.STATUS_VERSION, "issue": state(position)})
        return 0
    live = overview.live(here.store.root, row(position))
    extra = [*_extra(here, folder, position), ("used", _used(position))]
    detail(state(position), live, extra, sys.stdout)
    if "merged" not in dict(extra):
        say_next(position)
    return 0


def _extra(here: "Project", folder: "IssueFolder", position: "Position") -> list[tuple[str, str]]:
    """What only this form of status may ask git for, or look at other files for."""
    from issueflow.engine.issues import dispute

    extra = []
    base_name = position.created.base_name
    if base_name and (note := here.repository.behind_upstream(base_name)):
        extra.append(("upstream", note))
    if base_name and here.repository.commit(base_name):
        if position.status == "delivered" and here.repository.is_ancestor(position.head, base_name):
            return [*extra, ("merged", f"{base_name.removeprefix('refs/heads/')} holds it")]
        behind = here.repository.count(f"{position.base}..{base_name}")
        if behind:
            extra.append(("behind", f"{base_name.removeprefix('refs/heads/')} has {behind} commits more by now"))
    if wrong := dispute(here.repository, folder):
        extra.append(("damaged", str(wrong)))
    if folder.edited() is not None:
        extra.append(
            ("edited", f"{folder.folder / 'issue.yaml'} was changed by hand; it is not read, and saved beside")
        )
    if position.runs and (where := _where_it_may_vanish(here, position)):
        extra.append(("worktrees", where))
    if position.hold:
        extra.append(("question", position.hold.reason))
    extra += [("asked", question) for question in position.questions]
    return extra


def _used(position: "Position") -> str:
    """What all runs used, and of how many nothing is known."""
    from issueflow.machine import usage

    sum_, unknown = usage.total(position.runs), usage.unknown(position.runs)
    return usage.in_words(sum_) + (f"; of {unknown} runs unknown" if sum_ and unknown else "")


def _where_it_may_vanish(here: "Project", position: "Position") -> str:
    """Said when worktrees.root leads into a folder that is swept; a repository in such a folder knows no better."""
    from issueflow.engine.doctor import is_swept

    worktree = Path(position.runs[-1].started.worktree)
    if not is_swept(worktree) or is_swept(here.place.common):
        return ""
    return f"{worktree.parent} is in a folder that systems empty by themselves (worktrees.root in config.yaml)"


def _print_json(value: dict[str, Any]) -> None:
    import json

    print(json.dumps(value, indent=2))


def show(
    issue: IssueArgument = None,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[WHAT]",
            show_default=False,
            help="requirement, plan, report, review, checks, findings, checklist, state, run or decision.",
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", show_default=False, help="Which run or decision.")
    ] = None,
    path: Annotated[bool, typer.Option("--path", help="Print where it lies instead.")] = False,
) -> int:
    """Show a document, a review, a run, a decision of an Issue

    Without WHAT: what waits for a decision, else the state.

    Example: issueflow show ISSUE-7 plan
    """
    from issueflow.engine.issues import find, load

    here = project()
    if issue is not None and not is_issue(issue):  # `issueflow show run 5`, where one Issue is open
        number = int(what) if what and what.isdigit() else number
        issue, what = None, issue
    folder = find(here.hands(), issue_id(here, issue))
    position = load(folder)
    text, file = _shown(folder, position, what or ("presented" if position.status == "waiting" else "state"), number)
    if path:
        _print_text(os.fsencode(file))
    else:
        _print_text(text.encode())
    return 0


def _shown(folder: "IssueFolder", position: "Position", what: str, number: int | None) -> tuple[str, Path]:
    """What is asked for as text, and the file it comes from."""
    from issueflow.machine.state import state
    from issueflow.store.text import to_yaml
    from issueflow.views import findings

    match what:
        case "requirement":
            file = folder.requirement(position.requirement.version)
            return file.read_bytes().decode(errors="replace"), file
        case "state":
            # From the journal: the file may be gone, or somebody's edit, which says nothing about the Issue.
            return to_yaml(state(position)), folder.folder / "issue.yaml"
        case "findings":
            items = [finding.model_dump() for finding in position.findings]
            return findings(items) or "no open findings", folder.journal
        case "checklist":
            return "\n".join(
                f"{c.id:<4} {c.text}  ({c.source})" for c in position.checklist
            ) or "no checklist", folder.journal
        case "review" | "checks" | "verify":
            return _last_outcome(folder, position, "review" if what == "review" else "check")
        case "run":
            return _run_text(folder, position, number)
        case "decision":
            return _decision_text(position, number), folder.journal
        case "presented":
            return _presented(folder, position), folder.journal
        case _:
            return _document(folder, position, what)


def _document(folder: "IssueFolder", position: "Position", what: str) -> tuple[str, Path]:
    name = what if position.current(what) else f"{what}.md"
    document = position.current(name)
    if document is None:
        named = ["requirement", "state", "review", "checks", "findings", "checklist", "run", "decision"]
        known = [*named, *position.documents]
        raise WrongWords(
            f"{position.issue} has no {what} (there are: {', '.join(known)})", f"issueflow status {position.issue}"
        )
    file = folder.document(name, document.version)
    return file.read_bytes().decode(errors="replace"), file


def _last_outcome(folder: "IssueFolder", position: "Position", kind: str) -> tuple[str, Path]:
    stages = position.workflow.stages
    runs = [run for run in position.runs if run.ended and stages[run.started.stage].kind == kind]
    if not runs:
        raise WrongWords(f"{position.issue} has no {kind} yet", f"issueflow status {position.issue}")
    return _run_text(folder, position, runs[-1].started.run)


def _run_text(folder: "IssueFolder", position: "Position", number: int | None) -> tuple[str, Path]:
    runs = {run.started.run: run for run in position.runs}
    if not runs:
        raise WrongWords(f"{position.issue} has no runs yet", f"issueflow advance {position.issue}")
    run = runs.get(number if number is not None else max(runs))
    if run is None:
        raise WrongWords(
            f"{position.issue} has no run {number} (it has 1 to {max(runs)})", f"issueflow status {position.issue}"
        )
    return describe(run), folder.run(run.started.name)


def _decision_text(position: "Position", number: int | None) -> str:
    """A person's decision, counted from 1 in the order they were made; the newest when no number is given."""
    from issueflow.views import findings

    count = len(position.decided)
    if not count:
        raise WrongWords(f"nobody has decided anything on {position.issue} yet", f"issueflow status {position.issue}")
    if number is not None and not 1 <= number <= count:
        raise WrongWords(
            f"{position.issue} has no decision {number} (it has 1 to {count})", f"issueflow log {position.issue}"
        )
    decision = position.decided[(number or count) - 1]
    bound = decision.evidence
    rows = [
        ("decision", f"{number or count} of {count}: {decision.verb} at {decision.stage}"),
        ("by", f"{decision.by}, {decision.at}"),
        (
            "bound to",
            f"requirement {bound.requirement[:12]}, workflow {bound.workflow[:12]}, plan {bound.plan or 'none'}",
        ),
        ("code", f"base {bound.base[:12]}, head {bound.head[:12]}, tree {bound.tree[:12]}"),
    ]
    text = "".join(f"{name:<9} {value}\n" for name, value in rows)
    text += f"\n{decision.message}\n" if decision.message else ""
    return text + ("\n" + findings(f.model_dump() for f in decision.findings) if decision.findings else "")


def describe(run: "Run") -> str:
    """A run in words: what it was given, what it said, what the engine made of it."""
    from issueflow.machine import usage
    from issueflow.views import findings

    started, ended = run.started, run.ended
    parts = [
        f"{started.name}  round {started.round}, attempt {started.attempt}, {started.agent or 'checks'}",
        f"base      {started.base[:12]}",
        f"worktree  {started.worktree}",
    ]
    if run.session:
        parts.append(f"session   {run.session}" + (" (went on with)" if started.resumes else ""))
    if run.dropped:
        return "\n".join([*parts, f"result    died: {run.dropped.reason}", f"commit    {run.tip[:12]}"])
    if ended is None:
        return "\n".join([*parts, "result    not yet"])
    outcome = ended.outcome
    parts += [f"result    {outcome.verdict or outcome.cls}" + (f" ({outcome.cls})" if outcome.verdict else "")]
    parts += [
        f"commit    {run.tip[:12]}" + ("" if ended.code.changed else " (unchanged)"),
        f"exit      {ended.exit.status}",
    ]
    if started.agent:
        parts.append(f"used      {usage.in_words(ended.usage)}")
    if outcome.reviewed:
        parts.append(f"reviewed  {outcome.reviewed}")
    lists = {
        "refused": outcome.errors,
        "checks": [
            f"{c.command}: exit {c.exit_code}" + (" (time limit)" if c.timed_out else "") for c in outcome.checks
        ],
        "answers": [f"{r.finding} {r.action}: {r.reason}" for r in outcome.responses],
        "covered": [f"{c.id}: {c.evidence}" for c in outcome.covered],
        "missing": outcome.missing,
        "commands": [f"{c.command}: exit {c.exit_code}" for c in outcome.commands_run],
        "not run": [f"{n.item}: {n.reason}" for n in outcome.not_run],
        "open problems": outcome.open_problems,
        "questions": outcome.questions,
        "noticed": ended.code.noticed,
        "kept": ended.code.kept,
    }
    text = "\n".join(parts)
    text += f"\n\n{outcome.summary}\n" if outcome.summary else "\n"
    if outcome.findings:
        text += "\n" + findings(f.model_dump() for f in outcome.findings) + "\n"
    for name, items in lists.items():
        if items:
            text += f"\n{name}:\n" + "".join(f"  {item}\n" for item in items)
    return text


def _presented(folder: "IssueFolder", position: "Position") -> str:
    """What a person is asked to decide on, all of it in one place."""
    from issueflow.machine.chain import skips
    from issueflow.views import findings

    issue, parts = (
        position.issue,
        [f"{position.issue} {position.stage}: waiting for you", f"title: {position.created.title}"],
    )
    for name in position.kind().presents:
        document = position.current(name)
        if document:
            text = folder.document(name, document.version).read_bytes().decode(errors="replace")
            parts.append(f"── {name}, version {document.version} ──\n{text.rstrip()}")
        elif name == "diff":
            parts.append(f"── diff: {position.base[:12]}..{position.head[:12]} ──\n(issueflow diff {issue})")
        elif name == "open_findings" and position.findings:
            parts.append("── open findings ──\n" + findings(f.model_dump() for f in position.findings))
        elif name == "checklist" and position.checklist:
            parts.append("── checklist ──\n" + "\n".join(f"{c.id:<4} {c.text}" for c in position.checklist))
        elif name in position.workflow.stages:
            parts.append(f"── {name} ──\n{_verdict_of(position, name)}")
    if (run := position.head_run) and run.ended and run.ended.outcome.no_change:
        parts.append(f"nothing was changed: {run.ended.outcome.no_change}")
    for question in (*position.questions, *(d.question for d in position.decisions)):
        parts.append(f"asked: {question}")
    for skipped in skips(position):
        parts.append(f"skipped: {skipped.stage}, by {skipped.by}: {skipped.reason}")
    for item in position.not_run:
        parts.append(f"not run: {item.item} ({item.reason})")
    parts.append(f"approve: issueflow approve {issue}\nsend back: issueflow request-changes {issue} -m TEXT")
    return "\n\n".join(parts)


def _verdict_of(position: "Position", stage: str) -> str:
    runs = [run for run in position.runs if run.started.stage == stage and run.ended]
    if not runs or not runs[-1].ended:
        return "not run"
    outcome = runs[-1].ended.outcome
    lines = [f"{c.command}: exit {c.exit_code}, {c.seconds} s" for c in outcome.checks]
    return "\n".join([f"{outcome.verdict}: {outcome.summary}", *lines])


def _print_text(data: bytes) -> None:
    """As it is into a pipe or a file; cleaned on a terminal, which would obey what it is sent."""
    if is_terminal(sys.stdout):
        answer(data.decode(errors="replace").rstrip("\n"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")
    sys.stdout.buffer.flush()


def diff(
    issue: IssueArgument = None,
    what: Annotated[
        str | None,
        typer.Argument(metavar="[STAGE|RUN]", show_default=False, help="Only what this stage's last run changed."),
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", help="Files and line counts only.")] = False,
) -> int:
    """Show the change from the Issue's base to its head

    Example: issueflow diff ISSUE-7 --stat
    """
    from issueflow.engine.issues import find, load
    from issueflow.git import review

    here = project()
    hands = here.hands()
    if issue is not None and not is_issue(issue):  # `issueflow diff develop`
        issue, what = None, issue
    position = load(find(hands, issue_id(here, issue)))
    base, head = (position.base, position.head) if what is None else _run_range(position, what)
    show_it = review.stat if stat else review.patch
    data = show_it(hands.repository, base, head)
    if not data.strip():
        say("no change")
    elif is_terminal(sys.stdout):
        show_diff(data.decode(errors="replace").rstrip("\n"))
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0


def _run_range(position: "Position", what: str) -> tuple[str, str]:
    runs = [run for run in position.runs if what in (run.started.stage, run.started.name, str(run.started.run))]
    if not runs:
        raise WrongWords(f"{position.issue} has no run or stage {what}", f"issueflow status {position.issue}")
    return runs[-1].started.base, runs[-1].tip


def log(issue: IssueArgument = None) -> int:
    """Show an Issue's history, oldest first

    The same history lies in git: git log refs/issueflow-records/ISSUE-7.

    Example: issueflow log ISSUE-7
    """
    from issueflow.engine.issues import find, load, message
    from issueflow.machine import fold

    here = project()
    folder = find(here.hands(), issue_id(here, issue))
    load(folder)
    entries = folder.entries()
    for count, entry in enumerate(entries, 1):
        subject = message(fold(entries[:count]), entry).splitlines()[0].removeprefix(f"{folder.name}: ")
        answer(f"{entry.at.replace('T', ' ').removesuffix('Z')}  {line(subject)}")
    return 0


def logs(
    issue: IssueArgument = None,
    number: Annotated[
        int | None, typer.Argument(metavar="[RUN]", show_default=False, help="Which run; the last.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="The bytes as they are, escapes included.")] = False,
) -> int:
    """Show what a run's agent printed

    Example: issueflow logs ISSUE-7 -f
    """
    from issueflow.engine.issues import find, load

    here = project()
    folder = find(here.hands(), issue_id(here, issue))
    position = load(folder)
    _, run = _run_text(folder, position, number)
    copies = [_LogCopy(run / name, raw) for name in ("stdout.log", "stderr.log")]
    try:
        while True:
            ended = (run / "exit.json").exists()  # looked at first: what was written before it is then all there is
            for copy in copies:
                copy.go_on()
            if not follow or ended or not _is_open(folder, run):
                break
            time.sleep(PAUSE)
        for copy in copies:
            copy.finish()
        return 0
    except KeyboardInterrupt:
        return 130


def _is_open(folder: "IssueFolder", run: Path) -> bool:
    from issueflow.engine.issues import load

    position = load(folder)
    return bool(position.open_run and position.open_run.name == run.name)


class _LogCopy:
    """A log on its way to standard output; what has been printed is not read again."""

    def __init__(self, path: Path, raw: bool) -> None:
        self.path, self.raw = path, raw
        self.start = 0
        # A character, or the two of a line's end, may stand in two chunks, and those far apart in time.
        self.decoder, self.held = getincrementaldecoder("utf-8")("replace"), ""

    def go_on(self) -> None:
        """Print what the log has gained."""
        try:
            log = self.path.open("rb")
        except FileNotFoundError:
            return
        with log:
            log.seek(self.start)
            while chunk := log.read(1 << 16):
                self.start += len(chunk)
                self._print(chunk)
        sys.stdout.flush()

    def _print(self, chunk: bytes) -> None:
        if self.raw:
            sys.stdout.buffer.write(chunk)
            return
        text = self.held + self.decoder.decode(chunk)
        self.held = "\r" if text.endswith("\r") else ""
        sys.stdout.write(clean(text.removesuffix("\r").replace("\r\n", "\n")))

    def finish(self) -> None:
        """Print what was held back for want of its rest."""
        sys.stdout.write(clean(self.held + self.decoder.decode(b"", final=True)))
        sys.stdout.flush()


def attach(
    issue: IssueArgument = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Not only look: scroll, open a shell in the worktree.")
    ] = False,
) -> int:
    """Look at a live run in its tmux session

    For runs on the host `tmux` (`host: tmux` in config.yaml). C-b d leaves; the run goes on, as it does when the
    session is closed.

    Example: issueflow attach ISSUE-7
    """
    from issueflow import hosts
    from issueflow.engine.issues import find, load
    from issueflow.engine.person import refuse_inside_run
    from issueflow.engine.sight import is_alive

    refuse_inside_run("attach")
    here = project()
    name = issue_id(here, issue)
    folder = find(here.hands(), name)
    position = load(folder)
    started = position.open_run
    if started is None or not is_alive(folder, position):
        raise IssueflowError(f"{name} has no run that is alive", f"issueflow status {name}")
    argv = hosts.host(started.host).attach(folder.run(started.name), take_over=take_over)
    by_log = f"issueflow logs {name} -f"
    if argv is None:
        raise IssueflowError(f"run {started.name} is on the host {started.host}, which has no terminal", by_log)
    if not (os.isatty(0) and os.isatty(1)):
        raise IssueflowError("attach needs a terminal", by_log)
    os.environ.pop("TMUX", None)  # inside a tmux of the person's, another server's client would refuse to start
    os.execvp(argv[0], argv)


def verify(issue: IssueArgument = None) -> int:
    """Check the chain of evidence

    From the requirement to the delivered head: every verdict and approval with the version and commit it is bound
    to; exit code 1 where the chain breaks.

    Example: issueflow verify ISSUE-7
    """
    from issueflow.engine.issues import find, load
    from issueflow.engine.verify import examine

    here = project()
    hands = here.hands()
    folder = find(hands, issue_id(here, issue))
    position = load(folder)
    broken = 0
    for finding in examine(hands, folder, position):
        broken += not finding.holds
        mark, style = ("✓", "green") if finding.holds else ("✗", "red")
        answer(f"{mark} {finding.what:<16} {line(finding.detail)}", style)
    say("the chain holds" if not broken else f"the chain breaks in {broken} place{'' if broken == 1 else 's'}")
    return 1 if broken else 0
