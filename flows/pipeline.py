"""The main job: prepare, train with its evaluations, export."""

from pathlib import Path

from prefect import flow
from rich.console import Console

from flows.export import ExportRequest, export
from flows.names import flow_run_name, run_id_for
from flows.prepare import prepare
from flows.summary import summary_lines
from flows.train import train
from seeker.config import RunConfig
from seeker.runs import Json, check_out
from tasks.cluster import check_trainers, open_flow_cluster


@flow(name="pipeline", flow_run_name=flow_run_name, persist_result=True, result_serializer="json")
def pipeline(config: RunConfig, run_id: str | None = None) -> Json:
    """All of it; ``{"run": "runs/demo", "export": "runs/demo/export", "prepared": {...}}``."""
    run_id = run_id_for(config, run_id)
    root = config.out_path(run_id)
    check_out(root, config)  # before anything is prepared, started or written
    check_trainers(config)
    prepared = prepare(config)
    with open_flow_cluster(config, root / "logs"):
        trained = train(config, run_id, prepared)
    exported = export(ExportRequest(run=trained["run"]))
    Console(highlight=False, soft_wrap=True).print("\n".join(summary_lines(Path(trained["run"]), exported)))
    return {"run": trained["run"], "run_id": run_id, "export": exported["path"], "prepared": prepared}
