"""Set up the server that PREFECT_API_URL names: `python -m flows.serving.deploy`, and `deployments/setup.py`."""

from __future__ import annotations

import os
import sys

from seeker.errors import SeekerError


def main() -> int:
    """The command line."""
    if not os.environ.get("PREFECT_API_URL"):
        print("setup: PREFECT_API_URL names no server: set it, or use `make serve`, which starts one", file=sys.stderr)
        return 2
    from flows.serving.setup import set_up

    try:
        lines = set_up()
    except SeekerError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines) or "no change: work pool, deployments and automation are as they should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
