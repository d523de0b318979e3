"""Compares the ranks of one run by their logs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from feedmill.profiling.log.reader import Run
from feedmill.profiling.page.run_stats import loop_ns
from feedmill.profiling.report.straggler_text import straggler_lines
from feedmill.profiling.report.stragglers import Stragglers, basis_of, compare, own_times

_Ranks = dict[int, Run]


def groups_of_ranks(runs: Sequence[Run]) -> list[_Ranks]:
    """The runs that are ranks of the same loader, by rank: at least two each.

    Loaders are the same if they were made in the same line of the script, and as the same one in
    number there: each restart of a training adds one for each of its ranks.
    """
    n_before: Counter[tuple[str | None, int]] = Counter()
    groups: defaultdict[tuple[str | None, int], _Ranks] = defaultdict(dict)
    for run in runs:
        if run.rank is None:
            continue
        number = n_before[run.place, run.rank]
        n_before[run.place, run.rank] += 1
        groups[run.place, number][run.rank] = run
    return [ranks for ranks in groups.values() if len(ranks) > 1]


def stragglers_of(ranks: _Ranks) -> Stragglers:
    """Compares the steps of a group of ranks."""
    basis = basis_of([run.steps for run in ranks.values()])
    return compare({rank: own_times(run.steps, basis) for rank, run in ranks.items()}, basis)


def straggler_reports(runs: Sequence[Run]) -> list[str]:
    """The report on each group of ranks, as text; none if there is no group."""
    groups = groups_of_ranks(runs)
    texts = []
    for ranks in groups:
        place = next(iter(ranks.values())).place
        total_ns = max(loop_ns(run.steps) for run in ranks.values())
        paths = {rank: run.path for rank, run in ranks.items()}
        lines = straggler_lines(stragglers_of(ranks), total_ns, paths)
        missing = sorted(set(range(max(ranks) + 1)) - set(ranks))
        if missing:
            lines.append(f"  missing    the logs of ranks {', '.join(map(str, missing))}")
        if n_lost := sum(run.n_lost for run in ranks.values()):
            lines.append(f"  lost       {n_lost:,} steps, which the logs lack")
        texts.append("\n".join([f"all ranks{f', {place}' if place else ''}:", *lines]))
    return texts
