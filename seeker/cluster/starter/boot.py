"""The executor's program: what Flame starts on a node. It serves the engine's Instance protocol and cannot fail.

Its source is the application's command (``python -c SOURCE``), so it needs nothing on the node but Python, grpc and
the SDK's stubs (without the SDK's own imports, most of a second). Entering a session only notes where its starter
lies; that is fetched and loaded beside, and every failure of it is the reply to a call.

Not `flamepy.runner.runpy`: a reply goes back as the task's output itself, with no object written, read and deleted.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import linecache
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

PACKAGE = "seeker_node"  # another name than Seeker's own, which the node may have in another version
INLINE_REPLY = b"SKR\x01"  # marks an output that is the reply itself
_FETCH_S = 10.0
_PAUSE_S = 0.3
_LEAVE_S = 0.3  # for a call that is in the way; then its process is ended under it
CALL_SOCKET = "SEEKER_CALL_SOCKET"  # the variable that names it, set by Seeker's own cluster
_FRAME, _REPLY = struct.Struct("!IIB"), 2
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class AwayError(Exception):
    """The object cache did not answer."""


class Session:
    """The session that this executor is bound to: its starter, once it is loaded."""

    def __init__(self, common_data: bytes) -> None:
        """`common_data`: JSON of the endpoint and key of an object that holds sources and setup."""
        self._common_data = common_data
        self._lock = threading.Lock()
        self._starter: Any = None

    def load_beside(self) -> None:
        threading.Thread(target=self._try_to_load, name="seeker-load", daemon=True).start()

    def reply(self, task_input: bytes) -> bytes:
        """A call's reply, whatever comes."""
        try:
            request = pickle.loads(task_input)
            reply = self._loaded(request).call(request)
        except BaseException as error:  # the executor must not fail, whatever happens
            text = f"the call could not be handed to the starter: {type(error).__name__}: {error}"
            reply = {"kind": "starter", "message": text}
        return INLINE_REPLY + pickle.dumps(reply)

    def leave(self) -> None:
        """End the service process, and all that it started."""
        host = getattr(self._starter, "host", None)
        if host is not None:
            host.end(_LEAVE_S)

    def _loaded(self, request: Any) -> Any:
        """The starter; tried again while the cache is away, for as long as the call may take."""
        end = time.monotonic() + min(float(request["seconds"]), 1e6)
        if not self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            raise TimeoutError("the starter could not be loaded within the call's deadline")
        try:
            while self._starter is None:
                try:
                    self._load()
                except AwayError:
                    if time.monotonic() > end - _PAUSE_S:
                        raise
                    time.sleep(_PAUSE_S)
            return self._starter
        finally:
            self._lock.release()

    def _try_to_load(self) -> None:
        with self._lock:
            try:
                if self._starter is None:
                    self._load()
            except Exception:  # the first call tries again, and reports it
                logging.warning("the starter is not loaded yet", exc_info=True)

    def _load(self) -> None:
        place = json.loads(self._common_data)
        content = json.loads(read_object(place["endpoint"], place["key"]))
        self._starter = load(content["sources"]).configured(content["setup"])()


def read_object(endpoint: str, key: str) -> bytes:
    """The base of an object in the cache."""
    flight: Any = importlib.import_module("pyarrow.flight")
    location, certificates = endpoint.replace("grpcs://", "grpc+tls://"), os.environ.get("FLAME_CA_FILE")
    options: dict[str, Any] = {}
    if certificates and location.startswith("grpc+tls://"):
        with open(certificates, "rb") as file:
            options["tls_root_certs"] = file.read()
    call = flight.FlightCallOptions(timeout=_FETCH_S)
    with flight.FlightClient(location, **options) as client:
        try:
            return client.do_get(flight.Ticket(f"{key}:0".encode()), call).read_all().column("data")[0].as_py()
        except KeyError:  # pyarrow's form of NOT_FOUND
            raise LookupError(f"object {key} is not in the cache {endpoint}") from None
        except Exception as error:
            raise AwayError(f"object cache {endpoint}: reading {key}: {str(error)[:200]}") from error


# -- modules of sources that travelled as text -------------------------------------------------------------------------


def load(sources: dict[str, str]) -> Any:
    """Execute each source as a module, in order; the last one.

    Example: ``load({"archive": "...", "starter.running": "...", "starter.starter": "..."})``.
    """
    module: Any = None
    for name, source in sources.items():
        package = f"{PACKAGE}.{name}".rpartition(".")[0]
        for parent in (PACKAGE, package):
            sys.modules.setdefault(parent, ModuleType(parent)).__path__ = []
        module = _execute(f"{PACKAGE}.{name}", package, source)
    return module


def _execute(name: str, package: str, source: str) -> ModuleType:
    module = ModuleType(name)
    path = f"<{name}>"
    module.__package__ = package
    module.__file__ = path
    sys.modules[name] = module
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)  # for tracebacks
    exec(compile(source, path, "exec"), module.__dict__)
    return module


# -- the protocol ------------------------------------------------------------------------------------------------------


def _stubs() -> tuple[Any, Any, Any]:
    """The SDK's generated modules; its own `__init__` is not executed."""
    spec = importlib.util.find_spec("flamepy")
    if spec is None:
        raise ImportError(f"flamepy is not installed in {sys.executable}; install flamepy==0.6.0")
    sys.modules["flamepy"] = importlib.util.module_from_spec(spec)
    try:
        names = ("types_pb2", "shim_pb2", "shim_pb2_grpc")
        types, _, grpc_stubs = [importlib.import_module(f"flamepy.proto.{name}") for name in names]
    finally:
        del sys.modules["flamepy"]  # a later `import flamepy` is a whole one
    return importlib.import_module("grpc"), types, grpc_stubs


def _serve(endpoint: str) -> Any:
    grpc, types, stubs = _stubs()
    bound = [Session(b"")]  # until one is entered

    class Instance(stubs.InstanceServicer):
        def OnSessionEnter(self, request: Any, context: Any) -> Any:
            bound[:] = [Session(request.common_data)]
            bound[0].load_beside()
            return types.Result(return_code=0)

        def OnTaskInvoke(self, request: Any, context: Any) -> Any:
            return types.TaskResult(return_code=0, output=bound[0].reply(request.input))

        def OnSessionLeave(self, request: Any, context: Any) -> Any:
            _leave(bound)
            return types.Result(return_code=0)

    # Its threads last: the kernel ends a service process with the thread that started it.
    server = grpc.server(ThreadPoolExecutor(4), options=_UNLIMITED)
    stubs.add_InstanceServicer_to_server(Instance(), server)
    server.add_insecure_port(f"unix://{endpoint}")
    if path := os.environ.pop(CALL_SOCKET, ""):
        _open_call_socket(path, bound)
    server.start()

    def end(signum: int, _: Any) -> None:
        _leave(bound)
        os._exit(128 + signum)

    signal.signal(signal.SIGTERM, end)
    return server


def _open_call_socket(path: str, bound: list[Session]) -> None:
    """Where Seeker's own cluster has calls done without gRPC, which costs ten times as much as one of them."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError:
        logging.exception("calls go over gRPC: %s cannot be opened", path)
        return
    listener.listen()
    threading.Thread(target=_answer_calls, args=(listener, bound), name="seeker-calls", daemon=True).start()


def _answer_calls(listener: socket.socket, bound: list[Session]) -> None:
    """For ever: the kernel ends a service process with the thread that started it."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as frames:
            try:
                while header := frames.read(_FRAME.size):
                    length, number, _ = _FRAME.unpack(header)
                    output = bound[0].reply(frames.read(length))
                    connection.sendall(_FRAME.pack(len(output), number, _REPLY) + output)
            except Exception:  # closed, the cluster ends this process
                logging.exception("the connection to the cluster broke")


def _leave(bound: list[Session]) -> None:
    for session in bound:
        try:
            session.leave()
        except Exception:
            logging.exception("the service process could not be ended")


def main() -> None:
    sys.path[:] = filter(None, sys.path)  # not the working directory
    logging.basicConfig(level=logging.WARNING)
    server = _serve(os.environ["FLAME_INSTANCE_ENDPOINT"])
    server.wait_for_termination()


if __name__ == "__main__":
    main()
