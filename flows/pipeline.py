"""The main job: prepare, train with its evaluations, export."""

from prefect import flow
from rich.console import Console

from flows.export import ExportRequest, export
from flows.names import flow_run_name
from flows.orders import Order
from flows.prepare import prepare
from flows.summary import summary_lines
from flows.train import train
from seeker.config import RunConfig
from seeker.runs import Json, check_out, load_run, read_latest
from tasks.cluster import check_cluster, open_flow_cluster


@flow(name="pipeline", flow_run_name=flow_run_name, persist_result=True, result_serializer="json")
def pipeline(
    preset: str | None = None,
    run_id: str | None = None,
    steps: int | None = None,
    overrides: tuple[str, ...] = (),
    config: RunConfig | None = None,
) -> Json:
    """Prepare, train with the evaluations that are due, evaluate and export.

    The result is ``{"run": "runs/demo", "export": "runs/demo/export", "prepared": {...}}``; a run that was paused on
    the way is not exported.

    Args:
        preset: Name of a preset, or a TOML file. Needed to begin a run; one that is there has its own configuration.
        run_id: Name of the run in runs/, or the path of a run directory. A run that is there goes on.
        steps: Training steps of the whole run.
        overrides: Any other field, as rollout.group_size=4.
        config: A whole configuration instead of a preset.
    """
    config, run_id = Order(preset, run_id, steps, overrides, config).resolve()
    root = config.out_path(run_id)
    check_out(root, config)  # before anything is prepared, started or written
    check_cluster(config)
    prepared = prepare(config=config)
    with open_flow_cluster(config, root / "logs"):
        train(config=config, run_id=run_id, prepared=prepared)
    told = {"run": str(root), "run_id": run_id, "prepared": prepared}
    latest = read_latest(load_run(root))
    if latest is None or latest.next_step < config.steps:
        return told
    exported = export(ExportRequest(run=str(root)))
    Console(highlight=False, soft_wrap=True).print("\n".join(summary_lines(root, exported)))
    return {**told, "export": exported["path"]}
