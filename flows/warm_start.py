"""Make a starting policy for the laptop preset from demonstrations: `python -m flows.warm_start --seed 1 --out DIR`."""

import argparse
import sys
from pathlib import Path

from data.starting_policy import make_policy
from flows.environment import flow_environment
from seeker.config import Count, Section
from seeker.errors import ConfigError, SeekerError


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.warm_start", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and demonstrations (default: 1)")
    parser.add_argument("--out", required=True, help="a new folder")
    arguments = parser.parse_args()
    try:
        with flow_environment("flows.warm_start") as flows:
            print(flows.warm_start(flows.WarmStart(seed=arguments.seed, out=arguments.out)))
        return 0
    except SeekerError as error:
        print(f"warm_start: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())  # here, since Prefect may be imported only when its home is set

from prefect import flow  # noqa: E402


class WarmStart(Section):
    """Which starting policy to make, and where. Example: ``WarmStart(seed=2, out="policies/two")``."""

    seed: Count = 1
    out: str


@flow(name="warm-start", flow_run_name="warm-start-{request.seed}")
def warm_start(request: WarmStart) -> str:
    """Train the policy of a seed on demonstrations and write it in transformers' layout; its folder."""
    folder = Path(request.out)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--out {folder}: the folder is not empty; name a new one")
    return str(make_policy(request.seed, folder).resolve())
