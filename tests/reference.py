"""Builds docs/cli.md from the help of the command itself; `python tests/reference.py` writes it anew."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from issueflow.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
HEAD = """# Command reference

Written by `python tests/reference.py` from the help of the command; a test compares the two. `-C DIR` stands before the
verb, as in `issueflow -C ../shop status`. What the exit codes mean is in [guides.md](guides.md#exit-codes).
"""


def reference() -> str:
    """The whole page: the command itself, then each verb that its help lists, in that order."""
    os.environ["COLUMNS"] = "100"
    tree = typer.main.get_command(app)
    whole = tree.make_context("issueflow", [], resilient_parsing=True)
    return "\n".join([HEAD, *_sections(tree, whole, "issueflow")])


def _sections(command: Any, context: Any, title: str) -> Iterator[str]:
    """One section for a command, then those of the commands below it."""
    lines = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"## {title}\n\n```text\n{lines}\n```\n"
    for name, verb in getattr(command, "commands", {}).items():
        if not verb.hidden:
            below = verb.make_context(name, [], parent=context, resilient_parsing=True)
            yield from _sections(verb, below, f"{title} {name}".removeprefix("issueflow "))


if __name__ == "__main__":
    PAGE.write_text(reference())
