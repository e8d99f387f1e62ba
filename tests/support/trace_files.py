"""Trace files for tests: recorded runs, and copies with one member changed (checksums and all)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import haaw
from haaw.generation.answer import Answer
from haaw.generation.language_model import LanguageModel
from haaw.tracing.container import Container, ContainerWriter


def recorded(
    path: Path, model: LanguageModel, prompt: Any, keep: Any = "replayable", **settings: Any
) -> Answer:
    """Runs one request and records it."""
    with haaw.record(path, keep=keep):
        return model.generate(prompt, **settings)


def rewritten(path: Path, out: Path, changes: dict[str, Callable[[bytes], bytes | None]]) -> Path:
    """A copy whose members were changed (None: left out), with good checksums: altered, not damaged."""
    with Container.open(path) as container, ContainerWriter(out, exists="replace") as writer:
        for name in container.members:
            content: bytes | None = bytes(container.read(name))
            if name in changes:
                content = changes[name](content)
            if content is not None:
                writer.add_bytes(name, content)
    return out


def with_manifest(path: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy with another manifest."""

    def changed(content: bytes) -> bytes:
        manifest = json.loads(content)
        change(manifest)
        return json.dumps(manifest).encode()

    return rewritten(path, out, {"manifest.json": changed})


def flipped(path: Path, out: Path, member: str, at: int) -> Path:
    """A copy with one bit of a member flipped."""
    with Container.open(path) as container:
        offset = container.members[member].offset + at
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    out.write_bytes(data)
    return out
