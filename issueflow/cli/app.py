"""The command tree: every verb, in the order people need them, and the options all of them share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from issueflow.cli import begin, clean, decide, look, machine, share, walk, workflows
from issueflow.errors import WrongWords

app = typer.Typer(
    name="issueflow",
    help=(
        "Take a written requirement from analysis to a delivered branch with coding-agent CLIs.\n\n"
        "Daily: init, new, advance, status, approve, request-changes, resume, cleanup. "
        "An Issue is named ISSUE-7 or 7; where only one is open its name may be left out."
    ),
    invoke_without_command=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from issueflow import __version__

        print(f"issueflow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Option("-C", metavar="DIR", help="Work as if issueflow had been started in DIR.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the verb."""
    if directory is not None:
        try:
            os.chdir(directory)
        except OSError as error:
            raise WrongWords(f"-C {directory}: {error.strerror}", "issueflow --help") from error
    if context.invoked_subcommand is None:
        print(context.get_help())


VERBS: list[Callable[..., int]] = [
    begin.init,
    begin.new,
    walk.advance,
    look.status,
    decide.approve,
    decide.request_changes,
    walk.resume,
    clean.cleanup,
    look.show,
    look.diff,
    look.log,
    look.logs,
    look.attach,
    look.verify,
    decide.retry,
    decide.skip,
    decide.reopen,
    decide.amend,
    decide.note,
    walk.cancel,
    share.push,
    share.fetch,
    machine.agents,
    machine.doctor,
    begin.demo,
]
for verb in VERBS:
    app.command(verb.__name__.replace("_", "-"))(verb)
app.add_typer(workflows.app)
app.command("_start-tree", hidden=True)(walk.start_tree)
