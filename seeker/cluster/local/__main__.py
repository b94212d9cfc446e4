"""``python -m seeker.cluster.local``: the embedded cluster as a process of its own.

It prints one line of JSON (endpoints, pid, directories) when it is ready, and ends when its stdin ends or its parent is
gone, so that it never outlives the program that started it. (Not by a death signal: the kernel sends that when the
thread that started us ends, and flows start clusters from threads.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from seeker.cluster.local.options import LOOPBACK, LocalSettings, check_settings
from seeker.cluster.local.reaper import start_time
from seeker.cluster.local.server import LocalCluster
from seeker.cluster.resources import parse_resources
from seeker.errors import ConfigError

_PARENT_POLL_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(prog="seeker.cluster.local", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the executors")
    parser.add_argument("--slots", type=int, default=16, help="capacity of the node in cores, whatever the machine has")
    parser.add_argument("--memory", type=_num_bytes, help="capacity of the node, as in 8g (default: the machine's)")
    parser.add_argument("--gpus", type=int, help="capacity of the node (default: the machine's)")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on; only this machine's own is allowed")
    parser.add_argument("--spill-dir", type=Path, help="where objects go that are above --object-memory")
    parser.add_argument("--object-memory", type=_num_bytes, help="bytes of objects held in memory; needs --spill-dir")
    parser.add_argument("--faults", choices=("none", "engine"), default="none", help="engine: faults of real servers")
    parser.add_argument("--grpc-only", action="store_true", help="no frames over unix sockets: calls go by gRPC")
    parser.add_argument("--log-dir", type=Path, help="where executors' logs go; a private directory when absent")
    parser.add_argument("--socket-deadline", type=float, default=30.0, help="seconds for a process to open its socket")
    parser.add_argument("--serve", action="store_true", help="run until a signal instead of until stdin ends")
    parser.add_argument("--state-file", type=Path, help="with --serve's manners: a description to keep while it runs")
    parser.add_argument("--lock", type=int, help="descriptor of a lock to hold while it runs")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    settings = LocalSettings(
        python=os.path.abspath(options.python),
        slots=options.slots,
        memory_bytes=options.memory,
        gpus=options.gpus,
        host=options.host,
        spill_dir=options.spill_dir,
        object_memory_bytes=options.object_memory,
        faults=options.faults,
        grpc_only=options.grpc_only,
        log_dir=options.log_dir,
        socket_deadline_s=options.socket_deadline,
    )
    if options.lock is not None:
        os.set_inheritable(options.lock, False)  # ours alone: an executor must not hold it
    try:
        check_settings(settings)
        asyncio.run(_serve(settings, not (options.serve or options.state_file), options.state_file))
    except ConfigError as error:
        sys.exit(str(error))


def _num_bytes(text: str) -> int:
    try:
        return parse_resources(f"mem={text}").memory_bytes
    except ConfigError:
        raise argparse.ArgumentTypeError(f"expected bytes, for example 8g or 512m, found {text!r}") from None


async def _serve(settings: LocalSettings, tied_to_parent: bool, state_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    async with LocalCluster(settings) as cluster:
        print(json.dumps(cluster.describe()), flush=True)
        if state_file is not None:
            _write_state(state_file, cluster.describe())
        if tied_to_parent:
            loop.add_reader(sys.stdin.fileno(), _stdin_moved, stop)
            await _stopped_or_orphaned(stop, os.getppid())
        else:
            await stop.wait()


def _write_state(path: Path, description: dict[str, Any]) -> None:
    facts = {**description, "pid_started": start_time(os.getpid()), "host": socket.gethostname()}
    staged = path.with_name(f"{path.name}.new")
    staged.write_text(json.dumps(facts, indent=2))
    staged.replace(path)


def _stdin_moved(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


async def _stopped_or_orphaned(stop: asyncio.Event, parent: int) -> None:
    while os.getppid() == parent:
        try:
            await asyncio.wait_for(stop.wait(), timeout=_PARENT_POLL_S)
        except TimeoutError:
            continue
        return


if __name__ == "__main__":
    main()
