"""Pipelines of the package webdataset on the native path: order, labels, random numbers and errors
equal those of torch's DataLoader, and what feedmill can't run as written is refused."""

import functools
import io
import json
import os
import random
import tarfile
import types
import warnings

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.planner import streams
from PIL import Image
from torch.utils.data import get_worker_info
from torchvision import transforms

wds = pytest.importorskip("webdataset")

from stream_outcomes import check, outcomes  # noqa: E402
from webdataset_files import (  # noqa: E402
    CROP,
    DAMAGES,
    RESIZE,
    add,
    dataset,
    overwritten,
    pairs,
    write_shards,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("shards"))


def identity(value):
    return value


def item(value):
    """A docstring has no effect."""
    return value["a"]


# ---- order, labels and random numbers ------------------------------------------------------------


def _resampled(urls, transform, **options):
    reads = dataset(urls).pipeline[4:]
    decoder = wds.autodecode.Decoder([wds.autodecode.ImageHandler("pil")])
    return wds.DataPipeline(
        wds.ResampledShards(urls, **options), *reads, wds.map(decoder), wds.to_tuple("jpg", "cls"),
        wds.map_tuple(transform),
    )


CHANGE = transforms.RandomHorizontalFlip()
COUNTED = []


def make_sample(sample, change=CHANGE):
    """As in webdataset's examples."""
    image = sample["jpg"]
    label = int(sample["cls"])
    return label, change(image), sample["json"]["a"]


def sample_maker(transform):
    def of_tuple(sample):
        image, label = sample
        image, label = transform(image), float(label)
        return image, label, "a constant"

    return of_tuple


# By name: a pipeline, and the DataLoader's batch size.
PIPELINES = {
    "shuffled": (lambda urls, t: dataset(urls, shardshuffle=9, seed=5).shuffle(6, seed=9).decode(
        "pil").to_tuple("jpg;png", "cls").map_tuple(t, identity), 4),
    "single samples": (lambda urls, t: dataset(urls).decode("pil").to_tuple(
        "__key__", "jpg", "cls").map_tuple(None, t, float), None),
    "batched": (lambda urls, t: dataset(urls).shuffle(6, seed=9).decode("pilrgb").to_tuple(
        "jpg", "cls", "json", "__key__").map_tuple(t, int, item).batched(4), None),
    "batched, with_epoch": (lambda urls, t: dataset(urls).decode("pil").to_tuple(
        "jpg", "cls").map_tuple(t).batched(4, partial=False).with_epoch(7), None),
    "as in OpenCLIP": (lambda urls, t: dataset(urls).decode("pilrgb").rename(
        image="jpg;png;jpeg;webp", text="json").map_dict(image=t, text=lambda x: x["a"]).to_tuple(
        "image", "text").batched(5, partial=False), None),
    "renamed": (lambda urls, t: dataset(urls).decode("pil").rename(
        image="jpg;png", label="cls", keep=False).map_dict(image=t).to_tuple("label", "image"), 3),
    "json": (lambda urls, t: dataset(urls).decode("pil").to_tuple("jpg json").map_tuple(t), 3),
    "image alone": (lambda urls, t: dataset(urls).decode("pil").to_tuple("jpg").map_tuple(t), 3),
    "detshuffle": (lambda urls, t: dataset(urls, shardshuffle=9, detshuffle=True, seed=2).decode(
        "pil").to_tuple("jpg", "cls").map_tuple(t), 3),
    "two transforms": (lambda urls, t: dataset(urls).decode("pil").map_dict(
        jpg=transforms.Resize((20, 20))).to_tuple("jpg", "cls").map_tuple(t), 3),
    "map": (lambda urls, t: dataset(urls).shuffle(6, seed=9).decode("pil").map(
        make_sample).map_tuple(None, t), 4),
    "map of tuples": (lambda urls, t: dataset(urls).decode("pil").to_tuple("jpg", "cls").map(
        sample_maker(t)).batched(4), None),
    "map by a lambda": (lambda urls, t: dataset(urls).decode("pil").map_dict(jpg=CHANGE).map(
        lambda sample: (t(sample["jpg"]), sample["cls"])), 4),
    "DataPipeline": (lambda urls, t: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.detshuffle(9), wds.split_by_worker,
        wds.tarfile_to_samples(), wds.shuffle(9, seed=4), wds.decode("pil"),
        wds.to_tuple("jpg;png", "cls", "__key__", "__url__"), wds.map_tuple(t), wds.batched(4)),
        None),
    "local paths": (lambda urls, t: dataset([f"file:{one}" for one in urls]).decode("pil").to_tuple(
        "jpg", "__url__", "__local_path__").map_tuple(t), 4),
    "with_epoch": (lambda urls, t: pairs(urls, t).with_epoch(40), 3),
    "repeat": (lambda urls, t: pairs(urls, t).repeat(2), 4),
    "with_length": (lambda urls, t: pairs(urls, t).with_length(27, silent=True), 4),
    "resampled": (lambda urls, t: _resampled(urls, t, deterministic=True, seed=3).with_epoch(17), 4),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("num_workers", helpers.slow_but_for([2], [0, 2]))
def test_batches_equal_torchs(shards, name, num_workers):
    make, batch_size = PIPELINES[name]
    is_batched = batch_size is None and name != "single samples"
    transform = RESIZE if is_batched and not num_workers else CROP
    check(lambda: make(shards, transform), num_workers=num_workers, batch_size=batch_size)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_batches_that_are_left_out(shards, num_workers):
    got = check(lambda: pairs(shards, CROP), num_workers=num_workers, batch_size=4, drop_last=True)
    assert all(len(one[1]) == 4 for one in got[:4])


def test_a_worker_without_a_tar_file_ends_first(shards):
    check(lambda: pairs(shards[:2]), num_workers=3, batch_size=2)


@pytest.mark.parametrize("name", ["detshuffle", "batched, with_epoch", "resampled", "shuffled"])
def test_persistent_workers(shards, name):
    make, batch_size = PIPELINES[name]
    check(lambda: make(shards, CROP), (0, 2, 0), num_workers=2, batch_size=batch_size,
          persistent_workers=True)


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_an_epoch_left_behind_samples_that_were_too_few(shards, stop):
    """The workers have 5, 9 and 3 samples in each of several rounds, and make batches of 4."""

    def make():
        return dataset(shards[:3]).decode("pil").map_dict(jpg=CROP).batched(
            4, partial=False).repeat(5)

    for num_workers in (1, 2):
        check(make, (stop, 1, 0), num_workers=num_workers, batch_size=None, prefetch_factor=1,
              persistent_workers=True)


def test_epochs_without_persistent_workers(shards):
    make, batch_size = PIPELINES["detshuffle"]
    check(lambda: make(shards, CROP), (0, 2, 0), num_workers=2, batch_size=batch_size)
    check(lambda: make(shards, CROP), (0, 2, 0), num_workers=0, batch_size=batch_size)


def test_an_epoch_left_when_a_worker_has_ended(shards):
    """How far torch's other workers are then depends on timing."""
    loader = feedmill.DataLoader(pairs(shards[:2], CROP), batch_size=2, num_workers=3,
                                 persistent_workers=True, native="require")
    next(iter(loader))
    with pytest.warns(UserWarning, match="depends on timing"):
        assert sum(len(labels) for _, labels in loader) == 14


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_endless_epoch_can_be_left(shards, num_workers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = dataset(shards, resampled=True).shuffle(5).decode("pil").to_tuple(
            "jpg", "cls").map_tuple(CROP)
    loader = feedmill.DataLoader(pipeline, batch_size=5, num_workers=num_workers, native="require")
    for _ in range(2):
        labels = [label for _, (_, batch) in zip(range(12), loader) for label in batch.tolist()]
        assert len(labels) == 60 and set(labels) <= set(range(27)) and len(set(labels)) > 9


def test_shuffles_without_a_seed_give_each_sample_once(shards):
    loader = feedmill.DataLoader(
        dataset(shards, shardshuffle=9).shuffle(20).decode("pil").to_tuple("jpg", "cls").map_tuple(
            CROP), batch_size=4, num_workers=2, native="require")
    orders = [[one for _, labels in loader for one in labels.tolist()] for _ in range(3)]
    assert all(sorted(one) == list(range(27)) for one in orders)
    assert orders[0] != orders[1] or orders[1] != orders[2]


def test_ranks_get_their_tar_files(shards, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    got = check(lambda: pairs(shards, nodesplitter=wds.split_by_node), num_workers=2, batch_size=4)
    labels = {label for one in got if one is not None and type(one) is list for label in
              one[1].tolist()}
    assert labels == {*range(5, 14), *range(17, 25)}
    assert "ValueError" in outcomes(feedmill.DataLoader, pairs(shards), num_workers=1)


def test_the_scripts_own_objects_stay_as_they_are(shards):
    make, batch_size = PIPELINES["detshuffle"]
    for num_workers, epoch in ((2, -1), (0, 0)):
        pipeline = make(shards, CROP)
        stages = list(pipeline.pipeline)
        loader = feedmill.DataLoader(pipeline, batch_size=batch_size, num_workers=num_workers,
                                     native="require")
        next(iter(loader))
        assert pipeline.pipeline == stages and get_worker_info() is None
        assert next(one for one in stages if type(one) is wds.detshuffle).epoch == epoch


def test_other_images_than_jpegs_and_several_of_a_sample(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i, (form, mode) in enumerate((("PNG", "RGB"), ("PNG", "P"), ("WEBP", "RGB"),
                                          ("JPEG", "L"), ("BMP", "RGB"), ("JPEG", "CMYK"))):
            data = io.BytesIO()
            Image.fromarray(helpers.pixels(30 + i, 20, seed=i)).convert(mode).save(data, form)
            add(tar, f"{i}.cls", b"%d" % i)
            add(tar, f"{i}.png", data.getvalue())
            if i:
                add(tar, f"{i}.seg.png" if i % 2 else f"{i}.jpg", data.getvalue())
    check(lambda: pairs(str(tmp_path / "a.tar"), CROP), num_workers=1, batch_size=2)


def test_unusual_members(tmp_path, shards):
    """Links, folders, hidden files, files without an extension, long names."""
    with tarfile.open(shards[0]) as first, tarfile.open(tmp_path / "a.tar", "w") as tar:
        data = first.extractfile("0000.jpg").read()
        for name in ("__meta__", "__more__/x.jpg", "readme", "a/b.jpg", "a/b.cls", "b/b.JPG",
                     "b/b.cls", f"{'long/' * 40}x.jpg", f"{'long/' * 40}x.cls"):
            add(tar, name, data if name.lower().endswith("jpg") else b"7")
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):
            info = tarfile.TarInfo(f"other{kind[0]}.jpg")
            info.type, info.linkname = kind, "a/b.jpg"
            tar.addfile(info)
    got = check(lambda: pairs(str(tmp_path / "a.tar")), batch_size=9)
    assert len(got[0][0]) == 3


def test_webloader_takes_its_batches(shards, monkeypatch):
    monkeypatch.setattr(wds.compat, "DataLoader", feedmill.DataLoader)
    loader = wds.WebLoader(pairs(shards).batched(4), batch_size=None, num_workers=1)
    assert loader.pipeline[0].explain().startswith("native path")
    again = loader.unbatched().shuffle(9).batched(9)
    assert sorted(one for _, labels in again for one in labels.tolist()) == list(range(27))


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_equal_torchs(tmp_path, name, num_workers):
    shards = write_shards(tmp_path)
    DAMAGES[name](shards[1])
    check(lambda: pairs(shards, CROP), num_workers=num_workers, batch_size=4)


def test_an_image_fails_before_the_label_behind_it(tmp_path):
    shards = write_shards(tmp_path)
    overwritten("0005.jpg", b"x")(shards[1])
    overwritten("0006.cls", b"q")(shards[1])
    for pipeline in (pairs(shards[1:]).batched(4), pairs(shards[1:])):
        is_batched = len(pipeline.pipeline) > len(pairs(shards).pipeline)
        loader = feedmill.DataLoader(pipeline, batch_size=None if is_batched else 4, num_workers=1,
                                     native="require")
        with pytest.raises(wds.autodecode.DecodingError, match="0005.jpg"):
            next(iter(loader))


@pytest.mark.parametrize("name", ["label", "cut short", "missing", "no image"])
def test_errors_in_a_batch_of_the_pipeline(tmp_path, name):
    shards = write_shards(tmp_path)
    DAMAGES[name](shards[1])
    check(lambda: pairs(shards, CROP).batched(4), num_workers=2, batch_size=None)


def test_a_batch_that_the_pipeline_cannot_make_ends_it(tmp_path, shards):
    """webdataset does not collate arrays of different shapes."""
    with tarfile.open(shards[0]) as first, tarfile.open(tmp_path / "a.tar", "w") as tar:
        image = first.extractfile("0000.jpg").read()
        for i in range(14):
            array = io.BytesIO()
            np.save(array, np.arange(2 + (i == 6)))
            add(tar, f"{i:02}.jpg", image)
            add(tar, f"{i:02}.npy", array.getvalue())

    def make():
        urls = [str(tmp_path / "a.tar"), str(tmp_path / "a.tar")]
        return dataset(urls).decode("pil").to_tuple("jpg", "npy").map_tuple(CROP).batched(4)

    assert "AssertionError" in check(make, num_workers=2, batch_size=None)


def test_an_error_names_the_sample(tmp_path):
    shards = write_shards(tmp_path, (3,))
    overwritten("0001.jpg", b"x")(shards[0])
    loader = feedmill.DataLoader(pairs(shards), num_workers=1, batch_size=2, native="require")
    with pytest.raises(wds.autodecode.DecodingError, match=r"s-000\.tar: 0001\.jpg"):
        next(iter(loader))


def test_an_interrupted_pipeline_says_so(shards, monkeypatch):
    loader = feedmill.DataLoader(pairs(shards), num_workers=2, batch_size=4, native="require")
    reads = os.pread
    left = [5]

    def interrupted(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return reads(*arguments)

    iterator = iter(loader)
    monkeypatch.setattr(streams.os, "pread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(iterator)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="was interrupted while the pipeline ran"):
        list(iterator)
    assert sum(len(labels) for _, labels in loader) == 27


# ---- what is refused -----------------------------------------------------------------------------


class OwnPipeline(wds.WebDataset):
    pass


class Own_Length(wds.WebDataset):
    pipeline = property(lambda self: [])


class OwnDecoder(wds.autodecode.Decoder):
    pass


def with_default(value, other=1):
    return value


def draws(value):
    return value + random.randint(0, 5)


def _with_stage(pipeline, place, stage):
    pipeline.pipeline[place] = stage
    return pipeline


def _with(thing, **attributes):
    vars(thing).update(attributes)
    return thing


def _decoded(urls, *arguments, **options):
    return dataset(urls).decode(*arguments, **options).to_tuple("jpg", "cls").map_tuple(RESIZE)


def counts(sample):
    COUNTED.append(1)
    return RESIZE(sample["jpg"]), sample["cls"]


def twice(sample):
    image = RESIZE(sample["jpg"])
    return RESIZE(image), sample["cls"]


def loses_one(sample):
    image, _ = sample["jpg"], RESIZE(sample["jpg"])
    return image, sample["cls"]


def of_two(sample):
    return RESIZE(sample["jpg"]), sample["png"]


def in_list(sample):
    return [RESIZE(sample["jpg"]), sample["cls"]]


def conditional(sample):
    if sample["cls"]:
        return RESIZE(sample["jpg"]), sample["cls"]
    return RESIZE(sample["jpg"]), 0


def of_size(sample):
    return RESIZE(sample["jpg"]), sample["jpg"].size


def draws_a_label(sample):
    return RESIZE(sample["jpg"]), draws(sample["cls"])


def whole_sample(sample):
    return RESIZE(sample["jpg"]), sample


def yields(sample):
    yield RESIZE(sample["jpg"]), sample["cls"]


def rebound(transform):
    def of_sample(sample):
        return transform(sample["jpg"]), sample["cls"]

    transform = CROP
    return of_sample


@pytest.mark.parametrize("function", [
    counts, twice, loses_one, of_two, in_list, conditional, of_size, draws_a_label,
    whole_sample, yields, rebound(RESIZE), functools.partial(make_sample), dict,
    lambda sample, *others: (RESIZE(sample["jpg"]), 0), lambda sample: (sample["jpg"].copy(), 1),
    lambda sample: (RESIZE(sample["jpg"]), sample.get("png")),
    lambda sample: (RESIZE(sample[0]), 1), lambda sample: (RESIZE(sample["cls"]), 1),
    lambda sample: (sample["cls"], 1), lambda sample: (RESIZE(sample["jpg"]), RESIZE),
], ids=lambda one: getattr(one, "__name__", "partial"))
def test_refused_functions_of_samples(shards, function):
    explained = feedmill.DataLoader(dataset(shards).decode("pil").map(function)).explain()
    assert explained.startswith("torch's own path") and "_map" in explained


def test_functions_of_samples_that_leave_out_a_transformed_image(shards):
    pipeline = dataset(shards).decode("pil").map_dict(png=RESIZE).map(
        lambda sample: (RESIZE(sample["jpg"]), 1))
    assert "several images" in feedmill.DataLoader(pipeline).explain()


REFUSED = {
    "OwnPipeline": lambda urls: OwnPipeline(urls, shardshuffle=False),
    "hide": lambda urls: _with(pairs(urls), iterator1=lambda: iter([1])),
    "the function draws": lambda urls: pairs(urls, of_label=draws),
    "with_default": lambda urls: pairs(urls, of_label=with_default),
    "lambda": lambda urls: pairs(urls, of_label=(lambda y: lambda x: x + y)([1])),
    "functools.partial": lambda urls: pairs(urls, of_label=functools.partial(int)),
    "stage _select": lambda urls: pairs(urls).select(lambda sample: True),
    "stage _map": lambda urls: dataset(urls).decode("pil").map(lambda one: [one]),
    "stage _shuffle": lambda urls: pairs(urls).shuffle(5),
    "rng=": lambda urls: dataset(urls).shuffle(5, rng=random.Random(1)),
    "select_files": lambda urls: dataset(urls, select_files=lambda name: True),
    "StreamingOpen": lambda urls: dataset(urls, handler=wds.warn_and_stop),
    "FileCache": lambda urls: dataset(urls, cache_dir=os.path.dirname(urls[0])),
    "handler": lambda urls: _decoded(urls, "pil", handler=wds.ignore_and_stop),
    "'rgb'": lambda urls: _decoded(urls, "rgb"),
    "alone": lambda urls: _decoded(urls, lambda key, data: None, "pil"),
    r"\(\"pil\"\)": lambda urls: _decoded(urls, "pil", only=["jpg"]),
    "_map of": lambda urls: dataset(urls).map(OwnDecoder([wds.autodecode.ImageHandler("pil")])),
    "pipe:": lambda urls: pairs([f"pipe:cat {urls[0]}"]),
    "'-' is none": lambda urls: pairs(["-"]),
    "http:": lambda urls: pairs(["http://localhost:1/a.tar"]),
    "<lambda>": lambda urls: pairs(urls, workersplitter=lambda source: source),
    "one image": lambda urls: dataset(urls).decode("pil").to_tuple("jpg", "png"),
    "something else": lambda urls: dataset(urls).decode("pil").to_tuple("jpg;cls"),
    "does not take": lambda urls: dataset(urls).decode("pil").map_dict(png=RESIZE).to_tuple("jpg"),
    "not known": lambda urls: dataset(urls).decode("pil").rename(a="jpg").to_tuple("jpg"),
    "have a to_tuple": lambda urls: dataset(urls).decode("pil"),
    "missing_is_error": lambda urls: dataset(urls).decode("pil").to_tuple(
        "jpg", missing_is_error=False),
    "decode by": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.decode("rgb")),
    "stage tarfile_samples": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.tarfile_to_samples()),
    "returns True": lambda urls: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(handler=wds.warn_and_stop)),
    "own collation_fn": lambda urls: pairs(urls).batched(3, collation_fn=list),
    "stage _unbatched": lambda urls: pairs(urls).batched(3).unbatched(),
    "detshuffle": lambda urls: _with_stage(
        pairs(urls, shardshuffle=5, detshuffle=True), 3, _with(wds.detshuffle(5), run=list)),
    "size for all images": lambda urls: dataset(urls).decode("pil").to_tuple("jpg", "cls"),
    "webdataset.mix.RandomMix": lambda urls: wds.RandomMix([pairs(urls)]),
}


def test_a_class_whose_pipeline_is_a_property(shards):
    dataset = object.__new__(Own_Length)
    vars(dataset).update(vars(pairs(shards)))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_pipelines(shards, reason):
    reason, make = ("draws", REFUSED[reason]) if "draws" in reason else (reason, REFUSED[reason])
    explained = feedmill.DataLoader(make(shards), batch_size=3).explain()
    assert explained.startswith("torch's own path")
    assert any(part in explained for part in (reason, reason.replace("\\", ""))), explained


def _as_before(function):
    """A function that does the same, by other code."""
    code = function.__code__
    other = types.FunctionType(
        code.replace(co_consts=(*code.co_consts, 1)), function.__globals__, function.__name__,
        function.__defaults__, function.__closure__,
    )
    other.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(other, function, updated=()) and _without_wrapped(other)


def _without_wrapped(function):
    del function.__wrapped__
    return function


@pytest.mark.parametrize("place", [
    "filters._map", "filters.getfirst", "filters.pick", "filters._to_tuple",
    "filters.FilterFunction.__call__", "autodecode.Decoder.decode1",
    "autodecode.ImageHandler.__call__", "autodecode.basichandlers", "tariterators.base_plus_ext",
    "tariterators.tar_file_iterator", "cache.StreamingOpen.__call__",
    "pipeline.DataPipeline.iterator", "utils.pytorch_worker_info",
    "shardlists.SimpleShardList.__iter__",
])
def test_replaced_functions(shards, monkeypatch, place):
    owner, _, name = place.rpartition(".")
    holder = wds
    for part in owner.split("."):
        holder = getattr(holder, part)
    assert feedmill.DataLoader(pairs(shards)).explain().startswith("native path")
    monkeypatch.setattr(holder, name, _as_before(getattr(holder, name)))
    explained = feedmill.DataLoader(pairs(shards)).explain()
    assert "a version which feedmill knows" in explained or "is not one of" in explained


def test_replaced_values(shards, monkeypatch):
    for patch in (
        lambda: monkeypatch.setattr(wds.tariterators, "trace", True),
        lambda: monkeypatch.setattr(json, "loads", functools.partial(json.loads)),
        lambda: monkeypatch.setitem(wds.autodecode.decoders, "cls", lambda data: int(data)),
        lambda: monkeypatch.setattr(wds.autodecode, "int", float, raising=False),
        lambda: monkeypatch.setattr(tarfile.TarFile, "next", lambda self: None),
        lambda: monkeypatch.setitem(wds.filters._to_tuple.__kwdefaults__, "handler", print),
    ):
        patch()
        assert feedmill.DataLoader(pairs(shards)).explain().startswith("torch's own path")
        monkeypatch.undo()
    assert feedmill.DataLoader(pairs(shards)).explain().startswith("native path")


@pytest.mark.parametrize("name", ["x.seg.png", "x.npy"])
def test_samples_with_more_to_decode(tmp_path, shards, name):
    with tarfile.open(shards[0]) as first, tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "x.jpg", first.extractfile("0000.jpg").read())
        add(tar, "x.cls", b"1")
        add(tar, name, bytes(100 if "png" in name else 70000))
    explained = feedmill.DataLoader(pairs(str(tmp_path / "a.tar"))).explain()
    assert "which one process would decode" in explained and name[2:] in explained


@pytest.mark.parametrize("options, reason", [
    ({"num_workers": 2, "multiprocessing_context": "spawn"}, "not forked"),
    ({"num_workers": 2, "in_order": False}, "depends on timing"),
    ({"collate_fn": list}, "own collate_fn"),
    ({"seed": 3}, "need samples with indices"),
    ({"dtype": torch.float16, "batch_size": None}, "dtype="),
    ({"batch_size": None}, "pass num_workers=1"),
    ({"batch_size": 2}, "batch_size=None"),
])
def test_refused_options(shards, options, reason):
    batched = "batch_size" in options
    pipeline = pairs(shards, CROP).batched(4) if batched else pairs(shards, CROP)
    explained = feedmill.DataLoader(pipeline, **{"batch_size": 3, **options}).explain()
    assert explained.startswith("torch's own path") and reason in explained


def test_what_needs_indices(shards):
    loader = feedmill.DataLoader(pairs(shards), batch_size=4, num_workers=1)
    assert "samples as they come" in loader.explain()
    with pytest.raises(RuntimeError, match="on_error='skip'"):
        iter(feedmill.DataLoader(pairs(shards), on_error="skip"))
    next(iter(loader))
    with pytest.warns(UserWarning, match="IterableDataset"):
        assert loader.state_dict()["position"] is None
    with pytest.raises(RuntimeError, match="no indices"):
        loader.draws(0, 0)
