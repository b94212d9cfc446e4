"""`state.json`: what the writer of a run is doing, or why it stopped. For people: no decision reads it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from seeker.errors import RunDirectoryError, StorageError
from seeker.runs.directory import RunDirectory
from seeker.runs.files import read_json, write_json
from seeker.runs.lock import current_writer


@dataclass(frozen=True, slots=True)
class RunState:
    """One moment of a run.

    Example: ``RunState("failed", "LostStepError: step 7: 9 of 16 groups were lost …", 1760000000.1, 4711, "node7")``.
    """

    state: str  # running, completed, paused, failed, cancelled; read also: died, stopped
    reason: str
    time: float
    pid: int
    host: str


# Prefect's way to end the process of a flow run that was suspended; and of one that something else ended.
_WITHOUT_FAULT = {"Pause": "paused", "SystemExit": "died"}
_WORDS = {
    "KeyboardInterrupt": "interrupted (Ctrl-C)",
    "TerminationSignal": "its process was told to end: by a cancellation, or because its worker ended",  # Prefect's
}


@dataclass
class Ending:
    """How the writer will have ended when nothing goes wrong; a pause changes it."""

    state: str = "completed"
    reason: str = ""


@contextmanager
def telling_state(run: RunDirectory) -> Generator[Ending]:
    """Write down that the run is running, and how it ended: an interrupt or a termination cancels it."""
    ending = Ending()
    tell_state(run.root, "running", "")
    try:
        yield ending
    except BaseException as error:
        _tell_failure(run, error)
        raise
    tell_state(run.root, ending.state, ending.reason)


def tell_state(root: Path, state: str, reason: str) -> None:
    """Write down what became of the run at `root`; for its writer, or for one who knows why that is gone."""
    told = RunState(state, reason, round(time.time(), 3), os.getpid(), socket.gethostname())
    write_json(root / "state.json", asdict(told), within=root, durable=False)


def read_state(root: Path) -> RunState:
    """The state as told; ``died`` where it says running and nobody holds the run."""
    told = _read(root)
    writer = current_writer(root)
    if writer is not None:
        return RunState("running", "", writer.since, writer.pid, writer.host)
    if told is None:
        return RunState("stopped", "it left no word", 0.0, 0, "")
    if told.state == "running":
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told.time))
        why = f"process {told.pid} on {told.host}, started {since}, was killed or its machine went down"
        return RunState("died", why, told.time, told.pid, told.host)
    return told


def _tell_failure(run: RunDirectory, error: BaseException) -> None:
    state = "failed" if isinstance(error, Exception) else _WITHOUT_FAULT.get(type(error).__name__, "cancelled")
    try:
        tell_state(run.root, state, _why(error))
    except StorageError as refused:
        error.add_note(f"state.json could not be written either: {refused}")


def _why(error: BaseException) -> str:
    name = type(error).__name__
    first = str(error).strip().partition("\n")[0]
    return _WORDS.get(name) or (f"{name}: {first}" if first else name)


def _read(root: Path) -> RunState | None:
    try:
        return RunState(**read_json(root / "state.json"))
    except (RunDirectoryError, TypeError):
        return None
