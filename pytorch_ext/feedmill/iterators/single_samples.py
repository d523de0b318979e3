"""Single samples, made natively or by the Pillow fallback, for draws(), fetch() and
verification."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from feedmill._ops import native
from feedmill.iterators import timm_replay
from feedmill.iterators.batches import submit_items
from feedmill.iterators.pillow_fallback import (
    Draw,
    check_files,
    draws_from,
    make_sample,
    name_sample,
)
from feedmill.planner.formats import as_planned, laid_out
from feedmill.planner.plan import AUGMENTATIONS, FILTER_NAMES, OP_NAMES, RESIZES
from feedmill.planner.samples import Item, Source


def run_one(
    handle: Any, key: int, epoch_word: int, source: Source, item: Item, occurrence: int
) -> Any:
    """Makes one sample with a diagnostic native loader of batch size 1.

    Returns the image (channels, height, width), or the list of its views, or None if the native
    decoder does not support it.
    """
    items = source.together([item])
    handle.start(key, epoch_word)
    try:
        # The native loader counts an index's occurrences: submit the earlier ones, too.
        for _ in range(occurrence):
            submit_items(handle, items)
            if handle.next(-1)[0] == native.FALLBACK:
                handle.fallback_done(False)
                handle.next(-1)
        submit_items(handle, items)
        outcome, payload, _ = handle.next(-1)
        if outcome == native.FALLBACK:
            return None
        if outcome != native.OK:
            raise RuntimeError(f"{item}: {payload}")
        if type(payload) is list and source.arrays is None:
            return [from_dlpack(view)[0].clone() for view in payload]
        images = payload[0] if source.arrays is not None else payload
        return from_dlpack(images)[0].clone()
    finally:
        handle.stop()


def fetch_one(
    handle: Any, key: int, epoch_word: int, source: Source, item: Item, occurrence: int
) -> tuple[Any, Any]:
    """Makes one sample (image, target) as the loader delivers it, with the Pillow fallback if
    necessary; raises its errors. An image of several views is a list."""
    image = run_one(handle, key, epoch_word, source, item, occurrence)
    if image is not None:
        return image, item.target
    plan = source.native_plan
    draws_of = draws_from(handle, key, epoch_word, item.position, occurrence)
    try:
        made, target = make_sample(item, draws_of)
        if plan.more_views:
            views = zip(made, plan.views)
            return [as_planned(*view).as_subclass(torch.Tensor) for view in views], target
        image = as_planned(made, plan).as_subclass(torch.Tensor)
    except Exception as error:
        name_sample(error, item)
        raise
    nhwc = plan.layout == "nhwc"
    return laid_out(image, torch.channels_last if nhwc else torch.contiguous_format), target


def draws_of_item(
    handle: Any, key: int, epoch_word: int, item: Item, occurrence: int, view: int
) -> list[tuple[str, dict[str, Any]]]:
    """The random draws of a view of a sample, in the format of DataLoader.draws()."""
    check_files(item)
    width, height = item.of_view(view).size()
    draws = handle.draws(key, epoch_word, item.position, occurrence, width, height, view)
    return [(OP_NAMES[draw[0]], _draw_values(draw)) for draw in draws]


# Names of the draws' values, by transform.
_VALUE_NAMES = {
    "RandomRotation": ("angle",),
    "RandomAffine": ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y"),
    "RandomChoice": ("child",),
    "RandomBlur": ("radius",),
}


def _draw_values(draw: Draw) -> dict[str, Any]:
    kind, top, left, height, width, flip, values = draw
    name = OP_NAMES[kind]
    box = {"top": top, "left": left, "height": height, "width": width}
    if name == "RandomHorizontalFlip" or name == "RandomVerticalFlip":
        return {"flip": flip}
    if kind in RESIZES and values:
        plain = _draw_values((kind, top, left, height, width, flip, ()))
        return {**plain, "interpolation": FILTER_NAMES[int(values[0])]}
    if name in ("Resize", "ResizeKeepRatio"):
        return {"height": height, "width": width}
    if name in ("CenterCrop", "RandomResizedCrop", "RandomCrop"):
        return box
    if name == "RandomErasing":
        more = {"boxes": tuple(timm_replay.boxes_of(draw)),
                "noise_seed": timm_replay.noise_seed_of(draw)} if values else {}
        return {"applied": flip, **box, **more}
    if name == "ColorJitter":
        colours = ("brightness", "contrast", "saturation", "hue")
        order = tuple(colours[int(number)] for number in values[:4])
        return {"order": order, **dict(zip(colours, values[4:]))}
    if name == "Lighting":
        return {"factors": tuple(values)}
    if name == "RandomOrder":
        return {"order": tuple(map(int, values))}
    if name in ("TrivialAugmentWide", "RandAugment", "AutoAugment"):
        pairs = zip(values[::2], values[1::2])
        return {"done": tuple((AUGMENTATIONS[int(what)], much) for what, much in pairs)}
    if name in ("timm's RandAugment", "timm's AutoAugment"):
        return {"done": timm_replay.in_words(values)}
    if name in _VALUE_NAMES:
        return dict(zip(_VALUE_NAMES[name], values))
    return {} if name in ("Pad", "Grayscale") else {"applied": flip}
