"""A process that serves the protocol's Instance service and misbehaves on request; without the SDK it starts fast."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent import futures
from typing import Any

import grpc

from seeker.cluster import wire


class Instance(wire.shim_grpc.InstanceServicer):
    def OnSessionEnter(self, request: Any, context: Any) -> Any:
        data = request.common_data
        if data == b"die":
            os._exit(9)
        if data == b"hang":
            time.sleep(3600)
        if data == b"refuse":
            return wire.types.Result(return_code=1, message="cannot enter this session")
        return wire.types.Result(return_code=0)

    def OnTaskInvoke(self, request: Any, context: Any) -> Any:
        word, _, rest = request.input.decode().partition(" ")
        if word == "exit":
            os._exit(7)
        if word == "fail":
            return wire.types.TaskResult(return_code=1, message=rest)
        if word == "sleep":
            time.sleep(float(rest))
        if word == "stray":  # a process in a session of its own
            output = str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        elif word == "environ":
            output = os.environ.get(rest, "")
        else:
            output = str(os.getpid())
        return wire.types.TaskResult(return_code=0, output=output.encode())

    def OnSessionLeave(self, request: Any, context: Any) -> Any:
        return wire.types.Result(return_code=0)


def main() -> None:
    if sys.argv[1:] == ["exit"]:
        sys.exit(3)
    if sys.argv[1:] == ["deaf"]:
        time.sleep(3600)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    wire.shim_grpc.add_InstanceServicer_to_server(Instance(), server)
    server.add_insecure_port(f"unix://{os.environ['FLAME_INSTANCE_ENDPOINT']}")
    server.start()
    if sys.argv[1:] == ["short"]:
        time.sleep(0.2)
        os._exit(5)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
