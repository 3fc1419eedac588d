"""The stand-in for a model answers on all four APIs, step after step, in streams and plain."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import stub_model

TOOLS: dict[str, list[dict[str, Any]]] = {
    "responses": [
        {
            "type": "function",
            "name": "exec_command",
            "parameters": {"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
        },
        {"type": "custom", "name": "apply_patch"},
    ],
    "chat": [
        {
            "type": "function",
            "function": {
                "name": "bash",
                "parameters": {
                    "properties": {"command": {"type": "string"}, "description": {"type": "string"}},
                    "required": ["command", "description"],
                },
            },
        }
    ],
    "anthropic": [
        {
            "name": "Write",
            "input_schema": {
                "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
                "required": ["file_path", "content"],
            },
        }
    ],
    "gemini": [
        {
            "functionDeclarations": [
                {
                    "name": "write_file",
                    "parametersJsonSchema": {
                        "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
                        "required": ["file_path", "content"],
                    },
                }
            ]
        }
    ],
}


RULES = {
    "rules": [{"match": r"stage: (\w+)", "play": "stage"}],
    "scenarios": {"stage": [{"text": "stage={arg}"}]},
}


def player(text: str) -> list[dict[str, Any]] | None:
    """Plays its own steps for a prompt that it knows."""
    return [{"text": f"played {text[6:]}"}] if text.startswith("play: ") else None


class Stub:
    """A running stand-in, and the one thing tests do with it."""

    def __init__(self, base: str) -> None:
        self.base = base

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        request = urllib.request.Request(self.base + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ask(self, api: str, prompt: str, stream: bool, tools: bool = True, **more: Any) -> tuple[int, str]:
        body: dict[str, Any] = {
            "responses": {"input": [{"role": "user", "content": prompt}]},
            "chat": {"messages": [{"role": "user", "content": prompt}]},
            "anthropic": {"messages": [{"role": "user", "content": prompt}]},
            "gemini": {"contents": [{"role": "user", "parts": [{"text": prompt}]}]},
        }[api]
        path = {
            "responses": "/v1/responses",
            "chat": "/v1/chat/completions",
            "anthropic": "/v1/messages",
            "gemini": "/v1beta/models/m:" + ("streamGenerateContent" if stream else "generateContent"),
        }[api]
        return self.post(
            path, {"model": "m", "stream": stream, **body, **({"tools": TOOLS[api]} if tools else {}), **more}
        )


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = stub_model.make_server(scenarios=RULES, player=player)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield Stub(f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", TOOLS)
def test_every_api_has_a_tool_call_and_a_text(stub: Stub, api: str, stream: bool) -> None:
    for prompt, said in (("[[stub:write]] hi", "hello.py"), ("[[stub:text ping]] hi", "ping"), ("play: it", "played")):
        status, text = stub.ask(api, prompt, stream)
        assert (status, said in text) == (200, True)


def test_the_next_step_follows_a_tool_result(stub: Stub) -> None:
    messages = [
        {"role": "user", "content": "[[stub:write]]"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "Write", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "ok"}]},
    ]
    _, text = stub.post("/v1/messages", {"model": "m", "messages": messages, "tools": TOOLS["anthropic"]})
    assert json.loads(text)["content"][0]["text"] == "Created hello.py."


def test_failures_come_once_or_always_and_rules_choose_a_scenario(stub: Stub) -> None:
    assert stub.ask("anthropic", "[[stub:error429]]", True)[0] == 429
    assert [stub.ask("chat", "[[stub:flaky]]", False)[0] for _ in range(3)] == [500, 500, 200]
    assert "stage=review" in stub.ask("chat", "stage: review of X", False)[1]


def test_an_answer_is_built_from_the_schema_that_was_sent(stub: Stub) -> None:
    schema = {
        "type": "object",
        "properties": {"verdict": {"enum": ["approve", "reject"]}, "n": {"type": "integer", "minimum": 3}},
        "required": ["verdict", "n"],
    }
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    _, text = stub.ask("responses", "[[stub:json]]", False, text=wanted)
    assert json.loads(json.loads(text)["output"][0]["content"][0]["text"]) == {"verdict": "approve", "n": 3}


def test_a_request_without_tools_is_a_side_request_and_a_stream_can_be_cut(stub: Stub) -> None:
    assert "Stub title" in stub.ask("chat", "[[stub:write]] make a title", False, tools=False)[1]
    with pytest.raises((http.client.HTTPException, OSError)):
        stub.ask("anthropic", "[[stub:drop]]", True)
