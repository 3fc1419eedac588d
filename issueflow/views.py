"""Values turned into what a person reads; text from agents and people is shown as it is, never as markup or escapes."""

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import IO, Any

# Control characters but newline and tab, DEL, C1, direction marks, zero-width and other invisible format characters,
# line separators and lone surrogates: shown as escapes, since a terminal would obey them or hide them.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """`text` without anything that a terminal would obey or hide; newlines and tabs stay."""
    return UNSAFE.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def line(text: str) -> str:
    """`text` on one line, cleaned."""
    return clean(" ".join(text.split()))


def width(text: str) -> int:
    """How many columns a terminal gives `text`."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def clip(text: str, room: int) -> str:
    """`text` within `room` columns, its end replaced by an ellipsis where it does not fit."""
    if width(text) <= room:
        return text
    kept, used = "", 0
    for character in text:
        used += width(character)
        if used >= room:
            break
        kept += character
    return kept + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], out: IO[str], flexible: int) -> str:
    """A table of plain columns; on a terminal the column `flexible` gives way so that no line wraps, else none does."""
    body = [[line(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in [list(head), *body]) for i in range(len(head))]
    if out.isatty():
        room = shutil.get_terminal_size().columns - sum(widths) + widths[flexible] - 2 * (len(head) - 1)
        widths[flexible] = max(8, min(widths[flexible], room))
    text = []
    for row in [list(head), *body]:
        cells = [
            clip(cell, w) if i == flexible and out.isatty() else cell
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        text.append("  ".join(cell + " " * (w - width(cell)) for cell, w in zip(cells, widths, strict=True)).rstrip())
    if out.isatty() and text:
        last = shutil.get_terminal_size().columns
        text = [clip(row, last) for row in text]
    return "\n".join(text)


def span(seconds: float) -> str:
    """A length of time as people say it: `12s`, `4m`, `2h 10m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def rounds(state: dict[str, Any]) -> str:
    """`2/4`, or `1` outside of loops."""
    return f"{state['round']}/{state['max_rounds']}" if state["max_rounds"] else str(state["round"])


def now_word(state: dict[str, Any], live: str | None) -> str:
    """What an Issue does at this moment, in a few words; `live` describes its run where it has one."""
    match state["status"]:
        case "waiting":
            return "waiting for you"
        case "held":
            return f"held: {state['waits_for'].removeprefix('a person: ')}"
        case "running":
            return live or "running"
        case "ready" | "delivering":
            return "ready"
        case status:
            return str(status)


def overview(states: list[tuple[dict[str, Any], str | None]], out: IO[str]) -> str:
    """The table of all Issues."""
    rows = [(s["issue"], s["title"], s["stage"], rounds(s), now_word(s, live)) for s, live in states]
    return table(("ISSUE", "TITLE", "STAGE", "ROUND", "NOW"), rows, out, flexible=1)


def detail(state: dict[str, Any], live: str | None, extra: list[tuple[str, str]], out: IO[str]) -> str:
    """One Issue in full: what it is, where it stands, its runs, what is open."""
    base = state["base"][:12] + (f" ({state['base_name'].removeprefix('refs/heads/')})" if state["base_name"] else "")
    facts = [
        ("title", state["title"]),
        ("workflow", state["workflow"]),
        ("stage", f"{state['stage']}, round {rounds(state)}"),
        ("now", now_word(state, live)),
        ("base", base),
        ("head", state["head"][:12] + (" (= base)" if state["head"] == state["base"] else "")),
        *extra,
    ]
    parts = [f"{state['issue']}", *(f"  {name:<9} {line(value)}" for name, value in facts)]
    if state["runs"]:
        rows = [_run_row(run) for run in state["runs"]]
        parts += ["", table(("RUN", "ROUND", "AGENT", "RESULT", "TOOK", "COMMIT"), rows, out, flexible=3)]
    if state["open_findings"]:
        parts += ["", findings(state["open_findings"])]
    return "\n".join(parts)


def _run_row(run: dict[str, Any]) -> tuple[str, ...]:
    result = run["verdict"] if run["class"] == "accepted" else run["class"]
    attempt = f"{run['round']}" + (f" (attempt {run['attempt']})" if run["attempt"] > 1 else "")
    took = span(run["seconds"]) if run["seconds"] is not None else "–"
    return (run["run"], attempt, run["agent"] or "–", str(result), took, (run["tip"] or run["base"])[:12])


def findings(items: Iterable[dict[str, Any]]) -> str:
    """Open findings, one a line."""
    return "\n".join(f"{f['id']:<4} {f['severity']:<8} {line(f['where'])}: {line(f['claim'])}" for f in items)


def say(text: str) -> None:
    """A line of the conversation: standard error, cleaned."""
    print(clean(text), file=sys.stderr, flush=True)


def answer(text: str) -> None:
    """A line of the answer: standard output, cleaned."""
    print(clean(text), flush=True)
