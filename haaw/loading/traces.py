"""`open_trace`: a trace file with the model that it was made with, which is loaded when it is first needed."""

import os
from collections.abc import Mapping
from typing import Any

from haaw.arrays import Array
from haaw.errors import BadInputError, HaawError
from haaw.generation.language_model import LanguageModel
from haaw.loading.by_kind import load
from haaw.tracing.manifest import describe_weights, digest_of
from haaw.tracing.trace import Trace

ModelLike = LanguageModel | str | os.PathLike[str] | None


class ModelOfTrace:
    """The model of one trace: the one given, else the one that the manifest names. Checked against the digest."""

    def __init__(self, manifest: Mapping[str, Any], model: ModelLike) -> None:
        self._manifest = manifest
        self._given = model
        self._found: LanguageModel | None = None
        self._failure: HaawError | None = None

    def weights(self) -> Mapping[str, Array]:
        """The arrays. Errors: `BadInputError` where there is no such model here, or it is another one."""
        return self.language_model().transformer.named_weights()

    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes of a token; None where the model is not at hand."""
        try:
            return bytes(self.language_model().tokenizer.token_bytes(token_id))
        except HaawError:
            return None

    def language_model(self) -> LanguageModel:
        """The model, loaded at the first call; a failure is remembered too."""
        if self._failure is not None:
            raise self._failure
        if self._found is None:
            try:
                self._found = self._loaded()
            except HaawError as error:
                self._failure = error
                raise
        return self._found

    def _loaded(self) -> LanguageModel:
        facts = self._manifest["model"]
        if isinstance(self._given, LanguageModel):
            model = self._given
        else:
            name = self._given if self._given is not None else facts.get("name")
            if not name:
                raise BadInputError("the trace does not name its model; give it with model=")
            try:
                model = load(name, dtype=facts.get("dtype") or "float32")
            except BadInputError as error:
                if self._given is not None:
                    raise
                raise BadInputError(
                    f'the model "{name!s:.80}" of this trace cannot be loaded ({error}); give it with model='
                ) from error
        check_weights(self._manifest, model)
        return model


def check_weights(manifest: Mapping[str, Any], model: LanguageModel) -> None:
    """Errors: `BadInputError` for a model whose weights are not those of the trace, naming the first that differs."""
    wanted: Mapping[str, Any] = manifest["weights"]
    here = describe_weights(model.transformer.named_weights())
    if digest_of(here) == manifest["model"].get("digest"):
        return
    for name in [*wanted, *(other for other in here if other not in wanted)]:
        if wanted.get(name) != here.get(name):
            raise BadInputError(
                f'this trace was made with another model than "{model.name}": the weight {name} '
                f"{_differs(wanted, here, name)}; give the one it was made with, "
                f'"{manifest["model"].get("name", "?")}"'
            )
    raise BadInputError(
        f'the digest of the weights in this trace does not fit "{model.name}", though every weight does; its manifest '
        "was altered"
    )


def _differs(wanted: Mapping[str, Any], here: Mapping[str, Any], name: str) -> str:
    if name not in here:
        return "is missing here"
    if name not in wanted:
        return "was not there"
    for what in ("shape", "dtype"):
        if wanted[name].get(what) != here[name][what]:
            return f"has the {what} {here[name][what]} and not {wanted[name].get(what)}"
    return "has other values"


def open_trace(path: str | os.PathLike[str], model: ModelLike = None) -> Trace:
    """Opens a trace for reading; also one that is still being written, or was cut off.

    The model is only loaded when something needs it, such as a value that was not kept: `model` is one that is
    loaded already, a name or a path, else the name that the trace states. Errors: `BadInputError` for what is no
    trace or is of a newer schema, `TraceDamagedError` for a damaged one; for another model later, when it is needed.
    """
    if model is not None and not isinstance(model, LanguageModel | str | os.PathLike):
        raise BadInputError(f"model is {model!r:.60}; it is a loaded model, a name or a path")
    trace = Trace(os.fspath(path), weights=lambda: own.weights())
    own = ModelOfTrace(trace.manifest, model)
    trace.token_bytes = own.token_bytes
    return trace
