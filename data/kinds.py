"""The question kinds of the laptop world, each with its plan: what to look up, and what to read there.

A plan is the shortest chain of searches that answers the question. Demonstrations follow it, or fail to.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from data.entities import Film, Half


@dataclass(frozen=True, slots=True)
class Hop:
    """One search of a plan: the query, the documents it should bring, and what is read in them.

    `found` is the name or year that the question needs from here; `cue` the words that the passage puts before it;
    `others` are further facts of the same passage that a careless reader takes instead.
    Example: ``Hop(query="Ulkar", titles=("Ulkar",), cue="directed by", found="Kel Tamor",
    others=(("produced by", "Krelon"),))``.
    """

    query: str
    titles: tuple[str, ...]
    cue: str
    found: str
    others: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A question's text and its hops; the last hop finds the answer."""

    kind: str
    text: str
    hops: tuple[Hop, ...]

    @property
    def answer(self) -> str:
        """What the last hop finds."""
        return self.hops[-1].found


def _film_hop(film: Film, want: str) -> Hop:
    facts = {"directed by": film.director, "produced by": film.studio, film.title: str(film.year)}
    return _hop(film.title, film.title, want, facts)


def _person_hop(half: Half, name: str, want: str) -> Hop:
    person = half.people[name]
    facts = {"born in": person.town, "born in the year": str(person.year), "married to": person.spouse}
    return _hop(name, name, want, facts)


def _studio_hop(half: Half, name: str, want: str) -> Hop:
    studio = half.studios[name]
    return _hop(name, name, want, {"based in": studio.town, "since": str(studio.year)})


def _town_hop(half: Half, name: str, want: str) -> Hop:
    town = half.towns[name]
    return _hop(name, name, want, {"in the region": town.region, "founded in": str(town.year)})


def _hop(query: str, title: str, cue: str, facts: dict[str, str]) -> Hop:
    others = tuple((other, value) for other, value in facts.items() if other != cue)
    return Hop(query, (title,), cue, facts[cue], others)


def director(half: Half, rng: random.Random) -> Plan:
    """One hop: film -> director."""
    film = _any_film(half, rng)
    text = rng.choice((f"Who directed the film {film.title}?", f"Who is the director of the film {film.title}?"))
    return Plan("director", text, (_film_hop(film, "directed by"),))


def birthplace(half: Half, rng: random.Random) -> Plan:
    """Bridge: film -> director -> town."""
    film = _any_film(half, rng)
    text = rng.choice(
        (
            f"In which town was the director of the film {film.title} born?",
            f"What is the birthplace of the director of the film {film.title}?",
        )
    )
    return Plan("birthplace", text, (_film_hop(film, "directed by"), _person_hop(half, film.director, "born in")))


def birth_year(half: Half, rng: random.Random) -> Plan:
    """Bridge: film -> director -> year."""
    film = _any_film(half, rng)
    text = rng.choice(
        (
            f"In which year was the director of the film {film.title} born?",
            f"What is the year of birth of the director of the film {film.title}?",
        )
    )
    hops = (_film_hop(film, "directed by"), _person_hop(half, film.director, "born in the year"))
    return Plan("birth_year", text, hops)


def spouse(half: Half, rng: random.Random) -> Plan:
    """Bridge: film -> director -> spouse."""
    film = _any_film(half, rng)
    text = rng.choice(
        (
            f"To whom is the director of the film {film.title} married?",
            f"Who is the spouse of the director of the film {film.title}?",
        )
    )
    return Plan("spouse", text, (_film_hop(film, "directed by"), _person_hop(half, film.director, "married to")))


def studio_town(half: Half, rng: random.Random) -> Plan:
    """Bridge: film -> studio -> town."""
    film = _any_film(half, rng)
    text = rng.choice(
        (
            f"In which town is the studio that produced the film {film.title} based?",
            f"Where is the studio of the film {film.title} based?",
        )
    )
    return Plan("studio_town", text, (_film_hop(film, "produced by"), _studio_hop(half, film.studio, "based in")))


def region(half: Half, rng: random.Random) -> Plan:
    """Bridge: person -> town -> region."""
    name = rng.choice(list(half.people))
    text = rng.choice((f"In which region was {name} born?", f"What is the home region of {name}?"))
    town = half.people[name].town
    return Plan("region", text, (_person_hop(half, name, "born in"), _town_hop(half, town, "in the region")))


def comparison(half: Half, rng: random.Random) -> Plan:
    """Comparison: two films, which one search can bring -> the earlier film -> its director."""
    first = _any_film(half, rng)
    second = _any_film(half, rng)
    while second.year == first.year or second.director == first.director:
        second = _any_film(half, rng)
    early, late = sorted((first, second), key=lambda film: film.year)
    text = rng.choice(
        (
            f"Who directed the earlier of the films {first.title} and {second.title}?",
            f"Which director made the older of the films {first.title} and {second.title}?",
        )
    )
    years = ", ".join(f"{film.title} {film.year}" for film in (first, second))
    cue = f"{years}, the {'first' if early is first else 'second'}"
    others = (("directed by", late.director), ("produced by", late.studio))
    titles = (first.title, second.title)
    return Plan(
        "comparison", text, (Hop(" ".join(titles), titles, cue, early.title, others), _film_hop(early, "directed by"))
    )


def _any_film(half: Half, rng: random.Random) -> Film:
    return rng.choice(list(half.films.values()))


# Kind -> (maker, share of the questions). No kind can be guessed without reading: every answer is a name or a year.
KINDS: dict[str, tuple[Callable[[Half, random.Random], Plan], float]] = {
    "director": (director, 0.16),
    "birthplace": (birthplace, 0.16),
    "birth_year": (birth_year, 0.14),
    "spouse": (spouse, 0.16),
    "studio_town": (studio_town, 0.14),
    "region": (region, 0.14),
    "comparison": (comparison, 0.10),
}
BRIDGE_KINDS = ("birthplace", "birth_year", "spouse", "studio_town", "region")
TWO_HOP_KINDS = (*BRIDGE_KINDS, "comparison")


def make_plans(half: Half, rng: random.Random, count: int, shares: dict[str, float] | None = None) -> list[Plan]:
    """`count` plans with different texts, kinds in their shares, in random order."""
    plans: dict[str, Plan] = {}
    left = _counts(count, shares or {kind: share for kind, (_, share) in KINDS.items()})
    while any(left.values()):
        for kind, missing in left.items():
            if missing:
                plan = KINDS[kind][0](half, rng)
                left[kind] -= plan.text not in plans
                plans.setdefault(plan.text, plan)
    ordered = list(plans.values())
    rng.shuffle(ordered)
    return ordered


def _counts(count: int, shares: dict[str, float]) -> dict[str, int]:
    """How many questions of each kind: whole numbers by share, what is left over to the first kinds."""
    counts = {kind: int(count * share) for kind, share in shares.items()}
    for kind in list(counts)[: count - sum(counts.values())]:
        counts[kind] += 1
    return counts
