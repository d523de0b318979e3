"""The extension module: Python bindings of libfeedmill, in the limited API. Private; used by
loader.py."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, TypeVar, final, overload

from typing_extensions import Self

from feedmill.planner.plan import FloatResize, Op

_T = TypeVar("_T")

# Outcomes of Loader.next().
OK: int
END: int
AGAIN: int
FALLBACK: int

# Causes of a fallback, as in feedmill/status.h.
ERR_READ: int
ERR_FORMAT: int
ERR_KIND: int
ERR_DAMAGED: int
ERR_LIMIT: int

# Formats as bits, fm_format.
FORMAT_JPEG: int
FORMAT_PNG: int
FORMAT_WEBP: int
REJECT_TURNED: int
REJECT_NOT_RGB: int
REJECT_NOT_UPRIGHT_JPEG: int
# fm_mapping_kind.
MAPPING_AFFINE: int
MAPPING_PERSPECTIVE: int
# fm_operation_kind.
OPERATION_BLEND: int
OPERATION_BLEND_VALUE: int
OPERATION_BLEND_GRAY: int
OPERATION_GRAY: int
OPERATION_GRAY_BYTES: int
OPERATION_SMOOTH: int
OPERATION_HUE: int
OPERATION_POINT: int
OPERATION_AUTOCONTRAST: int
OPERATION_EQUALIZE: int
OPERATION_BOX_BLUR: int
OPERATION_GAUSSIAN_BLUR: int
STEP_FIELDS: list[tuple[str, str]]  # (name, NumPy type) of fm_step's fields in order, no padding
SAMPLE_FIELDS: list[tuple[str, str]]  # ... of fm_sample_record

PACK_REASONS: tuple[str, ...]  # texts of fm_pack_reason by value; 0: transcoded

class Error(RuntimeError):
    """A failed call, for example after a fork; `status` and `index` as in fm_error. Instead of it,
    bad arguments raise ValueError, a lack of memory MemoryError, and a budget that is too small
    BudgetError."""

    status: int
    index: int

class BudgetError(ValueError):
    """Loader(): memory_budget_bytes is too small for three batches and the other buffers."""

def version() -> str: ...
def usable_cpus() -> int: ...
def libcurl_version() -> str: ...  # such as "7.88.1"; "": built without it
def jpeg_version() -> str:
    """The version of libjpeg-turbo at compile time, such as "2.1.5"."""

def imread(
    source: str | bytes | PathLike[str],  # a path, or the encoded image as bytes
    bgr: bool,  # True: as OpenCV, BGR and rotated by EXIF; False: RGB, not rotated
    max_image_pixels: int,
    rejected_formats: int = 0,  # bits (FORMAT_*) of formats to treat as unsupported
) -> tuple[bytearray, int, int] | str:
    """Decodes an image: (pixels[height][width][3], height, width), or a text: why it is not
    supported natively. Releases the GIL."""

def image_header(data: bytes) -> tuple[int, int, int, bool, int, int] | str:
    """An encoded image's format (FORMAT_*), width, height, whether it is progressive, the number of
    its components, and the bytes of a JPEG up to its end (0 of other formats); or a text: why it is
    not supported natively. Reads all markers of a JPEG. Releases the GIL."""

def render_at(
    source: tuple[bytes],
    box: tuple[int, int, int, int],  # left, top, width, height
    address: int,  # of height * width * 3 writable bytes
    is_bgr: bool,  # the order of a pixel's bytes
) -> str | None:
    """Decodes a part of an image to memory: None, or a text: why it is not supported natively.
    Releases the GIL."""

@overload
def render(
    # A file; or RGB pixels, width and height; or the array that a Pillow core exports (Arrow's
    # capsule), width and height.
    source: tuple[bytes] | tuple[bytes, int, int] | tuple[object, int, int],
    box: tuple[int, int, int, int],  # left, top, width, height; within the image
    orientation: int,  # how the box is turned, as EXIF's tag Orientation: 1 to 8
    # None, or the new width and height, fm_filter, fm_resize_order, the part of the result that is
    # kept as left, top, width, height, how it is turned, and maybe the part of the turned box that
    # is resized as left, top, right, bottom
    resize: tuple[Any, ...] | None,
) -> bytes | str:
    """Renders a part of an image: bytes[height][width][3], or a text: why it is not supported
    natively. Releases the GIL."""

@overload
def render(
    source: tuple[bytes] | tuple[bytes, int, int] | tuple[object, int, int],
    box: tuple[int, int, int, int],
    orientation: int,
    resize: tuple[Any, ...] | None,
    target: object,  # the array that a Pillow core of the result's size exports (Arrow's capsule)
    fourth_byte: int,  # of each pixel in Pillow's memory
) -> str | None:
    """The same, into Pillow's memory: None, or why it is not supported."""

@overload
def render(
    source: tuple[bytes] | tuple[bytes, int, int] | tuple[object, int, int],
    box: tuple[int, int, int, int],
    orientation: int,
    resize: tuple[Any, ...] | None,
    target: int,  # the address of bytes[height][width][3], which are writable
) -> str | None:
    """The same, into memory."""

def operate(
    kind: int,  # OPERATION_...; arguments that it does not use are left out or anything
    pixels: bytes,  # [height][width][3]
    width: int,
    height: int,
    other: bytes | None = None,  # a second image of this size, or a table of 768 bytes
    value: int = 0,
    factor: float = 0,
    x: float = 0,  # radii
    y: float = 0,
    n_passes: int = 1,
    /,
) -> bytes | str:
    """An RGB image after an operation of feedmill/operations.h as bytes[height][width][3], without
    channels after OPERATION_GRAY_BYTES; or a text: why it is not supported natively. Releases the
    GIL."""

def map_pixels(
    kind: int,  # MAPPING_...
    pixels: bytes,  # [height][width][3]
    size: tuple[int, int],  # width and height of the image,
    out_size: tuple[int, int],  # and of the result
    coefficients: tuple[float, ...],  # 8; fm_mapping.m
    filter: int,  # fm_filter
    fill: tuple[int, int, int],
    /,
) -> bytes | str:
    """An RGB image after a geometric transform (fm_mapping_run()) as bytes, or a text: why it is
    not supported natively. Releases the GIL."""

def table_bytes(values: list[Any], /) -> bytes | None:
    """Integers, clipped to 0 to 255, as bytes. None if one has another type, or more than 32 bits.
    """

def histogram(pixels: bytes, /) -> list[int]:
    """How often each value occurs in each channel of RGB pixels: 768 counts. Releases the GIL."""

def gray_sum(pixels: bytes, /) -> int | str:
    """The sum of the gray values of RGB pixels as Pillow converts them. Releases the GIL."""

def mix_pixels(
    out: int, one: int, other: int, n_bytes: int, weight: float, other_weight: float, /
) -> bool:
    """Writes uint8[n_bytes] at the addresses `one` and `other`, each times its weight in float32,
    added and rounded, to `out`. False: the weights are not shares of 1. Releases the GIL."""

def scale_pixels(pixels: bytes, n_px: int, address: int) -> bool:
    """Writes bytes[n_px][3], divided by 255, to float32[3][n_px] at an address. False: there is no
    memory. Releases the GIL."""

def normalize(
    out: int, values: int, plane: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """Writes (value - mean[i]) / std[i] of float32[len(mean)][plane] at the address `values` to
    `out`, which must not overlap. Releases the GIL."""

def normalize_pixels(
    out: int, values: int, n_px: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """As normalize(), of float32[n_px][3]."""

def scale_bytes(out: int, values: int, n: int, scale: tuple[float, float]) -> None:
    """Writes value * factor / divisor of n bytes at the address `values` to float32[n] at `out`,
    each operation rounded to float32. The scale is (factor, divisor). Releases the GIL."""

def keep_freed_memory(n_bytes: int) -> bool:
    """Makes malloc() keep up to n_bytes of freed memory, and blocks up to 32 MiB in it. False: it
    can't be told so. For the whole process, to its end."""

def call_between(
    enter: Callable[[], object], work: Callable[[], _T], leave: Callable[[], object]
) -> _T:
    """Calls enter(), work(), and in any case leave(); returns work()'s result. If enter and leave
    are C functions, no interrupt can come between them and work()."""

def passed_items(
    container: Any, function: Callable[[Any], _T]
) -> Callable[[Any], _T]:
    """A function of a key that returns function(container[key]). Tracebacks of what container[key]
    raises don't show it."""

def noise(seed: int, first: int, n: int, /) -> bytes:
    """n float32 numbers with the standard normal distribution, from number ``first`` of those that
    RandomErasing writes for a seed."""

def noise_torch(streams: bytes, n: int, /) -> bytes:
    """torch.empty(n).normal_() as bytes of float32, from the torch generator of an fm_streams.
    For n of 16 and more torch's own may differ in their last bits; see fm_noise_torch()."""

def formats() -> str:
    """The formats that are decoded natively, such as "JPEG, PNG, WebP"."""

def jpeg_own_huffman() -> bool:
    """Whether feedmill's own Huffman decoder is used for JPEGs with one scan."""

def device_count(kind: str) -> int:
    """Number of usable devices of a kind, "host" or "cuda". Raises Error if there is none, saying
    whether plug-in, driver or device is missing."""

@final
class Cache:
    """Encoded files in memory, shared by the loaders that get it; they keep it alive. Can't be used
    after a fork."""

    def __new__(cls, budget_bytes: int) -> Self:
        """ValueError: the budget exceeds the process's memory, or is too small to keep any file."""

@final
class DiskCache:
    """Objects in a folder of a local disk, shared by the loaders that get it; they keep it alive.
    Can't be used after a fork."""

    def __new__(
        cls, path: str | bytes | PathLike[str], limit_bytes: int, lru: bool = False,
        check: bool = False,
    ) -> Self:
        """See fm_disk_cache_config. ValueError: no path of a cache; OSError: it can't be used."""

@final
class Remote:
    """Settings and credentials of object stores, shared by the loaders that get it; they keep it
    alive. Thread-safe. A forked child makes its own."""

    pid: int  # of the process that made it; read-only

    def __new__(
        cls,
        *,
        endpoint_url: str | None = None,
        gs_endpoint_url: str | None = None,
        region: str | None = None,
        ca_bundle: str | None = None,
        max_requests: int = 0,  # numbers: 0: the default of fm_remote_config
        max_attempts: int = 0,
        connect_timeout_ms: int = 0,
        stall_timeout_ms: int = 0,
        give_up_ms: int = 0,
        hedge_percent: int = 2,  # 0: no request is made twice
        # Called with "s3" or "gs" before the first name of that scheme is read; its exception
        # leaves Loader.submit() or fetch().
        prepare: Callable[[str], object] | None = None,
    ) -> Self:
        """ValueError: a setting is invalid. RuntimeError: built without libcurl."""
    def set_credentials(
        self,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        bearer_token: str | None = None,
        gs_access_key: str | None = None,
        gs_secret_key: str | None = None,
    ) -> None:
        """Replaces all of them. ValueError: a key without its secret, or invalid characters."""
    def fetch(
        self,
        name: str | bytes | PathLike[Any],
        offset: int = 0,
        n_bytes: int = 0,
        etag: str | None = None,  # only the version with this ETag
        /,
    ) -> bytes | str:
        """Reads an object, or a range of it; a str: why it can't be read. Without the GIL. The name
        may be a listing: see fm_fetch_start()."""
    def fetch_first(
        self, name: str | bytes | PathLike[Any], offset: int, n_bytes: int, /
    ) -> tuple[bytes, str, int | None] | str:
        """As fetch(), for the first range of an object: see fm_fetch_start_first(). The bytes, the
        ETag or "", and the object's size or None."""

@final
class Transcoder:
    """Transcodes JPEGs for packs. Not thread-safe, not picklable."""

    def __new__(
        cls, *, interval: int = ..., max_cost_ppm: int = ..., verify: bool = ...
    ) -> Self:
        """Arguments and defaults as in fm_transcoder_config. Raises ValueError."""

    def run(
        self, data: bytes
    ) -> tuple[int, str, bytes | None, int, int, int, int, int, tuple[int, ...]]:
        """(reason, its text, new bytes or None, width, height, restart interval, MCU's width, MCU's
        height, offsets of rows), see fm_transcoded. Releases the GIL. Raises MemoryError."""

@final
class Transformer:
    """Applies a transform to one image at a time. Not thread-safe, not picklable.

    Attributes:
        shape: (channels, height, width) of the result.
    """

    shape: tuple[int, int, int]

    def __new__(
        cls,
        *,
        ops: Sequence[tuple[Any, ...]],
        dtype: str,
        value_table: bytes | None = ...,
        resize_order: int = ...,
        layout: str = ...,
        max_image_pixels: int = ...,
        float_resize: tuple[Any, ...] | None = ...,
    ) -> Self:
        """Arguments as Loader's. Raises ValueError."""

    @overload
    def draw(
        self,
        width: int,
        height: int,
        state: int,  # address of a torch.get_rng_state(), or 0 if the transform draws nothing
        /,
    ) -> str | Literal[False] | None:
        """Sets the state to what it is behind an image of that size, and returns None. A text: such
        an image is not supported natively. False: the transform draws from other generators, too.
        The state is not changed then."""

    @overload
    def draw(
        self,
        width: int,
        height: int,
        state: int,
        python_state: tuple[Any, ...],  # a random.getstate()
        /,
    ) -> str | Literal[False] | tuple[Any, ...]:
        """The same, for a transform that draws from Python's generator, too: returns its state
        behind the image."""

    @overload
    def draw(self, width: int, height: int, state: bytes, /) -> bytes | str:
        """The same, for a transform that draws from any generator: `state` is an fm_streams, and
        the result the one behind the image, or a text."""

    def run(
        self,
        source: tuple[bytes] | tuple[bytes, int, int],  # a file; or RGB pixels, width and height
        address: int,  # of writable memory for the result
        state: int | bytes,  # as draw() takes it; the states stay as they are
        python_state: tuple[Any, ...] = ...,
        /,
    ) -> str | None:
        """Transforms an image with the random numbers for which draw() drew: None; a text: why it
        is not supported natively. Releases the GIL."""

def disk_cache_walk(
    path: str | bytes | PathLike[str],
    verify: bool,
    visit: Callable[[str, str, int, int, int, int, int, bool], bool],
    /,
) -> tuple[int, int, int, bool]:
    """Calls visit(name, ETag, offset, bytes of the range, bytes, bytes of the file, Unix time of
    the last use, is_damaged) with each entry of a disk cache; it returns whether the entry is
    removed. Returns (entries, bytes, limit, lru) of the folder before. Raises ValueError: it is no
    disk cache; OSError."""

def indices(indices: Sequence[int], n: int) -> bytes | None:
    """The indices as bytes of int64 values, if all are ints (no subclass) from 0 to n - 1; else
    None.
    """

@final
class Loader:
    """A native loader: threads, batch buffers and reader. Not picklable.

    Not thread-safe: a call raises RuntimeError while another thread's call, or an outer call of the
    same thread, is in progress. Exceptions: close(), stats(), steps(), sample_records(),
    slow_samples() and draws() may be called from any thread at any time. On a closed loader all but
    close() and the attributes slot_bytes, out_shape, view_shapes, offsets, pid and n_pending raise
    ValueError.
    """

    slot_bytes: int
    out_shape: tuple[int, int, int]  # (channels, height, width)
    output_bytes: tuple[int, int]  # with a device: of add_output()'s images and of its labels
    converts: bool  # with a device: batches are uint8 in NHWC, which the device converts
    n_outputs: int  # with a device: output buffers that no batch has used
    # With arrays: offset of each array's rows in a batch, in bytes. With several views: of each.
    offsets: tuple[int, ...]
    view_shapes: tuple[tuple[int, int, int], ...]  # of several views; empty: there is one image
    pid: int  # of the process that opened it
    n_pending: int  # batches submitted and not yet returned; read-only, as all of these

    def __new__(
        cls,
        *,
        ops: Sequence[Op],
        dtype: str,  # "uint8", "float32", "float16" or "bfloat16"
        value_table: bytes | None = None,  # 3 * 256 values of dtype, C order (channel, value)
        # fm_resize_order: 0 up to Pillow 12.1, 1: 13, 2: 12.2 and 12.3, 3: torch's of uint8
        # tensors, 4: of float32 tensors, with float_resize
        resize_order: int = 0,
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
        sample_records: int = 0,  # number of the latest samples' records to keep, up to 2**24
        # alloc(n_bytes) -> (address, owner): allocates a batch's memory. next() returns the owner
        # in place of a capsule.
        alloc: Callable[[int], tuple[int, Any]] | None = None,
        cache: Cache | None = None,
        disk_cache: DiskCache | None = None,  # of what is read by `remote`
        # In place of files: for each array (address, n_rows, bytes of a row, stride of rows in
        # bytes, DLPack's type code and bits, shape of a row). The memory is borrowed.
        arrays: Sequence[tuple[int, int, int, int, int, int, tuple[int, ...]]] | None = None,
        # The first array's rows are images: (height, width, channels, channel_stride, line_stride,
        # pixel_stride), strides in bytes; see fm_arrays.
        image: tuple[int, int, int, int, int, int] | None = None,
        owners: Any = None,  # of the arrays' memory; referenced by this loader
        # (header, body_bytes): raw files, which begin with this header, see fm_raw_format. A batch
        # is then uint8 (n, 1, 1, body_bytes).
        raw: tuple[bytes, int] | None = None,
        # (kind, index, converts), kind "host" or "cuda": batches are copied to the memory passed to
        # add_output(), and next() returns no payload. Not together with alloc. See
        # fm_device_config.
        device: tuple[str, int, bool] | None = None,
        rejected_formats: int = 0,  # bits (FORMAT_*) of formats to leave to the fallback
        # (ops, value_table, resize_order, float_resize) of each further view; see
        # fm_config.more_views.
        views: Sequence[tuple[Sequence[Op], bytes | None, int, FloatResize | None]] | None = None,
        decodes_scaled: bool = False,  # see fm_config
        remote: Remote | None = None,  # reads s3://, gs://, http:// and https:// paths
        # Called with (name, offset, n_bytes) by `read_threads` threads at a time, to read names
        # with other schemes; 0 bytes: the whole object. Returns it, or why it can't be read.
        read: Callable[[str, int, int], bytes | str] | None = None,
        read_threads: int = 0,  # 0: 16
        float_resize: FloatResize | None = None,
        # fm_config.seek_index_bytes or seek_index_path; None: the default
        seek_index: int | str | PathLike[str] | None = None,
        # Each view is made from a file of its own: submit() is given as many files for each sample
        # as there are views, with the sample's index.
        views_have_files: bool = False,
    ) -> Self: ...
    def start(
        self,
        seed: int,
        epoch: int,
        ahead: bool = False,
        used: bytes | None = None,
        streams: bytes | None = None,
    ) -> None:
        """Starts an epoch; stops a running one. seed: 64 bits, epoch: 32 bits. ahead: one thread
        calls submit() and next_ahead(), and the consumer's thread step_ready(). used: a uint32 for
        each sample, how often its index was used before in the epoch; None: never. streams: the
        generators (fm_streams) of each virtual worker, one after the other; see fm_epoch."""
    def choose_worker(self, worker: int, waits: bool) -> None:
        """The virtual worker of the batches that are submitted next. This method and the following
        ones: see fm_loader_choose_worker() and what is declared with it in feedmill/loader.h."""
    def give_streams(self, worker: int, streams: bytes) -> None: ...
    def streams(self, worker: int) -> bytes: ...
    def fallback_draws(
        self, width: int, height: int, view: int = 0
    ) -> list[tuple[int, int, int, int, int, bool, tuple[float, ...]]]: ...
    def fallback_streams(self) -> bytes: ...
    def submit(
        self,
        indices: Sequence[int],
        paths: Sequence[str | bytes | PathLike[Any]],
        data: Sequence[
            bytes
            | tuple[int, int, Any, str]
            | tuple[int, int, bool, tuple[int, ...] | None]
            | tuple[str]
            | None
        ] | None = None,
        labels: Sequence[int] | None = None,  # copied to the device; None: zeros
    ) -> bool:
        """Enqueues a batch; returns False if prefetch_batches are enqueued already.

        data: for each sample its encoded image as bytes; or (address, n_bytes, owner, "memory"), a
        planner.buffers.Buffer, for one in memory that the owner keeps unchanged; or (offset,
        n_bytes, verified, rows), a planner.ranges.Range, to read that part of the file at its path,
        or as much of it as the crop needs, see fm_sample; or (etag,), a planner.ranges.Version, to
        read only that version of the object at its path; or None to read the whole file. With
        bytes or a buffer, the path only names the sample in messages ("": no name). The loader does
        not copy bytes objects and buffers, but references them until next() has returned their
        batch or its error, or start(), stop() or close() has ended the epoch. If submit() raises or
        returns False, no references are kept. ValueError if the lengths differ, TypeError for
        anything else in data."""
    def submit_rows(self, indices: bytes, rows: bytes | None = None) -> bool:
        """As submit(), for a loader with arrays. Both arguments are results of indices(); rows
        None: the indices are the rows."""
    def finish(self) -> None: ...
    def stop(self) -> None: ...
    def next(self, timeout_ns: int) -> tuple[int, Any, int]:
        """Waits for the next batch: (outcome, payload, number of samples).

        OK: payload is a DLPack capsule of (n, 3, height, width); with arrays a list of capsules,
        one per array, and with several views one per view; with alloc the owner object; with a
        device None. END, AGAIN (timeout) and FALLBACK: payload is None. A negative outcome is a
        sample's error, with its message as payload; the batch is dropped. Releases the GIL, and
        returns to Python regularly to handle signals. A negative timeout waits without limit."""
    def next_ahead(self) -> tuple[int, Any, int]:
        """As next(), in an epoch with ``ahead``; without timeout and without handling signals. Also
        waits until a batch is submitted. AGAIN: wake() was called."""
    def wake(self) -> None:
        """Makes the waiting next_ahead(), or else the next call of it, return AGAIN."""
    def add_output(
        self, images: int, image_bytes: int, labels: int, label_bytes: int, stream: int
    ) -> bool:
        """Passes an output buffer on the device for a batch: addresses and sizes, and the stream in
        whose order the memory may be used (torch.cuda.Stream.cuda_stream). Batches use the buffers
        in order, one each. The memory must stay valid until next() has returned its batch, or
        start(), stop() or close() has returned. False: the loader needs no more buffers now. See
        fm_loader_add_output()."""
    def wait(self, stream: int) -> None:
        """Makes a stream wait, on the device, for the copy of the batch that next() returned
        last."""
    def fallback(self) -> tuple[int, int, int, int, str, bytearray, str]:
        """After FALLBACK: (index, occurrence, position in the batch, cause, path, out, message).

        path is the sample's name, or "", if the image was passed to submit() as bytes. out is a new
        object of zeros for the sample: 3 * height * width values in the loader's dtype and layout,
        or in uint8 and NHWC if `converts`; of several views one after the other. If views have
        files of their own, position counts files, and out is the view of the rejected one."""
    def fallback_done(self, ok: bool) -> None:
        """Completes a fallback. True: the sample is the content of the latest fallback()'s out;
        ValueError if its size was changed. False drops the batch: the following next() returns its
        error."""
    def draws(
        self,
        seed: int,
        epoch: int,
        index: int,
        occurrence: int,
        width: int,
        height: int,
        view: int = 0,
    ) -> list[tuple[int, int, int, int, int, bool, tuple[float, ...]]]:
        """Per op: (kind, top, left, height, width, flip, values); see fm_draw."""
    def draws_torch(
        self, streams: bytes, width: int, height: int, view: int = 0
    ) -> tuple[list[tuple[int, int, int, int, int, bool, tuple[float, ...]]], bytes]:
        """The same, drawn as the original transforms draw from the generators of torch, Python and
        NumPy, and the states of these afterwards, as an fm_streams (feedmill/streams.h)."""
    def before_pixels(
        self, streams: bytes, width: int, height: int, view: int = 0
    ) -> bytes:
        """The generators from which RandomErasing draws the random numbers of its boxes' pixels
        after the view's other draws from ``streams``, as an fm_streams."""
    def stats(self) -> dict[str, Any]:
        """All fields of fm_stats (feedmill/stats.h), with reader and reader_reason as str, and the
        wait attribution (blame) as wait_<name>."""
    def steps(self, start: int) -> bytes:
        """Up to 1,024 fm_step records (STEP_FIELDS) from step number `start` on."""
    def sample_records(self, start: int) -> tuple[int, bytes]:
        """(number of the first one, up to 1,024 fm_sample_record records (SAMPLE_FIELDS)) from
        number `start` on."""
    def slow_samples(self) -> list[tuple[str, bytes]]:
        """(path, fm_sample_record) of the slowest samples, the slowest first. Paths are cut to
        their last 255 bytes, and "" for an image in memory."""
    def step_request(self) -> None: ...
    def step_ready(self, number: int, ready_ns: int, n_ready: int) -> None:
        """With ``ahead``: the consumer now gets batch ``number``, counted from 0 by next_ahead(),
        which was ready at ready_ns; n_ready batches were ready at the request."""
    def step_return(self) -> None: ...
    def close(self) -> None:
        """Ends all threads. If another call is in progress, this happens at its end; a waiting
        next() raises ValueError at once."""
