"""Writes the shards of a pack. Threads read and transcode the samples; shards keep their order."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from feedmill._ops import native
from feedmill.packing.building import Sample, Shard, build
from feedmill.packing.index import INDEX_NAME, TRANSCODED, VERIFIED, PackError
from feedmill.packing.source import Source, SourceSample
from feedmill.packing.targets import Target
from feedmill.packing.tars import BLOCK, header_of, padded

ROWS = 8  # FM_PACK_ROWS
# The two blocks of zeros that end a tar file.
_END = bytes(2 * BLOCK)
# Most samples per thread that are being transcoded or wait to be written.
_PREFETCH = 4
# max_cost_ppm of a transcoder that may make an image larger by any amount.
_ANY_COST = (1 << 32) - 1


@dataclass(frozen=True)
class Options:
    """How samples are packed.

    Attributes:
        shard_bytes: largest size of a shard, counted before transcoding; a shard has at least one
            sample. Sizes before transcoding let processes that pack parts agree on the shards
            without communication.
        interval: restart interval in MCUs. None: about 4, if the markers make an image less than
            0.3% larger.
        verify: compare each transcoded image's pixels with the source's.
        workers: number of threads.
    """

    shard_bytes: int = 1 << 30
    interval: int | None = None
    verify: bool = True
    workers: int = 1

    def digest(self, source: Source) -> bytes:
        """16 bytes that identify the source and the options. A shard with the same digest is
        reused."""
        text = f"{self.shard_bytes} {self.interval} {self.verify} {native.jpeg_version()} "
        return hashlib.sha256(text.encode() + source.digest()).digest()[:16]

    def transcoder(self) -> Any:
        if self.interval is None:
            return native.Transcoder(verify=self.verify)
        return native.Transcoder(
            interval=self.interval, max_cost_ppm=_ANY_COST, verify=self.verify
        )


@dataclass
class Tally:
    """Counts of what write_shards() did.

    Attributes:
        samples, shards: numbers of samples and shards.
        kept: number of shards that existed already and were reused. They count in no field below.
        image_bytes, packed_bytes: size of the images before and after transcoding.
        file_bytes: size of the shards' files.
        stored_unchanged: reason -> number of images that were not transcoded.
    """

    samples: int = 0
    shards: int = 0
    kept: int = 0
    image_bytes: int = 0
    packed_bytes: int = 0
    file_bytes: int = 0
    stored_unchanged: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Packed(NamedTuple):
    """A sample that is ready to be written.

    Attributes:
        contents: of the sample's members.
        reason: why the image was not transcoded, an index in native.PACK_REASONS; 0: it was.
        width, height, interval, flags, rows: as in the index's record.
    """

    source: SourceSample
    contents: list[bytes]
    reason: int
    width: int
    height: int
    interval: int
    flags: int
    rows: Sequence[int]


# ---- shards --------------------------------------------------------------------------------------


def split_into_shards(samples: Sequence[SourceSample], shard_bytes: int) -> list[tuple[int, int]]:
    """Distributes samples over shards. Returns (first sample, last sample + 1) of each shard."""
    bounds, first, n_bytes = [], 0, 0
    for i, sample in enumerate(samples):
        more = sample.tar_bytes
        if i > first and n_bytes + more > shard_bytes:
            bounds.append((first, i))
            first, n_bytes = i, 0
        n_bytes += more
    return [*bounds, (first, len(samples))]


def shard_name(number: int) -> str:
    return f"shard-{number:06}.tar"


def part_name(number: int) -> str:
    """The name of a shard's own index, which exists until the indices are joined."""
    return f"shard-{number:06}.fmp"


class ShardJob(NamedTuple):
    """A shard to be written, with all that a process on any machine needs for it.

    Attributes:
        number, n_shards: number of this shard, from 0, and of all shards of the pack.
        samples: in the shard, in order.
        classes, digest: as for build().
    """

    number: int
    n_shards: int
    samples: Sequence[SourceSample]
    classes: Sequence[str]
    digest: bytes

    @property
    def name(self) -> str:
        return shard_name(self.number)


class Layout:
    """How a source's samples are distributed over the shards of its pack.

    Attributes:
        digest: 16 bytes that identify the source and the options.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self.digest = options.digest(source)
        self._source = source
        self._bounds = split_into_shards(source.samples, options.shard_bytes)

    def __len__(self) -> int:
        return len(self._bounds)

    def part(self, part: int, n_parts: int) -> range:
        """The numbers of the shards of one part."""
        n = len(self)
        return range(part * n // n_parts, (part + 1) * n // n_parts)

    def n_samples(self, number: int) -> int:
        first, end = self._bounds[number]
        return end - first

    def job(self, number: int) -> ShardJob:
        first, end = self._bounds[number]
        source = self._source
        return ShardJob(number, len(self), source.samples[first:end], source.classes, self.digest)


def write_shards(
    source: Source,
    target: Target,
    options: Options,
    part: int = 0,
    n_parts: int = 1,
    update: Callable[[int], Any] = lambda n: None,
) -> Tally:
    """Writes the shards of one part, each with its own index beside it.

    A shard and its index get their names when they are complete and on disk, or uploaded. A shard
    that has both, and was made of the same source with the same options, is kept. On an error or
    interrupt, the unfinished file is removed; a process that is killed leaves a file ``*.partial``
    in a folder, which join_shards() removes.

    Args:
        part, n_parts: number of this part, from 0, and of all parts. Each part has whole shards;
            all parts together have all shards.
        update: called repeatedly, with the number of samples that were finished since the last
            call.

    Raises:
        PackError: the target has another file with the name of a shard, which is not touched; or a
            source file was truncated.
        OSError: a file can't be read or written.
    """
    layout = Layout(source, options)
    jobs = [layout.job(number) for number in layout.part(part, n_parts)]
    return write_jobs(jobs, target, options, update)


def write_jobs(
    jobs: Iterable[ShardJob], target: Target, options: Options,
    update: Callable[[int], Any] = lambda n: None,
) -> Tally:
    """Writes shards as write_shards() does. Several processes may write the same shard at once:
    each writes the same bytes into a file of its own, which becomes the shard when it is
    complete."""
    tally, missing = Tally(), []
    for job in jobs:
        tally.shards += 1
        tally.samples += len(job.samples)
        if is_complete(target, job.number, job.digest):
            tally.kept += 1
            update(len(job.samples))
        else:
            missing.append(job)
    packed = _pack_all((sample for job in missing for sample in job.samples), options)
    try:
        for job in missing:
            _write_shard(job, target, packed, tally, update)
    finally:
        packed.close()
    return tally


def _write_shard(
    job: ShardJob, target: Target, packed: Iterator[Packed], tally: Tally,
    update: Callable[[int], Any],
) -> None:
    with target.new_file(job.name) as file:
        n_samples = len(job.samples)
        samples = [_write_sample(file, next(packed), tally, update) for _ in range(n_samples)]
        file.write(_END)
        tally.file_bytes += file.tell()
        index = build(
            Shard(job.name, file.tell()), samples, job.classes, rows_per_sample=ROWS,
            part=job.number, n_parts=job.n_shards, digest=job.digest,
        )
        if target.size(INDEX_NAME) is not None:
            raise PackError(f"{target}: another process has finished this pack meanwhile")
        target.write(part_name(job.number), index)
    target.sync()


def is_complete(target: Target, number: int, digest: bytes) -> bool:
    """Whether the shard exists and is complete. Raises PackError if another file has its name."""
    n_bytes = target.size(shard_name(number))
    if n_bytes is None:
        return False
    try:
        index = target.index(part_name(number))
        if index.digest == digest and n_bytes == int(index.shards["bytes"][0]):
            return True
    except (OSError, PackError):
        pass
    raise PackError(
        f"{target.path(shard_name(number))}: the file exists, but was not made of this source with "
        "these options; remove it, or name another target"
    )


def _write_sample(
    file: Any, packed: Packed, tally: Tally, update: Callable[[int], Any]
) -> Sample:
    source, offset = packed.source, 0
    for i, (part, content) in enumerate(zip(source.parts, packed.contents)):
        file.write(header_of(part.name, len(content)))
        if i == source.image:
            offset = file.tell()
        file.write(content)
        file.write(bytes(padded(len(content)) - len(content)))
    n_bytes = len(packed.contents[source.image])
    tally.image_bytes += source.image_bytes
    tally.packed_bytes += n_bytes
    if packed.reason:
        tally.stored_unchanged[native.PACK_REASONS[packed.reason]] += 1
    update(1)
    return Sample(
        source.name, offset, n_bytes, source.label, packed.width, packed.height, packed.interval,
        packed.flags, packed.rows,
    )


# ---- samples -------------------------------------------------------------------------------------


def _pack_all(samples: Iterable[SourceSample], options: Options) -> Generator[Packed, None, None]:
    """Transcodes samples in threads, each with its own transcoder. Yields them in order."""
    per_thread = threading.local()

    def pack(sample: SourceSample) -> Packed:
        if not hasattr(per_thread, "transcoder"):
            per_thread.transcoder = options.transcoder()
        return _pack(sample, per_thread.transcoder, options.verify)

    waiting: deque[Future[Packed]] = deque()
    pool = ThreadPoolExecutor(options.workers)
    try:
        for sample in samples:
            waiting.append(pool.submit(pack, sample))
            if len(waiting) >= _PREFETCH * options.workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pack(sample: SourceSample, transcoder: Any, verify: bool) -> Packed:
    contents = [
        part.content if isinstance(part.content, bytes) else part.content.read()
        for part in sample.parts
    ]
    reason, _, data, width, height, interval, mcu_width, mcu_height, rows = transcoder.run(
        contents[sample.image]
    )
    if data is None:
        return Packed(sample, contents, reason, width, height, 0, 0, ())
    contents[sample.image] = data
    flags = (
        TRANSCODED | (VERIFIED if verify else 0) | (mcu_width // 8 - 1) << 2
        | (mcu_height // 8 - 1) << 4
    )
    return Packed(sample, contents, reason, width, height, interval, flags, rows)
