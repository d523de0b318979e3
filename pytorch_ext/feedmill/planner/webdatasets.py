"""Reads pipelines of webdataset: stages that list tar files, split and shuffle them, read samples,
shuffle and decode these, transform their image, arrange them as tuples, and collect batches.

Each stage is one of webdataset's own, of a known version (``webdataset_known``); functions of the
script may only be an image's transforms, and functions of other fields that are proved to compute
their result from their argument alone.
"""

from __future__ import annotations

import copy
from os.path import isfile
from types import FunctionType
from typing import Any
from urllib.parse import urlparse

from feedmill.planner import files
from feedmill.planner.doubtful_images import Doubts
from feedmill.planner.failing_stages import Naming
from feedmill.planner.left_out import Checked
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.sample_streams import Collect, Picture, picture_of
from feedmill.planner.streams import (
    Decode,
    Expander,
    OwnSamples,
    Stages,
    StreamSource,
    as_it_is,
)
from feedmill.planner.timm_tars import check_tarfile
from feedmill.planner.transforms import read_transforms
from feedmill.planner.untouched import shadowing_attributes, type_name
from feedmill.planner.webdataset_fields import CHANGES, Changing, SampleFields
from feedmill.planner.webdataset_handlers import (
    check_handler,
    handler_of,
    ignoring,
    is_handler,
    leaves_out,
    raising,
    raising_left_out,
)
from feedmill.planner.webdataset_known import check, found, is_of
from feedmill.planner.webdataset_stages import (
    argument_of,
    check_arguments,
    is_filter,
    stage_name,
    unknown,
)

_N_TRIED_FILES = 4
_PIL = ("pil", "pilrgb")
# Extensions of images that functions of a script may open.
_IMAGES = frozenset({
    "bmp", "gif", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp",
})


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
    is_random = bool(getattr(read.plan, "is_random", False))
    if is_random:
        reader.check_handlers()
    stateful = tuple(filter(None, map(found, ("filters", "shardlists"),
                                      ("detshuffle", "ResampledShards"))))
    stages = reader.stages(is_random)
    return StreamSource(dataset, stages, read, reader.fields.arrangement(), stateful)


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
        self._selects: list[Any] = []
        self._tail: list[Changing] = []
        self._batched: Collect | None = None
        self._collate: Any = None
        self.fields: Any = None

    def read(self) -> None:
        self._read_urls()
        self._skip_orders(("shardlists", "split_by_node", "single_node_only", "split_by_worker"))
        self._read_files()
        self._skip_orders(("compat", "check_empty"), selects=True)
        self._read_decoder()
        for stage in self._selects:
            self.fields.check_select(stage)
        while self._left and is_filter(self._left[0], *CHANGES):
            self._tail.append(self.fields.change(self._left.pop(0)))
        if self._left and is_filter(self._left[0], "_batched"):
            self._read_batched(self._left.pop(0))
        if self._left:
            raise unknown(self._left[0])
        self.fields.finish()

    def _read_urls(self) -> None:
        source = self._next()
        is_known = is_of(type(source), "shardlists", "SimpleShardList", "ResampledShards")
        if not is_known or shadowing_attributes(source):
            raise unknown(source)
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

    def _skip_orders(self, plain: tuple[str, ...], selects: bool = False) -> None:
        """Reads stages that leave out or order what they get, or check it.

        Args:
            plain: a module of webdataset, and its functions that are such stages.
            selects: whether a stage may select samples.
        """
        while self._left:
            stage = self._left[0]
            if selects and is_filter(stage, "_select"):
                self._selects.append(stage)
                self._shadows.append(self._left.pop(0))
                continue
            is_shuffle = is_filter(stage, "_shuffle")
            if is_shuffle and argument_of(stage, 2, "rng", None) is not None:
                raise UnsupportedError("natively, shuffle() can't have rng=; pass seed=")
            is_order = is_shuffle or is_of(type(stage), "filters", "detshuffle")
            if not is_order and not is_of(stage, *plain):
                return
            if not is_shuffle and not is_of(stage, *plain) and shadowing_attributes(stage):
                raise unknown(stage)
            self._shadows.append(self._left.pop(0))

    def _read_files(self) -> None:
        self._n_of_urls = len(self._shadows)
        if self._left and is_filter(self._left[0], "tarfile_samples", module="tariterators"):
            self._left[:1] = _as_stages(self._left[0])
        opener, expander, grouper = (self._next() for _ in range(3))
        if is_filter(opener, "url_opener", module="tariterators"):
            check_arguments(opener, {"handler"}, 0)
            check_handler(opener)
        elif not is_of(type(opener), "cache", "StreamingOpen") or (
            shadowing_attributes(opener) or not is_handler(opener.handler)
        ):
            raise unknown(opener)
        if not is_filter(expander, "tar_file_expander", module="tariterators"):
            raise unknown(expander)
        if not is_filter(grouper, "group_by_keys", module="tariterators"):
            raise unknown(grouper)
        for stage in (expander, grouper):
            check_arguments(stage, {"handler", "select_files", "rename_files"}, 0)
            check_handler(stage)
        if any(expander.kw.get(name) is not None for name in ("select_files", "rename_files")):
            raise UnsupportedError("select_files= and rename_files= are not supported natively")
        self._opener, self._expander, self._grouper = opener, expander, grouper

    def _read_decoder(self) -> None:
        stage = self._next()
        function: Any = argument_of(stage, 0, "f", None) if is_filter(stage, "_map") else None
        if isinstance(function, FunctionType):  # it may open the image itself
            self._left.insert(0, stage)
            self.fields = SampleFields(_IMAGES, are_encoded=True)
            return
        if not is_filter(stage, "_map", "_decode"):
            raise unknown(stage)
        check_handler(stage)
        if is_of(stage.f, "filters", "_decode"):
            function = _decoder_of(stage)
        else:
            check_arguments(stage, {"f", "handler"}, 1)
        if not is_of(type(function), "autodecode", "Decoder"):
            raise unknown(stage)
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
        self.fields = SampleFields(frozenset(extensions))

    def _read_batched(self, stage: Any) -> None:
        check_arguments(stage, {"batchsize", "collation_fn", "partial"}, 3)
        size = argument_of(stage, 0, "batchsize", 20)
        collate = argument_of(stage, 1, "collation_fn", stage.f.__defaults__[1])
        if type(size) is not int or size < 1:
            raise UnsupportedError(f"a batch size of {size!r} is not supported natively")
        if not is_of(collate, "filters", "default_collation_fn"):
            raise UnsupportedError("natively, batched() must have webdataset's own collation_fn")
        self._batched = Collect(size, bool(argument_of(stage, 2, "partial", True)))
        self._collate = collate

    def check_handlers(self) -> None:
        """Raises UnsupportedError if a stage may leave out a sample behind transforms, which draw
        random numbers."""
        for one in self._tail[self._n_before() :]:
            if leaves_out(one.stage):
                raise UnsupportedError(
                    f"the stage {stage_name(one.stage)} of a pipeline of webdataset may leave out "
                    "a sample by its handler= when its random transforms have drawn"
                )

    def _n_before(self) -> int:
        """The number of stages between the decoder and the first transform."""
        return next((i for i, one in enumerate(self._tail) if one.transforms), len(self._tail))

    def stages(self, is_random: bool) -> Stages:
        names = self.fields.image.names
        reads = [self._opener, Expander(self._expander, names), self._grouper]
        tries = [
            _raising_opener(self._opener), Expander(raising(self._expander), names),
            raising(self._grouper),
        ]
        # To open a pipe would block.
        urls = [{"url": one} for one in self._urls[:_N_TRIED_FILES] if isfile(_path_of(one))]
        of_urls, of_samples = self._shadows[: self._n_of_urls], self._shadows[self._n_of_urls :]
        changes = self._changes(names)
        return Stages(
            shadows=[*of_urls, *reads, *of_samples, *self._checked(changes, is_random)],
            chain=self._chain,
            reads=[urls, *tries, *self._selects],
            changes=list(map(ignoring, changes, self._own())),
            is_image=self.fields.is_image,
            tar_paths=[_path_of(one) for one in self._urls],
            collects=self._batched,
            collate=self._collate,
            leaves_out=any(map(leaves_out, self._own())),
        )

    def _own(self) -> list[Any]:
        """The pipeline's own stages from the decoder on, which change samples one by one."""
        decodes = [] if self._decode is None else [self._decode]
        return [*decodes, *(one.stage for one in self._tail)]

    def _changes(self, names: tuple[str, ...]) -> list[Any]:
        """These stages for samples with Pictures, which raise all errors."""
        decodes = []
        if self._decode is not None:
            kind = type(self._decode)
            decodes = [kind(found("filters", "_map"), Decode(self._decoder, names))]
        return [*decodes, *(raising(one.without_images(names)) for one in self._tail)]

    def _checked(self, changes: list[Any], is_random: bool) -> list[Any]:
        """The same, with the handlers that leave out samples; and those that may fail when random
        transforms have drawn say for which sample."""
        own, chain = self._own(), self._chain(None)
        n_before = len(own) - len(self._tail) + self._n_before()
        found: list[Any] = []
        for i, one in enumerate(changes):
            find: Any = picture_of if i else _encoded_picture
            if leaves_out(own[i]):
                stage = raising_left_out(one, handler_of(own[i]))
                doubts = None if i else Doubts(self.fields.image.names)
                found.append(Checked(stage, OwnSamples(chain[: i + 1]), find, doubts))
            elif is_random and i >= n_before:
                found.append(Naming(one, find))
            else:
                found.append(one)
        return found

    def _chain(self, transform: Any) -> list[Any]:
        """See Stages."""
        stages = [] if self._decode is None else [self._decode]
        for one in self._tail:
            stages.append(one.stage if transform is None else (
                one.with_transforms(transform, as_it_is)
            ))
            if transform is not None and one.transforms:
                transform = as_it_is
        return [
            raising_left_out(one, handler_of(own)) if leaves_out(own) else one
            for one, own in zip(stages, self._own())
        ]


# ---- stages that are made here -------------------------------------------------------------------


def _raising_opener(stage: Any) -> Any:
    if not is_of(type(stage), "cache", "StreamingOpen"):
        return raising(stage)
    opener = copy.copy(stage)
    opener.handler = found("handlers", "reraise_exception")
    return opener


def _encoded_picture(sample: dict[str, Any]) -> Picture:
    """Stands for the image of a sample that was not decoded."""
    return Picture(dict(sample), "")


def _path_of(url: str) -> str:
    """The path that webdataset opens for a URL of a local file."""
    parts = urlparse(url)
    return parts.path if parts.scheme else url


def _as_stages(stage: Any) -> list[Any]:
    """The three stages that tarfile_samples() consists of."""
    check_arguments(stage, {"handler", "select_files", "rename_files"}, 0)
    check_handler(stage)
    kw = dict(stage.kw)
    handler = {"handler": kw.pop("handler")} if "handler" in kw else {}
    names = {"url_opener": {}, "tar_file_expander": kw, "group_by_keys": {}}
    return [
        type(stage)(found("tariterators", name), **handler, **more) for name, more in names.items()
    ]


def _decoder_of(stage: Any) -> Any:
    """The Decoder that decode() makes of its arguments."""
    check_arguments(stage, {"handler"}, 1)
    if len(stage.args) != 1 or stage.args[0] not in _PIL:
        raise UnsupportedError(
            'natively, a pipeline of webdataset must decode by decode("pil") alone'
        )
    handler = found("autodecode", "ImageHandler")(stage.args[0])
    return found("autodecode", "Decoder")([handler])
