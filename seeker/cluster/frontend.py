"""The client's side of the Frontend: every request with a deadline, every failure typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seeker.cluster import grpc_link, wire
from seeker.cluster.frame_link import FrameLink
from seeker.cluster.link import Link, RefusedError
from seeker.cluster.loop import shared_loop

__all__ = ["REQUEST_DEADLINE_S", "FrontendClient", "RefusedError"]

REQUEST_DEADLINE_S = 30.0


class FrontendClient:
    """One link to a session manager. `ask` and `watch` on the shared loop, `request` and `close` elsewhere."""

    def __init__(
        self, endpoint: str, ca_file: str | None, connect_deadline_s: float, frames: str | None = None
    ) -> None:
        """`frames`: the socket at which the embedded cluster takes requests without gRPC."""
        self.endpoint = endpoint
        self._link: Link = shared_loop().wait(_connected(endpoint, ca_file, connect_deadline_s, frames))

    def close(self) -> None:
        shared_loop().wait(self._link.close())

    def request(self, method: str, message: Any, deadline_s: float = REQUEST_DEADLINE_S) -> Any:
        return shared_loop().wait(self.ask(method, message, deadline_s))

    async def ask(self, method: str, message: Any, deadline_s: float = REQUEST_DEADLINE_S) -> Any:
        return await self._link.ask(method, message, deadline_s)

    async def watch(self, session_id: str, task_id: str, deadline_s: float, on_running: Callable[[], object]) -> Any:
        """The call in its terminal state; None when the stream ends early."""
        request = wire.frontend.WatchTaskRequest(session_id=session_id, task_id=task_id)
        stream = self._link.stream("WatchTask", request, deadline_s)
        try:
            async for task in stream:
                if task.status.state in wire.TASK_TERMINAL:
                    return task
                if task.status.state == wire.TASK_RUNNING:
                    on_running()
        finally:
            await stream.aclose()
        return None


async def _connected(endpoint: str, ca_file: str | None, deadline_s: float, frames: str | None) -> Link:
    if frames is None:
        return await grpc_link.connect(endpoint, ca_file, deadline_s)
    link = FrameLink(frames)
    await link.connect()
    return link
