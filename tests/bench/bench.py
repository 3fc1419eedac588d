"""How fast issueflow is, as ratios against floors of the same run: `python tests/bench/bench.py [P1 P2 …]`.

Nothing here fails a build: a figure from a busy machine is no fact. The goals are in the rows beside the figures.
"""

import json
import os
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

from issueflow.engine import begin, decisions, launch, walk
from issueflow.engine.issues import load
from issueflow.git import snapshot
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


SIX = {  # stages of a workflow that a no-op agent walks without a person
    "name": "six",
    "version": 1,
    "start": "s1",
    "roles": {"developer": "does nothing"},
    "stages": {
        **{
            f"s{n}": {"kind": "agent", "role": "developer", "next": {"done": f"s{n + 1}", "blocked": "hold"}}
            for n in range(1, 6)
        },
        "s6": {"kind": "agent", "role": "developer", "next": {"done": "delivered", "blocked": "hold"}},
    },
}


def p5(issues: int = 100) -> None:
    """Issues of six stages by a no-op agent: one job against two; then eight jobs from a remote-tracking base."""
    spent = {jobs: six_stages(issues, jobs, None) for jobs in (1, 2)}
    say(f"P5 {issues} Issues of 6 stages, two jobs against one", spent[1] / spent[2], "1.6 or more")
    six_stages(issues, 8, "origin/main")


def six_stages(issues: int, jobs: int, base: str | None) -> float:
    """Seconds of one `advance --all`; what went wrong in it is printed."""
    with repository(130) as shop:
        (shop / ".issueflow" / "workflows").mkdir()
        (shop / ".issueflow" / "workflows" / "six.yaml").write_text(json.dumps(SIX))
        nothing = [[{"result": {"verdict": "done"}}]]
        (shop / ".issueflow" / "scripted.yaml").write_text(json.dumps({f"s{n}": nothing for n in range(1, 7)}))
        git(shop, "update-ref", "refs/remotes/origin/main", "HEAD")
        git(shop, "config", "branch.autoSetupMerge", "always")
        hands = Project(shop).hands()
        for _ in range(issues):
            begin.create(hands, b"# Go\n", "Go", "r.md", "six", base)
        begun = time.perf_counter()
        words = [*ISSUEFLOW, "advance", "--all", "--jobs", str(jobs)]
        done = subprocess.run(words, cwd=shop, capture_output=True, text=True, check=False)
        spent = time.perf_counter() - begun
        failed = done.stderr.count("error: ")
        refs = subprocess.run(["git", "for-each-ref", "refs/heads/issueflow"], cwd=shop, capture_output=True, text=True)
        orphans = sum("/delivered" not in row for row in refs.stdout.splitlines())
        ended = sum(load(hands.store.issue(name)).status == "delivered" for name in hands.store.ids())
        stages = f"{issues * 6} stages, {jobs} jobs{', remote-tracking base' if base else ''}"
        print(f"P5 {stages}: {ended} of {issues} delivered, {failed} errors, {orphans} orphan branches, {spent:.1f} s")
        return spent


def p7() -> None:
    """What `advance` takes to decide that it waits: an Issue with 200 runs against one with 5."""
    at = {}
    for runs in (5, 200):
        with repository(130) as shop:
            acts = [{"result": {"verdict": "incomplete"}}]
            (shop / ".issueflow" / "scripted.yaml").write_text(json.dumps({"develop": [acts] * runs}))
            stage = {
                "kind": "agent",
                "role": "developer",
                "attempts": 20,
                "next": {"done": "delivered", "blocked": "hold"},
            }
            many = {
                "name": "many",
                "version": 1,
                "start": "develop",
                "roles": {"developer": "d"},
                "budget": {"runs": 500},
            }
            (shop / ".issueflow" / "workflows").mkdir()
            (shop / ".issueflow" / "workflows" / "many.yaml").write_text(
                json.dumps({**many, "stages": {"develop": stage}})
            )
            hands = Project(shop).hands()
            name = begin.create(hands, b"# Go\n", "Go", "r.md", "many", None)
            while len(load(hands.store.issue(name)).runs) < runs:
                position = walk.advance(hands, name, Silent(), walk.Goal(once=True))
                if position.status == "held":
                    decisions.retry(hands, name, "again")
            at[runs] = cpu([*ISSUEFLOW, "advance", name, "--dry-run"], 9, shop)
    say("P7 advance decides, 200 runs against 5", at[200] / at[5], "3")


def p8() -> None:
    """What an installation without extras brings along."""
    import venv

    with repository(1) as shop:
        home = shop.parent / "venv"
        venv.create(home, with_pip=True)
        bare = size(home)
        source = Path(__file__).resolve().parents[2]
        subprocess.run([home / "bin" / "pip", "install", "-q", source], check=True, capture_output=True)
        listed = subprocess.run([home / "bin" / "pip", "list", "--format=json"], capture_output=True, check=True)
        names = {row["name"] for row in json.loads(listed.stdout)} - {"pip", "setuptools"}
        print(f"P8 installed: {(size(home) - bare) / 1e6:.0f} MB, {len(names)} distributions   goal 60 MB, 20")


def snapshot_cost() -> None:
    """Recording what an agent left in a tree of 2,000 files, against `git add -A && git commit` of the same."""
    with repository(2_000) as shop:
        hands = Project(shop).hands()
        name = begin.create(hands, b"# Go\n", "Go", "r.md", None, None)
        walk.advance(hands, name, Silent(), walk.Goal(until="verify"))
        run = hands.store.issue(name).run("01-develop")
        place = launch.place_of(run)
        assert place is not None
        lens = launch.lens_of(hands.repository.common, run, place)
        assert lens is not None
        numbers = iter(range(1_000))

        def change() -> None:
            (place.path / f"d{next(numbers) % 100}" / "f1.txt").write_text(f"{time.monotonic_ns()}\n")

        def plain() -> None:
            change()
            git(place.path, "add", "-A")
            git(place.path, "-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q", "-m", "x")

        def ours() -> None:
            change()
            tree = snapshot.look(lens).tree
            hands.repository.commit_tree(tree, ["HEAD"], "x", hands.repository.identity, 0)

        floor = wall(plain, 9)
        say("a snapshot of 2,000 files, against add and commit", wall(ours, 9) / floor, "3")


def resume_decides() -> None:
    """Seconds until `resume` of an Issue that crashed has decided, the agent's own time aside."""
    with repository(130) as shop:
        hands = Project(shop).hands()
        begin.create(hands, b"# Go\n", "Go", "r.md", None, None)
        crash = {**os.environ, "ISSUEFLOW_CRASH": f"step.Collect#1@{shop.parent}/passed"}
        subprocess.run([*ISSUEFLOW, "advance"], cwd=shop, env=crash, capture_output=True, check=False)
        spent = wall(lambda: subprocess.run([*ISSUEFLOW, "resume", "--dry-run"], cwd=shop, capture_output=True), 7)
        print(f"resume of a crashed Issue decides in {spent:.2f} s   goal 1")


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


BENCHMARKS = {"P1": p1, "P2": p2, "P3": p3, "P4": p4, "P5": p5, "P7": p7, "P8": p8}
BENCHMARKS |= {"snapshot": snapshot_cost, "resume": resume_decides}


def main() -> None:
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
