"""An archive of files as they lie on disk, for what no commit can hold; links are packed as links, never followed."""

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from issueflow.errors import IssueflowError
from issueflow.files import make_folder, sync_folder

TEMPORARY = ".issueflow-*.tmp"  # what a file is called while it is written
NAMED_BY = 12  # digits of its own digest in the name of an archive: the same content is packed once


class Part(NamedTuple):
    """A file or a whole folder to pack: `name` in the archive, and where it lies."""

    name: str
    path: Path


def pack(folder: Path, stem: str, parts: Iterable[Part], leave_out: Callable[[Part], bool]) -> Path:
    """Pack `parts` into `folder/STEM-DIGEST.tar`, on disk when this returns; IssueflowError for what no archive takes.

    `leave_out` is asked about each file and folder, folders first.
    """
    make_folder(folder)
    temporary = folder / f".{stem}.{os.urandom(4).hex()}.tmp"
    try:
        with tarfile.open(temporary, "x", format=tarfile.PAX_FORMAT) as archive:
            temporary.chmod(0o600)
            for part in parts:
                for name, path in _walk(part, leave_out):
                    _add(archive, name, path)
        with temporary.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:NAMED_BY]
            os.fsync(stream.fileno())
        target = folder / f"{stem}-{digest}.tar"
        temporary.replace(target)
        sync_folder(folder)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _walk(part: Part, leave_out: Callable[[Part], bool]) -> Iterator[Part]:
    if leave_out(part):
        return
    yield part
    if part.path.is_dir() and not part.path.is_symlink():
        for name in sorted(os.listdir(part.path)):
            yield from _walk(Part(f"{part.name}/{name}", part.path / name), leave_out)


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    archive.inodes = {}  # type: ignore[attr-defined]  # a hard link is a file of its own here
    info = archive.gettarinfo(path, name)
    if info is None or not (info.isfile() or info.isdir() or info.issym() or info.isfifo()):
        raise IssueflowError(f"{path} is a socket or a device, which no archive holds", "issueflow cleanup --dry-run")
    if not info.isfile():
        archive.addfile(info)
        return
    with path.open("rb") as stream:
        archive.addfile(info, stream)


def unpack(archive: Path, prefix: str, top: Path, may_replace: Callable[[str], bool]) -> None:
    """Put what is packed below `prefix` back below `top`, byte for byte, with modes and times; safe to repeat.

    A file that is there stays as it is unless `may_replace` says otherwise (asked with its path below `top`).
    """
    folders = []
    with tarfile.open(archive) as packed:
        for member in packed:
            name = member.name.removeprefix(f"{prefix}/")
            if name == member.name:
                continue
            target = top / name
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                folders.append((target, member))
            elif not os.path.lexists(target) or may_replace(name):
                target.parent.mkdir(parents=True, exist_ok=True)
                _put(packed, member, target)
    for target, member in reversed(folders):  # last: a read-only folder takes no files
        target.chmod(member.mode)


def _put(packed: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    temporary = _beside(target)
    if member.issym():
        temporary.symlink_to(member.linkname)
    elif member.isfifo():
        os.mkfifo(temporary, member.mode)
    else:
        stream = packed.extractfile(member)
        assert stream is not None
        with temporary.open("xb") as file:
            shutil.copyfileobj(stream, file)
        temporary.chmod(member.mode)
        os.utime(temporary, (member.mtime, member.mtime))
    temporary.replace(target)


def put(target: Path, data: bytes, mode: int | None) -> None:
    """Write a file whole, with its mode; `mode` None makes a link that leads to `data`."""
    temporary = _beside(target)
    if mode is None:
        os.symlink(data, os.fsencode(temporary))
    else:
        temporary.write_bytes(data)
        temporary.chmod(mode)
    temporary.replace(target)


def _beside(target: Path) -> Path:
    return target.with_name(TEMPORARY.replace("*", os.urandom(4).hex()))


def names(archive: Path, prefix: str) -> list[str]:
    """The paths packed below `prefix`, folders left out."""
    with tarfile.open(archive) as packed:
        found = [member.name for member in packed if not member.isdir()]
    return [name.removeprefix(f"{prefix}/") for name in found if name.startswith(f"{prefix}/")]
