"""The program behind the agent `scripted`: `python -I player.py SCRIPT.json` in a worktree plays the acts in order.

Standard library only, so that it starts in milliseconds; it knows nothing but the order it finds in its worktree.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RUN_FOLDER = Path(".issueflow-run")


def main(script: Path) -> int:
    """Play the acts; 0 unless one says otherwise."""
    sys.stdin.buffer.read()  # the prompt; an agent that leaves it unread would hide a full pipe
    order = json.loads((RUN_FOLDER / "order.json").read_text())
    for act in json.loads(script.read_text())["acts"]:
        code = play(act, order)
        if code is not None:
            return code
    return 0


def play(act: dict[str, Any], order: dict[str, Any]) -> int | None:
    """Do one act; an exit code when it was the last one."""
    if "write" in act:
        write(act)
    elif "delete" in act:
        delete(Path(act["delete"]))
    elif "run" in act:
        subprocess.run(act["run"], check=False)
    elif "commit" in act:
        commit(act["commit"])
    elif "say" in act:
        print(act["say"], file=sys.stderr if act["to"] == "stderr" else sys.stdout, flush=True)
    elif "sleep" in act:
        time.sleep(act["sleep"])
    elif "result" in act:
        submit(json.dumps(complete(act["result"], order), indent=2), act["channel"])
    elif "raw" in act:
        submit(act["raw"], act["channel"])
    else:
        if act["signal"]:
            os.kill(os.getpid(), signal.Signals[f"SIG{act['signal']}"])
        return act["exit"] or 0
    return None


def commit(message: str) -> None:
    """Commit everything; an attempt that goes on from a dead one's snapshot may find it committed already."""
    subprocess.run(["git", "add", "-A"], check=True)
    if subprocess.run(["git", "diff", "--cached", "--quiet"], check=False).returncode:
        subprocess.run(["git", "commit", "-q", "--no-verify", "-m", message], check=True)


def write(act: dict[str, Any]) -> None:
    """Write one file, its folders first; a link or a folder in its place gives way."""
    path = Path(act["write"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.is_dir():
        delete(path)
    if act["link"] is not None:
        path.unlink(missing_ok=True)
        path.symlink_to(act["link"])
        return
    data = base64.b64decode(act["base64"]) if act["base64"] is not None else (act["text"] or "").encode()
    path.write_bytes(data)
    if act["mode"]:
        path.chmod(int(act["mode"], 8))


def delete(path: Path) -> None:
    """Delete a file, a link or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def submit(text: str, channel: str) -> None:
    """Hand in a result: whole at once by file, as a careful agent does, or as the final message."""
    if channel == "output":
        print(text, flush=True)
        return
    half = RUN_FOLDER / "result.json.half"
    half.write_text(text)
    half.replace(RUN_FOLDER / "result.json")


def complete(result: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    """The script's result with everything an honest agent would copy from its order."""
    head = {"schema": "issueflow.result/1", **{key: order[key] for key in ("issue", "stage", "run", "nonce")}}
    full = {**head, "summary": f"{order['stage']}: {result.get('verdict')}", **result}
    if order["kind"] == "review":
        full.setdefault("reviewed", order["target"]["reviewed"])
        placed = {*full.get("missing", ()), *(item["id"] for item in full.get("not_applicable", ()))}
        rest = [item["id"] for item in order["checklist"] if item["id"] not in placed]
        full.setdefault("covered", [{"id": name, "evidence": "seen in the diff"} for name in rest])
    elif result.get("verdict") == "done" and order["must_answer"]:
        answers = [{"finding": f["id"], "action": "fixed", "reason": "done as asked"} for f in order["must_answer"]]
        full.setdefault("responses", answers)
    if order["access"] == "write":
        for key in ("commands_run", "not_run", "open_problems"):
            full.setdefault(key, [])
    return full


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
