"""Tasks that call services.

1.  A task calls its own application again through a Runner of the same name, level after level.
2.  A task spreads work over another service and gathers it.
3.  A task opens a session of another application.
4.  The Runners inside clean nothing up that is not theirs.
"""

from __future__ import annotations

import flamepy
import pytest
from flamepy.runner import Runner

from tests.cluster.conformance import workloads
from tests.cluster.conformance.waiting import value_of

pytestmark = pytest.mark.usefixtures("eight_slots")


def test_recursion(runner: Runner) -> None:  # 1, 4
    service = runner.service(workloads.nested_sum)
    assert value_of(service(runner._name, 2)) == 3
    assert flamepy.get_application(runner._name) is not None
    service.close()


def test_fan_out(runner: Runner) -> None:  # 2
    service = runner.service(workloads.fan_out, autoscale=False)
    assert value_of(service(runner._name, list(range(10)))) == 285
    service.close()


def test_another_application(runner: Runner, plain: str) -> None:  # 3
    service = runner.service(workloads.call_plain, autoscale=False)
    assert value_of(service(plain, b"from inside")) == b"from inside"
    service.close()
