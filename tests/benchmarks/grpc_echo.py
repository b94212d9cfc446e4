"""The measure beside a call: a bare gRPC echo over a unix socket, in a process of its own.

With gRPC's blocking API, and with its asyncio API from a loop on another thread, as the cluster and its client use it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from seeker.cluster.loop import shared_loop

METHOD = "/bench/Echo"
Echo = Callable[[bytes], bytes]


class _Echo(grpc.GenericRpcHandler):
    """Answers any method with the bytes that it was sent."""

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


class _AsyncEcho(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:
        async def echo(request: bytes, context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(echo)


def serve(path: str) -> None:
    """Until stdin ends."""
    server = grpc.server(ThreadPoolExecutor(10), handlers=[_Echo()])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0)


async def serve_async(path: str) -> None:
    server = grpc.aio.server(handlers=[_AsyncEcho()])
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


@contextmanager
def _server(mode: str) -> Generator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = str(Path(folder) / "echo.sock")
        line = [sys.executable, "-m", "tests.benchmarks.grpc_echo", path, mode]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            server.stdout.readline()
            yield f"unix:{path}"
            server.stdin.close()


@contextmanager
def echo_server() -> Generator[Echo]:
    """A call of the blocking echo."""
    with _server("blocking") as address, grpc.insecure_channel(address) as channel:
        yield channel.unary_unary(METHOD)


@contextmanager
def async_echo_server() -> Generator[Echo]:
    """A call of the asyncio echo."""
    loop = shared_loop()

    async def connect(address: str) -> Any:
        return grpc.aio.insecure_channel(address)

    async def ask(echo: Any, data: bytes) -> bytes:
        return await echo(data)

    with _server("async") as address:
        channel = loop.wait(connect(address))
        echo = channel.unary_unary(METHOD)
        yield lambda data: loop.wait(ask(echo, data))
        loop.wait(channel.close())


if __name__ == "__main__":
    if sys.argv[2] == "async":
        asyncio.run(serve_async(sys.argv[1]))
    else:
        serve(sys.argv[1])
