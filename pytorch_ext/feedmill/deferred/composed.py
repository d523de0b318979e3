"""torchvision's Compose by one native call, for deferred images: decode, transform and conversion
to a tensor, with torch's random numbers.

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
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from PIL import Image

from feedmill import _internals
from feedmill._ops import native
from feedmill.deferred import counters, replacements
from feedmill.deferred.core import DeferredCore
from feedmill.deferred.switch import switched
from feedmill.deferred.tensors import PLAIN_IMAGES
from feedmill.deferred.watching import CantWatchError, Watch
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

_SLOT = "_im" if "im" in vars(Image.Image) else "im"
_TORCH_STATE_BYTES = 5056
# Where transforms look their functions up.
_FUNCTIONALS = (
    _internals.FUNCTIONAL, _internals.FUNCTIONAL_PIL, "torchvision.transforms.v2.functional",
)
# The first images of a Compose go both ways, and must come out alike.
_N_COMPARED = 6
# What may follow the conversion to a tensor: of what others give, such as a RandomCrop, the strides
# depend on what is drawn or on the image.
_KEEP_STRIDES = {
    "Normalize", "ConvertImageDtype", "ToDtype", "ToPureTensor", "RandomErasing", "Lighting",
    "TensorCall",
}

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
        known = _known[compose] = _Known(compose)
    return known


class _Known:
    """What is known about a Compose as it is now. Thread-safe."""

    def __init__(self, compose: Any) -> None:
        self._generation = _generation
        self._n_threads = torch.get_num_threads()
        self._threads = _Transformers()
        self._n_alike = 0  # results that were compared and alike
        # Of torchvision's results.
        self._kind: Any = torch.Tensor
        self._is_interleaved = False
        self._watch: Watch | None = None
        self._plan: Plan | None = None
        self._generators: type[_Drawn] = _Drawn
        try:
            modules = (sys.modules.get(one) for one in _FUNCTIONALS)
            self._watch = Watch(compose, filter(None, modules))
            self._plan = _plan_of(compose, self._n_threads)
        except CantWatchError:
            return
        if self._plan is not None and self._plan.is_random:
            self._generators = _TorchsGenerator

    def is_current(self, compose: Any) -> bool:
        """Whether it is still so. One that is left to torchvision is not looked at again."""
        if self._generation != _generation or self._n_threads != torch.get_num_threads():
            return False
        if self._plan is None or self._watch is None:
            return True
        return self._watch.is_unchanged(compose)

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
        if plan is None or encoded is None:
            return original(compose, image)
        began_ns = time.perf_counter_ns()
        drawn = self._generators()
        result = self._run(plan, encoded, drawn)
        if result is None:
            return original(compose, image)
        if not is_trial:
            drawn.set_behind()
            account = counters.current()
            account.add("transformed")
            account.add("transformed_ns", time.perf_counter_ns() - began_ns)
            return result
        expected = original(compose, image)
        if not (drawn.are_behind() and self._is_alike(result, expected)):
            self._plan = None
        return expected

    def _run(self, plan: Plan, encoded: tuple[Any, ...], drawn: _Drawn) -> Any:
        """The result; None if it has to be left to torchvision. Leaves the generators as they are.
        """
        try:
            transformer = self._transformer(plan)
        except (ValueError, MemoryError):  # such as one whose results are of any size
            self._plan = None
            return None
        channels, height, width = transformer.shape
        out = torch.empty(
            (height, width, channels) if self._is_interleaved else (channels, height, width),
            dtype=TORCH_DTYPES[plan.dtype], device="cpu",
        )
        why = drawn.run(transformer, encoded, out.data_ptr())
        if why is not None:
            if why is _OTHERS:
                self._generators = _AllGenerators if draws_from_numpy(plan) else _TorchsAndPythons
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

# The transform draws from other generators than was known.
_OTHERS = object()


class _Drawn:
    """The generators of this process, for one image: their states before it, and, once the native
    transform has run, those behind it. This class is for transforms that draw nothing."""

    def run(self, transformer: Any, encoded: tuple[Any, ...], address: int) -> Any:
        """Transforms an image to memory: None; else why not."""
        why = transformer.run(encoded, address, 0)
        return _OTHERS if why is False else why

    def set_behind(self) -> None:
        """Lets the generators go on behind the image."""

    def are_behind(self) -> bool:
        """Whether the generators are now as they should be behind the image."""
        return True


class _TorchsGenerator(_Drawn):
    """For transforms that draw from torch's generator only."""

    def __init__(self) -> None:
        self._before = torch.get_rng_state()
        self._behind = self._before.clone()

    def run(self, transformer: Any, encoded: tuple[Any, ...], address: int) -> Any:
        if self._behind.numel() != _TORCH_STATE_BYTES:
            return "torch's generator has another state"
        why = transformer.run(encoded, address, self._behind.data_ptr())
        return _OTHERS if why is False else why

    def set_behind(self) -> None:
        # See set_if_same().
        if torch.equal(torch.get_rng_state(), self._before):
            torch.set_rng_state(self._behind)

    def are_behind(self) -> bool:
        return torch.equal(torch.get_rng_state(), self._behind)


class _TorchsAndPythons(_TorchsGenerator):
    """For transforms that draw from Python's generator, too."""

    def __init__(self) -> None:
        super().__init__()
        self._pythons_before = self._pythons_behind = random.getstate()

    def run(self, transformer: Any, encoded: tuple[Any, ...], address: int) -> Any:
        if self._behind.numel() != _TORCH_STATE_BYTES:
            return "torch's generator has another state"
        found = transformer.run(encoded, address, self._behind.data_ptr(), self._pythons_before)
        if not isinstance(found, tuple):
            return found
        self._pythons_behind = found
        return None

    def set_behind(self) -> None:
        super().set_behind()
        if random.getstate() == self._pythons_before:
            random.setstate(self._pythons_behind)

    def are_behind(self) -> bool:
        return super().are_behind() and random.getstate() == self._pythons_behind


class _AllGenerators(_Drawn):
    """For transforms that draw from NumPy's, too, whose state takes a tenth of a millisecond to
    get."""

    def __init__(self) -> None:
        self._before = self._behind = global_states()

    def run(self, transformer: Any, encoded: tuple[Any, ...], address: int) -> Any:
        if self._before[2]["bit_generator"] != "MT19937":
            return "NumPy's generator is another one"
        streams = transformer.run(encoded, address, streams_of(self._before))
        if isinstance(streams, str):
            return streams
        self._behind = with_streams(self._before, streams)
        return None

    def set_behind(self) -> None:
        set_if_same(self._before, self._behind)

    def are_behind(self) -> bool:
        return are_same_states(global_states(), self._behind)


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


def _have_known_strides(steps: Sequence[Step]) -> bool:
    """Whether all results of these steps have the same strides."""
    names = [type(step.transform).__name__ for step in steps]
    first = next((i for i, name in enumerate(names) if name in TO_TENSOR), None)
    return first is not None and set(names[first + 1 :]) <= _KEEP_STRIDES


def _deferred_core(image: Any, defer: Callable[[Any], None]) -> DeferredCore | None:
    """The core of an RGB image, if it is deferred, or can be."""
    values = vars(image)
    if values.get(_SLOT) is None and type(image) is not Image.Image:
        defer(image)
    core = values.get(_SLOT)
    if type(core) is not DeferredCore or (core.mode, image.mode) != ("RGB", "RGB"):
        return None
    return core


def _tensor_kinds() -> tuple[Any, ...]:
    """Types that torchvision's transforms return."""
    images = sys.modules.get("torchvision.tv_tensors")
    return torch.Tensor, getattr(images, "Image", torch.Tensor)
