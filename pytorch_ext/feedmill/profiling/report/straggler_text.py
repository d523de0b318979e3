"""The report on stragglers as text."""

from __future__ import annotations

from collections.abc import Mapping

from feedmill.profiling.report import terms
from feedmill.profiling.report.stragglers import GPU, LOOP, MARKS, OVERHEAD, WAITS, Held, Stragglers
from feedmill.profiling.report.wording import duration, percent

# Delays below this share of the time of the steps are normal: ranks never take equally long.
_NONE = 0.02
# A rank with less than this multiple of its share of the delays is not the straggler of the ranks.
_SINGLE = 1.5
# Ranks, and parts of a rank's delay, below this share of the delays are not listed.
_LEAST_RANK, _LEAST_PART = 0.05, 0.01
# Steps that were delayed by less than this share of the rank's longest delay are not listed.
_LEAST_STEP = 0.1
_MAX_RANGES = 4

_LOOP = terms.Term(
    "the training loop",
    "The rank's own part of the training loop, outside of collective operations.",
    "look for what only this rank does, such as logging or checkpoints, and for other processes on "
    "its host",
)
_BASIS = {
    MARKS: "compared: each rank's time outside of feedmill.collective()",
    WAITS: "compared: the times in next(). A slow loop is seen only if all ranks mark their "
           "collective operations with feedmill.collective()",
    GPU: "compared: the times that the GPUs waited for batches",
}


def straggler_lines(
    found: Stragglers, total_ns: int, paths: Mapping[int, str] | None = None
) -> list[str]:
    """The report: a sentence, and the ranks, steps and causes behind it.

    Args:
        found: what compare() has returned.
        total_ns: the time of all steps, of the rank that has most.
        paths: the ranks' paths, by which some causes have other names.
    """
    paths = paths or {}
    if not found.n_steps:
        return [
            "stragglers are not known: no step of at least two ranks can be compared",
            f"  {_BASIS[found.basis]}",
        ]
    worst = max(found.held, key=lambda rank: found.held[rank].ns)
    lines = [_sentence(found, worst, total_ns, paths.get(worst, "native"))]
    rows = [("compared", f"{len(found.held)} ranks, {found.n_steps:,} steps; "
                         f"{_BASIS[found.basis].removeprefix('compared: ')}")]
    for rank, held in sorted(found.held.items(), key=lambda one: (-one[1].ns, one[0])):
        if held.ns and held.ns >= _LEAST_RANK * found.ns:
            rows += _rank_rows(rank, held, found.ns, paths.get(rank, "native"))
    return lines + [f"  {name:<10} {text}" for name, text in rows]


def _sentence(found: Stragglers, worst: int, total_ns: int, path: str) -> str:
    share = found.ns / total_ns if total_ns else 0.0
    if share < _NONE:
        return f"no straggler: ranks held each other back for {percent(share)} of the time"
    held = found.held[worst]
    if held.ns * len(found.held) < _SINGLE * found.ns:
        return (
            f"no single straggler: ranks held each other back for {percent(share)} of the time, "
            f"rank {worst} for most of it, {percent(held.ns / found.ns)}"
        )
    name = max(held.parts, key=lambda one: held.parts[one])
    term = _term(name, path)
    text = (
        f"straggler: rank {worst} held the others back by {duration(held.ns / 1e9)} "
        f"({percent(held.ns / total_ns)} of the time), {percent(held.parts[name] / held.ns)} of it "
        f"for {term.label}"
    )
    return f"{text}; what helps: {term.remedy}" if term.remedy else text


def _rank_rows(rank: int, held: Held, all_ns: int, path: str) -> list[tuple[str, str]]:
    parts = [
        f"{_term(name, path).label} {duration(ns / 1e9)}"
        for name, ns in sorted(held.parts.items(), key=lambda one: -one[1])
        if ns > _LEAST_PART * held.ns
    ]
    longest = [
        f"{duration(one.ns / 1e9)} at {_place(one.epoch, one.step)} "
        f"({_term(max(one.parts, key=lambda name: one.parts[name]), path).label})"
        for one in held.longest[:3]
    ]
    return [
        (f"rank {rank}", f"last at {len(held.steps):,} steps, by {duration(held.ns / 1e9)} "
                         f"({percent(held.ns / all_ns)} of all delays): {', '.join(parts)}"),
        ("", f"longest: {', '.join(longest)}"),
        ("", f"at {_ranges(held)}"),
    ]


def _term(name: str, path: str) -> terms.Term:
    if name == LOOP:
        return _LOOP
    return terms.OVERHEAD if name == OVERHEAD else terms.cause(name, path)


def _place(epoch: int, step: int) -> str:
    return f"epoch {epoch} step {step}"


def _ranges(held: Held) -> str:
    """The steps of a rank's larger delays, neighbours as a range."""
    least = _LEAST_STEP * held.longest[0].ns
    ranges: list[list[int]] = []
    for epoch, step, ns in held.steps:
        if ns < least:
            continue
        if ranges and ranges[-1][0] == epoch and ranges[-1][2] == step - 1:
            ranges[-1][2] = step
        else:
            ranges.append([epoch, step, step])
    texts = [
        _place(epoch, first) if first == last else f"epoch {epoch} steps {first}-{last}"
        for epoch, first, last in ranges[:_MAX_RANGES]
    ]
    n_more = sum(last - first + 1 for _, first, last in ranges[_MAX_RANGES:])
    return ", ".join(texts) + (f" and {n_more:,} more" if n_more else "")
