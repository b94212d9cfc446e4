"""What is wrong with a cluster, local or real: findings over what it lists, each with its remedy. Pure.

`probes.py` finds what no listing tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from seeker.cluster.listing import Listing, SessionState
from seeker.cluster.waiting import can_meet, why_waiting

MAX_CLOCK_DIFFERENCE_S = 2.0
MAX_SILENCE_S = 30.0  # a node says every 5 s that it lives

_RESTART = "restart the session manager: nothing else frees it (running calls are done again)"


@dataclass(frozen=True, slots=True)
class Finding:
    """Example: ``Finding("wrong", "executor b1f0 on lab-1 is stuck in Unbinding", "restart the session manager")``."""

    kind: Literal["wrong", "note"]
    what: str
    remedy: str = ""


def examine(before: Listing, after: Listing, now_s: float) -> list[Finding]:
    """Everything that two looks at a cluster, some seconds apart, show."""
    return [*_nodes(after, now_s), *_stuck(before, after), *_sessions(before, after), *_cache(after)]


def _nodes(listing: Listing, now_s: float) -> Iterator[Finding]:
    if not listing.nodes:
        yield Finding("wrong", "the cluster has no node", "start an executor manager that names this session manager")
    for node in listing.nodes:
        silence_s = now_s - node.heartbeat_s
        if not node.is_ready:
            yield Finding("wrong", f"node {node.name} is not ready", "look at its executor manager and its log")
        elif silence_s > MAX_SILENCE_S:
            text = f"node {node.name} was heard last {silence_s:.0f} s ago by this machine's clock"
            yield Finding("wrong", text, "look at its executor manager; if it runs, set its clock and ours by NTP")
        elif silence_s < -MAX_SILENCE_S:
            text = f"the clock of node {node.name} is {-silence_s:.0f} s ahead of this machine's"
            yield Finding("wrong", text, "set both by NTP: deadlines and leases compare them")


def _stuck(before: Listing, after: Listing) -> Iterator[Finding]:
    states = {executor.id: executor.state for executor in before.executors}
    for executor in after.executors:
        if executor.state not in ("Binding", "Unbinding") or states.get(executor.id) != executor.state:
            continue
        text = f"executor {executor.id} on {executor.node} stays in {executor.state} for session {executor.session}"
        if executor.state == "Unbinding":
            text += ": its process has died; no new session gets an executor meanwhile"
            yield Finding("wrong", text, _RESTART)
        else:
            remedy = "look at its log on the node: its constructor or its start hangs; the slot is lost until you "
            yield Finding("wrong", text, remedy + "restart the session manager. (An executor that is only slow: wait)")


def _sessions(before: Listing, after: Listing) -> Iterator[Finding]:
    looks = {session.id: session for session in before.sessions}
    for session in after.sessions:
        earlier = looks.get(session.id)
        if not session.is_open:
            continue
        if not can_meet(after.nodes, session.wanted):
            text = f"session {session.id} asks for {session.wanted}, which no node can meet"
            yield Finding("wrong", text, "ask for less, or add a node; the engine says nothing and waits for ever")
        elif earlier is not None:
            yield from _waiting(session, earlier, before, after)


def _waiting(session: SessionState, earlier: SessionState, before: Listing, after: Listing) -> Iterator[Finding]:
    reason = why_waiting(session, after)
    if reason is not None and why_waiting(earlier, before) is not None:
        text = f"session {session.id} has {session.pending} pending calls and no executor: {reason}"
        yield Finding("wrong", text, _remedy(reason))
    own = {executor.state for executor in after.executors_of(session.id)}
    if session.running and earlier.running and "Bound" not in own:
        text = f"session {session.id} has {session.running} running calls and no executor that runs them"
        remedy = "it cannot be closed and is harmless: abandon it; only a restart of the session manager removes it"
        yield Finding("wrong", text, remedy)


def _remedy(reason: str) -> str:
    for start, remedy in (
        ("given up", "mend what the text says, close this session and open another: it never gets an executor again"),
        ("no room", "close or shrink other sessions, or add a node"),
        ("executor ", _RESTART),
        ("its executors", "submit as many calls as the batch, or open the session with a minimum"),
    ):
        if reason.startswith(start):
            return remedy
    return "wait, or look at the logs of the session manager and of the node"


def _cache(listing: Listing) -> Iterator[Finding]:
    if not listing.is_local:
        text = "a listing does not tell whether the object cache keeps objects on disk; without disk it loses them"
        yield Finding("note", text, "run with --probe-cache 1200m, which writes, reads back and deletes that much")


class Lease(Protocol):
    """What is looked at in a driver's lease (`leftovers.LeaseRecord`)."""

    @property
    def key(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def lease_s(self) -> float: ...
    @property
    def sessions(self) -> tuple[str, ...]: ...
    @property
    def abandoned(self) -> tuple[str, ...]: ...
    def is_known_dead(self) -> bool: ...
    def text(self) -> str: ...


def examine_leases(before: Sequence[Lease], after: Sequence[Lease], waited_s: float) -> list[Finding]:
    """Drivers that are gone, and sessions that their drivers had to abandon."""
    counts = {lease.key: lease.count for lease in before}
    findings: list[Finding] = []
    for lease in after:
        is_silent = counts.get(lease.key) == lease.count and waited_s > lease.lease_s
        if lease.is_known_dead() or is_silent:
            text = f"{lease.text()} is gone and left {', '.join(lease.sessions) or 'its lease'}"
            findings.append(Finding("wrong", text, "seeker cluster clean closes what it can, and says what it cannot"))
        for session in lease.abandoned:
            text = f"session {session} was abandoned by {lease.text()}: closing it would brick the cluster"
            findings.append(Finding("note", text, "leave it; a restart of the session manager frees its executor"))
    return findings


def clock_finding(difference_s: float, whose: str = "the session manager's clock") -> list[Finding]:
    """`difference_s`: their clock minus ours."""
    if abs(difference_s) <= MAX_CLOCK_DIFFERENCE_S:
        return []
    text = f"{whose} is {abs(difference_s):.1f} s {'ahead of' if difference_s > 0 else 'behind'} this machine's"
    return [Finding("wrong", text, "set both by NTP: deadlines and leases compare them")]


def version_finding(who: str, found: str, expected: str) -> list[Finding]:
    if found == expected:
        return []
    text = f"{who} has flamepy {found}, expected {expected}"
    return [Finding("wrong", text, f"install flamepy=={expected} there: other versions speak another protocol")]
