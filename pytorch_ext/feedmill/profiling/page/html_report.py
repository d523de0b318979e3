"""The report of a run as one self-contained HTML file, which loads nothing from the network.

Texts and tables are static HTML; page.js draws the charts from JSON that is embedded in the page.
Everything that comes from a log is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from feedmill._ops import __version__
from feedmill.profiling.counting.records import CAUSES, PHASES, STORAGE_PARTS
from feedmill.profiling.log.reader import Run, duration_ns
from feedmill.profiling.page.rank_logs import straggler_reports
from feedmill.profiling.page.run_stats import (
    after_stats,
    loop_ns,
    report_of,
    run_name,
    targets_of,
    verdict_of,
    wait_parts,
)
from feedmill.profiling.page.timeline import timeline
from feedmill.profiling.report import terms
from feedmill.profiling.report.wording import percent

_PAGE = Path(__file__).parent
# Most bins of all runs together, and fewest bins that a single run may have. A bin takes about 80
# bytes of the page.
_MAX_BINS, _MIN_BINS = 20_000, 1_000
_MAX_SLOW = 20
# Upper limits of the histogram's classes, in ms.
_WAIT_CLASSES_MS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


def page(runs: Sequence[Run], title: str) -> str:
    """The HTML page of a log.

    Args:
        runs: at least one run.
        title: the page's title, such as the log's name.
    """
    script = (_PAGE / "page.js").read_text("utf-8")
    most_bins = max(_MIN_BINS, _MAX_BINS // len(runs))
    sections = [_section(run, number, most_bins) for number, run in enumerate(runs)]
    parts = {
        "title": _text(title),
        "style": (_PAGE / "page.css").read_text("utf-8"),
        "script": script,
        # For the Content-Security-Policy, which allows this script alone.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "overview": _overview(runs) + _all_ranks(runs),
        "sections": "\n".join(sections),
        "glossary": _glossary(runs),
        "version": _text(__version__),
    }
    template = (_PAGE / "page.html").read_text("utf-8")
    # One pass: a part that contains "{{name}}" is not expanded again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


# ---- pieces of HTML ------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """A value as escaped HTML text. Bytes of a path that are not UTF-8 become \\x escapes."""
    plain = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return html.escape(plain)


def _json(value: Any) -> str:
    """A value as JSON that can't end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]], name: str) -> str:
    """A table. Cells are HTML already; a head that ends in "#" marks a column of numbers."""
    names = list(heads)
    kinds = [' class="number"' if name.endswith("#") else "" for name in names]
    head = "".join(
        f'<th scope="col"{kind}>{_text(name.rstrip("#"))}</th>'
        for name, kind in zip(names, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{name}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _swatch(name: str) -> str:
    return f'<span class="swatch" style="background:var(--{_css_name(name)})"></span>'


def _css_name(name: str) -> str:
    return name.removesuffix("_ns").replace("_", "-")


def _bar(share: float, name: str = "bar") -> str:
    width = f"{100 * min(1.0, max(0.0, share)):.2f}%"
    color = f";background:var(--{_css_name(name)})" if name != "bar" else ""
    return f'<span class="bar"><span style="width:{width}{color}"></span></span>'


def _ms(ns: float) -> str:
    """A duration in ms with about three digits."""
    ms = ns / 1e6
    if ms == 0:
        return "0"
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def _duration(ns: float) -> str:
    seconds = ns / 1e9
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{_ms(ns)} ms"


# ---- the page's parts ----------------------------------------------------------------------------


def _overview(runs: Sequence[Run]) -> str:
    """A table of the runs; "" if there is only one."""
    if len(runs) == 1:
        return ""
    rows = []
    for number, run in enumerate(runs):
        total_ns, waits = loop_ns(run.steps), wait_parts(run)
        waited_ns = sum(ns for _, ns in waits)
        main = terms.cause(waits[0][0], run.path).label if waits else "none"
        rows.append((
            f'<a href="#run{number}">{_text(run_name(run))}</a>',
            f"{len(run.steps):,}",
            _text(percent(waited_ns / total_ns)) if total_ns else "",
            _ms(waited_ns / len(run.steps)) if len(run.steps) else "",
            _text(main),
            _text(verdict_of(run)),
        ))
    heads = ("run", "steps#", "waited#", "ms a step#", "main cause", "verdict")
    return (
        f'<section><h2>{len(runs)} runs in this log</h2>\n'
        f"{_table(heads, rows, 'overview')}</section>"
    )


def _all_ranks(runs: Sequence[Run]) -> str:
    """Which ranks held others back; "" if the runs are not ranks of one run."""
    texts = straggler_reports(runs)
    if not texts:
        return ""
    shown = "\n".join(f"<pre>{_text(text)}</pre>" for text in texts)
    return f"\n<section><h2>Ranks that held others back</h2>\n{shown}</section>"


def _section(run: Run, number: int, most_bins: int) -> str:
    """The page's section about one run."""
    opened = " open" if number == 0 else ""
    parts = [
        f'<details class="run" id="run{number}"{opened}><summary>{_text(run_name(run))}</summary>',
        f'<h1 class="verdict">{_text(verdict_of(run))}</h1>',
        f'<p class="facts">{_facts(run)}</p>',
        _notes(run),
        _targets(run),
    ]
    if len(run.steps):
        parts += [
            _where_time_went(run),
            _charts(run, number, most_bins),
            _waits_by_cause(run),
            _waits_by_phase(run),
            _gpu_stalls(run),
            _slowest(run),
        ]
    else:
        parts.append("<p>The log has no steps: no batch had been returned when it ended.</p>")
    parts += [_as_text(run), "</details>"]
    return "\n".join(part for part in parts if part)


def _facts(run: Run) -> str:
    """A line about the run: sizes, threads, reader, time."""
    meta = run.meta
    facts = [f"{len(run.steps):,} steps of {_duration(loop_ns(run.steps))}"]
    if run.steps["n_samples"].any():
        samples = int(run.steps["n_samples"].sum())
        facts.append(f"{samples:,} samples")
    if isinstance(meta.get("batch_size"), int):
        facts.append(f"batch size {meta['batch_size']}")
    if run.path == "native" and isinstance(meta.get("threads"), int):
        facts.append(f"{meta['threads']} decode threads")
    if run.path != "native":
        facts.append(f"path: {run.path}")
    if meta.get("reader"):
        why = f" ({meta['reader_reason']})" if meta.get("reader_reason") else ""
        facts.append(f"reader {meta['reader']}{why}")
    if meta.get("cpu"):
        facts.append(f"SIMD {meta['cpu']}")
    if (begun := _time(meta.get("time"))) is not None:
        facts.append(f"started {begun}")
    if meta.get("feedmill"):
        facts.append(f"feedmill {meta['feedmill']}")
    return " · ".join(map(_text, facts))


def _time(seconds: Any) -> str | None:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return None
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return None


def _notes(run: Run) -> str:
    if run.stats is None:
        text = ("The log has no totals yet: they are written when an epoch ends. This report is "
                "from the steps alone, without the decode threads' counters.")
    elif n := after_stats(run):
        text = (f"The log ends in the middle of an epoch: its last {n:,} steps are in the charts "
                "and tables, but not in the verdict's totals.")
    else:
        text = ""
    if run.n_lost:
        text += (f" {run.n_lost:,} steps are missing: their records were overwritten before they "
                 "could be logged.")
    return f'<p class="note">{_text(text)}</p>' if text else ""


# ---- targets -------------------------------------------------------------------------------------

_STATES = {True: ("met", "✓ met"), False: ("missed", "✗ missed"), None: ("unknown", "– unknown")}


def _targets(run: Run) -> str:
    """A card for each target, with the run's value."""
    cards = []
    for one in targets_of(run):
        css, state = _STATES[one.is_met]
        value = f"{one.value}: {one.why}" if one.why else one.value
        cards.append(f'<li class="{css}"><span class="state">{state}</span>'
                     f"<strong>{_text(one.name)} {_text(one.goal)}</strong>"
                     f"<span>{_text(value)}</span></li>")
    return f'<ul class="targets" aria-label="targets">{"".join(cards)}</ul>' if cards else ""


# ---- where the time went -------------------------------------------------------------------------


def _term(name: str, run: Run) -> terms.Term:
    if name == "compute_ns":
        return terms.COMPUTE
    if name == "overhead_ns":
        return terms.OVERHEAD
    return terms.cause(name, run.path)


def _parts(run: Run) -> list[tuple[str, int]]:
    """The parts of the steps' time, (field, nanoseconds), in the order of the stacked charts."""
    names = ("compute_ns", *CAUSES, "overhead_ns")
    totals = [(name, int(run.steps[name].sum())) for name in names]
    return [(name, ns) for name, ns in totals if ns]


def _where_time_went(run: Run) -> str:
    total_ns = max(1, loop_ns(run.steps))
    bars, legend = [], []
    for name, ns in _parts(run):
        term, share = _term(name, run), ns / total_ns
        inside = _text(term.label) if share > 0.12 else ""
        css = _css_name(name)
        bars.append(f'<span style="flex-grow:{share:.5f};background:var(--{css});'
                    f'color:var(--on-{css})" title="{_text(term.label)} {percent(share)}">'
                    f"{inside}</span>")
        legend.append(f'<li title="{_text(term.meaning)}">{_swatch(name)}{_text(term.label)} '
                      f"<b>{percent(share)}</b></li>")
    return (
        '<section><h2>Where the time of the steps went</h2>\n'
        f'<div class="whole" aria-hidden="true">{"".join(bars)}</div>\n'
        f'<ul class="legend">{"".join(legend)}</ul></section>'
    )


def _charts(run: Run, number: int, most_bins: int) -> str:
    """The elements in which page.js draws the charts, and their data."""
    data = timeline(run, most_bins)
    data["names"] = {name: _term(name, run).label for name, _ in _parts(run)}
    data["causes"] = [_term(name, run).label for name in CAUSES]
    data["css"] = {name: _css_name(name) for name in data["names"]}
    data["phases"] = PHASES
    # Only native loaders report how many batches are ready.
    data["knows_ready"] = run.path == "native" or bool(run.steps["ready_batches"].any())
    slots = run.meta.get("slots")
    data["slots"] = slots if isinstance(slots, int) else None
    return (
        '<section class="charts"><h2>Steps over time</h2>\n'
        '<p class="how">Each column is one step or several: its height is their mean duration, '
        "its colours show where the time went. Drag over a part to zoom in.</p>\n"
        '<noscript><p class="note">The charts need JavaScript; the tables below do not.</p>'
        "</noscript>\n"
        '<div class="controls" hidden></div><div class="plots"></div>\n'
        f'<script type="application/json" class="data" id="data{number}">{_json(data)}</script>'
        "</section>"
    )


# ---- tables --------------------------------------------------------------------------------------


def _waits_by_cause(run: Run) -> str:
    total_ns, waits = max(1, loop_ns(run.steps)), wait_parts(run)
    waited_ns = sum(ns for _, ns in waits)
    if not waits:
        return '<section><h2>Waits by cause</h2><p>No step waited for data.</p></section>'
    rows = []
    for name, ns in waits:
        term = terms.cause(name, run.path)
        rows.append((
            _swatch(name) + _text(term.label), _bar(ns / waited_ns, name), _ms(ns),
            percent(ns / waited_ns), percent(ns / total_ns), _text(term.meaning),
            _text(term.remedy),
        ))
    rows.append(("all", "", _ms(waited_ns), "100%", percent(waited_ns / total_ns), "", ""))
    heads = ("cause", "", "ms#", "of the wait#", "of all time#", "meaning", "what helps")
    return (
        "<section><h2>Waits by cause</h2>\n"
        '<p class="how">“It” is the sample that the step waited for: the batch\'s last one to be '
        f"finished.</p>\n{_table(heads, rows, 'causes')}{_storage_parts(run)}</section>"
    )


def _storage_parts(run: Run) -> str:
    """What reads of objects did while steps waited for them; "" if none waited."""
    parts = {name: int(run.steps[name].sum()) for name in STORAGE_PARTS}
    storage_ns = sum(parts.values())
    if storage_ns == parts["storage_local_ns"]:
        return ""
    rows = []
    for name, ns in sorted(parts.items(), key=lambda one: -one[1]):
        if ns:
            term = terms.storage_part(name)
            rows.append((_text(term.label), _ms(ns), percent(ns / storage_ns),
                         _text(term.meaning), _text(term.remedy)))
    heads = ("wait for storage", "ms#", "of it#", "meaning", "what helps")
    return f"\n<h3>Parts of the wait for storage</h3>\n{_table(heads, rows, 'storage')}"


def _waits_by_phase(run: Run) -> str:
    """Percentiles of the waits by phase, and a histogram."""
    steps = run.steps
    rows = []
    for number, phase in enumerate(PHASES):
        part = steps["data_wait_ns"][steps["phase"] == number]
        if len(part):
            rows.append(_percentiles(phase, part))
    rows.append(_percentiles("all", steps["data_wait_ns"]))
    heads = ("phase", "steps#", "wait, ms#", "a step#", "p50#", "p90#", "p99#", "max#")
    return (
        "<section><h2>How long steps waited</h2>\n"
        '<p class="how">In ms. The first step of each epoch waits while the pipeline is still '
        "empty; in a long training the steady steps matter.</p>\n"
        f"{_table(heads, rows, 'phases')}\n{_histogram(steps['data_wait_ns'])}</section>"
    )


def _percentiles(name: str, waits: np.ndarray) -> tuple[str, ...]:
    values = np.percentile(waits, (50, 90, 99, 100), method="higher")
    return (name, f"{len(waits):,}", _ms(int(waits.sum())), _ms(float(waits.mean())),
            *(_ms(float(value)) for value in values))


def _gpu_stalls(run: Run) -> str:
    """What the GPU waited for; "" if that was not measured."""
    steps = run.steps[run.steps["gpu_known"] > 0]
    if not len(steps):
        return ""
    total_ns, stalls = max(1, loop_ns(steps)), steps["gpu_stall_ns"]
    stall_ns, copy_ns = int(stalls.sum()), int(steps["gpu_copy_ns"].sum())
    rows = [
        (name, _bar(ns / max(1, stall_ns)), _ms(ns), _ms(ns / len(steps)), percent(ns / total_ns))
        for name, ns in (("late data", stall_ns - copy_ns), ("copy to the GPU", copy_ns),
                         ("both", stall_ns))
    ]
    return (
        "<section><h2>How long the GPU waited for batches</h2>\n"
        '<p class="how">Measured with CUDA events: time in which the GPU had finished all queued '
        f"work and waited for the batch. {len(steps):,} steps were measured; the median stall "
        f"is {_ms(float(np.median(stalls)))} ms, the longest {_ms(int(stalls.max()))} ms.</p>\n"
        f"{_table(('cause', '', 'ms#', 'a step#', 'of all time#'), rows, 'gpu')}</section>"
    )


def _histogram(waits: np.ndarray) -> str:
    """A histogram of the waits, from the first class that has steps to the last one."""
    limits = np.array([0.0, *(limit * 1e6 for limit in _WAIT_CLASSES_MS)])
    counts = np.bincount(np.searchsorted(limits, waits), minlength=len(limits) + 1)
    used = np.flatnonzero(counts)
    labels = ["none", f"up to {_limit(_WAIT_CLASSES_MS[0])}"]
    labels += [f"{_limit(low)} to {_limit(high)}"
               for low, high in zip(_WAIT_CLASSES_MS, _WAIT_CLASSES_MS[1:], strict=False)]
    labels.append(f"over {_limit(_WAIT_CLASSES_MS[-1])}")
    rows = [
        (_text(labels[at]), _bar(counts[at] / counts.max()), f"{counts[at]:,}",
         percent(counts[at] / len(waits)))
        for at in range(used[0], used[-1] + 1)
    ]
    return _table(("wait", "", "steps#", "of all#"), rows, "histogram")


def _limit(ms: float) -> str:
    return f"{ms:g} ms" if ms < 1_000 else f"{ms / 1_000:g} s"


def _slowest(run: Run) -> str:
    if not run.slow:
        return ""
    rows = []
    for one in run.slow[:_MAX_SLOW]:
        times = [one.get(name) for name in ("read_ns", "decode_ns", "transform_ns", "starved_ns")]
        size = one.get("file_bytes")
        rows.append((
            f'<span class="path">{_text(one.get("path") or "(bytes in memory)")}</span>',
            _text(one.get("index", "")),
            f"{size / 1e3:,.0f}" if isinstance(size, int) else "",
            _ms(duration_ns(one)),
            *(_ms(ns) if isinstance(ns, int) else "" for ns in times),
        ))
    heads = (
        "file", "index#", "kB#", "total#", "read#", "decode#", "transform#", "waiting for CPU#",
    )
    return (
        "<section><h2>Slowest files</h2>\n"
        '<p class="how">In ms. “total” is reading, decoding and transforming together, without '
        f"waiting for a CPU.</p>\n{_table(heads, rows, 'slowest')}</section>"
    )


def _as_text(run: Run) -> str:
    return (
        "<details class=\"text\"><summary>The report as text</summary>"
        f"<pre>{_text(report_of(run))}</pre></details>"
    )


def _glossary(runs: Sequence[Run]) -> str:
    """The glossary: general terms, and the causes that occur in these runs."""
    entries = [*terms.GENERAL.items(), (terms.COMPUTE.label, terms.COMPUTE.meaning),
               (terms.OVERHEAD.label, terms.OVERHEAD.meaning)]
    for name in CAUSES:
        labels = {terms.cause(name, run.path) for run in runs if run.steps[name].any()}
        entries += [(term.label, term.meaning) for term in sorted(labels)]
    items = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>\n" for name, text in entries)
    return f"<dl>{items}</dl>"
