"""The documents say what is so: generated pages, links, names, and the example that a reader copies."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import reference
import typer
from conftest import ROOT, Repo
from test_crash import named_points

from issueflow.cli.app import app
from issueflow.machine.rules import check_workflow
from issueflow.models import (
    AgentSettings,
    Command,
    Config,
    Environment,
    JournalEntry,
    Loop,
    Stage,
    Workflow,
    Worktrees,
)
from issueflow.project import read_yaml

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def blocks(text: str, language: str) -> list[str]:
    return [body for word, body in FENCED.findall(text) if word == language]


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code(text: str) -> Iterator[str]:
    """Every piece of a page that is set as code."""
    yield from (body for _, body in FENCED.findall(text))
    yield from re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def test_the_command_reference_is_what_the_help_says() -> None:
    assert page("cli.md") == reference.reference(), "run: python tests/reference.py"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(there.read_text()), f"{target} is no heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_verb_that_is_named_exists(path: Path) -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for piece in code(path.read_text()):
        for verb in re.findall(r"(?m)(?:^|[$|(;:/&] ?)issueflow(?: -C \S+)? ([a-z][a-z-]+)", piece):
            assert verb in verbs, f"issueflow {verb} is no verb"


@pytest.mark.parametrize(
    ("model", "before"),
    [
        (Config, ""),
        (AgentSettings, "agents.NAME."),
        (Worktrees, "worktrees."),
        (Environment, "env."),
        (Command, "checks[]."),
    ],
    ids=["Config", "AgentSettings", "Worktrees", "Environment", "Command"],
)
def test_every_key_of_the_configuration_is_explained(model: type, before: str) -> None:
    for name, field in model.model_fields.items():  # type: ignore[attr-defined]
        assert f"| `{before}{field.alias or name}` |" in page("guides.md")


def test_every_key_of_a_workflow_is_explained() -> None:
    text = page("guides.md")
    for key in Stage.model_fields:
        assert f"| `{key}` |" in text, f"{key} of a stage"
    for key in (*Loop.model_fields, *Workflow.model_fields):
        assert re.search(rf"[\s`]{key}[`:]", text), f"{key} of a workflow or a loop"


def test_every_field_of_the_journal_is_explained() -> None:
    text = page("files.md")
    for model in get_args(get_args(JournalEntry)[0]):
        kind = model.model_fields["kind"].default
        part = text.split(f"\n### {kind}\n")[1].split("\n## ")[0].split("\n### ")[0]
        for field in model.model_fields.keys() - {"n", "at", "prev", "kind"}:
            assert f"`{field}`" in part, f"{field} of {kind}"


def test_every_crash_point_stands_in_the_table_of_acts() -> None:
    text = page("design.md")
    general = ("step.", "journal.", "rendered.", "recorded.")
    assert [name for name in named_points() if f"`{name}`" not in text and not name.startswith(general)] == []


def test_the_workflow_in_the_guide_is_accepted(tmp_path: Path) -> None:
    text = next(block for block in blocks(page("guides.md"), "yaml") if block.startswith("name: "))
    (tmp_path / "w.yaml").write_text(text)
    workflow = read_yaml(tmp_path / "w.yaml", Workflow)
    assert check_workflow(workflow, bound=dict.fromkeys(workflow.roles, "codex"), has_checks=True) == []


def test_the_configuration_in_the_guide_is_accepted(tmp_path: Path) -> None:
    text = next(b for b in blocks(page("guides.md"), "yaml") if b.startswith("version: 1") and "prefix: issueflow" in b)
    (tmp_path / "c.yaml").write_text(text)
    assert read_yaml(tmp_path / "c.yaml", Config).worktrees.setup[0].run == "npm ci"


def test_the_example_agent_walks_quick(repo: Repo) -> None:
    text = page("agent-contract.md")
    repo.write("NOTES.md", "# Notes\n")
    repo.write(".issueflow/agent.py", blocks(text, "python")[0])
    repo.write(".issueflow/config.yaml", blocks(text, "yaml")[0])
    repo.commit("Use issueflow")
    repo.new("# Keep a note\n\nThis requirement shall stand in NOTES.md.\n")
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert "This requirement shall stand" in repo.git("show", f"{position.head}:NOTES.md")
