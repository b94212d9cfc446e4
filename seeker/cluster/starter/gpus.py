"""Which GPUs a service process gets on a node whose cluster counts devices but assigns none.

Nor does an assignment of more than the service asks for tell which: the engine's executor manager hands its own
`CUDA_VISIBLE_DEVICES` to all its executors, which have to share out what that names.

A device is taken by a lock on a file of its own, held by the service process: it is free again when that ends,
however it ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from .folder import private_folder
from .running import RunningCall, Stranger

VARIABLE = "CUDA_VISIBLE_DEVICES"
OVERRIDE = "SEEKER_GPU_DEVICES"  # "0,1": the node's devices, on odd machines and in tests
WAIT_S = 10.0  # for devices that the process before is just giving back
_PAUSE_S = 0.2
_DEVICE = re.compile(r"nvidia(\d+)")


def assigned_devices(environment: Mapping[str, str]) -> list[str] | None:
    """Devices that the cluster has assigned; None when it has not."""
    text = environment.get(VARIABLE)
    return None if text is None else _split(text)


def node_devices(environment: Mapping[str, str], folder: str = "/dev") -> list[str]:
    """Indexes of the node's devices: as named by the override, as found in `folder`, or as the driver lists them."""
    text = environment.get(OVERRIDE)
    if text is not None:
        return _split(text)
    try:
        found = sorted(int(match[1]) for match in map(_DEVICE.fullmatch, os.listdir(folder)) if match)
    except OSError:
        found = []
    return [str(index) for index in found] or _listed()


def _split(text: str) -> list[str]:
    devices = [part.strip() for part in text.split(",") if part.strip()]
    return devices[: devices.index("-1")] if "-1" in devices else devices


def _listed() -> list[str]:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):  # no driver, or one that does not answer: no device
        return []
    return re.findall(r"^GPU (\d+):", done.stdout, re.MULTILINE)


def take_devices(wanted: int, devices: Sequence[str], call: RunningCall, wait_s: float = WAIT_S) -> dict[str, int]:
    """Lock `wanted` of the devices, all or none; device to open lock file. `Stranger` "unfit" when they stay taken."""
    folder = private_folder(os.path.join(tempfile.gettempdir(), f"seeker-gpu-{os.getuid()}"))
    end = time.monotonic() + wait_s
    while len(taken := _try_take(wanted, devices, folder)) < wanted:
        release(taken)
        if time.monotonic() > end:
            text = f"{wanted} GPUs are asked for, {len(taken)} of {len(devices)} are free on this node"
            raise Stranger("unfit", text)
        call.pause(_PAUSE_S, f"{call.what}, waiting for {wanted} free GPUs,")
    return taken


def _try_take(wanted: int, devices: Sequence[str], folder: str) -> dict[str, int]:
    taken: dict[str, int] = {}
    for device in devices:
        if len(taken) == wanted:
            break
        path = os.path.join(folder, re.sub(r"[^\w.-]", "_", device) + ".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken[device] = descriptor
        except BlockingIOError:
            os.close(descriptor)
    return taken


def release(taken: Mapping[str, int]) -> None:
    """Close our ends of the locks; a process that has inherited them keeps the devices."""
    for descriptor in taken.values():
        os.close(descriptor)
