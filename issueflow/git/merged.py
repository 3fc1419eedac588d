"""Whether a commit's work is in another branch already, told from the commits alone and without asking a remote."""

import re
from collections.abc import Iterable
from tempfile import TemporaryDirectory

from issueflow.git.command import run, text
from issueflow.git.refs import Repository
from issueflow.git.snapshot import quoted

NOBODY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "issueflow"), ("EMAIL", "issueflow@localhost"), ("DATE", "@0 +0000"))
}


def branches_of_people(repository: Repository, prefix: str) -> dict[str, str]:
    """Ref to commit for every branch, local or of a remote, that is none of issueflow's own below `prefix`."""
    ours = re.compile(rf"refs/(heads|remotes/[^/]+)/{re.escape(prefix)}/ISSUE-\d+/")
    found = repository.refs("refs/heads", "refs/remotes")
    return {name: at for name, at in found.items() if not ours.match(name) and not name.endswith("/HEAD")}


def targets(repository: Repository, base: str | None, theirs: dict[str, str]) -> list[str]:
    """Where work is looked for by its content: the branch the Issue began on, the person's own, and their upstreams."""
    named = [name for name in (base, repository.head_name()) if name in theirs]
    upstreams = [text(repository.folder, "for-each-ref", "--format=%(upstream)", name) for name in named if name]
    return [name for name in dict.fromkeys([*named, *upstreams]) if name in theirs]


def holder(repository: Repository, commit: str, theirs: dict[str, str]) -> str | None:
    """A person's branch that holds `commit` itself: at it, or on top of it."""
    return next((name for name in sorted(repository.holders(commit)) if name in theirs), None)


def merged(repository: Repository, commit: str, target: str) -> str | None:
    """How `target` holds the work of `commit` although not the commit itself, in words; None when it does not.

    Nothing is left in the repository: what git has to write to tell goes to a folder that is gone afterwards.
    """
    if repository.tree(commit) == repository.tree(target):
        return "same tree"
    with TemporaryDirectory(prefix="issueflow-") as scratch:
        env = {
            "GIT_OBJECT_DIRECTORY": scratch,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted(repository.common / "objects"),
        }
        if _merge_adds_nothing(repository, commit, target, env):
            return "merging it adds nothing"
        return "same patch" if _same_patch(repository, commit, target, env) else None


def _merge_adds_nothing(repository: Repository, commit: str, target: str, env: dict[str, str]) -> bool:
    """Merged in memory; needs git 2.38, an older one cannot tell and says so by its exit code.

    Merge drivers are replaced by one that fails: they are programs, and the answer is then the careful one.
    """
    drivers = [key for key in repository.settings() if re.fullmatch(r"merge\..*\.driver", key)]
    settings = [word for key in drivers for word in ("-c", f"{key}=false")]
    words = ("merge-tree", "--write-tree", "--no-messages", target, commit)
    code, out, _ = run(repository.folder, *settings, *words, env=env)
    return code == 0 and out.decode().strip() == repository.tree(target)


def _same_patch(repository: Repository, commit: str, target: str, env: dict[str, str]) -> bool:
    """Is every commit's patch in `target` (a rebase), or all of them as one (a squash)?"""
    base = text(repository.folder, "merge-base", target, commit, codes=(0, 1)).split("\n")[0]
    if not base:
        return False
    words = ("commit-tree", repository.tree(commit), "-p", base, "-m", "squashed")
    squashed = text(repository.folder, *words, env=env | NOBODY)
    return any(_nothing_left(repository, tip, target, env) for tip in (commit, squashed))


def _nothing_left(repository: Repository, tip: str, target: str, env: dict[str, str]) -> bool:
    words = ("rev-list", "--max-count=1", "--right-only", f"{target}...{tip}")
    if text(repository.folder, *words, "--merges", env=env):
        return False  # what a merge itself changed has no patch to compare
    return not text(repository.folder, *words, "--cherry-pick", "--no-merges", env=env)


def checked_out(repository: Repository, prefixes: Iterable[str]) -> dict[str, str]:
    """Ref to path for every branch below `prefixes` that some worktree has checked out."""
    rows = text(repository.folder, "for-each-ref", "--format=%(refname)%00%(worktreepath)", *prefixes).split("\n")
    pairs = [row.split("\0", 1) for row in rows if "\0" in row]
    return {name: path for name, path in pairs if path}
