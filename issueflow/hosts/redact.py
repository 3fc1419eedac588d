"""Takes the values of declared secrets out of what issueflow writes down; standard library only, for the runner too.

What is declared is the name of an environment variable; its value is only ever taken from this process's environment.
"""

import json
import os
import re
from collections.abc import Iterable

SHORTEST = 8  # bytes; a shorter value occurs by chance, and taking it out would tear other text apart


class Secrets:
    """The declared variables that are set here, and long enough to be told from other text."""

    def __init__(self, names: Iterable[str]) -> None:
        values = {name: os.environb.get(name.encode(), b"").strip() for name in names}
        self.values = {name: value for name, value in values.items() if len(value) >= SHORTEST}
        self.names = {form: name for name, value in self.values.items() for form in _forms(value)}
        longest_first = sorted(self.names, key=len, reverse=True)
        self.pattern = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    def redact(self, data: bytes) -> bytes:
        """`data` with `[secret NAME]` in the place of every value."""
        return self.pattern.sub(lambda match: _mark(self.names[match[0]]), data) if self.pattern else data

    def redact_text(self, text: str) -> str:
        """The same for text."""
        return self.redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def found_in(self, data: bytes) -> list[str]:
        """The names of those whose value stands in `data`."""
        return sorted({self.names[form] for form in self.pattern.findall(data)}) if self.pattern else []


class Stream:
    """Redacts what comes in pieces: a value may begin in one piece and end in a later one."""

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.held = b""

    def feed(self, piece: bytes) -> bytes:
        """What of the stream so far can be written; the beginning of a value at its end is held back."""
        pattern = self.secrets.pattern
        if pattern is None:
            return piece
        data, end = self.held + piece, 0
        for match in pattern.finditer(data):
            if self._begins(data[match.start() :]):
                break  # it may turn out to be the value of another, longer secret
            end = match.end()
        room = max(map(len, self.secrets.names))
        cut = next((at for at in range(max(end, len(data) - room), len(data)) if self._begins(data[at:])), len(data))
        self.held = data[cut:]
        return self.secrets.redact(data[:cut])

    def rest(self) -> bytes:
        """What is held back at the end of the stream."""
        held, self.held = self.held, b""
        return self.secrets.redact(held)

    def _begins(self, data: bytes) -> bool:
        return any(len(form) > len(data) and form.startswith(data) for form in self.secrets.names)


def _forms(value: bytes) -> set[bytes]:
    """The value as it is, and as the usual writers put it into a JSON string."""
    text = value.decode(errors="surrogateescape")
    strings = [json.dumps(text, ensure_ascii=ascii)[1:-1].encode(errors="surrogateescape") for ascii in (True, False)]
    return {value, *strings, *(string.replace(b"/", rb"\/") for string in strings)}


def _mark(name: str) -> bytes:
    return f"[secret {name}]".encode()
