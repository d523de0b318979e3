#!/usr/bin/env python3
"""Projects what packing a large image folder takes on a cluster, from rates measured here.

    python benchmarks/bench_pack.py photos/train --images 14000000 --nodes 64 --cpus 16

Measured, in CPU time, so that other programs on this machine matter little: packing the images of a
folder, listing (without the calls to the file system, whose time is the storage's), and joining.
Everything else is arithmetic, and marked as such.
"""

import argparse
import resource
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from feedmill.packing.building import Sample, Shard, build, join
from feedmill.packing.index import Index
from feedmill.packing.node import Site, payload_of
from feedmill.packing.source import FolderSamples, Source, _key, read_source
from feedmill.packing.writer import ROWS, Layout, Options, write_shards

# Names like ImageNet's: n01440764/n01440764_10026.JPEG
NAME = "n{label:08}/n{label:08}_{i:08}.JPEG"
PER_CLASS = 640
ROUNDS = 3


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(function):
    """(CPU seconds, peak of Python's memory in bytes, result). Measured in two calls, as measuring
    memory takes time."""
    began = cpu_seconds()
    function()
    seconds = cpu_seconds() - began
    tracemalloc.start()
    result = function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return seconds, peak, result


def pack(folder):
    """(CPU seconds per image, bytes per image before and after, number of images, bytes of this
    process at most, bytes of memory per sample of a list of tar files)."""
    source, rates = read_source(str(folder)), []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as out:
            began = cpu_seconds()
            tally = write_shards(source, out, Options(workers=1))
            rates.append((cpu_seconds() - began) / tally.samples)
            process_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            tar_bytes = timed(lambda: read_source(out))[1]
    n = tally.samples
    return (sorted(rates)[ROUNDS // 2], tally.image_bytes / n, tally.file_bytes / n, n,
            process_bytes, tar_bytes / n)


def listed(n, n_bytes):
    """A made list of n samples in an image folder."""
    samples = FolderSamples("/data/images")
    for i in range(n):
        name = NAME.format(label=i // PER_CLASS, i=i)
        samples.append(name, i // PER_CLASS, n_bytes, _key(name[:-5]))
    classes = [f"n{label:08}" for label in range(n // PER_CLASS + 1)]
    return Source(samples, classes, ["/data/images"])


def indices(source, n_shards):
    size = len(source.samples) // n_shards
    made = []
    for k in range(n_shards):
        samples = [
            Sample(one.name, 512, one.image_bytes, one.label, 500, 375)
            for one in source.samples[k * size : (k + 1) * size]
        ]
        data = build(Shard(f"shard-{k:06}.tar", 1 << 30), samples, source.classes,
                     rows_per_sample=ROWS, part=k, n_parts=n_shards)
        made.append(Index(data, f"shard {k}"))
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dir", type=Path, help="image folder to measure with")
    parser.add_argument("--images", type=int, default=14_000_000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--cpus", type=int, default=16, help="CPUs of a node")
    parser.add_argument("--list", type=int, default=100_000, help="names to measure listing with")
    args = parser.parse_args()
    if sys.flags.dev_mode:
        parser.error("Python's development mode changes the times")

    began = time.perf_counter()
    seconds, before, after, n, process_bytes, tar_bytes = pack(args.dir)
    print(f"measured with {n:,} images of {before / 1e3:,.0f} KB, {args.list:,} names")
    print(f"  packing          {1e3 * seconds:.2f} ms of CPU time an image, {1 / seconds:,.0f} "
          f"images/s a CPU; {after / before:.3f} times the bytes; {process_bytes / 1e6:.0f} MB a "
          "process with one thread")
    options = Options()
    list_s, list_bytes, source = timed(lambda: listed(args.list, int(before)))
    plan_s, plan_bytes, layout = timed(lambda: Layout(source, options))
    job = layout.job(0)
    payload = len(payload_of(Site(["/data/images"], "/data/pack", "marker"), job, options))
    print(f"  listing          {1e6 * (list_s + plan_s) / args.list:.1f} us and "
          f"{(list_bytes + plan_bytes) / args.list:.0f} bytes a name; a task's argument "
          f"{payload / len(job.samples):.0f} bytes a name; of tar files {tar_bytes:.0f} bytes of "
          "memory a sample")
    made = indices(source, 10)
    join_s, join_bytes, index = timed(lambda: join(made))
    n_joined = sum(one.n_samples for one in made)
    print(f"  joining          {1e6 * join_s / n_joined:.2f} us and {join_bytes / n_joined:.0f} "
          f"bytes a sample; the index has {len(index) / n_joined:.0f}")

    n, n_cpus = args.images, args.nodes * args.cpus
    n_shards = -(-n * int(before + 2048) // options.shard_bytes)
    print(f"projected for {n:,} such images, {args.nodes} nodes of {args.cpus} CPUs")
    print(f"  files            {n_shards:,} shards of about 1 GiB, and an index of "
          f"{len(index) / n_joined * n / 1e9:.1f} GB")
    print(f"  storage          {n * before / 1e12:.2f} TB to read, {n * after / 1e12:.2f} TB to "
          "write")
    print(f"  packing          {n * seconds / 3600:.1f} CPU hours; {n * seconds / n_cpus:,.0f} s "
          f"if storage delivers {before * n_cpus / seconds / 1e9:.1f} GB/s and takes as much")
    rounds = -(-n_shards // n_cpus)
    print(f"  rounds           {rounds} shards one after another on a CPU: "
          f"{rounds * n / n_shards * seconds:,.0f} s")
    print(f"  listing          {n * (list_s + plan_s) / args.list:,.0f} s of CPU time, "
          f"{n * (list_bytes + plan_bytes) / args.list / 1e9:.1f} GB; and a stat() of each file: "
          f"{n * 1e-4 / 60:,.0f} minutes at 0.1 ms each; of tar files {n * tar_bytes / 1e9:.1f} GB")
    print(f"  joining          {n * join_s / n_joined:,.0f} s of CPU time, "
          f"{(join_bytes + len(index)) / n_joined * n / 1e9:.1f} GB")
    print(f"(measured in {time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
