"""The worker's process: `python -m flows.serving.worker POOL`.

It works until its standard input ends. Then the flow runs that it has started are told to end, which closes their
cluster and leaves their run resumable, and the worker follows them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from flows.server import wait_for_end_of_input
from flows.serving.children import children_of, descendants, has_ended

FLOW_RUNS_WITHIN_S = 40.0  # a call that is being closed takes its time; then they are killed
WORKER_WITHIN_S = 15.0


def main() -> None:
    """Prefect's own worker command, with a thread that watches the standard input."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    from prefect.cli import app

    sys.argv = ["prefect", "worker", "start", "--pool", sys.argv[1], "--type", "process", "--name", "seeker"]
    app()


def _end_with_input() -> None:
    wait_for_end_of_input()
    end_flow_runs(os.getpid(), FLOW_RUNS_WITHIN_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(WORKER_WITHIN_S)
    os._exit(1)


def end_flow_runs(worker: int, within_s: float) -> None:
    """Terminate the flow runs, which are the worker's children; kill what is left of them after `within_s`."""
    tree = descendants(worker)
    for pid in children_of(worker):
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + within_s
    while not all(has_ended(pid) for pid in tree) and time.monotonic() < deadline:
        time.sleep(0.2)
    for pid in tree:
        if not has_ended(pid):
            _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it went by itself


if __name__ == "__main__":
    main()
