"""The client's side of the Frontend: every request with a deadline, every failure typed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import grpc

from seeker.cluster import wire
from seeker.cluster.loop import shared_loop
from seeker.errors import ClusterError, DeadlineError

REQUEST_DEADLINE_S = 30.0
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long one attempt may take, handshake included
    ("grpc.max_reconnect_backoff_ms", 2000),  # a session manager that restarts is found again within seconds
)


class RefusedError(ClusterError):
    """The cluster refused a request, or could not be reached. `status` is the gRPC status name.

    `unsent`: it never left this process, so it can be sent again whatever it was.
    """

    def __init__(self, message: str, status: str, unsent: bool = False) -> None:
        self.status = status
        self.unsent = unsent
        super().__init__(message)


class FrontendClient:
    """One channel to a session manager. `ask` and `watch` on the shared loop, `request` and `close` elsewhere."""

    def __init__(self, endpoint: str, ca_file: str | None, connect_deadline_s: float) -> None:
        self.endpoint = endpoint
        self._channel, self._stub = shared_loop().wait(self._connect(ca_file, connect_deadline_s))

    def close(self) -> None:
        shared_loop().wait(self._channel.close())

    def request(self, method: str, message: Any, deadline_s: float = REQUEST_DEADLINE_S) -> Any:
        return shared_loop().wait(self.ask(method, message, deadline_s))

    async def ask(self, method: str, message: Any, deadline_s: float = REQUEST_DEADLINE_S) -> Any:
        try:
            return await getattr(self._stub, method)(message, timeout=deadline_s)
        except grpc.RpcError as error:
            raise self._typed(method, error) from error
        except grpc.aio.UsageError as error:
            raise ClusterError(f"{method} at {self.endpoint}: this cluster was closed here") from error

    async def watch(self, session_id: str, task_id: str, deadline_s: float, on_running: Callable[[], object]) -> Any:
        """The call in its terminal state; None when the stream ends early."""
        request = wire.frontend.WatchTaskRequest(session_id=session_id, task_id=task_id)
        stream: Any = None
        try:
            stream = self._stub.WatchTask(request, timeout=deadline_s)
            async for task in stream:
                if task.status.state in wire.TASK_TERMINAL:
                    return task
                if task.status.state == wire.TASK_RUNNING:
                    on_running()
        except grpc.RpcError as error:
            raise self._typed("WatchTask", error) from error
        except grpc.aio.UsageError as error:
            raise ClusterError(f"WatchTask at {self.endpoint}: this cluster was closed here") from error
        finally:
            if stream is not None:
                stream.cancel()
        return None

    async def _connect(self, ca_file: str | None, deadline_s: float) -> tuple[Any, Any]:
        parsed = urlparse(self.endpoint)
        if not parsed.hostname:
            raise ClusterError(f"cluster endpoint {self.endpoint!r}: expected http://HOST:PORT or https://HOST:PORT")
        address = f"{parsed.hostname}:{parsed.port or 8080}"
        if parsed.scheme == "https":
            certificates = Path(ca_file).read_bytes() if ca_file else None
            credentials = grpc.ssl_channel_credentials(certificates)
            channel: Any = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        else:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        try:
            await asyncio.wait_for(channel.channel_ready(), deadline_s)
        except TimeoutError:
            await channel.close()
            raise DeadlineError(
                f"no cluster answered at {self.endpoint} within {deadline_s:g} s; start one there, name another by "
                "cluster.endpoint or FLAME_ENDPOINT, or name none to use the embedded cluster"
            ) from None
        return channel, wire.frontend_grpc.FrontendStub(channel)

    def _typed(self, method: str, error: Any) -> ClusterError:
        details = error.details() or ""
        text = f"{method} at {self.endpoint}: {details}"
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(text)
        return RefusedError(text, error.code().name, unsent="failed to connect" in details)
