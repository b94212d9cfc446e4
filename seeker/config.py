"""The configuration of a run: one frozen pydantic model, read from TOML presets.

Unknown keys are errors; no validator rewrites a field; what a run used is written whole into its `run.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys and numbers that are not finite refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyConfig(Section):
    """The starting policy: a local folder in transformers' layout, or a hub name (downloaded only when named)."""

    path: str
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    attention: Literal["eager", "sdpa"] = "sdpa"


class SourceConfig(Section):
    """One source of training questions and its share of the mix (shares are relative)."""

    path: str
    share: Annotated[float, Field(gt=0.0)] = 1.0
    name: str = ""


class QuestionsConfig(Section):
    """Where questions come from. `sources` (files, or ``hub:NAME[:CONFIG[:SPLIT]]``), or a generated world."""

    sources: tuple[SourceConfig, ...] = ()
    heldout: str | None = None
    world_seed: int | None = None  # generate the laptop world with this seed instead of reading sources
    num_train: Positive | None = None  # at most so many questions (all when absent)
    num_heldout: Positive | None = None
    heldout_share: Fraction = 0.2  # of the seeded hash split, when no held-out file is named
    split_seed: int = 0
    skip_bad_records: bool = False

    @model_validator(mode="after")
    def _one_origin(self) -> QuestionsConfig:
        if bool(self.sources) == (self.world_seed is not None):
            raise ValueError("name either questions.sources or questions.world_seed, not both and not neither")
        return self


class CorpusConfig(Section):
    """Corpus file in Search-R1 style; the union of the questions' context paragraphs when absent."""

    path: str | None = None


class IndexConfig(Section):
    """BM25 settings. `stemmer` is a Snowball language or "none"; `stopwords` a bm25s list name or "none"."""

    stemmer: str = "english"
    stopwords: str = "en"
    k1: Annotated[float, Field(gt=0.0)] = 1.5
    b: Fraction = 0.75


class PromptConfig(Section):
    """The texts that the policy reads. `{question}` stands for the question, `{passages}` for rendered passages.

    With `style="chat"` system and user text go through the tokenizer's chat template; with `"plain"` they are
    concatenated; `"auto"` takes chat where the tokenizer has a template.
    """

    style: Literal["auto", "chat", "plain"] = "auto"
    system: str = ""
    user: str = "{question}"
    passage: str = "{title}: {text}"
    passage_separator: str = "\n"
    observation: str = "<information>{passages}</information>"
    no_passages: str = "No passages found."
    searches_spent: str = "No searches are left. Answer now inside <answer> and </answer>."
    malformed: str = "Write one <search>query</search> or one <answer>text</answer>."

    @model_validator(mode="after")
    def _places(self) -> PromptConfig:
        for name, place in (("user", "{question}"), ("passage", "{text}"), ("observation", "{passages}")):
            if place not in getattr(self, name):
                raise ValueError(f"prompt.{name} has no place for {place}: the policy would never read it")
        return self


class RolloutConfig(Section):
    """How trajectories are produced. Three named token limits; nothing is cut silently."""

    prompts_per_step: Positive = 16
    prompts_per_task: Positive = 8
    group_size: Annotated[int, Field(ge=2)] = 8
    max_searches: Count = 4
    top_k: Positive = 3
    max_malformed: Count = 1  # malformed turns that get a corrective observation; the next one ends the trajectory
    max_turn_tokens: Positive = 500
    max_observation_tokens: Positive = 500
    max_trajectory_tokens: Positive = 4096
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    slots: Positive = 64  # sequences in the sampler's batch at once
    max_call_attempts: Positive = 3
    call_deadline_s: Annotated[float, Field(gt=0.0)] = 600.0


class RewardConfig(Section):
    """Weights of the reward's named terms. Every term is logged, whatever its weight."""

    exact_match: float = 1.0
    format_score: float = 0.0
    f1: float = 0.0
    containment: float = 0.0
    function: str | None = None  # "module:function" of a custom reward (seeker.rewards.GroupReward)
    shuffle: bool = False  # control: rewards shuffled within the batch, nothing may be learned from them


class ObjectiveConfig(Section):
    """The clipped policy loss (PPO, arXiv 1707.06347 eq. 7; group-relative advantages: GRPO, arXiv 2402.03300)."""

    clip_low: NonNegative = 0.2
    clip_high: NonNegative = 0.2
    kl_coefficient: NonNegative = 0.0  # k3 estimator to the frozen reference policy
    std_floor: Annotated[float, Field(gt=0.0)] = 1e-6
    normalize: Literal["tokens", "trajectories"] = "tokens"
    updates_per_batch: Positive = 1
    micro_batch_tokens: Positive = 16384
    layout: Literal["padded", "packed"] = "padded"


class OptimizerConfig(Section):
    """AdamW over fp32 masters."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-6
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    weight_decay: NonNegative = 0.0
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    warmup_steps: Count = 0


class PublishingConfig(Section):
    """How weights travel. A delta replaces a tensor whole when more than `whole_tensor_share` of it changed."""

    shard_bytes: Annotated[int, Field(ge=1024, le=500_000_000)] = 256_000_000
    whole_tensor_share: Fraction = 1 / 3
    max_deltas: Annotated[int, Field(ge=1, le=500)] = 400
    anchor_when_deltas_outweigh: Annotated[float, Field(gt=0.0)] = 2.0  # bytes of deltas over bytes of the anchor


class EvaluationConfig(Section):
    """Greedy evaluation on held-out questions: before the first step, every `every` steps, and after the last."""

    every: Count = 10  # 0: only before and after
    num_questions: Positive = 200
    sampled: bool = True  # before and after also at the rollout's temperature, one trajectory a question


class CheckpointConfig(Section):
    """Full trainer state every `every` steps (and after the last one), and which of them are kept.

    The newest `keep` stay, the `keep_best` with the highest greedy held-out exact match, and those of every
    `keep_every`th version. Batches are what the steps after a checkpoint are rebuilt from: "all" keeps every one, so
    that a run can be forked anywhere; "rebuild" only those that a kept checkpoint needs. Published versions are all
    kept: evaluation and export read them.
    """

    every: Positive = 10
    keep: Positive = 2
    keep_best: Count = 0
    keep_every: Count = 0  # 0: none for this reason
    batches: Literal["all", "rebuild"] = "all"


class ClusterConfig(Section):
    """Executors and how to reach the cluster. Without `endpoint` (or FLAME_ENDPOINT) the embedded one is started.

    The trainers share one update: where they share a machine, `trainers` times `trainer_threads` is best its cores.
    A run repeats bit for bit with the number of trainers that it had.
    """

    endpoint: str | None = None
    cache_endpoint: str | None = None
    context: str | None = None  # a named cluster of ~/.flame/flame.yaml
    python: str | None = None  # interpreter of the executors; the project's executor environment when absent
    slots: Positive = 16
    rollouts: Positive = 2  # executors that stay warm
    rollouts_max: Positive | None = None  # while calls wait, up to so many; `rollouts` when absent
    trainers: Positive = 1
    rollout_resources: str = "cpu=1,mem=1g"
    trainer_resources: str = "cpu=1,mem=2g"
    rollout_threads: Positive = 1
    trainer_threads: Positive = 2
    rollout_release_s: Positive = 120
    trainer_release_s: Positive = 86400
    connect_deadline_s: Annotated[float, Field(gt=0.0)] = 10.0
    start_deadline_s: Annotated[float, Field(gt=0.0)] = 120.0
    update_deadline_s: Annotated[float, Field(gt=0.0)] = 1800.0
    rank_deadline_s: Annotated[float, Field(gt=0.0)] = 120.0  # how long trainers wait for one another in one sum
    retry_pause_s: Annotated[float, Field(ge=0.0)] = 1.0  # between tries of what failed, longer each time

    @model_validator(mode="after")
    def _limits(self) -> ClusterConfig:
        if self.rollouts_max is not None and self.rollouts_max < self.rollouts:
            raise ValueError(f"cluster.rollouts_max is {self.rollouts_max}, below cluster.rollouts ({self.rollouts})")
        if self.context and (self.endpoint or self.cache_endpoint):
            raise ValueError("name either cluster.context or cluster.endpoint and cluster.cache_endpoint")
        return self


class RunConfig(Section):
    """Everything that decides a run's result, and how it is executed."""

    preset: str = ""
    out: str | None = None  # the run directory; runs/<run_id> when absent
    seed: int = 0
    steps: Positive = 100
    policy: PolicyConfig
    questions: QuestionsConfig
    corpus: CorpusConfig = CorpusConfig()
    index: IndexConfig = IndexConfig()
    prompt: PromptConfig = PromptConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    publishing: PublishingConfig = PublishingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cluster: ClusterConfig = ClusterConfig()

    def out_path(self, run_id: str) -> Path:
        """The run directory for `run_id`."""
        return Path(self.out) if self.out else Path("runs") / run_id
