"""How fast issueflow is, as ratios against floors of the same run: `python tests/bench/bench.py [P1 P2 P3 P4]`.

Nothing here fails a build: a figure from a busy machine is no fact. The goals are in the rows beside the figures.
"""

import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from issueflow.engine import begin, walk
from issueflow.engine.issues import load
from issueflow.machine.state import row
from issueflow.project import Project
from issueflow.store.index import save_summary

ISSUEFLOW = [sys.executable, "-m", "issueflow"]


def cpu(argv: list[str], times: int = 15, cwd: Path | None = None) -> float:
    """Median CPU seconds of a command."""
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(argv, capture_output=True, check=False, cwd=cwd)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(spent)


def wall(act: Callable[[], object], times: int = 5) -> float:
    """Median seconds of an act."""
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def say(name: str, figure: float, goal: str) -> None:
    print(f"{name:<58} {figure:6.2f} ×   goal {goal}", flush=True)


@contextmanager
def repository(files: int) -> Iterator[Path]:
    """A repository with that many files, set up with a developer that writes one more."""
    memory = Path("/dev/shm")
    top = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    shop = top / "shop"
    try:
        for number in range(files):
            path = shop / f"d{number % 100}" / f"f{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"line {number}\n" * 5)
        subprocess.run(["git", "init", "-q", str(shop)], check=True)
        folder = shop / ".issueflow"
        folder.mkdir()
        agent = {"type": "scripted", "script": ".issueflow/scripted.yaml"}
        config = {"version": 1, "agents": {"scripted": agent}, "roles": {"developer": "scripted"}, "workflow": "quick"}
        (folder / "config.yaml").write_text(json.dumps(config))
        acts = [{"write": "new.txt", "text": "x"}, {"result": {"verdict": "done"}}]
        (folder / "scripted.yaml").write_text(json.dumps({"develop": [acts]}))
        git(shop, "add", "-A")
        git(shop, "-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-m", "all")
        yield shop
    finally:
        shutil.rmtree(top)


def git(shop: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=shop, check=True, capture_output=True)


class Silent:
    def began(self, position: object) -> None: ...

    def followed(self, *seen: object) -> None: ...

    def moved(self, before: object, after: object) -> None: ...


def p1() -> None:
    floor = cpu([sys.executable, "-c", "pass"])
    for name, words, goal in [
        ("P1 --version", ["--version"], "2.5"),
        ("P1 --help", ["--help"], "7.5"),
        ("P1 a verb's own start (advance --help)", ["advance", "--help"], "7.5"),
    ]:
        say(name, cpu([*ISSUEFLOW, *words]) / floor, goal)


def p2() -> None:
    floor = cpu([sys.executable, "-c", "pass"])
    at: dict[int, float] = {}
    for count in (10, 100, 1_000, 10_000):
        with repository(10) as shop:
            hands = Project(shop).hands()
            name = begin.create(hands, b"# Go\n", "Go", "r.md", None, None)
            first = hands.store.issue(name)
            plain = row(load(first))
            for number in range(2, count + 1):
                folder = hands.store.issues / f"ISSUE-{number}"
                folder.mkdir()
                shutil.copyfile(first.journal, folder / "journal.jsonl")
                status = "ready" if number > count - 40 else "delivered"
                save_summary(folder, {**plain, "issue": folder.name, "status": status})
            cold = cpu([*ISSUEFLOW, "status"], 1, shop)
            at[count] = cpu([*ISSUEFLOW, "status"], 9, shop)
            say(f"P2 status, warm, piped, {count} Issues (40 open)", at[count] / floor, "4")
            if count == 1_000:
                say("P2 status, cold, 1,000 Issues", cold / floor, "60")
    say("P2 status at 10,000 against 100", at[10_000] / at[100], "1.5")


def p3() -> None:
    for files, goal in ((130, "4.0"), (10_000, "1.5")):
        with repository(files) as shop:
            floor = wall(lambda shop=shop: bare_run(shop))  # type: ignore[misc]
            hands = Project(shop).hands()
            spent = []
            for _ in range(5):
                name = begin.create(hands, b"# Go\n", "Go", "r.md", None, None)
                begun = time.perf_counter()
                position = walk.advance(hands, name, Silent(), walk.Goal(once=True))
                ended = position.runs[0].ended
                assert ended is not None
                spent.append(time.perf_counter() - begun - ended.exit.seconds)
            say(f"P3 overhead of a run, {files} files, against bare git", statistics.median(spent) / floor, goal)


def bare_run(shop: Path) -> None:
    """The same acts by plain git: worktree, change, commit, diff, remove."""
    tree, branch = shop.parent / "bare", f"bare-{time.monotonic_ns()}"
    git(shop, "worktree", "add", "-q", "-b", branch, str(tree))
    (tree / "new.txt").write_text("x")
    git(tree, "add", "-A")
    git(tree, "-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-m", "x")
    git(tree, "rev-parse", "HEAD")
    git(tree, "diff", "HEAD~1", "HEAD")
    git(shop, "worktree", "remove", str(tree))


def p4() -> None:
    """From `advance` to the agent's own start, against `git worktree add`."""
    for files, goal in ((130, "4.0"), (10_000, "1.5")):
        with repository(files) as shop:
            floor = wall(lambda shop=shop: bare_worktree(shop))  # type: ignore[misc]
            hands = Project(shop).hands()
            spent = []
            for _ in range(5):
                name = begin.create(hands, b"# Go\n", "Go", "r.md", None, None)
                begun = time.time()
                position = walk.advance(hands, name, Silent(), walk.Goal(once=True))
                run = hands.store.issue(name).run(position.runs[0].started.name)
                spent.append((run / "started.json").stat().st_mtime - begun)
            say(f"P4 to the agent's start, {files} files, against worktree add", statistics.median(spent) / floor, goal)


def bare_worktree(shop: Path) -> None:
    tree, branch = shop.parent / "bare", f"bare-{time.monotonic_ns()}"
    git(shop, "worktree", "add", "-q", "-b", branch, str(tree))
    shutil.rmtree(tree)
    git(shop, "worktree", "prune")


def main() -> None:
    wanted = sys.argv[1:] or ["P1", "P2", "P3", "P4"]
    for name in wanted:
        {"P1": p1, "P2": p2, "P3": p3, "P4": p4}[name]()


if __name__ == "__main__":
    main()
