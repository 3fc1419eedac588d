"""The demo: a small real repository, and a requirement that goes all the way with the scripted agent."""

import os
import sys
import tempfile
from pathlib import Path

from issueflow.cli.common import exit_code
from issueflow.cli.walk import go
from issueflow.engine import decisions
from issueflow.engine.begin import create
from issueflow.engine.issues import load
from issueflow.git.command import git
from issueflow.machine.requirement import read_requirement
from issueflow.project import Project, init
from issueflow.views import answer, say

FILES = {
    "README.md": "# shop\n\nPrices and totals.\n",
    "shop/__init__.py": "",
    "shop/prices.py": '"""Prices in cents."""\n\n\ndef total(prices: list[int]) -> int:\n'
    '    """The sum of the prices."""\n    return sum(prices)\n',
    "shop/cart.py": "from shop.prices import total\n\n\ndef checkout(prices: list[int]) -> str:\n"
    '    return f"{total(prices) / 100:.2f}"\n',
    "tests/__init__.py": "",
    "tests/test_cart.py": "import unittest\n\nfrom shop.cart import checkout\n\n\nclass Cart(unittest.TestCase):\n"
    '    def test_checkout_shows_the_total(self):\n        self.assertEqual(checkout([100, 250]), "3.50")\n',
    ".gitignore": "__pycache__/\n",
}
REQUIREMENT = """# Discounts on the total

A customer may have a discount in cents. `total` takes it off, once. A discount above the sum gives 0, never less.
Existing callers keep working as they are.
"""


def play(directory: Path | None, *, yes: bool) -> int:
    """Make the repository, walk the requirement through `default`, say where everything lies; give the exit code."""
    home = directory or Path(tempfile.mkdtemp(prefix="issueflow-demo-")) / "shop"
    _make_repository(home)
    os.chdir(home)
    project = Project(home)
    init(project, "scripted")
    git(home, "add", ".issueflow", ".")
    git(home, *_identity(), "commit", "-q", "-m", "Use issueflow")
    say(f"demo: a repository in {home}, its requirement in {home.parent / 'r3.md'}")
    (home.parent / "r3.md").write_text(REQUIREMENT)
    hands = project.hands()
    data = REQUIREMENT.encode()
    name = create(hands, data, read_requirement(data, "r3.md").title, os.fspath(home.parent / "r3.md"), None, None)
    say(f"$ issueflow new ../r3.md        → {name}")
    while True:
        say(f"$ issueflow advance {name}")
        code = go(hands, name)
        position = load(hands.store.issue(name))
        if code or position.status != "waiting":
            break
        if not yes and not _agrees(position.stage):
            say(f"left as it is: cd {home}; issueflow show {name}; issueflow approve {name}")
            return 0
        say(f"$ issueflow approve {name}       (the demo's --yes stands for the person here)" if yes else "")
        decisions.approve(hands, name, "")
    _tell(home, name)
    return exit_code(position)


def _make_repository(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(home, "init", "-q", "-b", "main")
    git(home, "add", ".")
    git(home, *_identity(), "commit", "-q", "-m", "A shop")


def _identity() -> tuple[str, ...]:
    return ("-c", "user.name=demo", "-c", "user.email=demo@localhost")


def _agrees(stage: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"approve {stage}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(home: Path, name: str) -> None:
    answer("")
    answer(f"repository   {home}")
    answer(f"state        {home}/.git/issueflow/issues/{name}/issue.yaml")
    answer(f"worktrees    {home}.issueflow/{name}/")
    answer(f"to merge     issueflow/{name}/delivered")
    answer(f"try next     cd {home}")
    for command in (
        "status",
        f"show {name} plan",
        f"diff {name}",
        f"log {name}",
        f"show {name} run 5",
        "cleanup --dry-run",
    ):
        answer(f"             issueflow {command}")
    answer(f"             git log refs/issueflow-records/{name}")
