"""The parts of Stats, and the flat names of their fields in logs and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

_Part = TypeVar("_Part", bound="StatsPart")


def _gauge() -> Any:
    """A field that describes a state, such as a size. Differences keep the later value."""
    return field(default=0, metadata={"is_gauge": True})


@dataclass(frozen=True)
class StatsPart:
    """Base of the parts. ``later - earlier`` subtracts the counters, and keeps the later part's
    gauges and strings."""

    def __sub__(self: _Part, earlier: _Part) -> _Part:
        if type(earlier) is not type(self):
            return NotImplemented
        return replace(self, **{
            name: getattr(self, name) - getattr(earlier, name) for name in counter_names(type(self))
        })


@dataclass(frozen=True)
class WaitStats(StatsPart):
    """What the training loop waited for. All times are wall time in nanoseconds.

    Attributes:
        host_wait_ns: time inside next().
        data_wait_ns: the part of host_wait_ns before the batch was ready. High: the loader is too
            slow for the training step. The rest of host_wait_ns is overhead. On torch's path and
            for a watched loader, all of host_wait_ns.
        wall_ns: from the first request of each epoch to its last return, summed over epochs. The
            training loop's own work is included.
        storage_ns: the part of data_wait_ns spent waiting for a file. High: storage is the
            bottleneck. This field and the next nine are the causes of data_wait_ns and add up to
            it exactly; Stats.steps has them for each step.
        cpu_queue_decode_ns: the file had been read, but all decode threads were decoding other
            images. High: more decode threads help if CPUs are free.
        cpu_queue_transform_ns: the same while the decode threads were transforming other images.
        decode_ns: the batch's last image was being decoded. High: single images are slow.
        transform_ns: the batch's last image was being resized, flipped, normalized or stored.
        slot_wait_ns: all batch buffers were in use. High: the script holds on to batches.
        h2d_ns: the batch was being copied to the GPU.
        starved_ns: a decode thread had work but no CPU to run on. High: the CPUs are
            oversubscribed, or a CPU quota applies; more threads do not help.
        python_ns: Python was at work: the sampler, Pillow, or torch's own workers.
        unattributed_ns: none of these causes was seen.
        storage_connect_ns: the part of storage_ns in which a connection to an object store was
            made, credentials included. High: connections are not reused, or the endpoint is far
            away. This field and the next five add up to storage_ns exactly.
        storage_first_byte_ns: a request was sent, and its response had not begun. High: more
            requests in flight help.
        storage_transfer_ns: a response was being received. High: bandwidth is the limit.
        storage_retry_ns: an attempt that failed, and the pause after it. High: the server or the
            network is unreliable.
        storage_throttled_ns: the server refused requests (status 429 or 503), so that fewer were
            made. High: it gets too many, also from others.
        storage_local_ns: none of these: files, and what else is not an object on a server.
        torch_batches: batches of epochs on torch's or the hybrid path. They are part of
            Stats.batches.
        torch_wait_ns: the part of data_wait_ns that belongs to those epochs.
        torch_wall_ns: the part of wall_ns that belongs to those epochs.
        first_batches: native epochs whose first batch was delivered.
        iter_ns: startup time of those epochs in iter(), before the first index is requested:
            looking at the dataset and transforms, creating the sampler's iterator, opening a native
            engine if none is idle. High: short epochs lose time here.
        first_batch_ns: startup time of those epochs from there until the first batch was ready. At
            best the work on one batch divided by the decode threads. High: a slow sampler (such as
            a permutation of many indices), or slow storage.
        open_ns: time spent opening native engines, at most one an epoch. Part of iter_ns.
    """

    host_wait_ns: int = 0
    data_wait_ns: int = 0
    wall_ns: int = 0
    storage_ns: int = 0
    cpu_queue_decode_ns: int = 0
    cpu_queue_transform_ns: int = 0
    decode_ns: int = 0
    transform_ns: int = 0
    slot_wait_ns: int = 0
    h2d_ns: int = 0
    starved_ns: int = 0
    python_ns: int = 0
    unattributed_ns: int = 0
    storage_connect_ns: int = 0
    storage_first_byte_ns: int = 0
    storage_transfer_ns: int = 0
    storage_retry_ns: int = 0
    storage_throttled_ns: int = 0
    storage_local_ns: int = 0
    torch_batches: int = 0
    torch_wait_ns: int = 0
    torch_wall_ns: int = 0
    first_batches: int = 0
    iter_ns: int = 0
    first_batch_ns: int = 0
    open_ns: int = 0

    @property
    def native_wall_ns(self) -> int:
        """The part of wall_ns that belongs to native epochs."""
        return self.wall_ns - self.torch_wall_ns

    @property
    def first_batch_s(self) -> float:
        """Seconds from iter() until the first batch was ready, mean of the native epochs."""
        return (self.iter_ns + self.first_batch_ns) / 1e9 / max(1, self.first_batches)


@dataclass(frozen=True)
class DecodeStats(StatsPart):
    """What was done to samples: by the decode threads, by Pillow, by a collate_fn, and by the
    threads of native="hybrid". Times are nanoseconds.

    Attributes:
        native_samples: samples decoded and transformed natively; of samples with several image
            files, these are counted here and below. High is good.
        fallback_samples: samples that Pillow decoded instead, one by one on the thread that asks
            for the batch. High is bad: each costs several times a native sample.
        fallback_format: fallback samples of a format without a native decoder.
        fallback_kind: fallback samples of a variant of their format (such as a color space) that
            the native decoder does not support.
        fallback_damaged: fallback samples whose file is damaged, but which Pillow accepted.
        fallback_read: fallback samples whose file could not be read natively.
        fallback_limit: fallback samples too large for the native path, or with a geometry that only
            Pillow computes.
        fallback_ns: wall time in Pillow for fallback_samples. The training loop waits for all of
            it.
        decode_ns: wall time in the image decoder, summed over the decode threads.
        transform_ns: wall time in resize, flip, normalize and store, summed over the decode
            threads.
        starved_ns: time in which a decode thread had a sample to work on but no CPU to run on, as
            other threads or processes, or a CPU quota, took it. High: more threads do not help.
        worker_cpu_ns: CPU time of the decode threads.
        worker_idle_ns: time in which decode threads had no work, time between epochs included.
            High: there are threads to spare, or storage is slow.
        n_threads: decode threads.
        threads_created: threads that native engines have created. Constant from the second epoch
            on.
        simd: instruction set that the pixel code uses: "scalar", "sse41", "avx2", "avx512"
            or "neon".
        collate_ns: time in the script's collate_fn on native batches, on the thread that asks for
            the batch. High: make the function faster, or do its work on the GPU.
        collate_ahead_ns: time in the script's collate_fn with num_workers > 0: in a thread or in
            worker processes, before the batch is asked for. What steps still wait for is in
            waits.python_ns.
        verified_samples: samples that native="verify" compared and found equal.
        hybrid_batches: batches made by native="hybrid". They are part of waits.torch_batches.
        hybrid_samples: samples in those batches. They are not counted in Stats.samples.
        hybrid_decode_ns: time in which the hybrid path's threads read and decoded, waits for
            Python's GIL included, summed over the threads.
        hybrid_transform_ns: the same for the transform. High against hybrid_decode_ns: the Python
            transform is the bottleneck.
    """

    native_samples: int = 0
    fallback_samples: int = 0
    fallback_format: int = 0
    fallback_kind: int = 0
    fallback_damaged: int = 0
    fallback_read: int = 0
    fallback_limit: int = 0
    fallback_ns: int = 0
    decode_ns: int = 0
    transform_ns: int = 0
    starved_ns: int = 0
    worker_cpu_ns: int = 0
    worker_idle_ns: int = 0
    n_threads: int = _gauge()
    threads_created: int = 0
    simd: str = ""
    collate_ns: int = 0
    collate_ahead_ns: int = 0
    verified_samples: int = 0
    hybrid_batches: int = 0
    hybrid_samples: int = 0
    hybrid_decode_ns: int = 0
    hybrid_transform_ns: int = 0

    @property
    def decode_s(self) -> float:
        """decode_ns in seconds."""
        return self.decode_ns / 1e9

    @property
    def transform_s(self) -> float:
        """transform_ns in seconds."""
        return self.transform_ns / 1e9

    @property
    def fallback_s(self) -> float:
        """fallback_ns in seconds."""
        return self.fallback_ns / 1e9

    @property
    def starved_share(self) -> float:
        """Share of the decode threads' working time in which they had no CPU, 0 to 1."""
        total = self.starved_ns + self.worker_cpu_ns
        return self.starved_ns / total if total else 0.0


@dataclass(frozen=True)
class DeferredStats(StatsPart):
    """What became of images that the dataset opened with Pillow or OpenCV on torch's path, while
    the decoding of Pillow's was put off: see DataLoader(deferred=). All workers together; times are
    nanoseconds of wall time in them.

    Attributes:
        images: images whose decoding was put off. High is good.
        ordinary: images that Pillow decoded at once, as feedmill does not support the file.
        parts: parts of deferred images that were rendered: decoded as far as needed, and resized.
            Parts of an image that was already decoded as a whole are counted, too.
        whole: images that were decoded as a whole, because all of their pixels were asked for, or
            several parts.
        by_pillow: deferred images that Pillow had to decode after all.
        opencv: files that cv2.imread() and cv2.imdecode() got from feedmill's decoder.
        verified: samples that deferred="verify" found equal.
        transformed: deferred images that went through a torchvision Compose in one native call.
            Such a call is not counted among the parts.
        ordinary_ns, parts_ns, whole_ns, opencv_ns, transformed_ns: the time for those.
        endings: what turned deferred images into ordinary ones, and how often: names of Pillow's
            methods, such as "filter 120, convert 3". Operations before the crop cost most.
    """

    images: int = 0
    ordinary: int = 0
    parts: int = 0
    whole: int = 0
    by_pillow: int = 0
    opencv: int = 0
    verified: int = 0
    transformed: int = 0
    ordinary_ns: int = 0
    parts_ns: int = 0
    whole_ns: int = 0
    opencv_ns: int = 0
    transformed_ns: int = 0
    endings: str = ""


@dataclass(frozen=True)
class IOStats(StatsPart):
    """What was read, and what came from a cache.

    Attributes:
        reader: "uring" (io_uring), "pread", then "+http" for object stores and "+custom" for
            names that fsspec reads; or "" before anything ran.
        reader_reason: why that reader was chosen.
        read_depth: reads that may be in flight at once.
        files: files, or parts of files, that the reader read.
        opens: files that the reader opened. Below `files` if many samples share a file, such as a
            tar archive.
        bytes: bytes that the reader read.
        read_ns: nanoseconds from the start of a read to its last byte, waits for a CPU included,
            summed over files. With many reads in flight it is far above the wall time;
            read_ns / files is the latency of one file. High latency: storage is slow.
        http_requests: requests for objects on servers that have ended, redirects and failed ones
            included.
        http_retries: those after a failure. High: the network or the server is unreliable.
        http_refused: those that the server answered with status 429 or 503, which asks for fewer;
            the reader then has fewer in flight.
        http_hedged: second requests, on another connection, for what was not answered for longer
            than 99% of the others. What is answered first is used.
        http_shared: parts of packs that came with the request of the part before, as asking for
            them apart would have taken longer.
        http_bytes: bytes of the bodies of responses, whether of use or not. Far above those of the
            objects: transfers broke off.
        http_connect_ns: nanoseconds until a connection was ready, summed over requests. Small where
            connections are kept.
        http_first_byte_ns: nanoseconds from then until the response began, summed over requests:
            the latency of the store.
        http_transfer_ns: nanoseconds from then until its end, summed over requests.
        http_retry_ns: nanoseconds of the pauses between attempts, summed over failures.
        cache_hits: with cache=, files that were found in the cache. High is good.
        cache_misses: with cache=, files that had to be read.
        cache_files: files in the cache.
        cache_bytes: bytes of memory that the cache uses.
        seek_samples: JPEGs that were decoded with seek points of an earlier time (seek_index=).
        seek_images: images that have seek points.
        seek_bytes: bytes of memory that these use.
        disk_hits: with cache="disk:...", objects that came from there, those that their server has
            confirmed included. High is good.
        disk_hit_bytes: their bytes.
        disk_misses: objects that were fetched from their servers, as the disk cache did not have
            them.
        disk_entries: objects in the disk cache, of all processes that use it.
        disk_bytes: bytes of the disk that they use.
        disk_stored: objects that this loader has stored there.
        disk_refused: objects that it has not stored, as the cache was full or the disk too slow.
        disk_failed: objects that could not be written, as on a full disk.
        device_read_bytes: bytes that block devices delivered to this whole process. Far below
            `bytes`: files came from the page cache, or from a network file system, whose bytes the
            kernel does not count here.
    """

    reader: str = ""
    reader_reason: str = ""
    read_depth: int = _gauge()
    files: int = 0
    opens: int = 0
    bytes: int = 0
    read_ns: int = 0
    http_requests: int = 0
    http_retries: int = 0
    http_refused: int = 0
    http_hedged: int = 0
    http_shared: int = 0
    http_bytes: int = 0
    http_connect_ns: int = 0
    http_first_byte_ns: int = 0
    http_transfer_ns: int = 0
    http_retry_ns: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_files: int = _gauge()
    cache_bytes: int = _gauge()
    seek_samples: int = 0
    seek_images: int = _gauge()
    seek_bytes: int = _gauge()
    disk_hits: int = 0
    disk_hit_bytes: int = 0
    disk_misses: int = 0
    disk_entries: int = _gauge()
    disk_bytes: int = _gauge()
    disk_stored: int = _gauge()
    disk_refused: int = _gauge()
    disk_failed: int = _gauge()
    device_read_bytes: int = 0

    @property
    def read_s(self) -> float:
        """read_ns in seconds."""
        return self.read_ns / 1e9

    @property
    def cache_hit_rate(self) -> float:
        """Share of the files that came from the cache, 0 to 1. In epochs after the first it is the
        share of the dataset that fits. 0 if there is no cache."""
        n_files = self.cache_hits + self.cache_misses
        return self.cache_hits / n_files if n_files else 0.0


@dataclass(frozen=True)
class GPUStats(StatsPart):
    """What the GPU waited for, measured with CUDA events, and what was copied to it.

    Steps are measured on each path, and for watched loaders, wherever torch.cuda is in use: on the
    DataLoader's device, or on the current one. FEEDMILL_GPU_STALLS=0 in the environment turns it
    off. Times are nanoseconds.

    Attributes:
        steps: steps that were measured.
        stall_ns: in those steps, time in which the GPU had finished its queued work and waited for
            the batch. High: data is late. Usually far below waits.host_wait_ns, as the host often
            waits while the GPU still works. Work in other streams is not seen.
        copy_ns: the part of stall_ns in which the batch was being copied to the GPU. The rest is
            data that came late.
        wall_ns: the part of waits.wall_ns that belongs to those steps.
        skipped: steps that were not measured because a CUDA graph was being captured, or the host
            was hundreds of steps ahead of the GPU.
        h2d_batches: with device=, batches that native engines copied to the GPU.
        h2d_bytes: bytes of those copies.
        pinned_bytes: bytes of page-locked batch buffers.
    """

    steps: int = 0
    stall_ns: int = 0
    copy_ns: int = 0
    wall_ns: int = 0
    skipped: int = 0
    h2d_batches: int = 0
    h2d_bytes: int = 0
    pinned_bytes: int = _gauge()

    @property
    def stall_share(self) -> float | None:
        """Share of the wall time in which the GPU waited for a batch, 0 to 1. Low is good. None if
        no step was measured."""
        if not self.steps:
            return None
        return min(1.0, self.stall_ns / self.wall_ns) if self.wall_ns else 0.0


@dataclass(frozen=True)
class MemoryStats(StatsPart):
    """Batch buffers and allocations of native engines.

    Attributes:
        n_slots: batch buffers.
        slot_bytes: bytes of one batch buffer.
        copied_batches: batches that were copied to memory of their own because the script held too
            many batches at once. High: it keeps references to old batches.
        copied_bytes: bytes of those copies.
        copy_ns: nanoseconds of those copies.
        allocations: memory allocations since the engines were opened. Constant from the second
            epoch on.
        allocated_bytes: bytes of those allocations.
    """

    n_slots: int = _gauge()
    slot_bytes: int = _gauge()
    copied_batches: int = 0
    copied_bytes: int = 0
    copy_ns: int = 0
    allocations: int = 0
    allocated_bytes: int = 0


@dataclass(frozen=True)
class ProcessStats(StatsPart):
    """CPU use since the first iter(), of the whole process with everything else that it does.
    Times are nanoseconds.

    Attributes:
        elapsed_ns: wall time since the first iter().
        cpu_ns: CPU time of this process, all of its threads, and its child processes.
        host_busy_ns: time in which the CPUs that this process may use were busy with any process's
            work. Far above cpu_ns: other processes compete for the CPUs.
        throttled_periods: how often a CPU quota stopped this process's cgroup.
        throttled_ns: how long it was stopped, summed over CPUs. High: raise the quota.
        usable_cpus: CPUs that this process may use, by affinity and quota.
    """

    elapsed_ns: int = 0
    cpu_ns: int = 0
    host_busy_ns: int = 0
    throttled_periods: int = 0
    throttled_ns: int = 0
    usable_cpus: int = _gauge()


# The parts, by the attribute of Stats.
PARTS: dict[str, type[StatsPart]] = {
    "waits": WaitStats,
    "decode": DecodeStats,
    "deferred": DeferredStats,
    "io": IOStats,
    "gpu": GPUStats,
    "memory": MemoryStats,
    "process": ProcessStats,
}

# Flat name -> (part, field). Logs, JSON, the native engines' counters and PythonCounters use flat
# names; part "" is Stats itself. The order is that of the log's "stats" line.
FLAT_NAMES: dict[str, tuple[str, str]] = {
    "path": ("", "path"),
    "batches": ("", "batches"),
    "samples": ("", "samples"),
    "epochs": ("", "epochs"),
    "native_samples": ("decode", "native_samples"),
    "fallback_samples": ("decode", "fallback_samples"),
    "fallback_format": ("decode", "fallback_format"),
    "fallback_kind": ("decode", "fallback_kind"),
    "fallback_damaged": ("decode", "fallback_damaged"),
    "fallback_read": ("decode", "fallback_read"),
    "fallback_limit": ("decode", "fallback_limit"),
    "errors": ("", "errors"),
    "bad_samples": ("", "bad_samples"),
    "copied_batches": ("memory", "copied_batches"),
    "copied_bytes": ("memory", "copied_bytes"),
    "copy_ns": ("memory", "copy_ns"),
    "read_files": ("io", "files"),
    "read_opens": ("io", "opens"),
    "read_bytes": ("io", "bytes"),
    "read_ns": ("io", "read_ns"),
    "cache_hits": ("io", "cache_hits"),
    "cache_misses": ("io", "cache_misses"),
    "seek_samples": ("io", "seek_samples"),
    "decode_ns": ("decode", "decode_ns"),
    "transform_ns": ("decode", "transform_ns"),
    "starved_ns": ("decode", "starved_ns"),
    "worker_cpu_ns": ("decode", "worker_cpu_ns"),
    "worker_idle_ns": ("decode", "worker_idle_ns"),
    "fallback_ns": ("decode", "fallback_ns"),
    "collate_ns": ("decode", "collate_ns"),
    "collate_ahead_ns": ("decode", "collate_ahead_ns"),
    "verified_samples": ("decode", "verified_samples"),
    "hybrid_batches": ("decode", "hybrid_batches"),
    "hybrid_samples": ("decode", "hybrid_samples"),
    "hybrid_decode_ns": ("decode", "hybrid_decode_ns"),
    "hybrid_transform_ns": ("decode", "hybrid_transform_ns"),
    "deferred_images": ("deferred", "images"),
    "deferred_ordinary": ("deferred", "ordinary"),
    "deferred_parts": ("deferred", "parts"),
    "deferred_whole": ("deferred", "whole"),
    "deferred_by_pillow": ("deferred", "by_pillow"),
    "deferred_opencv": ("deferred", "opencv"),
    "deferred_verified": ("deferred", "verified"),
    "deferred_transformed": ("deferred", "transformed"),
    "deferred_ordinary_ns": ("deferred", "ordinary_ns"),
    "deferred_parts_ns": ("deferred", "parts_ns"),
    "deferred_whole_ns": ("deferred", "whole_ns"),
    "deferred_opencv_ns": ("deferred", "opencv_ns"),
    "deferred_transformed_ns": ("deferred", "transformed_ns"),
    "host_wait_ns": ("waits", "host_wait_ns"),
    "data_wait_ns": ("waits", "data_wait_ns"),
    "wait_storage_ns": ("waits", "storage_ns"),
    "wait_cpu_queue_decode_ns": ("waits", "cpu_queue_decode_ns"),
    "wait_cpu_queue_transform_ns": ("waits", "cpu_queue_transform_ns"),
    "wait_decode_ns": ("waits", "decode_ns"),
    "wait_transform_ns": ("waits", "transform_ns"),
    "wait_slot_wait_ns": ("waits", "slot_wait_ns"),
    "wait_h2d_ns": ("waits", "h2d_ns"),
    "wait_starved_ns": ("waits", "starved_ns"),
    "wait_python_ns": ("waits", "python_ns"),
    "wait_unattributed_ns": ("waits", "unattributed_ns"),
    "storage_connect_ns": ("waits", "storage_connect_ns"),
    "storage_first_byte_ns": ("waits", "storage_first_byte_ns"),
    "storage_transfer_ns": ("waits", "storage_transfer_ns"),
    "storage_retry_ns": ("waits", "storage_retry_ns"),
    "storage_throttled_ns": ("waits", "storage_throttled_ns"),
    "storage_local_ns": ("waits", "storage_local_ns"),
    "wall_ns": ("waits", "wall_ns"),
    "torch_batches": ("waits", "torch_batches"),
    "torch_wait_ns": ("waits", "torch_wait_ns"),
    "torch_wall_ns": ("waits", "torch_wall_ns"),
    "gpu_steps": ("gpu", "steps"),
    "gpu_stall_ns": ("gpu", "stall_ns"),
    "gpu_copy_ns": ("gpu", "copy_ns"),
    "gpu_wall_ns": ("gpu", "wall_ns"),
    "gpu_skipped": ("gpu", "skipped"),
    "first_batches": ("waits", "first_batches"),
    "iter_ns": ("waits", "iter_ns"),
    "first_batch_ns": ("waits", "first_batch_ns"),
    "open_ns": ("waits", "open_ns"),
    "elapsed_ns": ("process", "elapsed_ns"),
    "process_cpu_ns": ("process", "cpu_ns"),
    "host_busy_ns": ("process", "host_busy_ns"),
    "throttled_periods": ("process", "throttled_periods"),
    "throttled_ns": ("process", "throttled_ns"),
    "device_read_bytes": ("io", "device_read_bytes"),
    "h2d_batches": ("gpu", "h2d_batches"),
    "h2d_bytes": ("gpu", "h2d_bytes"),
    "threads_created": ("decode", "threads_created"),
    "allocations": ("memory", "allocations"),
    "allocated_bytes": ("memory", "allocated_bytes"),
    "n_threads": ("decode", "n_threads"),
    "n_slots": ("memory", "n_slots"),
    "slot_bytes": ("memory", "slot_bytes"),
    "pinned_bytes": ("gpu", "pinned_bytes"),
    "read_depth": ("io", "read_depth"),
    "http_requests": ("io", "http_requests"),
    "http_retries": ("io", "http_retries"),
    "http_refused": ("io", "http_refused"),
    "http_hedged": ("io", "http_hedged"),
    "http_shared": ("io", "http_shared"),
    "http_bytes": ("io", "http_bytes"),
    "http_connect_ns": ("io", "http_connect_ns"),
    "http_first_byte_ns": ("io", "http_first_byte_ns"),
    "http_transfer_ns": ("io", "http_transfer_ns"),
    "http_retry_ns": ("io", "http_retry_ns"),
    "cache_files": ("io", "cache_files"),
    "cache_bytes": ("io", "cache_bytes"),
    "seek_images": ("io", "seek_images"),
    "seek_bytes": ("io", "seek_bytes"),
    "disk_hits": ("io", "disk_hits"),
    "disk_hit_bytes": ("io", "disk_hit_bytes"),
    "disk_misses": ("io", "disk_misses"),
    "disk_entries": ("io", "disk_entries"),
    "disk_bytes": ("io", "disk_bytes"),
    "disk_stored": ("io", "disk_stored"),
    "disk_refused": ("io", "disk_refused"),
    "disk_failed": ("io", "disk_failed"),
    "usable_cpus": ("process", "usable_cpus"),
    "reader": ("io", "reader"),
    "reader_reason": ("io", "reader_reason"),
    "cpu": ("decode", "simd"),
    "deferred_endings": ("deferred", "endings"),
}

# Former attributes of Stats -> where they are now.
MOVED: dict[str, str] = {
    **{name: f"{part}.{one}" for name, (part, one) in FLAT_NAMES.items() if part},
    "pillow_count": "decode.fallback_samples",
    "decode_s": "decode.decode_s",
    "transform_s": "decode.transform_s",
    "fallback_s": "decode.fallback_s",
    "starved_share": "decode.starved_share",
    "read_s": "io.read_s",
    "cache_hit_rate": "io.cache_hit_rate",
    "gpu_stall_share": "gpu.stall_share",
    "first_batch_s": "waits.first_batch_s",
}


def counter_names(kind: type[Any]) -> list[str]:
    """The int fields of a dataclass that are not gauges."""
    return [
        one.name
        for one in fields(kind)
        if one.type == "int" and not one.metadata.get("is_gauge", False)
    ]


def flat_gauges() -> frozenset[str]:
    """The flat names of all gauges."""
    gauges = {
        (part, one.name)
        for part, kind in PARTS.items()
        for one in fields(kind)
        if one.metadata.get("is_gauge", False)
    }
    return frozenset(name for name, place in FLAT_NAMES.items() if place in gauges)
