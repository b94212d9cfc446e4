"""flamepy 0.6.0's generated protobuf stubs, loaded without the rest of flamepy.

`import flamepy` costs half a second (fastapi, requests, ...), of which neither the embedded cluster nor our client
needs anything. The stubs ship without type hints, so they are named here once, as `Any`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from seeker.errors import ClusterError

MESSAGE_LIMIT_BYTES = 4 * 1024 * 1024  # the servers' gRPC decode limit
BIND_FAILED, BIND_GIVEN_UP = 1001, 1002  # codes of session events

SESSION_OPEN, SESSION_CLOSED = 0, 1
TASK_PENDING, TASK_RUNNING, TASK_SUCCEED, TASK_FAILED, TASK_CANCELLED = range(5)
TASK_TERMINAL = (TASK_SUCCEED, TASK_FAILED, TASK_CANCELLED)
EXECUTOR_IDLE, EXECUTOR_BINDING, EXECUTOR_BOUND, EXECUTOR_UNBINDING, EXECUTOR_RELEASING = range(2, 7)
EXECUTOR_STATES = ("Unknown", "Void", "Idle", "Binding", "Bound", "Unbinding", "Releasing", "Released")
NODE_READY = 1


def _load_stubs() -> tuple[Any, Any, Any, Any, Any]:
    names = ("types_pb2", "frontend_pb2", "frontend_pb2_grpc", "shim_pb2", "shim_pb2_grpc")
    bare = "flamepy" not in sys.modules
    if bare:
        spec = importlib.util.find_spec("flamepy")
        if spec is None:
            raise ClusterError(f"flamepy is not installed in {sys.executable}; install flamepy==0.6.0")
        sys.modules["flamepy"] = importlib.util.module_from_spec(spec)  # its __init__ is not executed
    try:
        modules = [importlib.import_module(f"flamepy.proto.{name}") for name in names]
    finally:
        if bare:
            del sys.modules["flamepy"]  # a later `import flamepy` is a whole one
    return modules[0], modules[1], modules[2], modules[3], modules[4]


types, frontend, frontend_grpc, shim, shim_grpc = _load_stubs()
