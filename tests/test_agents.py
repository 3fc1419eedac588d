"""Agents' adapters: what each reads out of streams that its real CLI wrote, and how each is started."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from issueflow import agents
from issueflow.errors import WrongWords
from issueflow.models import AgentSettings, Problem, Usage

RECORDED = Path(__file__).with_name("transcripts_real")
ENDED = 1_790_000_000


def read(name: str) -> agents.Report:
    """What the adapter makes of a recorded transcript, `claude-429` being one of claude's."""
    found = agents.agent(AgentSettings(type=name.split("-")[0]))
    assert found
    out, err = RECORDED / f"{name}.jsonl", RECORDED / f"{name}.err"
    return found.read(out.read_text() if out.exists() else "", err.read_text() if err.exists() else "", ENDED)


def task(tmp_path: Path, **more: Any) -> agents.Task:
    (tmp_path / "schema.json").write_text("{}")
    usual: dict[str, Any] = {
        "prompt": tmp_path / "prompt.md",
        "worktree": tmp_path / "tree",
        "run_folder": tmp_path,
        "stage": "develop",
        "play": 1,
        "project": tmp_path,
        "kind": "agent",
        "access": "write",
        "commands": True,
        "git": (Path("/repo/.git"), Path("/repo/.git/worktrees/06")),
        "session": None,
        "schema": tmp_path / "schema.json",
    }
    return agents.Task(**{**usual, **more})


def argv(kind: str, given: agents.Task, **settings: Any) -> list[str]:
    found = agents.agent(AgentSettings(type=kind, **settings))
    assert found
    return found.launch(AgentSettings(type=kind, **settings), given).argv


def kind_of(problem: Problem | None) -> str | None:
    return problem.kind if problem else None


@pytest.mark.parametrize(
    ("name", "message", "usage"),
    [
        ("codex-done", "Committed hello.py.", Usage(input=3000, output=150, cached=600)),
        ("codex-resumed", "OK.", Usage(input=4000, output=200, cached=800)),
        ("claude-done", "Committed hello.py.", Usage(input=3000, output=150, cached=600, cost_usd=0.00963)),
        ("claude-resumed", "OK.", Usage(input=1000, output=50, cached=200, cost_usd=0.01284)),
        ("gemini-done", "Committed hello.py.", Usage(input=3000, output=150, cached=600)),
        ("gemini-resumed", "OK.", Usage(input=1000, output=50, cached=200)),
        ("opencode-done", "Committed hello.py.", Usage(input=3000, output=150, cached=600)),
        ("opencode-resumed", "OK.", Usage(input=1000, output=50, cached=200)),
    ],
)
def test_a_run_that_went_well_has_its_message_conversation_and_usage(name: str, message: str, usage: Usage) -> None:
    report = read(name)
    assert (report.message, report.usage, report.succeeded) == (message, usage, True)
    assert (report.problem, report.denials) == (None, ())
    assert report.session and report.session == read(name.replace("resumed", "done")).session


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("codex-400", "endpoint"),
        ("codex-401", "auth"),
        ("codex-429", "limit"),
        ("codex-500", "endpoint"),
        ("codex-drop", "endpoint"),
        ("claude-400", "endpoint"),
        ("claude-401", "auth"),
        ("claude-429", "limit"),
        ("claude-500", "endpoint"),
        ("claude-drop", "endpoint"),
        ("claude-refuse", "refusal"),
        ("claude-turns", "turns"),
        ("claude-unknown", "no-conversation"),
        ("gemini-400", "endpoint"),
        ("gemini-401", "auth"),
        ("gemini-drop", "endpoint"),
        ("opencode-400", "endpoint"),
        ("opencode-401", "auth"),
        ("opencode-429", "limit"),
        ("opencode-refuse", "refusal"),
    ],
)
def test_a_failure_event_is_a_failure_of_a_known_kind(name: str, kind: str) -> None:
    report = read(name)
    assert (kind_of(report.problem), report.succeeded) == (kind, False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("codex-unknown", "no-conversation"),
        ("codex-flag", "usage"),
        ("claude-flag", "usage"),
        ("claude-used", "usage"),
        ("gemini-unknown", "no-conversation"),
        ("gemini-flag", "usage"),
        ("opencode-unknown", "no-conversation"),
    ],
)
def test_a_cli_that_never_began_says_why_on_standard_error(name: str, kind: str) -> None:
    report = read(name)
    assert (kind_of(report.problem), report.succeeded, report.message) == (kind, None, "")


def test_a_refusal_that_codex_calls_a_success_is_a_problem() -> None:
    report = read("codex-refuse")
    assert (report.succeeded, report.message, kind_of(report.problem)) == (True, "", "refusal")


@pytest.mark.parametrize(("name", "kind"), [("gemini-429", "limit"), ("gemini-500", "endpoint")])
def test_a_cli_that_was_ended_while_it_asked_again_tells_why_it_waited(name: str, kind: str) -> None:
    report = read(name)
    assert (kind_of(report.problem), report.succeeded) == (kind, None)


@pytest.mark.parametrize("kind", ["claude", "codex", "gemini", "opencode"])
def test_a_warning_on_standard_error_is_no_problem(kind: str) -> None:
    found = agents.agent(AgentSettings(type=kind))
    assert found and found.read("", "WARNING: proceeding, even though something is odd\n", ENDED).problem is None


@pytest.mark.parametrize(
    ("name", "told"), [("claude-denied", "Bash: git add"), ("opencode-denied", "bash: {'command'")]
)
def test_what_a_cli_was_denied_is_told(name: str, told: str) -> None:
    denials = read(name).denials
    assert len(denials) == 1 and denials[0].startswith(told)


def test_a_turn_that_a_denial_ended_is_no_success() -> None:
    assert read("opencode-denied").succeeded is None


def test_an_answer_that_is_bound_to_a_schema_is_the_message() -> None:
    assert '"reviewed"' in read("claude-schema").message


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.jsonl")))
def test_a_stream_that_is_cut_off_anywhere_is_still_read(name: str) -> None:
    found = agents.agent(AgentSettings(type=name.split("-")[0]))
    whole = (RECORDED / f"{name}.jsonl").read_text()
    assert found
    for end in range(0, len(whole), max(1, len(whole) // 60)):
        assert found.read(whole[:end], "", ENDED).session in (None, read(name).session)


@pytest.mark.parametrize("kind", sorted(agents.TYPES))
def test_events_of_another_shape_are_no_traceback(kind: str) -> None:
    found = agents.agent(AgentSettings(type=kind))
    names = ["result", "thread.started", "item.completed", "turn.completed", "turn.failed", "error", "system"]
    names += ["init", "message", "text", "step_finish", "tool_use", "tool_result"]
    bodies = ['"usage":[],"item":3', '"usage":{"input_tokens":true},"item":{"type":"agent_message","text":7}']
    bodies += ['"permission_denials":7,"is_error":1,"result":{},"errors":{},"error":[],"part":[],"stats":"x"']
    stream = "".join(f'{{"type":"{name}",{body}}}\n' for name in names for body in bodies)
    assert found
    found.read(f"[]\n{{\nnull\n{stream}", "\n", ENDED)


@pytest.mark.parametrize("kind", ["claude", "codex", "gemini", "opencode"])
@pytest.mark.parametrize("id_", ["--dangerously-bypass-approvals-and-sandbox", "a b", "../x", "\\ud800", "x" * 101, ""])
def test_what_could_be_an_option_or_a_path_is_no_conversation(kind: str, id_: str) -> None:
    found = agents.agent(AgentSettings(type=kind))
    stream = "".join(
        f'{{"type":"{type_}","session_id":"{id_}","thread_id":"{id_}","sessionID":"{id_}"}}\n'
        for type_ in ("thread.started", "init", "system", "text")
    )
    assert found and found.read(stream, "", ENDED).session is None


def test_half_a_character_and_a_figure_that_is_none_can_be_written_down() -> None:
    half, odd = "\\ud800", '{"input_tokens":1e999,"output_tokens":NaN,"cache_read_input_tokens":-3}'
    denial = f'{{"tool_name":"Bash{half}","tool_input":{{"command":"{half}"}}}}'
    event = f'{{"type":"result","is_error":true,"result":"{half}","usage":{odd},"total_cost_usd":Infinity,'
    found = agents.agent(AgentSettings(type="claude"))
    assert found
    report = found.read(f'{event}"permission_denials":[{denial}]}}\n', "", ENDED)
    assert report.problem and report.usage == Usage()
    "".join([report.message, *report.denials, report.problem.say()]).encode()


@pytest.mark.parametrize(
    ("words", "after"),
    [
        ("usage limit reached|1790003600", 3600),
        ("rate limit, try again in 2h 5m", 7500),
        ("rate limit reached. Please try again in 1.5s.", 1),
        ("rate limit", None),
    ],
)
def test_when_a_limit_ends_is_read_where_it_is_said(words: str, after: int | None) -> None:
    from issueflow.agents.stream import failure

    told = failure(words, ENDED)
    assert told.kind == "limit"
    assert (told.resets and told.resets - ENDED) == after


@pytest.mark.parametrize(("words", "local"), [("resets 3pm", (15, 0)), ("try again at 14:05", (14, 5))])
def test_a_limit_that_ends_at_a_time_of_day_ends_at_the_next_one(words: str, local: tuple[int, int]) -> None:
    from datetime import datetime

    from issueflow.agents.stream import failure

    ends = failure(f"usage limit: {words}", ENDED).resets
    assert ends and 0 < ends - ENDED <= 86400
    assert (datetime.fromtimestamp(ends).hour, datetime.fromtimestamp(ends).minute) == local


# ── how each is started ──


def test_codex_may_write_in_both_git_directories_only_when_it_may_write(tmp_path: Path) -> None:
    wanted = ["--add-dir", "/repo/.git", "--add-dir", "/repo/.git/worktrees/06"]
    words = argv("codex", task(tmp_path), model="m", args=("-c", "x=1"))
    assert words[words.index("--add-dir") :] == [*wanted, "-m", "m", "-c", "x=1", "-"]
    assert words[words.index("-s") + 1] == "workspace-write"
    reads = argv("codex", task(tmp_path, access="read-only", commands=False))
    assert reads[reads.index("-s") :] == ["-s", "read-only", "-"]


def test_codex_goes_on_with_a_conversation_behind_its_options(tmp_path: Path) -> None:
    assert argv("codex", task(tmp_path, session=agents.Session("id-1", resume=True)))[-3:] == ["resume", "id-1", "-"]


def test_claude_begins_or_goes_on_with_the_conversation_it_is_given(tmp_path: Path) -> None:
    for resume, option in ((False, "--session-id"), (True, "--resume")):
        words = argv("claude", task(tmp_path, session=agents.Session("id-1", resume=resume)))
        assert words[words.index(option) + 1] == "id-1"


def test_claude_that_only_reads_has_reading_tools_and_a_bound_answer(tmp_path: Path) -> None:
    words = argv("claude", task(tmp_path, access="read-only", commands=False))
    assert words[words.index("--tools") + 1] == "Read,Grep,Glob"
    assert "--json-schema" in words and "--allowedTools" not in words


def test_claude_says_sandbox_only_where_root_asks_to_skip_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = agents.agent(AgentSettings(type="claude"))
    assert found
    for user, args, said in ((0, (), False), (0, ("--dangerously-skip-permissions",), True), (1000, (), False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        launch = found.launch(AgentSettings(type="claude", args=args), task(tmp_path))
        assert ("IS_SANDBOX" in launch.env) is said


def test_gemini_that_only_reads_is_not_let_off_asking(tmp_path: Path) -> None:
    for access, mode in (("write", "yolo"), ("read-only", "default")):
        words = argv("gemini", task(tmp_path, access=access))
        assert words[words.index("--approval-mode") + 1] == mode


def test_opencode_that_only_reads_can_neither_edit_nor_run_commands(tmp_path: Path) -> None:
    found = agents.agent(AgentSettings(type="opencode"))
    assert found
    reads = found.launch(AgentSettings(type="opencode"), task(tmp_path, access="read-only")).env
    assert json.loads(reads["OPENCODE_PERMISSION"]) == {"edit": "deny", "bash": "deny"}
    assert found.launch(AgentSettings(type="opencode"), task(tmp_path)).env == {}


@pytest.mark.parametrize("kind", ["claude", "codex", "gemini", "opencode"])
def test_the_prompt_is_never_an_argument(kind: str, tmp_path: Path) -> None:
    given = task(tmp_path)
    given.prompt.write_text("the secret of the prompt")
    found = agents.agent(AgentSettings(type=kind))
    assert found
    launch = found.launch(AgentSettings(type=kind), given)
    assert launch.stdin == given.prompt
    assert "secret" not in " ".join(launch.argv)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"type": "command", "argv": ("true",), "model": "m"}, "model"),
        ({"type": "codex", "script": "x"}, "script"),
        ({"type": "scripted", "script": "x", "args": ("-v",)}, "args"),
    ],
)
def test_a_setting_that_a_type_would_not_read_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(WrongWords, match=f"{key} has no meaning"):
        agents.usable("it", AgentSettings(**settings))
