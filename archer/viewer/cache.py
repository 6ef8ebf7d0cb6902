"""Keeps the last few steps in memory, within a bound: the server never holds a whole run."""

import threading
from collections import OrderedDict

from archer.viewer.runs import Library
from archer.viewer.steps import StepData, load_step

MAX_BYTES = 512 * 2**20
MAX_STEPS = 8


class StepCache:
    """Least recently used steps go first; the one just asked for always stays."""

    def __init__(self, library: Library, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> None:
        self._library = library
        self._max_bytes = max_bytes
        self._max_steps = max_steps
        self._held: OrderedDict[tuple[int, int, str], StepData] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory of the steps held."""
        return sum(data.nbytes for data in self._held.values())

    def get(self, run: int, step: int) -> StepData:
        """The step as it is on disk now."""
        source = self._library.run(run)
        with self._lock:  # one reader at a time: two requests for a step must not load it twice
            key = (run, step, source.version(step))
            data = self._held.get(key)
            if data is None:
                data = load_step(source, step)
                self._held[key] = data
            self._held.move_to_end(key)
            while len(self._held) > 1 and (
                len(self._held) > self._max_steps or self.nbytes > self._max_bytes
            ):
                self._held.popitem(last=False)
            return data
