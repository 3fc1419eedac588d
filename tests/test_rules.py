"""Which workflows are refused before anything is started by them, each with the sentence a person needs."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import EXAMPLE
from ruamel.yaml import YAML

from issueflow.errors import WrongWords
from issueflow.machine import check_workflow
from issueflow.models import ENDS, HOLD, VERDICTS, Workflow
from issueflow.project import read_yaml

SHIPPED = sorted((EXAMPLE / "workflows").glob("*.yaml"))
BOUND = dict.fromkeys(("analyst", "reviewer", "developer"), "scripted")
GONE = object()  # the key is taken out

Reasons = Callable[..., list[str]]


@pytest.fixture
def reasons(tmp_path: Path) -> Reasons:
    """Gives every reason to refuse a shipped workflow after `changes`, a dotted path to a value each."""

    def find(name: str, changes: dict[str, Any], *, bound: Any = BOUND, has_checks: bool = True) -> list[str]:
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(changed(name, changes)))  # JSON is YAML
        try:
            workflow = read_yaml(path, Workflow)
        except WrongWords as error:
            return [str(error)]
        return check_workflow(workflow, bound=bound, has_checks=has_checks)

    return find


@cache
def parsed(name: str) -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe", pure=True).load((EXAMPLE / "workflows" / f"{name}.yaml").read_text())
    return data


def changed(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    data = deepcopy(parsed(name))
    for path, value in changes.items():
        *way, last = path.split(".")
        inner = data
        for key in way:
            inner = inner[key]
        if value is GONE:
            del inner[last]
        else:
            inner[last] = deepcopy(value)
    return data


def check(**leads: str) -> dict[str, Any]:
    return {"kind": "check", "next": {"pass": HOLD, "fail": HOLD, "error": HOLD, "none": HOLD, **leads}}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("has_checks", [True, False], ids=["with checks", "without checks"])
def test_the_shipped_workflows_are_accepted(path: Path, has_checks: bool) -> None:
    assert check_workflow(read_yaml(path, Workflow), bound=BOUND, has_checks=has_checks) == []


def test_default_and_quick_are_among_the_shipped_workflows() -> None:
    assert {"default", "quick"} <= {path.stem for path in SHIPPED}


HARMLESS: dict[str, tuple[str, dict[str, Any]]] = {
    "a guarded way on": (
        "quick",
        {"stages.verify.next": [{"when": {"verify": ["pass", "none"]}, "to": "deliver"}, {"to": "develop"}]},
    ),
    "needs_input is routed": ("quick", {"stages.develop.next.needs_input": "deliver"}),
    "commands of its own": ("quick", {"stages.verify.commands": ["true", {"run": "false", "timeout": "5m"}]}),
    "no commands, and none is routed": ("quick", {"stages.verify.commands": []}),
    "nested loops": (
        "default",
        {
            "loops.inner": {
                "stages": ["develop", "code-review"],
                "back_to": "develop",
                "max_rounds": 2,
                "on_exhausted": "verify",
            }
        },
    ),
    "only a person looks": ("quick", {"stages.verify.next.fail": "deliver"}),
    "a way out to an end": ("quick", {"loops.coding.on_exhausted": "failed"}),
    "nothing is written, nothing need be reviewed": (
        "quick",
        {"stages.develop.access": "read-only", "stages.verify.next.pass": "delivered"},
    ),
    "a role nobody plays": ("quick", {"roles.critic": "is not used"}),
}


@pytest.mark.parametrize(("name", "changes"), HARMLESS.values(), ids=HARMLESS.keys())
def test_a_harmless_variant_is_accepted(reasons: Reasons, name: str, changes: dict[str, Any]) -> None:
    assert reasons(name, changes) == []


BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    # ── an unrouted verdict ──
    "a review's request_changes leads nowhere": (
        "default",
        {"stages.code-review.next.request_changes": GONE},
        "stage code-review does not say where request_changes leads",
    ),
    "a review's blocked leads nowhere": (
        "default",
        {"stages.plan-review.next.blocked": GONE},
        "stage plan-review does not say where blocked leads",
    ),
    "an agent's blocked leads nowhere": (
        "quick",
        {"stages.develop.next.blocked": GONE},
        "stage develop does not say where blocked leads",
    ),
    "an agent's done leads nowhere": (
        "default",
        {"stages.analysis.next.done": GONE},
        "stage analysis does not say where done leads",
    ),
    "a check's error leads nowhere": (
        "quick",
        {"stages.verify.next.error": GONE},
        "stage verify does not say where error leads",
    ),
    "a check's fail leads nowhere": (
        "default",
        {"stages.verify.next.fail": GONE},
        "stage verify does not say where fail leads",
    ),
    "a person's cancel leads nowhere": (
        "default",
        {"stages.plan-approval.next.cancel": GONE},
        "stage plan-approval does not say where cancel leads",
    ),
    "no commands and no way for none": (
        "quick",
        {"stages.verify.commands": [], "stages.verify.next.none": GONE},
        "stage verify has no commands and does not say where none leads",
    ),
    # ── a verdict that there is not ──
    "a verdict nobody says": (
        "default",
        {"stages.plan-review.next.reject": "analysis"},
        "stage plan-review routes reject, which is no verdict of kind review",
    ),
    "a verdict of another kind": (
        "quick",
        {"stages.verify.next.approve": "deliver"},
        "stage verify routes approve, which is no verdict of kind check",
    ),
    "incomplete is the engine's": (
        "quick",
        {"stages.develop.next.incomplete": "hold"},
        "stage develop routes incomplete, which always means another attempt",
    ),
    # ── an unknown target ──
    "a stage that is not there": (
        "default",
        {"stages.develop.next.done": "code-reveiw"},
        "stage develop leads to code-reveiw, which is no stage and no end",
    ),
    "a guarded way to a stage that is not there": (
        "quick",
        {"stages.verify.next": [{"when": {"verify": ["pass"]}, "to": "delivery"}, {"to": "develop"}]},
        "stage verify leads to delivery, which is no stage and no end",
    ),
    "a start that is not there": ("quick", {"start": "plan"}, "start names plan, which is no stage"),
    "a loop of a stage that is not there": (
        "quick",
        {"loops.coding.stages": ["develop", "verify", "lint"]},
        "loop coding names lint, which is no stage",
    ),
    "a loop that leads out to nowhere": (
        "default",
        {"loops.planning.on_exhausted": "person"},
        "loop planning leads out to person, which is no stage and no end",
    ),
    "a stalled loop that leads out to nowhere": (
        "default",
        {"loops.coding.no_progress.to": "person"},
        "loop coding leads out to person, which is no stage and no end",
    ),
    # ── guards ──
    "the last way on is guarded": (
        "quick",
        {"stages.verify.next": [{"when": {"verify": ["pass"]}, "to": "deliver"}]},
        "stage verify: the last way on must be unconditional",
    ),
    "no way on": ("quick", {"stages.verify.next": []}, "stage verify: the last way on must be unconditional"),
    "a guard on a stage that is not there": (
        "quick",
        {"stages.verify.next": [{"when": {"verifi": ["pass"]}, "to": "deliver"}, {"to": "develop"}]},
        "verifi",
    ),
    "a guard on a verdict that is never said": (
        "quick",
        {"stages.verify.next": [{"when": {"verify": ["passed"]}, "to": "deliver"}, {"to": "develop"}]},
        "passed",
    ),
    # ── an unknown key, a wrong value ──
    "an unknown key of the workflow": ("quick", {"retries": 3}, "retries: Extra inputs are not permitted"),
    "an unknown key of a stage": ("quick", {"stages.develop.on": {}}, "stages.develop.on: Extra inputs"),
    "an unknown key of a loop": (
        "quick",
        {"loops.coding.max_round": 3},
        "loops.coding.max_round: Extra inputs are not permitted",
    ),
    "an unknown kind": ("quick", {"stages.develop.kind": "robot"}, "stages.develop.kind: Input should be"),
    "an unknown access": ("quick", {"stages.develop.access": "root"}, "stages.develop.access: Input should be"),
    "no name": ("quick", {"name": GONE}, "name: this key is missing"),
    "a version in words": ("quick", {"version": "1"}, "version: Input should be a valid integer"),
    "a budget of no run": ("default", {"budget.runs": 0}, "budget.runs: Input should be greater than or equal to 1"),
    "no attempt at all": ("quick", {"stages.develop.attempts": 0}, "stages.develop.attempts: Input should be greater"),
    "a time limit in words": ("quick", {"stages.develop.timeout": "soon"}, "stages.develop.timeout"),
    "a document outside": ("default", {"stages.analysis.produces": ["../plan.md"]}, "stages.analysis.produces"),
    # ── BR-141 ──
    "rounds as a string": ("default", {"loops.coding.max_rounds": "4"}, "loops.coding.max_rounds: Input should be"),
    "no rounds": ("default", {"loops.coding.max_rounds": 0}, "loops.coding.max_rounds: Input should be greater"),
    "fewer than no rounds": ("default", {"loops.coding.max_rounds": -1}, "loops.coding.max_rounds: Input should be"),
    "rounds as a yes": ("default", {"loops.coding.max_rounds": True}, "loops.coding.max_rounds: Input should be"),
    "rounds without end": ("default", {"loops.coding.max_rounds": 10**9}, "loops.coding.max_rounds: Input should be"),
    "rounds left out": ("default", {"loops.coding.max_rounds": GONE}, "loops.coding.max_rounds: this key is missing"),
    # ── keys without a meaning ──
    "a check with a role": ("quick", {"stages.verify.role": "developer"}, "role has no meaning for kind check"),
    "a review that may write": (
        "default",
        {"stages.code-review.access": "write"},
        "stage code-review: access has no meaning for kind review",
    ),
    "a person who produces": (
        "quick",
        {"stages.deliver.produces": ["plan.md"]},
        "stage deliver: produces has no meaning for kind human",
    ),
    "an agent with commands": (
        "quick",
        {"stages.develop.commands": ["true"]},
        "stage develop: commands has no meaning for kind agent",
    ),
    "a conversation to resume": (
        "default",
        {"stages.develop.session": "resume"},
        "stage develop: session: resume, but scripted cannot go on",
    ),
    # ── unreachable ──
    "a stage nothing leads to": ("quick", {"stages.lint": check()}, "stage lint can never be reached"),
    "two stages that only lead to each other": (
        "quick",
        {"stages.lint": check(fail="format"), "stages.format": check(fail="lint")},
        "stage format can never be reached",
    ),
    # ── cycles ──
    "a cycle outside of any loop": (
        "quick",
        {"loops": {}},
        "the cycle develop → verify → develop has neither a bounded loop nor a person in it",
    ),
    "a review cycle outside of any loop": (
        "default",
        {"loops.planning": GONE},
        "the cycle analysis → plan-review → analysis has neither a bounded loop nor a person in it",
    ),
    "a stage that leads to itself": (
        "default",
        {"stages.verify.next.error": "verify"},
        "the cycle verify → verify has neither a bounded loop nor a person in it",
    ),
    "a cycle made of two loops' ways out": (
        "default",
        {"loops.planning.on_exhausted": "develop", "loops.coding.on_exhausted": "analysis"},
        "has neither a bounded loop nor a person in it",
    ),
    "a cycle through a stalled loop's way out": (
        "default",
        {"loops.planning.on_exhausted": "develop", "loops.coding.no_progress.to": "analysis"},
        "has neither a bounded loop nor a person in it",
    ),
    # ── loops ──
    "loops that overlap in part": (
        "default",
        {"loops.planning.stages": ["analysis", "plan-review", "develop"]},
        "loops planning and coding overlap in part; nest them or keep them apart",
    ),
    "a loop back to a stage that it does not hold": (
        "default",
        {"loops.coding.back_to": "analysis"},
        "loop coding leads back to analysis, which is not one of its stages",
    ),
    "a loop of nothing": ("quick", {"loops.coding.stages": []}, "loop coding leads back to develop, which is not one"),
    "a loop that leads out into itself": (
        "quick",
        {"loops.coding.on_exhausted": "verify"},
        "loop coding leads out to verify, which is inside the loop",
    ),
    "a stalled loop that leads out into itself": (
        "default",
        {"loops.coding.no_progress.to": "develop"},
        "loop coding leads out to develop, which is inside the loop",
    ),
    # ── nobody looks ──
    "delivered right after writing": (
        "quick",
        {"stages.develop.next.done": "delivered"},
        "what develop writes can be delivered without a review or a person",
    ),
    "delivered after the checks alone": (
        "quick",
        {"stages.verify.next.pass": "delivered"},
        "what develop writes can be delivered without a review or a person",
    ),
    "delivered because no checks were run": (
        "quick",
        {"stages.verify.next.none": "delivered"},
        "what develop writes can be delivered without a review or a person",
    ),
    "delivered because the rounds are used": (
        "quick",
        {"loops.coding.on_exhausted": "delivered"},
        "what develop writes can be delivered without a review or a person",
    ),
    "delivered because it stalls": (
        "quick",
        {"loops.coding.no_progress": {"rounds": 2, "watch": ["tree"], "to": "delivered"}},
        "what develop writes can be delivered without a review or a person",
    ),
    "delivered past the review": (
        "default",
        {"stages.develop.next.blocked": "delivered"},
        "what develop writes can be delivered without a review or a person",
    ),
    "delivered by one of the guarded ways": (
        "quick",
        {"stages.verify.next": [{"when": {"verify": ["pass"]}, "to": "delivered"}, {"to": "deliver"}]},
        "what develop writes can be delivered without a review or a person",
    ),
    # ── reviewers ──
    "zero reviewers": ("default", {"stages.code-review.reviewers": []}, "stage code-review has no reviewers"),
    "reviewers left out": ("default", {"stages.plan-review.reviewers": GONE}, "stage plan-review has no reviewers"),
    "more reviewers than are run": (
        "default",
        {"stages.code-review.reviewers": [{"id": "a", "role": "reviewer"}, {"id": "b", "role": "reviewer"}]},
        "stage code-review has 2 reviewers; this version runs one",
    ),
    "a review of nothing": (
        "default",
        {"stages.code-review.target": GONE},
        "stage code-review: target None is neither",
    ),
    "a review of what nobody produces": (
        "default",
        {"stages.plan-review.target": "design.md"},
        "stage plan-review: target design.md is neither diff nor produced by a stage",
    ),
    # ── roles ──
    "a role the workflow does not declare": (
        "quick",
        {"stages.develop.role": "wizard"},
        "stage develop names the role wizard, which the workflow does not declare",
    ),
    "a reviewer's role the workflow does not declare": (
        "default",
        {"stages.code-review.reviewers": [{"id": "a", "role": "critic"}]},
        "stage code-review names the role critic, which the workflow does not declare",
    ),
    "a declared role that plays no agent": (
        "quick",
        {"roles.wizard": "does wonders", "stages.develop.role": "wizard"},
        "role wizard is bound to no agent",
    ),
    "an agent stage without a role": ("quick", {"stages.develop.role": GONE}, "stage develop names no role"),
    # ── names ──
    "an input nobody gives": (
        "default",
        {"stages.develop.inputs": ["requirement", "plna.md"]},
        "stage develop: input plna.md is neither known nor produced by a stage",
    ),
    "a document nobody can present": (
        "quick",
        {"stages.deliver.presents": ["report.md"]},
        "stage deliver: presents report.md, which is neither known nor produced by a stage",
    ),
    "a stage with the name of an end": (
        "quick",
        {"stages.failed": check(), "stages.verify.next.error": "failed"},
        "stage failed has the name of an end",
    ),
    "a stage with the name of the question": ("quick", {"stages.hold": check()}, "stage hold has the name of an end"),
}


@pytest.mark.parametrize(("name", "changes", "sentence"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_variant_is_refused_with_the_right_sentence(
    reasons: Reasons, name: str, changes: dict[str, Any], sentence: str
) -> None:
    """BR-141 among others: a limit given as a string, as 0, negative, or under a misspelt key."""
    found = reasons(name, changes)
    assert any(sentence in reason for reason in found), found
    assert all("\n" not in reason for reason in found)


@pytest.mark.parametrize(
    ("role", "name"), [("reviewer", "default"), ("analyst", "default"), ("developer", "quick")], ids=str
)
def test_a_role_that_config_binds_to_no_agent_is_refused(reasons: Reasons, role: str, name: str) -> None:
    bound = {key: agent for key, agent in BOUND.items() if key != role}
    assert f"role {role} is bound to no agent" in reasons(name, {}, bound=bound)


@pytest.mark.parametrize("commands", [GONE, []], ids=["the project's", "its own"])
def test_where_none_leads_must_be_said_when_the_commands_come_to_nothing(reasons: Reasons, commands: Any) -> None:
    changes = {"stages.verify.next.none": GONE} | ({} if commands is GONE else {"stages.verify.commands": commands})
    sentence = "stage verify has no commands and does not say where none leads"
    assert reasons("default", changes, has_checks=False) == [sentence]
    assert reasons("default", changes) == ([] if commands is GONE else [sentence])


def test_every_reason_is_given_at_once(reasons: Reasons) -> None:
    changes = {"stages.verify.next.pass": "delvier", "stages.develop.role": "wizard", "start": "plan"}
    assert len(reasons("quick", changes)) == 3


def test_a_wrong_value_is_named_with_file_and_line(tmp_path: Path) -> None:
    """BR-141: a bad limit is refused at load, and the person is told where it stands."""
    text = (EXAMPLE / "workflows" / "quick.yaml").read_text()
    path = tmp_path / "quick.yaml"
    path.write_text(text.replace("max_rounds: 3", "max_rounds: three"))
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "max_rounds" in words)
    with pytest.raises(WrongWords, match=rf"quick\.yaml, line {line}, column 5: loops\.coding\.max_rounds: "):
        read_yaml(path, Workflow)


def test_on_is_refused_whichever_way_yaml_reads_it(tmp_path: Path) -> None:
    """`on:` is a boolean for YAML 1.1 readers; the key is `next:`."""
    path = tmp_path / "quick.yaml"
    path.write_text((EXAMPLE / "workflows" / "quick.yaml").read_text().replace("next:", "on:"))
    with pytest.raises(WrongWords, match=r"quick\.yaml, line "):
        read_yaml(path, Workflow)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "quick.yaml"
    path.write_text((EXAMPLE / "workflows" / "quick.yaml").read_text() + "start: verify\n")
    with pytest.raises(WrongWords, match=r"quick\.yaml.*start"):
        read_yaml(path, Workflow)


@pytest.mark.parametrize("name", ["default", "quick"])
def test_any_rewiring_is_judged_without_an_exception_and_keeps_what_is_promised(name: str) -> None:
    """2,000 seeded rewirings: what is accepted has a way out of every stage, and nothing slips past everybody."""
    random = Random(f"rewire {name}")
    accepted = 0
    for _ in range(2_000):
        data = changed(name, {})
        anywhere = [*data["stages"], *ENDS, HOLD]
        for _ in range(random.randint(1, 3)):
            stage = random.choice([*data["stages"].values()])
            stage["next"][random.choice(VERDICTS[stage["kind"]])] = random.choice(anywhere)
        if random.random() < 0.3:
            random.choice([*data["loops"].values()])["on_exhausted"] = random.choice(anywhere)
        workflow = Workflow.model_validate_json(json.dumps(data))
        if check_workflow(workflow, bound=BOUND, has_checks=True):
            continue
        accepted += 1
        for start, stage in data["stages"].items():
            assert {*ENDS, HOLD} & reach(data, start, set()), f"no way out of {start}: {data}"
            if stage.get("access") == "write":
                looked = {other for other, s in data["stages"].items() if s["kind"] in ("review", "human")}
                assert "delivered" not in reach(data, start, looked), data
    assert 100 < accepted < 1_900  # the walk above saw both kinds


def reach(data: dict[str, Any], start: str, closed: set[str]) -> set[str]:
    """All that can follow `start`, found without the code under test; nothing follows the stages in `closed`."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in closed or name not in data["stages"]:
            continue
        ways = {*data["stages"][name]["next"].values()}
        for loop in data["loops"].values():
            if name in loop["stages"] and loop["back_to"] in ways:
                ways |= {loop["on_exhausted"], loop.get("no_progress", {}).get("to", HOLD)}
        waiting += ways - found
        found |= ways
    return found
