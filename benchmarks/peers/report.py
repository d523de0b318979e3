"""The table (Markdown) and the plot (SVG) of one class of photographs."""

from __future__ import annotations

import dataclasses
import html
import statistics
from collections.abc import Iterable


@dataclasses.dataclass
class Row:
    """The results of one loader.

    name, job ("train", "eval"); is_limit: not a loader, but libjpeg-turbo alone.
    pixels: how its output compares, as text. note: a remark for the table.
    failed: why it could not be measured; epochs is empty then.
    epochs: {"n", "wall_s", "cpu_s"} of each round.
    """

    name: str
    job: str
    is_limit: bool = False
    pixels: str = ""
    note: str = ""
    failed: str = ""
    epochs: list[dict] = dataclasses.field(default_factory=list)

    def rates(self, unit: str) -> list[float]:
        """Images per second of wall time ("wall_s") or CPU time ("cpu_s"), one for each round."""
        return [e["n"] / e[unit] for e in self.epochs]


def ratio(ours: Row, theirs: Row, unit: str) -> float:
    """Median of the rounds' ratios, as both loaders of a round ran under the same load."""
    pairs = zip(ours.rates(unit), theirs.rates(unit))
    return statistics.median(a / b for a, b in pairs)


def number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def spread(rates: list[float]) -> str:
    return f"{number(statistics.median(rates))} ({number(min(rates))}-{number(max(rates))})"


def find_ours(rows: Iterable[Row], job: str) -> Row | None:
    """feedmill's own row, with the best instruction set of the CPU."""
    return next((r for r in rows if r.job == job and r.name == "feedmill" and r.epochs), None)


def table(rows: list[Row], job: str) -> str:
    """The rows of a job as a Markdown table."""
    ours = find_ours(rows, job)
    lines = [
        "| | img/s | img per CPU-second | feedmill's ratio: wall time | CPU time | pixels |",
        "|---|---|---|---|---|---|",
    ]
    for row in (r for r in rows if r.job == job):
        if row.failed:
            lines.append(f"| {row.name} | not measured: {row.failed} | | | | |")
            continue
        cells = [spread(row.rates("wall_s")), spread(row.rates("cpu_s"))]
        for unit in ("wall_s", "cpu_s"):
            cells.append(f"{ratio(ours, row, unit):.2f}" if ours and row is not ours else "")
        pixels = "; ".join(filter(None, [row.pixels, row.note]))
        lines.append(f"| {' | '.join([row.name, *cells, pixels])} |")
    return "\n".join(lines)


def findings(rows: list[Row]) -> list[str]:
    """feedmill's share of the limit, and its lead over the best mode of DALI, as sentences."""
    ours = find_ours(rows, "train")
    if ours is None:
        return []
    found = []
    limit = next((r for r in rows if r.is_limit and "crop" in r.name and r.epochs), None)
    if limit:
        share = ratio(ours, limit, "cpu_s")
        found.append(f"feedmill does the whole job at {share:.0%} of the rate of libjpeg-turbo's "
                     "crop decode alone, per CPU-second.")
    dali = [r for r in rows if r.name.startswith("DALI") and r.epochs]
    if dali:
        best = max(dali, key=lambda r: statistics.median(r.rates("cpu_s")))
        found.append(f"DALI's best mode is \"{best.name}\": feedmill makes "
                     f"{ratio(ours, best, 'cpu_s'):.2f} times as many images per CPU-second.")
    return found


def plot(rows: list[Row], title: str) -> str:
    """Bars of images per CPU-second, each with a line from minimum to maximum."""
    shown = [r for r in rows if r.job == "train" and r.epochs]
    top = max((max(r.rates("cpu_s")) for r in shown), default=1)
    left, bar, gap, width = 290, 18, 8, 520
    height = 60 + len(shown) * (bar + gap)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14" font-weight="bold">{html.escape(title)}</text>',
        '<text x="10" y="38" fill="#555">images per CPU-second, median; lines: least to most of '
        "the rounds</text>",
    ]
    for i, row in enumerate(shown):
        rates = row.rates("cpu_s")
        y = 52 + i * (bar + gap)
        low, middle, high = (width * v / top
                             for v in (min(rates), statistics.median(rates), max(rates)))
        fill = "#bbbbbb" if row.is_limit else "#d9642b" if row.name.startswith("feedmill") \
            else "#4a7fb0"
        centre = y + bar / 2
        parts += [
            f'<text x="{left - 8}" y="{centre + 4}" text-anchor="end">'
            f"{html.escape(row.name)}</text>",
            f'<rect x="{left}" y="{y}" width="{middle:.1f}" height="{bar}" fill="{fill}"/>',
            f'<line x1="{left + low:.1f}" x2="{left + high:.1f}" y1="{centre}" y2="{centre}" '
            'stroke="black"/>',
            f'<text x="{left + high + 6:.1f}" y="{centre + 4}">'
            f"{number(statistics.median(rates))}</text>",
        ]
    return "\n".join([*parts, "</svg>\n"])


def document(title: str, plot_name: str, facts: list[tuple[str, str]], rows: list[Row]) -> str:
    """The whole Markdown file."""
    parts = [f"# {title}", f"![images per CPU-second]({plot_name})"]
    parts.append("\n".join(f"- {name}: {value}" for name, value in facts))
    parts.append("## RandomResizedCrop(224), flip, normalize, float32\n\n" + table(rows, "train"))
    if findings(rows):
        parts.append("\n".join(findings(rows)))
    if any(r.job == "eval" for r in rows):
        parts.append("## Resize(256), CenterCrop(224), normalize, float32\n\n"
                     + table(rows, "eval"))
    return "\n\n".join(parts) + "\n"
