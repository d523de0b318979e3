"""The plan of a transform: what the native loader needs to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Names by fm_op_kind: those of torchvision's classes.
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
}
KINDS = {name: kind for kind, name in OP_NAMES.items()}
RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_HORIZONTAL_FLIP, RANDOM_CROP, PAD = range(1, 7)
RANDOM_APPLY = KINDS["RandomApply"]
_WITHOUT_DRAWS = (RESIZE, CENTER_CROP, PAD, KINDS["Grayscale"])
# What the automatic augmentations choose from, by fm_augmentation.
AUGMENTATIONS = (
    "Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert",
)
# Limits of the native plan (fm_op and FM_MAX_OPS).
MAX_SIZE_PX = 65535
MAX_OPS = 64

# fm_filter by Pillow's number of it (PIL.Image.Resampling), and names by fm_filter.
FILTERS = {2: 0, 3: 1, 4: 2, 5: 3, 1: 4, 0: 5}
FILTER_NAMES = ("bilinear", "bicubic", "box", "hamming", "lanczos", "nearest")


class Op(NamedTuple):
    """One operation, as _native.Loader takes it (fm_op). What a kind has no use for is 0.

    Attributes:
        kind: a key of OP_NAMES.
        height, width: of the result; a Resize with width 0 makes the shorter edge `height` long.
        max_size: of a Resize with width 0: the longer edge is at most this; 0: any.
        scale_low, scale_high, ratio_low, ratio_high: of RandomResizedCrop and RandomErasing; the
            scale of RandomAffine.
        p: of what is done with a probability.
        filter: fm_filter, of what resizes or maps; see FILTERS.
        n_children, n_within: how many ops behind it belong to a RandomApply, RandomChoice or
            RandomOrder, and how many with all that those hold.
        values: of the kind, as feedmill.h lists them.
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


def crop_and_flip(size: int) -> tuple[Op, ...]:
    """RandomResizedCrop(size) and RandomHorizontalFlip() as torchvision has them by default."""
    crop = Op(RANDOM_RESIZED_CROP, size, size, 0, 0.08, 1.0, 3 / 4, 4 / 3)
    return crop, Op(RANDOM_HORIZONTAL_FLIP, p=0.5)


def leads_to_one_size(ops: Sequence[Op]) -> bool:
    """Whether images of all sizes come out with the same one."""
    for op in reversed(ops):
        if op.kind in (RESIZE, CENTER_CROP, RANDOM_RESIZED_CROP, RANDOM_CROP):
            return op.width > 0
    return False


class Refusal(Exception):
    """Why something can't be done natively, in plain words."""


@dataclass(frozen=True)
class Plan:
    """What the native loader needs to know of a transform. Equal plans give equal pixels.

    Attributes:
        ops: in order.
        dtype: of the batch: "uint8", "float32", "float16" or "bfloat16".
        value_table: but for uint8: 3 x 256 results of that type by (channel, pixel value).
        resize_order: order of the passes of the installed Pillow's resize, as fm_resize_order.
        max_image_pixels: larger images go through Pillow.
        as_image: a single sample is a torchvision tv_tensors.Image rather than a plain tensor.
        transform_dtype: what the transform gives, where the DataLoader's dtype= makes another type
            of it; else "".
        layout: "nchw", or "nhwc" for a batch of torch.channels_last.
        rejected_formats: of files that go through Pillow, as fm_config.rejected_formats.
    """

    ops: tuple[Op, ...]
    dtype: str
    value_table: bytes | None
    resize_order: int
    max_image_pixels: int
    as_image: bool = False
    transform_dtype: str = ""
    layout: str = "nchw"
    rejected_formats: int = 0

    @property
    def is_random(self) -> bool:
        """Whether samples may draw random numbers."""
        return any(op.kind not in _WITHOUT_DRAWS for op in self.ops)

    def describe(self) -> str:
        """Such as "RandomResizedCrop(224, 224) by bicubic -> RandomHorizontalFlip -> float32"; what
        no filter is named for is bilinear."""
        names = []
        for op in self.ops:
            size = f"({op.height})" if op.height else ""
            if op.width:
                size = f"({op.height}, {op.width})"
            limit = f" up to {op.max_size}" if op.max_size else ""
            by = f" by {FILTER_NAMES[op.filter]}" if op.filter and op.kind < RANDOM_CROP else ""
            held = f" of {op.n_children}" if op.n_within else ""
            names.append(OP_NAMES[op.kind] + size + limit + by + held)
        if self.transform_dtype:
            names.append(self.transform_dtype)
        layout = ", channels_last" if self.layout == "nhwc" else ""
        return (
            f"{' -> '.join([*names, self.dtype])}{layout}; pixels as of Pillow {pillow_version()} "
            f"(resize order {self.resize_order})"
        )


# ---- what is installed ---------------------------------------------------------------------------

# Where Pillow begins to warn of decompression bombs; larger images are left to Pillow.
_MAX_IMAGE_PIXELS = 89478485


def pillow_version() -> str:
    """The installed Pillow's version."""
    import PIL

    return PIL.__version__


def likely_resize_order() -> int:
    """fm_resize_order of the installed Pillow by its version: which pass its resize does first."""
    numbers = [int(part) if part.isdigit() else 0 for part in pillow_version().split(".")[:2]]
    version = tuple(numbers)
    return 1 if version >= (13, 0) else 2 if version >= (12, 2) else 0


def max_image_pixels() -> int:
    """What Pillow opens without a word, as far as the native loader takes it."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    return min(_MAX_IMAGE_PIXELS, max(1, int(limit))) if limit else _MAX_IMAGE_PIXELS
