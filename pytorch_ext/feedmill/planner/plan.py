"""The plan of a transform: its operations in the form that the native loader takes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

# fm_op_kind -> the name of torchvision's class.
OP_NAMES = {
    1: "Resize",
    2: "CenterCrop",
    3: "RandomResizedCrop",
    4: "RandomHorizontalFlip",
    5: "RandomCrop",
    6: "Pad",
    7: "RandomVerticalFlip",
    8: "Grayscale",
    9: "RandomGrayscale",
    10: "RandomInvert",
    11: "RandomPosterize",
    12: "RandomSolarize",
    13: "RandomAutocontrast",
    14: "RandomEqualize",
    15: "RandomAdjustSharpness",
    16: "ColorJitter",
    17: "RandomRotation",
    18: "RandomAffine",
    19: "RandomErasing",
    20: "RandomApply",
    21: "RandomChoice",
    22: "RandomOrder",
    23: "TrivialAugmentWide",
    24: "RandAugment",
    25: "AutoAugment",
    26: "ResizeKeepRatio",
    27: "RandomBlur",
    28: "timm's RandAugment",
    29: "timm's AutoAugment",
    30: "halving CenterCrop",
    31: "Lighting",
}
KINDS = {name: kind for kind, name in OP_NAMES.items()}
RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_HORIZONTAL_FLIP, RANDOM_CROP, PAD = range(1, 7)
RANDOM_APPLY = KINDS["RandomApply"]
RANDOM_CHOICE = KINDS["RandomChoice"]
CONTAINERS = (RANDOM_APPLY, RANDOM_CHOICE, KINDS["RandomOrder"])
RESIZE_KEEP_RATIO = KINDS["ResizeKeepRatio"]
HALVING_CENTER_CROP = KINDS["halving CenterCrop"]
LIGHTING = KINDS["Lighting"]
# Operations that resize.
RESIZES = (RESIZE, RANDOM_RESIZED_CROP, RESIZE_KEEP_RATIO, HALVING_CENTER_CROP)
_WITHOUT_DRAWS = (RESIZE, CENTER_CROP, PAD, KINDS["Grayscale"], HALVING_CENTER_CROP)
# Operations whose results have the operation's own size.
SETS_SIZE = (RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_CROP, HALVING_CENTER_CROP)
# The augmentations that TrivialAugmentWide, RandAugment and AutoAugment choose from, by
# fm_augmentation.
AUGMENTATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert",
)
# Limits of the native plan (fm_op and FM_MAX_OPS).
MAX_SIZE_PX = 65535
MAX_OPS = 64

# PIL.Image.Resampling -> fm_filter; and the names, by fm_filter.
FILTERS = {2: 0, 3: 1, 4: 2, 5: 3, 1: 4, 0: 5}
FILTER_NAMES = ("bilinear", "bicubic", "box", "hamming", "lanczos", "nearest")
# fm_resize_order of torch's resize of uint8 and of float32 tensors; the lower ones are those of
# Pillow's versions.
TORCHS_RESIZE = 3
TORCHS_FLOAT_RESIZE = 4
# fm_arithmetic of ops on uint8 tensors; 0: of ops on PIL images.
TENSOR_V1, TENSOR_V2, TENSOR_V2_FUSED = range(1, 4)
# Bits of fm_sampling.
FUSED_GRID, FUSED_SAMPLES, WITHOUT_FILL = 1, 2, 4


class Op(NamedTuple):
    """One operation, as _native.Loader takes it (fm_op). Fields that its kind does not use are 0.

    Attributes:
        kind: a key of OP_NAMES.
        height, width: size of the result. Resize with width 0: `height` is the size of the shorter
            edge.
        max_size: Resize with width 0: limit of the longer edge; 0: no limit.
        scale_low, scale_high, ratio_low, ratio_high: the ranges of RandomResizedCrop and
            RandomErasing; the scale of RandomAffine.
        p: the probability that the operation is applied.
        filter: fm_filter of operations that resample; see FILTERS. See also second_filter_of().
        n_children: RandomApply, RandomChoice and RandomOrder: number of operations to choose from,
            which follow this one.
        n_within: the same, and all operations within those.
        values: further parameters by kind, as feedmill/transform.h lists them.
        is_v2: whether it is of torchvision.transforms.v2.
        arithmetic: fm_arithmetic; not 0: it changes uint8 tensors.
        sampling: bits of fm_sampling, with ``arithmetic``.
    """

    kind: int
    height: int = 0
    width: int = 0
    max_size: int = 0
    scale_low: float = 0.0
    scale_high: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    p: float = 0.0
    filter: int = 0
    n_children: int = 0
    n_within: int = 0
    values: tuple[float, ...] = ()
    is_v2: bool = False
    arithmetic: int = 0
    sampling: int = 0


class FloatResize(NamedTuple):
    """A resize of float32 tensors, as _native.Loader takes it.

    Attributes:
        run_taps: how the installed torch rounds, as fm_float_resize.
        values: what is resized, by (channel, pixel value): 3 x 256 float32 values as bytes. None:
            the pixel values themselves, and the result is rounded to pixel values.
        mean, std: with ``values``, of the Normalize after the resize, by channel.
    """

    run_taps: int
    values: bytes | None = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)


def crop_and_flip(size: int) -> tuple[Op, ...]:
    """RandomResizedCrop(size) and RandomHorizontalFlip() with torchvision's default arguments."""
    crop = Op(RANDOM_RESIZED_CROP, size, size, 0, 0.08, 1.0, 3 / 4, 4 / 3)
    return crop, Op(RANDOM_HORIZONTAL_FLIP, p=0.5)


def _is_central(op: Op) -> bool:
    """Whether an op is EfficientNet's central crop, which draws nothing."""
    return op.kind == RANDOM_RESIZED_CROP and op.values[:1] == (4.0,)


def _keeps_ratio_only(op: Op) -> bool:
    """Whether an op is a ResizeKeepRatio without random changes."""
    is_fixed = op.kind == RESIZE_KEEP_RATIO and not op.values[2] and not op.values[6]
    return is_fixed and not second_filter_of(op)


# (height, width); None: not known.
Size = tuple[int, int] | None


def with_sizes(ops: Sequence[Op], size: Size) -> Generator[tuple[Op, Size], None, Size]:
    """Yields each op, those within others too, with the (height, width) of the image that it gets;
    None: that depends on the image, or on what is drawn. Returns the size of the result.

    Args:
        size: before the first op.
    """
    at = 0
    while at < len(ops):
        op, end = ops[at], at + 1 + ops[at].n_within
        yield op, size
        if op.kind in CONTAINERS:
            size = yield from _with_sizes_within(op, children_of(ops[at:end]), size)
        else:
            size = size_after(op, size)
        at = end
    return size


def children_of(ops: Sequence[Op]) -> list[Sequence[Op]]:
    """The ops of each child of the container ops[0]."""
    children = []
    at = 1
    while at < len(ops):
        end = at + 1 + ops[at].n_within
        children.append(ops[at:end])
        at = end
    return children


def _with_sizes_within(
    container: Op, children: Sequence[Sequence[Op]], size: Size
) -> Generator[tuple[Op, Size], None, Size]:
    if container.kind == RANDOM_APPLY:
        applied = size
        for child in children:
            applied = yield from with_sizes(child, applied)
        is_always = any(container.values[:1])
        return applied if is_always or applied == size else None
    after = {final_size(child, size) for child in children}
    before = size if container.kind == RANDOM_CHOICE or after <= {size} else None
    for child in children:
        yield from with_sizes(child, before)
    if container.kind == RANDOM_CHOICE:
        return after.pop() if len(after) == 1 else None
    return before


def size_after(op: Op, size: Size) -> Size:
    """(height, width) after an op that holds no others, as far as it does not depend on the image.

    Args:
        size: before it.
    """
    if op.kind == RESIZE and op.width == 0 and size is not None:
        return _shorter_edge_resized(op, *size)
    if op.kind in SETS_SIZE:
        return (op.height, op.width) if op.width else None
    if op.kind == RESIZE_KEEP_RATIO:
        return None
    if op.kind == PAD and size is not None:
        left, top, right, bottom = map(int, op.values[:4])
        return size[0] + top + bottom, size[1] + left + right
    return size


def _shorter_edge_resized(op: Op, height: int, width: int) -> tuple[int, int]:
    """(height, width) after a Resize of the shorter edge, rounded like torchvision does."""
    short, long = sorted((height, width))
    new_short, new_long = op.height, int(op.height * long / short)
    if op.max_size and new_long > op.max_size:
        new_short, new_long = int(op.max_size * new_short / new_long), op.max_size
    return (new_long, new_short) if height > width else (new_short, new_long)


def final_size(ops: Sequence[Op], size: Size) -> Size:
    """The size that with_sizes() returns."""
    sizes = with_sizes(ops, size)
    while True:
        try:
            next(sizes)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def filters_of(op: Op) -> str:
    """The filter of an op that resizes, by name; or the two that it uses, or of which one is
    drawn."""
    joined = " after " if op.kind == HALVING_CENTER_CROP else " or "
    return joined.join(FILTER_NAMES[one] for one in (op.filter, *second_filter_of(op)))


def second_filter_of(op: Op) -> tuple[int, ...]:
    """fm_filter that an op which resizes may use beside its first one; empty: none."""
    second = int(op.values[1]) if len(op.values) > 1 else 0
    return (second - 1,) if second else ()


class UnsupportedError(Exception):
    """A dataset or transform can't be run natively. The text is a reason for explain()."""


def unsupported_argument(name: str, argument: str, value: Any, need: str) -> UnsupportedError:
    """The reason against an argument of a transform.

    Args:
        name: the transform's class, such as "Pad".
        need: what is supported, such as "an int".
    """
    return UnsupportedError(f"{name} with {argument}={value!r} is not supported natively; it must "
                            f"be {need}")


# Plan.gives.
TENSOR, ARRAY, PIL = "tensor", "array", "image"
# Why a plan that gives PIL images can't be taken with most collate_fns.
NO_TENSOR = "the transform does not end in a tensor; add ToTensor or PILToTensor"


@dataclass(frozen=True)
class Plan:
    """A transform in the form that the native loader takes. Equal plans give equal pixels.

    Attributes:
        ops: the operations, in order.
        dtype: of the batch: "uint8", "float32", "float16" or "bfloat16".
        value_table: maps pixel values to the batch's values, by (channel, pixel value): 3 x 256
            values of type dtype, as bytes; None if dtype is "uint8".
        resize_order: which pass the installed Pillow's resize does first, as fm_resize_order;
            TORCHS_RESIZE and TORCHS_FLOAT_RESIZE: the transform resizes tensors.
        max_image_pixels: images of more pixels go through Pillow.
        as_image: a single sample is a torchvision tv_tensors.Image, not a plain tensor.
        gives: what the transform returns: TENSOR; ARRAY, a NumPy array, or PIL, an image, of which
            the DataLoader's collate_fn makes a tensor.
        transform_dtype: type of the transform's result, if the DataLoader's dtype= converts it to
            another type; else "".
        layout: "nchw", or "nhwc" for batches in torch.channels_last.
        rejected_formats: file formats that go through Pillow, as fm_config.rejected_formats.
        decodes_scaled: large JPEGs are decoded at a reduced size, as fm_config.decodes_scaled.
        float_resize: with TORCHS_FLOAT_RESIZE.
        more_views: the plans of further images that are made of the same file, with the same dtype
            and layout; empty: there is one image.
        views_have_files: each of these images is made of a file of its own.
        draws_files: the dataset chooses files by random numbers.
        retries: the dataset may catch the error of a sample that can't be loaded, and go on with
            another one, which it may draw.
    """

    ops: tuple[Op, ...]
    dtype: str
    value_table: bytes | None
    resize_order: int
    max_image_pixels: int
    as_image: bool = False
    gives: str = TENSOR
    transform_dtype: str = ""
    layout: str = "nchw"
    rejected_formats: int = 0
    decodes_scaled: bool = False
    float_resize: FloatResize | None = None
    more_views: tuple[Plan, ...] = ()
    views_have_files: bool = False
    draws_files: bool = False
    retries: bool = False

    @property
    def keeps_floats(self) -> bool:
        """Whether floats are resized and not rounded, so that no value table gives the result."""
        return self.float_resize is not None and self.float_resize.values is not None

    @property
    def views(self) -> tuple[Plan, ...]:
        """The plan of each view; one if there are no further ones."""
        return self, *self.more_views

    @property
    def n_files(self) -> int:
        """Of one sample."""
        return len(self.views) if self.views_have_files else 1

    def without_format(self, keeps_values: bool) -> Plan:
        """What of the plan does not depend on the DataLoader's own options; the values' type and
        table only if it ``keeps_values``."""
        views = tuple(view.without_format(keeps_values) for view in self.more_views)
        plan = replace(self, layout="", decodes_scaled=False, more_views=views)
        if keeps_values:
            return plan
        return replace(plan, dtype="", value_table=None, transform_dtype="")

    @property
    def is_random(self) -> bool:
        """Whether the dataset or its transform may draw random numbers."""
        return self.draws_files or self.retries or any(
            op.kind not in _WITHOUT_DRAWS and not _keeps_ratio_only(op) and not _is_central(op)
            for view in self.views for op in view.ops
        )

    def describe(self) -> str:
        """The plan in words, such as "RandomResizedCrop(224, 224) by bicubic ->
        RandomHorizontalFlip -> float32; ...". The filter bilinear is not named."""
        texts: dict[str, list[str]] = {}
        for number, view in enumerate(self.views):
            texts.setdefault(view._describe_ops(), []).append(str(number + 1))
        by = f"pixels as in Pillow {pillow_version()} (resize order {self.resize_order})"
        if self.resize_order in (TORCHS_RESIZE, TORCHS_FLOAT_RESIZE):
            by = f"pixels as in Pillow {pillow_version()}, resized as in torch {torch.__version__}"
        if self.decodes_scaled:
            by = "decode='scaled': large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, with "\
                 "other pixels than Pillow's"
        if not self.more_views:
            return f"{next(iter(texts))}; {by}"
        one = "file" if self.views_have_files else "view"
        of = "files a sample" if self.views_have_files else "views of one decode"
        views = "; ".join(f"{one} {', '.join(numbers)}: {text}" for text, numbers in texts.items())
        return f"{len(self.views)} {of}; {views}; {by}"

    def _describe_ops(self) -> str:
        names = []
        for op in self.ops:
            size = f"({op.height})" if op.height else ""
            if op.width:
                size = f"({op.height}, {op.width})"
            limit = f" up to {op.max_size}" if op.max_size else ""
            by = f" by {filters_of(op)}" if op.kind in RESIZES else ""
            by = "" if by == " by bilinear" else by
            held = f" of {op.n_children}" if op.n_within else ""
            names.append(OP_NAMES[op.kind] + size + limit + by + held)
        if self.transform_dtype:
            names.append(self.transform_dtype)
        layout = ", channels_last" if self.layout == "nhwc" else ""
        return f"{' -> '.join([*names, self.dtype])}{layout}"


# ---- what is installed ---------------------------------------------------------------------------

# Pillow's default limit, above which it warns of decompression bombs. Larger images go through
# Pillow.
_MAX_IMAGE_PIXELS = 89478485


def pillow_version() -> str:
    """The installed Pillow's version."""
    import PIL

    return PIL.__version__


def likely_resize_order() -> int:
    """fm_resize_order of the installed Pillow, guessed from its version."""
    numbers = [int(part) if part.isdigit() else 0 for part in pillow_version().split(".")[:2]]
    version = tuple(numbers)
    return 1 if version >= (13, 0) else 2 if version >= (12, 2) else 0


def max_image_pixels() -> int:
    """Limit of the native decoder: the pixels of the largest image that Pillow opens without a
    warning, but at most Pillow's default."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return min(_MAX_IMAGE_PIXELS, max(1, int(limit))) if limit else _MAX_IMAGE_PIXELS
