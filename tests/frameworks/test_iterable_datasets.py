"""IterableDatasets of Hugging Face on the native path: order, samples, random numbers, states and
errors equal those of torch's DataLoader, and what feedmill can't run as written is refused."""

import functools
import logging

import feedmill
import frameworks
import pytest
import torch
from feedmill.planner import fingerprints, huggingface, huggingface_iterables
from stream_outcomes import check
from torch.utils.data import DataLoader
from torchvision import transforms

datasets = frameworks.need("datasets")

from datasets import iterable_dataset  # noqa: E402
from datasets.distributed import split_dataset_by_node  # noqa: E402
from image_rows import (  # noqa: E402
    EVALUATION,
    TRAINING,
    collate,
    encoded,
    mixed_images,
    of_images,
)

datasets.disable_progress_bars()
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def plain():
    return of_images([encoded(size=(30 + n, 50 - n), seed=n) for n in range(21)])


@pytest.fixture(scope="module")
def shards(plain):
    return plain.to_iterable_dataset(num_shards=4)


def explained(dataset, **options):
    return feedmill.DataLoader(dataset, **{"batch_size": 4, **options}).explain()


# ---- functions of map() --------------------------------------------------------------------------


def in_place(example):
    example["image"] = EVALUATION(example["image"].convert("RGB"))
    return example


def at_random(example):
    example["image"] = TRAINING(example["image"].convert("RGB"))
    return example


def beside(example):
    return {"pixel_values": TRAINING(example["image"].convert("RGB"))}


def renaming(example):
    return {"labels": example["label"], "pixel_values": TRAINING(example["image"].convert("RGB"))}


def popping(example):
    """What is removed here, map() keeps."""
    image = example.pop("image")
    example["label"] = example.pop("label")
    example["image"] = TRAINING(image if image.mode == "RGB" else image.convert("RGB"))
    return example


class Transform:
    def __init__(self, transform):
        self.transform = transform

    def __call__(self, example):
        return {**example, "x": self.transform(example["image"].convert("RGB"))}

    def of_image(self, example):
        example["image"] = self.transform(example["image"].convert("RGB"))
        return example


# By name: makes a dataset of one that to_iterable_dataset() made.
CHAINS = {
    "map": lambda ds: ds.map(in_place),
    "shuffle": lambda ds: ds.shuffle(seed=1, buffer_size=8).map(at_random),
    "shuffle by default": lambda ds: ds.shuffle(seed=4).map(popping),
    "shuffle of one shard": lambda ds: ds.shuffle(
        seed=1, buffer_size=5, max_buffer_input_shards=1).map(at_random),
    "remove_columns=": lambda ds: ds.shuffle(seed=2, buffer_size=3).map(
        beside, remove_columns=["image"]),
    "other names": lambda ds: ds.map(renaming, remove_columns=["image", "label"]),
    "skip and take": lambda ds: ds.shuffle(seed=1, buffer_size=8).skip(2).take(13).map(at_random),
    "take, shuffle": lambda ds: ds.take(15).shuffle(seed=3, buffer_size=4).map(at_random),
    "select_columns": lambda ds: ds.select_columns(["image"]).map(at_random),
    "columns behind map": lambda ds: ds.map(at_random).rename_column("image", "x").remove_columns(
        ["label"]),
    "selected behind map": lambda ds: ds.map(Transform(TRAINING)).select_columns(["x", "label"]),
    "cast_column": lambda ds: ds.cast_column("label", datasets.Value("string")).map(at_random),
    "map twice": lambda ds: ds.map().map(Transform(TRAINING).of_image).map(),
    "shuffle twice": lambda ds: ds.shuffle(seed=1, buffer_size=4).shuffle(
        seed=2, buffer_size=5).map(at_random),
    "split by node": lambda ds: split_dataset_by_node(
        ds.shuffle(seed=1, buffer_size=4).map(at_random), rank=1, world_size=2),
}


def set_epoch(dataset, number):
    dataset.set_epoch((0, 0, 1, 5)[number])


def state_of(dataset, number):
    """That of the script's own object, which workers do not change."""
    return dataset.state_dict()


def test_the_installed_version_is_known():
    """Each function is one of those listed. If not, compare it with the previous version, and add
    the hash that is printed here."""
    for place in huggingface_iterables.KNOWN:
        module, _, name = place.partition(":")
        home = __import__(module, fromlist=["_"])
        function = functools.reduce(getattr, name.split("."), home)
        function = function.fget if isinstance(function, property) else function
        found = fingerprints.fingerprint(function.__code__)
        known = huggingface_iterables.KNOWN[place]
        assert found in known, f"{place} of {datasets.__version__} is {found}"
    huggingface_iterables.check_iterables()


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_equal_torchs(shards, name, num_workers):
    """In the epochs that set_epoch() names, and in one that is left."""
    check(lambda: CHAINS[name](shards), (0, 0, 2, 0), before=set_epoch, behind=state_of,
          batch_size=4, num_workers=num_workers)


@pytest.mark.parametrize("name", ["shuffle", "skip and take", "other names"])
def test_persistent_workers(shards, name):
    check(lambda: CHAINS[name](shards), (0, 2, 0, 0), before=set_epoch, batch_size=4,
          num_workers=2, persistent_workers=True)


@pytest.mark.parametrize("options", [
    {"batch_size": 4, "drop_last": True}, {"batch_size": None}, {"batch_size": 50},
    {"batch_size": 5, "collate_fn": collate, "num_workers": 2},
    {"batch_size": 5, "collate_fn": collate, "num_workers": 0, "drop_last": True},
    {"batch_size": 4, "prefetch_factor": 1},
])
def test_options(shards, options):
    options = {"num_workers": 2, **options}
    made = shards.shuffle(seed=1, buffer_size=8).map(beside, remove_columns=["image"])
    check(lambda: made, (0, 2, 0), before=set_epoch, **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_all_kinds(num_workers):
    """Those that metadata turns, and formats without a native decoder, are made by the library."""
    ds = of_images(mixed_images()).to_iterable_dataset(num_shards=4)
    for make in (CHAINS["shuffle"], CHAINS["remove_columns="]):
        check(lambda make=make: make(ds), (0, 0), before=set_epoch, batch_size=5,
              num_workers=num_workers)
    loader = feedmill.DataLoader(CHAINS["shuffle"](ds), batch_size=5, native="require")
    assert sum(len(batch["label"]) for batch in loader) == len(mixed_images())
    decode = loader.stats().decode
    assert decode.native_samples > 10 and decode.fallback_kind >= 10


@pytest.mark.parametrize("mode", ["RGB", None])
def test_a_mode_of_the_feature(plain, mode):
    def direct(example):
        return {"x": TRAINING(example["image"])}

    ds = plain.cast_column("image", datasets.Image(mode=mode)).to_iterable_dataset(num_shards=2)
    made = ds.map(direct, remove_columns=["image"])
    if mode is None:
        assert "does not convert the images to RGB" in explained(made)
    else:
        check(lambda: made, (0, 0), batch_size=4, num_workers=2)


def test_files_selections_and_many_columns(tmp_path):
    paths = []
    for n in range(11):
        (tmp_path / f"{n}.jpg").write_bytes(encoded(size=(30 + n, 50 - n), seed=n))
        paths.append(str(tmp_path / f"{n}.jpg"))
    columns = {"name": [f"n{n}" for n in range(11)], "box": [[n, 1.5] for n in range(11)],
               "more": [{"a": n} for n in range(11)]}
    ds = of_images(paths, **columns)
    for one in (ds, ds.shuffle(seed=1), ds.select(range(2, 9))):
        check(lambda one=one: CHAINS["shuffle"](one.to_iterable_dataset(num_shards=3)), (0, 0),
              batch_size=3, num_workers=2)


def test_resuming_at_a_state(shards):
    """The shuffle's buffer is lost then, as the library says."""

    def make():
        begun, dataset = CHAINS["shuffle"](shards), CHAINS["shuffle"](shards)
        for _ in zip(range(9), begun):
            pass
        dataset.load_state_dict(begun.state_dict())
        return dataset

    for num_workers in (0, 2):
        check(make, (0, 0), batch_size=3, num_workers=num_workers)


def test_a_state_while_the_loader_is_read(shards):
    """That is behind the batch which was delivered, not behind those in flight."""
    states = []
    for kind in (DataLoader, feedmill.DataLoader):
        dataset = CHAINS["shuffle"](shards)
        found = []
        for _ in kind(dataset, batch_size=4):
            found.append(dataset.state_dict())
        states.append([*found, dataset.state_dict()])
    assert states[0] == states[1] and states[0][0] != states[0][1]


def test_the_scripts_own_objects_stay_as_they_are(shards):
    dataset = CHAINS["shuffle"](shards)
    node, state = dataset._ex_iterable, dataset.state_dict()
    before = []
    while node is not None:
        before.append((node, dict(vars(node))))
        node = getattr(node, "ex_iterable", None)
    loader = feedmill.DataLoader(dataset, batch_size=4, num_workers=2, native="require")
    assert len(list(loader)) == len(list(loader)) > 4
    assert dataset.state_dict() == state
    for node, attributes in before:
        assert vars(node).keys() == attributes.keys()
        assert all(vars(node)[key] is one for key, one in attributes.items())


def test_more_workers_than_shards(shards, caplog):
    caplog.set_level(logging.WARNING, logger="datasets")
    logging.getLogger("datasets").propagate = True
    try:
        check(lambda: CHAINS["map"](shards), (0, 0), batch_size=4, num_workers=5)
    finally:
        logging.getLogger("datasets").propagate = False
    # Torch's are logged in its workers.
    texts = [one.getMessage() for one in caplog.records]
    assert len(texts) == 2 and all("Too many dataloader workers: 5" in one for one in texts)


# ---- errors --------------------------------------------------------------------------------------

BAD = {
    "cut short": lambda: encoded()[:300], "no image": lambda: b"xx", "empty": lambda: b"",
    "missing": lambda: {"bytes": None, "path": "/nonexistent/a.jpg"},
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", BAD)
def test_errors_equal_torchs(name, num_workers):
    rows = [{"bytes": encoded(seed=n), "path": None} for n in range(17)]
    bad = BAD[name]()
    rows[6] = bad if type(bad) is dict else {"bytes": bad, "path": None}
    ds = of_images(rows).to_iterable_dataset(num_shards=3)
    for chain in ("shuffle", "map"):
        got = check(lambda chain=chain: CHAINS[chain](ds), (0, 0), before=set_epoch, batch_size=2,
                    num_workers=num_workers, persistent_workers=num_workers > 0)
        assert any(type(one) is str for one in got)


def tensors(examples):
    """A collate_fn that is called ahead of a batch's turn, in a thread."""
    images = torch.stack([example["image"] for example in examples])
    return images, torch.tensor([example["label"] for example in examples])


def counting(examples):
    """And one that is called in processes."""
    assert all(example["label"] is not None for example in examples)
    return [torch.rand(1), len(examples), examples[0]["image"]]


@pytest.mark.parametrize("collate_fn", [tensors, counting, None])
@pytest.mark.parametrize("place", [3, 20])
def test_a_collate_fn_that_fails(plain, collate_fn, place):
    """Torch's workers go on then; and they do not call it for a batch that drop_last leaves out."""
    ds = plain.remove_columns("label").add_column(
        "label", [None if row == place else row for row in range(len(plain))])
    ds = ds.to_iterable_dataset(num_shards=2)
    for chain in ("map", "shuffle"):
        for options in ({"num_workers": 2}, {"num_workers": 1, "drop_last": True},
                        {"num_workers": 1, "persistent_workers": collate_fn is None}):
            check(lambda chain=chain: CHAINS[chain](ds), (0, 2, 0), batch_size=2,
                  collate_fn=collate_fn, **options)


def test_a_transform_that_fails():
    small = of_images([*(encoded(seed=n) for n in range(5)), encoded(size=(3, 3)), encoded()])
    crop = transforms.Compose([transforms.RandomCrop(16), transforms.ToTensor()])
    function = Transform(crop).of_image
    ds = small.to_iterable_dataset()
    for num_workers in (0, 1):
        assert "ValueError" in check(lambda: ds.map(function), (0, 0), batch_size=2,
                                     num_workers=num_workers)


# ---- what is refused -----------------------------------------------------------------------------


def drawing(example):
    example["image"] = TRAINING(example["image"].convert("RGB"))
    example["draw"] = torch.rand(1)
    return example


def twice(example):
    return {"a": EVALUATION(example["image"].convert("RGB")),
            "b": EVALUATION(example["image"].convert("RGB"))}


def of_label(example):
    example["image"] = EVALUATION(example["image"].convert("RGB"))
    example["label"] = example["label"] + 1
    return example


def conditional(example):
    if example["label"] > 3:
        return {"image": EVALUATION(example["image"].convert("RGB"))}
    return {"image": TRAINING(example["image"].convert("RGB"))}


def nothing(example):
    return None


def not_converted(example):
    return {"image": EVALUATION(example["image"])}


def reads_size(example):
    return {"image": EVALUATION(example["image"].convert("RGB")), "size": example["image"].size}


async def coroutine(example):
    return {"image": EVALUATION(example["image"].convert("RGB"))}


def yields(example):
    yield EVALUATION(example["image"].convert("RGB"))


def remembers(example, seen=[]):  # noqa: B006
    seen.append(example["label"])
    return {"image": EVALUATION(example["image"].convert("RGB"))}


def as_batch(batch):
    batch["image"] = [EVALUATION(one.convert("RGB")) for one in batch["image"]]
    return batch


def lost(example):
    return {"other": example["label"]}


class Hooked(dict):
    pass


def other_dict(example):
    return Hooked(image=EVALUATION(example["image"].convert("RGB")))


def updating(example):
    example.update({"image": EVALUATION(example["image"].convert("RGB"))})
    return example


@pytest.mark.parametrize("function", [
    drawing, twice, of_label, conditional, nothing, not_converted, reads_size, coroutine, yields,
    remembers, as_batch, lost, other_dict, updating, functools.partial(in_place, example={}),
    lambda example: example, Transform(lambda image: torch.rand(3, 4, 4)),
])
def test_other_functions_are_refused(shards, function):
    assert not explained(shards.map(function)).startswith("native path")


# By name: a dataset, and a part of the reason.
REFUSED = {
    "no map": (lambda ds: ds, "has no map()"),
    "left image": (lambda ds: ds.map(beside), "still have the decoded image at 'image'"),
    "removed image": (lambda ds: ds.map(in_place, remove_columns=["image"]), "lack them"),
    "shuffle behind": (lambda ds: ds.map(in_place).shuffle(seed=1), "call shuffle() before"),
    "take behind": (lambda ds: ds.map(in_place).take(3), "call take() before map()"),
    "skip behind": (lambda ds: ds.map(in_place).skip(3), "call skip() before map()"),
    "filter": (lambda ds: ds.filter(lambda one: True).map(in_place), "Filtered"),
    "filter behind": (lambda ds: ds.map(in_place).filter(lambda one: True), "Filtered"),
    "rename before": (lambda ds: ds.rename_column("label", "y").map(in_place), "encoded again"),
    "batched": (lambda ds: ds.map(as_batch, batched=True), "leave out batched=True"),
    "batched, of one": (lambda ds: ds.map(as_batch, batched=True, batch_size=1), "batched"),
    "with_indices": (lambda ds: ds.map(lambda one, i: in_place(one), with_indices=True),
                     "with_indices"),
    "input_columns": (lambda ds: ds.map(lambda one: {"x": one}, input_columns="image"),
                      "input_columns"),
    "fn_kwargs": (lambda ds: ds.map(in_place, fn_kwargs={"a": 1}), "fn_kwargs"),
    "features": (lambda ds: ds.map(in_place, features=datasets.Features(
        {"image": datasets.Array3D((3, 16, 16), "float32"), "label": datasets.Value("int64")})),
        "features"),
    "torch": (lambda ds: ds.map(in_place).with_format("torch"), "with_format()"),
    "torch before": (lambda ds: ds.with_format("torch").map(in_place), "format"),
    "arrow": (lambda ds: ds.with_format("arrow").map(in_place), "format"),
    "two maps": (lambda ds: ds.map(in_place).map(lost), "only one map()"),
    "repeat": (lambda ds: ds.repeat(2).map(in_place), "RepeatExamplesIterable"),
    "batch": (lambda ds: ds.map(in_place).batch(3), "map() with batched"),
    "concatenated": (lambda ds: datasets.concatenate_datasets([ds, ds]).map(in_place),
                     "VerticallyConcatenated"),
    "interleaved": (lambda ds: datasets.interleave_datasets([ds, ds]).map(in_place), "supported"),
    "examples of a node": (lambda ds: split_dataset_by_node(ds.map(in_place), 0, 3),
                           "split_dataset_by_node()"),
    "not decoded": (lambda ds: ds.decode(False).map(in_place), "0 columns of images"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_datasets_are_refused(shards, name):
    make, reason = REFUSED[name]
    text = explained(make(shards))
    assert not text.startswith("native path") and reason in text


def test_sources_that_are_refused(plain):
    def generate():
        yield {"image": {"bytes": encoded(), "path": None}, "label": 1}

    features = plain.features
    made = datasets.IterableDataset.from_generator(generate, features=features)
    assert "ExamplesIterable of an" in explained(made.map(in_place))
    none = datasets.Dataset.from_dict({"image": [None, {"bytes": encoded(), "path": None}],
                                       "label": [0, 1]}).cast_column("image", datasets.Image())
    assert "without an image" in explained(none.to_iterable_dataset().map(in_place))
    remote = of_images([{"bytes": None, "path": "hf://datasets/a/b/c.jpg"}, encoded()])
    assert "at URLs" in explained(remote.to_iterable_dataset().map(in_place))
    both = plain.add_column("other", [{"bytes": encoded(), "path": None}] * len(plain))
    both = both.cast_column("other", datasets.Image())
    assert "2 columns of images" in explained(both.to_iterable_dataset().map(in_place))
    tiffs = of_images([encoded("TIFF")] * 3)
    assert "most images are not" in explained(tiffs.to_iterable_dataset().map(in_place))


@pytest.mark.parametrize("options, reason", [
    ({"num_workers": 2, "multiprocessing_context": "spawn"}, "not forked"),
    ({"seed": 3}, "seed="),
    ({"num_workers": 2, "in_order": False}, "in_order=False"),
    ({"num_workers": 2, "persistent_workers": True, "collate_fn": collate},
     "with persistent workers"),
])
def test_refused_options(shards, options, reason):
    assert reason in explained(shards.map(at_random), **options)


@pytest.mark.parametrize("options", [{"native": "verify"}, {"on_error": "skip"}])
def test_options_that_need_indices(shards, options):
    with pytest.raises(RuntimeError, match="native='verify', on_error= and device= are not"):
        feedmill.DataLoader(shards.map(in_place), 4, **options)


# ---- what somebody changed -----------------------------------------------------------------------


@pytest.mark.parametrize("place", sorted(huggingface_iterables.KNOWN))
def test_changed_functions_are_refused(shards, monkeypatch, place):
    dataset = CHAINS["shuffle"](shards)
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")
    home = __import__(module, fromlist=["_"])
    home = getattr(home, owner) if owner else home
    original = vars(home)[name]
    function = original.fget if isinstance(original, property) else original
    function = getattr(function, "__func__", function)

    def other(*arguments, **options):
        return function(*arguments, **options)

    kind = type(original) if type(original) in (property, staticmethod) else (lambda one: one)
    monkeypatch.setattr(home, name, kind(other))
    assert "not that of a version" in explained(dataset)


def _with(thing, **attributes):
    vars(thing).update(attributes)


class _Shards(list):
    def __iter__(self):
        return iter(())


# By name: changes a dataset of "shuffle".
CHANGES = {
    "a method of the dataset": lambda ds: _with(ds, _prepare_ex_iterable_for_iteration=print),
    "its __iter__": lambda ds: _with(ds, __iter__=print),
    "a method of an iterable": lambda ds: _with(ds._ex_iterable, _iter=print),
    "a property of an iterable": lambda ds: _with(ds._ex_iterable.ex_iterable, iter_arrow=print),
    "another class": lambda ds: setattr(
        ds, "_ex_iterable", type("Other", (type(ds._ex_iterable),), {})(
            ds._ex_iterable.ex_iterable, in_place)),
    "another class of datasets": lambda ds: setattr(
        ds, "__class__", type("Other", (type(ds),), {})),
    "a source of tables": lambda ds: _with(_leaf(ds), generate_tables_fn=lambda **kw: iter(())),
    "the arguments of the source": lambda ds: _with(_leaf(ds), kwargs={"shards": []}),
    "the shards": lambda ds: _with(
        _leaf(ds), kwargs={**_leaf(ds).kwargs, "shards": _Shards(_leaf(ds).kwargs["shards"])}),
    "a shard": lambda ds: _with(
        _leaf(ds), kwargs={**_leaf(ds).kwargs, "shards": [_OtherShard(one) for one in
                                                          _leaf(ds).kwargs["shards"]]}),
    "a feature": lambda ds: _with(ds._ex_iterable.ex_iterable, _features=_other_features(ds)),
    "a feature's method": lambda ds: _with(
        ds._ex_iterable.ex_iterable._features["image"], decode_example=print),
    "the features' method": lambda ds: _with(
        ds._ex_iterable.ex_iterable._features, decode_batch=print),
    "a generator": lambda ds: _with(_shuffle(ds), generator=_Generator()),
    "the distribution": lambda ds: _with(ds, _distributed=_Split()),
    "a mapping": lambda ds: _with(ds._ex_iterable, fn_kwargs={"a": 1}),
    "removed columns": lambda ds: _with(ds._ex_iterable, remove_columns=_Shards(["label"])),
    "a token": lambda ds: _with(ds._ex_iterable.ex_iterable, token_per_repo_id=_Hooked()),
    "an epoch": lambda ds: _with(ds, _epoch=_Hooked()),
    "a size of the buffer": lambda ds: _with(_shuffle(ds), buffer_size=_Int(3)),
    "a starting state": lambda ds: _with(ds, _starting_state_dict=_Hooked(epoch=0)),
}


class _Hooked(dict):
    pass


class _Int(int):
    pass


class _Generator:
    def __deepcopy__(self, memo):
        torch.rand(1)
        return self


class _Split:
    rank, world_size, strategy = 0, 1, "auto"


class _OtherShard:
    def __init__(self, shard):
        self.shard = shard

    def __getattr__(self, name):
        return getattr(self.shard, name)


class _Feature(datasets.Image):
    def decode_example(self, value, token_per_repo_id=None):
        return super().decode_example(value).rotate(90)


def _leaf(ds):
    node = ds._ex_iterable
    while hasattr(node, "ex_iterable"):
        node = node.ex_iterable
    return node


def _shuffle(ds):
    node = ds._ex_iterable
    while type(node) is not iterable_dataset.BufferShuffledExamplesIterable:
        node = node.ex_iterable
    return node


def _other_features(ds):
    return datasets.Features({"image": _Feature(), "label": datasets.Value("int64")})


@pytest.mark.parametrize("name", CHANGES)
def test_changed_objects_are_refused(plain, name):
    dataset = CHAINS["shuffle"](plain.to_iterable_dataset(num_shards=2))
    assert explained(dataset).startswith("native path")
    CHANGES[name](dataset)
    assert not explained(dataset).startswith("native path")


def test_changes_elsewhere_are_refused(shards, monkeypatch):
    from datasets import formatting

    dataset = CHAINS["shuffle"](shards)
    monkeypatch.setitem(formatting._FORMAT_TYPES, "arrow", formatting.PythonFormatter)
    assert "the formatter 'arrow'" in explained(dataset)
    monkeypatch.undo()
    monkeypatch.setattr(iterable_dataset, "deepcopy", lambda one: one)
    assert "not that of a version" in explained(dataset)
    monkeypatch.undo()
    kind = iterable_dataset.MappedExamplesIterable
    for name in ("__copy__", "__getattr__", "__getattribute__"):
        monkeypatch.setattr(kind, name, lambda self, *a: object(), raising=False)
        assert not explained(dataset).startswith("native path")
        monkeypatch.undo()
    monkeypatch.setattr(huggingface, "check_library", lambda: None)
    assert explained(dataset).startswith("native path")
