"""Evaluation of any policy version of a run, or of a plain policy folder, on any question set.

Everything is read from the run directory, so the run need not be alive. Doing it again with the same policy, questions
and protocol returns the stored evaluation at once. Without a run, the missing evaluations of all runs are done.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prefect import flow

from flows.missing import find_missing, heldout_of, run_folders
from flows.names import flow_run_name
from flows.prepare import prepare, prepared_again
from flows.progress import print_evaluations
from seeker.cluster.client import Cluster, Service
from seeker.config import ClusterConfig, Positive, RunConfig, Section
from seeker.errors import ConfigError, InfrastructureError, LockedError, SeekerError
from seeker.questions import load_questions, read_questions
from seeker.runs import Json, load_run, published_manifest, wanted_version, write_metrics, writer_lock
from seeker.show.reading import find_run
from tasks.calls import is_infrastructure
from tasks.cluster import check_cluster, open_flow_cluster, start_rollouts
from tasks.counting import counting
from tasks.evaluation import Bench, Candidate, Mode, QuestionSet, evaluate_policy
from tasks.identity import policy_digest, run_digests


class EvaluateRequest(Section):
    """What to evaluate.

    Example: ``EvaluateRequest(run="demo", version=10)``: version 10 on the run's own held-out questions, greedy.
    """

    run: str  # a run in runs/, a run directory, or a policy folder in transformers' layout
    version: int | None = None  # of a run; the latest when absent
    questions: str | None = None  # a question file; the held-out questions when absent
    num_questions: Positive | None = None
    modes: tuple[Literal["greedy", "sampled"], ...] = ("greedy",)
    config: RunConfig | None = None  # protocol and index for a policy folder; a run brings its own
    out: str | None = None  # where the evaluations of a policy folder land; evaluated/<name>-<digest> when absent
    cluster: ClusterConfig | None = None  # where it runs, when not as the run did


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is evaluated, resolved."""

    config: RunConfig
    root: Path
    candidate: Candidate
    facts: Json
    prepared: Json


@flow(name="evaluate", flow_run_name=flow_run_name, persist_result=True, result_serializer="json")
def evaluate(request: EvaluateRequest | None = None) -> list[Json]:
    """Evaluate one policy, or what is missing in all runs; the evaluations as written to `evaluations/`.

    Args:
        request: Which policy, on which questions. Absent: every run in runs/ that nobody writes, wherever an evaluation
            that was due, or that of its latest version, is missing.
    """
    if request is None:
        return _catch_up(Path("runs"))
    is_folder = (Path(request.run) / "config.json").is_file()
    subject = _folder_subject(request) if is_folder else _run_subject(request)
    questions = _questions(request, subject)
    done = _evaluate_all(subject, questions, [(subject.candidate, mode) for mode in request.modes])
    print(f"results and trajectories: {subject.root / 'evaluations'}")
    return done


def _catch_up(folder: Path) -> list[Json]:
    """The missing evaluations of every run in `folder`. A run that fails does not keep the others from theirs."""
    done: list[Json] = []
    failures: list[SeekerError] = []
    for root in run_folders(folder):
        try:
            missing = find_missing(root)
            failures += [_told(root, error) for error in missing.damaged]
            if missing.wanted:
                subject = _run_subject(EvaluateRequest(run=str(root)))
                print(f"{root}: {len(missing.wanted)} evaluations are missing")
                done += _evaluate_all(subject, heldout_of(load_run(root), subject.prepared), missing.wanted, failures)
        except SeekerError as error:
            failures.append(_told(root, error))
    if not done:
        print(f"nothing is missing in {folder}/" if not failures else "nothing was evaluated")
    if failures:
        raise failures[0]
    return done


def _told(root: Path, error: SeekerError) -> SeekerError:
    print(f"{root}: {error}")
    return error


def _evaluate_all(
    subject: _Subject,
    questions: QuestionSet,
    wanted: Sequence[tuple[Candidate, Mode]],
    failures: list[SeekerError] | None = None,
) -> list[Json]:
    """Evaluate on executors of their own, gone at the end.

    With `failures` a version that cannot be evaluated (damaged, most likely) is added there and keeps no other from it.
    """
    done: list[Json] = []
    with open_flow_cluster(subject.config, subject.root / "logs") as cluster:
        index = Path(subject.prepared["index"])
        rollouts = start_rollouts(cluster, subject.config, index, f"evaluate-{subject.root.name}")
        try:
            for candidate, mode in wanted:
                try:
                    done.append(_evaluate(replace(subject, candidate=candidate), cluster, rollouts, questions, mode))
                except InfrastructureError as error:
                    if failures is None or is_infrastructure(error):
                        raise
                    failures.append(_told(subject.root, error))
        finally:
            rollouts.close()
    _refresh_metrics(subject.root)
    print_evaluations(done)
    return done


def _refresh_metrics(root: Path) -> None:
    """Show the evaluation in the run's curve; a run that is being written does so itself."""
    if not (root / "metrics.jsonl").is_file():
        return
    try:
        with writer_lock(root):
            write_metrics(load_run(root))
    except LockedError:
        return


def _evaluate(subject: _Subject, cluster: Cluster, rollouts: Service, questions: QuestionSet, mode: Mode) -> Json:
    """One mode, with a line of progress in a terminal."""
    num_done = 0
    with counting(f"evaluating version {subject.candidate.version}, {mode}", len(questions.questions)) as show:

        def on_done(num_questions: int) -> None:
            nonlocal num_done
            num_done += num_questions
            show(num_done)

        bench = Bench(subject.config, cluster, rollouts, subject.root, subject.facts, on_done)
        return evaluate_policy(bench, subject.candidate, questions, mode)


def _run_subject(request: EvaluateRequest) -> _Subject:
    """A committed version of a run, loaded from the run directory's own anchors and deltas."""
    run = load_run(find_run(request.run))
    version = wanted_version(run, request.version)
    told = run.describe()
    config = run.config.model_copy(update={"cluster": request.cluster or run.config.cluster})
    check_cluster(config)
    candidate = Candidate(version, published_manifest(run, version), str(run.policy_folder.resolve()))
    return _Subject(config, run.root, candidate, told["digests"], prepared_again(run))


def _folder_subject(request: EvaluateRequest) -> _Subject:
    """A policy folder under the protocol of `request.config`; its evaluations land in `request.out`."""
    if request.config is None:
        raise ConfigError(f"{request.run}: not a run directory; name a preset to evaluate a policy folder with")
    policy = request.config.policy.model_copy(update={"path": request.run})
    cluster = request.cluster or request.config.cluster
    config = request.config.model_copy(update={"policy": policy, "cluster": cluster})
    check_cluster(config)
    prepared = prepare(config=config)
    facts = run_digests(config, prepared)
    digest = policy_digest(request.run)
    root = Path(request.out or Path("evaluated") / f"{Path(request.run).resolve().name}-{str(digest)[:8]}")
    root.mkdir(parents=True, exist_ok=True)
    return _Subject(config, root, Candidate(0, None, folder_digest=digest), facts, prepared)


def _questions(request: EvaluateRequest, subject: _Subject) -> QuestionSet:
    if request.questions is None:
        questions, name = read_questions(subject.prepared["heldout"]), "heldout"
    else:
        questions, name = load_questions(request.questions).questions, Path(request.questions).stem
    limit = request.num_questions or (subject.config.evaluation.num_questions if name == "heldout" else None)
    chosen = QuestionSet(name, tuple(questions[:limit]))
    standard = name == "heldout" and limit == subject.config.evaluation.num_questions
    return chosen if standard else QuestionSet(f"{name}-{chosen.digest[:8]}", chosen.questions)
