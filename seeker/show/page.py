"""A run as one HTML file that needs nothing else: picture, tables and coloured trajectories."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from seeker.show.picture import draw_picture
from seeker.show.reading import RunView, first_and_last
from seeker.show.samples import Sample
from seeker.show.tables import EVALUATION_COLUMNS, KIND_COLUMNS, config_facts, evaluation_rows, kind_rows, phase_rows
from seeker.types import Author

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top }
th { color: #666; font-weight: 500 } img { max-width: 100% }
pre { white-space: pre-wrap; background: #fafafa; border: 1px solid #ddd; border-radius: 6px; padding: .8rem }
.system { color: #777 } .user { color: #0b6a85 } .policy { color: #1d7a3a } .environment { color: #a06a00 }
@media (prefers-color-scheme: dark) { body { background: #16181b; color: #ddd } pre { background: #1e2125;
  border-color: #333 } .user { color: #5cc8e0 } .policy { color: #6fd08c } .environment { color: #e0b050 } }
"""


def render_page(view: RunView, samples: Sequence[Sample]) -> str:
    """The whole page as text."""
    picture = base64.b64encode(draw_picture(view)).decode()
    pair = first_and_last(view.evaluations, "greedy")
    phases = [[phase, f"{seconds:.2f}", f"{share:.0%}"] for phase, seconds, share in phase_rows(view)]
    events = [[name, str(count)] for name, count in sorted(view.events.items())]
    parts = [
        f"<h1>run {escape(view.run_id)}</h1>",
        _table("", (), [list(fact) for fact in config_facts(view)]),
        f'<p><img alt="curves of the run" src="data:image/png;base64,{picture}"></p>',
        _table("Evaluations", EVALUATION_COLUMNS, evaluation_rows(view.evaluations)),
        _table("Greedy, by kind of question", KIND_COLUMNS, kind_rows(*pair) if pair else []),
        _table("Seconds per step", ("phase", "seconds", "share"), phases),
        _table("Infrastructure events", ("event", "number"), events),
        *_samples(samples),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>run {escape(view.run_id)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"
    )


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = f"<h2>{escape(title)}</h2>" if title else ""
    top = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>" if names else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>\n" for row in rows)
    return f"{head}<table>{top}{body}</table>"


def _samples(samples: Sequence[Sample]) -> list[str]:
    if not samples:
        return []
    legend = " ".join(f'<b class="{author.value}">{author.value}</b>' for author in Author)
    parts = [f"<h2>Sample trajectories, from the best reward to the worst</h2><p>Written by: {legend}</p>"]
    for sample in samples:
        text = "".join(f'<span class="{author.value}">{escape(words)}</span>' for author, words in sample.parts)
        parts.append(f"<p>{escape(sample.title)}: {escape(sample.facts)}</p><pre>{text}</pre>")
    return parts
