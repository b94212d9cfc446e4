"""A small TCP relay in front of a cluster, which drops its connections when a test says so."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from urllib.parse import urlparse


class Relay:
    """A context manager; `endpoint` stands for the cluster's own."""

    def __init__(self, endpoint: str) -> None:
        parsed = urlparse(endpoint)
        self._target = (parsed.hostname, parsed.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._refused_until = 0.0
        self.num_dropped = 0

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """Every connection ends now; new ones are taken."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            self.num_dropped += 1

    def pause(self, seconds: float) -> None:
        """No connection for a while, as with a server that restarts."""
        self._refused_until = time.monotonic() + seconds
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._refused_until:
                near.close()
                continue
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
