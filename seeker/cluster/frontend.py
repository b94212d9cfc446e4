"""The client's side of the Frontend: every request with a deadline, every failure typed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import grpc

from seeker.cluster import wire
from seeker.errors import ClusterError, DeadlineError

REQUEST_DEADLINE_S = 30.0


class RefusedError(ClusterError):
    """The cluster refused a request. `status` is the gRPC status name."""

    def __init__(self, message: str, status: str) -> None:
        self.status = status
        super().__init__(message)


class FrontendClient:
    """One channel to a session manager. Safe to use from several threads."""

    def __init__(self, endpoint: str, ca_file: str | None, connect_deadline_s: float) -> None:
        self.endpoint = endpoint
        parsed = urlparse(endpoint)
        if not parsed.hostname:
            raise ClusterError(f"cluster endpoint {endpoint!r}: expected http://HOST:PORT or https://HOST:PORT")
        address = f"{parsed.hostname}:{parsed.port or 8080}"
        if parsed.scheme == "https":
            certificates = Path(ca_file).read_bytes() if ca_file else None
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(certificates))
        else:
            self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._stub = wire.frontend_grpc.FrontendStub(self._channel)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=connect_deadline_s)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise DeadlineError(
                f"no cluster answered at {endpoint} within {connect_deadline_s:g} s; start one there, name another by "
                "cluster.endpoint or FLAME_ENDPOINT, or name none to use the embedded cluster"
            ) from None

    def close(self) -> None:
        self._channel.close()

    def request(self, method: str, message: Any, deadline_s: float = REQUEST_DEADLINE_S) -> Any:
        try:
            return getattr(self._stub, method)(message, timeout=deadline_s)
        except grpc.RpcError as error:
            raise self._typed(method, error) from error

    def watch(self, session_id: str, task_id: str, deadline_s: float) -> Any:
        """The stream of a call's states; iterate it through `states`, cancel it with its `cancel`."""
        request = wire.frontend.WatchTaskRequest(session_id=session_id, task_id=task_id)
        return self._stub.WatchTask(request, timeout=deadline_s)

    def states(self, stream: Any) -> Iterator[Any]:
        try:
            yield from stream
        except grpc.RpcError as error:
            raise self._typed("WatchTask", error) from error

    def _typed(self, method: str, error: Any) -> ClusterError:
        text = f"{method} at {self.endpoint}: {error.details()}"
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError(text)
        return RefusedError(text, error.code().name)
