"""Memory of another process, from Linux's /proc."""

import os
import threading
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SAMPLES_APART_S = 0.005


def peak_resident_bytes(pid: int) -> int:
    """The most memory that a process ever had in RAM, mapped files included (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def anonymous_bytes(pid: int) -> int:
    """Memory in RAM that belongs to no file: resident less shared pages."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * PAGE_BYTES


class AnonymousPeak:
    """Watches the anonymous memory of a process: the kernel keeps no peak of it, so it is sampled every 5 ms."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLES_APART_S):
            try:
                self.bytes = max(self.bytes, anonymous_bytes(self._pid))
            except OSError:
                return

    def restart(self) -> int:
        """The peak so far, in bytes; watching goes on from zero."""
        peak, self.bytes = self.bytes, 0
        return peak

    def stop(self) -> int:
        """Ends the watch; the peak since the last restart, in bytes."""
        self._ended.set()
        self._thread.join()
        return self.bytes
