"""Values turned into what a person reads; text from agents and people is shown as it is, never as markup or escapes."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Control characters but newline and tab, DEL, C1, direction marks, zero-width and other invisible format characters,
# line separators and lone surrogates: shown as escapes, since a terminal would obey them or hide them.
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

MOST_LINE = 400  # characters of one line of an agent's output that are shown while it works


def clean(text: str) -> str:
    """`text` without anything that a terminal would obey or hide; newlines and tabs stay."""
    return UNSAFE.sub(lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def line(text: str) -> str:
    """`text` on one line, cleaned."""
    return clean(" ".join(text.split()))


def is_terminal(out: IO[str]) -> bool:
    """Does a person look at `out`, so that tables may be drawn and long lines folded?"""
    return out.isatty()


def console(out: IO[str]) -> "Console":
    """A drawing board that takes text as text: no markup, no guessing of what could be highlighted."""
    from rich.console import Console

    return Console(file=out, markup=False, highlight=False, emoji=False)


def tell(text: str, out: IO[str], style: str = "") -> None:
    """Print text, cleaned; on a terminal with its style, folded under its own indentation where it is too long."""
    text = clean(text)
    if not is_terminal(out):
        print(text, file=out, flush=True)
        return
    from rich.text import Text

    board = console(out)
    for row in text.split("\n"):
        body = row.lstrip(" ")
        indent = len(row) - len(body)
        folded = Text(body, style=style).wrap(board, max(20, board.width - indent - 2))
        for number, piece in enumerate(folded or [Text("")]):
            board.print(Text(" " * (indent + (2 if number else 0))) + piece, soft_wrap=True)


def say(text: str, style: str = "") -> None:
    """A line of the conversation: standard error."""
    tell(text, sys.stderr, style)


def answer(text: str, style: str = "") -> None:
    """A line of the answer: standard output."""
    tell(text, sys.stdout, style)


def printed(text: str, out: IO[str]) -> None:
    """A line that an agent printed, set apart from what issueflow says."""
    tell(f"  │ {text.rstrip()[:MOST_LINE]}", out, "dim")


def diff(text: str) -> None:
    """Print a diff for a person at a terminal: as git colours it, cleaned, never folded."""
    from rich.text import Text

    board = console(sys.stdout)
    for row in clean(text).split("\n"):
        style = next((style for start, style in DIFF.items() if row.startswith(start)), "")
        board.print(Text(row, style=style), soft_wrap=True)


DIFF = {"diff ": "bold", "index ": "bold", "--- ": "bold", "+++ ": "bold", "@@": "cyan", "+": "green", "-": "red"}


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], out: IO[str], flexible: int, styles: Sequence[str]
) -> None:
    """Print a table; on a terminal the column `flexible` gives way so that no line wraps, elsewhere nothing is cut.

    `styles` colours the rows, one by one, on a terminal that has colours.
    """
    body = [[line(cell) for cell in row] for row in rows]
    if not is_terminal(out):
        widths = [max(len(row[i]) for row in [list(head), *body]) for i in range(len(head))]
        for row in [list(head), *body]:
            print("  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip(), file=out)
        return
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    board = console(out)
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    widths = [max(cell_len(row[i]) for row in [list(head), *body]) for i in range(len(head))]
    room = board.width - sum(widths) + widths[flexible] - 2 * len(head)
    widths[flexible] = max(8, min(widths[flexible], room))
    for name, wide in zip(head, widths, strict=True):
        drawn.add_column(name, no_wrap=True, overflow="ellipsis", width=wide)
    for row, style in zip(body, styles, strict=True):
        drawn.add_row(*(Text(cell) for cell in row[:-1]), Text(row[-1], style=style))
    board.print(drawn)


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


STYLES = {
    "waiting": "yellow",
    "held": "red",
    "failed": "red",
    "delivered": "green",
    "running": "cyan",
    "cancelled": "dim",
}


def overview(states: list[tuple[dict[str, Any], str | None]], out: IO[str]) -> None:
    """Print the table of all Issues."""
    rows = [(s["issue"], s["title"], s["stage"], rounds(s), now_word(s, live)) for s, live in states]
    styles = [STYLES.get(s["status"], "") for s, _ in states]
    table(("ISSUE", "TITLE", "STAGE", "ROUND", "NOW"), rows, out, flexible=1, styles=styles)


def detail(state: dict[str, Any], live: str | None, extra: list[tuple[str, str]], out: IO[str]) -> None:
    """Print one Issue in full: what it is, where it stands, its runs, what is open."""
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
    tell(state["issue"], out, "bold")
    for name, value in facts:
        tell(f"  {name:<9} {line(value)}", out, STYLES.get(state["status"], "") if name == "now" else "")
    if state["runs"]:
        rows = [_run_row(run) for run in state["runs"]]
        tell("", out)
        head = ("RUN", "ROUND", "AGENT", "TOOK", "COMMIT", "RESULT")
        table(head, rows, out, flexible=5, styles=[RESULTS.get(row[-1], "red") for row in rows])
    if state["open_findings"]:
        tell("\n" + findings(state["open_findings"]), out)


RESULTS = {
    "done": "green",
    "approve": "green",
    "pass": "green",
    "request_changes": "yellow",
    "open": "cyan",
    "none": "dim",
}


def _run_row(run: dict[str, Any]) -> tuple[str, ...]:
    result = run["verdict"] if run["class"] == "accepted" else run["class"]
    attempt = f"{run['round']}" + (f" (attempt {run['attempt']})" if run["attempt"] > 1 else "")
    took = span(run["seconds"]) if run["seconds"] is not None else "–"
    return (run["run"], attempt, run["agent"] or "–", took, (run["tip"] or run["base"])[:12], str(result))


def findings(items: Iterable[dict[str, Any]]) -> str:
    """Open findings, one a line."""
    return "\n".join(f"{f['id']:<4} {f['severity']:<8} {line(f['where'])}: {line(f['claim'])}" for f in items)
