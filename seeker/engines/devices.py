"""Where an executor's policy lives: on the GPU that its resources ask for, else on the CPU."""

from __future__ import annotations

import torch

from seeker.cluster.resources import parse_resources
from seeker.errors import ConfigError

CPU = torch.device("cpu")


def device_for(resources: str, field: str) -> torch.device:
    """The device of a service with these resources; `field` is where they are configured, for the error.

    The cluster, or the starter where the cluster does not, shows a process only the GPUs that were assigned to it: the
    first of them is the policy's. A service that asks for none takes none, whatever the machine has.
    Example: ``device_for("cpu=8,mem=96g,gpu=1", "cluster.trainer_resources")`` gives ``cuda:0``.
    """
    if parse_resources(resources).gpu == 0:
        return CPU
    if not torch.cuda.is_available():
        raise ConfigError(
            f"{field}: {resources!r} asks for a GPU, but torch {torch.__version__} sees none in this executor "
            f"(built for CUDA: {torch.version.cuda or 'no'}); install a GPU build of torch for the executors (README), "
            "or ask for gpu=0"
        )
    return torch.device("cuda", 0)
