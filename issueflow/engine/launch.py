"""Acts 1 to 3 of a run: write the intent, prepare tree and order, hand the run to its host."""

import os
import secrets
import shlex
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

from issueflow import agents, hosts
from issueflow.engine import environment, order, surroundings
from issueflow.engine.bring import bring_along
from issueflow.engine.hands import Hands
from issueflow.engine.issues import write
from issueflow.errors import ROOM, Damaged, GitFailed, IssueflowError, WrongWords
from issueflow.files import crash_point, make_folder, read_json, replace_file, to_json
from issueflow.git import content, snapshot, worktrees
from issueflow.git.worktrees import Place
from issueflow.hosts import check, process, processes
from issueflow.machine import Position
from issueflow.models import (
    RUN_FOLDER,
    AgentSettings,
    Command,
    Stage,
    Started,
    branch_name,
    run_name,
)
from issueflow.store.issue import IssueFolder, sha256

RESULT_GRACE = 30.0  # seconds a complete result may lie untouched before the agent is ended: some CLIs never exit


# ── act 1 ──


def start(hands: Hands, folder: IssueFolder, position: Position) -> Position:
    """Journal the intent of the next run; every name follows from the entry."""
    surroundings.refuse_changed(hands, folder.name)
    hosts.host(hands.config.host).require()
    name, stage = position.stage, position.kind()
    role = stage.role or (stage.reviewers[0].role if stage.reviewers else None)
    agent = position.pinned.roles[role] if role else None
    number = len(position.runs) + 1
    reads = stage.kind != "check"
    session, resumes = _conversation(hands, position, agent)
    return write(
        hands,
        folder,
        lambda **head: Started(
            **head,
            run=number,
            stage=name,
            round=position.round,
            attempt=position.attempt,
            play=position.play,
            continuation=position.continuation,
            reviewer=stage.reviewers[0].id if stage.reviewers else None,
            agent=agent,
            host=hands.config.host,
            machine=processes.machine(),
            base=position.start,
            base_tree=position.start_tree,
            worktree=os.fspath(_free_path(hands, folder.name, run_name(number, name))),
            nonce=secrets.token_hex(8),
            identity=hands.repository.identity,
            target=position.current(stage.target) if stage.target and stage.target != "diff" else None,
            must_answer=position.must_answer if stage.kind == "agent" else (),
            settings=sha256(to_json(_settings(hands, agent).model_dump()).encode()) if agent and reads else "",
            session=session,
            resumes=resumes,
        ),
    )


def _conversation(hands: Hands, position: Position, agent: str | None) -> tuple[str | None, bool]:
    """The conversation of the next run, and whether it goes on with it; None where its CLI picks the id.

    One chosen beforehand is known even when the agent is killed before it has said a word.
    """
    found = agents.agent(_settings(hands, agent)) if agent else None
    if agent is None or found is None:
        return None, False
    known = position.conversation(agent)
    if known and found.CAPABILITIES.resume_elsewhere:
        return known, True
    return (str(uuid.uuid4()), False) if found.CAPABILITIES.session_id_choice else (None, False)


def _free_path(hands: Hands, issue: str, run: str) -> Path:
    """Where the worktree goes; a folder that is there already is somebody's and is left alone.

    IssueflowError when nothing can be made there.
    """
    wanted = path = hands.worktrees / issue / run
    try:
        make_folder(path.parent)
    except OSError as error:  # found before the run is written down: its place could not be changed any more
        sentence = f"no worktree can be made in {hands.worktrees}: {error.strerror} (worktrees.root in config.yaml)"
        raise IssueflowError(sentence, f"ls -ld {shlex.quote(os.fspath(hands.worktrees))}") from error
    turn = 1
    while os.path.lexists(path):
        turn += 1
        path = wanted.with_name(f"{run}.{turn}")
    return path


def _settings(hands: Hands, agent: str) -> AgentSettings:
    settings = hands.config.agents.get(agent)
    if settings is None:
        raise WrongWords(
            f"config.yaml no longer defines the agent {agent}, which this Issue was given", "issueflow init --help"
        )
    return settings


# ── act 2 ──


def prepare(hands: Hands, folder: IssueFolder, position: Position) -> bool:
    """Make everything the open run needs, from scratch, and publish its launch file last.

    Disposable until the runner has claimed the start. False when a runner is at it already.
    """
    started = position.open_run
    assert started is not None
    surroundings.refuse_changed(hands, folder.name, started.name)
    run = make_folder(folder.run(started.name))
    with process.idle(run) as free:
        if not free or (run / "started.json").exists():
            return False
        (run / "launch.json").unlink(missing_ok=True)
        crash_point("prepare.withdrawn")
        place = _checkout(hands, position, started)
        remember(run, place)
        shutil.rmtree(run / "git", ignore_errors=True)
        lens = snapshot.grind(hands.repository, place, run / "git", hands.config.caches)
        replace_file(run / "brought.json", to_json(bring_along(hands, place.path)))
        order.hand_over(hands, folder, position, started, run, place)
        crash_point("prepare.order")
        surroundings.photograph(hands, position, run)
        if not hands.config.worktrees.setup:
            record_start_tree(run, lens)
        launch = _launch(hands, position, started, run, place)
        crash_point("prepare.baseline")
        replace_file(run / "launch.json", to_json(launch))
        crash_point("prepare.launch")
    return True


def submit(folder: IssueFolder, started: Started) -> None:
    """Act 3: the host starts a runner for the prepared run."""
    hosts.host(started.host).submit(folder.run(started.name))


def _checkout(hands: Hands, position: Position, started: Started) -> Place:
    """Branch and worktree of the run, made anew whatever an earlier, killed preparation left."""
    branch = branch_name(position.created.prefix, position.issue, started.name)
    ref = f"refs/heads/{branch}"
    path = Path(started.worktree)
    if hands.repository.commit(started.base) is None:
        sentence = f"the commit {started.base[:12]} that {position.issue} goes on from is not in this repository"
        raise IssueflowError(sentence, "git fetch --all")
    with hands.store.lock():
        hands.repository.drop_lock(ref)
        worktrees.dispose(hands.repository, path, hands.store.trash)
        crash_point("prepare.disposed")
        hands.repository.make(ref, started.base)
        crash_point("prepare.branch")
        try:
            place = worktrees.add(hands.repository, path, branch, f"issueflow {position.issue} {started.name}")
        except GitFailed as error:
            if error.hint != ROOM:
                raise
            raise _no_room(hands, error) from error
        crash_point("prepare.worktree")
    if os.path.lexists(path / RUN_FOLDER):
        raise IssueflowError(
            f"this repository tracks {RUN_FOLDER}, where issueflow puts a run's order", f"git ls-files {RUN_FOLDER}"
        )
    return place


def _no_room(hands: Hands, error: GitFailed) -> IssueflowError:
    """Not enough space for a worktree, and how much the others there take: most of it can often go."""
    taken = content.survey(hands.worktrees, hands.config.caches).size >> 20
    sentence = f"there is not enough space for a worktree in {hands.worktrees} ({error})"
    if not taken:
        return IssueflowError(sentence, ROOM)
    return IssueflowError(f"{sentence}; those that are there take {taken} MiB", "issueflow cleanup --dry-run")


def remember(run: Path, place: Place) -> None:
    """Write down where the run's worktree is."""
    made = {"path": os.fspath(place.path), "admin": os.fspath(place.admin), "link": place.link}
    replace_file(run / "place.json", to_json(made))


def place_of(run: Path) -> Place | None:
    """The worktree of a run as it was made, None when it never was or is another repository's.

    The latter in a copy of the repository, and where the record came from another clone. Damaged when what was written
    down names no worktree of this run.
    """
    place = written_place(run)
    common = run.parents[4]
    return place if place and place.admin.parent == common / "worktrees" else None


def written_place(run: Path) -> Place | None:
    """The worktree that was written down for a run, whosever it is; Damaged as for `place_of`."""
    made = read_json(run / "place.json")
    path = Path(made["path"]) if made else run
    if made and (path.parent.name != run.parents[1].name or not path.name.startswith(run.name)):
        sentence = f"{run / 'place.json'} names {path}, which is no worktree of this run"
        raise Damaged(sentence, f"issueflow resume {run.parents[1].name} --restore")
    return Place(Path(made["path"]), Path(made["admin"]), made["link"]) if made else None


def lens_of(common: Path, run: Path, place: Place) -> snapshot.Lens | None:
    """The run's private git directory, None when it never came to be or is gone.

    One command at a time looks through it, so a lock file in there is a killed one's.
    """
    folder = run / "git"
    if not (folder / "HEAD").exists():
        return None
    for left in folder.glob("*.lock"):
        left.unlink(missing_ok=True)
    return snapshot.Lens(folder, common / "objects", place.path)


def record_start_tree(run: Path, lens: snapshot.Lens) -> None:
    """Fix the tree before the agent: what differs from it afterwards is the agent's doing."""
    snapshot.keep_ignore_rules(lens)  # again: set-up may have brought some
    looked = snapshot.look(lens)
    replace_file(run / "before.json", to_json({"tree": looked.tree}))


# ── the launch file ──


def _launch(hands: Hands, position: Position, started: Started, run: Path, place: Place) -> dict[str, Any]:
    """What the runner needs, and nothing that it would have to look up."""
    stage = position.workflow.stages[started.stage]
    settings = hands.config.worktrees
    env = environment.ours(position, started, place)
    commands = stage.commands if stage.commands is not None else position.pinned.checks
    argv, stdin, timeout = _program(hands, started, stage, run, place, env, commands)
    return {
        "argv": argv,
        "cwd": os.fspath(place.path),
        "env": {**hands.config.env.set_, **env},
        **environment.inherited(hands.config, started.agent),
        "secrets": list(hands.config.secrets),
        "stdin": os.fspath(stdin),
        "setup": [command.model_dump() for command in settings.setup],
        "after_setup": _after_setup(run),
        "timeout": timeout,
        "result": None if stage.kind == "check" else os.fspath(place.path / RUN_FOLDER / "result.json"),
        "result_grace": RESULT_GRACE,
    }


def _program(
    hands: Hands,
    started: Started,
    stage: Stage,
    run: Path,
    place: Place,
    env: dict[str, str],
    commands: tuple[Command, ...],
) -> tuple[list[str], Path, int]:
    """The program to run, the file on its standard input, its time limit in seconds; adds its variables to `env`."""
    if started.agent is None:
        return _check_program(hands, commands, run, stage)
    settings = _settings(hands, started.agent)
    agent = agents.usable(started.agent, settings)
    launch = agent.launch(settings, _task(hands, started, stage, run, place))
    env.update({name: value for name, value in launch.env.items() if name not in env})
    return launch.argv, launch.stdin, stage.timeout or settings.timeout


def _task(hands: Hands, started: Started, stage: Stage, run: Path, place: Place) -> agents.Task:
    schema = run / "schema.json"
    replace_file(schema, to_json(order.result_model(stage).model_json_schema(by_alias=True)))
    return agents.Task(
        prompt=run / "prompt.md",
        worktree=place.path,
        run_folder=run,
        stage=started.stage,
        play=started.play,
        project=hands.project,
        kind=stage.kind,
        access=stage.access,
        commands=stage.writes,
        git=(hands.repository.common, place.admin),
        session=agents.Session(started.session, started.resumes) if started.session else None,
        schema=schema,
    )


def _check_program(hands: Hands, commands: tuple[Command, ...], run: Path, stage: Stage) -> tuple[list[str], Path, int]:
    wanted = {"commands": [command.model_dump() for command in commands], "secrets": list(hands.config.secrets)}
    replace_file(run / "commands.json", to_json(wanted | {"drop": environment.withheld(hands.config)}))
    argv = [sys.executable, "-I", os.fspath(Path(check.__file__).resolve())]
    argv += [os.fspath(run / "commands.json"), os.fspath(run / "checks.json")]
    return argv, run / "prompt.md", stage.timeout or sum(command.timeout for command in commands) + 60


def _after_setup(run: Path) -> list[str]:
    """How the runner has the tree after set-up recorded, by a verb that is in no help text."""
    main = Path(__file__).resolve().parents[1] / "__main__.py"
    return [sys.executable, "-I", os.fspath(main), "_start-tree", os.fspath(run)]
