"""Datasets of the user's own, and several of torchvision's, whose ``__getitem__`` only looks up a
file, several files, or a sample of another dataset, opens it as an RGB image, applies transforms,
and returns the image with other values.

The source of ``__getitem__`` is evaluated as ``evaluating`` does, with an unknown index. What it
looks up in lists and arrays by the index becomes functions of the index; so does what Python's own
functions and methods, those of ``looked_up``, make of it. Nothing else of the user's is called.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from feedmill.planner import tables
from feedmill.planner.arrangements import IMAGE, PAIR, VALUE, Fields, Tree
from feedmill.planner.attributes import NotUnderstood, attributes_of, of_class
from feedmill.planner.computed_values import Sample
from feedmill.planner.drawn_lookups import drawn_by, generator_state, looking_up_with, own_error
from feedmill.planner.evaluating import is_own
from feedmill.planner.files import open_as_is
from feedmill.planner.image_calls import Convert, ImageValue
from feedmill.planner.item_evaluating import (
    DictSample,
    ItemEvaluator,
    parts_of,
    with_elements,
)
from feedmill.planner.items import check_classes
from feedmill.planner.looked_up import Value, the_object
from feedmill.planner.random_states import global_states, set_global_states
from feedmill.planner.view_calls import MadeList

_SIZED = (list, tuple, np.ndarray)


class OwnDataset:
    """What the ``__getitem__`` of a dataset does.

    Attributes:
        inner: the dataset of which it takes a sample; None: it opens a file.
        inner_index: the index there.
        load: path -> PIL image, or a TensorLoader, if it opens a file.
        table: of Hugging Face, of which it takes rows; None: none.
        calls: the transforms that it applies, in order.
        views: those of each image, if it makes several.
        n_files: that it opens for a sample. If these are several, each view is made of its own.
        draws_files: it draws random numbers when a sample is looked up, see drawn_lookups.
        retries: it may catch errors and go on, see planner.retries.
        takes_pil: it was evaluated for a PIL image in the inner dataset's sample.
        arrangement: as BaseDataset's.
    """

    def __init__(self, dataset: Any, evaluator: ItemEvaluator, result: Any) -> None:
        self._dataset = dataset
        self.inner = evaluator.inner
        self.inner_index = evaluator.inner_index
        self.load = evaluator.load
        self.table = evaluator.table
        self.calls = evaluator.calls
        self.views = evaluator.views if len(evaluator.views) > 1 else []
        self._views_of_calls = evaluator.views_of_calls
        self.takes_pil = evaluator.takes_pil
        parts = parts_of(result)
        self.arrangement = _arrangement(result)
        self._paths = evaluator.paths
        if len(self._paths) > 1:
            self._paths = [evaluator.paths[number] for number in evaluator.files_of_views]
        self.n_files = len(self._paths) or 1
        self._rest = [one for one in parts if type(one) is Value]
        self._drawings = evaluator.drawings
        self.draws_files = bool(evaluator.drawings)
        self.retries = evaluator.retries
        self._find_inner: Any = None
        self._inner_base: Any = None
        used = [*self._paths, self.inner_index, *self._rest]
        needed = [one for value in used if value is not None for one in value.all()]
        # What is looked up, but not returned, may raise an error, too.
        is_needed = set(map(id, needed))
        self._unused = [one for one in evaluator.values if id(one) not in is_needed]
        containers = (one.container for one in (*needed, *self._unused))
        self.determined_by = tuple(one for one in containers if one is not None)
        if self.table is not None:
            self.determined_by += self.table.determined_by
        made = [None if one is None else one.text() for one in used]
        self.determined_by += (the_object(f"{self.arrangement!r}: {made}"),)

    def some_paths(self, probed: Callable[[int], slice]) -> list[str]:
        """The paths of the files of some samples, as far as they can be looked up.

        Args:
            probed: number of samples -> which of them.
        """
        sized = [one for one in self.determined_by if type(one) in _SIZED]
        lengths = [len(one) for one in sized if getattr(one, "ndim", 1)]
        lengths += tables.lengths(self.determined_by)
        paths: list[str] = []
        for index in range(min(lengths, default=0))[probed(min(lengths, default=0))]:
            try:
                with looking_up_with(random.Random(index)):
                    drawn = drawn_by(self._drawings)
                paths += [str(path.of(index, drawn)) for path in self._paths]
            except Exception:  # which find() raises, too
                break
        return paths

    def set_inner(self, node: Any) -> None:
        """Sets the node of the inner dataset."""

        def find(index: Any) -> Any:
            base_dataset, at = node.locate(index)
            return base_dataset.find(at)

        self._find_inner = find
        self._inner_base = node.base_datasets[0]
        plan = self._inner_base.plan
        self.retries |= plan is not None and plan.retries
        self.determined_by = (*self.determined_by, *node.identity())

    def find(self, index: Any) -> tuple[Any, Any]:
        """(path, target) of an index, with the parts other than the image as BaseDataset's find()
        returns them; of several files their paths. Raises what the dataset raises."""
        before: Any = None
        found: Any = None, None
        if self._drawings:
            before, found = generator_state(), drawn_by(self._drawings)
        try:
            if self.inner_index is not None:
                found = self._find_inner(self.inner_index.of(index, None))
            paths = [one.of(index, found) for one in self._paths] or [found[0]]
            for one in self._unused:
                one.of(index, found)
            rest = tuple(one.of(index, found) for one in self._rest)
        except Exception:
            if self.retries:
                pass  # the dataset itself makes the batch
            elif self._drawings:
                own_error(self._dataset, index, before)
            else:
                _raise_own(self._dataset, index)
            raise
        path = paths[0] if len(paths) == 1 else paths
        return path, rest[0] if self.arrangement == PAIR else rest

    def with_transform(self, transform: Any, copy_with: Any) -> Any:
        """A copy of the dataset that calls another transform; see BaseDataset."""
        if self.calls:
            return self._copy(transform, self.inner)
        return self._copy(None, self._inner_with(self.inner, transform, copy_with))

    def _inner_with(self, dataset: Any, transform: Any, copy_with: Any) -> Any:
        base_dataset = self._inner_base
        if dataset is base_dataset.dataset:
            if base_dataset.with_transform is not None:
                return base_dataset.with_transform(transform, copy_with)
            return copy_with(dataset, transform)
        copied = copy.copy(dataset)  # a Subset
        copied.dataset = self._inner_with(dataset.dataset, transform, copy_with)
        return copied

    def _copy(self, transform: Any, inner: Any) -> Any:
        transforms = [one for one in self.calls if type(one) is not Convert]
        others: dict[int, Any] = dict.fromkeys(map(id, transforms[1:]), _same)
        others.update((id(one), transform) for one in transforms[:1])
        if self.views:
            in_turn = _InTurn(transform, self.calls, self._views_of_calls)
            others = {id(one): partial(in_turn.call, one) for one in transforms}
        if self.inner is not None:
            others[id(self.inner)] = inner
        return _with_others(self._dataset, others)


def _raise_own(dataset: Any, index: Any) -> None:
    """Raises what a dataset raises for an index, if anything. What its transforms draw meanwhile is
    forgotten: samples are looked up before it is their turn to draw."""
    before = global_states()
    try:
        dataset[index]
    finally:
        set_global_states(before)


def _same(image: Any) -> Any:
    return image


class _InTurn:
    """Stands for the transforms of a dataset that makes several images, for one sample.

    Args:
        transform: as BaseDataset's with_transform() takes it; makes an image at the first call for
            it. Later calls return it as it is.
        calls: the calls that the dataset makes, in order.
        views: the number of the image that each call makes.
    """

    def __init__(self, transform: Any, calls: list[Any], views: list[int]) -> None:
        self._transform = transform
        pairs = zip(calls, views, strict=True)
        self._calls = [(call, view) for call, view in pairs if type(call) is not Convert]
        self._n_calls = 0

    def call(self, called: Any, image: Any) -> Any:
        """A call in the place of a transform.

        Args:
            called: the transform.
        """
        at = self._n_calls
        self._n_calls += 1
        if at >= len(self._calls) or self._calls[at][0] is not called:
            # The dataset was changed. The image of another call differs.
            at = next(n for n, (one, _) in enumerate(self._calls) if one is called)
        view = self._calls[at][1]
        if view in (other for _, other in self._calls[:at]):
            return image
        return self._transform(image, view=view)


def _arrangement(result: Any) -> Any:
    """The arrangement, as BaseDataset's, of what a ``__getitem__`` returns."""
    parts = list(result.values()) if type(result) is DictSample else result
    if type(result) in (Sample, DictSample):
        kinds = set(map(type, parts))
        n_images = sum(type(one) is ImageValue for one in parts)
        if kinds <= {ImageValue, Value} and n_images == 1:
            names = tuple(IMAGE if type(one) is ImageValue else VALUE for one in parts)
            if type(result) is DictSample:
                return Fields(tuple(result), names)
            return PAIR if len(names) == 2 and names[0] == IMAGE else names
    return IMAGE if type(result) is ImageValue else _tree(result)


def _tree(result: Any) -> Any:
    """A Tree, or a part of one."""
    if type(result) is DictSample:
        return Tree(dict, tuple(map(_tree, result.values())), tuple(result))
    if type(result) is Sample or type(result) is MadeList:
        return Tree(tuple if type(result) is Sample else list, tuple(map(_tree, result)))
    return result.view if type(result) is ImageValue else VALUE


def is_readable(dataset: Any) -> bool:
    """Whether a dataset is the user's own, or one of torchvision's."""
    module = getattr(type(dataset), "__module__", None)
    return is_own(dataset) or (type(module) is str and module.startswith("torchvision.datasets."))


def read_own(dataset: Any) -> OwnDataset:
    """What a dataset's ``__getitem__`` does. Calls nothing of the user's.

    Raises:
        NotUnderstood: it does something else, or is not proved to do only this.
    """
    kind = type(dataset)
    if not is_readable(dataset):
        raise NotUnderstood("it is a library's")
    if isinstance(dataset, IterableDataset):
        raise NotUnderstood("it is an IterableDataset")
    check_classes(kind)
    own = attributes_of(dataset)
    if any(name.startswith("__") for name in own) or hasattr(kind, "__getitems__"):
        raise NotUnderstood("it has methods of its own, or __getitems__")
    method = of_class(kind, "__getitem__")
    if type(method) is not FunctionType:
        raise NotUnderstood("its __getitem__ has no source in Python")
    evaluator = ItemEvaluator(method)
    found = OwnDataset(dataset, evaluator, evaluator.sample(dataset))
    evaluator.check_order()
    if evaluator.follows_functions or evaluator.calls_elements or found.views:
        _check_copies(dataset, method, evaluator)
    return found


def read_loader(loader: Any) -> Any:
    """How a function loads the file of the path that it is given, as OwnDataset.load. Calls nothing
    of the user's.

    Raises:
        NotUnderstood: it does something else, or is not proved to do only this.
    """
    from PIL import Image

    if loader is Image.open:
        return open_as_is
    if type(loader) is not FunctionType:
        raise NotUnderstood("it is no function with source in Python")
    return ItemEvaluator(loader).loader()


def _check_copies(dataset: Any, method: FunctionType, evaluator: ItemEvaluator) -> None:
    """Checks that a copy of the dataset with other transforms, or another inner dataset, uses them.
    A function may still reach the first ones, as a bound method does that is an attribute."""
    others = {id(one): object() for one in evaluator.calls if type(one) is not Convert}
    try:
        if evaluator.inner is not None:
            others[id(evaluator.inner)] = _with_others(evaluator.inner, {})
        again = ItemEvaluator(method)
        again.sample(_with_others(dataset, others))
    except TypeError as error:  # objects that can't be made without their own __new__
        raise NotUnderstood(f"it can't be copied: {error}") from None
    calls, calls_of_copy = (
        [one for one in each.calls if type(one) is not Convert] for each in (evaluator, again)
    )
    expected = [others.get(id(one)) for one in (*calls, evaluator.inner)]
    found = [*calls_of_copy, again.inner]
    if len(found) != len(expected) or not all(map(operator.is_, found, expected)):
        raise NotUnderstood("a function that it calls does not get the dataset as an argument")


def _with_others(instance: Any, others: dict[int, Any]) -> Any:
    """A copy of an object with other attributes in the place of some.

    Args:
        others: by the id() of the present value, also for elements of lists and dicts.
    """
    copied = object.__new__(type(instance))
    own = attributes_of(instance).items()
    vars(copied).update((name, others.get(id(value), value)) for name, value in own)
    vars(copied).update(with_elements(instance, others))
    return copied
