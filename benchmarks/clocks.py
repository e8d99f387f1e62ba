"""The two clocks: wall time, and for a busy machine the processor time of one thread, which others hardly disturb."""

import time
from collections.abc import Callable
from typing import Any

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


def took_ms(clock: Callable[[], float], function: Callable[..., Any], *arguments: Any) -> float:
    """Milliseconds that one call took."""
    start_s = clock()
    function(*arguments)
    return 1e3 * (clock() - start_s)
