"""What can go wrong, in the person's words; nothing here acts.

IssueflowError          it cannot be done            exit 1
├── WrongWords          the call itself is off       exit 2
├── Busy                somebody else holds the lock exit 3
├── Damaged             a file of ours cannot be read
│   └── TooNew          … because a later issueflow wrote it
└── GitFailed           a git command said no
"""

# How the system, and git in its own words, say that a disk is full.
FULL = ("No space left on device", "Out of diskspace", "unable to write")
ROOM = "df -h"  # the hint for a full disk


class IssueflowError(Exception):
    """One sentence for the person and, where there is one, a hint: a command that exists and works.

    `str(error)` is the sentence, `error.hint` the command or None, `exit_code` what the process ends with.
    """

    exit_code = 1

    def __init__(self, sentence: str, hint: str | None = None) -> None:
        super().__init__(sentence)
        self.hint = hint


class WrongWords(IssueflowError):
    """The command line, a configuration file or a workflow says something that has no meaning."""

    exit_code = 2


class Busy(IssueflowError):
    """A lock was not free in time; the sentence names its holder."""

    exit_code = 3


class Damaged(IssueflowError):
    """A file that issueflow wrote cannot be read as it was written; the sentence names file and line."""


class TooNew(Damaged):
    """A later issueflow wrote the file: it is sound, and nothing here may mend it."""


class GitFailed(IssueflowError):
    """A git command ended with a code that its caller did not expect.

    Carries `argv`, `code` (None when it ran out of time) and `stderr` for whoever can answer.
    """

    def __init__(self, argv: list[str], code: int | None, stderr: str, hint: str | None = None) -> None:
        lines = [line for line in stderr.strip().splitlines() if line]
        told = [line for line in lines if line.startswith(("error: ", "fatal: "))][
            -2:
        ]  # the cause, and what it stopped
        reason = "; ".join(told) or (lines or ["it said nothing"])[-1]
        ending = "did not end in time" if code is None else f"failed with {code}"
        super().__init__(f"git {argv[0]} {ending}: {reason}", ROOM if any(words in stderr for words in FULL) else hint)
        self.argv = argv
        self.code = code
        self.stderr = stderr
