"""Issues on their way between clones: records, kept work and run branches, pushed and fetched, never forced."""

from collections.abc import Iterator

from issueflow.errors import GitFailed, IssueflowError
from issueflow.git.command import git, run, text
from issueflow.git.refs import Repository

# Settings that reach a server. A person's own, from outside the repository: inside it an agent may have planted them.
PERSONAL = ("credential.helper", "core.sshCommand")


def push(repository: Repository, remote: str, prefix: str) -> list[str]:
    """Push records, keep refs and the branches below `prefix`; the refs that moved there.

    IssueflowError when the remote does not exist or holds something that is not behind ours.
    """
    words = ["push", "--porcelain", "--no-verify", "--receive-pack=git-receive-pack", _known(repository, remote)]
    wanted = [spec for spec in _refspecs(prefix) if repository.refs(spec.split("*")[0].rstrip("/"))]
    if not wanted:
        return []
    out = _reach(repository, remote, [*words, *wanted])
    rows = [row.split("\t") for row in out.decode(errors="replace").splitlines() if row.count("\t") >= 2]
    return [row[1].split(":")[1] for row in rows if row[0] in (" ", "*")]


def fetch(repository: Repository, remote: str, prefix: str) -> list[str]:
    """Fetch the same from `remote`; the refs that moved here. IssueflowError as for `push`."""
    spaces = [spec.split("*")[0].rstrip("/") for spec in _refspecs(prefix)]
    before = repository.refs(*spaces)
    words = ["fetch", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--upload-pack=git-upload-pack"]
    kept = [f"^{branch}" for branch in _checked_out(repository, prefix)]
    _reach(repository, remote, [*words, _known(repository, remote), *_refspecs(prefix), *kept])
    after = repository.refs(*spaces)
    return sorted(name for name, value in after.items() if before.get(name) != value)


def _refspecs(prefix: str) -> list[str]:
    """Commits before what refers to them: a push that breaks off leaves no record of a head that is not there."""
    spaces = ("refs/issueflow-keep", f"refs/heads/{prefix}", "refs/issueflow-records")
    return [f"{space}/*:{space}/*" for space in spaces]


def _checked_out(repository: Repository, prefix: str) -> list[str]:
    """Branches of runs whose worktree is here: made here, and git fetches into no branch that is checked out."""
    shown = "--format=%(refname) %(worktreepath)"
    rows = git(repository.folder, "for-each-ref", shown, f"refs/heads/{prefix}").decode(errors="replace").splitlines()
    return [row.split(" ")[0] for row in rows if row.split(" ", 1)[1]]


def _known(repository: Repository, remote: str) -> str:
    if remote not in text(repository.folder, "remote").splitlines():
        raise IssueflowError(f"there is no remote {remote}", "git remote -v")
    return remote


def _reach(repository: Repository, remote: str, words: list[str]) -> bytes:
    wanted = ["protocol.file.allow=always", *_personal(repository)]  # a clone on this disk is a remote like any other
    settings = [part for setting in wanted for part in ("-c", setting)]
    code, out, err = run(repository.folder, *settings, *words)
    if code == 0:
        return out
    said = (out + err).decode(errors="replace")
    refused = [row.split("\t")[1].split(":")[-1] for row in said.splitlines() if row.startswith("!\t")]
    refused += [row.split("->")[1].split()[0] for row in said.splitlines() if "[rejected]" in row and "->" in row]
    if refused:
        sentence = f"{refused[0]} at {remote} and here went different ways; nothing was overwritten"
        raise IssueflowError(sentence, f"git ls-remote {remote} {refused[0]}")
    raise GitFailed(words[:1], code, said, "git remote -v")


def _personal(repository: Repository) -> Iterator[str]:
    for key in PERSONAL:
        for scope in ("--system", "--global"):
            values = git(repository.folder, "config", scope, "-z", "--get-all", key, codes=(0, 1)).split(b"\0")
            yield from (f"{key}={value.decode(errors='replace')}" for value in values if value)
