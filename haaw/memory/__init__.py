"""The memory of a model at work: arithmetic, a simulation of many requests, and a measurement beside the plan.

`CacheShape` and `Plan` hold the numbers, `numbers_from_config` reads them from a model's config, `PRESETS` has
some of real models; `simulate_contiguous` and `simulate_paged` send requests through one memory; `measure`
compares a plan with what the process took. Knows nothing of files, requests or the command line.
"""

from haaw.memory.arithmetic import KINDS, Figure, KindMemory, bytes_per_token, kind_memory, needed_bytes
from haaw.memory.config_reader import ModelNumbers
from haaw.memory.configs import numbers_from_config
from haaw.memory.gguf import numbers_from_gguf
from haaw.memory.outcome import Outcome
from haaw.memory.plan import Plan
from haaw.memory.presets import PRESETS, Preset
from haaw.memory.shape import CacheShape
from haaw.memory.simulation import simulate_contiguous, simulate_paged
from haaw.memory.workload import Request, random_requests, read_requests

__all__ = [
    "KINDS",
    "PRESETS",
    "CacheShape",
    "Figure",
    "KindMemory",
    "ModelNumbers",
    "Outcome",
    "Plan",
    "Preset",
    "Request",
    "bytes_per_token",
    "kind_memory",
    "needed_bytes",
    "numbers_from_config",
    "numbers_from_gguf",
    "random_requests",
    "read_requests",
    "simulate_contiguous",
    "simulate_paged",
]
