"""The process behind an executor: holds one service and runs its methods, one at a time.

Started by `starter/process.py` with the numbers of its parent, its channel and the files that it holds locked; it dies
with its parent (`leash.py`). Everything that a service prints goes to the service's log.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pickle
import socket
import sys
import traceback
from typing import Any

from seeker.cluster.objects import FlightObjects, GangMembership, ServiceContext
from seeker.cluster.starter.channel import Channel

INLINE_BYTES = 128 * 1024
TEXT_CHARS = 16_000


def main() -> None:
    faulthandler.enable()
    _, end, *held = map(int, sys.argv[1:])
    for descriptor in (end, *held):  # ours alone: what the service starts inherits neither channel nor locks
        os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=end))
    try:
        _serve(channel)
    except EOFError:
        return


def _serve(channel: Channel) -> None:
    setup = json.loads(channel.receive())
    try:
        context = _context(setup)
        service = _construct(setup, context)
    except BaseException as error:
        channel.send(pickle.dumps({**_report(error), "kind": "setup"}))
        raise
    channel.send(pickle.dumps({"kind": "ready"}))
    while True:
        method, arguments, gang = pickle.loads(channel.receive())
        if gang is not None:
            context.gang = GangMembership(**gang)
        channel.send(pickle.dumps(_answer(service, method, arguments), protocol=pickle.HIGHEST_PROTOCOL))


def _context(setup: dict[str, Any]) -> ServiceContext:
    objects = FlightObjects(setup["cache_endpoint"], os.environ.get("FLAME_CA_FILE"))
    return ServiceContext(objects, setup["prefix"], setup["executor"], setup["set_up_count"])


def _construct(setup: dict[str, Any], context: ServiceContext) -> Any:
    module, _, name = setup["target"].partition(":")
    service_class = getattr(importlib.import_module(module), name)
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
        "message": _text(error)[:TEXT_CHARS],
        "traceback": traceback.format_exc()[-TEXT_CHARS:],
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # an error whose own text fails is still reported
        return f"({type(error).__name__} without a text: {second!r})"


if __name__ == "__main__":
    main()
