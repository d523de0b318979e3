"""What is known of the samples of webdataset's pipelines behind each stage that changes them: which
of their fields is the image, which transforms it passed, and how the samples are arranged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from feedmill.planner.arrangements import IMAGE, PAIR, VALUE, OpenFields
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.sample_functions import Mapped, is_identity, is_pure, mapped_by, selects
from feedmill.planner.streams import Open, as_it_is
from feedmill.planner.webdataset_handlers import check_handler
from feedmill.planner.webdataset_known import is_of
from feedmill.planner.webdataset_stages import (
    argument_of,
    check_arguments,
    is_filter,
    stage_name,
    unknown,
)

# The functions of stages that change samples.
CHANGES = ("_map", "_rename", "_map_dict", "_to_tuple", "_map_tuple")
# Extensions that webdataset decodes to values of plain types.
_PLAIN = frozenset({
    "cls", "cls2", "id", "index", "inx", "json", "jsn", "text", "transcript", "txt",
})


class _Field(NamedTuple):
    """A field of the samples.

    Attributes:
        names: those of the member that it is read from, of which the first one that a sample has is
            used.
        is_image: it is an image, else something else.
        is_changed: a stage has changed it.
        is_encoded: it is an image that was not decoded.
    """

    names: tuple[str, ...]
    is_image: bool
    is_changed: bool = False
    is_encoded: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is known to be a text, a number, bytes, or what JSON makes."""
        return bool(self.names) and all(
            one.startswith("__") or one.rpartition(".")[2] in _PLAIN for one in self.names
        )


class Changing(NamedTuple):
    """A stage that changes samples one by one.

    Attributes:
        places: of its arguments that are the image's transforms, by number or name.
        mapped: of a stage that calls a function of the script.
    """

    stage: Any
    places: tuple[int | str, ...] = ()
    mapped: Mapped | None = None

    @property
    def transforms(self) -> bool:
        """Whether it calls transforms of the image."""
        return bool(self.places) or (self.mapped is not None and bool(self.mapped.names))

    def with_transforms(self, first: Any, others: Any) -> Any:
        """The stage with other functions in the place of the image's transforms."""
        if not self.transforms:
            return self.stage
        if self.mapped is not None:
            return type(self.stage)(self.stage.f, self.mapped.with_transforms(first, others))
        args, kw = list(self.stage.args), dict(self.stage.kw)
        for place in self.places:
            if isinstance(place, int):
                args[place] = first
            else:
                kw[place] = first
            first = others
        return type(self.stage)(self.stage.f, *args, **kw)

    def without_images(self, fields: Sequence[str]) -> Any:
        """The stage for samples that have a Picture in the place of their image.

        Args:
            fields: the image's keys in samples that are not decoded.
        """
        plain = self.with_transforms(as_it_is, as_it_is)
        if self.mapped is None or not self.mapped.opening:
            return plain
        opens = self.mapped.with_transforms(as_it_is, as_it_is)
        return type(self.stage)(
            self.stage.f, Open(self.mapped.without_opening(), opens, fields)
        )


class SampleFields:
    """What is known of the fields of the samples between two stages.

    Args:
        extensions: of members that are images.
        are_encoded: nothing decodes the samples, but the function of the first stage.

    Attributes:
        transforms: of the image, in order.
    """

    def __init__(self, extensions: frozenset[str], are_encoded: bool = False) -> None:
        self._extensions = extensions
        self._are_encoded = are_encoded
        # Of the image that a function of the script opened.
        self._opened: tuple[str, ...] = ()
        # Of dicts: fields that a stage made or changed, by name; names that samples don't have any
        # more; and whether there may be others.
        self._made: dict[str, _Field] = {}
        self._gone: set[str] = set()
        self._are_others = True
        self._tuple: list[_Field] | None = None
        self.transforms: list[Any] = []

    @property
    def image(self) -> _Field:
        if self._tuple is None:
            return self._made[self._image_key()]
        return next(one for one in self._tuple if one.is_image)

    def _image_key(self) -> str:
        """The key of the one transformed image in samples that are dicts."""
        return next(name for name, one in self._made.items() if one.is_changed)

    def arrangement(self) -> Any:
        if self._tuple is None:
            return OpenFields(self._image_key())
        parts = tuple(IMAGE if one.is_image else VALUE for one in self._tuple or ())
        return PAIR if parts == (IMAGE, VALUE) else parts

    def change(self, stage: Any) -> Changing:
        """Notes what a stage does. UnsupportedError if that is not supported."""
        check_handler(stage)
        changing = self._noted(stage)
        self._check_changed(stage)
        return changing

    def _noted(self, stage: Any) -> Changing:
        if is_filter(stage, "_map_tuple"):
            return self._map_tuple(stage)
        if is_filter(stage, "_map"):
            return self._map(stage)
        if self._tuple is not None:
            raise unknown(stage)
        if is_filter(stage, "_map_dict"):
            return self._map_dict(stage)
        if is_filter(stage, "_rename"):
            self._rename(stage)
        else:
            self._to_tuple(stage)
        return Changing(stage)

    def check_select(self, stage: Any) -> None:
        """Raises UnsupportedError if a stage may select samples by their image, before they are
        decoded."""
        check_arguments(stage, {"predicate"}, 1)
        if not selects(argument_of(stage, 0, "predicate", None), self._part):
            raise unknown(stage)

    def finish(self) -> None:
        """Raises UnsupportedError if the samples are no tuples or dicts of one image and other
        values."""
        if self._tuple is None:
            self._finish_dict()
        elif [one.is_image for one in self._tuple].count(True) != 1:
            raise UnsupportedError(
                "natively, to_tuple() of a pipeline of webdataset must take one image"
            )

    def _finish_dict(self) -> None:
        if not any(one.is_changed for one in self._made.values()):
            raise UnsupportedError(
                "natively, a pipeline of webdataset must transform an image of its samples, or "
                "have a to_tuple()"
            )
        image = self._image_key()
        names = {*self._made[image].names}
        untouched = {name for name in names if self._are_others and name not in self._gone}
        others = [one for name, one in self._made.items() if one.is_image and name != image]
        if untouched - self._made.keys() or any(names & {*one.names} for one in others):
            raise UnsupportedError(
                "natively, the samples of a pipeline of webdataset can't have the image beside "
                "what is made of it"
            )

    def _check_changed(self, stage: Any) -> None:
        """Raises UnsupportedError if the samples behind a stage have not one image that passed
        through all transforms."""
        fields = self._made.values() if self._tuple is None else self._tuple
        if self.transforms and sum(one.is_changed for one in fields) != 1:
            raise UnsupportedError(
                f"{stage_name(stage)} of a pipeline of webdataset leaves out an image that is "
                "transformed, or has it twice"
            )

    def _field(self, names: Any) -> _Field:
        """The field that webdataset's getfirst() finds by a text or list of names."""
        names = names.split(";") if type(names) is str else names
        if type(names) not in (list, tuple) or not all(type(one) is str for one in names):
            raise UnsupportedError(f"the fields {names!r} of a pipeline are not names")
        if len(names) == 1 and names[0] in self._made:
            return self._made[names[0]]
        left = tuple(one for one in names if one not in self._gone)
        if any(one in self._made for one in names) or not left or not self._are_others:
            raise UnsupportedError(f"which fields of a sample are {names!r} is not known")
        if any(one in self._opened for one in left):
            raise UnsupportedError(
                "a pipeline of webdataset uses an image again that it has opened"
            )
        are_images = {self.is_image(one) for one in left}
        if len(are_images) > 1:
            raise UnsupportedError(f"the fields {names!r} may be images or something else")
        is_image = are_images.pop()
        return _Field(left, is_image, is_encoded=is_image and self._are_encoded)

    def is_image(self, name: str) -> bool:
        """Whether webdataset decodes a field as an image."""
        return not name.startswith("__") and name.rpartition(".")[2].lower() in self._extensions

    def _changed(self, field: _Field, function: Any) -> tuple[_Field, bool]:
        """A field that a function changes; and whether that is a transform of the image."""
        if function is None or _keeps(function):
            return field, False
        if field.is_image:
            return self._transformed(field, function), True
        if not is_pure(function, field.is_plain):
            raise UnsupportedError(
                f"the function {getattr(function, '__qualname__', function)!s:.100} of the field "
                f"{';'.join(field.names)!r} is not understood"
            )
        return field, False

    def _transformed(self, field: _Field, *functions: Any) -> _Field:
        """An image behind transforms."""
        if self.transforms and functions and not field.is_changed:
            raise UnsupportedError(
                "several images of a sample of a pipeline of webdataset are transformed"
            )
        self.transforms += functions
        is_changed = field.is_changed or bool(functions)
        return field._replace(is_changed=is_changed, is_encoded=False)

    def _rename(self, stage: Any) -> None:
        check_arguments(stage, None, 0)
        keeps = stage.kw.get("keep", True)
        kw = {name: one for name, one in stage.kw.items() if name not in ("keep", "handler")}
        made = {name: self._field(one) for name, one in kw.items()}
        if not keeps:
            self._made, self._are_others = made, False
            return
        for one in kw.values():
            for name in one.split(";") if type(one) is str else one:
                self._gone.add(name)
                self._made.pop(name, None)
        self._made.update(made)

    def _map_dict(self, stage: Any) -> Changing:
        check_arguments(stage, None, 0)
        places = []
        for name, function in stage.kw.items():
            if name == "handler":
                continue
            self._made[name], is_transform = self._changed(self._field([name]), function)
            if is_transform:
                places.append(name)
        return Changing(stage, tuple(places))

    def _to_tuple(self, stage: Any) -> None:
        check_arguments(stage, {"handler"}, None)
        args = stage.args
        if len(args) == 1 and type(args[0]) is str and " " in args[0]:
            args = args[0].split()
        self._tuple = [self._field(one) for one in args]
        # Of all images, one alone is transformed natively.
        n_changed = sum(one.is_changed for one in self._made.values())
        if n_changed > sum(one.is_changed for one in self._tuple):
            raise UnsupportedError("an image is transformed that to_tuple() does not take")

    def _map(self, stage: Any) -> Changing:
        """Notes a function of the script that makes a tuple or a dict of a sample."""
        check_arguments(stage, {"f", "handler"}, 1)
        function = argument_of(stage, 0, "f", None)
        mapped = mapped_by(function, self._part)
        if mapped is None or (self._are_encoded and not mapped.opening):
            raise unknown(stage)
        if self._are_encoded:
            self._are_encoded, self._extensions = False, frozenset()  # others stay as they are
            self._opened = next(one.names for one in mapped.parts if one is not None)
        parts = [one or _Field((), False) for one in mapped.parts]
        if mapped.image is not None:
            parts[mapped.image] = self._transformed(parts[mapped.image], *mapped.transforms)
        if mapped.keys is None:
            self._tuple = parts
        else:
            self._make(dict(zip(mapped.keys, parts)), mapped)
        return Changing(stage, (), mapped)

    def _make(self, made: dict[str, _Field], mapped: Mapped) -> None:
        """Notes a dict that a function of the script makes of a sample."""
        if mapped.keeps_rest:
            kept = {name: one for name, one in self._made.items() if name not in mapped.gone}
            self._made = {**kept, **made}
            self._gone |= mapped.gone
        else:
            self._made, self._are_others = made, False
        if self._tuple is None:
            self._made["__key__"] = _Field(("__key__",), False)  # as webdataset's map() does
        self._tuple = None

    def _part(self, key: Any) -> Any:
        """The field at a key of the sample, for mapped_by(); None: it is not known. Without a key
        the number of its parts, or None if it is a dict."""
        if key is None:
            return None if self._tuple is None else len(self._tuple)
        if self._tuple is None:
            return self._field([key]) if type(key) is str else None
        is_place = type(key) is int and 0 <= key < len(self._tuple)
        return self._tuple[key] if is_place else None

    def _map_tuple(self, stage: Any) -> Changing:
        check_arguments(stage, {"handler"}, None)
        if self._tuple is None:
            raise unknown(stage)
        places = []
        for place, function in enumerate(stage.args[: len(self._tuple)]):
            self._tuple[place], is_transform = self._changed(self._tuple[place], function)
            if is_transform:
                places.append(place)
        return Changing(stage, tuple(places))


def _keeps(function: Any) -> bool:
    """Whether a function returns its argument."""
    is_own = any(is_of(function, module, "identity") for module in ("filters", "utils"))
    return is_own or is_identity(function)
