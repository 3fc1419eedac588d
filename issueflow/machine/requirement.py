"""What a requirement says of itself: its title, and the fields of a front matter where it has one."""

import re
from dataclasses import dataclass
from pathlib import PurePath

from issueflow.errors import WrongWords

MOST_TITLE = 200
FIELDS = ("title", "workflow", "base")
FENCE = re.compile(r" {0,3}(```|~~~)")


@dataclass(frozen=True)
class Requirement:
    """The title, always something, and what the front matter asks for."""

    title: str
    workflow: str | None = None
    base: str | None = None


def read_requirement(data: bytes, origin: str) -> Requirement:
    """Read title and fields from a requirement; WrongWords when its front matter is no YAML mapping of plain values.

    A front matter is a `---` line that comes first (a byte-order mark and blank lines aside) up to the next one;
    other keys than ours are somebody else's and are let be.
    """
    lines = data.decode("utf-8", errors="replace").removeprefix("\ufeff").splitlines()
    start = next((i for i, text in enumerate(lines) if text.strip()), len(lines))
    fields: dict[str, str] = {}
    if start < len(lines) and lines[start].rstrip() == "---":
        end = next((i for i in range(start + 1, len(lines)) if lines[i].rstrip() in ("---", "...")), None)
        if end is not None:
            fields = _fields("\n".join(lines[start + 1 : end]), origin)
            lines = lines[end + 1 :]
    stem = PurePath(origin).stem.strip("-")
    titles = (" ".join(title.split()) for title in (fields.get("title", ""), _heading(lines), stem, "requirement"))
    return Requirement(next(filter(None, titles))[:MOST_TITLE], fields.get("workflow"), fields.get("base"))


def _fields(text: str, origin: str) -> dict[str, str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:  # the latter two: a 13th month, a thousand brackets
        reason = " ".join(str(error).split())[:200]
        raise WrongWords(f"the front matter of {origin} is no YAML: {reason}", "issueflow new --help") from error
    if not isinstance(data, dict):
        return {}  # a rule line, some prose, another rule line: no fields
    found = {key: data[key] for key in FIELDS if data.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, str | int | float):
            raise WrongWords(f"the front matter of {origin}: {key} is not a plain value", "issueflow new --help")
        if any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in str(value)):
            raise WrongWords(f"the front matter of {origin}: {key} holds what is no text", "issueflow new --help")
    return {key: str(value) for key, value in found.items()}


def _heading(lines: list[str]) -> str:
    """The first heading outside of code blocks, else the first line with anything on it."""
    inside = False
    first = ""
    for number, text in enumerate(lines):
        if FENCE.match(text):
            inside = not inside
            continue
        if inside or not text.strip():
            continue
        if match := re.match(r" {0,3}#{1,6}\s+(.*?)\s*#*\s*$", text):
            if match[1]:
                return match[1]
            continue
        under = lines[number + 1].strip() if number + 1 < len(lines) else ""
        if under and set(under) in ({"="}, {"-"}) and not first:
            return text.strip()
        first = first or text.strip()
    return first
