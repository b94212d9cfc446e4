"""The entities of one half of a world and the facts that tie them together."""

from __future__ import annotations

import random
from dataclasses import dataclass

from data.words import Pool, WordMaker
from seeker.types import Document

FIRST_YEAR, LAST_YEAR = 1800, 1999
FIRST_FILM_YEAR = 1940  # few enough years for a small policy to learn their order


@dataclass(frozen=True, slots=True)
class Town:
    """Example: ``Town(name="Velmor", region="Tashin", year=1811)``."""

    name: str
    region: str
    year: int


@dataclass(frozen=True, slots=True)
class Studio:
    """A film company. Example: ``Studio(name="Krelon", town="Velmor", year=1920)``."""

    name: str
    town: str
    year: int


@dataclass(frozen=True, slots=True)
class Person:
    """Example: ``Person(name="Kel Tamor", town="Velmor", year=1903, spouse="Iro Dalen")``."""

    name: str
    town: str
    year: int
    spouse: str


@dataclass(frozen=True, slots=True)
class Film:
    """Example: ``Film(title="Ulkar", year=1934, director="Kel Tamor", studio="Krelon")``."""

    title: str
    year: int
    director: str
    studio: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many entities one half of a world has. Spouses come on top: one for each director."""

    regions: int = 40
    towns: int = 150
    studios: int = 80
    directors: int = 350
    films: int = 600
    given_names: int = 160
    family_names: int = 500


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a world: entities by name, and the documents that tell their facts."""

    pool: Pool
    towns: dict[str, Town]
    studios: dict[str, Studio]
    people: dict[str, Person]
    films: dict[str, Film]
    documents: tuple[Document, ...]

    @property
    def directors(self) -> list[Person]:
        """The people who made a film, in a fixed order."""
        return [self.people[name] for name in dict.fromkeys(film.director for film in self.films.values())]


def make_half(seed: int, pool: Pool, sizes: Sizes) -> Half:
    """Entities and documents of one half; the same for the same arguments, always."""
    rng = random.Random(f"world/{seed}/{pool}")
    maker = WordMaker(rng, pool)
    regions = maker.words(sizes.regions)
    towns = {name: Town(name, rng.choice(regions), _year(rng)) for name in maker.words(sizes.towns)}
    studios = {name: Studio(name, rng.choice(list(towns)), _year(rng)) for name in maker.words(sizes.studios)}
    people = _couples(rng, maker, list(towns), sizes)
    directors = list(people)[: sizes.directors]
    films = {
        title: Film(title, _year(rng, FIRST_FILM_YEAR), directors[number % len(directors)], rng.choice(list(studios)))
        for number, title in enumerate(maker.words(sizes.films))
    }
    texts = _texts(rng, regions, towns, studios, people, films)
    documents = tuple(Document(f"{pool}/{title}", title, text) for title, text in texts.items())
    return Half(pool, towns, studios, people, films, documents)


def _year(rng: random.Random, first: int = FIRST_YEAR) -> int:
    return rng.randint(first, LAST_YEAR)


def _couples(rng: random.Random, maker: WordMaker, towns: list[str], sizes: Sizes) -> dict[str, Person]:
    """Directors first, then their spouses; full names are unique, given and family names repeat."""
    given, family = maker.words(sizes.given_names), maker.words(sizes.family_names)
    names: dict[str, None] = {}
    while len(names) < 2 * sizes.directors:
        names.setdefault(f"{rng.choice(given)} {rng.choice(family)}")
    directors, spouses = list(names)[: sizes.directors], list(names)[sizes.directors :]
    pairs = [*zip(directors, spouses, strict=True), *zip(spouses, directors, strict=True)]
    return {name: Person(name, rng.choice(towns), _year(rng), spouse) for name, spouse in pairs}


def _texts(
    rng: random.Random,
    regions: list[str],
    towns: dict[str, Town],
    studios: dict[str, Studio],
    people: dict[str, Person],
    films: dict[str, Film],
) -> dict[str, str]:
    """Title -> text of every document. Each sort of entity is told in two ways."""
    capitals = list(towns)
    texts = {
        name: rng.choice(
            (f"{name} is a region whose capital is {town}.", f"{name} is a region ruled from the city of {town}.")
        )
        for name, town in ((region, rng.choice(capitals)) for region in regions)
    }
    for town in towns.values():
        texts[town.name] = rng.choice(
            (
                f"{town.name} is a town in the region {town.region}, founded in {town.year}.",
                f"{town.name} is a town founded in {town.year} in the region {town.region}.",
            )
        )
    for studio in studios.values():
        texts[studio.name] = rng.choice(
            (
                f"{studio.name} is a film studio based in {studio.town} since {studio.year}.",
                f"{studio.name} is a film studio that opened in {studio.year}, based in {studio.town}.",
            )
        )
    for person in people.values():
        texts[person.name] = rng.choice(
            (
                f"{person.name} was born in {person.town} in {person.year} and is married to {person.spouse}.",
                f"{person.name} is married to {person.spouse} and was born in {person.town} in {person.year}.",
            )
        )
    for film in films.values():
        texts[film.title] = rng.choice(
            (
                f"{film.title} {film.year}, a film directed by {film.director} and produced by {film.studio}.",
                f"{film.title} {film.year}, a film produced by {film.studio} and directed by {film.director}.",
            )
        )
    return texts
