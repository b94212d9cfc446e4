"""Questions and corpus -> checked splits -> BM25 index -> ceiling report.

What is prepared stands in ``prepared/<digest>/``, named by the content of all inputs and by the settings, and the index
beside it in ``prepared/indexes/``: preparing the same again checks the files and does nothing. The folder is the truth;
Prefect's cache is not asked.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow
from rich.console import Console

from flows.orders import Order
from seeker.config import RunConfig
from seeker.errors import DataError
from seeker.presets import project_root
from seeker.questions import check_inputs, input_digests
from seeker.retrieval.bm25 import index_versions
from seeker.retrieval.ceiling import ceiling_table, read_ceiling
from seeker.retrieval.memory import describe_load
from seeker.retrieval.storage import DamagedFolderError, check_folder, make_folder
from seeker.retrieval.words import make_words
from seeker.runs import RunDirectory
from tasks import corpus as corpus_tasks
from tasks import index as index_tasks

FORMAT = 1  # raised when what is written changes its meaning
FILES = {"train": "train.jsonl", "heldout": "heldout.jsonl", "corpus": "corpus.jsonl", "ceiling": "ceiling.json"}


@flow(name="prepare", flow_run_name="prepare", persist_result=True, result_serializer="json")
def prepare(
    preset: str | None = None,
    overrides: tuple[str, ...] = (),
    config: RunConfig | None = None,
    root: str | None = None,
) -> dict[str, Any]:
    """Check questions and corpus, build the index, report what retrieval can reach.

    The result holds absolute paths by name, their sha256, and counts: ``{"digest": "ab12...", "train":
    ".../train.jsonl", "heldout": "...", "corpus": "...", "index": "...", "ceiling": "...", "sha256": {"train":
    "9f..."}, "counts": {"train": 240, "heldout": 60, "corpus": 2958}}``.

    Args:
        preset: Name of a preset, or a TOML file.
        overrides: Any other field, as questions.world_seed=3.
        config: A whole configuration instead of a preset.
        root: Folder for what is prepared; prepared/ in the project when absent.
    """
    config, _ = Order(preset, overrides=overrides, config=config).resolve()
    return prepare_in(Path(root or project_root() / "prepared"), config)


def prepared_again(run: RunDirectory) -> dict[str, Any]:
    """What `run` was prepared with; made again from the run's own configuration where its files are gone.

    Raises `DataError` when that gives other questions or another corpus than the run had.
    """
    told: dict[str, Any] = run.describe()["prepared"]
    if all(Path(told[name]).exists() for name in ("train", "heldout", "corpus", "index")):
        return told
    again = prepare(config=run.config)
    changed = [name for name in ("train", "heldout", "corpus") if again["sha256"][name] != told["sha256"][name]]
    if changed:
        raise DataError(
            f"{run.root}: its prepared files are gone, and made again they differ ({', '.join(changed)}): the sources "
            "that run.json names have changed; put back the files that the run was made with"
        )
    return again


@dataclass(frozen=True, slots=True)
class Phases:
    """The three phases in their order; the tasks, or in a test their bodies."""

    corpus: Callable[..., dict[str, Any]] = corpus_tasks.corpus
    index: Callable[..., dict[str, Any]] = index_tasks.index
    ceiling: Callable[..., dict[str, Any]] = index_tasks.ceiling


def prepare_in(base: Path, config: RunConfig, phases: Phases | None = None) -> dict[str, Any]:
    """The body of the flow: everything stands below `base`."""
    phases = phases or Phases()
    make_words(config.index)  # a wrong stemmer or stop word list is an error before anything is read
    check_inputs(config.questions, config.corpus.path)
    base = base.resolve()
    digest = preparation_digest(config)
    make_folder(base / digest, lambda part: _prepare(config, digest, part, base / "indexes", phases))
    handle = _handle(base / digest, base / "indexes")
    _restore_index(config, handle, phases)
    _print(handle)
    return handle


def preparation_digest(config: RunConfig) -> str:
    """16 hex digits of everything that decides what is prepared."""
    generated = config.questions.world_seed is not None
    facts = {
        "format": FORMAT,
        "settings": config.model_dump(mode="json", include={"questions", "corpus", "index"}),
        "top_k": config.rollout.top_k,
        "inputs": input_digests(config.questions, config.corpus.path),
        "generator": _generator_digest() if generated else None,
        "versions": index_versions(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _generator_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted((project_root() / "data").glob("*.py")):
        digest.update(path.name.encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()


def _prepare(config: RunConfig, digest: str, folder: Path, indexes: Path, phases: Phases) -> dict[str, Any]:
    facts = phases.corpus(config, digest, str(folder))
    built = phases.index(config, digest, str(folder), str(indexes))
    reported = phases.ceiling(config, digest, str(folder), str(indexes / built["index"]))
    return facts | built | {"sha256": facts["sha256"] | {"ceiling": reported["sha256"]}}


def _handle(folder: Path, indexes: Path) -> dict[str, Any]:
    manifest = check_folder(folder, digests=False)
    paths = {name: str(folder / file) for name, file in FILES.items()}
    facts = {name: manifest[name] for name in ("sha256", "counts", "sources", "num_skipped", "skipped")}
    return {"digest": folder.name} | paths | {"index": str(indexes / manifest["index"])} | facts


def _restore_index(config: RunConfig, handle: dict[str, Any], phases: Phases) -> None:
    """Build the index again where it was removed or damaged since the folder was written."""
    folder, index = Path(handle["corpus"]).parent, Path(handle["index"])
    try:
        check_folder(index)
    except DamagedFolderError:
        phases.index(config, handle["digest"], str(folder), str(index.parent))


def _print(handle: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for name, source in handle["sources"].items():
        console.print(f"{name}: {source['taken']} of {source['of']} questions")
    if handle["num_skipped"]:
        console.print(f"left out {handle['num_skipped']} bad records, such as:", *handle["skipped"], sep="\n  ")
    console.print(f"index: {describe_load(Path(handle['index']), handle['counts']['corpus'])}")
    console.print(ceiling_table(read_ceiling(Path(handle["ceiling"]))))
