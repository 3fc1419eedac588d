"""Verbs that move an Issue: advance, resume, cancel; and how they tell what happens meanwhile."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from issueflow.cli.common import IssueArgument, exit_code, issue_id, project, remark, say_next
from issueflow.cli.look import standing_code
from issueflow.errors import WrongWords
from issueflow.views import answer, line, printed, say, span

if TYPE_CHECKING:
    from issueflow.engine.hands import Hands
    from issueflow.engine.inventory import Finding
    from issueflow.machine import Position, Run
    from issueflow.project import Project


class Teller:
    """Tells on standard error what happens: stages, verdicts, the agent's last raw lines, how long it has been."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.offsets: dict[str, int] = {}
        self.shown = ""
        self.heard = time.monotonic()
        self.run_folder: Path | None = None

    def began(self, position: "Position") -> None:
        """Name the run that is followed from now on."""
        run = position.open_run
        assert run is not None
        of = f"/{position.max_rounds}" if position.max_rounds else ""
        more = f", attempt {run.attempt}" if run.attempt > 1 else ""
        what = "asking for the result only" if run.continuation else run.agent or "checks"
        self.wipe()
        say(f"▸ {position.issue} {run.stage} · round {run.round}{of}{more} · {what}", "bold")
        self.heard = time.monotonic()

    def followed(self, position: "Position", why: str, seconds: float, run: Path) -> None:
        """Show what the agent printed since the last look, and on a terminal a line that says it is alive."""
        self.tail(run)
        if self.live:
            quiet = time.monotonic() - self.heard
            more = f" · quiet {span(quiet)}" if quiet > 10 else ""
            stage = position.open_run.stage if position.open_run else position.stage
            self.draw(f"  {stage} {why} · {span(seconds)}{more} · Ctrl-C leaves it running")

    def moved(self, before: "Position", after: "Position") -> None:
        """Tell what has happened between two positions, whoever did it."""
        self.wipe()
        if before.open_run and after.open_run != before.open_run:
            self.tail_of(after)
            self.closed(next(run for run in after.runs if run.started.run == before.open_run.run))
        if len(after.decided) > len(before.decided) and after.decided[-1].verb == "resume":
            say(f"  {after.stage} runs again")

    def closed(self, run: "Run") -> None:
        """Verdict, summary and whatever else a person should know of the run that has ended."""
        if run.dropped:
            say(f"  ✗ died: {line(run.dropped.reason)}; its work is kept at {run.tip[:12]}", "red")
            return
        ended = run.ended
        assert ended is not None
        outcome = ended.outcome
        good = outcome.verdict in ("done", "approve", "pass", "none")
        said = line(outcome.summary or "; ".join(outcome.errors))
        say(f"  {'✓' if good else '✗'} {outcome.verdict or outcome.cls}: {said}", "green" if good else "yellow")
        for finding in outcome.findings:
            say(f"    {finding.id} {finding.severity}: {line(finding.claim)}")
        for response in outcome.responses:
            say(f"    {response.finding} {response.action}: {line(response.reason)}")
        for noticed in ended.code.noticed:
            say(f"    note: {line(noticed)}")

    # ── output of the live run ──

    def tail_of(self, position: "Position") -> None:
        """What the ended run printed last."""
        if self.run_folder is not None:
            self.tail(self.run_folder)

    def tail(self, run: Path) -> None:
        """Print what both logs gained, line by line; a flood is cut to its last lines."""
        self.run_folder = run
        for name in ("stdout.log", "stderr.log"):
            lines = self.gained(run / name)
            if len(lines) > 20:
                lines = [f"… {len(lines) - 20} lines more in {run / name}", *lines[-20:]]
            for text in lines:
                self.wipe()
                self.heard = time.monotonic()
                printed(text, sys.stderr)

    def gained(self, path: Path) -> list[str]:
        """The whole lines that were written to a log since it was looked at last, by seeking."""
        key = os.fspath(path)
        try:
            with path.open("rb") as log:
                start = self.offsets.get(key, 0)
                end = log.seek(0, os.SEEK_END)
                log.seek(max(start, end - 65536))
                raw = log.read()
        except OSError:
            return []
        whole = raw.rfind(b"\n") + 1
        self.offsets[key] = end - (len(raw) - whole)
        return raw[:whole].decode(errors="replace").splitlines()

    def draw(self, text: str) -> None:
        """The line at the bottom of the terminal."""
        from rich.cells import cell_len, set_cell_size

        room = shutil.get_terminal_size().columns - 1
        text = text if cell_len(text) <= room else set_cell_size(text, room)
        if text != self.shown:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
            self.shown = text

    def wipe(self) -> None:
        """Take the bottom line away before anything else is printed."""
        if self.shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self.shown = ""


def go(hands: "Hands", name: str, **goal: Any) -> int:
    """Walk an Issue on, telling what happens; give the exit code."""
    from issueflow.engine import sight, walk

    teller = Teller()
    try:
        position = walk.advance(hands, name, teller, walk.Goal(**goal))
    except KeyboardInterrupt:
        teller.wipe()
        say(f"\nleft: what was running goes on. issueflow advance {name} follows it, issueflow cancel {name} stops it")
        return 130
    except BaseException:
        teller.wipe()
        raise
    question = sight.question(hands.store.issue(name), position)
    conclude(position, question)
    return 4 if question else exit_code(position)


def conclude(position: "Position", question: str | None = None) -> None:
    """The answer of a walk: where the Issue stands, and the next command."""
    from issueflow.machine.state import state
    from issueflow.views import now_word

    if question:
        answer(f"{position.issue} {position.stage}: held: {line(question)}")
        say(f"next: issueflow retry {position.issue} --reason TEXT")
        return
    now = now_word(state(position), None)
    answer(f"{position.issue} {position.stage}: {line(now)}")
    for question in position.questions if position.status in ("waiting", "held") else ():
        say(f"  asked: {line(question)}")
    if position.status == "waiting":
        say(f"look: issueflow show {position.issue}")
    say_next(position)


def advance(
    issues: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ISSUE]…", show_default=False, help="ISSUE-7 or 7; may be left out when one is open."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every open Issue.")] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", min=1, max=64, help="How many Issues at a time.")
    ] = 1,
    once: Annotated[bool, typer.Option("--once", help="One run only.")] = False,
    until: Annotated[str | None, typer.Option("--until", metavar="STAGE", help="Stop before this stage.")] = None,
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Ask here when a person is to decide.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done next; change nothing.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on in the background; advance.log of the Issue has what it says.")
    ] = False,
    tell_code: Annotated[bool, typer.Option("--exit-code", help="End with 5 when it waits for a person.")] = False,
) -> int:
    """Walk Issues on until a person is asked or they end

    A run that is already going on is followed. Ctrl-C leaves it running.

    Example: issueflow advance ISSUE-7

    Example: issueflow advance --all --jobs 4
    """
    here = project()
    if detach and (everything or interactive or dry_run or tell_code or (issues and len(issues) > 1)):
        raise WrongWords("--detach takes one Issue, and --once or --until", "issueflow advance --help")
    if everything or (issues and len(issues) > 1):
        from issueflow.cli.parallel import advance_many

        if interactive or dry_run:
            raise WrongWords("-i and --dry-run take one Issue", "issueflow advance --help")
        names = [issue_id(here, issue) for issue in issues] if issues else _open_issues(here)
        return advance_many(names, jobs, [*_goal(once, until), *(["--exit-code"] if tell_code else [])])
    hands, name = here.hands(), issue_id(here, issues[0] if issues else None)
    _require_stage(hands, name, until)
    if dry_run:
        return _say_next_step(hands, name)
    if detach:
        from issueflow.cli.detached import advance_detached

        return advance_detached(hands.store.issue(name), _goal(once, until))
    code = go(hands, name, once=once, until=until)
    while interactive and code == 0:
        from issueflow.cli.interactive import ask

        if not ask(here, hands, name):
            break
        code = go(hands, name, once=once, until=until)
    return code or (standing_code(hands.store.issue(name)) if tell_code else 0)


def _goal(once: bool, until: str | None) -> list[str]:
    """The words of the command line for another process that is to go as far."""
    return [*(["--once"] if once else []), *(["--until", until] if until else [])]


def _open_issues(here: "Project") -> list[str]:
    from issueflow.cli.common import open_issues

    return open_issues(here)


def _require_stage(hands: "Hands", name: str, stage: str | None) -> None:
    from issueflow.engine.issues import find, load

    stages = load(find(hands, name)).workflow.stages
    if stage is not None and stage not in stages:
        raise WrongWords(f"{name} has no stage {stage} (it has {', '.join(stages)})", f"issueflow status {name}")


def _say_next_step(hands: "Hands", name: str) -> int:
    from issueflow.engine.issues import find, load
    from issueflow.engine.sight import look
    from issueflow.machine import decide

    folder = find(hands, name)
    position = load(folder)
    step = decide(position, look(folder, position))
    answer(f"{name}: {step.say(position)}")
    return 0


def resume(
    issue: IssueArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="Every open Issue.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is found and what would be done; no more.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The findings, for scripts; docs/files.md has them.")] = False,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Put back what was changed around its runs, or in its journal; go no further."),
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Say that what was changed there is meant; go no further.")
    ] = False,
) -> int:
    """Set an Issue right after a crash and walk it on

    What is found is printed first: processes, then records, each with its state, the evidence and what is done about
    it. Then as advance, and with leave to replace a run that died, from what that run had written.

    --restore puts back settings, hooks, info files, stashes and refs of the repository and the files of .issueflow/
    that were changed while its runs were open, and the journal as its record has it. What is replaced is kept.

    Example: issueflow resume ISSUE-7 --dry-run

    Example: issueflow resume ISSUE-7 --restore
    """
    from issueflow.engine import inventory, walk
    from issueflow.engine.issues import find
    from issueflow.engine.person import refuse_inside_run

    if as_json and not dry_run:
        raise WrongWords("--json goes with --dry-run", "issueflow resume --dry-run --json")
    if (restore or accept) and (everything or dry_run):
        raise WrongWords("--restore and --accept take one Issue, and act at once", "issueflow resume --help")
    if not dry_run:
        refuse_inside_run("resume")
    here = project()
    hands = here.hands()
    if restore or accept:
        return _set_right(hands, issue_id(here, issue), restore=restore, accept=accept)
    names = _open_issues(here) if everything or (dry_run and issue is None) else [issue_id(here, issue)]
    found = {name: inventory.take(hands, find(hands, name)) for name in names}
    _print_findings([finding for findings in found.values() for finding in findings], as_json, dry_run)
    if dry_run:
        return 0
    codes = []
    for name in names:
        if mended := walk.set_right(hands, name):
            say(mended)
        codes.append(go(hands, name, replace=True))
    return max(codes, default=0)


def _print_findings(findings: "list[Finding]", as_json: bool, dry_run: bool) -> None:
    """As the answer when that is all that is asked, else as part of the conversation."""
    if as_json:
        import json
        from dataclasses import asdict

        print(json.dumps({"version": 1, "findings": [asdict(finding) for finding in findings]}, indent=2))
        return
    tell = answer if dry_run else say
    for finding in findings:
        if dry_run or finding.what != "issue":
            tell(f"{finding.issue}  {finding.what}: {finding.state}")
            tell(f"  {line(finding.evidence)}")
            tell(f"  → {line(finding.action)}")


def _set_right(hands: "Hands", name: str, *, restore: bool, accept: bool) -> int:
    from issueflow.engine.surroundings import set_right

    if restore and accept:
        raise WrongWords("--restore and --accept exclude one another", "issueflow resume --help")
    done = set_right(hands, name, restore=restore)
    for sentence in done or ["nothing to put back" if restore else "nothing was in question"]:
        answer(f"{name}: {line(sentence)}")
    say(f"next: issueflow advance {name}")
    return 0


def cancel(
    issue: IssueArgument = None,
    message: Annotated[str, typer.Option("-m", "--message", metavar="TEXT", help="Why.")] = "",
) -> int:
    """End an Issue and stop whatever runs for it

    Nothing is removed: branches, worktrees and documents stay until cleanup.

    Example: issueflow cancel ISSUE-7
    """
    from issueflow.engine import decisions, walk

    here = project()
    hands, name = here.hands(), issue_id(here, issue)
    decisions.cancel(hands, name, remark(message, "cancel"))
    position = walk.advance(hands, name, Teller(), walk.Goal())
    answer(f"{name}: cancelled")
    if position.runs:
        say(f"next: issueflow cleanup {name}")
    return 0


def start_tree(run: Path) -> int:
    """Record the tree that the agent will find; the runner calls this after the set-up commands"""
    from issueflow.engine import launch
    from issueflow.git import worktrees

    place = launch.place_of(run)
    lens = launch.lens_of(run.parents[4], run, place) if place else None
    if place is None or lens is None:
        say(f"{run} is not prepared")
        return 1
    if not worktrees.is_ours(place):  # git would look for a repository further up, and the agent's commits go there
        say(f"{place.path}/.git is no longer the one issueflow made")
        return 1
    launch.record_start_tree(run, lens)
    return 0
