"""SIGINT and SIGTERM: finish the step, save, close. A second one ends at once."""

import os
import signal
from types import FrameType


class StopRequest:
    """Notes a request to stop while it is active; restores the previous handlers afterwards."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in self.SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def listen(self) -> None:
        """Take the signals again, after a library (Ray) has taken them for itself."""
        for number in self.SIGNALS:
            signal.signal(number, self._note)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        os.write(2, b"\nStopping after this step. Once more ends at once, without saving.\n")
