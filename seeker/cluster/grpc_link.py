"""The link to any cluster: gRPC, as its protocol has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import grpc

from seeker.cluster import wire
from seeker.cluster.link import typed_error
from seeker.errors import ClusterError, DeadlineError

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5000),  # how long one attempt may take, handshake included
    ("grpc.max_reconnect_backoff_ms", 2000),  # a session manager that restarts is found again within seconds
)


class GrpcLink:
    """One channel to a session manager."""

    def __init__(self, endpoint: str, channel: Any) -> None:
        self._endpoint = endpoint
        self._channel = channel
        self._stub = wire.frontend_grpc.FrontendStub(channel)

    async def ask(self, method: str, message: Any, deadline_s: float) -> Any:
        try:
            return await getattr(self._stub, method)(message, timeout=deadline_s)
        except grpc.RpcError as error:
            raise self._typed(method, error) from error
        except grpc.aio.UsageError as error:
            raise self._closed(method) from error

    async def stream(self, method: str, message: Any, deadline_s: float) -> AsyncGenerator[Any]:
        call: Any = None
        try:
            call = getattr(self._stub, method)(message, timeout=deadline_s)
            async for each in call:
                yield each
        except grpc.RpcError as error:
            raise self._typed(method, error) from error
        except grpc.aio.UsageError as error:
            raise self._closed(method) from error
        finally:
            if call is not None:
                call.cancel()

    async def close(self) -> None:
        await self._channel.close()

    def _typed(self, method: str, error: Any) -> ClusterError:
        details = error.details() or ""
        unsent = "failed to connect" in details
        return typed_error(f"{method} at {self._endpoint}", error.code().name, details, unsent)

    def _closed(self, method: str) -> ClusterError:
        return ClusterError(f"{method} at {self._endpoint}: this cluster was closed here")


async def connect(endpoint: str, ca_file: str | None, deadline_s: float) -> GrpcLink:
    parsed = urlparse(endpoint)
    if not parsed.hostname:
        raise ClusterError(f"cluster endpoint {endpoint!r}: expected http://HOST:PORT or https://HOST:PORT")
    host = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
    address = f"{host}:{parsed.port or 8080}"
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
            f"no cluster answered at {endpoint} within {deadline_s:g} s; start one there, name another by "
            "cluster.endpoint or FLAME_ENDPOINT, or name none to use the embedded cluster"
        ) from None
    return GrpcLink(endpoint, channel)
