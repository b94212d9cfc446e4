"""The link to the embedded cluster: the same requests as frames over a unix socket in its private directory."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from seeker.cluster import wire
from seeker.cluster.frames import CANCEL, END, ERROR, METHODS, REQUEST, FrameProtocol, split_text
from seeker.cluster.link import typed_error
from seeker.errors import ClusterError


class FrameLink:
    """A connection that is lost fails what is outstanding on it; the next request makes another."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._peer = _Peer()
        self._connecting = asyncio.Lock()
        self._closed = False

    async def connect(self) -> None:
        await self._connected("the connection")

    async def ask(self, method: str, message: Any, deadline_s: float) -> Any:
        exchange = await self._send(method, message, deadline_s)
        try:
            kind, payload = await exchange.next()
        finally:
            exchange.end()
        if kind == ERROR:
            raise self._typed(method, payload)
        return METHODS[method].reply.FromString(payload)

    async def stream(self, method: str, message: Any, deadline_s: float) -> AsyncGenerator[Any]:
        exchange = await self._send(method, message, deadline_s)
        try:
            while True:
                kind, payload = await exchange.next()
                if kind == END:
                    return
                if kind == ERROR:
                    raise self._typed(method, payload)
                yield METHODS[method].reply.FromString(payload)
        finally:
            exchange.end()

    async def close(self) -> None:
        self._closed = True
        self._peer.close()

    async def _send(self, method: str, message: Any, deadline_s: float) -> _Exchange:
        data: bytes = message.SerializeToString()
        if len(data) > wire.MESSAGE_LIMIT_BYTES:
            text = f"message too large: {len(data)} bytes, the limit is {wire.MESSAGE_LIMIT_BYTES}"
            raise typed_error(self._what(method), "RESOURCE_EXHAUSTED", text)
        peer = self._peer if self._peer.is_connected else await self._connected(self._what(method))
        return _Exchange(peer, method.encode() + b"\0" + data, deadline_s)

    async def _connected(self, what: str) -> _Peer:
        async with self._connecting:
            if self._closed:
                raise ClusterError(f"{what}: this cluster was closed here")
            if not self._peer.is_connected:
                try:
                    _, self._peer = await asyncio.get_running_loop().create_unix_connection(_Peer, self._path)
                except OSError as error:
                    text = f"failed to connect: {error}"
                    raise typed_error(what, "UNAVAILABLE", text, unsent=True) from error
            return self._peer

    def _what(self, method: str) -> str:
        return f"{method} at {self._path}"

    def _typed(self, method: str, payload: bytes) -> ClusterError:
        status, details = split_text(payload)
        return typed_error(self._what(method), status, details.decode())


class _Peer(FrameProtocol):
    """The cluster's end, and what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.exchanges: dict[int, _Exchange] = {}

    def arrived(self, number: int, kind: int, payload: bytes) -> None:
        exchange = self.exchanges.get(number)
        if exchange is not None:
            exchange.arrived(kind, payload)

    def lost(self) -> None:
        for exchange in list(self.exchanges.values()):
            exchange.arrived(ERROR, b"UNAVAILABLE\0the connection was closed")


class _Exchange:
    """One request, and what has come back for it."""

    def __init__(self, peer: _Peer, payload: bytes, deadline_s: float) -> None:
        self._peer = peer
        self._number = next(peer.numbers) & 0xFFFFFFFF
        self._deadline_s = deadline_s
        self._frames: deque[tuple[int, bytes]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_answered = False
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline_s), self._too_late)
        peer.exchanges[self._number] = self
        peer.send(self._number, REQUEST, payload)

    def arrived(self, kind: int, payload: bytes) -> None:
        self._is_answered = self._is_answered or kind in (END, ERROR)
        self._add(kind, payload)

    async def next(self) -> tuple[int, bytes]:
        if not self._frames:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._frames.popleft()

    def end(self) -> None:
        self._timer.cancel()
        self._peer.exchanges.pop(self._number, None)
        if not self._is_answered:
            self._peer.send(self._number, CANCEL, b"")

    def _too_late(self) -> None:
        self._add(ERROR, f"DEADLINE_EXCEEDED\0no answer within {self._deadline_s:g} s".encode())

    def _add(self, kind: int, payload: bytes) -> None:
        self._frames.append((kind, payload))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
