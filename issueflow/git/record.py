"""The record ref: an Issue directory committed by plumbing, so that its history is a git history and can be rebuilt."""

import os
from pathlib import Path

from issueflow.git.command import ZERO, git, run, text
from issueflow.git.refs import Repository
from issueflow.models import Identity, record_ref


def commit(
    repository: Repository,
    issue: str,
    folder: Path,
    files: list[str],
    fresh: set[str],
    message: str,
    by: Identity,
    when: int,
) -> str:
    """Commit the `files` (names relative to `folder`) to the Issue's record ref and give the commit.

    Only names in `fresh`, and those the last record does not have, are read again; the others cannot have changed.
    The ref moves by compare-and-swap; the caller holds the Issue's lock.
    """
    ref = record_ref(issue)
    old = repository.refs(ref).get(ref, ZERO)
    known = _listing(repository, old) if old else {}
    read = [name for name in files if name in fresh or name not in known]
    ids = dict(zip(read, repository.store(folder, read), strict=True))
    lines = [f"100644 {ids.get(name) or known[name]}\t{name}" for name in files]
    env = {"GIT_INDEX_FILE": os.fspath(folder / "record.index")}
    for stale in (folder / "record.index", folder / "record.index.lock"):
        stale.unlink(missing_ok=True)
    git(
        repository.folder,
        "update-index",
        "--add",
        "-z",
        "--index-info",
        input=("\0".join(lines) + "\0").encode(),
        env=env,
    )
    tree = text(repository.folder, "write-tree", env=env)
    (folder / "record.index").unlink(missing_ok=True)
    made = repository.commit_tree(tree, [old] if old else [], message, by, when)
    repository.move(ref, made, old)
    return made


def _listing(repository: Repository, commit: str) -> dict[str, str]:
    lines = git(repository.folder, "ls-tree", "-r", "-z", commit).split(b"\0")
    parts = [line.split(b"\t", 1) for line in lines if line]
    return {os.fsdecode(name): head.split()[2].decode() for head, name in parts}


def recorded(repository: Repository, issue: str) -> dict[str, bytes] | None:
    """Every file of the Issue's last record by name, None when there is no record.

    A name that leads out of the directory is left out: records come from elsewhere by fetch, and git checks no tree.
    """
    at = repository.commit(record_ref(issue))
    if not at:
        return None
    return {
        name: git(repository.folder, "cat-file", "blob", blob)
        for name, blob in _listing(repository, at).items()
        if ".." not in name.split("/")
    }


def journal(repository: Repository, issue: str) -> bytes | None:
    """The journal as last recorded, None when there is no record, or one of something else."""
    return recorded_file(repository, issue, "journal.jsonl")


def recorded_file(repository: Repository, issue: str, name: str) -> bytes | None:
    """One file of the Issue's last record, None when it is not in there."""
    code, out, _ = run(repository.folder, "cat-file", "blob", f"{record_ref(issue)}:{name}")
    return out if code == 0 else None


def recorded_issues(repository: Repository) -> list[str]:
    """The ids of all Issues that have a record."""
    return [ref.rsplit("/", 1)[1] for ref in repository.refs("refs/issueflow-records")]
