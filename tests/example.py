"""Makes the finished Issue of `.issueflow-example/` and the journals of `tests/histories/`: `python tests/example.py`.

The example shows what lies on disk after a walk; the histories hold each journal format as it was, with where it must
still land. Run this only when the format has grown a new number, and add a folder then; never change an old one.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from issueflow.engine.issues import load
from issueflow.hosts import processes
from issueflow.machine.state import state
from issueflow.models import JOURNAL_FORMAT
from issueflow.store.issue import IssueFolder

ROOT = Path(__file__).resolve().parents[1]
WORK = Path("/tmp/example")  # stands in the files, so it is the same wherever they are made


def main() -> None:
    """Walk the demo in a sealed home and copy what it leaves."""
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "home").mkdir(parents=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(WORK / "home"), "GIT_CONFIG_NOSYSTEM": "1", "LOGNAME": "pat"}
    command = [sys.executable, "-m", "issueflow"]
    subprocess.run([*command, "demo", "--yes", "--dir", str(WORK / "shop")], env=env, check=True, cwd=ROOT)
    store = WORK / "shop" / ".git" / "issueflow" / "issues"
    copy(store / "ISSUE-1", ROOT / ".issueflow-example" / "issues" / "ISSUE-1")
    history(store / "ISSUE-1", "delivered")
    (WORK / "r4.md").write_text("# Another\n\nSmall.\n")
    subprocess.run(
        [*command, "new", "../r4.md", "--workflow", "quick", "--advance"], env=env, cwd=WORK / "shop", check=False
    )
    history(store / "ISSUE-2", "quick")
    subprocess.run([*command, "cancel", "2"], env=env, cwd=WORK / "shop", check=True)
    history(store / "ISSUE-2", "cancelled")


def copy(issue: Path, target: Path) -> None:
    """The files a person would look at, without this machine's name."""
    shutil.rmtree(target, ignore_errors=True)
    names = IssueFolder(issue).recordable() + [str(p.relative_to(issue)) for p in issue.glob("runs/*/std*.log")]
    for name in names:
        text = (issue / name).read_text()
        text = text.replace(processes.machine(), "workstation").replace(processes.boot_id(), "0" * 32)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text)


def history(issue: Path, name: str) -> None:
    """A journal, and the state it must still fold to."""
    target = ROOT / "tests" / "histories" / f"format-{JOURNAL_FORMAT}" / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copyfile(issue / "journal.jsonl", target / "journal.jsonl")
    folded = state(load(IssueFolder(issue)))
    (target / "state.json").write_text(json.dumps(folded, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
