"""``feedmill sweep``: which stage limits a training step, by batch size and number of threads.

Rates are measured with a folder of images, or given as options, for example those of another
machine. The rest is modelled (``sweep_model``) or unknown.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feedmill._ops import native
from feedmill.cli import measure, sweep_table
from feedmill.cli import sweep_model as model
from feedmill.cli.arguments import check_readable, positive_int
from feedmill.cli.survey import SUFFIXES, sample, survey
from feedmill.cli.sweep_model import NOT_KNOWN, Number, Rates, given, measured
from feedmill.system import machine

_VALUE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
_SIZE, _DTYPE = 224, "float32"
_BATCH_SIZES, _THREADS = [64], [1, 2, 4, 8]

# Time limits of the parts, in seconds. _DECODE_S applies to each number of threads, of which at
# most _MOST_MEASURED are measured.
_SURVEY_S, _READ_S, _TRY_S, _DECODE_S = 5.0, 3.0, 2.0, 1.5
_MOST_MEASURED = 6
_GIGA = 1e9

# Names of the options that set a rate.
_RATES = ("storage_rate", "cpu_rate", "copy_rate", "memory_rate")


# ---- arguments -----------------------------------------------------------------------------------


def add_sweep(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    sweep = commands.add_parser(
        "sweep",
        help="find what limits a training step: storage, CPU, memory, copy or GPU",
        description=(
            "Prints, for each batch size and number of threads, how long a batch takes to prepare, "
            "which stage is the bottleneck, and how busy the GPU is. The GPU's time per batch is "
            "given with --step-ms. Rates that are not given are measured with the images below "
            "SRC; a sample of them is dropped from the page cache first. Without SRC nothing is "
            "measured. Each number is marked as measured, given, modelled or unknown. With more "
            "threads than usable CPUs, the numbers are modelled for a machine with that many CPUs."
        ),
    )
    add = sweep.add_argument
    add("src", metavar="SRC", type=Path, nargs="?", help="folder of images")
    add("--batch-sizes", type=_list_of(positive_int), default=_BATCH_SIZES, metavar="N,...",
        help="images per batch (default 64)")
    add("--threads", type=_list_of(positive_int), metavar="N,...",
        help="numbers of decode threads (default 1,2,4,8)")
    add("--step-ms", type=_list_of(_positive), metavar="MS,...",
        help="the GPU's time per batch: one number, or one for each batch size; without it "
             "only the rates of preparing are shown")
    add("--prepare-ms", type=_list_of(_positive), metavar="MS,...",
        help="the whole time to prepare a batch, if it is known: one number, or one for each "
             "batch size; replaces SRC and all rates")
    add("--storage-rate", type=_positive, metavar="GB/S", help="storage bandwidth, 1e9 bytes/s")
    add("--cpu-rate", type=_positive, metavar="IMG/S",
        help="images per second that one CPU decodes and transforms")
    add("--copy-rate", type=_positive, metavar="GB/S", help="bandwidth from host memory to the GPU")
    add("--memory-rate", type=_positive, metavar="GB/S",
        help="memory bandwidth, reads and writes together")
    add("--sample-bytes", type=_positive, metavar="N",
        help="size of an encoded sample, such as 5e6; a measured CPU rate is scaled to it")
    add("--delivered-bytes", type=_positive, metavar="N",
        help="size of a sample in the batch (default: 3 x size x size values of dtype)")
    add("--size", type=positive_int, default=_SIZE, metavar="PX",
        help="height and width of the delivered images (default %(default)s)")
    add("--dtype", choices=tuple(_VALUE_BYTES), default=_DTYPE,
        help="dtype of the batches (default %(default)s)")
    add("--gpu-preprocessing", action="store_true",
        help="assume that the GPU decodes and transforms: there is no CPU stage, and encoded "
             "bytes are copied; include the GPU's time for it in --step-ms")
    add("--warm", action="store_true",
        help="assume that all files are in the page cache")
    add("--json", action="store_true", help="print one JSON object")
    sweep.set_defaults(run=_sweep)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _list_of(one: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [one(part) for part in text.split(",")]


def _check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exits with a usage error if the options contradict each other."""
    n = len(arguments.batch_sizes)
    for name in ("step_ms", "prepare_ms"):
        values = getattr(arguments, name)
        if values and len(values) not in (1, n):
            parser.error(f"{_option(name)} has {len(values)} numbers for {n} batch sizes: give one "
                         "for all, or one for each")
    if arguments.prepare_ms:
        others = ("src", "threads", "gpu_preprocessing", "warm", *_RATES)
        if unwanted := [_option(name) for name in others if getattr(arguments, name)]:
            parser.error(f"--prepare-ms includes all of preparing: leave out {', '.join(unwanted)}")
    elif arguments.src is not None:
        check_readable(arguments.src, parser)
    elif not any(getattr(arguments, name) for name in _RATES):
        parser.error("without SRC nothing is measured: give SRC, or --prepare-ms, or at least one "
                     "of " + ", ".join(map(_option, _RATES)))


def _option(name: str) -> str:
    return "SRC" if name == "src" else "--" + name.replace("_", "-")


# ---- what is known -------------------------------------------------------------------------------


@dataclass
class Known:
    """The known rates, and where they come from.

    Attributes:
        rates: the rates.
        how: stage, "sample" or "delivered" -> how the number was determined, or why it is unknown.
        notes: further remarks, a sentence each.
    """

    rates: Rates
    how: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def known_without_measuring(arguments: argparse.Namespace) -> Known:
    """The rates given as options."""
    delivered, how = arguments.delivered_bytes, {}
    if delivered is None and not arguments.prepare_ms:
        delivered = 3 * arguments.size**2 * _VALUE_BYTES[arguments.dtype]
        how["delivered"] = f"{arguments.size} x {arguments.size} {arguments.dtype}"

    def rate(value: float | None) -> Number:
        return NOT_KNOWN if value is None else given(value * _GIGA)

    for stage, name in zip((model.STORAGE, model.CPU, model.COPY, model.MEMORY), _RATES):
        if getattr(arguments, name) is None:
            how[stage] = f"{_option(name)} was not given"
    return Known(
        Rates(
            sample_bytes=given(arguments.sample_bytes),
            delivered_bytes=given(delivered),
            storage=rate(arguments.storage_rate),
            cpu={} if arguments.cpu_rate is None else {1: given(arguments.cpu_rate)},
            memory=rate(arguments.memory_rate),
            copy=rate(arguments.copy_rate),
            gpu_preprocessing=arguments.gpu_preprocessing,
        ),
        how,
    )


def known_by_measuring(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> Known:
    """The rates given as options, and measurements with SRC of the others."""
    known = known_without_measuring(arguments)
    if busy := machine.load_note():
        known.notes.append(busy)
    files = survey(arguments.src, _SURVEY_S)
    images = files.images()
    if not images:
        parser.error(f"{arguments.src} contains no images ({', '.join(SUFFIXES)})")
    paths = sample(images)
    changes: dict[str, Any] = {}
    mean_bytes = sum(size for _, size in images) / len(images)
    if not known.rates.sample_bytes.known:
        changes["sample_bytes"] = measured(mean_bytes or None)
        first = "" if files.complete else "the first "
        known.how["sample"] = f"mean of {first}{len(images):,} files"
    if not known.rates.storage.known:
        changes["storage"] = _storage(arguments, paths, known)
    if not known.rates.cpu and not arguments.gpu_preprocessing:
        changes["cpu"] = _cpu(arguments, paths, mean_bytes, known)
    if not known.rates.memory.known:
        changes["memory"] = measured(measure.memory_rate(native.usable_cpus()))
        known.how[model.MEMORY] = "by copying arrays; the memory traffic of a sample is modelled"
    if not known.rates.copy.known:
        changes["copy"] = measured(measure.copy_rate())
        known.how[model.COPY] = "from page-locked memory"
        if not changes["copy"].known:
            known.how[model.COPY] = "CUDA is not available, and --copy-rate was not given"
    known.rates = Rates(**{**vars(known.rates), **changes})
    return known


def _storage(arguments: argparse.Namespace, paths: list[str], known: Known) -> Number:
    reading = measure.read_rates(paths, _READ_S)
    if reading.unreadable:
        path, why = next(iter(reading.unreadable.items()))
        known.notes.append(f"{len(reading.unreadable)} files can't be read, such as {path}: {why}")
    warm = "" if reading.warm is None else f"warm: {reading.warm / _GIGA:.2f} GB/s"
    if arguments.warm or machine.is_in_memory(machine.mount_of(str(arguments.src))):
        known.how[model.STORAGE] = f"from memory, {reading.n_files:,} files"
        return measured(reading.warm)
    if reading.cold is None:
        known.how[model.STORAGE] = (f"the cold rate can't be measured: {reading.why_not_cold} "
                                    f"({warm}; --warm uses that, --storage-rate sets a rate)")
        return NOT_KNOWN
    known.how[model.STORAGE] = (f"cold, {reading.n_files:,} files, {reading.cold_in_flight} at a "
                                f"time ({warm})")
    return measured(reading.cold)


def _cpu(
    arguments: argparse.Namespace, paths: list[str], mean_bytes: float, known: Known
) -> dict[int, Number]:
    """Measures samples per second by number of threads, up to the number of usable CPUs."""
    n_usable = native.usable_cpus()
    taken, rejected = measure.try_natively(
        paths, n_usable, _TRY_S, arguments.size, arguments.dtype
    )
    if rejected:
        path, why = next(iter(rejected.items()))
        share = 100 * len(rejected) / (len(rejected) + len(taken))
        known.notes.append(f"{share:.1f}% of the files tried go through Pillow, one at a time, and "
                           f"do not count in the CPU's rate (for example {path}: {why})")
    rates: dict[int, float] = {}
    for threads in _at_most_measured([n for n in arguments.threads if n <= n_usable] or [n_usable]):
        if not taken:
            break
        one = measure.decode_rate(taken, threads, _DECODE_S, arguments.size, arguments.dtype)
        if one is not None:
            rates[threads] = one.rate(n_usable)
    known.how[model.CPU] = "no file was decoded natively in time"
    if rates:
        known.how[model.CPU] = f"decode, crop and flip with {_and(rates)} threads, from CPU time"
    asked = known.rates.sample_bytes.value
    source = model.MEASURED
    if asked is not None and mean_bytes:
        factor = mean_bytes / asked
        known.how[model.CPU] += f", scaled from {mean_bytes:,.0f} bytes per sample"
        rates = {n: rate * factor for n, rate in rates.items()}
        source = model.MODELLED
    if max(arguments.threads) > n_usable and rates:
        known.notes.append(f"there are {n_usable} usable CPUs here: rows with more threads are "
                           "modelled for a machine like this one, but with a CPU for each thread")
    return {n: Number(rate, source) for n, rate in rates.items()}


def _at_most_measured(numbers: Iterable[int]) -> list[int]:
    """At most _MOST_MEASURED of the numbers, sorted, with the smallest and the largest."""
    ordered = sorted(set(numbers))
    last = len(ordered) - 1
    steps = _MOST_MEASURED - 1
    return sorted({ordered[round(i * last / steps)] for i in range(_MOST_MEASURED)})


def _and(numbers: Iterable[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


# ---- the command ---------------------------------------------------------------------------------


def _sweep(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    _check(arguments, parser)
    # If no CPU thread prepares anything, there is one row per batch size.
    threads_matter = not (arguments.prepare_ms or arguments.gpu_preprocessing)
    arguments.threads = (arguments.threads or _THREADS) if threads_matter else [0]
    if arguments.src is None:
        known = known_without_measuring(arguments)
    else:
        try:
            known = known_by_measuring(arguments, parser)
        except (ValueError, MemoryError, native.Error) as error:  # of the native loader
            parser.error(str(error))
    result = sweep_table.Sweep(
        src=None if arguments.src is None else str(arguments.src),
        known=known,
        cells=[
            model.cell(_supplies(arguments, known.rates, batch_size, place, threads), batch_size,
                       threads, _seconds(arguments.step_ms, place))
            for place, batch_size in enumerate(arguments.batch_sizes)
            for threads in arguments.threads
        ],
        is_prepare_given=bool(arguments.prepare_ms),
    )
    print(json.dumps(result.as_json(), indent=2) if arguments.json else result.as_text())
    return 0


def _supplies(
    arguments: argparse.Namespace, rates: Rates, batch_size: int, place: int, threads: int
) -> dict[str, Number]:
    if not arguments.prepare_ms:
        return model.supplies(rates, threads)
    return {model.PREPARING: given(batch_size / _one_of(arguments.prepare_ms, place))}


def _seconds(values_ms: list[float] | None, place: int) -> Number:
    return NOT_KNOWN if values_ms is None else given(_one_of(values_ms, place))


def _one_of(values_ms: list[float], place: int) -> float:
    """Seconds for the batch size at this place: its own value, or the one for all."""
    return values_ms[place if len(values_ms) > 1 else 0] / 1e3
