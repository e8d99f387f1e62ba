"""`python -m haaw` and the `haaw` command: starts the command line, and says so when it cannot start."""

import sys


def run() -> int:
    """Runs the command line of this process; returns the exit status."""
    try:
        from haaw.cli.main import main
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        print(f"haaw: the command needs {error.name}; get everything with: pip install haaw", file=sys.stderr)
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(run())
