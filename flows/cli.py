"""`seeker …`: a thin command line over the flows.

Nothing heavy is imported before the arguments are understood: `seeker --help` and a mistyped flag answer at once.
Exit codes: 0 done, 1 a failure, 2 input that cannot be used, 130 interrupted, 143 told to end.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flows.cluster_flags import add_cluster
from flows.interruption import Terminated
from flows.told_once import was_shown
from seeker import errors
from seeker.errors import CallError, ConfigError, InfrastructureError, SeekerError, StorageError
from seeker.nearest import nearest


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. The console script `seeker`."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        if arguments.command == "cluster":  # needs none of what the flows import
            from seeker.cluster import commands as cluster_commands

            return getattr(cluster_commands, arguments.action)(arguments)
        from flows import commands

        getattr(commands, arguments.command)(arguments)
        return 0
    except SeekerError as error:
        text, code = describe(error)
        print(f"seeker: error: {text}", file=sys.stderr)
        return code
    except KeyboardInterrupt as stop:
        print(f"seeker: {stop}" if stop.args else "seeker: interrupted", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing to flush into
        return 0
    except Exception as error:
        if not was_shown(error):
            raise
        print(f"seeker: unexpected {type(error).__name__}: {error} (its traceback is above)", file=sys.stderr)
        return 1


def describe(error: SeekerError) -> tuple[str, int]:
    """What to print and the exit code. An executor's refusal of its input reads like one of this process."""
    if isinstance(error, CallError):
        kind = getattr(errors, error.remote_type.rpartition(".")[2], None)
        if isinstance(kind, type) and issubclass(kind, SeekerError):
            text = str(error).partition("\n--- remote traceback")[0]
            return text, 1 if issubclass(kind, InfrastructureError | StorageError) else 2
    return str(error), 1 if isinstance(error, InfrastructureError | StorageError) else 2


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of one command. An unknown command or flag is a `ConfigError` that names the nearest."""
    parser, commands = _parsers()
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        known = ", ".join(commands)
        raise ConfigError(f"unknown command {argv[0]!r}{nearest(argv[0], commands)} (commands: {known})")
    arguments, unknown = parser.parse_known_args(argv)
    for word in unknown:
        flag = word.partition("=")[0]
        if flag.startswith("-"):
            known = commands[arguments.command].innermost(arguments).flags
            raise ConfigError(f"{arguments.command}: unknown flag {flag!r}{nearest(flag, known)}")
    if unknown:
        raise ConfigError(f"{arguments.command}: unexpected argument {unknown[0]!r}")
    return arguments


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are `ConfigError`s and that knows its own flags."""

    def __init__(self, **settings: Any) -> None:
        self.flags: list[str] = []
        self.subcommands: dict[str, _Parser] = {}
        super().__init__(allow_abbrev=False, **settings)

    def innermost(self, arguments: argparse.Namespace) -> _Parser:
        """The parser of the subcommand that was given, if there are any."""
        return self.subcommands.get(getattr(arguments, "action", ""), self)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        self.flags += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see `{self.prog} --help`)")


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(prog="seeker", description="Train a language model that learns to search.")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    commands: dict[str, _Parser] = {}
    for name, text, add in (
        ("prepare", "check questions, build the index, report what retrieval can reach", _add_prepare),
        ("train", "prepare, train, evaluate and export", _add_train),
        ("resume", "go on with a run from its last commit, or fork it from an earlier one", _add_resume),
        ("runs", "list the runs of a folder: how far they are, and why they stopped", _add_runs),
        ("evaluate", "evaluate a policy version of a run on held-out or other questions", _add_evaluate),
        ("export", "write a policy version of a run as a Hugging Face folder", _add_export),
        ("show", "look at a run, finished or not", _add_show),
        ("pause", "stop a run after its next commit, to be gone on with", _add_run),
        ("serve", "run Prefect's server, a worker and the deployments on this machine", _add_serve),
        ("cluster", "start, look at, clean up or end a cluster that flows share", add_cluster),
    ):
        commands[name] = subparsers.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        add(commands[name])
    return parser, commands


def _add_prepare(parser: _Parser) -> None:
    _add_preset(parser)
    _add_sources(parser)


def _add_preset(parser: _Parser) -> None:
    parser.add_argument("--preset", default="laptop", help="preset name or TOML file (default: laptop)")


def _add_sources(parser: _Parser) -> None:
    parser.add_argument(
        "--questions",
        action="append",
        metavar="PATH[=SHARE]",
        help="question file or hub:NAME[:CONFIG[:SPLIT]]; repeat to mix sources; replaces the preset's questions",
    )
    parser.add_argument("--heldout", metavar="PATH", help="held-out questions (default: a seeded fifth of --questions)")
    parser.add_argument("--corpus", metavar="PATH", help="corpus file (default: the questions' context paragraphs)")
    parser.add_argument("--skip-bad-records", action="store_true", default=None, help="count bad records, do not stop")
    _add_set(parser)


def _add_train(parser: _Parser) -> None:
    _add_preset(parser)
    _add_run_fields(parser)
    parser.add_argument("--out", metavar="DIR", help="the run directory (default: runs/RUN_ID)")
    parser.add_argument("--new", action="store_true", help="refuse to go on with a run that is in --out already")


def _add_resume(parser: _Parser) -> None:
    _add_run(parser)
    parser.add_argument(
        "--fork",
        type=_whole_number(0),
        metavar="N",
        help="keep the first N steps and go on from there as a new lineage, whose settings may differ; "
        "what came after them is kept in RUN/lineages",
    )
    _add_run_fields(parser)


def _add_runs(parser: _Parser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", metavar="FOLDER", help="where they are (default: runs)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON, one object a run")


def _add_run_fields(parser: _Parser) -> None:
    _add_sources(parser)
    parser.add_argument("--model", metavar="PATH", help="starting policy: a folder, or hub:NAME")
    for flag, text in (
        ("--steps", "training steps"),
        ("--prompts-per-step", "questions in one step"),
        ("--prompts-per-task", "questions in one rollout call"),
        ("--group-size", "trajectories per question"),
        ("--rollouts", "rollout executors"),
        ("--trainers", "trainer executors"),
        ("--seed", "seed of everything that is drawn"),
    ):
        parser.add_argument(flag, type=int, metavar="N", help=text)


def _add_evaluate(parser: _Parser) -> None:
    _add_run(parser, "a run directory, the id of a run in runs/, or a policy folder")
    parser.add_argument("--version", type=_whole_number(0), metavar="N", help="policy version (default: the latest)")
    parser.add_argument("--questions", metavar="PATH", help="question file (default: the run's held-out questions)")
    parser.add_argument("--num-questions", type=_whole_number(1), metavar="N", help="at most so many questions")
    parser.add_argument(
        "--mode", action="append", choices=("greedy", "sampled"), help="default greedy; repeat the flag for both"
    )
    parser.add_argument("--preset", help="protocol and corpus for a policy folder (default: laptop); a run has its own")
    _add_set(parser)


def _add_export(parser: _Parser) -> None:
    _add_run(parser)
    parser.add_argument("--version", type=_whole_number(0), metavar="N", help="policy version (default: the latest)")
    parser.add_argument("--out", metavar="DIR", help="folder to write (default: RUN/export)")


def _add_show(parser: _Parser) -> None:
    _add_run(parser)
    parser.add_argument(
        "--trajectories", type=_whole_number(0), default=3, metavar="N", help="sample trajectories (default: 3)"
    )
    parser.add_argument(
        "--step", type=_whole_number(0), metavar="N", help="step of the trajectories (default: the last)"
    )
    parser.add_argument("--html", metavar="FILE", help="also write a page that needs nothing else")
    parser.add_argument("--png", metavar="FILE", help="also write the curves as a picture")


def _add_serve(parser: _Parser) -> None:
    parser.add_argument("--port", type=_whole_number(1), metavar="N", help="port of the pages (default: 4200 or any)")
    parser.add_argument("--home", metavar="DIR", help="database, results and logs (default: .prefect in the project)")


def _add_run(parser: _Parser, text: str = "a run directory, or the id of a run in runs/") -> None:
    parser.add_argument("run", metavar="RUN", help=text)


def _whole_number(low: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` on."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} on, found {text!r}")
        return int(text)

    return number


def _add_set(parser: _Parser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.FIELD=VALUE",
        help="any other field, for example rollout.temperature=0.8 (repeatable; wins over flags)",
    )


if __name__ == "__main__":
    sys.exit(main())
