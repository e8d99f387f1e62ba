"""Models of the Hugging Face Hub, through `huggingface_hub` (extra `hub`), which is imported only when used.

Only weights without code are fetched: safetensors with the JSON and tokenizer files beside them, or one GGUF
file. A pickle (`.bin`, `.pt`, `.pth`) is never fetched. Files that are complete are not fetched again; within
one file, whether an interrupted transfer goes on depends on the library.
"""

import contextlib
import fnmatch
import importlib
import inspect
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haaw.errors import BadInputError, MissingLibraryError
from weights_tools.pull.cache import cache_folder, sha256_of
from weights_tools.pull.errors import Progress, PullError, megabytes, silent

WANTED = ("*.safetensors", "*.json", "tokenizer.model", "merges.txt", "vocab.txt", "*.jinja")
NOTE = ".haaw-pull.json"
# A repository name as the Hub allows it: letters, digits, '-', '_', '.', at most 96, no '--' and no '..'.
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_FILE = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._+-]{0,199}")


@dataclass(frozen=True)
class HubReference:
    """`hf:OWNER/NAME`, or one GGUF file of it: `hf:OWNER/NAME/FILE.gguf`."""

    owner: str
    name: str
    file: str | None = None

    @property
    def repository(self) -> str:
        """The repository as the Hub names it: `OWNER/NAME`."""
        return f"{self.owner}/{self.name}"


def parse_hub_reference(text: str) -> HubReference:
    """Read `hf:OWNER/NAME` or `hf:OWNER/NAME/[FOLDER/]FILE.gguf`; raise `BadInputError` for anything else."""
    owner, _, rest = text.removeprefix("hf:").partition("/")
    name, _, file = rest.partition("/")
    names_fit = _NAME.fullmatch(owner) is not None and _NAME.fullmatch(name) is not None
    file_fits = not file or (
        file.endswith(".gguf") and all(_FILE.fullmatch(step) for step in file.split("/"))
    )
    if not text.startswith("hf:") or not names_fit or not file_fits or text.endswith("/"):
        raise BadInputError(
            f"{text[:120]!r} does not name a model on the Hugging Face Hub; write hf:OWNER/NAME, or "
            "hf:OWNER/NAME/FILE.gguf for one GGUF file (letters, digits, '-', '_' and '.')."
        )
    return HubReference(owner, name, file or None)


def hub_folder(reference: HubReference, revision: str | None) -> Path:
    """Return the folder of a repository in HAAW's cache; a revision asked for by name has its own."""
    suffix = f"@{revision.replace('/', '-')}" if revision else ""
    return cache_folder() / "hub" / reference.owner / (reference.name + suffix)


def find_hub_model(text: str, *, revision: str | None = None) -> Path | None:
    """Return the folder (or GGUF file) of an earlier, complete pull without asking the network, else None."""
    reference = parse_hub_reference(text)
    folder = hub_folder(reference, _checked_revision(revision))
    target = folder / reference.file if reference.file else folder
    try:
        sizes = json.loads((folder / NOTE).read_text("utf-8"))["size_bytes_by_file"]
        wanted = (
            [reference.file] if reference.file else [name for name in sizes if not name.endswith(".gguf")]
        )
        whole = wanted and all((folder / name).stat().st_size == sizes[name] for name in wanted)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return target if whole else None


def pull_from_hub(
    text: str,
    *,
    revision: str | None = None,
    progress: Progress = silent,
    into: Path | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch `hf:OWNER/NAME` and return its folder, or the file of `hf:OWNER/NAME/FILE.gguf`.

    `endpoint` names another server than the library's own choice (`HF_ENDPOINT`). Every file is compared with
    the size, and where the Hub states it the SHA-256, of the commit that was asked for. Raises
    `BadInputError` for a bad reference, `MissingLibraryError` without the extra, `PullError` otherwise.
    """
    reference = parse_hub_reference(text)
    revision = _checked_revision(revision)
    library = _library()
    folder = into or hub_folder(reference, revision)
    progress(f"asking the Hub for {reference.repository}", 0, None)
    with _sentences(text, revision):
        info = library.HfApi(endpoint=endpoint).model_info(
            reference.repository, revision=revision, files_metadata=True
        )
    files = _chosen(text, reference, list(info.siblings or []))
    _room_for(files, folder)
    for number, file in enumerate(files, start=1):
        phase = f"downloading {file.rfilename} ({number} of {len(files)})"
        with _sentences(text, revision):
            library.hf_hub_download(
                reference.repository,
                file.rfilename,
                revision=info.sha,
                local_dir=folder,
                endpoint=endpoint,
                **_bar_into(library, progress, phase, file.size),
            )
        _check(file, folder / file.rfilename, progress)
    _remember(folder, text, info.sha, files)
    return folder / reference.file if reference.file else folder


def _library() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise MissingLibraryError(
            "Fetching from the Hugging Face Hub needs the library huggingface_hub: pip install 'haaw[hub]'."
        ) from error


def _checked_revision(revision: str | None) -> str | None:
    if revision is not None and not all(_FILE.fullmatch(step) for step in revision.split("/")):
        raise BadInputError(
            f"{revision[:80]!r} is not a revision; give a branch, a tag or a commit of the model."
        )
    return revision


def _chosen(text: str, reference: HubReference, siblings: list[Any]) -> list[Any]:
    """Return the files to fetch: of the names, which a server sent, only plain ones at the top level."""
    by_name = {file.rfilename: file for file in siblings}
    ggufs = [name for name in by_name if name.endswith(".gguf")]
    some = ", ".join(ggufs[:5])
    if reference.file:
        if reference.file not in by_name:
            raise PullError(
                f"{reference.repository} holds no {reference.file}; its GGUF files: {some or 'none'}."
            )
        return [by_name[reference.file]]
    plain = [name for name in by_name if _FILE.fullmatch(name)]
    wanted = [name for name in plain if any(fnmatch.fnmatchcase(name, pattern) for pattern in WANTED)]
    if not any(name.endswith(".safetensors") for name in wanted):
        instead = f" It has GGUF files: {text}/{ggufs[0]}." if ggufs else ""
        raise PullError(
            f"{reference.repository} holds no .safetensors file, and HAAW loads no pickle.{instead}"
        )
    if any(fnmatch.fnmatchcase(name, "model*.safetensors") for name in wanted):
        # Some repositories hold the same weights a second time under their maker's own names.
        wanted = [n for n in wanted if not n.endswith(".safetensors") or n.startswith("model")]
    return [by_name[name] for name in sorted(wanted)]


def _room_for(files: list[Any], folder: Path) -> None:
    needed_bytes = sum(file.size or 0 for file in files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise PullError(
            f"The model cannot be written to {folder} ({error.strerror}); set HAAW_CACHE to another folder."
        ) from error
    if needed_bytes > free_bytes:
        raise PullError(
            f"The model needs {megabytes(needed_bytes)} in {folder}, where {megabytes(free_bytes)} are free; "
            "make room, or set HAAW_CACHE to a folder with more."
        )


def _bar_into(library: Any, progress: Progress, phase: str, total_bytes: int | None) -> dict[str, Any]:
    """Return the argument that leads the library's own progress into ours, where its version takes one."""
    if "tqdm_class" not in inspect.signature(library.hf_hub_download).parameters:
        return {}
    done_bytes = 0

    class Reporter(importlib.import_module("tqdm").tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> None:
            nonlocal done_bytes
            done_bytes += int(n or 0)
            progress(phase, done_bytes, total_bytes)

    return {"tqdm_class": Reporter}


def _check(file: Any, path: Path, progress: Progress) -> None:
    """Compare a fetched file with the size, and for a large file the SHA-256, that the Hub states."""
    size_bytes = path.stat().st_size
    stated = getattr(file.lfs, "sha256", None)
    found = sha256_of(path, progress) if stated else None
    if found == stated and size_bytes == (file.size if file.size is not None else size_bytes):
        return
    path.unlink(missing_ok=True)
    raise PullError(
        f"{file.rfilename} has {size_bytes} bytes and SHA-256 {found} where the Hub states {file.size} and "
        f"{stated}; it was deleted: pull again to fetch it anew."
    )


def _remember(folder: Path, text: str, commit: str, files: list[Any]) -> None:
    """Note what was fetched, so that it is found again without the network; a GGUF adds to earlier ones."""
    sizes = {file.rfilename: (folder / file.rfilename).stat().st_size for file in files}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        sizes = {**json.loads((folder / NOTE).read_text("utf-8"))["size_bytes_by_file"], **sizes}
    temporary = folder / f"{NOTE}.{os.getpid()}"
    note = {"reference": text, "commit": commit, "size_bytes_by_file": sizes}
    temporary.write_text(json.dumps(note, indent=1), encoding="utf-8")
    os.replace(temporary, folder / NOTE)


@contextlib.contextmanager
def _sentences(text: str, revision: str | None) -> Iterator[None]:
    """Turn the library's errors into one sentence each."""
    try:
        yield
    except (
        Exception
    ) as error:  # the library lets its HTTP client's errors through, another one in each version
        raise PullError(_sentence(error, text, revision)) from error


def _sentence(error: Exception, text: str, revision: str | None) -> str:
    errors: Any = importlib.import_module("huggingface_hub.errors")
    # From the special to the general: the order matters, since these classes derive from one another.
    known = (
        (errors.GatedRepoError, "is gated: accept its terms on its page, then sign in (hf auth login)."),
        (
            errors.RepositoryNotFoundError,
            "was not found on the Hub; check the spelling, or sign in (hf auth login) if it is private.",
        ),
        (errors.RevisionNotFoundError, f"has no revision {revision!r}; leave it out for the newest."),
        (
            errors.OfflineModeIsEnabled,
            "was not asked for: HF_HUB_OFFLINE is set; unset it to use the network.",
        ),
        (
            errors.LocalEntryNotFoundError,
            "could not be fetched: the Hub cannot be reached; check the network.",
        ),
        (errors.EntryNotFoundError, "has lost a file that it lists; pull again."),
    )
    for kind, sentence in known:
        if isinstance(error, kind):
            return f"{text} {sentence}"
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", "an error")
        return f"{text} could not be fetched: the Hub answered {status}; try again later."
    first_line = (str(error).splitlines() or [""])[0][:200]
    return (
        f"{text} could not be fetched: {type(error).__name__}: {first_line}. What is complete is kept; "
        "check the network and pull again."
    )
