"""The verbs around workflows: list and validate."""

from typing import Annotated

import typer

from issueflow.cli.common import project
from issueflow.errors import IssueflowError
from issueflow.views import answer, say

app = typer.Typer(name="workflow", help="List and check workflows.", rich_markup_mode=None, add_completion=False)


@app.command("list")
def list_() -> int:
    """List the workflows that `new` can take

    Example: issueflow workflow list
    """
    here = project()
    for name, path in here.workflows().items():
        try:
            workflow = here.workflow(name)
        except IssueflowError as error:
            answer(f"{name:<24} cannot be used: {error}")
            continue
        answer(f"{name:<24} {' → '.join(workflow.stages)}")
        say(f"{'':<24} {path}")
    return 0


@app.command()
def validate(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", show_default=False, help="One of them; all when left out.")
    ] = None,
) -> int:
    """Say everything that is wrong with a workflow

    Checks the file, the graph, and that every role is bound to an agent here. Exit code 1 when something is wrong.

    Example: issueflow workflow validate default
    """
    from issueflow import agents
    from issueflow.machine import check_workflow

    here = project()
    config = here.config()
    bad = 0
    for one in [name] if name else list(here.workflows()):
        try:
            workflow = here.workflow(one)
            bound = {role: agent for role, agent in config.roles.items() if agent in config.agents}
            resuming = agents.resuming(config.agents)
            errors = check_workflow(workflow, bound=bound, has_checks=bool(config.checks), resuming=resuming)
        except IssueflowError as error:
            errors = [str(error)]
        bad += bool(errors)
        answer(f"{one}: {'sound' if not errors else f'{len(errors)} wrong'}")
        for sentence in errors:
            answer(f"  {sentence}")
    return 1 if bad else 0
