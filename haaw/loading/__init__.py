"""A file, a folder or a name becomes a language model: the one place that knows formats, tokenizers and families.

One file per kind: `gguf`, `folder` (Hugging Face), `llama2c`; `finding` turns a name into a path.
"""

from haaw.loading.by_kind import load
from haaw.loading.destination import Progress
from haaw.loading.finding import DEFAULT_MODEL, find

__all__ = ["DEFAULT_MODEL", "Progress", "find", "load"]
