"""How the phases of a step appear in Prefect: one place for names, cache keys and retries.

A phase's result is a small JSON handle (paths in the run directory with their sha256, and metrics). Its cache key names
the run directory, the lineage, the step and the phase, so that a flow run that is retried takes up finished phases, and
a run that was deleted and begun again under the same name, or a copy of one, does not. The bodies are idempotent by
step anyway: Prefect's rows are a view, the run directory is the truth.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.settings import get_current_settings

from seeker.errors import InfrastructureError, LostStepError
from seeker.runs import FileRef, Json, RunDirectory, is_intact
from tasks.calls import is_infrastructure

Body = TypeVar("Body", bound=Callable[..., Any])
RETRY_DELAYS_S = [1, 5]


def phase_task(phase: str, *, commits: bool = False) -> Callable[[Body], Body]:
    """A task for one phase of a step; its body takes `run_key`, `lineage` and `step` first.

    The result of one that commits is never taken from a cache: the run directory alone tells what is committed.
    """
    caching: dict[str, Any] = {"persist_result": True, "cache_key_fn": _cache_key(phase)}
    return task(  # type: ignore[return-value]
        name=phase,
        task_run_name=phase + "-{step:06d}",
        result_serializer="json",
        **({"persist_result": False, "cache_policy": NO_CACHE} if commits else caching),
        retries=len(RETRY_DELAYS_S),
        retry_delay_seconds=RETRY_DELAYS_S,
        retry_jitter_factor=0.5,
        retry_condition_fn=may_retry,
    )


def whole_handle(run: RunDirectory, phase: Any, **given: Any) -> Json:
    """What a phase gives; done again where a cache gave the handle of files that are damaged or gone by now."""
    handle: Json = phase(**given)
    refs = [*handle.get("calls", ()), *([handle["batch"]] if handle.get("batch") else [])]
    if all(is_intact(run.root, FileRef.from_json(ref)) for ref in refs):
        return handle
    run.events.record("phase_redone", step=given["step"], phase=phase.name)
    return phase.with_options(refresh_cache=True)(**given)


def forget_phases(run_key: str, lineage: int, step: int) -> None:
    """Remove what the cache of this machine keeps of a committed step: nothing asks for it again."""
    with contextlib.suppress(FileNotFoundError):  # results are stored elsewhere, or were never
        shutil.rmtree(get_current_settings().results.local_storage_path / _folder(run_key, lineage, step))


def may_retry(_task: Any, _run: Any, state: Any) -> bool:
    """Infrastructure errors are tried again; an error of ours would only happen again.

    A step that was lost has had its attempts, call by call.
    """
    try:
        state.result()
    except LostStepError:
        return False
    except InfrastructureError as error:
        return is_infrastructure(error)
    except Exception:
        return False
    return False


def _cache_key(phase: str) -> Callable[[Any, dict[str, Any]], str]:
    def key(_context: Any, parameters: dict[str, Any]) -> str:
        place = _folder(parameters["run_key"], parameters["lineage"], parameters["step"])
        return f"{place}/{phase}.json"

    return key


def _folder(run_key: str, lineage: int, step: int) -> str:
    return f"seeker/{run_key}/{lineage}/{step:06d}"
