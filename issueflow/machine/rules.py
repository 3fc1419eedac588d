"""What a workflow must be like before anything is started by it: each refusal is the sentence a person needs."""

from collections.abc import Collection, Iterator

from issueflow.models import ENDS, HOLD, VERDICTS, Stage, Workflow

GOOD = {"done", "approve", "pass", "none"}
OPTIONAL = {"incomplete", "needs_input", "none"}  # these have a default way on; see docs/concepts.md
KEYS = {
    "agent": {"role", "access", "inputs", "produces", "checklist", "session", "attempts", "timeout"},
    "review": {"target", "reviewers", "inputs", "checklist", "session", "attempts", "timeout"},
    "check": {"commands", "timeout", "attempts"},
    "human": {"presents"},
}
INPUTS = ("requirement", "constraints", "feedback", "findings", "checklist", "checks", "diff")
PRESENTS = ("diff", "open_findings", "decisions", "checklist")


def check_workflow(
    workflow: Workflow, *, bound: dict[str, str], has_checks: bool, resuming: Collection[str] = ()
) -> list[str]:
    """Every reason to refuse `workflow`, as sentences; empty when it may be used.

    `bound` maps roles to agents; `has_checks` says whether the project has check commands of its own; `resuming` names
    the agents whose conversations can go on in another worktree.
    """
    errors = [*_names(workflow), *_stages(workflow), *_roles(workflow, bound), *_checks(workflow, has_checks)]
    errors += _sessions(workflow, bound, resuming)
    if errors:
        return errors  # the graph is only worth walking once its parts are right
    return [*_loops(workflow), *_reach(workflow), *_cycles(workflow), *_unreviewed(workflow), *_refused(workflow)]


def targets(stage: Stage) -> list[str]:
    """Where `stage` can lead by its own verdicts, in the order written."""
    if isinstance(stage.next, dict):
        return list(stage.next.values())
    return [branch.to for branch in stage.next]


def _names(workflow: Workflow) -> Iterator[str]:
    if workflow.start not in workflow.stages:
        yield f"start names {workflow.start}, which is no stage"
    for name, stage in workflow.stages.items():
        if name in ENDS or name == HOLD:
            yield f"stage {name} has the name of an end"
        for target in targets(stage):
            if target not in workflow.stages and target not in ENDS and target != HOLD:
                yield f"stage {name} leads to {target}, which is no stage and no end"
    for name, loop in workflow.loops.items():
        for stage_name in (*loop.stages, loop.back_to):
            if stage_name not in workflow.stages:
                yield f"loop {name} names {stage_name}, which is no stage"
        if loop.back_to not in loop.stages:
            yield f"loop {name} leads back to {loop.back_to}, which is not one of its stages"
        exits = [loop.on_exhausted, *([loop.no_progress.to] if loop.no_progress else [])]
        for target in exits:
            if target in loop.stages:
                yield f"loop {name} leads out to {target}, which is inside the loop"
            elif target not in workflow.stages and target not in ENDS and target != HOLD:
                yield f"loop {name} leads out to {target}, which is no stage and no end"


def _stages(workflow: Workflow) -> Iterator[str]:
    for name, stage in workflow.stages.items():
        for key in sorted(stage.model_fields_set - {"kind", "next"} - KEYS[stage.kind]):
            yield f"stage {name}: {key} has no meaning for kind {stage.kind}"
        yield from _routes(name, stage)
        yield from _guards(name, stage, workflow)
        if stage.kind == "agent" and stage.role is None:
            yield f"stage {name} names no role"
        if stage.kind == "review":
            yield from _review(name, stage, workflow)
        for given in stage.inputs:
            if given not in INPUTS and given not in _produced(workflow):
                yield f"stage {name}: input {given} is neither known nor produced by a stage"
        for shown in stage.presents:
            if shown not in PRESENTS and shown not in _produced(workflow) and shown not in workflow.stages:
                yield f"stage {name}: presents {shown}, which is neither known nor produced by a stage"


def _review(name: str, stage: Stage, workflow: Workflow) -> Iterator[str]:
    if not stage.reviewers:
        yield f"stage {name} has no reviewers: nobody would look"
    if len(stage.reviewers) > 1:
        yield f"stage {name} has {len(stage.reviewers)} reviewers; this version runs one"
    if stage.target != "diff" and stage.target not in _produced(workflow):
        yield f"stage {name}: target {stage.target} is neither diff nor produced by a stage"


def _routes(name: str, stage: Stage) -> Iterator[str]:
    verdicts = VERDICTS[stage.kind]
    if isinstance(stage.next, dict):
        for verdict in verdicts:
            if verdict not in stage.next and verdict not in OPTIONAL:
                yield f"stage {name} does not say where {verdict} leads"
        for verdict in stage.next:
            if verdict not in verdicts:
                yield f"stage {name} routes {verdict}, which is no verdict of kind {stage.kind}"
        if "incomplete" in stage.next:
            yield f"stage {name} routes incomplete, which always means another attempt"
    elif not stage.next or stage.next[-1].when:
        yield f"stage {name}: the last way on must be unconditional"


def _guards(name: str, stage: Stage, workflow: Workflow) -> Iterator[str]:
    for branch in () if isinstance(stage.next, dict) else stage.next:
        for other, verdicts in branch.when.items():
            if other not in workflow.stages:
                yield f"stage {name}: a way on looks at {other}, which is no stage"
                continue
            kind = workflow.stages[other].kind
            for verdict in verdicts:
                if verdict not in VERDICTS[kind]:
                    yield f"stage {name}: a way on waits for {verdict}, which is no verdict of kind {kind}"


def _produced(workflow: Workflow) -> set[str]:
    return {document for stage in workflow.stages.values() for document in stage.produces}


def _roles(workflow: Workflow, bound: dict[str, str]) -> Iterator[str]:
    for name, stage in workflow.stages.items():
        roles = [stage.role] if stage.role else [reviewer.role for reviewer in stage.reviewers]
        for role in roles:
            if role not in workflow.roles:
                yield f"stage {name} names the role {role}, which the workflow does not declare"
            elif role not in bound:
                yield f"role {role} is bound to no agent"


def _sessions(workflow: Workflow, bound: dict[str, str], resuming: Collection[str]) -> Iterator[str]:
    for name, stage in workflow.stages.items():
        roles = [stage.role] if stage.role else [reviewer.role for reviewer in stage.reviewers]
        for agent in [bound[role] for role in roles if role in bound]:
            if stage.session == "resume" and agent not in resuming:
                yield f"stage {name}: session: resume, but {agent} cannot go on with a conversation in another worktree"


def _checks(workflow: Workflow, has_checks: bool) -> Iterator[str]:
    for name, stage in workflow.stages.items():
        empty = stage.kind == "check" and not (has_checks if stage.commands is None else stage.commands)
        if empty and isinstance(stage.next, dict) and "none" not in stage.next:
            yield f"stage {name} has no commands and does not say where none leads"


def _loops(workflow: Workflow) -> Iterator[str]:
    loops = list(workflow.loops.items())
    for i, (name, loop) in enumerate(loops):
        for other_name, other in loops[i + 1 :]:
            a, b = set(loop.stages), set(other.stages)
            if a & b and not (a <= b or b <= a):
                yield f"loops {name} and {other_name} overlap in part; nest them or keep them apart"


def _ways(workflow: Workflow, name: str) -> set[str]:
    """Every stage or end that can follow `name`, a loop's way out included."""
    ways = set(targets(workflow.stages[name]))
    for loop in workflow.loops.values():
        if name in loop.stages and loop.back_to in ways:
            ways |= {loop.on_exhausted} | ({loop.no_progress.to} if loop.no_progress else set())
    return ways


def _reach(workflow: Workflow) -> Iterator[str]:
    reached, waiting = {workflow.start}, [workflow.start]
    while waiting:
        for way in _ways(workflow, waiting.pop()):
            if way in workflow.stages and way not in reached:
                reached.add(way)
                waiting.append(way)
    for name in workflow.stages:
        if name not in reached:
            yield f"stage {name} can never be reached"


def _cycles(workflow: Workflow) -> Iterator[str]:
    """Every cycle needs an edge that a loop bounds, or a person."""

    def free(name: str) -> list[str]:
        if workflow.stages[name].kind == "human":
            return []
        bounded = {loop.back_to for loop in workflow.loops.values() if name in loop.stages}
        return [way for way in _ways(workflow, name) if way in workflow.stages and way not in bounded]

    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> str | None:
        if name in path:
            return " → ".join((*path[path.index(name) :], name))
        if name in done:
            return None
        found = next((cycle for way in free(name) if (cycle := visit(way, (*path, name)))), None)
        done.add(name)
        return found

    for name in workflow.stages:
        if cycle := visit(name, ()):
            yield f"the cycle {cycle} has neither a bounded loop nor a person in it"
            return


def _refused(workflow: Workflow) -> Iterator[str]:
    """What was not approved may not be delivered all the same, and cancel means the end."""
    for name, stage in workflow.stages.items():
        if isinstance(stage.next, dict):
            ways = [(f"{name} {verdict}", target) for verdict, target in stage.next.items() if verdict not in GOOD]
        else:
            sure = [branch for branch in stage.next if set(branch.when.get(name, ("",))) <= GOOD]
            ways = [(f"{name} (any verdict)", branch.to) for branch in stage.next if branch not in sure]
            ways = [] if stage.kind == "agent" else ways
        for what, target in ways:
            if target == "delivered":
                yield f"{what} leads to delivered, though nobody approved"
        if stage.kind == "human" and isinstance(stage.next, dict) and stage.next["cancel"] != "cancelled":
            yield f"stage {name}: cancel leads to {stage.next['cancel']}; it always ends the Issue as cancelled"
    for name, loop in workflow.loops.items():
        for target in (loop.on_exhausted, loop.no_progress.to if loop.no_progress else ""):
            if target == "delivered":
                yield f"loop {name} leads out to delivered, though nobody approved"


def _unreviewed(workflow: Workflow) -> Iterator[str]:
    """Nothing written may reach `delivered` past everybody."""
    for name, stage in workflow.stages.items():
        if not stage.writes:
            continue
        seen, waiting = {name}, [name]
        while waiting:
            for way in _ways(workflow, waiting.pop()):
                if way == "delivered":
                    yield f"what {name} writes can be delivered without a review or a person"
                    return
                if way in workflow.stages and way not in seen and workflow.stages[way].kind not in ("review", "human"):
                    seen.add(way)
                    waiting.append(way)
