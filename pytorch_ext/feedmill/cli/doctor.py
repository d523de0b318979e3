"""``feedmill doctor``: facts about this machine, its feedmill processes and a folder of images."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from feedmill._ops import __version__, native
from feedmill.cli import network_check
from feedmill.cli.advice import Findings, suggest
from feedmill.cli.arguments import check_readable
from feedmill.cli.folder_check import check_folder
from feedmill.cli.folder_check import rows as folder_rows
from feedmill.cli.missing import find_missing
from feedmill.cli.network_check import check_name
from feedmill.planner.plan import CENTER_CROP, Op
from feedmill.system import machine, peer_processes
from feedmill.system.cpu_contention import (
    decode_thread_contention,
    expected_threads,
    intra_op_contention,
    n_usable_of,
    on_same_cpus,
)


def add_doctor(commands: Any) -> None:
    """Adds the command to an argparse parser's subparsers."""
    doctor = commands.add_parser(
        "doctor",
        help="show what this machine offers, what is missing, and what limits a folder",
        description=(
            "Prints what feedmill can use on this machine, what is missing and how to get it, and "
            "your other feedmill processes on this host. With DIR it also lists the folder's "
            "files, measures how fast a sample of them is read and decoded (in up to about 15 "
            "seconds; the sample is dropped from the page cache first), and suggests settings with "
            "reasons. With the name of an object, such as s3://bucket/key, it says which "
            "credentials are used, and requests its first byte; of a name that ends in a slash, "
            "that of the pack's index there. The exit status is 1 if more decode threads run than "
            "there are CPUs, or if that request fails."
        ),
    )
    doctor.add_argument("dir", metavar="DIR", nargs="?",
                        help="folder of images, or the name of an object")
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    name = arguments.dir if "://" in (arguments.dir or "") else None
    folder = None if name or arguments.dir is None else Path(arguments.dir)
    if folder is not None:
        check_readable(folder, parser)
    try:
        facts = machine_facts()
    except (ValueError, native.Error) as error:  # FEEDMILL_READER or FEEDMILL_CPU is invalid here
        parser.error("; ".join([str(error), *machine.why_no_uring()]))
    if folder is not None:
        facts["folder"] = check_folder(folder, facts["cpus"]["usable"])
        facts["suggestions"] = [one._asdict() for one in suggest(_findings(facts))]
    if name is not None:
        facts["object"] = check_name(name)
    print(json.dumps(facts, indent=2) if arguments.json else "\n".join(_as_text(facts)))
    return 1 if facts["crowded"] or facts.get("object", {}).get("error") else 0


# ---- facts ---------------------------------------------------------------------------------------


def machine_facts() -> dict[str, Any]:
    """Facts about this machine, as in the JSON. Nothing is measured."""
    counters = _probe()
    n_usable = native.usable_cpus()
    processes = peer_processes.others()
    cpus = peer_processes.usable_cpus()
    peers = on_same_cpus(cpus, processes)
    quota, space, names = machine.cpu_quota(), machine.shared_memory(), os.uname()
    soft, hard = machine.locked_memory()
    facts = {
        "feedmill": __version__,
        "torch": torch.__version__,
        "intra_op_threads": torch.get_num_threads(),
        "kernel": f"{names.sysname} {names.release} {names.machine}",
        "cpus": {
            "usable": n_usable,
            "affinity": len(cpus),
            "machine": os.cpu_count(),
            "local_world_size": os.environ.get("LOCAL_WORLD_SIZE"),
            "quota": quota and quota._asdict(),
        },
        "simd": counters["cpu"],
        "simd_asked_for": os.environ.get("FEEDMILL_CPU"),
        "libjpeg_turbo": native.jpeg_version(),
        "formats": native.formats(),
        "network": native.libcurl_version(),
        "own_huffman_decoder": native.jpeg_own_huffman(),
        "reader": counters["reader"],
        "reader_reason": counters["reader_reason"],
        "why_no_uring": machine.why_no_uring() if counters["reader"] != "uring" else [],
        "memory": asdict(machine.memory()),
        "locked_memory": {"soft": soft, "hard": hard},
        "shared_memory": space and space._asdict(),
        "gpus": _gpus(),
        "processes": [asdict(one) for one in processes],
        "rival_threads": expected_threads(cpus, peers),
        "crowded": decode_thread_contention(processes, cpus, n_usable),
        "intra_op_crowded": [
            f"pid {one.pid}: {text}"
            for one in peers
            for text in intra_op_contention(one, n_usable_of(one.cpus, cpus, n_usable))
        ],
    }
    facts["missing"] = [one._asdict() for one in find_missing(facts)]
    return facts


def _probe() -> dict[str, Any]:
    """Counters of a small native loader; they name its reader and its SIMD instructions."""
    loader = native.Loader(
        ops=[Op(CENTER_CROP, 8, 8)],
        dtype="uint8",
        n_samples=1,
        batch_size=1,
        n_threads=1,
        prefetch_batches=1,
    )
    try:
        return loader.stats()
    finally:
        loader.close()


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    all_properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [{"name": one.name, "memory_bytes": one.total_memory} for one in all_properties]


def _findings(facts: dict[str, Any]) -> Findings:
    folder, ranks = facts["folder"], facts["cpus"]["local_world_size"] or ""
    reading, decoding = folder["reading"], folder["decoding"] or {}
    return Findings(
        n_usable=facts["cpus"]["usable"],
        n_taken=facts["rival_threads"],
        n_processes=max(1, int(ranks) if ranks.isdecimal() else len(facts["gpus"])),
        has_gpu=bool(facts["gpus"]),
        reader=facts["reader"],
        reader_reason=facts["reader_reason"],
        is_high_latency=folder["is_far"],
        memory_left=facts["memory"]["left"],
        shm_bytes=(facts["shared_memory"] or {"total": 0})["total"],
        data_bytes=folder["bytes"] if folder["complete"] else None,
        sample_bytes=reading["n_bytes"] / max(1, reading["n_files"]),
        decode_rate=decoding.get("images_per_s_all_cpus"),
        cold_rate=reading["cold"],
        cold_file_s=reading["cold_file_s"],
    )


# ---- text ----------------------------------------------------------------------------------------


def _as_text(facts: dict[str, Any]) -> list[str]:
    rows = [*_machine_rows(facts), *map(_process_row, facts["processes"])]
    if "folder" in facts:
        rows += folder_rows(facts["folder"], facts["cpus"]["usable"])
    if "object" in facts:
        rows += network_check.rows(facts["object"])
    lines = [f"  {name:<10} {text}" for name, text in rows]
    lines += _missing_lines(facts["missing"])
    if "suggestions" in facts:
        lines.append(f"suggested for {facts['folder']['path']}:")
        lines += [f"  {one['setting']:<15} {one['value']:<12} {one['why']}"
                  for one in facts["suggestions"]]
    lines += [f"CPU contention: {text}" for text in facts["crowded"]]
    lines += facts["intra_op_crowded"]
    if not facts["crowded"]:
        n_usable = facts["cpus"]["usable"]
        lines.append(f"no CPU contention: {facts['rival_threads']} decode threads of other "
                     f"processes on {n_usable} CPUs")
    return lines


def _machine_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    asked, memory, space = facts["simd_asked_for"], facts["memory"], facts["shared_memory"]
    huffman = "feedmill's own" if facts["own_huffman_decoder"] else "libjpeg-turbo's"
    limit = "no cgroup limit"
    if memory["limit"] is not None:
        limit = (f"cgroup limit {_gigabytes(memory['limit'])}, {_gigabytes(memory['left'])} left "
                 "under it")
    return [
        ("feedmill", f"{facts['feedmill']}, torch {facts['torch']}"),
        ("kernel", facts["kernel"]),
        ("CPUs", _cpus(facts["cpus"])),
        ("SIMD", f"{facts['simd']}"
                   + (f" (FEEDMILL_CPU={asked})" if asked else "")),
        ("JPEG", f"libjpeg-turbo {facts['libjpeg_turbo']}, {huffman} Huffman decoder"),
        ("formats", f"{facts['formats']} decoded natively, others by Pillow"),
        ("network", f"libcurl {facts['network']}: s3://, gs://, http:// and https:// names"
         if facts["network"] else "no libcurl: only files are read"),
        ("reader", f"{facts['reader']} ({facts['reader_reason']})"),
        # If io_uring was tried, the list of missing things has these reasons.
        *(("", text) for text in facts["why_no_uring"] if not _is_missing(facts, "io_uring")),
        ("memory", f"{_gigabytes(memory['total'])}, {_gigabytes(memory['available'])} available; "
                   + limit),
        ("memlock", _memlock(facts["locked_memory"])),
        ("/dev/shm", f"{_gigabytes(space['total'])}, {_gigabytes(space['free'])} free" if space
         else "does not exist; worker processes of torch's own path need it"),
        ("torch", f"{facts['intra_op_threads']} intra-op threads, {_gpu_text(facts['gpus'])}"),
    ]


def _is_missing(facts: dict[str, Any], what: str) -> bool:
    return any(one["what"] == what for one in facts["missing"])


def _missing_lines(missing: list[dict[str, str]]) -> list[str]:
    if not missing:
        return ["nothing is missing: feedmill can use all that it supports here"]
    lines = ["missing:"]
    for one in missing:
        lines += [f"  {one['what']}: {one['why']}", f"    how to get it: {one['get']}"]
    return lines


def _cpus(cpus: dict[str, Any]) -> str:
    quota, ranks = cpus["quota"], cpus["local_world_size"]
    parts = [f"{cpus['affinity']} in the affinity, {cpus['machine']} on this machine"]
    if quota:
        parts.append(
            f"cgroup v{quota['version']} quota of {quota['cpus']:.3g} CPUs, throttled in "
            f"{quota['n_throttled']:,} periods for {quota['throttled_s']:.1f} s so far"
        )
    else:
        parts.append("no cgroup quota")
    if ranks:
        parts.append(f"LOCAL_WORLD_SIZE={ranks}")
    return f"{cpus['usable']} usable ({'; '.join(parts)})"


def _memlock(limits: dict[str, int | None]) -> str:
    if limits["soft"] is None:
        return "no limit on locked memory"
    hard = "no limit" if limits["hard"] is None else f"{limits['hard'] / 1e6:,.1f} MB"
    return f"{limits['soft'] / 1e6:,.1f} MB may be locked (ulimit -l; hard limit: {hard})"


def _gpu_text(gpus: list[dict[str, Any]]) -> str:
    return "CUDA: " + ", ".join(
        f"{one['name']} ({_gigabytes(one['memory_bytes'])})" for one in gpus
    ) if gpus else "no CUDA"


def _gigabytes(n: int) -> str:
    return f"{n / 1e9:,.1f} GB"


def _process_row(one: dict[str, Any]) -> tuple[str, str]:
    gpu = ", on a GPU" if one["on_gpu"] else ""
    return (
        f"pid {one['pid']}",
        f"{one['n_threads']} decode threads now, {one['n_intra_op']} intra-op threads{gpu}: "
        + " ".join(one["command"].split()),
    )
