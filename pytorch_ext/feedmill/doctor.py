"""``feedmill doctor``: what a loader finds on this machine, and who else runs here."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch

from feedmill import neighbours
from feedmill._ops import __version__, native
from feedmill.crowding import decode_crowding, intra_op_crowding, on_same_cpus
from feedmill.plan import CENTER_CROP


def add_doctor(commands: Any) -> None:
    """Adds the command to a parser's."""
    doctor = commands.add_parser(
        "doctor",
        help="look at this machine: CPUs, reader, feedmill processes",
        description=(
            "Prints what a loader would find here, and this user's feedmill processes on this "
            "host. Exits with 1 where they run more decode threads than there are CPUs."
        ),
    )
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    n_usable = native.usable_cpus()
    processes = neighbours.others()
    rivals = on_same_cpus(neighbours.usable_cpus(), processes)
    for name, text in [*_machine(n_usable), *map(_process, processes)]:
        print(f"  {name:<10} {text}")
    crowded = decode_crowding(rivals, n_usable)
    for text in crowded:
        print(f"crowded: {text}")
    for one in rivals:
        for text in intra_op_crowding(one, n_usable):
            print(f"pid {one.pid}: {text}")
    if not crowded:
        n_threads = sum(one.n_threads for one in rivals)
        print(f"not crowded: {n_threads} decode threads on {n_usable} CPUs")
    return 1 if crowded else 0


def _machine(n_usable: int) -> list[tuple[str, str]]:
    counters = _probe()
    n_affine, ranks = len(neighbours.usable_cpus()), os.environ.get("LOCAL_WORLD_SIZE")
    return [
        ("feedmill", f"{__version__}, torch {torch.__version__}"),
        ("CPUs", f"{n_usable} usable ({n_affine} by affinity, {os.cpu_count()} on this machine"
                 + (f"; LOCAL_WORLD_SIZE is {ranks})" if ranks else ")")),
        ("pixels", f"computed with {counters['cpu']}"),
        ("reader", f"{counters['reader']} ({counters['reader_reason']})"),
        ("torch", f"{torch.get_num_threads()} intra-op threads, "
                  + ("CUDA" if torch.cuda.is_available() else "no CUDA")),
    ]


def _probe() -> dict[str, Any]:
    """Counters of a small native loader: they name its reader and its instructions."""
    crop = (CENTER_CROP, 8, 8, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    loader = native.Loader(
        ops=[crop], dtype="uint8", n_samples=1, batch_size=1, n_threads=1, prefetch_batches=1
    )
    try:
        return loader.stats()
    finally:
        loader.close()


def _process(one: neighbours.Neighbour) -> tuple[str, str]:
    gpu = ", on a GPU" if one.on_gpu else ""
    return (
        f"pid {one.pid}",
        f"{one.n_threads} decode threads now, {one.n_intra_op} intra-op threads{gpu}: "
        f"{one.command}",
    )
