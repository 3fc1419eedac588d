"""What a run finds in its environment: which of the person's variables it gets, and what issueflow sets for it.

Names only: what the person's variables hold is never written down, the runner has it from the process that started it.
"""

import os
from typing import Any

from issueflow.git.worktrees import Place
from issueflow.hosts import processes
from issueflow.machine import Position
from issueflow.models import Config, Started

# What tells a CLI that it runs inside another agent's session; a run is a session of its own.
NESTED = (
    "AGENT",
    "AI_AGENT",
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_PID",
    "CODEX_CI",
    "CODEX_SANDBOX_NETWORK_DISABLED",
    "CODEX_SESSION_ID",
    "CODEX_THREAD_ID",
    "CODEX_TOOL_CALL_ID",
    "COPILOT_AGENT_SESSION_ID",
    "ISSUEFLOW_CRASH",
    "OPENCODE",
    "OPENCODE_PID",
    "QWEN_CODE_SESSION_ID",
)
# What every program needs to find its files and to talk, and git the settings it has elsewhere; passed in any case.
NEEDED = (
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "USER",
    processes.MINDS,
)
# Below the ports that systems give out by themselves (Linux from 32768 on). A stride of 40, the default budget of runs,
# keeps the ranges of thirty neighbouring Issues apart.
FIRST_PORT, PORTS, RANGES, STRIDE = 20_000, 10, 1_200, 40


def ours(position: Position, started: Started, place: Place) -> dict[str, str]:
    """The variables that issueflow sets for every program of the run, set-up included."""
    return {
        "ISSUEFLOW_ISSUE": position.issue,
        "ISSUEFLOW_RUN": started.mark(position.issue),
        "ISSUEFLOW_PORT_BASE": str(port_base(position.issue, started.run)),
        "GIT_CEILING_DIRECTORIES": os.fspath(place.path.parent),
        # Some CLIs (opencode) work where PWD says, which would be the folder the person typed in: their own checkout.
        "PWD": os.fspath(place.path),
        # An agent that commits must be able to, on a machine where git knows nobody and for CLIs that hide who one is.
        **{f"GIT_{who}_NAME": started.identity.name for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": started.identity.email for who in ("AUTHOR", "COMMITTER")},
        # An agent's own commit must not start a gc that sweeps away what another run has just staged.
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "gc.auto",
        "GIT_CONFIG_VALUE_0": "0",
        "GIT_CONFIG_KEY_1": "maintenance.auto",
        "GIT_CONFIG_VALUE_1": "false",
        # Where the person turned reflogs off, a commit the agent leaves behind would be on no record at all.
        "GIT_CONFIG_KEY_2": "core.logAllRefUpdates",
        "GIT_CONFIG_VALUE_2": "true",
    }


def port_base(issue: str, run: int) -> int:
    """The first of ten ports for the servers of a run; the same for the same run, reserved by nobody."""
    return FIRST_PORT + PORTS * ((int(issue.removeprefix("ISSUE-")) * STRIDE + run) % RANGES)


def inherited(config: Config, agent: str | None) -> dict[str, Any]:
    """What the runner hands on of the person's variables, by name.

    `pass`: nothing but these (null: everything), `drop`: but none of these, `keys`: these all the same, to the program
    alone and not to set-up commands. A check program gets the secrets that way, to take their values out of what its
    commands print, and keeps them from the commands (`withheld`).
    """
    keys = sorted({name for settings in config.agents.values() for name in settings.keys})
    allowed = sorted({*NEEDED, *config.env.pass_}) if config.env.pass_ is not None else None
    dropped = sorted({*NESTED, *config.env.drop, *keys})
    own = list(config.agents[agent].keys) if agent else withheld(config)
    return {"pass": allowed, "drop": dropped, "keys": own}


def withheld(config: Config) -> list[str]:
    """The declared secrets that no check command may see."""
    keys = {name for settings in config.agents.values() for name in settings.keys} | set(config.env.drop)
    allowed = config.env.pass_
    return [name for name in config.secrets if name in keys or (allowed is not None and name not in allowed)]
