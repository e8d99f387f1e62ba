"""The `.haaw` file: one ZIP of stored, aligned members that grows while a run goes.

Knows bytes and .npy arrays, nothing of events. `ContainerWriter` appends, `Container` reads from the local headers
(so growing and cut files open), `repair` writes the central directory for a cut file. A closed or repaired file opens
with `zipfile`, `numpy.load` and any other ZIP program.
"""

from haaw.tracing.container_format import TraceDamagedError
from haaw.tracing.container_reader import Container, Cut, Damage, Member
from haaw.tracing.container_repair import RepairReport, repair
from haaw.tracing.container_writer import ContainerWriter

__all__ = [
    "Container",
    "ContainerWriter",
    "Cut",
    "Damage",
    "Member",
    "RepairReport",
    "TraceDamagedError",
    "repair",
]
