"""Frames between starter and service process: eight bytes of length, then the payload.

The starter's end does not block: `wait` is called whenever nothing moves, and ends the wait by raising. So a service
process that is stopped, or that stops in the middle of a frame, never holds the starter.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable

MAX_FRAME_BYTES = 1 << 26  # values are 128 KiB at most, tracebacks less
_HEADER = struct.Struct("!Q")

Wait = Callable[[int], None]  # gets select.POLLIN or POLLOUT: what is waited for


class GarbageError(Exception):
    """What came over the channel is no frame."""


def _block(_: int) -> None:
    raise AssertionError("a blocking socket never says that it would block")


class Channel:
    """One end of the socket pair. Without `wait` its socket blocks."""

    def __init__(self, end: socket.socket, wait: Wait | None = None) -> None:
        end.setblocking(wait is None)
        self._socket = end
        self._wait = wait or _block

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, payload: bytes) -> None:
        view = memoryview(_HEADER.pack(len(payload)) + payload)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)

    def receive(self) -> bytearray:
        """The next frame; `EOFError` when the other end is closed."""
        (length,) = _HEADER.unpack(self._exactly(_HEADER.size))
        if length > MAX_FRAME_BYTES:
            raise GarbageError(f"a frame of {length} bytes was announced")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            try:
                received = self._socket.recv_into(view)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            if received == 0:
                raise EOFError("the other end of the channel is closed")
            view = view[received:]
        return data

    def close(self) -> None:
        self._socket.close()
