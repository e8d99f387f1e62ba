"""HAAW: how an AI answer works. Real language models from scratch in NumPy, every step open to view.

Importing this package needs NumPy alone; everything else is imported where it is used.
"""

__version__ = "0.1.0"
