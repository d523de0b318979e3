"""Tools to compare the results of native code with the installed Pillow's, torchvision's and
torch's on small test images.

Version numbers do not tell whether the installed libraries give the same pixels as the native code:
builds of one version differ (another libjpeg, pillow-simd), and future versions may.
Therefore each part (the decoder of a format, a filter of the resize, an augmentation) is compared
when the first loader of a process needs it, and the result holds for the process. A part that
differs is not used natively, and explain() says so. ``equality`` compares decoding and resizing,
``equal_augmentations`` the augmentations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from torch.utils.dlpack import from_dlpack

from feedmill._ops import native
from feedmill.planner.plan import FloatResize, Op, pillow_version

# Results of this process, by part.
_found: dict[Any, Any] = {}
_T = TypeVar("_T")


def once(key: Any, compute: Callable[[], _T]) -> _T:
    """The result of compute(), which is called once per process and key. Two threads may call it at
    the same time; both get the same result."""
    if key not in _found:
        _found[key] = compute()
    found: _T = _found[key]
    return found


def is_known(key: Any) -> bool:
    """Whether once() already has the result for the key."""
    return key in _found


def forget() -> None:
    """Drops all results; for tests that change Pillow."""
    _found.clear()


def why_not(what: str, differs: Callable[[], Sequence[str]], library: str = "") -> str:
    """Compares a part. Returns the reason against using it natively; "" if there is none.

    Args:
        what: the part as a verb phrase, such as "decodes JPEGs".
        differs: compares; returns the names of the images that differ.
        library: the library that is compared, with its version; "": Pillow.
    """
    library = library or _pillow()
    try:
        different = differs()
    except Exception as error:
        return (
            f"could not check that {library} {what} like feedmill does: "
            f"{type(error).__name__}: {error}"
        )
    if not different:
        return ""
    return (
        f"the installed {library} {what} differently than feedmill does; test images differ "
        f"({', '.join(different)})"
    )


def _pillow() -> str:
    return f"Pillow {pillow_version()}"


def made(width: int, height: int, channels: int = 3) -> np.ndarray:
    """A test image with gradients, edges and texture, and values from 0 to 255. It is always the
    same for the same arguments."""
    y, x, c = np.ogrid[:height, :width, :channels]
    waves = 128 + 90 * np.sin(x / (3 + c) + y / 5 + c) + 50 * np.sin(y / (2 + c) - x / 7)
    noise = (x * 2654435761 + y * 40503 + c * 977) % 8191 % 61 - 30
    edges = 80 * ((x + 2 * y) // 9 % 2)
    image: np.ndarray = np.clip(waves + noise - edges, 0, 255).astype(np.uint8)
    return image


class Run:
    """Applies ops to one image in a native loader, n times per epoch, each time with other sampled
    parameters.

    The results are of float32 if ``float_resize`` has values, else of uint8.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        image: np.ndarray,
        n: int,
        resize_order: int = 0,
        float_resize: FloatResize | None = None,
    ) -> None:
        height, width, channels = image.shape
        rows = np.broadcast_to(image, (n, *image.shape)).copy()
        targets = np.zeros(n, np.int64)
        row = (channels, height, width)
        self.n = n
        self.size = width, height
        self.loader = native.Loader(
            ops=ops, dtype="float32" if float_resize and float_resize.values else "uint8",
            resize_order=resize_order, float_resize=float_resize, n_samples=n, batch_size=n,
            n_threads=1, prefetch_batches=1, reader="pread", memory_budget_bytes=1 << 26,
            arrays=(
                (rows.ctypes.data, n, image.nbytes, image.nbytes, 1, 8, row),
                (targets.ctypes.data, n, 8, 8, 0, 64, ()),
            ),
            image=(height, width, channels, 1, width * channels, channels),
            owners=(rows, targets),
        )

    def results(self) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields (sampled parameters, result (height, width, channels)) without end."""
        epoch = 0
        rows = native.indices(range(self.n), self.n)
        assert rows is not None  # all indices are valid ints
        while True:
            self.loader.start(1, epoch)
            self.loader.submit_rows(rows)
            outcome, payload, _ = self.loader.next(-1)
            if outcome != native.OK:
                raise RuntimeError(str(payload))
            images = from_dlpack(payload[0]).permute(0, 2, 3, 1).numpy()
            for number, image in enumerate(images):
                yield self.loader.draws(1, epoch, number, 0, *self.size), image
            epoch += 1

    def close(self) -> None:
        self.loader.close()


def natively(ops: Sequence[Op], image: np.ndarray, resize_order: int = 0) -> np.ndarray:
    """The result of ops that draw no random numbers."""
    run = Run(ops, image, 1, resize_order)
    try:
        _, result = next(run.results())
        return np.ascontiguousarray(result)
    finally:
        run.close()
