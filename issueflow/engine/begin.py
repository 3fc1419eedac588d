"""How an Issue begins, and begins again with another requirement or workflow; all is checked before it is made."""

import os
import shlex

from issueflow import agents
from issueflow.engine import person
from issueflow.engine.hands import Hands
from issueflow.engine.issues import find, settle, write
from issueflow.errors import IssueflowError, WrongWords
from issueflow.files import make_folder, replace_file
from issueflow.git import record
from issueflow.machine import Position, check_workflow
from issueflow.models import JOURNAL_FORMAT, Amended, Created, Document, Pinned, Workflow
from issueflow.store.issue import IssueFolder, sha256
from issueflow.store.text import to_yaml


def create(hands: Hands, text: bytes, title: str, origin: str, workflow_name: str | None, base: str | None) -> str:
    """Begin an Issue for the requirement `text` and give its id.

    WrongWords and IssueflowError come before a number is taken: workflow, roles, base commit, room for the branches.
    """
    config, repository = hands.config, hands.repository
    pinned, workflow_text = pin(hands, workflow_name or config.workflow, 1)
    commit = repository.commit(base or "HEAD")
    if commit is None:
        raise _no_base(base)
    _require_room(hands)
    hands.refuse_secrets("the requirement", text + title.encode())

    def fill(folder: IssueFolder, name: str) -> None:
        replace_file(folder.requirement(1), text)
        replace_file(folder.workflow(1), workflow_text)
        make_folder(folder.folder / "artifacts")
        make_folder(folder.folder / "runs")
        folder.append(
            lambda **head: Created(
                **head,
                format=JOURNAL_FORMAT,
                issue=name,
                title=title,
                origin=origin,
                requirement=_requirement(text, 1),
                pinned=pinned,
                prefix=config.prefix,
                base=commit,
                base_tree=repository.tree(commit),
                base_name=None if base else _written(repository.head_name()),
            )
        )

    name = hands.store.claim(_highest_number(hands), fill)
    folder = hands.store.issue(name)
    with folder.lock("new"):
        try:
            settle(hands, folder)
        except (OSError, IssueflowError):  # a full disk, say: who is told that it failed must not find half an Issue
            hands.store.withdraw(name)
            raise
    return name


def _written(name: str | None) -> str | None:
    """The branch's name where it can be written down; the base is known by its commit all the same."""
    return name if name and not any("\ud800" <= letter <= "\udfff" for letter in name) else None


def amend(hands: Hands, name: str, text: bytes | None, origin: str | None, workflow_name: str | None) -> Position:
    """Give an Issue the next version of its requirement, of its workflow, or both; it begins again from its head."""
    person.refuse_inside_run("amend")
    folder = find(hands, name)
    with folder.lock("amend"):
        position = settle(hands, folder)
        if position.open_run:
            raise IssueflowError(f"{name} has a run going on; wait for it or cancel", f"issueflow advance {name}")
        if position.is_over:
            raise IssueflowError(f"{name} is {position.status}", f"issueflow reopen {name} --to STAGE --reason TEXT")
        requirement = None
        if text is not None:
            hands.refuse_secrets("the requirement", text)
            requirement = _requirement(text, position.requirement.version + 1)
            if requirement.sha256 == position.requirement.sha256:
                raise IssueflowError(
                    f"that is the requirement {name} has already", f"issueflow show {name} requirement"
                )
            replace_file(folder.requirement(requirement.version), text)
        pinned = None
        if workflow_name is not None:
            pinned, workflow_text = pin(hands, workflow_name, position.pinned.version + 1)
            replace_file(folder.workflow(pinned.version), workflow_text)
        by = person.who()
        return write(
            hands,
            folder,
            lambda **head: Amended(**head, by=by, requirement=requirement, origin=origin, pinned=pinned),
        )


def _requirement(text: bytes, version: int) -> Document:
    return Document(name="requirement.md", version=version, sha256=sha256(text), bytes=len(text))


def pin(hands: Hands, name: str, version: int) -> tuple[Pinned, str]:
    """The workflow `name`, its roles bound, with the project's checks, and workflow.yaml's text; WrongWords if bad."""
    config = hands.config
    workflow = hands.read_workflow(name)
    bound = bind(hands, workflow)
    shown = workflow.model_dump(by_alias=True, exclude_unset=True, mode="json")
    checks = [check.model_dump() for check in config.checks]
    text = to_yaml({**shown, "pinned": {"agents": bound, "checks": checks, "prefix": config.prefix}})
    hands.refuse_secrets(f"workflow {name}, or the checks of config.yaml,", text.encode())
    digest = sha256(text.encode())
    return Pinned(version=version, workflow=workflow, digest=digest, roles=bound, checks=config.checks), text


def bind(hands: Hands, workflow: Workflow) -> dict[str, str]:
    """Who plays each role of the workflow; WrongWords with the first reason why it cannot be used here."""
    config = hands.config
    bound = {role: config.roles[role] for role in workflow.roles if role in config.roles}
    resuming = agents.resuming(config.agents)
    for problem in check_workflow(workflow, bound=bound, has_checks=bool(config.checks), resuming=resuming):
        raise WrongWords(f"workflow {workflow.name}: {problem}", f"issueflow workflow validate {workflow.name}")
    for role, agent in bound.items():
        if agent not in config.agents:
            raise WrongWords(
                f"role {role} is bound to the agent {agent}, which config.yaml does not define", "issueflow init --help"
            )
        agents.usable(agent, config.agents[agent])
    return bound


def _no_base(base: str | None) -> IssueflowError:
    if base:
        return WrongWords(f"{base} is no commit of this repository", "git log --oneline -5")
    hint = "git commit --allow-empty -m start"
    return IssueflowError("this repository has no commit yet; an Issue needs one to start from", hint)


def _require_room(hands: Hands) -> None:
    """IssueflowError when a branch of the person's, or the worktrees' place, makes ours impossible."""
    place = os.fspath(hands.worktrees)
    if not place.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in place):
        sentence = f"the path {place} is not UTF-8 and cannot be written down; set `worktrees.root` in config.yaml"
        raise IssueflowError(sentence, "issueflow init --help")
    prefix = hands.config.prefix
    if blocker := hands.repository.blocking(f"{prefix}/ISSUE-0/x"):
        name = blocker.removeprefix("refs/heads/")
        sentence = f"the branch {name} is in the way of {prefix}/…; rename it or set another `prefix` in config.yaml"
        raise IssueflowError(sentence, f"git branch -m {shlex.quote(name)} NEW-NAME")


def _highest_number(hands: Hands) -> int:
    """The highest number that a record or a branch bears: a deleted directory's number is not used again."""
    names = record.recorded_issues(hands.repository)
    branches = hands.repository.refs(f"refs/heads/{hands.config.prefix}")
    names += [ref.split("/")[3] for ref in branches if ref.count("/") >= 3]
    names += [ref.split("/")[2] for ref in hands.repository.refs("refs/issueflow-keep")]
    return max([0, *(int(name[6:]) for name in names if name.startswith("ISSUE-") and name[6:].isdigit())])
