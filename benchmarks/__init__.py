"""How fast HAAW is, where its time goes, and what tracing costs when it is off: `python -m benchmarks`.

Not part of the installed package. Engines run in processes of their own, so that memory and threads are clean.
"""
