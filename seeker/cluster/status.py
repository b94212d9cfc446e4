"""A cluster's listing as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from seeker.cluster.listing import Listing, SessionState
from seeker.cluster.resources import Resources
from seeker.cluster.waiting import why_waiting

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def print_status(listing: Listing, console: Console | None = None) -> None:
    """Nodes, sessions, executors, objects and applications, each where there are any."""
    console = console or Console(highlight=False)
    kind = "local development cluster" if listing.is_local else "Flame cluster"
    console.print(f"{kind} at {listing.endpoint}, objects at {listing.cache_endpoint}", soft_wrap=True)
    for table in (_nodes(listing), _sessions(listing), _executors(listing), _objects(listing), _applications(listing)):
        if table.row_count:
            console.print(table)
    for session in listing.sessions:
        reason = why_waiting(session, listing)
        if reason is not None:
            console.print(f"session {session.id} waits: {reason}", soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        is_number = column.startswith("#")
        table.add_column(column.lstrip("#"), justify="right" if is_number else "left", overflow="fold")
    return table


def _nodes(listing: Listing) -> Table:
    table = _table("nodes", "node", "ready", "#cores free", "#memory free", "#GPUs free")
    for node in listing.nodes:
        free, capacity = node.free, node.capacity
        memory = f"{size_text(free.memory_bytes)} of {size_text(capacity.memory_bytes)}"
        cores, gpus = f"{free.cpu} of {capacity.cpu}", f"{free.gpu} of {capacity.gpu}"
        table.add_row(node.name, "yes" if node.is_ready else "no", cores, memory, gpus)
    return table


def _sessions(listing: Listing) -> Table:
    columns = ("session", "state", "asks for", "#executors", "#pending", "#running", "#done", "#failed")
    table = _table("sessions", *columns)
    for session in listing.sessions:
        numbers = (session.pending, session.running, session.succeeded, session.failed)
        have = len(listing.executors_of(session.id))
        state = "open" if session.is_open else "closed"
        table.add_row(session.id, state, _asked(session), str(have), *map(str, numbers))
    return table


def _asked(session: SessionState) -> str:
    maximum = "any" if session.maximum is None else str(session.maximum)
    number = maximum if maximum == str(session.minimum) else f"{session.minimum} to {maximum}"
    return f"{number} x {_short(session.wanted)}{', all or none' if session.batch > 1 else ''}"


def _executors(listing: Listing) -> Table:
    table = _table("executors", "executor", "node", "state", "session", "resources")
    for executor in listing.executors:
        table.add_row(executor.id, executor.node, executor.state, executor.session, _short(executor.resources))
    return table


def _objects(listing: Listing) -> Table:
    table = _table("objects", "application/session", "#objects", "#in memory", "#in files")
    for count in listing.objects:
        sizes = [size_text(size) if size is not None else "?" for size in (count.memory_bytes, count.spilled_bytes)]
        table.add_row(count.prefix, str(count.num_objects), *sizes)
    return table


def _applications(listing: Listing) -> Table:
    table = _table("applications", "application", "#open sessions")
    for name in listing.applications:
        num_open = sum(session.is_open and session.application == name for session in listing.sessions)
        table.add_row(name, str(num_open))
    return table


def _short(resources: Resources) -> str:
    gpus = f",gpu={resources.gpu}" if resources.gpu else ""
    return f"cpu={resources.cpu},mem={resources.memory_bytes / 2**30:.3g}g{gpus}"


def size_text(num_bytes: int) -> str:
    for unit, name in _UNITS:
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
