"""The commands of `seeker`: each loads its configuration or run, calls one flow and prints what came of it."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from flows.environment import flow_environment
from flows.interruption import telling_how_to_go_on, where_it_stopped
from flows.names import run_id_for
from seeker.cluster.settings import ClusterSettings
from seeker.config import RunConfig
from seeker.errors import ConfigError, LockedError
from seeker.presets import FLAG_FIELDS, SECTION_FLAGS, change_config, load_config, locate
from seeker.program import program
from seeker.questions import check_inputs, check_source
from seeker.retrieval.words import make_words
from seeker.runs import check_out, fork_run, load_run, wanted_version
from seeker.runs.listing import list_runs
from seeker.runs.pausing import request_pause
from seeker.show.listing import print_runs
from seeker.show.reading import find_run, read_run
from seeker.show.samples import read_samples
from seeker.show.terminal import print_run


def prepare(arguments: Namespace) -> None:
    config = _config(arguments)
    with flow_environment("flows.prepare") as flows:
        prepared = flows.prepare(config=config)
    print(f"prepared in {Path(prepared['corpus']).parent}")


def train(arguments: Namespace) -> None:
    config = _config(arguments)
    if config.out:
        _check_out(Path(config.out), config, resume=not arguments.new)
    _reach_cluster(config)
    _train(config, run_id_for(config, None))


def _train(config: RunConfig, run_id: str) -> None:
    with telling_how_to_go_on(config.out_path(run_id)), flow_environment("flows.pipeline") as flows:
        done = flows.pipeline(config=config, run_id=run_id)
    if "export" not in done:  # paused on the way
        print(where_it_stopped(Path(done["run"])))
    print(f"look at it: {program()} show {shlex.quote(done['run'])}")


def _check_out(root: Path, config: RunConfig, *, resume: bool) -> None:
    try:
        check_out(root, config, resume=resume)
    except LockedError as error:
        raise LockedError(f"{error}; for another run choose another --out") from error


def resume(arguments: Namespace) -> None:
    """Under the stored configuration; flags change how far and how it is executed, with a fork also the rest."""
    root = find_run(arguments.run)
    stored = load_run(root)
    config = change_config(stored.config, arguments.overrides, **config_flags(arguments))
    config = _named(config.model_copy(update={"out": str(root)}))
    _reach_cluster(config)
    if arguments.fork is None:
        check_out(root, config)
    else:
        forked = fork_run(root, arguments.fork, config)
        print(f"lineage {forked.lineage} begins after {arguments.fork} steps; what came after is in {root}/lineages")
    _train(config, stored.run_id)


def runs(arguments: Namespace) -> None:
    found = list_runs(Path(arguments.folder))
    if arguments.as_json:
        print(json.dumps([line.to_json() for line in found], indent=1))
    elif found:
        print_runs(found)
    else:
        print(f"no runs in {arguments.folder}")


def evaluate(arguments: Namespace) -> None:
    root = _run_or_folder(arguments.run)
    is_run = (root / "run.json").is_file()
    if is_run and (arguments.preset or arguments.overrides):
        raise ConfigError(f"--preset and --set are for a policy folder: {root} is a run and brings its own protocol")
    config = None if is_run else load_config(arguments.preset or "laptop", arguments.overrides)
    if is_run:
        wanted_version(load_run(root), arguments.version)
    if arguments.questions:
        check_source(arguments.questions)
    _reach_cluster(config or load_run(root).config)
    with flow_environment("flows.evaluate") as flows:
        flows.evaluate(
            flows.EvaluateRequest(
                run=str(root),
                version=arguments.version,
                questions=arguments.questions,
                num_questions=arguments.num_questions,
                modes=tuple(arguments.mode or ["greedy"]),
                config=config,
            )
        )


def export(arguments: Namespace) -> None:
    root = find_run(arguments.run)
    wanted_version(load_run(root), arguments.version)
    with flow_environment("flows.export") as flows:
        done = flows.export(flows.ExportRequest(run=str(root), version=arguments.version, out=arguments.out))
    print(f"policy version {done['policy_version']} exported to {done['path']}")
    print(f"reloaded by transformers: the same {done['compared_tokens']} tokens on greedy questions")


def pause(arguments: Namespace) -> None:
    root = find_run(arguments.run)
    request_pause(root)
    print(f"{root} stops after its next commit; go on with it: {program()} resume {shlex.quote(arguments.run)}")


def serve(arguments: Namespace) -> None:
    from flows.serving.place import Place, default_place
    from flows.serving.supervisor import Supervisor, choose_port

    place = Place(Path(arguments.home).resolve()) if arguments.home else default_place()
    with place.hold():
        Supervisor(place, choose_port(arguments.port), say=partial(print, flush=True)).run()


def show(arguments: Namespace) -> None:
    view = read_run(find_run(arguments.run))
    policy = locate(view.config.policy.path)
    samples = read_samples(view.root, policy, arguments.trajectories, arguments.step)
    print_run(view, samples)
    if arguments.png:
        from seeker.show.picture import draw_picture

        _write("--png", arguments.png, draw_picture(view))
        print(f"picture: {arguments.png}")
    if arguments.html:
        from seeker.show.page import render_page

        _write("--html", arguments.html, render_page(view, samples).encode())
        print(f"page: {arguments.html}")


def _write(flag: str, path: str, data: bytes) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be written ({error.strerror}); name a file in a folder") from error


def config_flags(arguments: Namespace) -> dict[str, Any]:
    """The flags that `load_config` understands, by field-like name; None where one was not given."""
    return {name: getattr(arguments, name, None) for name in (*FLAG_FIELDS, *SECTION_FLAGS)}


def _config(arguments: Namespace) -> RunConfig:
    """The configuration, with what it names looked at: Prefect takes seconds to start, a bad name should not."""
    return _named(load_config(arguments.preset, arguments.overrides, **config_flags(arguments)))


def _named(config: RunConfig) -> RunConfig:
    """The configuration, when what it names is there."""
    check_inputs(config.questions, config.corpus.path)
    make_words(config.index)
    if not config.policy.path.startswith("hub:") and not Path(locate(config.policy.path)).is_dir():
        raise ConfigError(
            f"policy.path {config.policy.path!r}: no such folder; name one in transformers' layout, or hub:NAME"
        )
    return config


def _reach_cluster(config: RunConfig) -> None:
    """Raise where a cluster is named that does not answer. The flows look again: others start them, too."""
    cluster = config.cluster
    if cluster.endpoint or cluster.context or ClusterSettings().address() is not None:
        from tasks.cluster import check_cluster  # loads half a second of libraries

        check_cluster(config)


def _run_or_folder(text: str) -> Path:
    """A policy folder as it is, else a run directory."""
    return Path(text) if (Path(text) / "config.json").is_file() else find_run(text)
