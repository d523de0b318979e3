"""Compares feedmill with torch's DataLoader on a pipeline of webdataset: tar files of a folder's
images, the usual training transform.

    python benchmarks/bench_webdataset.py --data FOLDER [--workers 2] [--rounds 3] [--json FILE]

FOLDER is an ImageFolder; without it, photograph-like JPEGs are generated in run-data/made. Its
files are written into tar files, repeated to at least --samples samples. First the batches of both
loaders are compared, in all bits. Then their epochs are timed in turn, so that other load affects
both: of a new feedmill loader in each round the first epoch, which notes where rows of JPEGs begin,
and the second one.
"""

from __future__ import annotations

import argparse
import io
import json
import pathlib
import sys
import tarfile
import tempfile
import warnings

import feedmill
import torch
import webdataset as wds
from bench_torch import (
    ROOT,
    Trainer,
    make_dataset,
    make_images,
    run_epoch,
    show_progress,
    summarize,
)

TORCH, FIRST, SECOND = "torch DataLoader", "feedmill, first epoch", "feedmill, second epoch"


def write_shards(samples: list[tuple[str, int]], root: pathlib.Path, n_shards: int) -> list[str]:
    """Tar files of the samples, each a jpg and a cls."""
    paths = []
    for k in range(n_shards):
        paths.append(str(root / f"{k:04}.tar"))
        with tarfile.open(paths[-1], "w") as tar:
            for number in range(k, len(samples), n_shards):
                path, label = samples[number]
                for name, data in (
                    ("jpg", pathlib.Path(path).read_bytes()), ("cls", str(label).encode())
                ):
                    info = tarfile.TarInfo(f"{number:07}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return paths


def make_loader(kind, paths: list[str], transform, args, **options):
    pipeline = wds.WebDataset(paths, shardshuffle=100, seed=1).shuffle(1000, seed=2).decode(
        "pil").to_tuple("jpg", "cls").map_tuple(transform, None)
    return kind(pipeline, batch_size=args.batch_size, num_workers=args.workers, **options)


def check_batches(paths: list[str], transform, args) -> None:
    """Compares an epoch of both loaders; exits at the first difference."""
    epochs = []
    for kind, options in (
        (torch.utils.data.DataLoader, {}), (feedmill.DataLoader, {"native": "require"})
    ):
        torch.manual_seed(0)
        epochs.append(iter(make_loader(kind, paths, transform, args, **options)))
    wanted, got = epochs
    n = 0
    for (images, labels), (others, more) in zip(wanted, got):
        if not torch.equal(images, others) or not torch.equal(labels, more):
            sys.exit(f"FAILED: a batch behind {n} samples differs from torch's DataLoader's")
        n += len(images)
    if next(wanted, None) is not None or next(got, None) is not None:
        sys.exit("FAILED: one loader has more batches")
    print(f"batches: {n} samples equal those of torch's DataLoader, bit for bit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4000, help="least samples in an epoch")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*shardshuffle.*")
    folder = args.data
    if folder is None:
        folder = ROOT / "run-data" / "made"
        make_images(folder)
    dataset, unique = make_dataset(folder, args.samples)
    with tempfile.TemporaryDirectory() as root:
        paths = write_shards(dataset.samples, pathlib.Path(root), args.shards)
        print(f"images: {unique} files, {len(dataset)} samples in {len(paths)} tar files")
        check_batches(paths, dataset.transform, args)
        results = measure(paths, dataset, args)
    figures = {name: summarize(result) for name, result in results.items()}
    print(f"{'':24}{'img/s':>8}{'ratio':>8}{'img/CPU-s':>12}{'ratio':>8}")
    for name, figure in figures.items():
        ratios = [figure[key] / figures[TORCH][key] for key in ("img_per_s", "img_per_cpu_s")]
        print(f"{name:24}{figure['img_per_s']:8.0f}{ratios[0]:8.2f}"
              f"{figure['img_per_cpu_s']:12.0f}{ratios[1]:8.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(paths: list[str], dataset, args) -> dict[str, list[dict[str, float]]]:
    """Times the epochs in turn."""
    trainer = Trainer(False, len(dataset.classes))
    results: dict[str, list[dict[str, float]]] = {TORCH: [], FIRST: [], SECOND: []}
    for number in range(args.rounds):
        show_progress(f"round {number + 1} of {args.rounds}")
        loader = make_loader(torch.utils.data.DataLoader, paths, dataset.transform, args)
        results[TORCH].append(run_epoch(loader, trainer))
        loader = make_loader(
            feedmill.DataLoader, paths, dataset.transform, args, native="require"
        )
        for name in (FIRST, SECOND):
            results[name].append(run_epoch(loader, trainer))
        if loader.stats().decode.fallback_samples:
            sys.exit("FAILED: some images went through Pillow")
    show_progress("")
    return results


if __name__ == "__main__":
    main()
