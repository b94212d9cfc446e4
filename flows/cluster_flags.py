"""The flags of `seeker cluster …`. Nothing is imported that these commands need: a mistake answers at once."""

from __future__ import annotations

import argparse
from typing import Any


def add_cluster(parser: Any) -> None:
    """`parser` makes parsers of its own kind for the subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    parser.subcommands = {}
    for name, text, add in (
        ("start", "start a local cluster that several flows share, and return when it is ready", _add_start),
        ("status", "nodes, sessions, queues, executors, objects and their bytes", _add_status),
        ("stop", "end the local cluster that was started here", _add_directory),
        ("clean", "remove what drivers that are gone left behind", _add_address),
        ("doctor", "say what is wrong with a cluster, and the remedy; exit code 1 when anything is", _add_doctor),
    ):
        parser.subcommands[name] = actions.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        add(parser.subcommands[name])


def _add_start(parser: Any) -> None:
    _add_directory(parser)
    parser.add_argument("--slots", type=int, metavar="N", help="cores of the node (default: 16)")
    parser.add_argument("--memory", metavar="SIZE", help="memory of the node, as in 8g (default: the machine's)")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs of the node (default: the machine's)")
    parser.add_argument("--python", metavar="PATH", help="the executors' interpreter (default: .venv-executor's)")
    parser.add_argument("--log-dir", metavar="DIR", help="where executors log (default: DIR/logs)")
    parser.add_argument("--spill-dir", metavar="DIR", help="where objects go that are above --object-memory")
    parser.add_argument("--object-memory", metavar="SIZE", help="memory for objects (default: no limit)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; only this machine's own is allowed")
    parser.add_argument("--env", action="store_true", help="print shell exports only, also when it runs already")
    parser.add_argument("--faults", choices=("none", "engine"), default="none", help=argparse.SUPPRESS)


def _add_status(parser: Any) -> None:
    _add_address(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_doctor(parser: Any) -> None:
    _add_address(parser)
    parser.add_argument("--wait", type=float, default=5.0, metavar="S", help="seconds between two looks (default: 5)")
    parser.add_argument("--probe", action="store_true", help="also start one executor and ask what it runs on")
    parser.add_argument("--probe-cache", metavar="SIZE", help="also write, read back and delete SIZE of objects")


def _add_address(parser: Any) -> None:
    _add_directory(parser)
    parser.add_argument("--endpoint", metavar="URL", help="another cluster: http://HOST:PORT")
    parser.add_argument("--cache-endpoint", metavar="URL", help="its object cache: grpc://HOST:PORT")
    parser.add_argument("--context", metavar="NAME", help="another cluster: a context of ~/.flame/flame.yaml")


def _add_directory(parser: Any) -> None:
    parser.add_argument("--dir", metavar="DIR", help="the shared cluster's directory (default: .seeker-cluster)")
