"""The commands of `seeker`: each loads its configuration or run, calls one flow and prints what came of it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from flows.cli import config_flags
from flows.environment import prepare_environment, run_quietly
from seeker.config import RunConfig
from seeker.presets import load_config


def prepare(arguments: Namespace) -> None:
    config = _config(arguments)
    _start()
    from flows.prepare import prepare as flow

    with run_quietly():
        prepared = flow(config)
    print(f"prepared in {Path(prepared['corpus']).parent}")


def train(arguments: Namespace) -> None:
    config = _config(arguments)
    _start()
    from flows.pipeline import pipeline as flow

    with run_quietly():
        flow(config)


def evaluate(arguments: Namespace) -> None:
    root = _run_or_folder(arguments.run)
    is_run = (root / "run.json").is_file()
    config = None if is_run else load_config(arguments.preset, arguments.overrides)
    _start()
    from flows.evaluate import EvaluateRequest
    from flows.evaluate import evaluate as flow

    request = EvaluateRequest(
        run=str(root),
        version=arguments.version,
        questions=arguments.questions,
        num_questions=arguments.num_questions,
        modes=tuple(arguments.mode or ["greedy"]),
        config=config,
    )
    with run_quietly():
        flow(request)


def export(arguments: Namespace) -> None:
    from seeker.show.reading import find_run

    root = find_run(arguments.run)
    _start()
    from flows.export import ExportRequest
    from flows.export import export as flow

    with run_quietly():
        done = flow(ExportRequest(run=str(root), version=arguments.version, out=arguments.out))
    print(f"policy version {done['policy_version']} exported to {done['path']}")
    print(f"reloaded by transformers: the same {done['compared_tokens']} tokens on greedy questions")


def show(arguments: Namespace) -> None:
    from seeker.presets import locate
    from seeker.show.reading import find_run, read_run
    from seeker.show.samples import read_samples
    from seeker.show.terminal import print_run

    view = read_run(find_run(arguments.run))
    policy = locate(view.config.policy.path)
    samples = read_samples(view.root, policy, arguments.trajectories, arguments.step)
    print_run(view, samples)
    if arguments.png:
        from seeker.show.picture import draw_picture

        Path(arguments.png).write_bytes(draw_picture(view))
        print(f"picture: {arguments.png}")
    if arguments.html:
        from seeker.show.page import render_page

        Path(arguments.html).write_text(render_page(view, samples), encoding="utf-8")
        print(f"page: {arguments.html}")


def _start() -> None:
    """Prefect's settings; a word on the wait, which is Prefect's server coming up."""
    if prepare_environment() is not None:
        print(
            "starting Prefect on this machine (some 10 seconds; PREFECT_API_URL names a server instead) …", flush=True
        )


def _config(arguments: Namespace) -> RunConfig:
    return load_config(arguments.preset, arguments.overrides, **config_flags(arguments))


def _run_or_folder(text: str) -> Path:
    """A policy folder as it is, else a run directory."""
    from seeker.show.reading import find_run

    return Path(text) if (Path(text) / "config.json").is_file() else find_run(text)
