"""How a CLI's stream of JSON events is read, and what the words of a failure mean; the same for every CLI."""

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Literal

from issueflow.models import CONVERSATION, Problem

MOST_WORDS = 300
MOST_COUNTED = 1 << 53
Kind = Literal["limit", "auth", "refusal", "context", "turns", "budget", "endpoint", "usage", "no-conversation"]

# In this order: a limit is often told with the status of a refused login, a long prompt with that of a bad request.
SAID: list[tuple[Kind, str]] = [
    (
        "no-conversation",
        r"no conversation found|no rollout found|session not found|invalid session|no previous session",
    ),
    ("context", r"prompt is too long|context (length|window)|maximum context|input exceeds|too many tokens"),
    ("limit", r"rate.?limit|usage limit|quota|too many requests|resource.?exhausted|hit your .*limit|\b429\b"),
    ("auth", r"\b40[13]\b|unauthori[sz]ed|authenticat|invalid api key|not logged in|please run /login|log ?in again"),
    ("refusal", r"content.?filter|refus(al|ed to)|safeguards|usage policy"),
    ("endpoint", r"\b(404|5\d\d)\b|overloaded|high demand|temporar|connect|network|timed? ?out|stream|fetch failed"),
]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def events(stdout: str) -> Iterator[dict[str, Any]]:
    """Each line that is a JSON object; a line that was cut off, or that a program printed in between, is none."""
    for line in stdout.splitlines():
        if line.startswith("{"):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def at(value: Any, *keys: str) -> Any:
    """What lies below `keys` in nested objects, None where one of them is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text(value: Any, *keys: str) -> str:
    """The string there, else an empty one; half a character, which JSON can hold and no file can, becomes a mark."""
    found = at(value, *keys)
    return found.encode(errors="replace").decode() if isinstance(found, str) else ""


def conversation(value: Any, *keys: str) -> str | None:
    """The id of a conversation there. It will be a word of a command line, so nothing that could be an option is."""
    found = text(value, *keys)
    return found if re.fullmatch(CONVERSATION, found) else None


def amount(value: Any, *keys: str) -> float | None:
    """The number there, None where there is none that could be counted or paid."""
    found = at(value, *keys)
    is_one = isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < MOST_COUNTED
    return float(found) if is_one else None


def number(value: Any, *keys: str) -> int | None:
    """The same, as a whole number."""
    found = amount(value, *keys)
    return int(found) if found is not None and found.is_integer() else None


def rows(value: Any, *keys: str) -> list[Any]:
    """The list there, else an empty one."""
    found = at(value, *keys)
    return found if isinstance(found, list) else []


def shorten(words: str) -> str:
    """Words of a CLI in one line of bounded length."""
    line = " ".join(words.encode(errors="replace").decode().split())
    return line if len(line) <= MOST_WORDS else line[:MOST_WORDS] + " …"


def failure(words: str, ended: int, otherwise: Kind = "endpoint") -> Problem:
    """What a CLI's last words about a failure mean: `otherwise` when they name nothing that is known."""
    kind = next((kind for kind, pattern in SAID if re.search(pattern, words, re.IGNORECASE)), otherwise)
    return problem(kind, words, ended)


def problem(kind: Kind, words: str, ended: int) -> Problem:
    """A problem of a kind that an event names; only of a limit it is worth knowing when it ends."""
    return Problem(kind=kind, words=shorten(words) or kind, resets=_resets(words, ended) if kind == "limit" else None)


def complaint(stderr: str) -> str:
    """The last line on standard error that begins as an error does, colours taken out; a warning is none."""
    lines = [line.strip() for line in COLOUR.sub("", stderr).splitlines()]
    told = [line for line in lines if re.match(r"(error|unknown|unexpected|invalid)\b", line, re.IGNORECASE)]
    return told[-1] if told else ""


def _resets(words: str, ended: int) -> int | None:
    """When a limit ends, in seconds since 1970: written as such, as a span, or as the next such time of day."""
    if stamp := re.search(r"\b(1[6-9]\d{8}|2\d{9})\b", words):
        return int(stamp[1])
    if span := re.search(r"\bin ((?:\d+(?:\.\d+)? ?(?:d|h|m|s)[a-z]*[ ,and]*)+)", words):
        parts = re.findall(r"(\d+(?:\.\d+)?) ?([dhms])", span[1])
        return ended + int(sum(float(count) * UNITS[unit] for count, unit in parts))
    if clock := re.search(r"(?:resets?|again)(?: at)? (\d{1,2})(?::(\d\d))? ?([ap]m)?", words, re.IGNORECASE):
        return _next_time(int(clock[1]), int(clock[2] or 0), (clock[3] or "").lower(), ended)
    return None


def _next_time(hour: int, minute: int, half: str, ended: int) -> int | None:
    hour = hour % 12 + 12 * (half == "pm") if half else hour
    if hour > 23 or minute > 59:
        return None
    now = datetime.fromtimestamp(ended)
    then = now.replace(hour=hour, minute=minute, second=0)
    return int((then if then > now else then + timedelta(days=1)).timestamp())
