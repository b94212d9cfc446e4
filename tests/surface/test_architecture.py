"""The house's walls: who may import whom, how light an import is, how large a file may grow.

1.  Imports go one way: flows -> tasks -> services -> engines -> resources -> pure.
2.  `seeker/` knows no Prefect; polars, datasets and matplotlib appear only in modules that the driver alone uses.
3.  `flamepy` is imported in `seeker/cluster/` only, and `seeker/cluster/` knows no RL.
4.  Services use what a service is given (objects, its context), never the client of the cluster.
5.  Pure modules know no torch, Flame, vLLM, transformers or Prefect, not even inside a function.
6.  Importing the package and its pure modules loads none of the heavy libraries.
7.  What an executor runs imports only what its environment holds: no Prefect, polars, datasets or matplotlib.
8.  A file that defines something postpones its annotations; one over 350 lines has its reason listed here.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("pure", "resources", "engines", "services", "tasks", "flows")

# The longest prefix decides: a new module of `seeker/` is pure until it is given another place here.
PLACES = {
    "seeker": "pure",
    "seeker.retrieval": "resources",
    "seeker.rollout": "resources",
    "seeker.turns": "resources",
    "seeker.observations": "resources",
    "seeker.template": "resources",
    "seeker.tools": "resources",
    "seeker.loss": "resources",
    "seeker.weights": "resources",
    "seeker.publishing": "resources",
    "seeker.runs": "resources",
    "seeker.show": "resources",
    "seeker.cluster": "resources",
    "seeker.engines": "engines",
    "seeker.engines.sampler": "resources",  # the protocol alone; the rollout is written against it
    "seeker.services": "services",
    "tasks": "tasks",
    "flows": "flows",
    "data": "resources",  # makers of shipped inputs, which tasks call
}
HEAVY = ("torch", "flamepy", "vllm", "transformers", "prefect")
DRIVER_ONLY = ("prefect", "polars", "datasets", "matplotlib")
DRIVER_MODULES = ("seeker.questions", "seeker.show", "seeker.retrieval.ceiling")  # imported inside functions
EXECUTOR_LIBRARIES = (
    *("numpy", "pyarrow", "pydantic", "rich", "xxhash", "flamepy", "cloudpickle", "grpc"),
    *("bm25s", "Stemmer", "torch", "transformers", "safetensors", "tokenizers"),
)
LONG_FILES: dict[str, str] = {}


def test_imports_go_one_way() -> None:
    wrong = [
        f"{module} ({place_of(module)}) imports {target} ({place_of(target)})"
        for module, path in ours()
        for target in imported(path, module)
        if is_ours(target) and LAYERS.index(place_of(target)) > LAYERS.index(place_of(module))
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_driver_imports_driver_libraries() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, path in ours("seeker")
        for target in imported(path, module)
        if top(target) in DRIVER_ONLY and (top(target) == "prefect" or not module.startswith(DRIVER_MODULES))
    ]
    assert not wrong, "\n".join(wrong)


def test_flamepy_stays_inside_the_cluster_package() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, path in ours()
        for target in imported(path, module)
        if top(target) == "flamepy" and not module.startswith("seeker.cluster")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_cluster_package_knows_no_rl() -> None:
    allowed = ("seeker.cluster", "seeker.errors", "seeker.program")
    wrong = [
        f"{module} imports {target}"
        for module, path in ours("seeker/cluster")
        for target in imported(path, module)
        if top(target) in (*HEAVY[:1], *HEAVY[2:])
        or (is_ours(target) and target != "seeker" and not target.startswith(allowed))
    ]
    assert not wrong, "\n".join(wrong)


def test_services_never_use_the_client() -> None:
    allowed = ("seeker.cluster.objects", "seeker.cluster.resources", "seeker.cluster.service")
    wrong = [
        f"{module} imports {target}"
        for module, path in ours("seeker")
        for target in imported(path, module)
        if target.startswith("seeker.cluster.")
        and not target.startswith(allowed)
        and not module.startswith("seeker.cluster")
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_modules_know_no_heavy_library() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, path in ours("seeker")
        for target in imported(path, module)
        if place_of(module) == "pure" and top(target) in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_pure_modules_is_light() -> None:
    modules = [module for module, _ in ours("seeker") if place_of(module) == "pure"]
    code = f"import {', '.join(modules)}; import sys; print([n for n in {HEAVY + DRIVER_ONLY} if n in sys.modules])"
    assert run_python(code) == "[]"


def test_executors_need_only_their_own_environment() -> None:
    files = dict(ours("seeker"))
    reached, waiting = set[str](), ["seeker.services.rollout", "seeker.services.trainer", "seeker.cluster.child"]
    wrong: list[str] = []
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        for target in imported(files[module], module, anywhere=False):
            owner = target if target in files else target.rpartition(".")[0]
            waiting += [owner] if owner in files else []
            if top(target) not in (*EXECUTOR_LIBRARIES, "seeker") and top(target) not in sys.stdlib_module_names:
                wrong.append(f"{module} imports {target}")
    assert not wrong, "\n".join(wrong)
    assert {"seeker.rollout", "seeker.engines.policy_trainer", "seeker.retrieval.bm25"} <= reached


def test_files_are_short_and_postpone_annotations() -> None:
    """A worker loads a flow's file under no module name, where Prefect cannot resolve postponed annotations."""
    wrong: list[str] = []
    for _, path in ours():
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        if text.count("\n") > 350 and name not in LONG_FILES:
            wrong.append(f"{name} has {text.count(chr(10))} lines; split it, or list it with its reason")
        if _may_annotate(text) and ("from __future__ import annotations" in text) == ("\n@flow(" in text):
            wrong.append(f"{name}: `from __future__ import annotations` belongs in every file but those of flows")
    assert not wrong, "\n".join(wrong)


def test_the_checks_see_imports_inside_functions_and_relative_ones(tmp_path: Path) -> None:
    path = tmp_path / "probe.py"
    path.write_text("def f():\n    import torch.nn\n    from . import x\n    from seeker.runs import lock\n")
    assert list(imported(path, "seeker.show.probe", anywhere=False)) == []
    assert list(imported(path, "seeker.show.probe")) == ["torch.nn", "seeker.show.x", "seeker.runs.lock"]


def _may_annotate(text: str) -> bool:
    """True for a file that defines anything; one of docstring, imports and names has nothing to annotate."""
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.parse(text).body)


def ours(folder: str = "") -> Iterator[tuple[str, Path]]:
    """Module name and path of every file of ours under `folder`."""
    for start in [folder] if folder else ["seeker", "tasks", "flows", "data"]:
        for path in sorted((ROOT / start).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path: Path, module: str, anywhere: bool = True) -> Iterator[str]:
    """Names that a file imports, joined to the module they come from; not those for type checking only.

    With `anywhere` also inside functions; else only what importing the file imports.
    """
    for node in _walk(_parse(path), anywhere):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            for _ in range(node.level - 1):
                package = package.rpartition(".")[0]
            base = ".".join(part for part in (package if node.level else "", node.module or "") if part)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _walk(node: ast.AST, anywhere: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not anywhere:
            continue
        yield child
        yield from _walk(child, anywhere)


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_ours(target: str) -> bool:
    return top(target) in ("seeker", "tasks", "flows", "data")


def top(target: str) -> str:
    return target.partition(".")[0]


def place_of(module: str) -> str:
    prefix = max((each for each in PLACES if module == each or module.startswith(f"{each}.")), key=len)
    return PLACES[prefix]


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
