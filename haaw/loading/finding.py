"""From a name or a path to the file or folder that holds a model. Fetches nothing, and opens no model."""

import os
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from haaw.errors import BadInputError

DEFAULT_MODEL = "tiny"
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


def find(model: str | os.PathLike[str]) -> Path:
    """The file or folder that a name or path stands for; a known name goes before a file of that name.

    Names are `tiny` (built in), those of `haaw models list`, and `hf:OWNER/NAME` after a pull.
    Errors: `BadInputError` when there is none, saying how to get one.
    """
    if not isinstance(model, str | os.PathLike):
        raise BadInputError(f"a model is named by a text or a path, not by {model!r:.60}")
    name = os.fspath(model)
    if name == DEFAULT_MODEL and (own := built_in()) is not None:
        return own
    # Only now: importing these took a tenth of the first load of the built-in model, which needs none of it.
    from weights_tools.catalog import CATALOG
    from weights_tools.pull import find_hub_model, find_model, installed_models

    if name == DEFAULT_MODEL:
        raise BadInputError(
            "the built-in model is missing from this installation; get another with "
            "`haaw models pull smollm2-135m` and name it with --model "
            f"(known names: {', '.join(CATALOG)}), or name a .gguf file"
        )
    if name in CATALOG or name.startswith("hf:"):
        found = find_model(name) if name in CATALOG else find_hub_model(name)
        if found is None:
            state = next((each.state for each in installed_models() if each.entry.name == name), "absent")
            if state == "changed":
                raise BadInputError(
                    f'the file of the model "{name}" is not the published one any more; get it again with: '
                    f"haaw models pull {name}"
                )
            raise BadInputError(f'the model "{name}" is not here yet; get it with: haaw models pull {name}')
        return _model_in(found) if found.is_dir() else found
    path = Path(name)
    try:
        if path.is_dir():
            return _model_in(path)
        if path.is_file():
            return path
        if path.exists():  # a pipe or a device could block for ever
            raise BadInputError(f"{path} is neither a file nor a folder")
    except OSError as error:
        raise BadInputError(f"{name[:80]!r} cannot be looked up: {error.strerror}") from error
    if path.suffix or os.sep in name:
        raise BadInputError(f"there is no file {name:.200}")
    near = get_close_matches(name, [DEFAULT_MODEL, *CATALOG], n=1, cutoff=0.6)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise BadInputError(
        f'there is no model or file named "{name:.80}"{meant} (`haaw models list` shows the names)'
    )


def built_in() -> Path | None:
    """The file of the model that comes with HAAW, where there is one."""
    packaged = files("haaw") / "data" / f"{DEFAULT_MODEL}.gguf"
    return packaged if isinstance(packaged, Path) and packaged.is_file() else None


def _model_in(folder: Path) -> Path:
    """The folder itself where it holds safetensors, else its only `.gguf` file."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise BadInputError(f"the folder {folder} cannot be read: {error.strerror}") from error
    if any(name in names for name in SAFETENSORS):
        return folder
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return folder / ggufs[0]
    if ggufs:
        some = ", ".join(ggufs[:5])
        raise BadInputError(f"the folder {folder} holds {len(ggufs)} .gguf files ({some}); name one of them")
    if pickles := [name for name in names if name.endswith((".pt", ".pth", ".ckpt", "model.bin"))]:
        raise BadInputError(
            f"the folder {folder} holds no safetensors, and {pickles[0]} may be a Python pickle, which HAAW "
            "never loads since it can run code; get the model as safetensors or GGUF"
        )
    raise BadInputError(
        f"the folder {folder} holds no model: neither model.safetensors (with config.json and a tokenizer) "
        "nor a .gguf file"
    )
