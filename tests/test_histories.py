"""What was written once can be read for good: old journals still land where they landed, and the example is one."""

import json
from pathlib import Path

import pytest
from conftest import EXAMPLE, ROOT

from issueflow.engine.issues import load
from issueflow.errors import Damaged
from issueflow.machine.state import state
from issueflow.models import Config, Workflow
from issueflow.project import read_yaml
from issueflow.store.issue import IssueFolder, sha256

HISTORIES = sorted((ROOT / "tests" / "histories").glob("*/*"))


@pytest.mark.parametrize("folder", HISTORIES, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_an_old_journal_lands_where_it_landed(folder: Path) -> None:
    assert state(load(IssueFolder(folder))) == json.loads((folder / "state.json").read_text())


def test_the_example_is_a_finished_issue_whose_files_are_what_its_journal_says() -> None:
    folder = IssueFolder(EXAMPLE / "issues" / "ISSUE-1")
    position = load(folder)
    assert position.status == "delivered"
    assert sha256(folder.requirement(1).read_bytes()) == position.requirement.sha256
    assert sha256(folder.workflow(1).read_bytes()) == position.pinned.digest
    for versions in position.documents.values():
        for document in versions:
            assert sha256(folder.document(document.name, document.version).read_bytes()) == document.sha256
    assert folder.edited() is None


def test_the_example_s_configuration_and_workflows_load() -> None:
    assert read_yaml(EXAMPLE / "config.yaml", Config).workflow == "default"
    assert {read_yaml(path, Workflow).name for path in (EXAMPLE / "workflows").glob("*.yaml")} == {"default", "quick"}


def test_a_journal_from_a_newer_version_is_said_to_be_one(tmp_path: Path) -> None:
    lines = (HISTORIES[0] / "journal.jsonl").read_text().splitlines(keepends=True)
    first = json.loads(lines[0])
    (tmp_path / "journal.jsonl").write_text(json.dumps({**first, "format": 99}) + "\n" + "".join(lines[1:]))
    with pytest.raises(Damaged, match="newer issueflow"):
        IssueFolder(tmp_path).entries()
