"""`seeker cluster start | status | stop | clean | doctor`: a cluster that several flows share, and looks at any other.

Each takes the parsed arguments (`flows/cluster_flags.py`) and returns the exit code.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from seeker.cluster import shared
from seeker.cluster.doctor import Finding, examine, examine_leases, version_finding
from seeker.cluster.frontend import FrontendClient
from seeker.cluster.listing import look
from seeker.cluster.local.directories import remove_stale_directories, short_temporary_directory
from seeker.cluster.local.options import LocalSettings, check_settings
from seeker.cluster.named import Address
from seeker.cluster.objects import FlightObjects
from seeker.cluster.reaching import reached
from seeker.cluster.resources import parse_resources
from seeker.cluster.settings import ClusterSettings
from seeker.errors import ClusterError, ConfigError, UnreachableError

CONNECT_DEADLINE_S = 10.0
DEFAULT_SLOTS = 16
FLAGS = "--endpoint and --cache-endpoint"


def start(arguments: Namespace) -> int:
    settings = _start_settings(arguments)
    state, is_new = shared.start_shared(_directory(arguments), settings)
    if arguments.env:
        if not is_new:
            _say_other_capacity(state, arguments.slots)
        print(state.exports())
        return 0
    if not is_new:
        raise ConfigError(
            f"a cluster is running already in {state.directory} (process {state.pid}, {state.address.endpoint}); "
            f'use it by `eval "$(seeker cluster start --env)"`, or end it by `seeker cluster stop`'
        )
    print(f"a cluster of {settings.slots} slots is running (process {state.pid}), logs in {state.facts['log_dir']}")
    print(f"use it from any shell:\n{state.exports()}")
    return 0


def _start_settings(arguments: Namespace) -> ClusterSettings:
    settings = ClusterSettings(
        python=arguments.python,
        slots=DEFAULT_SLOTS if arguments.slots is None else arguments.slots,
        memory_bytes=_num_bytes("--memory", arguments.memory),
        gpus=arguments.gpus,
        spill_dir=arguments.spill_dir and str(Path(arguments.spill_dir).absolute()),
        memory_limit_bytes=_num_bytes("--object-memory", arguments.object_memory),
        faults=arguments.faults,
        log_dir=arguments.log_dir,
    )
    check_settings(
        LocalSettings(
            python=settings.executor_python(),
            slots=settings.slots,
            memory_bytes=settings.memory_bytes,
            gpus=settings.gpus,
            host=arguments.host,
            spill_dir=Path(settings.spill_dir) if settings.spill_dir else None,
            object_memory_bytes=settings.memory_limit_bytes,
        )
    )
    if not Path(settings.executor_python()).is_file():
        raise ConfigError(f"--python {settings.executor_python()}: no such interpreter; name the executors' one")
    return settings


def _num_bytes(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_resources(f"mem={text}").memory_bytes
    except ConfigError:
        raise ConfigError(f"{flag} {text!r}: expected bytes, for example 8g or 512m") from None


def _say_other_capacity(state: shared.SharedState, slots: int | None) -> None:
    if slots not in (None, state.facts["slots"]):
        text = f"the cluster of {state.directory} runs already, with {state.facts['slots']} slots"
        print(f"seeker: {text}, not {slots}", file=sys.stderr)


def stop(arguments: Namespace) -> int:
    directory = _directory(arguments)
    state = shared.stop_shared(directory)
    if state is None:
        print(f"no cluster is running in {directory}")
    else:
        print(f"the cluster of {directory} has ended (process {state.pid})")
    return 0


def status(arguments: Namespace) -> int:
    with _connected(arguments) as (frontend, objects, _):
        listing = look(frontend, objects)
    if arguments.json:
        print(json.dumps(listing.to_json(), indent=2))
    else:
        from seeker.cluster.status import print_status

        print_status(listing)
    return 0


def doctor(arguments: Namespace) -> int:
    """Exit code 1 when anything is wrong."""
    from seeker.cluster import probes
    from seeker.cluster.leftovers import read_leases

    findings: list[Finding] = _own_version()
    try:
        with _connected(arguments) as (frontend, objects, settings):
            before, leases, start = look(frontend, objects), read_leases(objects), time.monotonic()
            findings += probes.probe_clock(frontend)
            time.sleep(arguments.wait)
            findings += examine(before, look(frontend, objects), time.time())
            findings += examine_leases(leases, read_leases(objects), time.monotonic() - start)
            if arguments.probe_cache:
                findings += probes.probe_cache(objects, _num_bytes("--probe-cache", arguments.probe_cache) or 0)
        if arguments.probe:
            findings += probes.probe_executor(settings)
    except UnreachableError as error:
        findings.append(Finding("wrong", error.what, error.remedy))
    except ClusterError as error:
        remedy = "the cluster answered and then failed: look at its log and at the network, then run this again"
        findings.append(Finding("wrong", str(error), remedy))
    return _print_findings(findings)


def _own_version() -> list[Finding]:
    from importlib.metadata import version

    from seeker.cluster.probes import FLAMEPY

    return version_finding("this environment", version("flamepy"), FLAMEPY)


def _print_findings(findings: Iterable[Finding]) -> int:
    num_wrong = 0
    for finding in findings:
        num_wrong += finding.kind == "wrong"
        print(f"{finding.kind}: {finding.what}" + (f"\n  -> {finding.remedy}" if finding.remedy else ""))
    print(f"{num_wrong} thing{'s are' if num_wrong != 1 else ' is'} wrong" if num_wrong else "nothing is wrong")
    return 1 if num_wrong else 0


def _directory(arguments: Namespace) -> Path:
    return Path(arguments.dir or shared.DEFAULT_DIRECTORY)


@contextmanager
def _connected(arguments: Namespace) -> Generator[tuple[FrontendClient, FlightObjects, ClusterSettings]]:
    """Clients of the cluster that the arguments mean."""
    address = find_address(arguments)
    with reached(address, CONNECT_DEADLINE_S) as (frontend, objects):
        yield frontend, objects, ClusterSettings(address.endpoint, address.cache_endpoint, address.ca_file)


def _named(arguments: Namespace) -> Address | None:
    if arguments.endpoint or arguments.cache_endpoint or arguments.context:
        named = ClusterSettings(arguments.endpoint, arguments.cache_endpoint, context=arguments.context).address()
        return named and replace(named, source=named.source if arguments.context else FLAGS)
    return None if arguments.dir else ClusterSettings().address()


def find_address(arguments: Namespace) -> Address:
    """Named by flags, else running in --dir, else named by the environment, else running in the usual directory."""
    named = _named(arguments)
    if named is not None:
        return named
    directory = _directory(arguments)
    running = shared.running_state(directory)
    if running is None:
        raise ConfigError(
            f"no cluster is running in {directory}; start one by `seeker cluster start`, or name one by --endpoint, "
            "--context or FLAME_ENDPOINT"
        )
    return running.address


def clean(arguments: Namespace) -> int:
    """Remove what drivers that are gone left behind: sessions, objects, applications; and killed clusters' files.

    Exit code 1 when something had to be left.
    """
    for path in remove_stale_directories(short_temporary_directory()):
        print(f"removed the directory of a killed cluster: {path}")
    if _named(arguments) is None and shared.running_state(_directory(arguments)) is None:
        print(f"no cluster is running in {_directory(arguments)}: nothing more to look at")
        return 0
    with _connected(arguments) as (frontend, objects, _):
        faults = list(_clean_cluster(frontend, objects))
    for fault in faults:
        print(f"left: {fault}")
    return 1 if faults else 0


def _clean_cluster(frontend: FrontendClient, objects: FlightObjects) -> Iterator[str]:
    """What could not be removed."""
    from seeker.cluster.leftovers import clean as remove
    from seeker.cluster.leftovers import find_leftovers, read_leases

    doubtful = [record for record in read_leases(objects) if not record.is_known_dead()]
    if doubtful:
        longest_s = max(record.lease_s for record in doubtful)
        print(f"watching {len(doubtful)} drivers' leases for up to {longest_s:g} s: a living driver renews its own")
    number = 0
    for record in find_leftovers(objects):
        number += 1
        faults = remove(frontend, objects, record)
        gone = [each for each in record.sessions if not any(f"session {each} " in fault for fault in faults)]
        print(f"removed what {record.text()} left: {', '.join(gone) or 'no session'}")
        yield from faults
    if not number:
        print("no driver that is gone has left anything")
