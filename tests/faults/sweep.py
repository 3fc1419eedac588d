"""The sweep: `python tests/faults/sweep.py --every N --offset M --jobs 2` tries every N-th point and prints a table."""

import argparse
import multiprocessing
import random
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.bench import FAULTS, Bench, temporary, why_not
from faults.walks import SWEPT, WALKS

Row = tuple[str, str, int, str, list[str]]  # walk, fault, point, the call it hit, what was broken
Rows = multiprocessing.Queue  # of Row, and of None where a worker has ended


def chosen(bench: Bench, walks: list[str], faults: list[str], every: int, offset: int) -> list[tuple[str, str, int]]:
    """Every `every`-th point of all walks and faults, counted on through them, mixed so that any beginning is fair."""
    points = [(w, f, point) for w in walks for f in faults for point in bench.record(w).points(FAULTS[f])]
    few = points[offset % every :: every]
    random.Random(offset).shuffle(few)
    return few


def work(top: Path, walks: list[str], given: argparse.Namespace, until: float, out: Rows) -> None:
    """One worker's share: walks of its own, so that none is recorded twice; then None."""
    bench = Bench(top)
    try:
        for walk, fault, point in chosen(bench, walks, given.fault, given.every, given.offset):
            if time.monotonic() > until:
                break
            trial = bench.trial(walk, FAULTS[fault], point)
            if trial.broken:  # a busy machine can be too slow for a walk's limits: what is bad is bad twice
                print(f"tried again: {walk}, {fault}, call {point}: {trial.broken}", file=sys.stderr, flush=True)
                trial = bench.trial(walk, FAULTS[fault], point)
            out.put((walk, fault, point, trial.hit, trial.broken))
    finally:
        out.put(None)


def main() -> int:
    """Run the sweep; 1 when anything was broken."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--every", type=int, default=1, metavar="N", help="try every N-th point")
    ask.add_argument("--offset", type=int, default=0, metavar="M", help="begin with the M-th")
    ask.add_argument("--jobs", type=int, default=2, help="how many processes, at most one a walk")
    ask.add_argument("--minutes", type=float, default=1e6, help="begin no trial after this time")
    ask.add_argument("--walk", action="append", choices=WALKS, help="only this walk (may be repeated)")
    ask.add_argument("--fault", action="append", choices=FAULTS, help="only this fault (may be repeated)")
    given = ask.parse_args()
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    walks, given.fault = given.walk or SWEPT, given.fault or list(FAULTS)
    top, begun = temporary(), time.monotonic()
    out: Rows = multiprocessing.Queue()
    shares = [walks[n :: given.jobs] for n in range(min(given.jobs, len(walks)))]
    until = begun + given.minutes * 60
    workers = [
        multiprocessing.Process(target=work, args=(top / str(number), share, given, until, out))
        for number, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    rows = gather(out, len(workers))
    for worker in workers:
        worker.join()
    shutil.rmtree(top, ignore_errors=True)
    print(table(rows))
    print(f"\n{len(rows)} points in {time.monotonic() - begun:.0f} s with {len(workers)} processes")
    return 1 if any(row[4] for row in rows) or any(worker.exitcode for worker in workers) else 0


def gather(out: Rows, left: int) -> list[Row]:
    """The rows of all workers; what was broken, and how far it is, goes to standard error."""
    rows: list[Row] = []
    while left:
        row = out.get()
        if row is None:
            left -= 1
            continue
        rows.append(row)
        for word in row[4]:
            print(f"{row[0]}, {row[1]}, call {row[2]} ({row[3]}): {word}", file=sys.stderr, flush=True)
        if len(rows) % 50 == 0:
            print(f"{len(rows)} points, {sum(1 for r in rows if r[4])} bad", file=sys.stderr, flush=True)
    return rows


def table(rows: list[Row]) -> str:
    """The result as markdown: a line for each walk and fault."""
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for walk, fault, _, hit, broken in rows:
        counts = found[walk, fault]
        counts[0] += 1
        counts[2 if broken else 1 if hit else 3] += 1
    lines = ["| walk | fault | points | ok | bad | not reached |", "|---|---|---|---|---|---|"]
    for (walk, fault), counts in sorted(found.items()):
        lines.append(f"| {walk} | {fault} | {' | '.join(str(count) for count in counts)} |")
    sums = [str(sum(counts[n] for counts in found.values())) for n in range(4)]
    lines.append(f"| all | all | {' | '.join(sums)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
