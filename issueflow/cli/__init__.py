"""Words to calls, errors to exit codes: the only room that knows the command line."""

import errno
import io
import os
import sys
from typing import Any

from issueflow.errors import ROOM, IssueflowError


def run(argv: list[str]) -> int:
    """Run one command line and give its exit code; no error leaves as a traceback."""
    from issueflow.git.environment import clean_environment

    clean_environment()
    sys.stdout = sys.stdout or io.TextIOWrapper(io.BytesIO())  # closed by the caller: `2>&-`
    sys.stderr = sys.stderr or io.TextIOWrapper(io.BytesIO())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the person's character set has no sign for is shown as a code
            stream.reconfigure(errors="backslashreplace")
    try:
        return _call(argv)
    except IssueflowError as error:
        _complain(str(error), error.hint)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `issueflow log | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}", ROOM if error.errno == errno.ENOSPC else None)
        return 1
    except Exception as error:
        _complain(f"something unforeseen went wrong ({type(error).__name__}: {error}); details: {_write_log()}", None)
        return 1


def _call(argv: list[str]) -> int:
    if argv[:1] == ["status"]:
        from issueflow.cli.overview import run_status

        code = run_status(argv)
        if code is not None:
            return code
    import typer

    from issueflow.cli.app import app

    # typer brings its own click or uses the installed one, by version; both derive BadParameter from UsageError.
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        result = app(argv, standalone_mode=False)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        return 130
    except usage_error as error:
        context = getattr(error, "ctx", None)
        _complain(error.format_message(), f"{context.command_path if context else 'issueflow'} --help")
        return 2
    return result if isinstance(result, int) else 0


def _complain(sentence: str, hint: str | None) -> None:
    from issueflow.views import line, say

    say(f"error: {line(sentence)}")
    if hint:
        say(f"hint: {line(hint)}")


def _write_log() -> str:
    import tempfile
    import traceback

    handle, name = tempfile.mkstemp(prefix="issueflow-error-", suffix=".log")
    with os.fdopen(handle, "w", errors="backslashreplace") as log:
        log.write(" ".join(sys.argv) + "\n\n" + traceback.format_exc())
    return name
