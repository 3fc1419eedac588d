"""The agent CLIs that issueflow knows, one row each: how `init` starts it, how to get it, what shows a login."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Known(NamedTuple):
    """A CLI: its settings in config.yaml, the oldest version that was tried (empty: none), how to get it and log in.

    `keys` are variables any of which it can log in with; `home` is where it keeps its login `files`: a variable that
    names the folder, and the folder when it is not set. A system's keyring cannot be seen.
    """

    settings: Mapping[str, Any]
    tried: str
    install: str
    login: str
    keys: tuple[str, ...]
    home: tuple[str, str]
    files: tuple[str, ...]


# In the order in which `init` prefers them. One without a type of its own takes the prompt on standard input and may
# write in its folder without asking; what the options are for is in docs/guides.md.
KNOWN: dict[str, Known] = {
    "codex": Known(
        settings={"type": "codex"},
        tried="0.171.0",
        install="npm install -g @openai/codex",
        login="codex login",
        keys=("CODEX_API_KEY",),
        home=("CODEX_HOME", "~/.codex"),
        files=("auth.json",),
    ),
    "claude": Known(
        settings={"type": "claude"},
        tried="2.1.332",
        install="npm install -g @anthropic-ai/claude-code",
        login="claude",
        keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        home=("CLAUDE_CONFIG_DIR", "~/.claude"),
        files=(".credentials.json",),
    ),
    "gemini": Known(
        settings={"type": "gemini"},
        tried="0.61.0",
        install="npm install -g @google/gemini-cli",
        login="gemini",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        home=("", "~/.gemini"),
        files=("oauth_creds.json",),
    ),
    "opencode": Known(
        settings={"type": "opencode"},
        tried="1.18.33",
        install="npm install -g opencode-ai",
        login="opencode auth login",
        keys=("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"),
        home=("XDG_DATA_HOME", "~/.local/share"),
        files=("opencode/auth.json",),
    ),
    "cursor-agent": Known(
        settings={"type": "command", "argv": ["cursor-agent", "-p", "--trust", "--force"]},
        tried="",
        install="curl https://cursor.com/install -fsS | bash",
        login="cursor-agent login",
        keys=("CURSOR_API_KEY",),
        home=("XDG_CONFIG_HOME", "~/.config"),
        files=("cursor/auth.json",),
    ),
    "qwen": Known(
        settings={"type": "command", "argv": ["qwen", "-y"]},
        tried="0.24.4",
        install="npm install -g @qwen-code/qwen-code",
        login="qwen",
        keys=("OPENAI_API_KEY",),
        home=("", "~/.qwen"),
        files=("oauth_creds.json",),
    ),
    "copilot": Known(
        settings={"type": "command", "argv": ["copilot", "--allow-all-tools", "--no-ask-user"]},
        tried="1.0.102",
        install="npm install -g @github/copilot",
        login="copilot",
        keys=("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN"),
        home=("", "~/.copilot"),
        files=(),
    ),
}


def sign_of_login(known: Known) -> str:
    """What speaks for a login, as the name of a variable or a file; empty when nothing does. Neither is read."""
    if key := next((name for name in known.keys if os.environ.get(name)), None):
        return key
    variable, default = known.home
    folder = Path(os.environ.get(variable) or default).expanduser()
    file = next((folder / name for name in known.files if (folder / name).is_file()), None)
    return os.fspath(file) if file else ""


def is_older(version: str, tried: str) -> bool:
    """Is `version` older than the one that was tried?"""
    mine, theirs = (tuple(map(int, re.findall(r"\d+", text))) for text in (version, tried))
    return mine < theirs
