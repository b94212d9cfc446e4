"""Sample trajectories of a run as text by author, decoded with the run's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from seeker.errors import PolicyError, RunDirectoryError
from seeker.types import Author, TokenIds, Trajectory

Decode = Callable[[TokenIds], str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory to look at. Example: ``Sample(title="q7 …", facts="reward 1.00 · 2 searches · answered",
    parts=((Author.USER, "Who …?"), (Author.POLICY, "<search>Ama</search>"), …))``.
    """

    title: str
    facts: str
    parts: tuple[tuple[Author, str], ...]


def read_samples(root: Path, tokenizer_path: str, count: int, step: int | None = None) -> list[Sample]:
    """`count` trajectories of one step (the last that has any), from the best reward to the worst."""
    files = _rollout_files(root, step)
    if not files or count < 1:
        return []
    from seeker.trajectories import decode_trajectories

    trajectories = [each for file in files for each in decode_trajectories(file.read_bytes())]
    decode = load_decoder(tokenizer_path)
    return [_sample(each, decode) for each in choose(trajectories, count)]


def choose(trajectories: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """Evenly from the best reward to the worst, of different questions as far as there are enough."""
    ranked = sorted(trajectories, key=lambda each: (-each.reward, -len(each.searches), each.group_id, each.index))
    seen: set[str] = set()
    firsts = [each for each in ranked if not (each.group_id in seen or seen.add(each.group_id))]
    worst = {each.group_id: each for each in ranked}
    spread = firsts if len(firsts) >= count else ranked
    count = min(count, len(spread))
    places = [round(i * (len(spread) - 1) / max(1, count - 1)) for i in range(count)]
    chosen = [spread[place] for place in places]
    if count > 1 and spread is firsts:
        chosen[-1] = worst[chosen[-1].group_id]
    return chosen


def load_decoder(path: str) -> Decode:
    """Ids to text with the tokenizer of a policy folder or hub name. A folder's tokenizer needs no transformers."""
    file = Path(path) / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(file))
        return lambda ids: fast.decode(ids.tolist(), skip_special_tokens=False)
    slow = _hub_tokenizer(path)
    return lambda ids: str(slow.decode(ids.tolist()))


def _hub_tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return cast("Any", AutoTokenizer).from_pretrained(path.removeprefix("hub:"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path}: no tokenizer there ({error}); pass --trajectories 0 to show the rest") from error


def printable(text: str) -> str:
    """Without characters that would steer a terminal: a policy can write any bytes."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def _sample(trajectory: Trajectory, decode: Decode) -> Sample:
    parts = [
        (author, printable("".join(decode(span.token_ids) for span in spans)))
        for author, spans in groupby(trajectory.spans, key=lambda span: span.author)
    ]
    searches = len(trajectory.searches)
    facts = [f"reward {trajectory.reward:.2f}", f"{searches} search{'' if searches == 1 else 'es'}"]
    facts += [trajectory.stop_reason.value.replace("_", " ")]
    if trajectory.answer is not None:
        facts.append(f"answer {printable(trajectory.answer)!r}")
    return Sample(f"{trajectory.group_id} #{trajectory.index}", " · ".join(facts), tuple(parts))


def _rollout_files(root: Path, step: int | None) -> list[Path]:
    steps = sorted(path.parent for path in root.glob("steps/*/rollouts") if any(path.glob("*.parquet")))
    if step is not None:
        wanted = [path for path in steps if int(path.name) == step]
        if not wanted:
            known = f"0 to {int(steps[-1].name)}" if steps else "none yet"
            raise RunDirectoryError(f"{root}: no trajectories of step {step} (steps with trajectories: {known})")
        steps = wanted
    return sorted(steps[-1].glob("rollouts/*.parquet")) if steps else []
