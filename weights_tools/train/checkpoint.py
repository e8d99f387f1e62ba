"""Files of a training: written whole or not at all, read only if they belong to the recipe. No pickle."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from haaw.errors import HaawError

FILE_NAME = "checkpoint.safetensors"


class TrainingError(HaawError):
    """A training cannot go on; the message says why and what to do."""


class CheckpointError(TrainingError):
    """A checkpoint is damaged or belongs to another recipe."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside its final name and then rename it, so that a good file is never half overwritten."""
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise TrainingError(
            f"{path} could not be written ({error.strerror}); nothing was changed. "
            "Free some space or choose another folder."
        ) from error


def write(folder: Path, tensors: dict[str, Any], facts: dict[str, str]) -> None:
    """Write a checkpoint into a folder. `facts` are JSON texts."""
    from safetensors.torch import save

    write_whole(folder / FILE_NAME, save(tensors, metadata=facts))


def read(folder: Path, digest: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Read the checkpoint of a folder: tensors and facts; None if there is none."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as opened:
            facts = {key: json.loads(value) for key, value in (opened.metadata() or {}).items()}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint. Delete it to start anew.") from error
    if facts.get("digest") != digest:
        raise CheckpointError(
            f"{path} belongs to another recipe or tokenizer. Choose another folder, or delete it to start anew."
        )
    return tensors, facts
