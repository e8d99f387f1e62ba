"""Where pulled models lie on this machine, and which of them are there and whole.

`CACHE/models/NAME/FILE.gguf` appears only after its digest was checked. Beside it `verified.json` keeps the
size and modification time it had then, so that finding a model need not read the whole file again.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

from weights_tools.catalog import CATALOG, CatalogEntry, entry_named
from weights_tools.pull.errors import Progress, silent

CHUNK_BYTES = 1 << 20

State = Literal["ready", "partial", "changed", "absent"]


class InstalledModel(NamedTuple):
    """A catalog entry, where its file is or would be, and how it stands.

    `ready`: whole and checked. `partial`: a pull was interrupted and can go on. `changed`: a file of that
    name is there but is not the published one; a pull replaces it. `absent`: nothing is there.
    """

    entry: CatalogEntry
    path: Path
    state: State


def cache_folder() -> Path:
    """Return the folder of pulled models: `$HAAW_CACHE`, else `$XDG_CACHE_HOME/haaw`, else `~/.cache/haaw`.

    A relative `XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification asks.
    """
    if own := os.environ.get("HAAW_CACHE"):
        return Path(own).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "haaw"


def model_folder(entry: CatalogEntry) -> Path:
    """Return the folder of one catalog model in the cache (it need not exist)."""
    return cache_folder() / "models" / entry.name


def work_folder(folder: Path, entry: CatalogEntry) -> Path:
    """Return the hidden folder beside the model file where an unfinished pull keeps its pieces."""
    return folder / f".{entry.file_name}.pull"


def installed_models() -> list[InstalledModel]:
    """Return every model of the catalog with its place in the cache and its state, in the catalog's order."""
    return [InstalledModel(entry, _path(entry), _state(entry)) for entry in CATALOG.values()]


def find_model(model: str | CatalogEntry) -> Path | None:
    """Return the checked file of a catalog model, or None where the cache lacks it or holds another.

    The digest is computed only where the file changed since it was last checked. Raises `BadInputError`
    for a name that the catalog does not have.
    """
    entry = model if isinstance(model, CatalogEntry) else entry_named(model)
    return _path(entry) if _is_verified(entry) else None


def sha256_of(path: Path, progress: Progress = silent) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits, reporting the phase `checking`."""
    digest = hashlib.sha256()
    total_bytes = path.stat().st_size
    done_bytes = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done_bytes += len(chunk)
            progress("checking", done_bytes, total_bytes)
    return digest.hexdigest()


def is_published_file(path: Path, entry: CatalogEntry, progress: Progress = silent) -> bool:
    """Say whether the file is there with the size and the digest of the catalog."""
    try:
        return path.stat().st_size == entry.size_bytes and sha256_of(path, progress) == entry.sha256
    except OSError:
        return False


def remember_verified(path: Path, entry: CatalogEntry) -> None:
    """Note beside a file that has just been checked what it looked like; a read-only folder goes without."""
    with contextlib.suppress(OSError):
        note = json.dumps(_look(path, entry))
        temporary = path.with_name(f"verified.json.{os.getpid()}")
        temporary.write_text(note, encoding="utf-8")
        os.replace(temporary, path.with_name("verified.json"))


def _path(entry: CatalogEntry) -> Path:
    return model_folder(entry) / entry.file_name


def _look(path: Path, entry: CatalogEntry) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": entry.sha256, "size_bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}


def _is_verified(entry: CatalogEntry) -> bool:
    path = _path(entry)
    try:
        if path.stat().st_size != entry.size_bytes:
            return False
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.with_name("verified.json").read_text("utf-8")) == _look(path, entry):
                return True
    except OSError:
        return False
    if not is_published_file(path, entry):
        return False
    remember_verified(path, entry)
    return True


def _state(entry: CatalogEntry) -> State:
    if _is_verified(entry):
        return "ready"
    if _path(entry).exists():
        return "changed"
    work = work_folder(model_folder(entry), entry)
    return "partial" if any(work.glob("*.whl*")) else "absent"
