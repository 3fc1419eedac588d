"""The caller's git variables, dropped once at start; nothing but `os` is imported, since every command does this."""

import os

# What decides where git works, whom it works for and what it shows. `git rev-parse --local-env-vars` lists a part;
# a hook exports GIT_DIR, and `git -C elsewhere` still obeys it.
KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_SSL_", "GIT_PROXY_", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR",
        "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_LFS_")  # fmt: skip


def clean_environment() -> None:
    """Drop the caller's git location variables from this process, once, before anything else looks at git."""
    for name in [name for name in os.environ if name.startswith("GIT_") and not name.startswith(KEPT)]:
        del os.environ[name]
