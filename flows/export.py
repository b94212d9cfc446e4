"""A policy version of a run as a Hugging Face folder, reloaded by transformers and compared token for token."""

from pathlib import Path

from prefect import flow

from flows.names import flow_run_name
from flows.prepare import prepared_again
from seeker.config import Positive, Section
from seeker.errors import PolicyError
from seeker.questions import read_questions
from seeker.runs import Json, load_run, published_manifest, wanted_version
from tasks.exporting import check_folder, compare_policy, draft_folder, save_policy


class ExportRequest(Section):
    """What to export. Example: ``ExportRequest(run="runs/demo")``: the latest version into ``runs/demo/export``."""

    run: str
    version: int | None = None
    out: str | None = None
    num_questions: Positive = 8  # compared between our sampler and transformers


@flow(name="export", flow_run_name=flow_run_name, persist_result=True, result_serializer="json")
def export(request: ExportRequest) -> Json:
    """Write the folder and check it: ``{"path": "runs/demo/export", "compared_tokens": 412, "digest": "9f…"}``."""
    run = load_run(Path(request.run))
    version = wanted_version(run, request.version)
    out = Path(request.out) if request.out else run.root / "export"
    check_folder(out, may_replace=request.out is None)
    prepared = prepared_again(run)
    questions = read_questions(prepared["heldout"])[: request.num_questions]
    with draft_folder(out) as draft:
        digest = save_policy(run.config, published_manifest(run, version), run.policy_folder, draft)
        compared = compare_policy(run.config, draft, Path(prepared["index"]), questions, version)
        if compared["differences"]:
            raise PolicyError(
                f"{out}: the exported folder would answer otherwise than the trained policy: "
                f"{compared['differences'][0]}; nothing was written"
            )
    return {"path": str(out), "policy_version": version, "digest": digest, "compared_tokens": compared["tokens"]}
