"""Several Issues at a time: one `advance` process each, their lines told apart by the Issue's name."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from issueflow.views import answer, say

TELLING = Lock()


def advance_many(names: list[str], jobs: int, flags: list[str]) -> int:
    """Advance the Issues, `jobs` at a time; the highest exit code of them, 130 when interrupted."""
    if not names:
        say("no open Issues here")
        return 0
    pool = ThreadPoolExecutor(max_workers=jobs)
    waiting = [pool.submit(_advance, name, flags) for name in names]
    try:
        codes = [one.result() for one in waiting]
    except KeyboardInterrupt:
        for one in waiting:
            one.cancel()  # those that run have had the same Ctrl-C and say so themselves
        pool.shutdown(wait=True)
        return 130
    pool.shutdown()
    return max(codes)


def _advance(name: str, flags: list[str]) -> int:
    main = Path(__file__).resolve().parents[1] / "__main__.py"
    argv = [
        sys.executable,
        "-I",
        str(main),
        "advance",
        name,
        *flags,
    ]  # -I: nothing of the folder we stand in is imported
    last = ""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for row in process.stdout:
            row = row.rstrip("\n")
            if row.startswith(f"{name} "):
                last = row  # where it stands: its answer
            elif row.strip():
                with TELLING:
                    say(f"{name}  {row.strip().removeprefix(f'▸ {name} ')}")
        code = process.wait()
    with TELLING:
        answer(last or f"{name}: exit code {code}")
    return code
