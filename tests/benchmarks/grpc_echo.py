"""The measure beside a call: a bare gRPC echo over a unix socket, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

METHOD = "Echo"


class _Echo(grpc.GenericRpcHandler):
    """Answers any method with the bytes that it was sent."""

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def serve(path: str) -> None:
    """Until stdin ends."""
    server = grpc.server(ThreadPoolExecutor(10), handlers=[_Echo()])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop(0)


@contextmanager
def echo_server() -> Generator[Callable[[bytes], bytes]]:
    """A call of the echo."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = str(Path(folder) / "echo.sock")
        line = [sys.executable, "-m", "tests.benchmarks.grpc_echo", path]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            server.stdout.readline()
            with grpc.insecure_channel(f"unix:{path}") as channel:
                yield channel.unary_unary("/bench/Echo")
            server.stdin.close()


if __name__ == "__main__":
    serve(sys.argv[1])
