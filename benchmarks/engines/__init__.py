"""One file per engine; `child.py` measures them all in the same way."""
