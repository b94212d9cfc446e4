"""The client's tests and the conformance suite run on a bare machine, with flamepy and pytest.

1.  Collecting them imports neither torch nor Prefect, nor what else only a driver has.
2.  The conformance suite imports nothing of Seeker either, and shows it while it runs against a named cluster.
3.  `make conformance PY=...` sets up no environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seeker.cluster.client import Cluster

ROOT = Path(__file__).resolve().parents[2]
HEAVY = "{'torch', 'prefect', 'transformers', 'safetensors', 'bm25s', 'datasets', 'matplotlib'}"
RUN_PYTEST = "import pytest, sys; status = pytest.main(sys.argv[1:] + ['-q', '-p', 'no:cacheprovider'])\n"


def _run(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_collecting_imports_nothing_heavy() -> None:  # 1
    told = RUN_PYTEST + f"print(sorted({HEAVY} & set(sys.modules))); sys.exit(status)"
    assert _run(told, "--collect-only", "tests/cluster") == "[]"


def test_conformance_knows_nothing_of_seeker(cluster: Cluster) -> None:  # 2
    ours = f"{HEAVY} | {{'seeker', 'flows', 'tasks'}}"
    told = (
        RUN_PYTEST + f"print(sorted({{name.partition('.')[0] for name in sys.modules}} & ({ours}))); sys.exit(status)"
    )
    named = {"FLAME_ENDPOINT": cluster.endpoint, "FLAME_CACHE_ENDPOINT": cluster.describe()["cache_endpoint"]}
    few = [f"tests/cluster/conformance/test_{name}.py" for name in ("applications", "objects")]
    assert _run(told, *few, **named) == "[]"


def test_make_sets_nothing_up_for_a_named_python() -> None:  # 3
    line = ["make", "--dry-run", "--no-print-directory", "conformance", f"PY={sys.executable}"]
    outer = ("FLAGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS")  # of a make that runs this test
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [sys.executable, "-m", "tests.cluster.conformance"]
