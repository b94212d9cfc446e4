"""The process behind an executor: holds one service and runs its methods, one at a time.

Started by `starter.py` as ``python -m seeker.cluster.child FD PARENT``; it talks over the inherited socket and dies
with its parent. Everything that a service prints goes to the service's log.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from seeker.cluster.objects import FlightObjects, ServiceContext

INLINE_BYTES = 128 * 1024
TRACEBACK_CHARS = 16_000
_PARENT_POLL_S = 1.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    faulthandler.enable()
    channel = Connection(int(sys.argv[1]))
    _die_with(int(sys.argv[2]))
    setup = json.loads(channel.recv_bytes())
    try:
        service = _construct(setup)
    except BaseException as error:
        channel.send_bytes(pickle.dumps({**_report(error), "kind": "setup"}))
        raise
    channel.send_bytes(pickle.dumps({"kind": "ready"}))
    while True:
        try:
            method, arguments = pickle.loads(channel.recv_bytes())
        except EOFError:
            return
        channel.send_bytes(pickle.dumps(_answer(service, method, arguments)))


def _die_with(parent: int) -> None:
    """End when the executor ends: by signal where the kernel offers it, by looking every second elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch_parent, args=(parent,), name="parent-watch", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)


def _construct(setup: dict[str, Any]) -> Any:
    module, _, name = setup["target"].partition(":")
    service_class = getattr(importlib.import_module(module), name)
    objects = FlightObjects(setup["cache_endpoint"], os.environ.get("FLAME_CA_FILE"))
    context = ServiceContext(objects, setup["prefix"], setup["executor"], setup["set_up_count"])
    return service_class(setup["config"], context)


def _answer(service: Any, method: str, arguments: bytes) -> dict[str, Any]:
    try:
        if method.startswith("_") or not callable(getattr(service, method, None)):
            raise AttributeError(f"{type(service).__name__} has no public method {method!r}")
        args, kwargs = pickle.loads(arguments)
        value = pickle.dumps(getattr(service, method)(*args, **kwargs), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return _report(error)
    if len(value) > INLINE_BYTES:
        text = (
            f"{method} returned {len(value)} pickled bytes, above {INLINE_BYTES}: put an object and return its handle"
        )
        return {"kind": "payload", "message": text}
    return {"kind": "value", "value": value}


def _report(error: BaseException) -> dict[str, Any]:
    return {
        "kind": "raised",
        "type": type(error).__qualname__,
        "message": str(error),
        "traceback": traceback.format_exc()[-TRACEBACK_CHARS:],
    }


if __name__ == "__main__":
    main()
