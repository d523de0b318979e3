"""Reads pipelines of webdataset: stages that list tar files, split and shuffle them, read samples,
shuffle and decode these, transform their image, arrange them as tuples, and collect batches.

Each stage is one of webdataset's own, of a known version (``webdataset_known``); functions of the
script may only be an image's transforms, and functions of other fields that are proved to compute
their result from their argument alone.
"""

from __future__ import annotations

from os.path import isfile
from typing import Any, NamedTuple
from urllib.parse import urlparse

from feedmill.planner import files
from feedmill.planner.arrangements import IMAGE, PAIR, VALUE
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.sample_functions import Mapped, is_identity, is_pure, mapped_by
from feedmill.planner.streams import Collect, Decode, Expander, Stages, StreamSource, as_it_is
from feedmill.planner.timm_tars import check_tarfile
from feedmill.planner.transforms import read_transforms
from feedmill.planner.untouched import shadowing_attributes, type_name
from feedmill.planner.webdataset_known import check, found, is_of

_N_TRIED_FILES = 4
_PIL = ("pil", "pilrgb")


def is_pipeline(dataset: Any) -> bool:
    """Whether a dataset is a pipeline of webdataset."""
    pipeline = found("pipeline", "DataPipeline")
    return isinstance(pipeline, type) and pipeline in type(dataset).__mro__


def read_pipeline(dataset: Any) -> StreamSource:
    """The samples of a pipeline.

    Draws no random number and changes nothing.

    Raises:
        UnsupportedError: it can't be run natively.
    """
    _check_class(dataset)
    check()
    check_tarfile()
    for reason in files.reasons_against_opening():
        raise UnsupportedError(reason)
    reader = _Reader(vars(dataset)["pipeline"])
    reader.read()
    read = read_transforms(reader.fields.transforms)
    if read.reasons:
        raise UnsupportedError(read.reasons[0])
    if read.views:
        raise UnsupportedError("the transform makes several images of a sample")
    stateful = tuple(filter(None, map(found, ("filters", "shardlists"),
                                      ("detshuffle", "ResampledShards"))))
    return StreamSource(dataset, reader.stages(), read, reader.fields.arrangement(), stateful)


def _check_class(dataset: Any) -> None:
    kind = type(dataset)
    made = {"__module__", "__doc__", "__parameters__", "__abstractmethods__", "_abc_impl"}
    if kind.__name__.endswith("_Length") and vars(kind).keys() - made == {"__len__"}:
        kind = kind.__mro__[1]  # made by with_length(); the length has no effect
    known = (("compat", "WebDataset"), ("compat", "FluidWrapper"), ("pipeline", "DataPipeline"))
    if not any(is_of(kind, *one) for one in known):
        raise UnsupportedError(f"{type_name(kind)} is not one of webdataset's own pipelines")
    base = found("pipeline", "DataPipeline")
    for name in ("__iter__", "iterator", "iterator1", "invoke"):
        if getattr(type(dataset), name) is not vars(base)[name]:
            raise UnsupportedError(f"{type_name(kind)}.{name} was replaced")
    gets: Any = object.__getattribute__
    if type(dataset).__getattribute__ is not gets:
        raise UnsupportedError(f"{type_name(kind)}.__getattribute__ was replaced")
    if shadowing_attributes(dataset) or type(vars(dataset).get("pipeline")) is not list:
        raise UnsupportedError("the pipeline has attributes that hide those of its class")


def _unknown(stage: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the stage {_stage_name(stage)} of a pipeline of webdataset is not supported natively"
    )


def _stage_name(stage: Any) -> str:
    function = getattr(stage, "f", stage)
    name = getattr(function, "__qualname__", None)
    return str(name) if isinstance(name, str) else type_name(type(stage))


class _Reader:
    """Reads the stages of a pipeline in order.

    Attributes:
        fields: the samples' fields behind the decoder.
    """

    def __init__(self, stages: list[Any]) -> None:
        self._left = list(stages)
        self._shadows: list[Any] = []
        self._urls: list[str] = []
        self._opener: Any = None
        self._expander: Any = None
        self._grouper: Any = None
        self._decode: Any = None
        self._decoder: Any = None
        self._tail: list[_Changing] = []
        self._batched: Collect | None = None
        self._collate: Any = None
        self.fields: Any = None

    def read(self) -> None:
        self._read_urls()
        self._skip_orders(("shardlists", "split_by_node", "single_node_only", "split_by_worker"))
        self._read_files()
        self._skip_orders(("compat", "check_empty"))
        self._read_decoder()
        while self._left and _is_filter(self._left[0], *_CHANGES):
            self._tail.append(self.fields.change(self._left.pop(0)))
        if self._left and _is_filter(self._left[0], "_batched"):
            self._read_batched(self._left.pop(0))
        if self._left:
            raise _unknown(self._left[0])
        self.fields.finish()

    def _read_urls(self) -> None:
        source = self._next()
        is_known = is_of(type(source), "shardlists", "SimpleShardList", "ResampledShards")
        if not is_known or shadowing_attributes(source):
            raise _unknown(source)
        if is_of(type(source), "shardlists", "ResampledShards") and not is_of(
            source.worker_seed, "utils", "pytorch_worker_seed"
        ):
            raise UnsupportedError("natively, ResampledShards must have its own worker_seed")
        if type(source.urls) is not list or not source.urls:
            raise UnsupportedError("natively, the URLs of a pipeline must be a list")
        for url in source.urls:
            # "-" is the standard input.
            is_text = type(url) is str and url != "-"
            if not is_text or urlparse(url).scheme not in ("", "file"):
                raise UnsupportedError(
                    f"a pipeline of webdataset is supported natively for local tar files, and "
                    f"{str(url)[:100]!r} is none"
                )
        self._urls = source.urls
        self._shadows.append(source)

    def _next(self) -> Any:
        if not self._left:
            raise UnsupportedError("the pipeline of webdataset reads no samples")
        return self._left.pop(0)

    def _skip_orders(self, plain: tuple[str, ...]) -> None:
        """Reads stages that leave out or order what they get, or check it.

        Args:
            plain: a module of webdataset, and its functions that are such stages.
        """
        while self._left:
            stage = self._left[0]
            is_shuffle = _is_filter(stage, "_shuffle")
            if is_shuffle and _argument(stage, 2, "rng", None) is not None:
                raise UnsupportedError("natively, shuffle() can't have rng=; pass seed=")
            is_order = is_shuffle or is_of(type(stage), "filters", "detshuffle")
            if not is_order and not is_of(stage, *plain):
                return
            if not is_shuffle and not is_of(stage, *plain) and shadowing_attributes(stage):
                raise _unknown(stage)
            self._shadows.append(self._left.pop(0))

    def _read_files(self) -> None:
        self._n_of_urls = len(self._shadows)
        if self._left and _is_filter(self._left[0], "tarfile_samples", module="tariterators"):
            self._left[:1] = _as_stages(self._left[0])
        opener, expander, grouper = (self._next() for _ in range(3))
        if _is_filter(opener, "url_opener", module="tariterators"):
            _check_arguments(opener, {"handler"}, 0)
            _check_handler(opener)
        elif not is_of(type(opener), "cache", "StreamingOpen") or not _reraises(opener.handler) or (
            shadowing_attributes(opener)
        ):
            raise _unknown(opener)
        if not _is_filter(expander, "tar_file_expander", module="tariterators"):
            raise _unknown(expander)
        if not _is_filter(grouper, "group_by_keys", module="tariterators"):
            raise _unknown(grouper)
        for stage in (expander, grouper):
            _check_arguments(stage, {"handler", "select_files", "rename_files"}, 0)
            _check_handler(stage)
        if any(expander.kw.get(name) is not None for name in ("select_files", "rename_files")):
            raise UnsupportedError("select_files= and rename_files= are not supported natively")
        self._opener, self._expander, self._grouper = opener, expander, grouper

    def _read_decoder(self) -> None:
        stage = self._next()
        if not _is_filter(stage, "_map", "_decode"):
            raise _unknown(stage)
        _check_handler(stage)
        if is_of(stage.f, "filters", "_decode"):
            function = _decoder_of(stage)
        else:
            _check_arguments(stage, {"f", "handler"}, 1)
            function = _argument(stage, 0, "f", None)
        if not is_of(type(function), "autodecode", "Decoder"):
            raise _unknown(stage)
        handlers = [found("autodecode", name) for name in ("gzfilter", "basichandlers")]
        images = function.handlers[1:-1] if type(function.handlers) is list else ()
        if (
            len(images) != 1
            or not is_of(type(images[0]), "autodecode", "ImageHandler")
            or function.handlers[0] is not handlers[0]
            or function.handlers[-1] is not handlers[1]
            or function.only is not None
            or function.partial
        ):
            raise UnsupportedError(
                'natively, a pipeline of webdataset must decode by .decode("pil") alone'
            )
        if images[0].imagespec not in _PIL or shadowing_attributes(function):
            raise UnsupportedError(
                f"images that are decoded as {images[0].imagespec!r} are not supported natively; "
                'decode("pil")'
            )
        extensions = images[0].extensions
        if type(extensions) not in (set, frozenset, list, tuple):
            raise UnsupportedError("natively, an ImageHandler's extensions must be a set")
        self._decode, self._decoder = stage, function
        self.fields = _Fields(frozenset(extensions))

    def _read_batched(self, stage: Any) -> None:
        _check_arguments(stage, {"batchsize", "collation_fn", "partial"}, 3)
        size = _argument(stage, 0, "batchsize", 20)
        collate = _argument(stage, 1, "collation_fn", stage.f.__defaults__[1])
        if type(size) is not int or size < 1:
            raise UnsupportedError(f"a batch size of {size!r} is not supported natively")
        if not is_of(collate, "filters", "default_collation_fn"):
            raise UnsupportedError("natively, batched() must have webdataset's own collation_fn")
        self._batched = Collect(size, bool(_argument(stage, 2, "partial", True)))
        self._collate = collate

    def stages(self) -> Stages:
        names = self.fields.image.names
        kind = type(self._decode)
        decodes = kind(found("filters", "_map"), Decode(self._decoder, names))
        reads = [self._opener, Expander(self._expander, names), self._grouper]
        tail = [one.with_transforms(as_it_is, as_it_is) for one in self._tail]
        # To open a pipe would block.
        urls = [{"url": one} for one in self._urls[:_N_TRIED_FILES] if isfile(urlparse(one).path)]
        of_urls, of_samples = self._shadows[: self._n_of_urls], self._shadows[self._n_of_urls :]
        return Stages(
            shadows=[*of_urls, *reads, *of_samples, decodes, *tail],
            chain=self._chain,
            reads=[urls, *reads],
            changes=[decodes, *tail],
            is_image=self.fields.is_image,
            collects=self._batched,
            collate=self._collate,
        )

    def _chain(self, transform: Any) -> list[Any]:
        """See Stages."""
        stages = [self._decode]
        for one in self._tail:
            stages.append(one.stage if transform is None else (
                one.with_transforms(transform, as_it_is)
            ))
            if transform is not None and one.transforms:
                transform = as_it_is
        return stages


# ---- the fields of samples -----------------------------------------------------------------------


class _Field(NamedTuple):
    """A field of the samples.

    Attributes:
        names: those of the member that it is read from, of which the first one that a sample has is
            used.
        is_image: it is an image, else something else.
        is_changed: a stage has changed it.
    """

    names: tuple[str, ...]
    is_image: bool
    is_changed: bool = False


class _Changing(NamedTuple):
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


class _Fields:
    """What is known of the fields of the samples between two stages.

    Args:
        extensions: of members that are images.

    Attributes:
        transforms: of the image, in order.
    """

    def __init__(self, extensions: frozenset[str]) -> None:
        self._extensions = extensions
        # Of dicts: fields that a stage made or changed, by name; names that samples don't have any
        # more; and whether there may be others.
        self._made: dict[str, _Field] = {}
        self._gone: set[str] = set()
        self._are_others = True
        self._tuple: list[_Field] | None = None
        self.transforms: list[Any] = []

    @property
    def image(self) -> _Field:
        return next(one for one in self._tuple or () if one.is_image)

    def arrangement(self) -> tuple[str, ...]:
        parts = tuple(IMAGE if one.is_image else VALUE for one in self._tuple or ())
        return PAIR if parts == (IMAGE, VALUE) else parts

    def change(self, stage: Any) -> _Changing:
        """Notes what a stage does. UnsupportedError if that is not supported."""
        _check_handler(stage)
        if _is_filter(stage, "_map_tuple"):
            return self._map_tuple(stage)
        if _is_filter(stage, "_map"):
            return self._map(stage)
        if self._tuple is not None:
            raise _unknown(stage)
        if _is_filter(stage, "_map_dict"):
            return self._map_dict(stage)
        if _is_filter(stage, "_rename"):
            self._rename(stage)
        else:
            self._to_tuple(stage)
        return _Changing(stage)

    def finish(self) -> None:
        """Raises UnsupportedError if the samples are no tuples of one image and other values."""
        if self._tuple is None:
            raise UnsupportedError("natively, a pipeline of webdataset must have a to_tuple()")
        if [one.is_image for one in self._tuple].count(True) != 1:
            raise UnsupportedError(
                "natively, to_tuple() of a pipeline of webdataset must take one image"
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
        are_images = {self.is_image(one) for one in left}
        if len(are_images) > 1:
            raise UnsupportedError(f"the fields {names!r} may be images or something else")
        return _Field(left, are_images.pop())

    def is_image(self, name: str) -> bool:
        """Whether webdataset decodes a field as an image."""
        return not name.startswith("__") and name.rpartition(".")[2].lower() in self._extensions

    def _changed(self, field: _Field, function: Any) -> tuple[_Field, bool]:
        """A field that a function changes; and whether that is a transform of the image."""
        if function is None or _keeps(function):
            return field, False
        if field.is_image:
            self.transforms.append(function)
            return field._replace(is_changed=True), True
        if not is_pure(function):
            raise UnsupportedError(
                f"the function {getattr(function, '__qualname__', function)!s:.100} of the field "
                f"{';'.join(field.names)!r} is not understood"
            )
        return field, False

    def _rename(self, stage: Any) -> None:
        _check_arguments(stage, None, 0)
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

    def _map_dict(self, stage: Any) -> _Changing:
        _check_arguments(stage, None, 0)
        places = []
        for name, function in stage.kw.items():
            if name == "handler":
                continue
            self._made[name], is_transform = self._changed(self._field([name]), function)
            if is_transform:
                places.append(name)
        return _Changing(stage, tuple(places))

    def _to_tuple(self, stage: Any) -> None:
        _check_arguments(stage, {"handler"}, None)
        args = stage.args
        if len(args) == 1 and type(args[0]) is str and " " in args[0]:
            args = args[0].split()
        self._tuple = [self._field(one) for one in args]
        # Of all images, one alone is transformed natively.
        n_changed = sum(one.is_changed for one in self._made.values())
        if n_changed > sum(one.is_changed for one in self._tuple):
            raise UnsupportedError("an image is transformed that to_tuple() does not take")

    def _map(self, stage: Any) -> _Changing:
        """Notes a function of the script that makes a tuple of a sample."""
        _check_arguments(stage, {"f", "handler"}, 1)
        function = _argument(stage, 0, "f", None)
        mapped = mapped_by(function, self._part)
        if mapped is None:
            raise _unknown(stage)
        image = mapped.parts[mapped.image]
        n_changed = sum(one.is_changed for one in (self._tuple or self._made.values()))
        if n_changed > image.is_changed:
            raise UnsupportedError(f"{_stage_name(stage)} leaves out an image that is transformed")
        self.transforms += mapped.transforms
        self._tuple = [one or _Field((), False) for one in mapped.parts]
        self._tuple[mapped.image] = image._replace(is_changed=True)
        return _Changing(stage, (), mapped)

    def _part(self, key: Any) -> Any:
        """The field at a key of the sample, for mapped_by(); None: it is not known. Without a key
        the number of its parts, or None if it is a dict."""
        if key is None:
            return None if self._tuple is None else len(self._tuple)
        if self._tuple is None:
            return self._field([key]) if type(key) is str else None
        is_place = type(key) is int and 0 <= key < len(self._tuple)
        return self._tuple[key] if is_place else None

    def _map_tuple(self, stage: Any) -> _Changing:
        _check_arguments(stage, {"handler"}, None)
        if self._tuple is None:
            raise _unknown(stage)
        places = []
        for place, function in enumerate(stage.args[: len(self._tuple)]):
            self._tuple[place], is_transform = self._changed(self._tuple[place], function)
            if is_transform:
                places.append(place)
        return _Changing(stage, tuple(places))


# ---- stages and functions ------------------------------------------------------------------------

_CHANGES = ("_map", "_rename", "_map_dict", "_to_tuple", "_map_tuple")


def _as_stages(stage: Any) -> list[Any]:
    """The three stages that tarfile_samples() consists of."""
    _check_arguments(stage, {"handler", "select_files", "rename_files"}, 0)
    _check_handler(stage)
    kw = dict(stage.kw)
    handler = {"handler": kw.pop("handler")} if "handler" in kw else {}
    names = {"url_opener": {}, "tar_file_expander": kw, "group_by_keys": {}}
    return [
        type(stage)(found("tariterators", name), **handler, **more) for name, more in names.items()
    ]


def _decoder_of(stage: Any) -> Any:
    """The Decoder that decode() makes of its arguments."""
    _check_arguments(stage, {"handler"}, 1)
    if len(stage.args) != 1 or stage.args[0] not in _PIL:
        raise UnsupportedError(
            'natively, a pipeline of webdataset must decode by decode("pil") alone'
        )
    handler = found("autodecode", "ImageHandler")(stage.args[0])
    return found("autodecode", "Decoder")([handler])


def _is_filter(stage: Any, *names: str, module: str = "filters") -> bool:
    """Whether a stage calls one of these functions of webdataset."""
    return (
        is_of(type(stage), "filters", "FilterFunction")
        and vars(stage).keys() == {"f", "args", "kw"}
        and type(stage.args) is tuple and type(stage.kw) is dict
        and is_of(stage.f, module, *names)
    )


def _argument(stage: Any, place: int, name: str, default: Any) -> Any:
    """An argument of a stage's function."""
    return stage.args[place] if len(stage.args) > place else stage.kw.get(name, default)


def _check_arguments(stage: Any, named: set[str] | None, n: int | None) -> None:
    """Raises UnsupportedError if a stage has other arguments than these by name (None: any), or
    more than ``n`` others."""
    others = () if named is None else sorted(stage.kw.keys() - named)
    if others or (n is not None and len(stage.args) > n):
        more = ", ".join(others) or "more arguments"
        raise UnsupportedError(
            f"the stage {_stage_name(stage)} with {more} of a pipeline of webdataset is not "
            "supported natively"
        )


def _check_handler(stage: Any) -> None:
    """Raises UnsupportedError if a stage's handler of errors does not raise them."""
    function = stage.f
    default = (function.__kwdefaults__ or {}).get("handler")
    if default is None:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ())))
        default = defaults.get("handler")
    if not _reraises(stage.kw.get("handler", default)):
        raise UnsupportedError(
            "a handler= that does not raise errors is not supported natively for a pipeline of "
            "webdataset"
        )


def _reraises(handler: Any) -> bool:
    return any(is_of(handler, module, "reraise_exception") for module in ("filters", "handlers"))


def _keeps(function: Any) -> bool:
    """Whether a function returns its argument."""
    is_own = any(is_of(function, module, "identity") for module in ("filters", "utils"))
    return is_own or is_identity(function)
