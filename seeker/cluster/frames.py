"""Frames between processes of one machine, over a unix socket: what gRPC costs there is most of a short call.

The embedded cluster offers its methods to the driver that started it in this form, too, and has the calls of our
executors done in it; every other client and executor speaks gRPC with it. A frame is a header, of the payload's length,
the request's number and the frame's kind, and the payload.
"""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from typing import Any, cast

from google.protobuf.message_factory import GetMessageClass

from seeker.cluster import wire

HEADER = struct.Struct("!IIB")
REQUEST, MESSAGE, END, ERROR, CANCEL = range(5)
# REQUEST: the method's name, a zero byte and the message. Its answer is an END with the one message, or any number of
# MESSAGEs and an empty END; instead of END an ERROR: a gRPC status, a zero byte and the text. CANCEL: it is not wanted.


class Method:
    """One of the frontend's methods: the types of its messages, and whether it answers with many."""

    __slots__ = ("is_stream", "reply", "request")

    def __init__(self, descriptor: Any) -> None:
        self.request: Any = GetMessageClass(descriptor.input_type)
        self.reply: Any = GetMessageClass(descriptor.output_type)
        self.is_stream: bool = descriptor.server_streaming


METHODS = {each.name: Method(each) for each in wire.frontend.DESCRIPTOR.services_by_name["Frontend"].methods}


class FrameProtocol(asyncio.Protocol, ABC):
    """One end of a connection. Derived classes say what a frame means, and what the connection's end."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    @property
    def is_connected(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, number: int, kind: int, payload: bytes) -> None:
        """Nothing, where the connection has ended: `lost` tells of that."""
        if self._transport is not None:
            self._transport.write(HEADER.pack(len(payload), number, kind) + payload)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @abstractmethod
    def arrived(self, number: int, kind: int, payload: bytes) -> None:
        """A whole frame."""

    @abstractmethod
    def lost(self) -> None:
        """The connection has ended."""

    # -- what the event loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        begin = 0
        while len(received) >= begin + HEADER.size:
            length, number, kind = HEADER.unpack_from(received, begin)
            end = begin + HEADER.size + length
            if len(received) < end:
                break
            self.arrived(number, kind, bytes(received[begin + HEADER.size : end]))
            begin = end
        del received[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.lost()


def split_text(payload: bytes) -> tuple[str, bytes]:
    """``b"CreateTask\\0..."`` -> ``("CreateTask", b"...")``."""
    head, _, rest = payload.partition(b"\0")
    return head.decode(), rest
