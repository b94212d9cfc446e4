"""Run the conformance suite: ``python -m tests.cluster.conformance [--rounds N] [pytest's options]``.

    make conformance                                    # against the embedded cluster
    FLAME_ENDPOINT=http://host:8080 FLAME_CACHE_ENDPOINT=grpc://host:9090 make conformance PY=/path/to/python

The interpreter needs flamepy 0.6.0 and pytest, nothing else. `--rounds 2` runs the suite twice in this process.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest


def main() -> int:
    """The exit status of the first round that fails, else 0."""
    parser = argparse.ArgumentParser(prog="tests.cluster.conformance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often, in one process")
    options, rest = parser.parse_known_args()
    for number in range(1, options.rounds + 1):
        if options.rounds > 1:
            print(f"== round {number} of {options.rounds}", flush=True)
        status = pytest.main([str(Path(__file__).parent), *(rest or ["-q"])])
        if status != 0:
            return int(status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
