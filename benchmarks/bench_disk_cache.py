"""Epochs from the disk cache beside epochs from the same files: wall time and CPU time.

    python benchmarks/bench_disk_cache.py FOLDER [--threads 2] [--rounds 9] [--samples 2000]

A server on this machine has the JPEGs below FOLDER. A loader with cache="disk:..." reads them in a
first epoch, which is not counted; then epochs of it and of a loader of the files alternate, in
changing order. All is in the page cache, so that what the cache costs shows most. First compares
the batches. Writes to a temporary folder on the disk of --cache.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "support")]

import feedmill  # noqa: E402
import torch  # noqa: E402
from torchvision_cpu import torchvision  # noqa: E402
from feedmill.data import ImageList  # noqa: E402

transforms = torchvision.transforms


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


def loader_of(paths: list[str], threads: int, cache: str | None) -> feedmill.DataLoader:
    crop = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    ])
    dataset = ImageList(paths, [0] * len(paths), transform=crop)
    return feedmill.DataLoader(dataset, batch_size=64, shuffle=True, seed=1, threads=threads,
                               native="require", cache=cache)


def epoch(loader: feedmill.DataLoader) -> tuple[float, float, float]:
    """(seconds, CPU seconds, sum of the pixels)"""
    torch.manual_seed(0)
    total, wall, cpu = 0.0, time.monotonic(), cpu_s()
    for images, _ in loader:
        total += float(images[:, :, ::32, ::32].sum())
    return time.monotonic() - wall, cpu_s() - cpu, total


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--cache", default=None, metavar="DIR", help="where the cache is made")
    given = parser.parse_args()
    found = sorted(p for p in given.folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    files = found[: given.samples]
    handler = partial(Handler, directory=str(given.folder))
    with (ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
          tempfile.TemporaryDirectory(dir=given.cache) as folder):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        names = [url + p.relative_to(given.folder).as_posix() for p in files]
        loaders = {"files": loader_of([str(p) for p in files], given.threads, None),
                   "cache": loader_of(names, given.threads, f"disk:{folder}/cache:100GiB")}
        sums = {name: epoch(loader)[2] for name, loader in loaders.items()}
        if sums["files"] != sums["cache"]:
            sys.exit("the batches differ")
        n_fetched = loaders["cache"].stats().io.http_requests
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in loaders}
        for number in range(given.rounds):
            for name in sorted(loaders, reverse=number % 2 == 1):
                times[name].append(epoch(loaders[name]))
        if loaders["cache"].stats().io.http_requests != n_fetched:
            sys.exit("the cache did not have all images")
        server.shutdown()
    for what, at in (("wall time", 0), ("CPU time", 1)):
        ratios = [files[at] / cache[at] for files, cache in zip(times["files"], times["cache"])]
        rates = {name: len(names) / statistics.median(one[at] for one in all_)
                 for name, all_ in times.items()}
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"{what}: {rates['files']:,.0f} images/s from files, {rates['cache']:,.0f} from the "
              f"cache; ratio {middle:.3f} (quartiles {low:.3f}-{high:.3f})")


if __name__ == "__main__":
    main()
