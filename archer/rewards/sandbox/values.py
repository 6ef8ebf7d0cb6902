"""Values as plain data between a program's process and its examiner's, and when two of them agree.

JSON whose objects are tags: `{"tuple": [...]}`. What arrives is data of known types and nothing else, so a
program cannot send an object with an equality of its own. Objects of other types stay where they are and
travel as a number.
"""

import json
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_MESSAGE_BYTES = 32 * 2**20
_LARGEST_PLAIN_INT = 2**1000  # far below the number of digits that Python converts to text
TOLERANCE = 1e-6
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_LEAVES: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "fraction": lambda parts: Fraction(int(parts[0], 16), int(parts[1], 16)),
    "decimal": Decimal,
}
_BASES: tuple[type[Any], ...] = (int, float, str, list, tuple, dict, set, frozenset, deque, bytes, bytearray)


def encode(value: Any, refer: Callable[[Any], int]) -> Any:
    """Return JSON data for a value. `refer` gives the number of an object that cannot be sent."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < _LARGEST_PLAIN_INT else {"int": hex(value)}
    if kind is list:
        return [encode(item, refer) for item in value]
    if kind is dict:
        return {"dict": [[encode(key, refer), encode(item, refer)] for key, item in value.items()]}
    if kind.__name__ in _CONTAINERS and kind in _CONTAINERS.values():
        return {kind.__name__: [encode(item, refer) for item in value]}
    if kind in (bytes, bytearray):
        return {kind.__name__: value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is Fraction:
        return {"fraction": [hex(value.numerator), hex(value.denominator)]}
    if kind is Decimal:
        return {"decimal": str(value)}
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), refer)
    for base in _BASES:  # a Counter is sent as a dict, a named tuple as a tuple, an IntEnum as an int
        if isinstance(value, base):
            return encode(base(value), refer)
    return {"object": refer(value)}


def decode(data: Any, resolve: Callable[[int], Any]) -> Any:
    """Return the value that `encode` was given; `resolve` gives what stands for a numbered object."""
    if isinstance(data, list):
        return [decode(item, resolve) for item in data]
    if not isinstance(data, dict):
        return data
    ((tag, content),) = data.items()
    if tag in _CONTAINERS:
        return _CONTAINERS[tag]([decode(item, resolve) for item in content])
    if tag == "dict":
        return {decode(key, resolve): decode(item, resolve) for key, item in content}
    if tag == "object":
        return resolve(int(content))
    if tag not in _LEAVES:
        raise ValueError(f"unknown tag {tag!r:.50}")
    return _LEAVES[tag](content)


def send(channel: socket.socket, message: Any) -> None:
    """Send one message; it is JSON data."""
    payload = json.dumps(message).encode()
    if len(payload) > MAX_MESSAGE_BYTES:
        raise ValueError(f"a value of {len(payload)} bytes is too large to be sent")
    channel.sendall(struct.pack("!I", len(payload)) + payload)


def receive(channel: socket.socket, timeout_s: float | None = None) -> Any:
    """Return the next message. EOFError when the other side is gone, TimeoutError when it is late."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    (length,) = struct.unpack("!I", _receive_exactly(channel, 4, deadline))
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes is too large")
    return json.loads(_receive_exactly(channel, length, deadline))


def _receive_exactly(channel: socket.socket, count: int, deadline: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        if deadline is not None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            channel.settimeout(remaining)
        part = channel.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def numbers_agree(value: float, expected: float) -> bool:
    """Compare with a tolerance of 1e-6, absolute below 1 and relative above; NaN and infinities exactly."""
    if math.isfinite(value) and math.isfinite(expected):
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return value == expected or (math.isnan(value) and math.isnan(expected))


def values_agree(value: Any, expected: Any) -> bool:
    """Compare a program's value with one that was read from JSON.

    JSON has neither tuples nor keys that are no strings, so a tuple may stand for a list, and a key agrees
    with its text. Where a float is expected, numbers agree within a tolerance; everywhere else exactly.
    """
    if isinstance(expected, list):
        return (
            isinstance(value, list | tuple)
            and len(value) == len(expected)
            and all(map(values_agree, value, expected))
        )
    if isinstance(expected, dict):
        if not isinstance(value, dict) or len(value) != len(expected):
            return False
        texts = {key if isinstance(key, str) else str(key): item for key, item in value.items()}
        return texts.keys() == expected.keys() and all(
            values_agree(texts[key], item) for key, item in expected.items()
        )
    if isinstance(expected, float) and isinstance(value, int | float):
        try:
            return numbers_agree(float(value), expected)
        except OverflowError:  # an integer beyond all floats
            return False
    return value == expected
