"""Values as plain data between the process of a program and the process that examines it.

JSON whose objects are tags: `{"tuple": [...]}`. What arrives is data of known types and nothing else, so a
program cannot send an object with an equality of its own. Objects of other types stay where they are and
travel as a number.
"""

import json
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
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
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
    match tag:
        case "dict":
            return {decode(key, resolve): decode(item, resolve) for key, item in content}
        case "int":
            return int(content, 16)
        case "bytes":
            return bytes.fromhex(content)
        case "bytearray":
            return bytearray.fromhex(content)
        case "complex":
            return complex(*content)
        case "fraction":
            return Fraction(int(content[0], 16), int(content[1], 16))
        case "decimal":
            return Decimal(content)
        case "object":
            return resolve(int(content))
    raise ValueError(f"unknown tag {tag!r:.50}")


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
