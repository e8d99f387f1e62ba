"""`haaw models train-tiny`: tokenizer, training, examination and export, from nothing to a finished model file.

PyTorch and Matplotlib are imported when training begins, so that this module can be imported without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haaw.errors import BadInputError, MissingLibraryError
from weights_tools.train.checkpoint import TrainingError, write_whole
from weights_tools.train.recipe import Recipe
from weights_tools.train.tokenizer import load_tokenizer, split_words, train_tokenizer

if TYPE_CHECKING:
    from weights_tools.train.beginning import Beginning
    from weights_tools.train.report import Report
    from weights_tools.train.training import Training

MODEL_FILE, CARD_FILE, PLOT_FILE, TOKENIZER_FILE = "tiny.gguf", "tiny.md", "tiny-loss.png", "tiny.model"


@dataclass(frozen=True)
class Options:
    """What a person may choose. The checkpoint and the finished files go to `folder`.

    `begin_with` is a model file of this tool whose weights and tokenizer the training begins with.
    """

    folder: Path = Path("tiny-training")
    begin_with: Path | None = None
    minutes: float = 240.0
    tokens: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    items: int = 500
    stories: int = 200
    compiled: str = "yes"
    threads: int | None = None
    progress: str = "bar"


@dataclass(frozen=True)
class Trained:
    """What a training came to: the files, the measured report, and how long it took."""

    model: Path
    card: Path
    plot: Path
    report: Report
    steps: int
    tokens: int
    minutes: float


class TrainingInterruptedError(TrainingError):
    """The person stopped the training; a checkpoint was kept."""


def train_tiny(options: Options) -> Trained:
    """Train the embedded model, measure it and write its file, its card and its loss plot.

    Goes on from the checkpoint in `options.folder` if there is one. The files of an earlier training stay as they are
    until the new ones are complete. Raises `BadInputError`, `MissingLibraryError` or `TrainingError`.
    """
    _check(options)
    torch = require_training_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    from weights_tools.train.training import Training

    beginning = _beginning(options)
    model = beginning.tokenizer_model if beginning else _tokenizer_model(options)
    tokenizer = load_tokenizer(model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = options.recipe.going_on() if beginning else options.recipe
    digest = recipe.digest(model + (beginning.sha256.encode() if beginning else b""))
    training = Training(recipe, tokenizer, digest, compiled=options.compiled, device=device)
    if not training.resume(options.folder) and beginning:
        beginning.fill(training.network)
    _run(training, options)
    return finish(training, options, beginning)


def finish(training: Training, options: Options, beginning: Beginning | None = None) -> Trained:
    """Round, measure and write a trained network."""
    from weights_tools.train.card import write_card
    from weights_tools.train.export import round_weights, write_gguf
    from weights_tools.train.plot import plot_losses
    from weights_tools.train.report import make_report

    network, recipe, progress = training.network.cpu(), training.recipe, training.progress
    round_weights(network)
    report = make_report(
        network, training.tokenizer, items=options.items, stories=options.stories, training_seed=recipe.seed
    )
    minutes = progress.elapsed_s / 60
    model, card, plot = (options.folder / name for name in (MODEL_FILE, CARD_FILE, PLOT_FILE))
    trained = f"{progress.tokens / 1e6:.1f} million tokens in {minutes:.0f} minutes"
    write_gguf(
        model, network, training.tokenizer, f"{trained} after {beginning.trained}" if beginning else trained
    )
    plot_losses(progress.losses, plot)
    size = model.stat().st_size
    parameters = sum(parameter.numel() for parameter in network.parameters())
    text = write_card(
        report,
        recipe,
        parameters=parameters,
        size_bytes=size,
        tokens=progress.tokens,
        minutes=minutes,
        note=beginning.note() if beginning else "",
    )
    write_whole(card, text.encode())
    return Trained(model, card, plot, report, progress.step, progress.tokens, minutes)


def require_training_libraries() -> Any:
    """Import PyTorch, and see that Matplotlib is there. Raises `MissingLibraryError` naming the extra."""
    try:
        import matplotlib
        import torch
    except ImportError as error:
        missing = "PyTorch" if error.name == "torch" else "Matplotlib"
        raise MissingLibraryError(
            f"Training needs {missing}, which is not installed; install it with: pip install 'haaw[train]'"
        ) from error
    assert matplotlib
    return torch


def _check(options: Options) -> None:
    if not 0 < options.minutes <= 10_000:
        raise BadInputError(f"minutes is {options.minutes}; it must be above 0 and at most 10000.")
    if options.tokens is not None and options.tokens < 1:
        raise BadInputError(f"tokens is {options.tokens}; it must be at least 1.")
    if options.items < 1 or options.stories < 10:
        raise BadInputError("At least 1 item of each sort and 10 stories are needed for the card.")
    if options.folder.exists() and not options.folder.is_dir():
        raise BadInputError(
            f"{options.folder} is not a folder; choose another place for the training's files."
        )


def _beginning(options: Options) -> Beginning | None:
    if options.begin_with is None:
        return None
    from weights_tools.train.beginning import read_beginning

    return read_beginning(options.begin_with)


def _tokenizer_model(options: Options) -> bytes:
    """Train the tokenizer, or take the one that an earlier run left in the folder."""
    path = options.folder / TOKENIZER_FILE
    if path.is_file():
        return path.read_bytes()
    model = train_tokenizer(
        pieces=options.recipe.shape.vocabulary, corpus_documents=options.recipe.tokenizer_documents
    )
    split = split_words(load_tokenizer(model))
    if split:
        raise TrainingError(
            f"The tokenizer splits {', '.join(split[:5])}; use more pieces or a larger corpus for it."
        )
    write_whole(path, model)
    return model


def _run(training: Training, options: Options) -> None:
    from weights_tools.train.training import Budget

    budget = Budget(options.minutes, options.tokens)
    with _watching(options) as watch:
        try:
            training.run(budget, options.folder, watch)
        except KeyboardInterrupt as stop:
            raise TrainingInterruptedError(
                f"Stopped at step {training.progress.step}; the same command goes on from there."
            ) from stop


@contextmanager
def _watching(options: Options) -> Iterator[Any]:
    """Show a progress bar on standard error while the training runs."""
    if options.progress != "bar":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0, note="")

        def watch(progress: Any, share: float) -> None:
            note = f"step {progress.step}  loss {progress.losses[-1][1]:.3f}  {progress.tokens / 1e6:.2f} M tokens"
            bar.update(task, completed=share, note=note)

        yield watch
