"""A declared secret stands in no file that issueflow writes, wherever an agent, a check or a set-up leaves it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import Repo, approve, done, plan, quick, reject

from issueflow.hosts.redact import Secrets, Stream

NAME = "OPENAI_API_KEY"
VALUE = 'sk-Ab/"9\\x+\u00e4-0123456789'
HIDDEN = f"[secret {NAME}]"
SAY = {"run": ["sh", "-c", f'printf %s "${NAME}"; printf "%s\\n" "${NAME}" >&2']}
RUN = ".issueflow-run"


@pytest.fixture(autouse=True)
def exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, VALUE)


def forms(value: str) -> list[bytes]:
    return [value.encode(), *(json.dumps(value, ensure_ascii=ascii)[1:-1].encode() for ascii in (True, False))]


def leaks(repo: Repo) -> list[str]:
    """The files below the state folder, and in the record, that hold the value; but for the script a person wrote."""
    store = repo.path / ".git" / "issueflow"
    files = [path for path in store.rglob("*") if path.is_file() and path.name != "script.json"]
    assert len(files) > 5
    found = [str(path.relative_to(store)) for path in files if holds(path.read_bytes())]
    names = [row.split()[0] for row in repo.git("rev-list", "--objects", "--glob=refs/issueflow-records").splitlines()]
    asked = "".join(f"{name}\n" for name in names).encode()
    record = subprocess.run(["git", "cat-file", "--batch"], cwd=repo.path, input=asked, capture_output=True, check=True)
    assert len(record.stdout) > 1_000
    found += ["the record"] if holds(record.stdout) else []
    return found


def holds(data: bytes) -> bool:
    return any(form in data for form in forms(VALUE))


@pytest.mark.more
def test_a_secret_in_a_whole_walk_is_written_nowhere(repo: Repo) -> None:
    """Printed, in the plan, in results and findings, committed and so in the reviewer's diff, in a check."""
    leaky = plan(f"# Plan\n\nUse {VALUE}.\n")
    leaky[-1]["result"]["summary"] = f"call it with {VALUE}"
    spoiled = {"severity": "major", "where": "app.py", "claim": f"{VALUE} is in there", "evidence": VALUE, "fix": "-"}
    repo.setup(
        {
            "analysis": [[SAY, *leaky]],
            "plan-review": [[SAY, approve(summary=VALUE)]],
            "develop": [
                [
                    {"run": ["sh", "-c", f'printf "key = %s\\n" "${NAME}" > app.py']},
                    done(artifacts=[{"name": "report.md", "text": VALUE}]),
                ],
                [
                    {"run": ["sh", "-c", f'printf "%s" "${NAME}" > {RUN}/report.md']},
                    {"write": "app.py", "text": "print('two')\n"},
                    done(artifacts=[{"name": "report.md", "path": f"{RUN}/report.md"}], open_problems=[VALUE]),
                ],
            ],
            "code-review": [[reject(spoiled)], [approve()]],
        },
        checks=[f'echo "${NAME}"; exit 0'],
        secrets=[NAME],
    )
    repo.new()
    repo.advance()
    repo.cli("approve", "1")
    position = repo.advance()
    assert (position.stage, position.status) == ("deliver", "waiting")
    assert leaks(repo) == []
    noticed = {run.started.name: run.ended.code.noticed for run in position.runs if run.ended}
    said = f"what it handed in holds the value of {NAME}; the copies of it say {HIDDEN}"
    assert noticed["01-analysis"] == (said,)
    assert noticed["03-develop"] == (said, f"the commit {position.runs[2].tip[:12]} contains the value of {NAME}")
    assert noticed["04-code-review"] == (said,)
    assert noticed["05-develop"] == (said,)
    folder = repo.hands.store.issue("ISSUE-1").folder
    assert (folder / "artifacts" / "plan.v1.md").read_text() == f"# Plan\n\nUse {HIDDEN}.\n"
    assert (folder / "runs" / "01-analysis" / "stdout.log").read_text() == HIDDEN
    assert HIDDEN in (folder / "runs" / "04-code-review" / "prompt.md").read_text()
    assert position.checks[0].tail == HIDDEN + "\n"


def test_a_secret_in_the_final_message_or_the_last_words_is_written_nowhere(repo: Repo) -> None:
    submit = {"result": {"verdict": "done", "summary": f"{VALUE} works", "no_change": VALUE}, "channel": "output"}
    repo.setup(quick([SAY, {"exit": 3}], [submit]), secrets=[NAME])
    repo.new("# Do it\n", "--workflow", "quick")
    position = repo.advance()
    first, second = (run.ended.outcome for run in position.runs[:2] if run.ended)
    assert first.cls == "missing" and HIDDEN in first.errors[0]
    assert (second.cls, second.summary) == ("accepted", f"{HIDDEN} works")
    assert leaks(repo) == []


def test_a_failed_set_up_tells_no_secret(repo: Repo) -> None:
    repo.setup(quick([done()]), secrets=[NAME], worktrees={"setup": [f'echo "${NAME}"', f'echo "${NAME}" >&2; exit 4']})
    repo.new("# Do it\n", "--workflow", "quick")
    position = repo.advance()
    assert position.hold and HIDDEN in position.hold.reason
    assert (repo.run_folder("01-develop") / "setup.log").read_text() == f"{HIDDEN}\n{HIDDEN}\n"
    assert leaks(repo) == []


def test_a_secret_that_a_later_commit_takes_away_again_is_told(repo: Repo) -> None:
    script = f"""printf '%s\\0' "${NAME}" > key.bin; git add -A; git commit -qm "has a key"
        git rm -q key.bin; git commit -qm "no key"; git commit -q --allow-empty -m "it was ${NAME}" """
    repo.setup(quick([{"run": ["sh", "-ec", script]}, done(no_change="see the history")]), secrets=[NAME])
    repo.new("# Do it\n", "--workflow", "quick")
    position = repo.advance(once=True)
    assert position.runs[0].ended is not None
    told = (f"the commit {position.runs[0].tip[:12]} contains the value of {NAME}",)
    assert position.runs[0].ended.code.noticed == told
    repo.cli("reopen", "1", "--to", "develop", "--reason", "again")
    repo.script(quick([{"write": "x", "text": "1"}, done()]))
    second = repo.advance(once=True).runs[1].ended
    assert second is not None and second.code.noticed == ()


def test_only_the_name_reaches_the_runner_and_the_value_still_reaches_the_agent(repo: Repo) -> None:
    repo.setup(
        quick([{"run": ["sh", "-c", f'test -n "${NAME}" && echo there > seen']}, done()]), secrets=[NAME, "UNSET_ONE"]
    )
    repo.new("# Do it\n", "--workflow", "quick")
    position = repo.advance(once=True)
    run = repo.run_folder("01-develop")
    assert json.loads((run / "launch.json").read_text())["secrets"] == [NAME, "UNSET_ONE"]
    assert json.loads((run / "started.json").read_text())["secrets"] == [NAME]
    assert repo.git("show", f"{position.head}:seen") == "there"


def test_a_run_taken_in_without_the_variable_is_said_not_to_be_searched(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.setup(quick([{"write": "x", "text": "1"}, done()]), secrets=[NAME])
    repo.new("# Do it\n", "--workflow", "quick")
    env = {"ISSUEFLOW_CRASH": f"step.Collect#1@{repo.path.parent / 'passed'}"}
    assert repo.cli("advance", "1", env=env).returncode == -9
    monkeypatch.delenv(NAME)
    position = repo.advance(once=True)
    assert position.runs[0].ended is not None
    told = (f"{NAME} is not set here: what the run handed in was not searched for it",)
    assert position.runs[0].ended.code.noticed == told


@pytest.mark.parametrize(
    "words",
    [
        ["new", "r.md", "--workflow", "quick"],
        ["new", "clean.md", "--workflow", "quick", "--title", f"about {VALUE}"],
        ["amend", "1", "r.md"],
        ["note", "1", VALUE],
        ["cancel", "1", "-m", VALUE],
        ["reopen", "1", "--to", "develop", "--reason", VALUE],
    ],
    ids=lambda words: " ".join(words[:1]),
)
def test_a_person_s_words_with_a_secret_are_refused(repo: Repo, words: list[str]) -> None:
    repo.setup(secrets=[NAME])
    repo.write("r.md", f"# Use {VALUE}\n")
    repo.write("clean.md", "# Do it\n")
    repo.new("# Do it\n", "--workflow", "quick")
    said = repo.cli(*words)
    assert said.returncode == 2
    assert f"holds the value of the secret {NAME}" in said.stderr and VALUE not in said.stderr
    assert repo.hands.store.ids() == ["ISSUE-1"]
    assert leaks(repo) == []


def test_a_check_with_a_secret_in_it_and_an_agent_given_one_by_value_are_refused(repo: Repo) -> None:
    repo.write("r.md", "# Do it\n")
    repo.setup(secrets=[NAME], checks=[f"curl -H '{VALUE}'"])
    said = repo.cli("new", "r.md", "--workflow", "quick")
    assert (said.returncode, VALUE in said.stderr) == (2, False)
    agents = {"scripted": {"type": "scripted", "script": ".issueflow/scripted.yaml", "env": {NAME: "x"}}}
    repo.setup(secrets=[NAME], agents=agents, roles=dict.fromkeys(("analyst", "reviewer", "developer"), "scripted"))
    said = repo.cli("new", "r.md", "--workflow", "quick")
    assert said.returncode == 2
    assert f"secrets: Value error, {NAME} also stands in agents.scripted.env" in said.stderr


def test_a_broken_configuration_keeps_nobody_from_cancelling(repo: Repo) -> None:
    repo.new("# Do it\n", "--workflow", "quick")
    repo.write(".issueflow/config.yaml", "secrets: [")
    assert repo.cli("note", "1", "as it is").returncode == 0
    assert repo.cli("cancel", "1").returncode == 0


# ── in pieces ──


def pieces(random: Random, data: bytes) -> Iterator[bytes]:
    while data:
        size = random.choice((1, 1, 2, 3, 7, 40))
        yield data[:size]
        data = data[size:]


def streamed(secrets: Secrets, data: bytes, random: Random) -> bytes:
    stream = Stream(secrets)
    return b"".join(stream.feed(piece) for piece in pieces(random, data)) + stream.rest()


def test_a_value_is_found_across_any_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that repeats itself, one that begins another, one over two lines, and one that JSON writes otherwise."""
    values = {"REPEATS": "aaaaaaaa", "BEGINS": "abcabcabc", "LONGER": "abcabcabcabcx", "LINES": "-----KEY\nline two\n"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    secrets, random = Secrets([*values, NAME]), Random("pieces")
    parts = [form for value in (*values.values(), VALUE) for form in forms(value.strip())]
    parts += [b"aaa", b"abc", b"abcabc", b"\n", b"plain text", VALUE.encode()[:9]]
    for _ in range(2_000):
        data = b"".join(random.choice(parts) for _ in range(random.randrange(8)))
        out = streamed(secrets, data, random)
        assert out == secrets.redact(data)
        assert not secrets.found_in(out)


def test_what_is_no_secret_is_copied_at_once_and_unchanged() -> None:
    stream = Stream(Secrets([NAME]))
    assert stream.feed(b"\xff\0\r\nprogress 10%\r") == b"\xff\0\r\nprogress 10%\r"
    assert Stream(Secrets([])).feed(b"sk-") == b"sk-"


@pytest.mark.parametrize("value", ["", "short", "1234567", "       "])
def test_a_short_value_is_left_alone(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(NAME, value)
    assert Secrets([NAME]).redact(b"a short value, 1234567") == b"a short value, 1234567"


def test_the_names_are_taken_from_the_configuration(repo: Repo, tmp_path: Path) -> None:
    bad: list[Any] = [["no-name"], ["1A"], [""], "OPENAI_API_KEY", [7]]
    for names in bad:
        repo.setup(secrets=names)
        repo.write("r.md", "# Do it\n")
        said = repo.cli("new", "r.md")
        assert (said.returncode, "secrets" in said.stderr) == (2, True), names
