"""A stand-in for an agent CLI: `fake_cli.py PLAYS WORD…` says what a play says, in whatever dialect, and hands in.

PLAYS is a folder with `1.json`, `2.json` …, one a run in the order they begin, the last for all others:
`{"stdout": [line…], "stderr": text, "exit": code, "shell": line, "result": {…}, "channel": "file"}`. The words it was
started with are left beside them as `1.argv`.
"""

import json
import subprocess
import sys
from pathlib import Path

from issueflow.agents import player


def main(folder: Path, words: list[str]) -> int:
    sys.stdin.read()
    number = 1
    while (folder / f"{number}.argv").exists():
        number += 1
    (folder / f"{number}.argv").write_text(json.dumps(words))
    plays = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    play = json.loads(plays[min(number, len(plays)) - 1].read_text())
    for line in play.get("stdout", ()):
        print(line, flush=True)
    print(play.get("stderr", ""), end="", file=sys.stderr)
    if "shell" in play:
        subprocess.run(["/bin/sh", "-c", play["shell"]], check=True)
    if "result" in play:
        order = json.loads(Path(".issueflow-run/order.json").read_text())
        player.submit(json.dumps(player.complete(play["result"], order)), play.get("channel", "file"))
    return int(play.get("exit", 0))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
