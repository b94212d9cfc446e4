"""What only trying shows: the session manager's clock, a lossy object cache, an executor's environment.

Each leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Any

from seeker.cluster import wire
from seeker.cluster.client import open_cluster
from seeker.cluster.doctor import Finding, clock_finding, version_finding
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.objects import ObjectHandle, ObjectStore
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, ObjectMissingError

FLAMEPY = "0.6.0"
PROBE_DEADLINE_S = 120.0
SHARD_BYTES = 64 * 2**20
_NAME = "seeker-doctor"


def probe_clock(frontend: FrontendClient) -> list[Finding]:
    """Register a throw-away application: the cluster stamps it with its own time."""
    name = f"{_NAME}-{secrets.token_hex(4)}"
    spec = wire.types.ApplicationSpec(shim=0, command="true", description="made and removed by `seeker cluster doctor`")
    start = time.time()
    reply = frontend.request(
        "RegisterApplication", wire.frontend.RegisterApplicationRequest(name=name, application=spec)
    )
    if reply.return_code != 0:
        raise ClusterError(f"the cluster registers no application: {reply.message}")
    middle = (start + time.time()) / 2
    try:
        found = frontend.request("GetApplication", wire.frontend.GetApplicationRequest(name=name))
    finally:
        frontend.request("UnregisterApplication", wire.frontend.UnregisterApplicationRequest(name=name))
    return clock_finding(found.status.creation_time / 1000 - middle)


def probe_cache(objects: ObjectStore, num_bytes: int) -> list[Finding]:
    """Write more than a cache without disk storage keeps, and read all of it back."""
    prefix = f"{_NAME}/{secrets.token_hex(4)}"
    sizes = [min(SHARD_BYTES, num_bytes - start) for start in range(0, num_bytes, SHARD_BYTES)]
    try:
        handles = [objects.put(prefix, _shard(place, size)) for place, size in enumerate(sizes)]
        num_lost = sum(
            not _is_whole(objects, handle, _shard(place, size))
            for place, (handle, size) in enumerate(zip(handles, sizes, strict=True))
        )
    finally:
        objects.delete(prefix)
    if not num_lost:
        return [Finding("note", f"the object cache kept all of {num_bytes} bytes")]
    text = f"the object cache lost {num_lost} of {len(sizes)} objects ({num_bytes} bytes in all)"
    remedy = "give it disk storage (cache.storage: a path) or a larger memory limit: published policies would be lost"
    return [Finding("wrong", text, remedy)]


def _shard(place: int, size: int) -> bytes:
    """Other bytes for each place, which no compression makes small."""
    block = hashlib.shake_256(place.to_bytes(4)).digest(2**20)
    return (block * (size // len(block) + 1))[:size]


def _is_whole(objects: ObjectStore, handle: ObjectHandle, data: bytes) -> bool:
    try:
        return bytes(objects.get(handle)) == data
    except ObjectMissingError:
        return False


def probe_executor(settings: ClusterSettings) -> list[Finding]:
    """Start one executor and ask what it runs on."""
    with open_cluster(settings) as cluster:
        service = cluster.start("doctor", "seeker.cluster.child:Nothing", {}, release_s=1)
        asked = time.time()
        about: dict[str, Any] = service.call("@about", deadline_s=PROBE_DEADLINE_S).result()
        middle = (asked + time.time()) / 2
    who = f"an executor on {about['host']} (Python {about['python']}, {about['interpreter']})"
    return [
        Finding("note", f"{who} answers"),
        *version_finding(who, str(about["flamepy"]), FLAMEPY),
        *clock_finding(about["time"] - middle, f"the clock of {about['host']}"),
    ]
