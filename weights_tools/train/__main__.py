"""`python -m weights_tools.train`: the same as `haaw models train-tiny`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from haaw.errors import HaawError
from weights_tools.train.tool import Options, TrainingInterruptedError, train_tiny


def main(arguments: list[str] | None = None) -> int:
    """Read the options, train, and say where the files are; gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m weights_tools.train", description="Train the embedded model."
    )
    parser.add_argument("--folder", type=Path, default=Options.folder, help="checkpoint and finished files")
    parser.add_argument(
        "--from", dest="begin_with", type=Path, help="begin with the weights of this model file"
    )
    parser.add_argument("--minutes", type=float, default=Options.minutes, help="how long to train")
    parser.add_argument("--tokens", type=int, help="train on so many tokens instead")
    parser.add_argument(
        "--items", type=int, default=Options.items, help="questions of each sort in the examination"
    )
    parser.add_argument("--stories", type=int, default=Options.stories, help="stories to sample")
    parser.add_argument("--threads", type=int, help="threads for PyTorch")
    parser.add_argument("--compiled", choices=("yes", "no"), default="yes", help="use torch.compile")
    given = vars(parser.parse_args(arguments))
    try:
        trained = train_tiny(Options(**given))
    except TrainingInterruptedError as stop:
        print(stop, file=sys.stderr)
        return 130
    except HaawError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{trained.model}\n{trained.card}\n{trained.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
