"""How the client's requests reach a cluster, and the errors that they come back with."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from seeker.errors import ClusterError, DeadlineError


class RefusedError(ClusterError):
    """The cluster refused a request, or could not be reached. `status` is the gRPC status name.

    `unsent`: it never left this process, so it can be sent again whatever it was.
    """

    def __init__(self, message: str, status: str, unsent: bool = False) -> None:
        self.status = status
        self.unsent = unsent
        super().__init__(message)


class Link(Protocol):
    """Used on the shared loop. Every request has a deadline, every failure is a `ClusterError`."""

    async def ask(self, method: str, message: Any, deadline_s: float) -> Any: ...
    def stream(self, method: str, message: Any, deadline_s: float) -> AsyncGenerator[Any]:
        """The messages of the reply; ended by `aclose` where they are not wanted any more."""
        ...

    async def close(self) -> None: ...


def typed_error(what: str, status: str, details: str, unsent: bool = False) -> ClusterError:
    """`what`: which request, and where."""
    text = f"{what}: {details}"
    return DeadlineError(text) if status == "DEADLINE_EXCEEDED" else RefusedError(text, status, unsent)
