"""torchvision's Compose by one native call, for deferred images: decode, transform and conversion
to a tensor, with the random numbers that torchvision would draw.

``Compose.__call__`` of torchvision.transforms and ``Compose.forward`` of its v2 are replaced. A
call is answered natively if the planner understands the Compose, nothing about it has changed
since, and its image is a JPEG whose decoding is put off. The first images of each Compose go both
ways, and must come out alike. All other calls go to torchvision.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from PIL import Image

from feedmill import _internals
from feedmill._ops import native
from feedmill.deferred import counters, replacements
from feedmill.deferred.core import DeferredCore
from feedmill.deferred.functions import core_of
from feedmill.deferred.switch import switched
from feedmill.deferred.tensors import PLAIN_IMAGES
from feedmill.deferred.watching import Watch, functions_in
from feedmill.planner.equal_tensor_colors import why_uneven
from feedmill.planner.formats import TORCH_DTYPES, bytes_of
from feedmill.planner.known import TO_TENSOR
from feedmill.planner.plan import TENSOR, Plan
from feedmill.planner.random_states import (
    are_same_states,
    global_states,
    set_if_same,
    streams_of,
    with_streams,
)
from feedmill.planner.steps import Step
from feedmill.planner.torchs_draws import draws_from_numpy, draws_in_vain, reasons_against_steps
from feedmill.planner.transforms import read_transform
from feedmill.planner.untouched import is_original
from feedmill.system.locks import renew_after_fork

_SLOT = "_im" if "im" in vars(Image.Image) else "im"
# Of the state of torch's generator, which the native code reads and changes in place.
_TORCH_STATE_BYTES = 5056
# A Compose that changes more often than this is left to torchvision.
_MAX_READINGS = 3
# Where transforms look their functions up.
_MODULES = (
    _internals.FUNCTIONAL, _internals.FUNCTIONAL_PIL, "torchvision.transforms.v2.functional",
    "random", "numpy.random", "PIL.ImageFilter", "PIL.ImageOps", "PIL.ImageEnhance",
)
_TORCHS_NAMES = ("rand", "randint", "randn", "empty", "randperm", "multinomial", "tensor")
# The first images of a Compose go both ways, and must come out alike.
_N_COMPARED = 6
# What may follow the conversion to a tensor: of what others give, such as a RandomCrop, the strides
# depend on what is drawn or on the image.
_KEEP_STRIDES = {
    "Normalize", "ConvertImageDtype", "ToDtype", "ToPureTensor", "RandomErasing", "Lighting",
    "TensorCall",
}

# Methods of Pillow's images. An image may have an attribute that hides one.
_METHODS = {name for name, one in vars(Image.Image).items() if callable(one)}

# Modules in which Compose was looked for.
_looked_at: set[str] = set()


def replace(is_deferring: Callable[[], bool], defer: Callable[[Any], None]) -> None:
    """Adds Compose's methods to those that are replaced (see replacements), once torchvision is
    imported.

    Args:
        is_deferring: whether the calling thread is to use them.
        defer: puts off the decoding of an opened JPEG, if that can be.
    """
    for module_name, method in _internals.COMPOSES:
        module = sys.modules.get(module_name)
        if module is None or module_name in _looked_at:
            continue
        _looked_at.add(module_name)
        kind: Any = getattr(module, "Compose", None)
        original: Any = vars(kind).get(method) if isinstance(kind, type) else None
        if is_original(original, module_name, f"Compose.{method}"):
            ours: Any = functools.wraps(original)(_make(kind, original, is_deferring, defer))
            replacements.add(kind, method, original, ours)


def _make(
    kind: type,
    original: Any,
    is_deferring: Callable[[], bool],
    defer: Callable[[Any], None],
) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_image = len(args) == 1 and not kwargs and type(args[0]) in PLAIN_IMAGES
        if is_image and type(self) is kind and not torch.compiler.is_compiling() and is_deferring():
            known = _known_of(self)
            if known.is_possible():
                return known.transformed(self, args[0], original, defer)
        return original(self, *args, **kwargs)

    return call


# ---- what is known about a Compose ---------------------------------------------------------------

# Counted up when Composes are to be read again.
_generation = 0
_known: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()


def read_again() -> None:
    """Lets each Compose be read again when it is called next, as functions that it calls may have
    been replaced."""
    global _generation
    _generation += 1


def _known_of(compose: Any) -> _Known:
    known = _known.get(compose)
    if known is None or not known.is_current(compose):
        n_readings = 0 if known is None or known.generation != _generation else known.n_readings
        known = _known[compose] = _Known(compose, n_readings + 1)
    return known


class _Known:
    """What is known about a Compose as it is now. Thread-safe.

    Attributes:
        generation: when it was read.
        n_readings: how often it was read since then.
    """

    def __init__(self, compose: Any, n_readings: int) -> None:
        self.generation, self.n_readings = _generation, n_readings
        self._n_threads = torch.get_num_threads()
        self._limit_px = Image.MAX_IMAGE_PIXELS
        self._threads = _Transformers()
        self._n_alike = 0  # results that were compared and alike
        # Of torchvision's results.
        self._kind: Any = torch.Tensor
        self._is_interleaved = False
        self._watch: Watch | None = None
        self._plan: Plan | None = None
        self._generators: type[_Drawn] = _Drawn
        if n_readings > _MAX_READINGS:
            return
        try:
            watch = Watch(compose, _watched_names())
            self._plan = _plan_of(compose, self._n_threads)
        except Exception:  # CantWatchError, or of any code of the script
            return
        if self._plan is not None:
            self._watch = watch
            self._generators = _TorchsGenerator if self._plan.is_random else _Drawn

    def is_current(self, compose: Any) -> bool:
        """Whether it is still so. One that is left to torchvision is not looked at again."""
        if self.generation != _generation:
            return False
        if self._plan is None or self._watch is None:
            return True
        if self._n_threads != torch.get_num_threads():
            return False
        try:
            return self._limit_px is Image.MAX_IMAGE_PIXELS and self._watch.is_unchanged(compose)
        except Exception:  # such as a CantWatchError about a tensor that has grown
            return False

    def is_possible(self) -> bool:
        """Whether images may be transformed natively now."""
        return (
            self._plan is not None
            and torch.get_default_dtype() is torch.float32
            and not _internals.is_tracing()
            and not _internals.active_modes()
            and not any(_internals.global_hooks())
        )

    def transformed(
        self, compose: Any, image: Any, original: Any, defer: Callable[[Any], None]
    ) -> Any:
        """What original(compose, image) returns."""
        plan = self._plan
        core = None if plan is None else _deferred_core(image, defer)
        is_trial = self._n_alike < _N_COMPARED
        encoded = None if core is None else core.encoded(is_trial=is_trial)
        if plan is None or core is None or encoded is None:
            return original(compose, image)
        began_ns = time.perf_counter_ns()
        try:
            transformer = self._transformer(plan)
        except (ValueError, MemoryError):  # such as one whose results are of any size
            self._plan = None
            return original(compose, image)
        # Other threads that transform images here draw other numbers.
        with _drawing:
            drawn = self._generators()
            why = drawn.draw(transformer, core.size)
            is_set = why is None and not is_trial and drawn.set_behind()
        if why is not None:
            if why is _OTHERS:
                self._know_others(plan)
            return original(compose, image)
        if is_trial:
            result = self._run(plan, transformer, encoded, drawn)
            expected = original(compose, image)
            if result is None or not (drawn.are_behind() and self._is_alike(result, expected)):
                self._plan = None
            return expected
        if not is_set:
            return original(compose, image)
        result = self._run(plan, transformer, encoded, drawn)
        if result is None:
            drawn.set_back()
            return original(compose, image)
        account = counters.current()
        account.add("transformed")
        account.add("transformed_ns", time.perf_counter_ns() - began_ns)
        return result

    def _know_others(self, plan: Plan) -> None:
        """Called when the transform draws from other generators than it was known to."""
        if self._generators is _TorchsGenerator and not draws_from_numpy(plan):
            self._generators = _TorchsAndPythons
        elif self._generators is not _AllGenerators:
            self._generators = _AllGenerators
        else:
            self._plan = None

    def _run(
        self, plan: Plan, transformer: Any, encoded: tuple[Any, ...], drawn: _Drawn
    ) -> torch.Tensor | None:
        """The result; None if it has to be left to torchvision."""
        channels, height, width = transformer.shape
        out = torch.empty(
            (height, width, channels) if self._is_interleaved else (channels, height, width),
            dtype=TORCH_DTYPES[plan.dtype], device="cpu",
        )
        if transformer.run(encoded, out.data_ptr(), *drawn.before) is not None:
            return None
        out = out.permute(2, 0, 1) if self._is_interleaved else out
        return out if self._kind is torch.Tensor else out.as_subclass(self._kind)

    def _transformer(self, plan: Plan) -> Any:
        """The calling thread's native transformer of the plan."""
        layout = "nhwc" if self._is_interleaved else "nchw"
        found = self._threads.by_layout.get(layout)
        if found is None:
            found = self._threads.by_layout[layout] = native.Transformer(
                ops=plan.ops,
                dtype=plan.dtype,
                value_table=plan.value_table,
                resize_order=plan.resize_order,
                layout=layout,
                max_image_pixels=plan.max_image_pixels,
                float_resize=plan.float_resize,
            )
        return found

    def _is_alike(self, result: torch.Tensor, expected: Any) -> bool:
        """Whether a native result is torchvision's. If only its type or strides are others, later
        results get torchvision's."""
        if type(expected) not in _tensor_kinds() or expected.requires_grad:
            return False
        if result.dtype is not expected.dtype or result.shape != expected.shape:
            return False
        plain = expected.as_subclass(torch.Tensor)
        if bytes_of(plain) != bytes_of(result.as_subclass(torch.Tensor)):
            return False
        is_same = type(result) is type(expected) and result.stride() == expected.stride()
        if is_same:
            self._n_alike += 1
            return True
        if self._n_alike:
            return False
        self._kind = type(expected)
        n_channels, _, width = expected.shape
        self._is_interleaved = expected.stride() == (1, n_channels * width, n_channels)
        return self._is_interleaved or expected.is_contiguous()


# ---- random numbers ------------------------------------------------------------------------------

# Held from reading the generators to setting them. A signal handler may use a Compose, too.
_drawing = threading.RLock()
renew_after_fork(sys.modules[__name__], _drawing=threading.RLock)

# The transform draws from other generators than was known.
_OTHERS = object()


class _Drawn:
    """The generators of this process, for one image. This class is for transforms that draw
    nothing.

    Attributes:
        before: their states before the image, as native.Transformer takes them.
    """

    before: tuple[Any, ...] = (0,)

    def draw(self, transformer: Any, size: tuple[int, int]) -> Any:
        """Finds out the states behind an image of that size: None; else why not, or _OTHERS."""
        found = transformer.draw(*size, 0)
        return _OTHERS if found is False else found

    def set_behind(self) -> bool:
        """Lets the generators go on behind the image. False: another thread has drawn meanwhile."""
        return True

    def set_back(self) -> None:
        """Lets them go on before the image, unless another thread has drawn meanwhile."""

    def are_behind(self) -> bool:
        """Whether the generators are now as they should be behind the image."""
        return True


class _TorchsGenerator(_Drawn):
    """For transforms that draw from torch's generator only."""

    def __init__(self) -> None:
        self._before = torch.get_rng_state()
        self._behind = self._before.clone()
        self.before = (self._before.data_ptr(),)

    def draw(self, transformer: Any, size: tuple[int, int]) -> Any:
        if self._behind.numel() != _TORCH_STATE_BYTES:
            return "torch's generator has another state"
        found = transformer.draw(*size, self._behind.data_ptr())
        return _OTHERS if found is False else found

    def set_behind(self) -> bool:
        return _exchanged(torch.get_rng_state, torch.set_rng_state, self._before, self._behind)

    def set_back(self) -> None:
        _exchanged(torch.get_rng_state, torch.set_rng_state, self._behind, self._before)

    def are_behind(self) -> bool:
        return torch.equal(torch.get_rng_state(), self._behind)


class _TorchsAndPythons(_TorchsGenerator):
    """For transforms that draw from Python's generator, too."""

    def __init__(self) -> None:
        super().__init__()
        self._pythons_before = self._pythons_behind = random.getstate()
        self.before = (*self.before, self._pythons_before)

    def draw(self, transformer: Any, size: tuple[int, int]) -> Any:
        if self._behind.numel() != _TORCH_STATE_BYTES:
            return "torch's generator has another state"
        found = transformer.draw(*size, self._behind.data_ptr(), self._pythons_before)
        if not isinstance(found, tuple):
            return _OTHERS if found is False else found
        self._pythons_behind = found
        return None

    def set_behind(self) -> bool:
        if not _exchanged(
            random.getstate, random.setstate, self._pythons_before, self._pythons_behind
        ):
            return False
        if super().set_behind():
            return True
        _exchanged(random.getstate, random.setstate, self._pythons_behind, self._pythons_before)
        return False

    def set_back(self) -> None:
        super().set_back()
        _exchanged(random.getstate, random.setstate, self._pythons_behind, self._pythons_before)

    def are_behind(self) -> bool:
        return super().are_behind() and random.getstate() == self._pythons_behind


class _AllGenerators(_Drawn):
    """For transforms that draw from NumPy's, too, whose state takes a tenth of a millisecond to
    get."""

    def __init__(self) -> None:
        self._before = self._behind = global_states()
        self.before = (streams_of(self._before),)

    def draw(self, transformer: Any, size: tuple[int, int]) -> Any:
        if self._before[2]["bit_generator"] != "MT19937":
            return "NumPy's generator is another one"
        streams = transformer.draw(*size, *self.before)
        if isinstance(streams, str):
            return streams
        self._behind = with_streams(self._before, streams)
        return None

    def set_behind(self) -> bool:
        if not are_same_states(global_states(), self._before):
            return False
        set_if_same(self._before, self._behind)
        return True

    def set_back(self) -> None:
        set_if_same(self._behind, self._before)

    def are_behind(self) -> bool:
        return are_same_states(global_states(), self._behind)


def _exchanged(get: Callable[[], Any], put: Callable[[Any], None], old: Any, new: Any) -> bool:
    """Sets a generator to another state if it still has the old one, as set_if_same() does, but
    without a call in between that lets other threads run, as torch.equal() would."""
    now = get()
    if isinstance(now, torch.Tensor):
        now, old = now.numpy().tobytes(), old.numpy().tobytes()
    if now != old:
        return False
    put(new)
    return True


# ---- helpers -------------------------------------------------------------------------------------


class _Transformers(threading.local):
    """A thread's native transformers."""

    def __init__(self) -> None:
        self.by_layout: dict[str, Any] = {}


def _plan_of(compose: Any, n_threads: int) -> Plan | None:
    """The plan of a Compose; None: it is not understood, or returns something else than a tensor.

    Args:
        n_threads: of torch.
    """
    if _internals.why_not_this_torch():
        return None
    with switched(False):  # Pillow must decode by itself to be compared with
        read = read_transform(compose)
        plan = read.plan
        if plan is None or read.reasons or plan.more_views or plan.gives != TENSOR:
            return None
        if why_uneven(plan.ops, n_threads) or not _have_known_strides(read.steps):
            return None
    if plan.is_random:
        return None if reasons_against_steps(plan, read.steps) else plan
    return None if draws_in_vain(read.steps) else plan


def _watched_names() -> Iterator[tuple[Any, Iterable[str]]]:
    """The functions that transforms call, as far as they are imported: dicts, and names in them."""
    for module in filter(None, map(sys.modules.get, _MODULES)):
        yield vars(module), functions_in(vars(module))
    yield vars(Image.Image), functions_in(vars(Image.Image))
    yield vars(torch), _TORCHS_NAMES


def _have_known_strides(steps: Sequence[Step]) -> bool:
    """Whether all results of these steps have the same strides."""
    names = [type(step.transform).__name__ for step in steps]
    first = next((i for i, name in enumerate(names) if name in TO_TENSOR), None)
    return first is not None and set(names[first + 1 :]) <= _KEEP_STRIDES


def _deferred_core(image: Any, defer: Callable[[Any], None]) -> DeferredCore | None:
    """The core of an RGB image, if it is deferred, or can be now."""
    values = vars(image)
    if not _METHODS.isdisjoint(values):  # a method of this image alone
        return None
    if values.get(_SLOT) is None and type(image) is not Image.Image:
        defer(image)
    return core_of(image)


def _tensor_kinds() -> tuple[Any, ...]:
    """Types that torchvision's transforms return."""
    images = sys.modules.get("torchvision.tv_tensors")
    return torch.Tensor, getattr(images, "Image", torch.Tensor)
