"""How a file of ours reaches the disk: replaced whole or claimed whole, never half-written; standard library only.

The runner imports this too, so nothing here may need an installed package.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CRASH_AT = os.environ.get("ISSUEFLOW_CRASH", "")


def crash_point(name: str) -> None:
    """Die here by SIGKILL when the test suite asked for it with ISSUEFLOW_CRASH=NAME#K@FILE; otherwise do nothing.

    The names are the acts of a run (docs/design.md). Each passing of the point, in whatever process, adds a byte to
    FILE; the K-th one dies, so that it happens once.
    """
    if not CRASH_AT.startswith(f"{name}#"):
        return
    count, _, file = CRASH_AT.removeprefix(f"{name}#").partition("@")
    with open(file, "ab") as passed:
        passed.write(b".")
        passed.flush()
        if passed.tell() == int(count):
            os.kill(os.getpid(), 9)


def sync_folder(folder: Path) -> None:
    """Make the names inside `folder` durable; a rename is only on disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the disk refuses in here is an error about `path`: write knows only a number, rmtree a name in a folder."""
    try:
        yield
    except OSError as error:
        if not (isinstance(error.filename, str | bytes) and os.path.isabs(error.filename)):
            error.filename = os.fspath(path)
        raise


@contextmanager
def _whole_file(path: Path, data: bytes) -> Iterator[Path]:
    """A synced temporary file beside `path` that holds `data`; gone afterwards whatever happened."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with naming(path), os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes | str) -> None:
    """Put `data` at `path` so that a reader, and a crash, sees the old content or the new, never a part.

    Raises OSError when the disk refuses; the old file is then untouched.
    """
    raw = data.encode() if isinstance(data, str) else data
    with _whole_file(path, raw) as temporary:
        temporary.replace(path)
    sync_folder(path.parent)


def claim_file(path: Path, data: bytes | str) -> bool:
    """Put `data` at `path` only if nothing is there; True when this call did it.

    link(2) fails when the name is taken and never shows an empty file, as O_EXCL does for an instant.
    """
    raw = data.encode() if isinstance(data, str) else data
    with _whole_file(path, raw) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


def write_file(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` as any program would, for files that are made again after a crash."""
    with naming(path):
        path.write_bytes(data.encode() if isinstance(data, str) else data)


def to_json(value: Any) -> str:
    """The one way a value of ours is written as JSON: sorted for people, ASCII so that no surrogate can fail."""
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object at `path`, None when there is no such file; ValueError when it is anything else."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def private(path: str, flags: int) -> int:
    """For `open(…, opener=private)`: a new file is readable by its owner only, whatever the umask says."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make_folder(path: Path) -> Path:
    """`path` as a folder that only its owner can read, with its parents; fine when it is there already."""
    if not path.parent.is_dir():
        make_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def shipped(name: str) -> Path:
    """A folder that comes with issueflow, `prompts` or `example`: inside the installed package, else beside it.

    An editable install and a checkout have no copy inside the package.
    """
    package = Path(__file__).resolve().parent
    installed = package / "shipped" / name
    return installed if installed.is_dir() else package.parent / {"example": ".issueflow-example"}.get(name, name)
