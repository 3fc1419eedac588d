"""What is typed a hundred times a day loads nothing it does not need, and each room imports from lower floors only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Repo

HEAVY = ("pydantic", "git", "ruamel", "jinja2", "asyncio", "rich.table", "importlib.metadata")
FLOORS: list[set[str]] = [
    {"errors", "files"},
    {"models"},
    {"machine", "prompts", "store", "git", "hosts", "agents"},
    {"engine", "views"},
    {"project"},
    {"cli"},
    {"__main__"},
]


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status"], ["status", "--json"], ["advance", "--help"]])
def test_the_short_ways_import_nothing_heavy(repo: Repo, words: list[str]) -> None:
    repo.new()
    repo.cli("status")
    code = f"import sys; sys.argv[1:] = {words!r}\nfrom issueflow.__main__ import main\nmain()\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=repo.path, capture_output=True, text=True, check=False)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "issueflow" in loaded, done.stderr
    assert not loaded.intersection(HEAVY)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_a_room_imports_only_from_floors_below_its_own() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    upward = []
    for path in sorted((ROOT / "issueflow").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in imported(path):
            here, there = room(module), room(name)
            if here != there and there in floor and floor[there] >= floor.get(here, 99):
                upward.append(f"{module} imports {name}")
    assert upward == []


def imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("issueflow."):
            found.append(node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.module == "issueflow":
            found += [f"issueflow.{alias.name}" for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("issueflow.")]
    return found
