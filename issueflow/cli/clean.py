"""The verb cleanup."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from issueflow.cli.common import issue_id, project
from issueflow.errors import WrongWords
from issueflow.views import answer, say

if TYPE_CHECKING:
    from issueflow.engine.cleanup import Finding
    from issueflow.engine.undo import Back

JSON_VERSION = 1  # of what --json prints; grows when a field changes its meaning


def cleanup(
    issue: Annotated[
        str | None,
        typer.Argument(metavar="[ISSUE]", show_default=False, help="ISSUE-7 or 7; all Issues when left out."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go and what would stay; change nothing.")
    ] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Save what a worktree holds of its own, then remove it as well.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring back what the last cleanup took away.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts; docs/files.md describes it.")] = False,
) -> int:
    """Remove worktrees that hold nothing of their own, and merged branches

    What goes is proven to be kept elsewhere. A worktree that holds anything of its own stays, with the reason and a
    command that shows it, unless --save saves it first. Branches go when their Issue has ended and their work is in
    a branch of yours. How long ago something was used decides nothing.

    Example: issueflow cleanup --dry-run
    """
    if undo and (issue or dry_run or save):
        raise WrongWords(
            "--undo takes back the whole last cleanup; it goes with no other word", "issueflow cleanup --help"
        )
    return _undo(as_json=as_json) if undo else _clean(issue, dry_run=dry_run, save=save, as_json=as_json)


def _clean(issue: str | None, *, dry_run: bool, save: bool, as_json: bool) -> int:
    from issueflow.engine.cleanup import Wish, clean, clean_all
    from issueflow.engine.issues import find

    here = project()
    hands, wish = here.hands(), Wish(dry_run, save)
    names = [issue_id(here, issue)] if issue else here.store.ids()
    findings = clean(hands, find(hands, names[0]), wish) if issue else clean_all(hands, names, wish)
    seen: list[Finding] = []
    for finding in findings:
        seen.append(finding)
        if not as_json:
            _print(finding, dry_run=dry_run, name=_name(finding, several=len(names) > 1))
    if as_json:
        _print_json({"dry_run": dry_run, **_summary(seen), "findings": [_as_dict(finding) for finding in seen]})
    else:
        _print_counts(seen, issue, dry_run=dry_run, save=save)
    return 1 if any(finding.failed for finding in seen) else 0


def _name(finding: "Finding", *, several: bool) -> str:
    return f"{finding.issue}/{finding.run}".rstrip("/") if several or not finding.run else finding.run


def _print(finding: "Finding", *, dry_run: bool, name: str) -> None:
    tip = finding.tip[:12]
    for reason in finding.saving:
        answer(f"{'save' if dry_run else 'saved':8} {name}  {reason.why}")
    for where in (*finding.saved.refs, finding.saved.archive):
        if where and finding.path:
            answer(f"         in {where}")
    match finding.what:
        case "mended":
            say(finding.mended or "")
        case "failed":
            answer(f"failed   {name}  {finding.failed}" + (f" ({finding.path})" if finding.path else ""))
            if finding.hint:
                say(f"hint: {finding.hint}")
        case "left":
            branch = f" (branch {finding.branch})" if finding.branch else ""
            answer(f"left     {finding.path}  not a worktree of a run{branch}")
        case "gone":
            told = "git would be told" if dry_run else "git was told"
            answer(f"gone     {name}  its folder had been removed already; {told}")
        case "kept":
            for reason in finding.kept:
                answer(f"kept     {name}  {reason.why}")
            say(f"hint: {finding.kept[0].look}")
        case _ if finding.path is None:
            kept = f"; {tip} stays in {finding.saved.refs[0]}" if finding.saved.refs else f"; {tip} stays there"
            answer(f"{'would go' if dry_run else 'removed '} branch {finding.branch}  {finding.how}{kept}")
        case _:
            answer(f"{'would go' if dry_run else 'removed '} {name}  (branch {finding.branch} is at {tip})")


def _summary(seen: "list[Finding]") -> dict[str, Any]:
    counts = {"removed": 0, "kept": 0, "gone": 0, "failed": 0, "left": 0, "branches": 0}
    for finding in (finding for finding in seen if not finding.mended):
        counts["branches" if finding.what == "removed" and finding.path is None else finding.what] += 1
    return {"counts": counts, "bytes": sum(finding.size for finding in seen if finding.what == "removed")}


def _print_counts(seen: "list[Finding]", issue: str | None, *, dry_run: bool, save: bool) -> None:
    summary = _summary(seen)
    counts = summary["counts"]
    freed = f" ({_size(summary['bytes'])})" if summary["bytes"] else ""
    branches = "1 branch" if counts["branches"] == 1 else f"{counts['branches']} branches"
    words = {
        "removed": f"{counts['removed']} {'would go' if dry_run else 'removed'}{freed}",
        "branches": branches + (" would go" if dry_run else " removed"),
        "kept": f"{counts['kept']} kept",
        "gone": f"{counts['gone']} already gone",
        "failed": f"{counts['failed']} failed",
        "left": f"{counts['left']} not issueflow's",
    }
    say(", ".join(text for what, text in words.items() if counts[what]) or "nothing to clean up")
    if not save and any(finding.kept and all(r.kind == "save" for r in finding.kept) for finding in seen):
        say(f"to save what is kept, and remove it: issueflow cleanup{f' {issue}' if issue else ''} --save")
    if not dry_run and (counts["removed"] or counts["branches"]):
        say("to bring it back: issueflow cleanup --undo")


def _size(size: int) -> str:
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _as_dict(finding: "Finding") -> dict[str, Any]:
    reasons = finding.kept or finding.saving
    saved = finding.saved
    return {
        "issue": finding.issue or None,
        "run": finding.run or None,
        "what": finding.what,
        "path": str(finding.path) if finding.path else None,
        "branch": finding.branch or None,
        "tip": finding.tip or None,
        "merged": finding.how or None,
        "reasons": [{"why": reason.why, "look": reason.look} for reason in reasons],
        "saved": {"refs": list(saved.refs), "archive": str(saved.archive) if saved.archive else None},
        "error": finding.failed,
        "hint": finding.hint,
        "bytes": finding.size,
    }


def _undo(*, as_json: bool) -> int:
    from issueflow.engine.undo import undo

    seen = []
    for back in undo(project().hands()):
        seen.append(back)
        if not as_json:
            _print_back(back)
    if as_json:
        _print_json({"undone": [_back_as_dict(back) for back in seen]})
    elif not seen:
        say("there is nothing to undo")
    return 1 if any(back.failed for back in seen) else 0


def _print_back(back: "Back") -> None:
    act = back.act
    what = f"{act.issue}/{act.run}  {act.path}" if act.path else f"branch {act.branch}  at {act.at[:12]}"
    if back.failed:
        answer(f"failed   {what}: {back.failed}")
        say(f"hint: {back.hint}")
        return
    answer(f"back     {what}")
    for name in back.left_alone:
        where = f"git show {(act.commit or '')[:12]}:{shlex.quote(name)}"
        answer(f"left     {act.issue}/{act.run}  {name} was changed meanwhile; as it was saved: {where}")


def _back_as_dict(back: "Back") -> dict[str, Any]:
    act = back.act
    return {
        "issue": act.issue,
        "run": act.run,
        "branch": act.branch,
        "at": act.at or act.tip,
        "path": act.path or None,
        "left_alone": list(back.left_alone),
        "error": back.failed,
        "hint": back.hint,
    }


def _print_json(value: dict[str, Any]) -> None:
    import json

    print(json.dumps({"version": JSON_VERSION, **value}, indent=2))
