"""`seeker serve` that goes on starting server and worker again, however often a drill kills them."""

from __future__ import annotations

import sys

from flows import cli
from flows.serving import supervisor

if __name__ == "__main__":
    supervisor.MAX_DEATHS = 10_000
    sys.exit(cli.main(["serve", *sys.argv[1:]]))
