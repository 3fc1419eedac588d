"""A deterministic, offline stand-in for the model APIs that coding-agent CLIs speak.

Standard library only (Python >= 3.11). It listens on 127.0.0.1 and answers

    POST /v1/responses                       OpenAI Responses API      (SSE and plain JSON)
    POST /v1/chat/completions                OpenAI Chat Completions   (SSE and plain JSON)
    POST /v1/messages                        Anthropic Messages API    (SSE and plain JSON)
    POST /v1/messages/count_tokens           Anthropic token counting
    POST /v1beta/models/M:generateContent            Gemini            (plain JSON)
    POST /v1beta/models/M:streamGenerateContent      Gemini            (SSE)
    POST /v1beta/models/M:countTokens                Gemini token counting
    GET  /v1/models, /v1beta/models          model lists
    GET  /healthz                            {"ok": true}
    GET  /__stub/requests                    what was asked so far (JSON list, headers redacted)
    POST /__stub/reset                       forget the requests and the error counters

Any prefix before those paths is ignored (`/openai/v1/responses` works), so every base-url style fits.

Scenarios
---------
A *scenario* is a list of *steps*. Which one runs is decided per request, without server state, so that
parallel and resumed conversations do not disturb each other:

  * the newest user message that contains `[[stub:NAME]]` (or `[[stub:NAME ARG]]`), or that a rule of the
    script file matches, selects scenario NAME; a marker wins over a rule; without either, the scenario
    named by --default is used;
  * the number of tool results after that message is the index of the step to play; past the end, the
    last step is repeated.

Steps (one key each, plus the optional "say", "usage" and "delay"):

    {"write": {"path": "hello.py", "content": "..."}}   call the client's own file-writing tool
    {"shell": "git add -A && git commit -m x"}          call the client's own shell tool
    {"tool": {"name": "Bash", "input": {...}}}          call exactly this tool
    {"text": "All done."}                               final text; ends the turn
    {"json": {...}} or {"json": null}                   final JSON text; null = built from the schema in the request
    {"error": 500, "message": "...", "headers": {}, "times": 2}   HTTP error (for the first `times` tries, else always)
    {"hang": 600}                                       accept the request and answer nothing for so long
    {"stall": 600}                                      start the stream, then go silent for so long
    {"drop": true}                                      start the stream, then cut the connection
    {"refuse": "I can't help with that."}               the API's own way of refusing

The stub maps "write" and "shell" onto whichever tools the client offered in the request (by tool name and
by the tool's JSON schema), so one script drives every CLI. `{arg}` inside a string is replaced by ARG and
`{cwd}` by the working directory when the client's prompt reveals it.

A request that offers no tools is taken for a side request (title, summary, routing, compaction) and gets a
short text, unless it carries a marker and --tools-optional is given, or the scenario starts with a failure.

Usage:  stub_model.py [--port 0] [--port-file F] [--log F.jsonl] [--script F.json] [--default write] [--ttl S]
`--script` is laid over the built-in scenarios. It holds {"NAME": [step, ...], ...}, or, with rules,
{"rules": [{"match": "REGEX", "play": "NAME"}, ...], "scenarios": {"NAME": [step, ...]}}; the first group of
REGEX becomes ARG. Rules let a test drive prompts that it does not write itself (one rule a stage, say).
"""

import argparse
import hashlib
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Gives the steps for a user message that it knows.
Player = Callable[[str], list[dict[str, Any]] | None]
MARKER = re.compile(r"\[\[stub:([A-Za-z0-9_-]+)(?:[ \t]+([^\]\n]*))?\]\]")
HELLO = 'print("hello from the stub")\n'

COMMIT = (
    "git add -A && git -c user.name=stub -c user.email=stub@example.invalid commit -q -m 'stub: add hello.py'"
    " && git log --oneline -1"
)

SCENARIOS: dict[str, list[dict[str, Any]]] = {
    # one file through the client's edit tool, then a final answer
    "write": [
        {"say": "I will create hello.py.", "write": {"path": "hello.py", "content": HELLO}},
        {"text": "Created hello.py."},
    ],
    # one shell command, then a final answer
    "shell": [{"shell": "{arg}"}, {"text": "Ran the command."}],
    # the same file, through the client's shell tool
    "shellwrite": [
        {"shell": "printf 'print(\"hello from the stub\")\\n' > hello.py"},
        {"text": "Created hello.py with the shell."},
    ],
    # write, then commit on the checked-out branch
    "commit": [
        {"write": {"path": "hello.py", "content": HELLO}},
        {"shell": COMMIT},
        {"text": "Committed hello.py."},
    ],
    # a structured answer built from the schema that the client sent
    "json": [{"json": None}],
    "writejson": [{"write": {"path": "hello.py", "content": HELLO}}, {"json": None}],
    # prose where JSON was asked for (a client or caller has to notice)
    "badjson": [{"text": "This is not JSON at all."}],
    "text": [{"text": "{arg}"}],
    "ok": [{"text": "OK."}],
    # a command that outlives any sensible timeout, to test kill behaviour (some clients refuse a bare `sleep`)
    "sleep": [{"shell": "python3 -c 'import time; time.sleep({arg})'"}, {"text": "Slept."}],
    # a background child left behind by the shell tool
    "orphan": [
        {"shell": "nohup sleep {arg} >/dev/null 2>&1 & echo started $!"},
        {"text": "Started a background process."},
    ],
    # an endless loop of tool calls: every index plays the same step
    "loop": [{"shell": "echo again"}],
    # a dangerous command that a client should ask about or sandbox
    "outside": [{"shell": "touch {arg} && echo wrote {arg}"}, {"text": "Tried to write outside."}],
    "refuse": [{"refuse": "I can't help with that request."}],
    "error400": [{"error": 400, "message": "stub: bad request"}],
    "error401": [{"error": 401, "message": "stub: invalid api key"}],
    "error403": [{"error": 403, "message": "stub: forbidden"}],
    "error404": [{"error": 404, "message": "stub: model not found"}],
    "error429": [{"error": 429, "message": "stub: rate limited", "headers": {"retry-after": "1"}}],
    "error500": [{"error": 500, "message": "stub: internal error"}],
    "error529": [{"error": 529, "message": "stub: overloaded"}],
    # two failures, then success: a client that retries gets through
    "flaky": [{"error": 500, "message": "stub: try again", "times": 2}, {"text": "OK after retries."}],
    "flaky429": [
        {"error": 429, "message": "stub: slow down", "times": 2, "headers": {"retry-after": "1"}},
        {"text": "OK after rate limit."},
    ],
    "hang": [{"hang": 3600}],
    "stall": [{"stall": 3600}],
    "drop": [{"drop": True}],
}


# --------------------------------------------------------------------------- normalised request


@dataclass
class Tool:
    name: str
    schema: dict[str, Any] = field(default_factory=dict)
    kind: str = "function"  # "custom" = free-form text input, "local_shell" = OpenAI's built-in shell
    namespace: str | None = None


@dataclass
class Turn:
    """One model request, whatever API it came through."""

    api: str
    model: str
    stream: bool
    tools: dict[str, Tool]
    messages: list[tuple[str, str]]  # (role, text); a tool result has role "tool"
    schema: dict[str, Any] | None  # JSON schema asked for, if any
    raw: dict[str, Any]

    def select(self, default: str, rules: list[tuple[re.Pattern[str], str]]) -> tuple[str, str, int, bool]:
        """(scenario, argument, step index, was it asked for by a marker or a rule)."""
        for i in range(len(self.messages) - 1, -1, -1):
            role, text = self.messages[i]
            if role != "user":
                continue
            done = sum(1 for r, _ in self.messages[i + 1 :] if r == "tool")
            if hits := MARKER.findall(text):
                name, arg = hits[-1]
                return name, (arg or "").strip(), done, True
            for pattern, name in rules:
                if found := pattern.search(text):
                    return name, (found[1] or "").strip() if pattern.groups else "", done, True
        return default, "", sum(1 for r, _ in self.messages if r == "tool"), False

    def cwd(self) -> str | None:
        """The working directory, where the client's prompt names it."""
        blob = "\n".join(t for _, t in self.messages)
        blob += "\n" + _text(self.raw.get("system")) + "\n" + _text(self.raw.get("instructions"))
        blob += "\n" + _text(_get(self.raw, "systemInstruction", "parts"))
        for pattern in (
            r"<cwd>(/[^<\n]+)</cwd>",
            r"(?i)working (?:in the )?directory(?: is)?:?\s*`?(/[^\s`<'\"\\]+)",
            r"(?i)workspace (?:root|director\w+)[^/\n]{0,60}[\s:`-]*(/[^\s`<'\"]+)",
            r"(?i)\bcwd\b\W{1,5}(/[^\s`<'\"]+)",
        ):
            if found := re.findall(pattern, blob):
                return found[-1].rstrip(".,;)") or None
        return None


def _get(obj: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(obj, dict):
            obj = obj.get(key)
        elif isinstance(obj, list) and isinstance(key, int) and len(obj) > key:
            obj = obj[key]
        else:
            return None
    return obj


def _text(value: Any) -> str:
    """All the text inside a content value of any of the four APIs."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if isinstance(value, dict):
        for key in ("text", "content", "parts", "output"):
            if key in value:
                return _text(value[key])
    return ""


def parse_responses(body: dict[str, Any]) -> Turn:
    tools: dict[str, Tool] = {}

    def add(specs: list[dict[str, Any]], namespace: str | None = None) -> None:
        for t in specs:
            kind = t.get("type")
            if kind == "namespace":
                add(t.get("tools") or [], t.get("name"))
            elif kind == "function":
                tools[t["name"]] = Tool(t["name"], t.get("parameters") or {}, "function", namespace)
            elif kind == "custom":
                tools[t["name"]] = Tool(t["name"], {}, "custom", namespace)
            elif kind in ("local_shell", "shell"):
                tools[kind] = Tool(kind, {}, "local_shell")

    add(body.get("tools") or [])
    messages: list[tuple[str, str]] = []
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in items or []:
        kind = item.get("type", "message")
        if kind == "message":
            messages.append((item.get("role", "user"), _text(item.get("content"))))
        elif kind.endswith("_call_output"):
            messages.append(("tool", _text(item.get("output"))))
        elif kind == "additional_tools":  # codex sends some tools inside the input
            add(item.get("tools") or [])
    fmt = _get(body, "text", "format") or {}
    schema = fmt.get("schema") if fmt.get("type") == "json_schema" else None
    return Turn("responses", body.get("model", "?"), bool(body.get("stream")), tools, messages, schema, body)


def parse_chat(body: dict[str, Any]) -> Turn:
    tools = {}
    for t in body.get("tools") or []:
        fn = t.get("function") or {}
        if fn.get("name"):
            tools[fn["name"]] = Tool(fn["name"], fn.get("parameters") or {})
    messages = [(m.get("role", "user"), _text(m.get("content"))) for m in body.get("messages") or []]
    schema = _get(body, "response_format", "json_schema", "schema")
    return Turn("chat", body.get("model", "?"), bool(body.get("stream")), tools, messages, schema, body)


def parse_anthropic(body: dict[str, Any]) -> Turn:
    tools = {t["name"]: Tool(t["name"], t.get("input_schema") or {}) for t in body.get("tools") or [] if t.get("name")}
    messages: list[tuple[str, str]] = []
    for m in body.get("messages") or []:
        content = m.get("content")
        if isinstance(content, str):
            messages.append((m.get("role", "user"), content))
            continue
        texts = []
        for block in content or []:
            if block.get("type") == "tool_result":
                messages.append(("tool", _text(block.get("content"))))
            else:
                texts.append(_text(block))
        if any(texts):
            messages.append((m.get("role", "user"), "\n".join(filter(None, texts))))
    schema = _get(body, "output_config", "format", "schema") or _get(body, "output_format", "schema")
    return Turn("anthropic", body.get("model", "?"), bool(body.get("stream")), tools, messages, schema, body)


def parse_gemini(body: dict[str, Any], model: str, stream: bool) -> Turn:
    tools = {}
    for group in body.get("tools") or []:
        for fn in group.get("functionDeclarations") or group.get("function_declarations") or []:
            tools[fn["name"]] = Tool(fn["name"], fn.get("parametersJsonSchema") or fn.get("parameters") or {})
    messages: list[tuple[str, str]] = []
    for c in body.get("contents") or []:
        role = "assistant" if c.get("role") == "model" else "user"
        for part in c.get("parts") or []:
            if "functionResponse" in part:
                messages.append(("tool", json.dumps(_get(part, "functionResponse", "response"))))
            elif part.get("text"):
                messages.append((role, part["text"]))
    cfg = body.get("generationConfig") or {}
    schema = cfg.get("responseJsonSchema") or cfg.get("responseSchema")
    return Turn("gemini", model, stream, tools, messages, schema, body)


# --------------------------------------------------------------------------- tool mapping

SHELL_NAMES = (
    "bash",
    "shell",
    "shell_command",
    "exec_command",
    "run_shell_command",
    "execute_command",
    "run_commands",
    "run_command",
    "run_terminal_cmd",
    "local_shell",
    "terminal",
    "execute",
)
WRITE_NAMES = (
    "write",
    "write_file",
    "write_to_file",
    "create_file",
    "create",
    "str_replace_based_edit_tool",
    "editor",
    "apply_patch",
)
PATH_PROP = re.compile(r"(?i)^(absolute_?|target_?)?(file_?)?(path|name)$|^file_?path$|^file$|^target_file$")
CONTENT_PROP = re.compile(r"(?i)^(file_?)?(content|contents|text|new_str|new_text|code_edit)$|^file_text$")
COMMAND_PROP = re.compile(r"(?i)^(cmd|command|commands|script|input)$")


def _filler(name: str, spec: dict[str, Any]) -> Any:
    """A harmless value for a required property that the stub has no opinion on."""
    if spec.get("enum"):
        return spec["enum"][0]
    kind = spec.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    kind = str(kind or "string").lower()
    if kind == "boolean":
        return False
    if kind in ("integer", "number"):
        return 60 if "timeout" in name.lower() else 1
    if kind == "array":
        return []
    if kind == "object":
        return {}
    return "stub step"


def _build(tool: Tool, wanted: list[tuple[re.Pattern[str], Any]]) -> dict[str, Any] | None:
    """Arguments for `tool`: each wanted value goes to the first matching property. None = does not fit."""
    props = tool.schema.get("properties") or {}
    args: dict[str, Any] = {}
    for pattern, value in wanted:
        name = next((p for p in props if pattern.search(p) and p not in args), None)
        if name is None:
            return None
        spec = props[name]
        kind = str(spec.get("type") or "").lower()
        if kind == "array" and isinstance(value, str):
            items = str(_get(spec, "items", "type") or "string").lower()
            if items == "string" and pattern is COMMAND_PROP and name.lower() != "commands":
                value = ["bash", "-c", value]
            else:
                value = [value]
        args[name] = value
    for name in tool.schema.get("required") or []:
        if name not in args:
            args[name] = _filler(name, props.get(name) or {})
    return args


def shell_call(turn: Turn, command: str) -> tuple[Tool, Any] | None:
    ranked = sorted(
        turn.tools.values(),
        key=lambda t: (SHELL_NAMES.index(t.name.lower()) if t.name.lower() in SHELL_NAMES else 99, t.name),
    )
    for tool in ranked:
        if tool.kind == "local_shell":
            return tool, {"command": ["bash", "-c", command]}
        if tool.name.lower() not in SHELL_NAMES:
            continue
        if tool.kind == "function" and (args := _build(tool, [(COMMAND_PROP, command)])) is not None:
            return tool, args
    code = turn.tools.get("exec")  # codex "code mode": one free-form JavaScript tool that wraps the others
    if code and code.kind == "custom":
        return code, f"text(JSON.stringify(await tools.exec_command({{cmd: {json.dumps(command)}}})));\n"
    return None


def write_call(turn: Turn, path: str, content: str) -> tuple[Tool, Any] | None:
    ranked = sorted(
        turn.tools.values(),
        key=lambda t: (WRITE_NAMES.index(t.name.lower()) if t.name.lower() in WRITE_NAMES else 99, t.name),
    )
    cwd = turn.cwd()
    full = path if path.startswith("/") or not cwd else f"{cwd.rstrip('/')}/{path}"
    patch = (
        f"*** Begin Patch\n*** Add File: {path}\n"
        + "".join(f"+{line}\n" for line in content.splitlines())
        + "*** End Patch\n"
    )
    for tool in ranked:
        name = tool.name.lower()
        if name not in WRITE_NAMES:
            continue
        if name == "apply_patch":
            if tool.kind == "custom":
                return tool, patch
            if (args := _build(tool, [(re.compile(r"(?i)^(input|patch\w*)$"), patch)])) is not None:
                return tool, args
            continue
        if tool.kind != "function":
            continue
        args = _build(tool, [(PATH_PROP, full), (CONTENT_PROP, content)])
        if args is not None:
            for key in ("command", "operation", "action"):
                options = _get(tool.schema, "properties", key, "enum")
                if options and "create" in options:
                    args[key] = "create"
            return tool, args
    quoted = content.replace("'", "'\\''")
    return shell_call(turn, f"printf '%s' '{quoted}' > '{path}'")


def finish_call(turn: Turn, text: str) -> tuple[Tool, Any] | None:
    """Some clients end a turn by a tool call only (Cline's classic prompt, mini-swe-agent)."""
    if (tool := turn.tools.get("attempt_completion")) is not None:
        return tool, _build(tool, [(re.compile(r"(?i)^result$"), text)]) or {"result": text}
    marker = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    if set(turn.tools) == {"bash"} and any(marker in t for _, t in turn.messages):
        return shell_call(turn, f"echo {marker}")
    return None


def instance(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """The smallest plausible value of a JSON schema."""
    root = root if root is not None else schema
    if not isinstance(schema, dict) or depth > 12:
        return None
    if isinstance(schema.get("$ref"), str):
        target: Any = root
        for part in schema["$ref"].lstrip("#/").split("/"):
            target = _get(target, part)
        return instance(target, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return instance(schema[key][0], root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "null")
    kind = str(kind or ("object" if "properties" in schema else "string")).lower()
    if kind == "object":
        return {k: instance(v, root, depth + 1) for k, v in (schema.get("properties") or {}).items()}
    if kind == "array":
        count = max(1, int(schema.get("minItems") or 1))
        return [instance(schema.get("items") or {"type": "string"}, root, depth + 1) for _ in range(count)]
    if kind == "integer":
        return int(schema.get("minimum", 1))
    if kind == "number":
        return float(schema.get("minimum", 1))
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return "stub".ljust(int(schema.get("minLength") or 0), "x")


# --------------------------------------------------------------------------- what to answer


@dataclass
class Reply:
    text: str = ""
    call: tuple[Tool, Any] | None = None
    refusal: bool = False
    usage: tuple[int, int, int] = (1000, 50, 200)  # input, output, of which cached input
    stall: float = 0.0
    drop: bool = False
    call_id: str = ""


@dataclass
class Failure:
    status: int
    message: str
    headers: dict[str, str]


class Script:
    """Which scenario answers a request; `player` may give the steps for a user message it knows, before any rule."""

    def __init__(self, extra: dict[str, Any], default: str, tools_optional: bool, player: Player | None = None):
        self.player = player
        rules: list[dict[str, str]] = []
        if "scenarios" in extra or "rules" in extra:
            rules, extra = extra.get("rules", []), extra.get("scenarios", {})
        self.scenarios: dict[str, list[dict[str, Any]]] = {**SCENARIOS, **extra}
        self.rules = [(re.compile(r["match"]), r["play"]) for r in rules]
        self.default, self.tools_optional = default, tools_optional
        self.lock = threading.Lock()
        self.counts: dict[str, int] = {}

    def _tries(self, turn: Turn, name: str) -> int:
        """How often this conversation has been at this step (counts retries of the same request)."""
        key = hashlib.sha256(json.dumps([name, turn.model, turn.messages]).encode()).hexdigest()
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + 1
            return self.counts[key]

    def _played(self, turn: Turn) -> tuple[list[dict[str, Any]], int] | None:
        """The player's steps for the newest user message it knows, and which of them is due."""
        for i in range(len(turn.messages) - 1, -1, -1):
            role, text = turn.messages[i]
            if self.player and role == "user" and (steps := self.player(text)):
                return steps, sum(1 for r, _ in turn.messages[i + 1 :] if r == "tool")
        return None

    def play(self, turn: Turn) -> tuple[Reply | Failure | float, str]:
        """The answer and a label for the log. A float is a number of seconds to hang."""
        name, arg, index, marked = turn.select(self.default, self.rules)
        steps = self.scenarios.get(name)
        if played := self._played(turn):
            (steps, index), name, arg, marked = played, "player", "", True
        if not steps:
            return Failure(400, f"stub: no scenario named {name!r}", {}), f"{name}?"
        failing = any(k in steps[0] for k in ("error", "hang", "stall", "drop"))
        if not turn.tools and not failing and not (marked and self.tools_optional):
            if any("json" in s for s in steps) and turn.schema:
                return Reply(text=json.dumps(instance(turn.schema))), f"{name}:side-json"
            if not any(k in steps[0] for k in ("text", "json", "refuse")):
                return Reply(
                    text=json.dumps(instance(turn.schema)) if turn.schema else "Stub title", usage=(10, 2, 0)
                ), f"{name}:side"
        if "error" in steps[0] and steps[0].get("times"):
            if self._tries(turn, name) <= steps[0]["times"]:
                index = 0
            else:
                index += 1
        step = steps[min(index, len(steps) - 1)]
        label = f"{name}[{min(index, len(steps) - 1)}]"

        def fill(value: Any) -> Any:
            if isinstance(value, str):
                return value.replace("{arg}", arg).replace("{cwd}", turn.cwd() or ".")
            if isinstance(value, dict):
                return {k: fill(v) for k, v in value.items()}
            if isinstance(value, list):
                return [fill(v) for v in value]
            return value

        step = fill(step)
        if step.get("delay"):
            time.sleep(float(step["delay"]))
        if "error" in step:
            return Failure(int(step["error"]), step.get("message", "stub error"), step.get("headers", {})), label
        if "hang" in step:
            return float(step["hang"]), label
        reply = Reply(
            text=step.get("say", ""),
            call_id=hashlib.sha256(json.dumps([name, arg, index, len(turn.messages)]).encode()).hexdigest()[:20],
        )
        if "usage" in step:
            reply.usage = tuple(step["usage"])  # type: ignore[assignment]
        if "stall" in step:
            reply.text, reply.stall = "Thinking", float(step["stall"])
        elif "drop" in step:
            reply.text, reply.drop = "Thinking", True
        elif "refuse" in step:
            reply.text, reply.refusal = step["refuse"], True
        elif "text" in step:
            reply.text = step["text"]
            reply.call = finish_call(turn, step["text"])
        elif "json" in step:
            value = step["json"]
            target = next(
                (t for n, t in turn.tools.items() if n.lower() in ("structuredoutput", "structured_output")), None
            )
            if target is not None:
                if index < len(steps) and not any(
                    r == "tool" and "tructured output" in x for r, x in turn.messages[-2:]
                ):
                    reply.call = (target, instance(target.schema) if value is None else value)
                else:
                    reply.text = "Structured output provided."
            else:
                reply.text = json.dumps(instance(turn.schema or {"type": "object"}) if value is None else value)
        elif "write" in step:
            reply.call = write_call(turn, step["write"]["path"], step["write"]["content"])
        elif "shell" in step:
            reply.call = shell_call(turn, step["shell"])
        elif "tool" in step:
            tool = turn.tools.get(step["tool"]["name"]) or Tool(step["tool"]["name"])
            reply.call = (tool, step["tool"].get("input", {}))
        if reply.call is None and any(k in step for k in ("write", "shell")):
            reply.text = "stub: the client offers no usable tool; it has: " + ", ".join(sorted(turn.tools))
        return reply, label


# --------------------------------------------------------------------------- wire formats


def _pieces(text: str, size: int = 24) -> Iterator[str]:
    for i in range(0, len(text), size):
        yield text[i : i + size]


def responses_events(turn: Turn, reply: Reply, rid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    seq = itertools.count()
    shell = {
        "id": rid,
        "object": "response",
        "created_at": 1700000000,
        "model": turn.model,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
    }

    def ev(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, "sequence_number": next(seq), **more}

    yield ev("response.created", response=shell)
    yield ev("response.in_progress", response=shell)
    output: list[dict[str, Any]] = []
    if reply.text:
        mid, index = f"msg_{rid}", 0
        part_kind, delta_key = ("refusal", "refusal") if reply.refusal else ("output_text", "text")
        yield ev(
            "response.output_item.added",
            output_index=index,
            item={"id": mid, "type": "message", "role": "assistant", "status": "in_progress", "content": []},
        )
        empty = {"type": part_kind, delta_key: ""} | ({} if reply.refusal else {"annotations": []})
        yield ev("response.content_part.added", item_id=mid, output_index=index, content_index=0, part=empty)
        for piece in _pieces(reply.text):
            yield ev(f"response.{part_kind}.delta", item_id=mid, output_index=index, content_index=0, delta=piece)
            if reply.stall or reply.drop:
                return
        part = dict(empty)
        part[delta_key] = reply.text
        yield ev(
            f"response.{part_kind}.done", item_id=mid, output_index=index, content_index=0, **{delta_key: reply.text}
        )
        yield ev("response.content_part.done", item_id=mid, output_index=index, content_index=0, part=part)
        item = {"id": mid, "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        output.append(item)
        yield ev("response.output_item.done", output_index=index, item=item)
    if reply.call:
        tool, args = reply.call
        index, cid = len(output), f"call_{reply.call_id}"
        if tool.kind == "custom":
            item = {
                "id": f"ctc_{rid}",
                "type": "custom_tool_call",
                "call_id": cid,
                "name": tool.name,
                "input": args,
                "status": "completed",
            }
            start, delta, done = (
                {**item, "input": "", "status": "in_progress"},
                "custom_tool_call_input",
                {"input": args},
            )
        elif tool.kind == "local_shell":
            item = {
                "id": f"lsh_{rid}",
                "type": "local_shell_call",
                "call_id": cid,
                "status": "completed",
                "action": {"type": "exec", "command": args["command"], "env": {}},
            }
            start, delta, done = {**item, "status": "in_progress"}, "", {}
        else:
            text = json.dumps(args)
            item = {
                "id": f"fc_{rid}",
                "type": "function_call",
                "call_id": cid,
                "name": tool.name,
                "arguments": text,
                "status": "completed",
            }
            if tool.namespace:
                item["namespace"] = tool.namespace
            start, delta, done = (
                {**item, "arguments": "", "status": "in_progress"},
                "function_call_arguments",
                {"arguments": text},
            )
        yield ev("response.output_item.added", output_index=index, item=start)
        if delta:
            value = next(iter(done.values()))
            yield ev(f"response.{delta}.delta", item_id=item["id"], output_index=index, delta=value)
            yield ev(f"response.{delta}.done", item_id=item["id"], output_index=index, **done)
        output.append(item)
        yield ev("response.output_item.done", output_index=index, item=item)
    i, o, c = reply.usage
    usage = {
        "input_tokens": i,
        "input_tokens_details": {"cached_tokens": c},
        "output_tokens": o,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": i + o,
    }
    yield ev("response.completed", response={**shell, "status": "completed", "output": output, "usage": usage})


def chat_chunks(turn: Turn, reply: Reply, rid: str) -> Iterator[dict[str, Any]]:
    base = {"id": f"chatcmpl-{rid}", "object": "chat.completion.chunk", "created": 1700000000, "model": turn.model}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(reply.text):
        yield chunk({"refusal" if reply.refusal else "content": piece})
        if reply.stall or reply.drop:
            return
    if reply.call:
        tool, args = reply.call
        text = args if isinstance(args, str) else json.dumps(args)
        head = {
            "index": 0,
            "id": f"call_{reply.call_id}",
            "type": "function",
            "function": {"name": tool.name, "arguments": ""},
        }
        yield chunk({"tool_calls": [head]})
        yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})
        yield chunk({}, "tool_calls")
    else:
        yield chunk({}, "content_filter" if reply.refusal else "stop")
    yield {**base, "choices": [], "usage": chat_usage(reply)}


def chat_usage(reply: Reply) -> dict[str, Any]:
    i, o, c = reply.usage
    return {
        "prompt_tokens": i,
        "completion_tokens": o,
        "total_tokens": i + o,
        "prompt_tokens_details": {"cached_tokens": c},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def chat_body(turn: Turn, reply: Reply, rid: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if reply.refusal else reply.text}
    if reply.refusal:
        message["refusal"] = reply.text
    if reply.call:
        tool, args = reply.call
        message["tool_calls"] = [
            {
                "id": f"call_{reply.call_id}",
                "type": "function",
                "function": {"name": tool.name, "arguments": args if isinstance(args, str) else json.dumps(args)},
            }
        ]
    finish = "tool_calls" if reply.call else "content_filter" if reply.refusal else "stop"
    return {
        "id": f"chatcmpl-{rid}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": turn.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": chat_usage(reply),
    }


def anthropic_usage(reply: Reply) -> dict[str, Any]:
    i, o, c = reply.usage
    return {"input_tokens": i - c, "cache_read_input_tokens": c, "cache_creation_input_tokens": 0, "output_tokens": o}


def anthropic_body(turn: Turn, reply: Reply, rid: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    if reply.call:
        tool, args = reply.call
        content.append({"type": "tool_use", "id": f"toolu_{reply.call_id}", "name": tool.name, "input": args})
    stop = "tool_use" if reply.call else "refusal" if reply.refusal else "end_turn"
    return {
        "id": f"msg_{rid}",
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": anthropic_usage(reply),
    }


def anthropic_events(turn: Turn, reply: Reply, rid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    full = anthropic_body(turn, reply, rid)
    start = {**full, "content": [], "stop_reason": None, "usage": {**full["usage"], "output_tokens": 1}}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(full["content"]):
        if block["type"] == "text":
            yield (
                "content_block_start",
                {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}},
            )
            for piece in _pieces(block["text"]):
                yield (
                    "content_block_delta",
                    {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}},
                )
                if reply.stall or reply.drop:
                    return
        else:
            yield (
                "content_block_start",
                {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}},
            )
            yield (
                "content_block_delta",
                {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
                },
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    yield (
        "message_delta",
        {
            "type": "message_delta",
            "delta": {"stop_reason": full["stop_reason"], "stop_sequence": None},
            "usage": full["usage"],
        },
    )
    yield "message_stop", {"type": "message_stop"}


def gemini_bodies(turn: Turn, reply: Reply, rid: str) -> Iterator[dict[str, Any]]:
    i, o, c = reply.usage
    usage = {"promptTokenCount": i, "candidatesTokenCount": o, "totalTokenCount": i + o, "cachedContentTokenCount": c}
    base = {"modelVersion": turn.model, "responseId": rid}

    def body(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        cand: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
        if finish:
            cand["finishReason"] = finish
            return {**base, "candidates": [cand], "usageMetadata": usage}
        return {**base, "candidates": [cand]}

    if reply.refusal:
        yield {
            **base,
            "candidates": [
                {"index": 0, "finishReason": "SAFETY", "content": {"role": "model", "parts": [{"text": reply.text}]}}
            ],
            "usageMetadata": usage,
        }
        return
    if reply.text and (reply.call or reply.stall or reply.drop):
        yield body([{"text": reply.text}])
        if reply.stall or reply.drop:
            return
    if reply.call:
        tool, args = reply.call
        yield body([{"functionCall": {"name": tool.name, "args": args}}], "STOP")
    else:
        yield body([{"text": reply.text}], "STOP")


def error_body(api: str, failure: Failure) -> dict[str, Any]:
    if api == "anthropic":
        kinds = {
            400: "invalid_request_error",
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            429: "rate_limit_error",
            529: "overloaded_error",
        }
        return {"type": "error", "error": {"type": kinds.get(failure.status, "api_error"), "message": failure.message}}
    if api == "gemini":
        kinds = {
            400: "INVALID_ARGUMENT",
            401: "UNAUTHENTICATED",
            403: "PERMISSION_DENIED",
            404: "NOT_FOUND",
            429: "RESOURCE_EXHAUSTED",
            500: "INTERNAL",
            503: "UNAVAILABLE",
        }
        return {
            "error": {
                "code": failure.status,
                "message": failure.message,
                "status": kinds.get(failure.status, "UNKNOWN"),
            }
        }
    return {"error": {"message": failure.message, "type": "stub_error", "param": None, "code": str(failure.status)}}


# --------------------------------------------------------------------------- HTTP

SECRET_HEADERS = {"authorization", "x-api-key", "x-goog-api-key", "api-key", "cookie", "proxy-authorization"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "StubServer"

    def log_message(self, *args: Any) -> None:  # the JSONL log says it all
        pass

    # -- helpers
    def _json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for k, v in (headers or {}).items():
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(data)

    def _sse_open(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _sse_close(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _wait(self, seconds: float) -> None:
        """Say nothing until the time is over, the client has left, or the server stops."""
        self.connection.settimeout(0.25)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.server.stopping.is_set():
            try:
                if self.connection.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.close_connection = True

    def _body(self) -> dict[str, Any]:
        if "chunked" in (self.headers.get("transfer-encoding") or "").lower():
            data = b""
            while size := int(self.rfile.readline().split(b";")[0].strip() or b"0", 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
        encoding = (self.headers.get("content-encoding") or "").lower()
        if encoding in ("gzip", "deflate"):
            import zlib

            data = zlib.decompress(data, 47)
        elif encoding:
            self.server.record({"warning": f"request body has content-encoding {encoding}, not decoded"})
        try:
            parsed = json.loads(data or b"{}")
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    # -- verbs
    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        if path == "/healthz":
            return self._json(200, {"ok": True})
        if path == "/__stub/requests":
            return self._json(200, self.server.requests)
        self.server.record({"method": "GET", "path": self.path})
        if self.headers.get("upgrade", "").lower() == "websocket":
            return self._json(426, {"error": {"message": "stub: no websockets"}})
        if path.endswith("/models"):
            if "v1beta" in path:
                return self._json(
                    200,
                    {
                        "models": [
                            {"name": f"models/{m}", "supportedGenerationMethods": ["generateContent"]}
                            for m in self.server.models
                        ]
                    },
                )
            data = [
                {
                    "id": m,
                    "object": "model",
                    "type": "model",
                    "display_name": m,
                    "created": 1700000000,
                    "owned_by": "stub",
                }
                for m in self.server.models
            ]
            return self._json(200, {"object": "list", "data": data, "has_more": False})
        return self._json(404, {"error": {"message": f"stub: nothing at {path}"}})

    def do_POST(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        body = self._body()
        if path == "/__stub/reset":
            self.server.reset()
            return self._json(200, {"ok": True})
        gemini = re.search(r"/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)$", path)
        if path.endswith("/count_tokens"):
            return self._json(200, {"input_tokens": 1000})
        if gemini and gemini[2] == "countTokens":
            return self._json(200, {"totalTokens": 1000})
        if path.endswith("/responses"):
            turn = parse_responses(body)
        elif path.endswith("/chat/completions"):
            turn = parse_chat(body)
        elif path.endswith("/messages"):
            turn = parse_anthropic(body)
        elif gemini:
            turn = parse_gemini(body, gemini[1], gemini[2].startswith("stream"))
        else:
            self.server.record({"method": "POST", "path": self.path, "unknown": True, "body": body})
            return self._json(404, {"error": {"message": f"stub: nothing at {path}"}})

        answer, label = self.server.script.play(turn)
        rid = self.server.next_id()
        self.server.record(
            {
                "n": rid,
                "method": "POST",
                "path": self.path,
                "api": turn.api,
                "model": turn.model,
                "stream": turn.stream,
                "step": label,
                "tools": sorted(turn.tools),
                "messages": len(turn.messages),
                "tool_results": [t[:2000] for r, t in turn.messages if r == "tool"][-3:],
                "call": None
                if not isinstance(answer, Reply) or not answer.call
                else [answer.call[0].name, answer.call[1]],
                "schema": bool(turn.schema),
                "headers": {k: ("<redacted>" if k.lower() in SECRET_HEADERS else v) for k, v in self.headers.items()},
            },
            body,
        )
        try:
            self._answer(turn, answer, f"stub{rid:06d}")
        except (BrokenPipeError, ConnectionResetError):
            self.server.record({"n": rid, "client_left": True})
            self.close_connection = True

    def _answer(self, turn: Turn, answer: Reply | Failure | float, rid: str) -> None:
        if isinstance(answer, Failure):
            return self._json(answer.status, error_body(turn.api, answer), answer.headers)
        if isinstance(answer, float):
            return self._wait(answer)
        if not turn.stream:
            if answer.stall or answer.drop:
                if answer.stall:
                    self._wait(answer.stall)
                self.close_connection = True
                return None
            if turn.api == "responses":
                return self._json(200, list(responses_events(turn, answer, rid))[-1][1]["response"])
            if turn.api == "chat":
                return self._json(200, chat_body(turn, answer, rid))
            if turn.api == "anthropic":
                return self._json(200, anthropic_body(turn, answer, rid))
            bodies = list(gemini_bodies(turn, answer, rid))
            parts = [p for b in bodies for p in b["candidates"][0]["content"]["parts"]]
            bodies[-1]["candidates"][0]["content"]["parts"] = parts
            return self._json(200, bodies[-1])
        self._sse_open()
        if turn.api == "responses":
            for kind, data in responses_events(turn, answer, rid):
                self._chunk(f"event: {kind}\ndata: {json.dumps(data)}\n\n")
        elif turn.api == "chat":
            for data in chat_chunks(turn, answer, rid):
                self._chunk(f"data: {json.dumps(data)}\n\n")
            if not (answer.stall or answer.drop):
                self._chunk("data: [DONE]\n\n")
        elif turn.api == "anthropic":
            for kind, data in anthropic_events(turn, answer, rid):
                self._chunk(f"event: {kind}\ndata: {json.dumps(data)}\n\n")
        else:
            for data in gemini_bodies(turn, answer, rid):
                self._chunk(f"data: {json.dumps(data)}\n\n")
        if answer.stall:
            return self._wait(answer.stall)
        if answer.drop:
            self.close_connection = True
            self.connection.close()
            return None
        self._sse_close()
        return None


class StubServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        script: Script,
        log: Path | None = None,
        bodies: Path | None = None,
        models: tuple[str, ...] = ("stub-model",),
    ):
        super().__init__(address, Handler)
        self.script, self.log, self.bodies, self.models = script, log, bodies, models
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.counter = itertools.count(1)
        self.stopping = threading.Event()

    def next_id(self) -> int:
        with self.lock:
            return next(self.counter)

    def record(self, entry: dict[str, Any], body: dict[str, Any] | None = None) -> None:
        entry = {"t": round(time.time(), 3), **entry}
        with self.lock:
            self.requests.append(entry)
            if self.log:
                with self.log.open("a") as f:
                    f.write(json.dumps(entry) + "\n")
            if self.bodies and body is not None and "n" in entry:
                (self.bodies / f"{entry['n']:06d}.json").write_text(json.dumps(body, indent=1))

    def reset(self) -> None:
        with self.lock:
            self.requests.clear()
        with self.script.lock:
            self.script.counts.clear()

    def handle_error(self, request: Any, client_address: Any) -> None:
        kind = sys.exc_info()[0]
        if kind and issubclass(kind, (ConnectionError, TimeoutError)):
            return  # a client that leaves early is normal here
        super().handle_error(request, client_address)


def make_server(
    port: int = 0,
    scenarios: dict[str, Any] | None = None,
    default: str = "write",
    tools_optional: bool = False,
    log: Path | None = None,
    bodies: Path | None = None,
    models: tuple[str, ...] = ("stub-model",),
    player: Player | None = None,
) -> "StubServer":
    """For tests: `server = make_server(); threading.Thread(target=server.serve_forever, daemon=True).start()`."""
    script = Script(scenarios or {}, default, tools_optional, player)
    return StubServer(("127.0.0.1", port), script, log, bodies, models)


def main(argv: list[str] | None = None) -> int:
    ap = argparse.ArgumentParser(description="Deterministic offline stand-in for four model APIs.")
    ap.add_argument("--port", type=int, default=0, help="0 = any free port")
    ap.add_argument("--port-file", type=Path, help="write the port number here once listening")
    ap.add_argument("--log", type=Path, help="append one JSON line per request here")
    ap.add_argument("--bodies", type=Path, help="folder for the full request bodies (debugging)")
    ap.add_argument("--script", type=Path, help="JSON file with scenarios, and rules if wanted (see above)")
    ap.add_argument("--default", default="write", help="scenario without a [[stub:NAME]] marker")
    ap.add_argument(
        "--tools-optional", action="store_true", help="play marked scenarios for requests without tools too"
    )
    ap.add_argument("--models", default="stub-model", help="comma-separated names for the model lists")
    ap.add_argument("--ttl", type=float, default=0, help="stop by itself after so many seconds (0 = never)")
    args = ap.parse_args(argv)
    extra = json.loads(args.script.read_text()) if args.script else {}
    if args.bodies:
        args.bodies.mkdir(parents=True, exist_ok=True)
    server = make_server(
        args.port, extra, args.default, args.tools_optional, args.log, args.bodies, tuple(args.models.split(","))
    )
    port = server.server_address[1]
    if args.port_file:
        args.port_file.write_text(str(port))
    print(f"stub_model listening on http://127.0.0.1:{port}", flush=True)
    if args.ttl:

        def stop() -> None:
            server.stopping.set()
            server.shutdown()

        timer = threading.Timer(args.ttl, stop)
        timer.daemon = True
        timer.start()
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        server.stopping.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
