"""What resuming in the middle of an epoch costs, beside making the sampler's order once.

    python benchmarks/bench_resume.py [--samples N] [--rounds N] [--output FILE]

For each sampler the loader goes on after all but the last batch of an epoch of N samples. Measured
in turn: list(sampler), which any resume needs that does not store the order; iter() and the first
batch of a loader that begins its epoch; and the same after load_state_dict(). The quickest of the
rounds counts. The data are one byte a sample, in memory: reading them costs next to nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedmill
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, TensorDataset

BATCH = 256


def samplers(dataset: Any) -> dict[str, Callable[[], Any]]:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    return {
        "RandomSampler": lambda: RandomSampler(dataset),
        "RandomSampler, generator=": lambda: RandomSampler(dataset, generator=generator()),
        "SubsetRandomSampler": lambda: SubsetRandomSampler(range(len(dataset)), generator()),
        "DistributedSampler, rank 1 of 8": lambda: DistributedSampler(dataset, 8, 1, seed=1),
    }


def loader_of(dataset: Any, sampler: Any, batch_size: int = BATCH) -> feedmill.DataLoader:
    return feedmill.DataLoader(dataset, batch_size=batch_size, sampler=sampler, seed=1)


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def state_before_the_end(dataset: Any, sampler: Any) -> dict[str, Any]:
    """The state after all but the last BATCH samples."""
    n_delivered = len(sampler) - BATCH
    loader = loader_of(dataset, sampler, n_delivered)
    iterator = iter(loader)
    next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


def measure(dataset: Any, make: Callable[[], Any], n_rounds: int) -> tuple[float, float, float]:
    """Seconds of (list(sampler), the first batch of an epoch, the first batch after resuming)."""
    state = state_before_the_end(dataset, make())
    rounds = []
    for _ in range(n_rounds):
        torch.manual_seed(1)
        listed = seconds(lambda: list(make()))
        fresh, resumed = loader_of(dataset, make()), loader_of(dataset, make())
        began = seconds(lambda: next(iter(fresh)))

        def go_on() -> None:
            resumed.load_state_dict(state)
            (batch,) = next(iter(resumed))
            assert len(batch) == BATCH

        rounds.append((listed, began, seconds(go_on)))
    listed, began, went_on = (min(column) for column in zip(*rounds))
    return listed, began, went_on


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_000_000, help="that a rank has (10^6)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    lines = [
        f"Resuming after {options.samples - BATCH:,} of {options.samples:,} samples; milliseconds, "
        f"the quickest of {options.rounds} rounds.",
        "",
        "| sampler | `list(sampler)` | first batch of an epoch | first batch after resuming "
        "| resuming / list |",
        "|---|---|---|---|---|",
    ]
    for name in samplers([]):
        n_samples = options.samples * (8 if "of 8" in name else 1)
        dataset = TensorDataset(torch.zeros(n_samples, 1, dtype=torch.uint8))
        listed, began, resumed = measure(dataset, samplers(dataset)[name], options.rounds)
        lines.append(
            f"| {name} | {1e3 * listed:.0f} | {1e3 * began:.0f} | {1e3 * resumed:.0f} | "
            f"{resumed / listed:.2f} |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        note = f"`python benchmarks/bench_resume.py`, torch {torch.__version__}.\n\n"
        options.output.write_text("# What resuming costs\n\n" + note + text)


if __name__ == "__main__":
    main()
