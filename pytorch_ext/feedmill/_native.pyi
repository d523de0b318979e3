"""The extension module: libfeedmill behind Python's limited API. Private; see loader.py."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeVar

from feedmill.planner.plan import Op

_T = TypeVar("_T")

# Outcomes of Loader.next().
OK: int
END: int
AGAIN: int
FALLBACK: int

# Causes of a fallback, as in feedmill.h.
ERR_READ: int
ERR_FORMAT: int
ERR_KIND: int
ERR_DAMAGED: int
ERR_LIMIT: int

# Formats as bits, fm_format.
FORMAT_JPEG: int
FORMAT_PNG: int
FORMAT_WEBP: int
STEP_FIELDS: list[tuple[str, str]]  # (name, NumPy's type) of fm_step, in order, without gaps
SAMPLE_FIELDS: list[tuple[str, str]]  # ... of fm_sample_record

PACK_REASONS: tuple[str, ...]  # texts of fm_pack_reason, by its values; 0: transcoded

class Error(RuntimeError):
    """A failed call; `status` and `index` as in fm_error. Bad arguments raise ValueError, lack of
    memory MemoryError, a budget that is too small BudgetError; use after fork is an
    Error."""

    status: int
    index: int

class BudgetError(ValueError):
    """Loader(): three batch slots and what else is needed do not fit memory_budget_bytes."""

def version() -> str: ...
def usable_cpus() -> int: ...
def jpeg_version() -> str:
    """Of the libjpeg-turbo that this was compiled for, such as "2.1.5"."""

def imread(
    source: str | bytes | PathLike[str],  # bytes are the encoded image itself
    bgr: bool,  # as OpenCV: B G R, upright by EXIF; else R G B, as the file has it
    max_image_pixels: int,
    rejected_formats: int = 0,  # or'ed: images of these are not taken
) -> tuple[bytearray, int, int] | str:
    """A JPEG as (pixels[height][width][3], height, width), or why it is not taken natively. Reads
    and decodes without the GIL."""

def call_between(
    enter: Callable[[], object], work: Callable[[], _T], leave: Callable[[], object]
) -> _T:
    """enter(), work(), and leave() whatever work() does; what work() gives. Where enter and leave
    are written in C, no interrupt comes between them and work()."""

def formats() -> str:
    """Those that are decoded natively, such as "JPEG, PNG, WebP"."""

def jpeg_own_huffman() -> bool:
    """Whether JPEGs with one scan go through feedmill's own Huffman decoder."""

def device_count(kind: str) -> int:
    """How many devices of a kind, "host" or "cuda", can be used here. Error: none, and which of
    plug-in, driver and device is missing."""

class Cache:
    """Encoded files in memory, for the loaders that are given it; they keep it alive. Belongs to
    the process that made it."""

    def __init__(self, budget_bytes: int) -> None:
        """ValueError: more than the process may use, or too little for anything."""

class Transcoder:
    """Rewrites JPEGs for packs. One thread at a time may use it; not picklable."""

    def __init__(
        self, *, interval: int = ..., max_cost_ppm: int = ..., verify: bool = ...
    ) -> None:
        """As fm_transcoder_config, with its defaults. Raises ValueError."""

    def run(
        self, data: bytes
    ) -> tuple[int, str, bytes | None, int, int, int, int, int, tuple[int, ...]]:
        """(reason, why, new bytes or None, width, height, interval, MCU's width, MCU's height,
        offsets of rows), as fm_transcoded has them. Works without the GIL. Raises MemoryError."""

def indices(indices: Sequence[int], n: int) -> bytes | None:
    """The bytes of int64 values, if all are ints, no subclass, from 0 to n - 1; else None."""

class Loader:
    """One native loader: threads, ring, reader. Not picklable.

    One thread at a time: RuntimeError while a call of another thread, or a call around this one, is
    in progress. close(), stats(), steps(), sample_records(), slow_samples() and draws() may be
    called from any thread at any time. All but close() and the attributes slot_bytes, out_shape,
    offsets, pid and n_pending raise ValueError on a closed loader.
    """

    slot_bytes: int
    out_shape: tuple[int, int, int]  # (channels, height, width)
    target_bytes: tuple[int, int]  # with a device: what an offer needs, images and labels
    converts: bool  # with a device: slots hold uint8 in NHWC, of which that makes the batch
    n_offered: int
    offsets: tuple[int, ...]  # with arrays: where the rows of each begin in a batch, in bytes
    pid: int  # the process that opened it
    n_pending: int  # batches submitted and not yet returned; read-only, as all of these

    def __init__(
        self,
        *,
        ops: Sequence[Op],
        dtype: str,  # "uint8", "float32", "float16" or "bfloat16"
        value_table: bytes | None = None,  # 3 * 256 values of dtype, C order (channel, value)
        resize_order: int = 0,  # fm_resize_order: 0 up to Pillow 12.1, 1: 13, 2: 12.2 and 12.3
        layout: str = "nchw",  # or "nhwc": the batch's strides are those of channels_last
        n_samples: int,
        batch_size: int,
        n_threads: int = 0,
        prefetch_batches: int = 4,
        memory_budget_bytes: int = 0,
        read_ahead_bytes: int = 0,
        reader: str = "auto",
        read_depth: int = 0,
        max_file_bytes: int = 0,
        max_image_pixels: int = 0,
        sample_records: int = 0,  # of the latest samples to keep; most 2**24
        # alloc(n_bytes) -> (address, owner): memory of a slot that leaves with its batch; next()
        # returns the owner in place of a capsule.
        alloc: Callable[[int], tuple[int, Any]] | None = None,
        cache: Cache | None = None,
        # In place of files: for each array (address, n_rows, bytes of a row, bytes from a row to
        # the next, DLPack's type code and bits, shape of a row). The memory stays the caller's.
        arrays: Sequence[tuple[int, int, int, int, int, int, tuple[int, ...]]] | None = None,
        # The first array's rows are images: (height, width, channels, channel_stride, line_stride,
        # pixel_stride), strides in bytes; see fm_arrays.
        image: tuple[int, int, int, int, int, int] | None = None,
        owners: Any = None,  # of the arrays' memory: kept as long as this loader
        # (header, body_bytes): files that are no images but begin with the header, see fm_plain; a
        # batch is then uint8 (n, 1, 1, body_bytes).
        plain: tuple[bytes, int] | None = None,
        # (kind, index, converts), "host" or "cuda": batches are copied to what offer() gives, and
        # next() has no payload. Not together with alloc. See fm_device_config.
        device: tuple[str, int, bool] | None = None,
        rejected_formats: int = 0,  # or'ed: images of these come out as fallbacks
    ) -> None: ...
    def start(self, seed: int, epoch: int, ahead: bool = False) -> None:
        """Starts an epoch; stops a running one. seed: 64 bits, epoch: 32 bits. ahead: one thread
        submits and calls next_ahead(), and another one, the consumer's, step_ready()."""
    def submit(
        self,
        indices: Sequence[int],
        paths: Sequence[str | bytes | PathLike[Any]],
        data: Sequence[bytes | tuple[int, int, bool, tuple[int, ...] | None] | None] | None = None,
        labels: Sequence[int] | None = None,  # which a device's target gets; None: zeros
    ) -> bool:
        """Appends a batch; False when prefetch_batches are waiting already.

        data: for each sample its encoded image; or (offset, n_bytes, verified, rows), a
        recognition.ranges.Range: that part of the file at its path is read, or as much of it as the
        crop needs, see fm_sample; or None: the whole file is. With an image the path is only the
        sample's name in messages, "" for none. The loader holds a reference to each bytes object,
        and copies nothing, until next() has returned its batch or the error in place of it, or
        start(), stop() or close() has ended the epoch. ValueError where the lengths differ,
        TypeError for anything else in data. Nothing is kept where submit() raises or returns
        False."""
    def submit_rows(self, indices: bytes, rows: bytes | None = None) -> bool:
        """As submit(), for a loader with arrays: both as indices() gives them; rows None: the
        indices are the rows."""
    def finish(self) -> None: ...
    def stop(self) -> None: ...
    def next(self, timeout_ns: int) -> tuple[int, Any, int]:
        """(outcome, payload, n). OK: payload is a DLPack capsule of (n, 3, height, width), with
        arrays a list of one for each, or the owner object where alloc was given; with a device
        None. END, AGAIN, FALLBACK: payload None. A negative outcome is a sample's error, payload
        its message; the batch is gone. Waits with the GIL released, in slices, so that signals get
        through; negative timeout: without limit."""
    def next_ahead(self) -> tuple[int, Any, int]:
        """As next() in an epoch with ``ahead``, without limit of time and without a look at
        signals. Also waits for a batch to be submitted. AGAIN: wake() was called."""
    def wake(self) -> None:
        """Has the next_ahead() that waits, or else the one called next, return AGAIN."""
    def offer(
        self, images: int, image_bytes: int, labels: int, label_bytes: int, stream: int
    ) -> bool:
        """Offers memory on the device for a batch, by addresses, and the stream in whose order it
        may be used (torch.cuda.Stream.cuda_stream). Batches take offers in their order, each that
        next() returns one. The memory must stay until then, or until start(), stop() or close() has
        returned. False: there are as many as the loader takes. See fm_loader_offer()."""
    def wait(self, stream: int) -> None:
        """A stream waits, on the device, for the copy of the batch that next() returned last."""
    def fallback(self) -> tuple[int, int, int, int, str, bytearray, str]:
        """After FALLBACK: (index, occurrence, position, cause, path, out, message); path is the
        name, or "", where the image was given to submit(); out is for the sample, 3 * height *
        width values in the loader's dtype and layout, or uint8 and NHWC where `converts`: zeros,
        and a new object at each call."""
    def fallback_done(self, ok: bool) -> None:
        """ok True: the sample is what the latest fallback()'s out holds now; ValueError where its
        size was changed. False drops the batch: the following next() returns its error."""
    def draws(
        self, seed: int, epoch: int, index: int, occurrence: int, width: int, height: int
    ) -> list[tuple[int, int, int, int, int, bool, tuple[float, ...]]]:
        """Per op: (kind, top, left, height, width, flip, values); see fm_draw."""
    def stats(self) -> dict[str, Any]:
        """Every field of fm_stats (feedmill/stats.h), reader and reader_reason as str; those of
        its blame as wait_<name>."""
    def steps(self, start: int) -> bytes:
        """fm_step records (STEP_FIELDS) from step number `start` on, at most 1,024."""
    def sample_records(self, start: int) -> tuple[int, bytes]:
        """(number of the first one, fm_sample_record records (SAMPLE_FIELDS)) from number `start`
        on, at most 1,024."""
    def slow_samples(self) -> list[tuple[str, bytes]]:
        """(path, one fm_sample_record) of the samples that took longest, the slowest first; the
        path is its last 255 bytes, "" for an image in memory."""
    def step_request(self) -> None: ...
    def step_ready(self, number: int, ready_ns: int, n_ready: int) -> None:
        """With ``ahead``: the step's consumer now gets batch ``number``, as next_ahead() counts
        from 0, which was ready for him at ready_ns; n_ready were when he asked."""
    def step_return(self) -> None: ...
    def close(self) -> None:
        """Ends all threads. While a call is in progress in another thread, or around this one, that
        happens at its end, and a waiting next() raises ValueError at once."""
