"""Demonstrations: trajectories as text, right in form and, by set shares, wrong in substance.

The reader is always right about what it quotes. What is wrong is what it chooses to do: it answers without a search,
asks for the wrong thing, stops after the first hop, follows the wrong name, or quotes the wrong fact. So reinforcement
has something to choose from. Made from training halves only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data.entities import Half
from data.kinds import Hop, Plan
from seeker.types import Author, Document

Search = Callable[[str], Sequence[Document]]  # query -> passages, best first


@dataclass(frozen=True, slots=True)
class Segment:
    """Text with one author. Example: ``Segment(Author.POLICY, "<search> Velm</search>")``."""

    author: Author
    text: str


@dataclass(frozen=True, slots=True)
class Noise:
    """How often a demonstration chooses wrongly, at each place where it can. All zero: always right.

    Example: ``Noise(stop_early=0.6)`` answers with the bridge entity in three of five two-hop questions.
    """

    no_search: float = 0.0  # answers with a name from the question
    bad_query: float = 0.0  # the first search asks for the wrong thing
    recover: float = 0.5  # after a bad query: searches again, rightly
    stop_early: float = 0.0  # answers with what the first of two hops found
    wrong_hop: float = 0.0  # the second search follows another name of the passage
    wrong_fact: float = 0.0  # the last thought quotes another fact


CLEAN = Noise()


@dataclass(frozen=True, slots=True)
class Texts:
    """How prompt and observations are rendered; the same as the laptop preset's `prompt` section."""

    user: str = "{question}\n"
    passage: str = " {title}: {text}"
    passage_separator: str = "\n"
    observation: str = "<information>{passages}</information>"
    no_passages: str = " nothing found"


class Demonstrator:
    """Writes demonstrations about one half of a world, over its own index."""

    def __init__(
        self, half: Half, search: Search, noise: Noise, rng: random.Random, texts: Texts | None = None
    ) -> None:
        self.half = half
        self.search = search
        self.noise = noise
        self.rng = rng
        self.texts = texts or Texts()

    def write(self, plan: Plan) -> list[Segment]:
        """One demonstration of `plan`, prompt first."""
        prompt = Segment(Author.USER, self.texts.user.format(question=plan.text))
        return [prompt, *self._follow(plan)]

    def _follow(self, plan: Plan) -> list[Segment]:
        first = plan.hops[0]
        thought = f" look for {first.query}"
        if self._happens(self.noise.no_search):
            return [_answer(thought, self.rng.choice(first.titles))]
        segments: list[Segment] = []
        if self._happens(self.noise.bad_query):
            query = self._bad_query(plan)
            passages, segments = self._search(f" look for {query}", query)
            if not self._happens(self.noise.recover):
                return [*segments, self._careless_answer(passages, first.titles)]
        segments += self._search(thought, first.query)[1]
        return [*segments, *self._go_on(plan)]

    def _go_on(self, plan: Plan) -> list[Segment]:
        """What follows the first observation."""
        first, last = plan.hops[0], plan.hops[-1]
        if first is last:
            return [self._last_answer(last)]
        if self._happens(self.noise.stop_early):
            return [_answer(f" {first.cue} {first.found}", first.found)]
        if self._happens(self.noise.wrong_hop):
            cue, name = self._other_name(first)
            passages, segments = self._search(f" {cue} {name}", name)
            return [*segments, self._careless_answer(passages, first.titles)]
        segments = self._search(f" {first.cue} {first.found}", first.found)[1]
        return [*segments, self._last_answer(last)]

    def _last_answer(self, hop: Hop) -> Segment:
        cue, found = self.rng.choice(hop.others) if self._happens(self.noise.wrong_fact) else (hop.cue, hop.found)
        return _answer(f" {cue} {found}", found)

    def _careless_answer(self, passages: Sequence[Document], titles: tuple[str, ...]) -> Segment:
        """Some fact of the first passage, whatever the question was; without passages a name from the question."""
        if not passages:
            return _answer(" found nothing", self.rng.choice(titles))
        cue, found = self.rng.choice(facts_of(self.half, passages[0].title))
        return _answer(f" {cue} {found}", found)

    def _other_name(self, hop: Hop) -> tuple[str, str]:
        """Another fact of the passage to follow: a name where there is one."""
        names = [fact for fact in hop.others if not fact[1].isdigit()]
        return self.rng.choice(names or list(hop.others))

    def _bad_query(self, plan: Plan) -> str:
        """The relation instead of the name, or one of the two films."""
        if plan.kind == "comparison":
            return self.rng.choice(plan.hops[0].titles)
        return self.rng.choice(("the region", "the town", "a director", "a studio", "a marriage"))

    def _search(self, thought: str, query: str) -> tuple[Sequence[Document], list[Segment]]:
        passages = self.search(query)
        shown = (
            self.texts.passage_separator.join(
                self.texts.passage.format(title=passage.title, text=passage.text) for passage in passages
            )
            or self.texts.no_passages
        )
        policy = Segment(Author.POLICY, f"<think>{thought}</think><search> {query}</search>")
        return passages, [policy, Segment(Author.ENVIRONMENT, self.texts.observation.format(passages=shown))]

    def _happens(self, share: float) -> bool:
        return self.rng.random() < share


def facts_of(half: Half, title: str) -> list[tuple[str, str]]:
    """Cue and value of every fact that the document `title` tells (the region's capital is no fact anyone asks for)."""
    if title in half.films:
        film = half.films[title]
        return [("directed by", film.director), ("produced by", film.studio), (title, str(film.year))]
    if title in half.people:
        person = half.people[title]
        return [("born in", person.town), ("born in the year", str(person.year)), ("married to", person.spouse)]
    if title in half.studios:
        studio = half.studios[title]
        return [("based in", studio.town), ("since", str(studio.year))]
    if title in half.towns:
        town = half.towns[title]
        return [("in the region", town.region), ("founded in", str(town.year))]
    return [("the region", title)]


def _answer(thought: str, answer: str) -> Segment:
    return Segment(Author.POLICY, f"<think>{thought}</think><answer> {answer}</answer>")
