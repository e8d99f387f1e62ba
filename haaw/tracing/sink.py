"""Where a recording goes: a trace file that begins with its manifest, grows by segments, and ends with its summary.

A disk that is full ends the trace and not the answer: the file is cut back to its last whole member.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from haaw.arrays import Array
from haaw.errors import BadInputError
from haaw.tracing.container import ContainerWriter
from haaw.tracing.manifest import describe_weights, digest_of, make_manifest
from haaw.tracing.schema import MANIFEST, SUMMARY
from haaw.tracing.segment import Segment


class Sink:
    """The file of one recording."""

    def __init__(self, path: Path, policy: Mapping[str, Any]) -> None:
        self.path = path
        self.failure: str | None = None
        self.segments = 0
        self.first_weight_buffer = 0
        self.operations: list[str] = []
        """The operations that the manifest names, once it is written."""
        self._policy = policy
        self._model: dict[str, Any] = {}
        self._digest: str | None = None
        try:
            self._writer: ContainerWriter | None = ContainerWriter(path, exists="replace")
        except OSError as error:  # a full disk
            raise BadInputError(
                f"{path} cannot be created: {error.strerror or error}; give another path, or make room"
            ) from error

    @property
    def has_begun(self) -> bool:
        """Whether the manifest is written, so that segments may follow."""
        return self._digest is not None

    def know_model(self, facts: Mapping[str, Any]) -> None:
        """What the manifest will say of the model, apart from its weights."""
        if not self.has_begun:
            self._model = dict(facts)

    def begin(self, weights: Mapping[str, Array], first_buffer: int) -> None:
        """Writes the manifest before the first segment, if it is not there already.

        The weights' buffers are numbered from `first_buffer` on, in their order. Errors: `BadInputError` for
        another model than the one that the file has begun with.
        """
        described = describe_weights(weights)
        digest = digest_of(described)
        if self._digest is not None:
            if digest != self._digest:
                raise BadInputError(
                    "this trace has begun with another model; a trace is of one model, so record the other one in "
                    "a file of its own"
                )
            return
        if not self._has(MANIFEST):  # else an interrupt came just behind it
            manifest = make_manifest(described, self._model, self._policy)
            manifest["first_weight_buffer"] = self.first_weight_buffer = first_buffer
            self.operations = [each["name"] for each in manifest["ops"]]
            self._attempt(lambda writer: writer.add_bytes(MANIFEST, _json(manifest)))
        self._digest = digest

    def _has(self, name: str) -> bool:
        return self._writer is not None and name in self._writer

    def begin_without_model(self) -> None:
        """Writes the manifest of a recording in which nothing came to run, if there is none."""
        if not self.has_begun:
            self.begin({}, 0)

    def write(self, segment: Segment) -> int:
        """Writes a segment; the bytes of its tables, or 0 once the file can take no more.

        May be called again after an interrupt.
        """
        members = segment.members()
        if not self._has(members[-1][0]):
            self._attempt(lambda writer: writer.add_many(members))
        if self.failure is not None:
            return 0
        self.segments = segment.number + 1
        return sum(len(each) if isinstance(each, bytes) else int(each.nbytes) for _, each in members)

    def write_large(self, name: str, values: np.ndarray) -> None:
        """Writes one large array, ahead of the segment that it belongs to, if it is not there already."""
        if not self._has(name):
            self._attempt(lambda writer: writer.add_array(name, values))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Ends the file: the summary and the directory that ZIP tools need."""
        if self._writer is not None and self.has_begun:
            self._attempt(lambda writer: writer.add_bytes(SUMMARY, _json(summary)))
        if self._writer is not None:
            self._attempt(lambda writer: writer.close())
        self._writer = None

    def _attempt(self, write: Any) -> None:
        if self._writer is None:
            return
        try:
            write(self._writer)
        except OSError as error:
            writer, self._writer = self._writer, None
            self.failure = (
                f"the trace {self.path.name} ends after {self.segments} segments: {error.strerror or error}"
            )
            writer.abandon()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, default=str).encode("ascii")
