"""Compares two builds of feedmill: a wheel with a build from source, for example.

    python -m pip install --no-deps --target build/a dist/feedmill-*.whl
    python -m pip install --no-deps --target build/b .
    python benchmarks/bench_builds.py build/a build/b [--data FOLDER] [--pack] [--rounds 15]

One process for each build loads the same epochs of an ImageFolder (RandomResizedCrop, flip,
ToTensor, Normalize), in turn, so that other load affects both; the other one is stopped meanwhile.
First compares all of an epoch's batches, bit for bit. Prints images per CPU-second of each, and the
ratio: the median over the rounds, with its quartiles. Without --data, photograph-like JPEGs are
generated in run-data/made. With --pack, --data is a folder that `feedmill pack` has made.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

from peers.process import Failed, Process

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# ---- the process of one build --------------------------------------------------------------------


def serve(folder: str, n_samples: int, workers: int, is_pack: bool) -> None:
    """Says where feedmill is from, then answers each line on stdin with one on stdout: "hash" with
    the digest of an epoch's batches, "time" with the CPU and the wall time that an epoch took."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import feedmill
    import torch
    from torchvision_cpu import torchvision

    T = torchvision.transforms
    steps = [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
             T.Normalize(MEAN, STD)]
    kind = feedmill.Pack if is_pack else torchvision.datasets.ImageFolder
    whole = kind(folder, transform=T.Compose(steps))
    dataset = torch.utils.data.Subset(whole, [i % len(whole) for i in range(n_samples)])
    loader = feedmill.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers,
                                 native="require")
    print("{}", flush=True)
    for line in sys.stdin:
        if line == "where\n":
            print(json.dumps({"from": feedmill.__path__[0]}), flush=True)
            continue
        torch.manual_seed(0)
        digest = hashlib.sha256()
        cpu, wall = time.process_time(), time.perf_counter()
        for images, targets in loader:
            if line == "hash\n":
                digest.update(images.numpy().tobytes() + targets.numpy().tobytes())
        result = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall,
                  "digest": digest.hexdigest(), "pillow": loader.stats().decode.fallback_samples}
        print(json.dumps(result), flush=True)


def started(installed: pathlib.Path, logs: pathlib.Path, args: argparse.Namespace) -> Process:
    """The process of a build, which runs only while it is asked."""
    installed = installed.resolve()
    words = [sys.executable, __file__, "--serve", str(args.data.resolve()), str(args.samples),
             str(args.workers), str(int(args.pack))]
    log = logs / f"{installed.name}.log"
    try:
        process = Process(words, log, ROOT, {"PYTHONPATH": str(installed)}, timeout_s=600)
    except Failed as error:
        sys.exit(f"bench_builds: {installed}: {error}\n{log.read_text()}")
    came = pathlib.Path(process.ask("where")["from"])
    if not came.is_relative_to(installed):
        process.close()
        sys.exit(f"bench_builds: {installed} has no feedmill; {came} was imported")
    return process


# ---- the comparison ------------------------------------------------------------------------------


def compare(builds: list[Process], args: argparse.Namespace) -> None:
    first = [build.ask("hash") for build in builds]
    if first[0]["digest"] != first[1]["digest"]:
        sys.exit("bench_builds: FAILED: the builds' batches differ")
    print(f"{args.samples} images compared, all equal; {first[0]['pillow']} went through Pillow")
    rates: list[list[float]] = [[], []]
    walls: list[list[float]] = [[], []]
    for number in range(args.rounds):
        # Which one goes first changes, as a load that grows would favour that one.
        for which in (0, 1) if number % 2 else (1, 0):
            got = builds[which].ask("time")
            rates[which].append(args.samples / got["cpu"])
            walls[which].append(args.samples / got["wall"])
    for what, both in (("CPU-second", rates), ("second", walls)):
        ratios = [a / b for a, b in zip(*both)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"images per {what}: {statistics.median(both[0]):.0f} and "
              f"{statistics.median(both[1]):.0f}; ratio {middle:.3f} ({low:.3f}-{high:.3f})")


def made_images(build: pathlib.Path) -> pathlib.Path:
    folder = ROOT / "run-data" / "made"
    if not folder.exists():
        sys.path.insert(0, str(build.resolve()))
        from feedmill.cli.made_images import make_images

        whole = folder.with_name("made.part")
        shutil.rmtree(whole, ignore_errors=True)
        make_images(whole)
        whole.rename(folder)  # a folder that was not finished is not used
    return folder


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "1")
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", nargs=2, type=pathlib.Path, metavar="BUILD",
                        help="a folder with an installed feedmill; the ratio is first to second")
    parser.add_argument("--data", type=pathlib.Path, help="an ImageFolder; default: made images")
    parser.add_argument("--pack", action="store_true", help="--data is a pack")
    parser.add_argument("--samples", type=int, default=1024, help="of an epoch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="(%(default)s)")
    args = parser.parse_args()
    if args.data is None and args.pack:
        parser.error("--pack needs --data")
    if args.data is None:
        args.data = made_images(args.builds[0])
    with contextlib.ExitStack() as stack:
        logs = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        builds = []
        for number, one in enumerate(args.builds):
            (logs / str(number)).mkdir()
            builds.append(started(one, logs / str(number), args))
            stack.callback(builds[-1].close)
        try:
            compare(builds, args)
        except Failed as error:
            sys.exit(f"bench_builds: {error}")


if __name__ == "__main__":
    main()
