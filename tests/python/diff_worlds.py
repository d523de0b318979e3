"""Runs one script twice, in two "worlds", one with torch's DataLoader and one with feedmill's.

A script is plain data: how a loader is made, and what is done with it. Each world makes its own
objects from it and runs it from the same states of all random generators, and writes a transcript
of everything that a script could observe. The two transcripts must be equal.
"""

import copy
import inspect
import itertools
import pickle
import random
import re
import sys
import traceback
import warnings
import zlib
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import feedmill
import numpy as np
import torch
from diff_samplers import make_sampler, transcript
from helpers import MEAN, STD, compose, numbered_folder
from nvidia_collates import format_first
from PIL import ImageFilter
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    Subset,
    default_collate,
    get_worker_info,
    random_split,
)
from torchvision import transforms as T
from torchvision.transforms import v2

N_FILES = 24
# The datasets and collate_fns that scripts choose from. Frequent ones are repeated.
NATIVE_DATASETS = ("folder", "folder", "folder", "subset", "nested_subset", "concat",
                   "random_split", "items", "selected", "passed")
NATIVE_COLLATES = ("none", "none", "default", "own", "list", "drawing", "of_pil")

# A loop over an endless sampler is left after this many batches.
_LONGEST_LOOP = 40


@dataclass(frozen=True)
class Script:
    """A loader's construction, and the actions on it.

    Attributes:
        files: "good" or "bad": the folder that the dataset reads.
        dataset, transform, collate: keys of DATASETS, TRANSFORMS and COLLATES.
        sampler, batch_sampler: (key of diff_samplers.SAMPLERS, its options), or None.
        generator: the seed of the loader's own generator, or None.
        options: the other arguments of the constructor.
        ours: arguments that only feedmill's DataLoader has.
        actions: tuples of a method's name in _Run and its arguments.
    """

    files: str
    dataset: str
    transform: str
    collate: str
    sampler: tuple | None
    batch_sampler: tuple | None
    generator: int | None
    options: dict
    ours: dict
    actions: tuple

    def __str__(self) -> str:
        made = [f"  {name} = {getattr(self, name)!r}" for name in self.__dataclass_fields__
                if name != "actions"]
        done = [f"  {number}: {action!r}" for number, action in enumerate(self.actions)]
        return "\n".join([*made, *done])


# ---- the datasets, transforms and collate functions ----------------------------------------------

TRANSFORMS = {
    "bytes": lambda: compose(T.Resize((8, 8)), T.PILToTensor()),
    "floats": lambda: compose(T.Resize(12), T.CenterCrop(10), T.ToTensor()),
    "normalized": lambda: compose(T.Resize((6, 9)), T.ToTensor(), T.Normalize(MEAN, STD)),
    "converted": lambda: compose(
        T.CenterCrop((7, 11)), T.PILToTensor(), T.ConvertImageDtype(torch.float32)
    ),
    "images": lambda: v2.Compose(
        [v2.Resize((8, 9)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    ),
    "flipped": lambda: compose(T.Resize((8, 8)), T.RandomHorizontalFlip(), T.PILToTensor()),
    "random": lambda: compose(T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor()),
}
# PIL images, of which the collate function "of_pil" makes tensors.
PIL_TRANSFORMS = {
    "pil": lambda: compose(T.Resize((8, 8))),
    "random_pil": lambda: compose(T.RandomResizedCrop(8), T.RandomHorizontalFlip()),
}
TRANSFORMS |= PIL_TRANSFORMS
TRANSFORMS["own"] = lambda: _Preset(T.Resize((8, 8)), _as_rgb, T.Lambda(_as_rgb), T.ToTensor())
TRANSFORMS["drawn"] = lambda: compose(T.Resize((8, 8)), _MaybeBlurred(), T.ToTensor())
TRANSFORMS["views"] = lambda: _Views(TRANSFORMS["normalized"](), TRANSFORMS["floats"]())
TRANSFORMS["random_views"] = lambda: _Views(TRANSFORMS["random"](), TRANSFORMS["floats"]())


class _MaybeBlurred:
    """A user-defined transform that draws from Python's generator."""

    def __call__(self, image):
        if random.random() < 0.5:
            return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))
        return image


class _Preset:
    """A user-defined transform, as in torchvision's references."""

    def __init__(self, *steps):
        self.transforms = compose(*steps)

    def __call__(self, image):
        return self.transforms(image)


class _Views:
    """Makes two images of each, as for contrastive learning."""

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __call__(self, image):
        return [self.one(image), self.other(image)]


def _as_rgb(image):
    return image.convert("RGB")


# Transforms that make batches of the same shape and dtype, but draw no random numbers. Without
# workers, torch's transforms draw from the global generator, which would change the order.
_CALM = {
    "flipped": TRANSFORMS["bytes"],
    "random": lambda: compose(T.Resize((8, 8)), T.ToTensor()),
    "drawn": lambda: compose(T.Resize((8, 8)), T.ToTensor()),
    "random_pil": TRANSFORMS["pil"],
    "random_views": lambda: _Views(_CALM["random"](), TRANSFORMS["floats"]()),
}


def is_random(transform):
    return transform in _CALM


DATASETS = {
    "folder": lambda make: make(),
    "subset": lambda make: Subset(make(), range(N_FILES - 1, -1, -1)),
    "nested_subset": lambda make: Subset(Subset(make(), list(range(2, N_FILES))), [5, 3, 3, 0, 20]),
    "concat": lambda make: ConcatDataset([make(), make()]),
    "random_split": lambda make: random_split(
        make(), [0.8, 0.2], torch.Generator().manual_seed(5)
    )[0],
    "items": lambda make: _Items(make()),
    "selected": lambda make: _Selected(make(), [*range(3, N_FILES), 1, 1]),
    "passed": lambda make: Subset(_Selected(_Passed(make()), range(N_FILES)), [4, 2, 9, 7, 12]),
}


class _Selected(Dataset):
    """A user-defined dataset without feedmill_item(), as torch's Subset."""

    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        return self.dataset[self.indices[index]]


class _Passed(Dataset):
    """Takes the samples of another dataset."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, target = self.dataset[index]
        return image, target


class _Items(Dataset):
    """A user-defined dataset with feedmill_item()."""

    def __init__(self, folder):
        self.folder = folder

    @property
    def transform(self):
        return self.folder.transform

    @transform.setter
    def transform(self, value):
        self.folder.transform = value

    def __len__(self):
        return len(self.folder)

    def __getitem__(self, index):
        return self.folder[index]

    def feedmill_item(self, index):
        return self.folder.samples[index]


def _stacked(samples):
    images, targets = zip(*samples)
    return {"images": torch.stack(images), "targets": list(targets)}


def _drawing(samples):
    numbers = torch.rand(1).item(), random.random(), np.random.rand()
    info = get_worker_info()
    return _stacked(samples) | {
        "numbers": numbers, "worker": info and (info.id, info.num_workers, info.seed)
    }


COLLATES = {"none": None, "default": default_collate, "own": _stacked, "list": list,
            "drawing": _drawing, "of_pil": partial(format_first, torch.channels_last)}


def _folders(dataset):
    """The ImageFolders under a dataset."""
    if isinstance(dataset, Subset | _Selected | _Passed):
        return _folders(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [folder for part in dataset.datasets for folder in _folders(part)]
    return [dataset.folder if isinstance(dataset, _Items) else dataset]


# ---- observations --------------------------------------------------------------------------------

_NAMED_SAMPLE = re.compile(r" \[dataset index \d+, file .*?\]")
_ITERATOR_NAME = re.compile(r"NativeDataLoaderIter|_(MultiProcessing|SingleProcess)DataLoaderIter")


def _see_error(error):
    """The type and text of an exception, without what may differ: the sample's index and path,
    which feedmill adds, the iterator's name, and the traceback in errors of workers."""
    text = _ITERATOR_NAME.sub("Iterator", _NAMED_SAMPLE.sub("", str(error)))
    lines = text.splitlines()
    if lines and lines[0].startswith("Caught "):
        text = f"{lines[0]} ... {lines[-1]}"
    return type(error).__qualname__, text, getattr(error, "errno", None)


def _checksum(data):
    if isinstance(data, torch.Tensor):
        return zlib.crc32(data.contiguous().numpy().tobytes())
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, (list, tuple)):
        return zlib.crc32(repr([_checksum(one) for one in data]).encode())
    return zlib.crc32(repr(data).encode())


def _see(data, with_pixels):
    """Type, shape and values of a batch. Values of images only if these are not random."""
    if isinstance(data, torch.Tensor):
        is_image = data.dim() >= 3
        values = (_checksum(data) if with_pixels else None) if is_image else data.tolist()
        # Strides of single images differ: PILToTensor returns a view, feedmill no view.
        strides = None if data.dim() == 3 else data.stride()
        return (type(data).__name__, str(data.dtype), tuple(data.shape), strides,
                str(data.device), data.requires_grad, data.is_pinned(), values)
    if isinstance(data, dict):
        return "dict", [(key, _see(value, with_pixels)) for key, value in data.items()]
    if isinstance(data, (list, tuple)):
        return type(data).__name__, [_see(one, with_pixels) for one in data]
    return type(data).__name__, data


def _see_generators(generator):
    states = [
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()).encode(),
        b"".join(np.asarray(part).tobytes() for part in np.random.get_state()[1:]),
    ]
    if generator is not None:
        states.append(generator.get_state().numpy().tobytes())
    return tuple(map(zlib.crc32, states))


_ALL_ATTRIBUTES = ("batch_size", "drop_last", "num_workers", "prefetch_factor", "pin_memory", "timeout",
               "persistent_workers", "pin_memory_device", "in_order", "worker_init_fn")
# Those that the installed torch has.
_ATTRIBUTES = [name for name in _ALL_ATTRIBUTES
               if name in inspect.signature(torch.utils.data.DataLoader.__init__).parameters]


# ---- a run ---------------------------------------------------------------------------------------


class _Run:
    """Runs one script in one world. Each action is a method; its errors are recorded."""

    def __init__(self, script, root, is_ours):
        self.script, self.root, self.is_ours = script, root, is_ours
        self.with_pixels = not is_random(script.transform)
        self.iterators = {}
        self.held = []  # [batch, its checksum]
        self.generator = None
        self.loader = None

    def run(self):
        transcript.begin()
        old_hook, sys.unraisablehook = sys.unraisablehook, self._note_unraisable
        try:
            self._act()
        finally:
            sys.unraisablehook = old_hook
        return list(transcript)

    def _act(self):
        torch.manual_seed(11)
        random.seed(12)
        np.random.seed(13)
        self._attempt("make", self._make)
        if self.loader is not None:
            for number, (name, *arguments) in enumerate(self.script.actions):
                self._attempt(f"{number}: {name}", getattr(self, name), *arguments)
            self._attempt("end", self._end)

    def _note_unraisable(self, unraisable):
        """Records errors in __del__() for feedmill alone: torch's iterators raise there if their
        __init__() has failed."""
        if self.is_ours:
            self._note("unraisable", repr(unraisable.exc_value))

    def _attempt(self, what, action, *arguments):
        self._note("action", what, *arguments)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                action(*arguments)
            except Exception as error:
                self._note("raised", *_see_error(error))
                # torch's exceptions are in reference cycles, see helpers.take().
                traceback.clear_frames(error.__traceback__)
        for one in caught:
            if "use of fork()" not in str(one.message):
                self._note("warned", one.category.__name__, str(one.message))
        self._note("generators", *_see_generators(self.generator))

    def _note(self, *event):
        transcript.append(event)

    # -- construction

    def _transform(self, name):
        """The script's transform. torch's world gets the counterpart without random numbers if it
        may have no workers, or if the collate_fn draws from the same generator."""
        workers = {self.script.options.get("num_workers", 0)}
        workers |= {value for action, what, value, *_ in self._settings() if what == "num_workers"}
        draws = 0 in workers or -1 in workers or self.script.collate == "drawing"
        calm = not self.is_ours and draws
        return (_CALM if calm and is_random(name) else TRANSFORMS)[name]()

    def _settings(self):
        return [action for action in self.script.actions if action[0] == "set_attribute"]

    def _make(self):
        script = self.script
        if script.generator is not None:
            self.generator = torch.Generator().manual_seed(script.generator)
        dataset = DATASETS[script.dataset](
            lambda: numbered_folder(self.root, self._transform(script.transform))
        )
        options = dict(script.options)
        for name in ("sampler", "batch_sampler"):
            spec = getattr(script, name)
            if spec is not None:
                options[name] = make_sampler(spec, dataset, self.generator)
        if script.collate != "none":
            options["collate_fn"] = COLLATES[script.collate]
        if self.generator is not None:
            options["generator"] = self.generator
        if self.is_ours:
            # With torch's random numbers: test_rng_torch_random.py.
            self.loader = feedmill.DataLoader(
                dataset, native="require", rng="feedmill", **script.ours, **options
            )
        else:
            self.loader = torch.utils.data.DataLoader(dataset, **options)
        self._see_loader()

    def _see_loader(self):
        samplers = [type(one).__name__ for one in (self.loader.sampler, self.loader.batch_sampler)]
        self._note("loader", samplers, attrgetter(*_ATTRIBUTES)(self.loader))

    # -- iteration

    def make_iterator(self, slot):
        iterator = iter(self.loader)
        same = [name for name, other in self.iterators.items() if other is iterator]
        self._note("iterator", "same as", sorted(same), iter(iterator) is iterator)
        self.iterators[slot] = iterator

    def take(self, slot, count, hold):
        """Takes `count` batches; stops at the end and at the first error."""
        if slot not in self.iterators:
            return
        for _ in range(count):
            try:
                batch = next(self.iterators[slot])
            except StopIteration:
                self._note("end of", slot)
                return
            self._take_in(batch, hold)

    def take_past_errors(self, slot, count):
        for _ in range(count):
            try:
                self.take(slot, 1, False)
            except Exception as error:
                self._note("raised", *_see_error(error))
                traceback.clear_frames(error.__traceback__)

    def _take_in(self, batch, hold):
        self._note("batch", _see(batch, self.with_pixels), *_see_generators(self.generator))
        if hold:
            self.held.append([batch, _checksum(batch)])

    def drop(self, slot):
        self.iterators.pop(slot, None)

    def loop(self, count, hold):
        """Runs a for loop, and leaves it after `count` batches."""
        for number, batch in enumerate(self.loader):
            self._take_in(batch, hold)
            if number + 1 == min(count, _LONGEST_LOOP):
                break

    def keep_list(self):
        for batch in list(itertools.islice(self.loader, _LONGEST_LOOP)):
            self._take_in(batch, True)

    def zipped(self, count):
        for one, two in itertools.islice(zip(self.loader, self.loader), count):
            self._take_in(one, False)
            self._take_in(two, True)

    def nested(self, count):
        for one in itertools.islice(self.loader, 2):
            for two in itertools.islice(self.loader, count):
                self._take_in(two, False)
            self._take_in(one, False)

    def length(self):
        self._note("length", len(self.loader))

    def iterator_length(self, slot):
        if slot in self.iterators:
            self._note("length", len(self.iterators[slot]))

    def pickle_iterator(self, slot):
        if slot in self.iterators:
            pickle.dumps(self.iterators[slot])

    # -- between batches

    def seed(self, value):
        torch.manual_seed(value)

    def draw(self):
        self._note("drawn", torch.rand(2).tolist(), random.random(), np.random.rand())
        if self.generator is not None:
            self._note("drawn", torch.rand(1, generator=self.generator).tolist())

    def seed_generator(self, value):
        if self.generator is not None:
            self.generator.manual_seed(value)

    def set_epoch(self, epoch, on_loader):
        if self.is_ours and on_loader:
            self.loader.set_epoch(epoch)
            return
        inner = getattr(self.loader.batch_sampler, "sampler", None)
        samplers = [self.loader.sampler, self.loader.batch_sampler, inner]
        for number, sampler in enumerate(samplers):
            is_first = all(sampler is not earlier for earlier in samplers[:number])
            if is_first and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def set_attribute(self, name, value):
        if name == "generator" and value is not None:
            self.generator = value = torch.Generator().manual_seed(value)
        setattr(self.loader, name, value)
        self._see_loader()

    def set_transform(self, name):
        """Replaces the transform for later epochs. Running iterators are dropped first: without
        workers, torch's would continue with the new transform."""
        self.iterators.clear()
        for folder in _folders(self.loader.dataset):
            folder.transform = self._transform(name)
        self.with_pixels = not is_random(name)

    def drop_sample(self):
        """Shortens the dataset between epochs."""
        self.iterators.clear()
        for folder in _folders(self.loader.dataset):
            folder.samples.pop()

    def copy_loader(self, how):
        ways = {"pickle": lambda one: pickle.loads(pickle.dumps(one)), "copy": copy.copy,
                "deepcopy": copy.deepcopy}
        self.loader = ways[how](self.loader)
        self.generator = self.loader.generator
        self._see_loader()

    def change_held(self):
        if self.held:
            batch, _ = self.held[-1]
            images = batch["images"] if isinstance(batch, dict) else batch[0]
            if isinstance(images, torch.Tensor):
                images.add_(1)
                self.held[-1][1] = _checksum(batch)

    def _end(self):
        self._note("held", [_checksum(batch) == checksum for batch, checksum in self.held])
        self.iterators.clear()
        self.loader = None


def transcripts(script, root):
    """The transcripts of torch's world and of feedmill's."""
    return tuple(_Run(script, root, is_ours).run() for is_ours in (False, True))


def first_difference(script, theirs, ours, n_before=12):
    """A description of the difference; "" if the transcripts are equal."""
    for number, (one, two) in enumerate(itertools.zip_longest(theirs, ours)):
        if one != two:
            before = [f"  {event}" for event in theirs[max(0, number - n_before) : number]]
            return "\n".join([f"event {number} differs", *before, f"torch {one}", f"ours  {two}",
                              "in the script", str(script)])
    wrong = [event for event in ours if event[0] == "held" and not all(event[1])]
    return f"a batch that was held has changed\n{script}" if wrong else ""
