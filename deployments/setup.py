"""Make the Prefect server that PREFECT_API_URL names ready for Seeker: `python deployments/setup.py`.

Work pool, deployments with their limits, schedule and trigger, and the automation that marks silent flow runs as
crashed. `make serve` does this by itself. Doing it again changes nothing and says so.
"""

from __future__ import annotations

import sys

from flows.serving.deploy import main

if __name__ == "__main__":
    sys.exit(main())
