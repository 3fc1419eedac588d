"""The command `issueflow`: the shortest way to what was asked, since `--version` and `status` are typed all day."""

import sys
from pathlib import Path

if __name__ == "__main__":  # started by path, by the runner: isolated mode has no path to a checkout
    sys.path.append(str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Run the command line in `sys.argv` and give the exit code."""
    if sys.argv[1:] == ["--version"]:
        from issueflow import __version__

        print(f"issueflow {__version__}")
        return 0
    from issueflow.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
