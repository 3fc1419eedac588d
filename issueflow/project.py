"""Finds the repository one stands in, reads its `.issueflow/`, puts the hands together; `init` writes the folder."""

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from issueflow.agents.known import KNOWN, sign_of_login
from issueflow.engine.hands import Hands
from issueflow.errors import IssueflowError, WrongWords
from issueflow.files import replace_file, shipped
from issueflow.git.layout import locate
from issueflow.git.refs import Repository
from issueflow.models import Config, Workflow
from issueflow.store.issue import Store

FOLDER = ".issueflow"
Model = TypeVar("Model", bound=BaseModel)


class Project:
    """A repository with its `.issueflow/`, seen from where the command was typed."""

    def __init__(self, start: Path) -> None:
        self.place = locate(start)
        self.store = Store(self.place.common)

    @cached_property
    def repository(self) -> Repository:
        """The repository for git commands."""
        return Repository(self.place.common, self.place.worktree or self.place.common)

    @cached_property
    def root(self) -> Path:
        """The folder whose `.issueflow/` counts: the main worktree's, whatever linked one the command is typed in."""
        main = self._main_worktree()
        if main is None:
            raise IssueflowError(
                "a bare repository has no files for an agent to work on; run this in a worktree of it",
                "git worktree add ../work",
            )
        return main

    def _main_worktree(self) -> Path | None:
        common, worktree = self.place.common, self.place.worktree
        if common.name == ".git" and self.repository.setting("core.bare") != "true":
            return common.parent
        if configured := self.repository.setting("core.worktree"):
            return Path(os.path.normpath(common / configured))
        return worktree

    @cached_property
    def folder(self) -> Path:
        """`.issueflow/` of this project; IssueflowError with the way to make it when it is missing."""
        folder = self.root / FOLDER
        if not (folder / "config.yaml").exists():
            raise IssueflowError(f"{self.root} has no {FOLDER}/config.yaml yet", "issueflow init")
        return folder

    def config(self) -> Config:
        """`.issueflow/config.yaml`; WrongWords names file, line and what is wrong."""
        return read_yaml(self.folder / "config.yaml", Config)

    def workflow(self, name: str) -> Workflow:
        """The project's workflow `name`, else the shipped one; WrongWords lists what there is."""
        known = self.workflows()
        if name not in known:
            raise WrongWords(f"there is no workflow {name} (there are: {', '.join(known)})", "issueflow workflow list")
        workflow = read_yaml(known[name], Workflow)
        if workflow.name != name:
            raise WrongWords(f"{known[name]} names itself {workflow.name}", "issueflow workflow list")
        return workflow

    def workflows(self) -> dict[str, Path]:
        """Every workflow by name, with its file; the project's own take the place of shipped ones."""
        folders = [shipped("example") / "workflows", self.folder / "workflows"]
        return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}

    def hands(self) -> Hands:
        """Everything the engine works with."""
        self.store.ensure()
        self._link_issues()
        return self.looking_hands()

    def looking_hands(self) -> Hands:
        """As `hands`, for a verb that only looks: no folder is made."""
        return Hands(self.repository, self.store, self.root, self.config, self.workflow)

    def _link_issues(self) -> None:
        """`.issueflow/issues`, for the eye and the editor; nothing reads through it."""
        link = self.root / FOLDER / "issues"
        if link.parent.is_dir() and not os.path.lexists(link):
            try:
                link.symlink_to(os.path.relpath(self.store.issues, link.parent))
            except OSError:
                pass  # a read-only checkout can do without


def read_yaml(path: Path, model: type[Model]) -> Model:
    """The YAML file at `path` as `model`; WrongWords names file, line and column of what is wrong."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    hint = f"git diff -- {shlex.quote(os.fspath(path))}"  # what was changed last is mostly what is wrong
    try:
        text = path.read_text("utf-8")
        data = YAML(typ="safe", pure=True).load(text)
    except OSError as error:
        raise WrongWords(f"{path} cannot be read: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise WrongWords(f"{path} is not UTF-8", hint) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        raise WrongWords(f"{where}: {error.problem}", hint) from error
    except (YAMLError, ValueError, RecursionError) as error:  # the latter two: a 13th month, a thousand brackets
        raise WrongWords(f"{path}: {' '.join(str(error).split())}", hint) from error
    if not isinstance(data, dict):
        raise WrongWords(f"{path} holds no keys", hint)
    try:
        # By way of JSON: there a list may stand for a tuple, and a date is a string.
        as_json = json.dumps(data, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise WrongWords(f"{path} is no tree of values: {error}", hint) from error
    if any("\0" in string for string in _strings(data)):  # no program, path or variable can have one
        raise WrongWords(f"{path} holds a NUL character", hint)
    try:
        return model.model_validate_json(as_json)
    except ValidationError as error:
        first = error.errors()[0]
        keys = [str(part) for part in first["loc"]]
        line, column = _place_of(text, keys)
        what = "this key is missing" if first["type"] == "missing" else first["msg"]
        named = f"{'.'.join(keys)}: " if keys else ""
        raise WrongWords(f"{path}, line {line}, column {column}: {named}{what}", hint) from error


def _strings(data: Any) -> Iterator[str]:
    """Every string in what a YAML file holds, keys included."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        yield from (string for item in data.items() for part in item for string in _strings(part))
    elif isinstance(data, list):
        yield from (string for item in data for string in _strings(item))


def _place_of(text: str, keys: list[str]) -> tuple[int, int]:
    """Line and column of the value at `keys`, or of what should hold it; by the loader that remembers where things
    stand."""
    from ruamel.yaml import YAML

    data: Any = YAML(typ="rt", pure=True).load(text)
    place = (data.lc.line, data.lc.col)
    for key in keys:
        try:
            if isinstance(data, dict):
                place, data = data.lc.key(key), data[key]  # type: ignore[attr-defined]
            else:
                place, data = data.lc.item(int(key)), data[int(key)]
        except (KeyError, AttributeError, IndexError, TypeError, ValueError):
            break
    return place[0] + 1, place[1] + 1


# ── init ──────────────────────────────────────────────────────────────────────

DETECT: list[tuple[str, Callable[[Path], bool], str]] = [
    ("pyproject.toml", lambda p: _mentions(p, "pytest"), "python3 -m pytest -q"),
    ("pytest.ini", lambda p: True, "python3 -m pytest -q"),
    ("tox.ini", lambda p: True, "tox -q"),
    ("package.json", lambda p: _has_npm_test(p), "npm test"),
    ("Cargo.toml", lambda p: True, "cargo test --quiet"),
    ("go.mod", lambda p: True, "go test ./..."),
    ("pom.xml", lambda p: True, "mvn -q test"),
    ("gradlew", lambda p: True, "./gradlew test"),
    ("build.gradle", lambda p: not (p.parent / "gradlew").exists(), "gradle test"),
    ("Makefile", lambda p: _has_target(p, "test"), "make test"),
]


# What a fresh worktree lacks before anything can run in it, told from what is tracked.
SET_UP = {
    ".gitmodules": "git submodule update --init",
    "package-lock.json": "npm ci",
    "pnpm-lock.yaml": "pnpm install --frozen-lockfile",
    "yarn.lock": "yarn install --frozen-lockfile",
}


def detect_set_up(root: Path) -> list[str]:
    """The commands that a fresh worktree of this project needs, as far as its files tell."""
    return [command for name, command in SET_UP.items() if (root / name).is_file()]


def detect_checks(root: Path) -> list[str]:
    """The commands that test this project, as far as its files tell; the first kind found in each language."""
    found = [command for name, is_it, command in DETECT if (root / name).is_file() and is_it(root / name)]
    if not found and any((root / "tests").glob("test*.py")):
        found = ["python3 -m unittest discover -q -s tests -t ."]
    return list(dict.fromkeys(found))


def _mentions(path: Path, word: str) -> bool:
    return word in path.read_text(errors="replace") or (path.parent / "tests" / "conftest.py").exists()


def _has_npm_test(path: Path) -> bool:
    try:
        script = json.loads(path.read_text("utf-8")).get("scripts", {}).get("test", "")
    except (ValueError, AttributeError):
        return False
    return bool(script) and "no test specified" not in script


def _has_target(path: Path, target: str) -> bool:
    return any(line.startswith(f"{target}:") for line in path.read_text(errors="replace").splitlines())


def init(project: Project, agent: str | None) -> list[str]:
    """Write `.issueflow/` with a configuration that works here; give what was decided, in words.

    Existing files stay as they are. `agent` picks the CLI; without it, those on PATH are taken, author and reviewer
    from different ones where there are two.
    """
    root = project.root
    folder = root / FOLDER
    if (folder / "config.yaml").exists():
        raise IssueflowError(f"{folder / 'config.yaml'} exists already", "issueflow status")
    names, why = _pick(agent)
    checks, set_up = detect_checks(root), detect_set_up(root)
    folder.mkdir(exist_ok=True)
    (folder / "workflows").mkdir(exist_ok=True)
    _place(folder / ".gitignore", "/issues\n")
    for name in ("default", "quick"):
        _place(
            folder / "workflows" / f"{name}.yaml",
            (shipped("example") / "workflows" / f"{name}.yaml").read_text("utf-8"),
        )
    (folder / "context").mkdir(exist_ok=True)
    _place(
        folder / "context" / "constraints.md", (shipped("example") / "context" / "constraints.md").read_text("utf-8")
    )
    if "scripted" in names:
        _place(folder / "scripted.yaml", (shipped("example") / "scripted.yaml").read_text("utf-8"))
    _place(folder / "config.yaml", _config_text(names, checks, set_up))
    said = [f"agents: {why}"]
    if not all(shutil.which(name) or name == "scripted" for name in names):
        said.append("hint: issueflow agents")
    said.append(f"checks: {', '.join(checks)}" if checks else "checks: none found; verify will say `not run`")
    return [*said, f"set-up of each worktree: {', '.join(set_up)}"] if set_up else said


def _pick(agent: str | None) -> tuple[list[str], str]:
    """Author and reviewer, one name when it is the same CLI, and why these, in words.

    Those that show a login come first: a CLI that has none would hold the first Issue.
    """
    if agent:
        if agent not in KNOWN and agent != "scripted":
            known = ", ".join([*KNOWN, "scripted"])
            raise WrongWords(f"issueflow knows no agent {agent} (it knows: {known})", "issueflow agents")
        gone = "" if agent == "scripted" or shutil.which(agent) else ", which is not installed"
        return [agent], f"{agent} in every role, as asked{gone}"
    found = sorted(filter(shutil.which, KNOWN), key=lambda name: not sign_of_login(KNOWN[name]))
    if not found:
        return ["codex"], "codex in every role, which is not installed, nor is any other that issueflow knows"
    doubts = [name for name in found[:2] if not sign_of_login(KNOWN[name])]
    doubt = f"; no sign of a login: {', '.join(doubts)}" if doubts else ""
    if len(found) == 1:
        return found, f"{found[0]} in every role, the only one that is installed{doubt}"
    author, reviewer = found[:2]
    return [author, reviewer], f"{author} writes, {reviewer} reviews: another maker's model sees other things{doubt}"


def _place(path: Path, text: str) -> None:
    if not path.exists():
        replace_file(path, text)
        path.chmod(0o644)  # these are the person's files, to be committed and shared


def _config_text(names: list[str], checks: list[str], set_up: list[str]) -> str:
    """The example's configuration, comments and all, with this project's agents, checks and set-up."""
    example = (shipped("example") / "config.yaml").read_text("utf-8")
    example = example.replace("  setup: []     ", f"  setup: {json.dumps(set_up)}" + ("" if set_up else "     "))
    agents = "".join(_agent_text(name) for name in names)
    author, reviewer = names[0], names[-1]
    blocks = {
        "agents": f"agents:\n{agents}",
        "roles": f"roles:\n  analyst: {author}\n  reviewer: {reviewer}\n  developer: {author}\n",
        "checks": "checks:\n" + "".join(f"  - run: {json.dumps(command)}\n" for command in checks)
        if checks
        else "checks: []\n",
    }
    out: list[str] = []
    skipping = False
    for line in example.splitlines(keepends=True):
        key = line.split(":")[0]
        if not line.startswith((" ", "#", "\n")):
            skipping = key in blocks
            if skipping:
                out.append(blocks[key])
        elif line.startswith(("#", "\n")):
            skipping = False
        if not skipping:
            out.append(line)
    return "".join(out)


def _agent_text(name: str) -> str:
    if name == "scripted":
        return "  scripted:\n    type: scripted\n    script: .issueflow/scripted.yaml\n    timeout: 10m\n"
    rows = {**KNOWN[name].settings, "timeout": "60m"}
    text = "".join(f"    {key}: {_value(value)}\n" for key, value in rows.items())
    return f"  {name}:\n{text}"


def _value(value: Any) -> str:
    """A value as a line of YAML: a word as it is, all else as JSON, which YAML reads too."""
    return value if isinstance(value, str) else json.dumps(value)
