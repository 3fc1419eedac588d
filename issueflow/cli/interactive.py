"""`advance -i`: the question at a human stage, asked here; every answer is one of the ordinary verbs."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from issueflow.errors import IssueflowError
from issueflow.views import line, say

if TYPE_CHECKING:
    from issueflow.engine.hands import Hands
    from issueflow.machine import Position
    from issueflow.project import Project

CHOICES = "[a]pprove  [r]equest changes  [p]lan  [d]iff  [s]how all  [l]eave"


def ask(here: "Project", hands: "Hands", name: str) -> bool:
    """Ask until something is decided; True when the Issue goes on, False when the person leaves it as it is."""
    from issueflow.engine import decisions
    from issueflow.engine.issues import find, load

    while True:
        position = load(find(hands, name))
        if position.status != "waiting":
            return False
        say(f"{name} {position.stage}: {CHOICES}", "bold")
        choice = _read("> ").strip().lower()[:1]
        try:
            match choice:
                case "a":
                    decisions.approve(hands, name, "")
                    return True
                case "r":
                    if text := _text():
                        decisions.request_changes(hands, name, text)
                        return True
                case "p" | "d" | "s":
                    _show(position, choice)
                case "l" | "":
                    return False
        except IssueflowError as error:
            say(f"error: {line(str(error))}")


def _read(prompt: str) -> str:
    """A line from the person; nothing at the end of input is the same as leaving."""
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()


def _text() -> str:
    """What should change: one line, or what the editor gives when the line is empty."""
    text = _read("what should change (empty opens your editor)? ").strip()
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if text or not editor:
        return text
    with tempfile.NamedTemporaryFile("w+", suffix=".md") as file:
        subprocess.run([*shlex.split(editor), file.name], check=False)
        return Path(file.name).read_text(errors="replace").strip()


def _show(position: "Position", choice: str) -> None:
    from issueflow.cli import look

    if choice == "d":
        look.diff(position.issue)
    elif choice == "p" and position.current("plan.md"):
        look.show(position.issue, "plan")
    else:
        look.show(position.issue, "presented")
