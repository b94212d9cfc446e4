"""The Frontend for the driver that started the embedded cluster: its methods as frames over a unix socket."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

from seeker.cluster import wire
from seeker.cluster.frames import END, ERROR, MESSAGE, METHODS, REQUEST, FrameProtocol, split_text

_log = logging.getLogger("seeker.cluster.local")


class FrameServer:
    """Serves a servicer of the Frontend at a path in a private directory."""

    def __init__(self, frontend: Any, path: str) -> None:
        self._frontend = frontend
        self._path = path
        self._connections: set[_Connection] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self._frontend, self._connections), self._path)

    def stop(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.close()


class _AbortError(Exception):
    def __init__(self, status: str, details: str) -> None:
        self.status = status
        super().__init__(details)


class _Context:
    """What a method needs of gRPC's."""

    async def abort(self, code: Any, details: str) -> NoReturn:
        raise _AbortError(code.name, details)


class _Connection(FrameProtocol):
    """A driver; each of its requests is a task."""

    def __init__(self, frontend: Any, connections: set[_Connection]) -> None:
        super().__init__()
        self._frontend = frontend
        self._connections = connections
        self._requests: dict[int, asyncio.Task[None]] = {}
        connections.add(self)

    def arrived(self, number: int, kind: int, payload: bytes) -> None:
        if kind == REQUEST:
            request = asyncio.get_running_loop().create_task(self._serve(number, *split_text(payload)))
            self._requests[number] = request
        elif number in self._requests:
            self._requests.pop(number).cancel()

    def lost(self) -> None:
        self._connections.discard(self)
        for request in self._requests.values():
            request.cancel()

    async def _serve(self, number: int, name: str, data: bytes) -> None:
        try:
            await self._answer(number, name, data)
        except _AbortError as error:
            self._fail(number, error.status, str(error))
        except Exception as error:
            _log.exception("the frontend's %s failed", name)
            self._fail(number, "UNKNOWN", f"{type(error).__name__}: {error}")
        finally:
            self._requests.pop(number, None)

    async def _answer(self, number: int, name: str, data: bytes) -> None:
        method = METHODS[name]
        work = getattr(self._frontend, name)(method.request.FromString(data), _Context())
        if not method.is_stream:
            self._send(number, END, await work)
            return
        async for message in work:
            self._send(number, MESSAGE, message)
        self.send(number, END, b"")

    def _send(self, number: int, kind: int, message: Any) -> None:
        data: bytes = message.SerializeToString()
        if len(data) > wire.MESSAGE_LIMIT_BYTES:
            text = f"reply too large: {len(data)} bytes, the limit is {wire.MESSAGE_LIMIT_BYTES}"
            raise _AbortError("RESOURCE_EXHAUSTED", text)
        self.send(number, kind, data)

    def _fail(self, number: int, status: str, text: str) -> None:
        self.send(number, ERROR, f"{status}\0{text}".encode())
