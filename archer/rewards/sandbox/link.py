"""The link between a program's process and its examiner's: messages, and requests that may cross.

Both ends can ask the other to do something with an object of its own: call it, read an attribute, add. While
one waits for its answer it serves the requests of the other; so a program may call a function that the test
has given it. What a request may do is decided by the end that serves it. Lists and other values that can be
changed come back changed.
"""

import json
import socket
import struct
import threading
import time
from typing import Any

from archer.rewards.sandbox.values import Incoming, Outgoing, Row

MAX_MESSAGE_BYTES = 32 * 2**20


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


class Remote:
    """Base of what stands for an object of the other end."""

    __slots__ = ("_archer_link", "_archer_number")


class Link:
    """One end. What it lends to the other is known there by number."""

    arrays = True  # whether numpy's arrays arrive as such

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lent: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._lock = threading.RLock()  # a program may have threads

    # What an end decides for itself

    def perform(self, name: str, arguments: list[Any]) -> Any:
        """Do what the other end asks for."""
        raise NotImplementedError

    def stand_in(self, number: int, about: dict[str, Any]) -> Any:
        """Return what stands for the other end's object of this number."""
        raise NotImplementedError

    def describe(self, value: Any) -> dict[str, Any]:
        """Tell the other end about an object that is lent to it."""
        raise NotImplementedError

    def class_name(self, value: Any) -> str | None:
        """Return the name of the value's class if both ends have it."""
        raise NotImplementedError

    def class_of(self, name: str) -> type:
        """Return the class that both ends have under this name; KeyError for none."""
        raise NotImplementedError

    def raised(self, names: list[str], message: str) -> BaseException:
        """Return the exception that the other end tells of by the names of its class and their bases."""
        raise NotImplementedError

    def next_message(self) -> Any:
        """Receive a message; how long to wait is this end's affair."""
        return receive(self._channel)

    # The same for both

    def ask(self, name: str, *arguments: Any) -> Any:
        """Have the other end do something, and return what comes of it or raise what it raised."""
        outgoing = self._outgoing()
        mark = outgoing.add(list(arguments))
        with self._lock:
            self._send({"do": name, "value": mark, "rows": outgoing.rows})
            reply = self.next_message()
            while "do" in reply:
                self.serve(reply)
                reply = self.next_message()
        if "error" in reply:
            raise self.read_error(reply["error"])
        return self.read_value(reply, outgoing)

    def _send(self, message: dict[str, Any]) -> None:
        send(self._channel, message)

    def read_error(self, told: Any) -> BaseException:
        """Return the exception that a reply tells of."""
        names, message = told
        return self.raised([str(name) for name in names], str(message))

    def read_value(self, reply: dict[str, Any], sent: Outgoing) -> Any:
        """Return the value in a reply, after what was sent has become what the other end made of it."""
        incoming = self._incoming()
        incoming.objects = list(sent.objects)
        incoming.add(reply["rows"])
        for place, row in reply["changed"]:
            if row[0] != sent.rows[place][0]:
                raise ValueError(f"a {row[0]!r:.20} for a {sent.rows[place][0]}")
            self.before_change(incoming.objects[place])
            incoming.refill(incoming.objects[place], row)
        return incoming.value(reply["value"])

    def before_change(self, value: Any) -> None:
        """Note that a value of this end is about to be changed by the other."""

    def serve(self, request: dict[str, Any]) -> None:
        """Do what is asked for, and send what comes of it."""
        try:
            incoming = self._incoming()
            incoming.add(request["rows"])
            value = self.perform(request["do"], incoming.value(request["value"]))
            outgoing = self._outgoing()
            count = len(request["rows"])
            changed = outgoing.resume(incoming.objects, request["rows"])
            mark = outgoing.add(value)
            message = {"value": mark, "rows": outgoing.rows[count:], "changed": changed}
            self._send(message)
        except BaseException as error:
            if not self.may_tell(error):
                raise
            names = [kind.__name__ for kind in type(error).__mro__]
            self._send({"error": [names, _text(error)]})

    def may_tell(self, error: BaseException) -> bool:
        """Tell whether an exception is the other end's to know."""
        return isinstance(error, Exception)

    def lend(self, value: Any) -> int:
        """Give an object a number for the other end."""
        number = self._numbers.setdefault(id(value), len(self._lent))
        if number == len(self._lent):
            self._lent.append(value)
        return number

    def is_lent(self, value: Any) -> bool:
        """Tell whether the other end was given this object."""
        return id(value) in self._numbers

    def _outgoing(self) -> Outgoing:
        def refer(value: Any) -> Row:
            if isinstance(value, Remote):
                return ["yours", object.__getattribute__(value, "_archer_number")]
            return ["mine", self.lend(value), self.describe(value)]

        return Outgoing(refer, self.class_name)

    def _incoming(self) -> Incoming:
        def resolve(row: Row) -> Any:
            if row[0] == "yours":
                return self._lent[row[1]]
            if row[0] == "mine":
                return self.stand_in(int(row[1]), dict(row[2]))
            raise ValueError(f"unknown tag {row[0]!r:.50}")

        return Incoming(resolve, self.class_of, self.arrays)


def _text(error: BaseException) -> str:
    try:
        only = error.args[0] if len(error.args) == 1 else None
        return (only if isinstance(only, str) else str(error))[:500]
    except Exception:  # the text of an exception may be code of the program's
        return ""
