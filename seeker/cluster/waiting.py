"""Why a session's calls wait: read from what a cluster lists, since the engine itself says nothing."""

from __future__ import annotations

from seeker.cluster import wire
from seeker.cluster.listing import Listing, NodeState, SessionState
from seeker.cluster.resources import Resources


def can_meet(nodes: tuple[NodeState, ...], wanted: Resources) -> bool:
    """Whether some node, empty, has room for one executor."""
    return any(fits(node.capacity, wanted) for node in nodes)


def fits(have: Resources, wanted: Resources) -> bool:
    return have.cpu >= wanted.cpu and have.memory_bytes >= wanted.memory_bytes and have.gpu >= wanted.gpu


def why_waiting(session: SessionState, listing: Listing) -> str | None:
    """The reason that no executor works on a session's pending calls; None when one does, or none are pending.

    Example: ``"no room: it asks for cpu=2,mem=1g,gpu=0, free are n1 cpu=1,mem=9g,gpu=0 (held by run-7-trainer)"``.
    """
    if not session.is_open or not session.pending:
        return None
    own = listing.executors_of(session.id)
    if any(executor.state in ("Bound", "Idle") for executor in own):
        return None
    failures = [text for code, text in session.events if code == wire.BIND_FAILED]
    if any(code == wire.BIND_GIVEN_UP for code, _ in session.events):
        return f"given up after bind failures: {failures[-1] if failures else 'without a text'}"
    if not can_meet(listing.nodes, session.wanted):
        return f"no node can meet {session.wanted}: {_capacities(listing)}"
    if any(executor.state == "Binding" for executor in own):
        return "an executor of it is starting" + (f"; the last one failed: {failures[-1]}" if failures else "")
    stuck = [executor.id for executor in listing.executors if executor.state == "Unbinding"]
    if stuck:
        return f"executor {stuck[0]} is in Unbinding: while it is, the engine makes no other"
    if session.pending + session.running < session.batch and session.minimum < session.batch:
        return f"its executors are made {session.batch} at a time, one for each call: {session.pending} are pending"
    if not any(fits(node.free, session.wanted) for node in listing.nodes):
        return f"no room: it asks for {session.wanted}, free are {_free(listing)}{_holders(session, listing)}"
    return f"the last executor failed: {failures[-1]}" if failures else "no reason can be seen"


def _capacities(listing: Listing) -> str:
    return "; ".join(f"{node.name} has {node.capacity}" for node in listing.nodes) or "there is no node"


def _free(listing: Listing) -> str:
    return "; ".join(f"{node.name} {node.free}" for node in listing.nodes)


def _holders(session: SessionState, listing: Listing) -> str:
    holders = sorted({executor.session for executor in listing.executors} - {session.id, ""})
    return f" (held by {', '.join(holders)})" if holders else ""
