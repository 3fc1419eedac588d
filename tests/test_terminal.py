"""The listing as a table: whole in a pipe, and on a terminal only the title gives way."""

import io
import json

import pytest
from conftest import Repo

from issueflow.views import table

HEAD = ("ISSUE", "TITLE", "STAGE", "ROUND", "NOW")
ROWS = [
    ("ISSUE-17", "漢字 [/x] " * 30, "plan-approval", "1", "waiting for you"),
    ("ISSUE-8", "short", "code-review", "2/4", "running 4m, claude, quiet 12s"),
]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["80", "100", "200", "1000"])
def test_on_a_terminal_the_title_alone_gives_way(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """BR-210: a long title once pushed the Issue's name off the screen."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    table(HEAD, ROWS, screen, flexible=1, styles=["", ""])
    lines = screen.getvalue().splitlines()
    assert len(lines) == 3
    for row, shown in zip(ROWS, lines[1:], strict=True):
        assert shown.startswith(f"{row[0]} ") and shown.rstrip().endswith(row[4])
        assert row[1][:8].rstrip() in shown and row[2] in shown


def test_in_a_pipe_nothing_is_cut(repo: Repo) -> None:
    """BR-214, BR-212: full values where no person looks, and JSON that stays JSON."""
    title = "a title of a hundred characters or more [/x] " * 4
    repo.write("r.md", "# Do it\n")
    repo.cli("new", "r.md", "--title", title[:190])
    listed = repo.cli("status", env={"COLUMNS": "40"}).stdout.splitlines()
    assert len(listed) == 2 and title[:190].rstrip() in listed[1]
    shown = repo.cli("status", "--json", env={"COLUMNS": "40"})
    assert json.loads(shown.stdout)["issues"][0]["title"] == title[:190].rstrip()
