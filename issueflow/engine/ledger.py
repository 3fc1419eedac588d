"""What the last cleanup took away, written down before it was: what `cleanup --undo` goes by."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from issueflow.errors import Damaged
from issueflow.files import read_json, replace_file, to_json

VERSION = 1


@dataclass(frozen=True)
class Act:
    """A worktree that went, or (without a path) a branch."""

    issue: str
    run: str
    branch: str
    at: str  # the commit of the branch, empty where it was gone already
    tip: str  # the run's own commit
    path: str = ""
    admin: str = ""  # git's name for the worktree
    refs: tuple[str, ...] = ()
    commit: str | None = None  # the keep ref's commit that holds its files
    archive: str | None = None
    undoing: bool = False


class Ledger:
    """The acts of one cleanup, in order, as a file that is replaced whole."""

    def __init__(self, root: Path) -> None:
        self.path = root / "cleanup.json"
        try:
            found = read_json(self.path) or {"version": VERSION, "open": False, "acts": []}
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']}")
            self.acts = [Act(**{**act, "refs": tuple(act["refs"])}) for act in found["acts"]]
            self.is_open = bool(found["open"])
        except (ValueError, KeyError, TypeError) as error:
            path = shlex.quote(str(self.path))
            raise Damaged(f"{self.path} cannot be read: {error}", f"mv {path} {path}.damaged") from error

    def add(self, act: Act) -> None:
        """Write an act down, before it is done. The first of a cleanup takes the place of the cleanup before it, unless
        that was killed on its way: then both are one."""
        if not self.is_open:
            self.acts = []
        self.is_open = True
        self.acts.append(act)
        self._write()

    def close(self) -> None:
        """The cleanup, or the undo, has come to its end."""
        if self.is_open:
            self.is_open = False
            self._write()

    def change(self, act: Act, to: Act | None) -> None:
        """Write down how far an act is undone; None when it is."""
        self.is_open = True
        self.acts = [new for old in self.acts if (new := to if old == act else old)]
        self._write()

    def _write(self) -> None:
        if not self.acts:
            self.path.unlink(missing_ok=True)
            return
        replace_file(
            self.path,
            to_json({"version": VERSION, "open": self.is_open, "acts": [asdict(act) for act in self.acts]}),
        )
