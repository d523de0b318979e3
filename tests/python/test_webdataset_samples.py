"""Pipelines of the package webdataset whose samples are dicts, that select samples, or that leave
out what they can't read: natively, batches equal those of torch's DataLoader."""

import io
import json
import random
import tarfile
import types
import warnings

import feedmill
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

wds = pytest.importorskip("webdataset")

from stream_outcomes import check  # noqa: E402
from webdataset_files import (  # noqa: E402
    CROP,
    DAMAGES,
    RESIZE,
    add,
    asserting,
    dataset,
    explained,
    overwritten,
    write_shards,
)

COUNTED = []
CHANGE = transforms.RandomHorizontalFlip()


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("shards"))


def decoded(urls, **options):
    return dataset(urls, **options).decode("pil")


# ---- samples that are dicts ----------------------------------------------------------------------


N_CLASSES, NAMES = 5, ("even", "odd")


def in_place(sample, transform=CROP):
    """As in webdataset's examples."""
    sample["jpg"] = transform(sample["jpg"].convert("RGB"))
    sample["label"] = sample["cls"] % N_CLASSES
    sample["name"] = NAMES[sample["cls"] % 2]
    del sample["json"]
    return sample


def in_a_new_dict(sample):
    image = CHANGE(sample.pop("jpg"))
    text = f"number {sample['json']['a']:03}".upper().split(" ")[-1][:2]
    return dict(image=CROP(image), text=text, number=torch.tensor(sample["cls"]))  # noqa: C408


def of_a_tuple(sample):
    image, data = sample
    return {"image": CROP(image), "label": torch.tensor(data.get("a", 1), dtype=torch.float32)}


def number_of(data):
    return data["a"]


def recurses(value):
    return recurses(value)


def with_another_label(sample):
    sample["number"] = number_of(sample["json"])
    sample["cls"] = -int(sample["cls"]) if sample["json"]["a"] > 3 and sample["cls"] else 1
    return sample


DICTS = {
    "map_dict": lambda urls: decoded(urls).map_dict(jpg=CROP),
    "map_dict of several": lambda urls: decoded(urls).map_dict(
        cls=torch.tensor, jpg=CROP, json=lambda one: one["a"]),
    "rename": lambda urls: decoded(urls).rename(image="jpg;png", label="cls").map_dict(image=CROP),
    "renamed at last": lambda urls: decoded(urls).map_dict(jpg=CROP).rename(
        x="jpg", y="cls", keep=False),
    "in place": lambda urls: decoded(urls).map(in_place),
    "in a new dict": lambda urls: decoded(urls).map(in_a_new_dict),
    "asserting": lambda urls: decoded(urls).map(asserting),
    "of a tuple": lambda urls: decoded(urls).to_tuple("jpg", "json").map(of_a_tuple),
    "unpacked": lambda urls: decoded(urls).map(lambda one: {**one, "jpg": CROP(one["jpg"])}),
    "dict()": lambda urls: decoded(urls).map(lambda one: dict(one, jpg=CROP(one["jpg"]), a=1)),
    "two maps": lambda urls: decoded(urls).map(with_another_label).map(
        lambda one: {"image": one["jpg"], "label": one["cls"]}).map_dict(image=CROP),
    "to_tuple behind it": lambda urls: decoded(urls).map(
        lambda one: {**one, "image": CROP(one["jpg"])}).to_tuple("image", "cls"),
}


@pytest.mark.parametrize("name", DICTS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_dicts(shards, name, num_workers):
    got = check(lambda: DICTS[name](shards), num_workers=num_workers, batch_size=4)
    assert name == "to_tuple behind it" or type(got[0]) is dict


@pytest.mark.parametrize("name", ["map_dict", "in a new dict"])
def test_dicts_otherwise_batched(shards, name):
    check(lambda: DICTS[name](shards), num_workers=1, batch_size=None)
    check(lambda: DICTS[name](shards), (0, 2, 0), num_workers=2, batch_size=4, drop_last=True,
          persistent_workers=True)
    check(lambda: DICTS[name](shards).batched(4), num_workers=2, batch_size=None)


def _with_fields(path, fields):
    """A tar file of samples that have these fields beside the image."""
    with tarfile.open(path) as first:
        image = first.extractfile("0000.jpg").read()
    with tarfile.open(path.parent / "other.tar", "w") as tar:
        for number, names in enumerate(fields):
            add(tar, f"{number}.jpg", image)
            for name in names:
                add(tar, f"{number}.{name}", b"%d" % number)
    return str(path.parent / "other.tar")


@pytest.mark.parametrize("fields", [
    (["cls", "txt"], ["txt", "cls"], ["cls"], ["cls", "txt"]),
    (["cls"], ["cls"], ["cls"], ["cls", "txt"]),
    (["cls", "raw"], ["raw", "cls"], ["raw"], ["cls", "raw"]),
    (["cls", "pyd.txt"], ["pyd.txt", "cls"], ["pyd.txt", "cls"], ["cls", "pyd.txt"]),
], ids=["another lacks", "another has more", "raw", "all"])
@pytest.mark.parametrize("is_batched", [False, True])
def test_samples_with_different_fields(tmp_path, fields, is_batched):
    write_shards(tmp_path, (1,))
    path = _with_fields(tmp_path / "s-000.tar", fields)

    def make():
        pipeline = decoded([path, path]).map_dict(jpg=CROP)
        return pipeline.batched(2) if is_batched else pipeline

    check(make, num_workers=2, batch_size=None if is_batched else 2)


@pytest.mark.parametrize("name", ["image", "label", "header", "cut short", "no image"])
def test_errors_equal_torchs(tmp_path, name):
    shards = write_shards(tmp_path)
    DAMAGES[name](shards[1])
    check(lambda: DICTS["in place"](shards), num_workers=2, batch_size=4)


def test_webdatasets_key_is_added(shards):
    got = check(lambda: decoded(shards).map(lambda one: {"image": CROP(one["jpg"])}), batch_size=9)
    assert got[0].keys() == {"image", "__key__"} and got[0]["__key__"][:2] == ["0000", "0001"]


# ---- functions that are not understood -----------------------------------------------------------


def counts(sample):
    COUNTED.append(1)
    return {"image": CROP(sample["jpg"]), "label": sample["cls"]}


def draws(sample):
    return {"image": CROP(sample["jpg"]), "label": random.random()}


def conditional(sample):
    if sample["cls"]:
        sample["jpg"] = CROP(sample["jpg"])
    return sample


def changes_the_json(sample):
    sample["json"]["a"] = 2
    return {**sample, "jpg": CROP(sample["jpg"])}


def twice(sample):
    image = CROP(sample["jpg"])
    return {"a": image, "b": image}


def in_vain(sample):
    CROP(sample["jpg"])
    return {"image": sample["jpg"], "label": 1}


def sets_another_key(sample):
    sample[sample["cls"]] = 1
    return {**sample, "jpg": CROP(sample["jpg"])}


def of_a_size(sample):
    return {"image": CROP(sample["jpg"]), "width": sample["jpg"].width}


def with_star(*samples):
    return {"image": CROP(samples[0]["jpg"])}


def nested(sample):
    return {"image": {"pixels": CROP(sample["jpg"])}, "label": 1}


def unpickled(sample):
    return {"image": CROP(sample["jpg"]), "label": sample["pyd"] + 1}


def loops(sample):
    for key in ("cls", "json"):
        sample.pop(key)
    return {**sample, "jpg": CROP(sample["jpg"])}


def tries(sample):
    try:
        return {"image": CROP(sample["jpg"])}
    except KeyError:
        return None


def with_dict(dict):
    return lambda sample: dict(image=CROP(sample["jpg"]))


def with_torch(torch):
    return lambda sample: {"image": CROP(sample["jpg"]), "label": torch.tensor(sample["cls"])}


def only_seems_to_remove(sample):
    other = {"jpg": 1}
    del other["jpg"]
    return {**sample, **other, "image": CROP(sample["jpg"])}


def with_a_changing_number():
    number = 1

    def add_one():
        nonlocal number
        number += 1

    return lambda one: {"image": CROP(one["jpg"]), "label": number}


CHANGING = 1


def change_it():
    global CHANGING
    CHANGING += 1


def returns_none(sample):
    sample["jpg"] = CROP(sample["jpg"])


class Drawing:
    def __getitem__(self, key):
        return random.random()

    @staticmethod
    def tensor(value):
        return random.random()

    loads = tensor


@pytest.mark.parametrize("function", [
    counts, draws, conditional, changes_the_json, twice, in_vain, sets_another_key, of_a_size,
    with_star, nested, unpickled, loops, tries, with_dict(lambda image: COUNTED),
    with_torch(Drawing), returns_none,
    lambda one: {"image": CROP(one["jpg"]), "label": Drawing()[0]},
    lambda one: {"image": CROP(one["jpg"]), "label": COUNTED}, with_a_changing_number(),
    lambda one: {"image": CROP(one["jpg"]), "label": CHANGING},
    lambda one: {"image": CROP(one["jpg"].convert("L")), "label": 1},
    lambda one: {"image": CROP(one["jpg"].convert("RGB", 1)), "label": 1},
    lambda one: {"image": CROP(one["jpg"].rotate(1)), "label": 1},
    lambda one: {"image": CROP(one["jpg"]).convert("RGB"), "label": 1},
    lambda one: {"image": CROP(one["jpg"].convert(one["cls"])), "label": 1},
    lambda one: {"image": CROP(one["jpg"]), "other": one["png"]},
    lambda one: {"image": CROP(one["jpg"]), "label": (lambda: 1)()},
    lambda one: {"image": CROP(one["jpg"]), "label": one["json"].pop("a")},
    lambda one: {"image": CROP(one["jpg"]), "label": one["json"].items()},
    lambda one: {"image": CROP(one["jpg"]), "label": one.keys()},
    lambda one: (CROP(one["jpg"]), one.keys()), lambda one: (CROP(one["jpg"]), one),
    lambda one: (CROP(one["jpg"]), {"a": 1}), lambda one: (CROP(one["jpg"]), recurses(one["cls"])),
    lambda one: (CROP(one["jpg"]), draws(one["cls"])),
    lambda one: {"image": CROP(one["jpg"]), "label": one == 1},
    lambda one: {"image": CROP(one["jpg"]), "label": f"{one}"},
    lambda one: {"image": CROP(one["jpg"]), "label": {**one["json"]}},
    lambda one: {"image": CROP(one["jpg"]), "label": [*one]},
    lambda one: {"image": CROP(one["jpg"]), "label": one["jpg"] in (1, 2)},
    lambda one: {"image": CROP(one["jpg"]), "label": [COUNTED.append(x) for x in "ab"]},
    lambda one: {"image": CROP(one.get("jpg")), "label": 1},
    lambda one: {"image": CROP(one["jpg"]), "label": torch.tensor(one["cls"], device="cpu")},
    lambda one: {"image": CROP(one["jpg"]), "label": torch.rand(1)},
    lambda one: {one["__key__"]: CROP(one["jpg"])},
    lambda one: {1: CROP(one["jpg"])},
    lambda one: {"label": 1, **one},
    lambda one, change=CROP: {"image": change(one["jpg"]), "label": change},
    lambda one: {"image": CROP(one["jpg"]), **one["json"]},
    lambda one: one.update(jpg=CROP(one["jpg"])) or one,
], ids=lambda one: getattr(one, "__name__", "?"))
def test_refused_functions(shards, function):
    text = explained(decoded(shards).map(function))
    assert text.startswith("torch's own path") and "_map" in text


REFUSED = {
    "beside": lambda urls: decoded(urls).map(lambda one: {**one, "image": CROP(one["jpg"])}),
    "what is made of it": lambda urls: decoded(urls).map(only_seems_to_remove).batched(3),
    "can't have the image beside": lambda urls: decoded(urls).rename(a="jpg", b="jpg").map_dict(
        a=CROP),
    "several images": lambda urls: decoded(urls).map_dict(jpg=CROP, png=CROP),
    "leaves out an image": lambda urls: decoded(urls).map_dict(png=CROP).rename(
        image="jpg", keep=False),
    "_map of a pipeline": lambda urls: decoded(urls).map_dict(jpg=CROP).map(
        lambda one: {"label": one["cls"], "image": one["png"]}),
    "or has it twice": lambda urls: decoded(urls).map_dict(jpg=CROP).rename(a="jpg", b="jpg"),
    "must transform an image": lambda urls: decoded(urls).rename(image="jpg"),
    "not a function": lambda urls: decoded(urls).map_dict(
        jpg=CROP, json=lambda one: Drawing()[one]),
    "stage _select": lambda urls: decoded(urls).select(lambda one: one["cls"] > 3).map_dict(
        jpg=CROP),
    "dtype=": lambda urls: decoded(urls).map_dict(jpg=CROP),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_pipelines(shards, reason):
    options = {"dtype": torch.float16} if reason == "dtype=" else {}
    text = explained(REFUSED[reason](shards), **options)
    assert text.startswith("torch's own path")
    assert reason in text.replace("is not understood", "is not a function"), text


# ---- samples that are selected -------------------------------------------------------------------


def has_text_and_image(sample):
    has_caption = "json" in sample
    has_image = "png" in sample or "jpg" in sample or "jpeg" in sample
    return has_caption and has_image


def of_its_number(sample, least=4):
    number = json.loads(sample["json"])["a"]
    if number < least:
        return False
    elif number % 3 == 0:
        return None
    return int(sample["cls"].decode("utf-8")) != 8 and not sample["__key__"].endswith("11")


SELECTIONS = {
    "has fields": has_text_and_image,
    "number": of_its_number,
    "all()": lambda sample: all(key in sample for key in ("jpg", "cls")),
    "keys()": lambda sample: "cls" in sample.keys() and len(sample["json"]) > 8,
    "none": lambda sample: "txt" in sample or sample["cls"] == b"5",
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_selections(shards, name, num_workers):
    def make():
        selected = dataset(shards).select(SELECTIONS[name]).shuffle(4, seed=2)
        return selected.decode("pil").to_tuple("jpg", "cls").map_tuple(CROP)

    check(make, num_workers=num_workers, batch_size=4)


def test_a_selection_of_another_order_and_errors(shards, tmp_path):
    def make(urls, select):
        return wds.DataPipeline(
            wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples(),
            wds.shuffle(5, seed=1), wds.select(select), wds.decode("pilrgb"),
            wds.rename(image="jpg;png", text="json"),
            wds.map_dict(image=CROP, text=lambda text: str(text["a"]).strip()),
            wds.to_tuple("image", "text"), wds.batched(3, partial=False),
        )

    check(lambda: make(shards, of_its_number), num_workers=2, batch_size=None)
    others = write_shards(tmp_path)
    overwritten("0009.json", b"q")(others[1])
    got = check(lambda: make(others, of_its_number), num_workers=2, batch_size=None)
    assert "RuntimeError" in got


def test_images_that_are_not_selected_are_not_decoded(tmp_path):
    shards = write_shards(tmp_path)
    overwritten("0003.jpg", b"x")(shards[0])
    check(lambda: dataset(shards).select(of_its_number).decode("pil").map_dict(jpg=CROP),
          num_workers=2, batch_size=4)


def looks_at_the_image(sample):
    return len(sample["jpg"]) > 1000


def sets_a_field(sample):
    sample["label"] = 1
    return True


def takes_a_field(sample):
    sample.pop("json")
    return True


def with_any(any):
    return lambda sample: any(key in sample for key in ("jpg", "png"))


def with_json(json):
    return lambda sample: json.loads(sample["json"])


def yields(sample):
    yield True


def has_seen(sample):
    while sample["cls"]:
        return True


@pytest.mark.parametrize("function", [
    looks_at_the_image, sets_a_field, takes_a_field, with_any(lambda keys: random.random() < 0.5),
    with_json(Drawing), yields, has_seen, COUNTED.append,
    lambda sample: random.random() < 0.5,
    lambda sample: sample["jpg"] is not None,
    lambda sample: sample["jpg"],
    lambda sample: sample.get("jpg"),
    lambda sample: sample,
    lambda sample: not COUNTED,
    lambda sample: sample["cls"] in COUNTED,
    lambda sample, draw=random.random: draw() < 0.5,
    lambda sample: CROP(sample["jpg"]) is not None,
    lambda sample: any(sample["jpg"] == one for one in (1, 2)),
    lambda sample: sample["pyd"] > 3,
    lambda sample: (sample["cls"], sample["jpg"]) > (b"3", b""),
    lambda sample: len(sample) > 2 and [one for one in sample],  # noqa: C416
], ids=lambda one: getattr(one, "__name__", "?"))
def test_refused_selections(shards, function):
    pipeline = dataset(shards).select(function).decode("pil").map_dict(jpg=CROP)
    text = explained(pipeline)
    assert text.startswith("torch's own path") and "stage _select" in text


def test_other_code_than_the_source_says(shards):
    other = types.FunctionType((lambda sample: sample["jpg"]).__code__, globals())
    other.__code__ = of_its_number.__code__.replace(co_consts=(*of_its_number.__code__.co_consts,))
    assert explained(dataset(shards).select(other).decode("pil").map_dict(jpg=CROP)).startswith(
        "torch's own path")


def test_replaced_functions_of_python(shards, monkeypatch):
    selected = dataset(shards).select(SELECTIONS["all()"]).decode("pil").map_dict(jpg=CROP)
    mapped = decoded(shards).map(
        lambda one: dict(one, jpg=CROP(one["jpg"]), a=int(one["cls"])))
    for name, pipeline in (("all", selected), ("int", mapped), ("dict", mapped)):
        assert explained(pipeline).startswith("native path")
        with monkeypatch.context() as context:
            context.setitem(globals(), name, lambda *values, **others: random.random())
            assert explained(pipeline).startswith("torch's own path")


def test_a_replaced_function_of_torch(shards, monkeypatch):
    pipeline = decoded(shards).map(in_a_new_dict)
    assert explained(pipeline).startswith("native path")
    monkeypatch.setattr(torch, "tensor", lambda value: random.random())
    assert explained(pipeline).startswith("torch's own path")


def test_a_replaced_stage(shards, monkeypatch):
    pipeline = dataset(shards).select(of_its_number).decode("pil").map_dict(jpg=CROP)
    assert explained(pipeline).startswith("native path")
    code = wds.filters._select.__code__
    monkeypatch.setattr(wds.filters._select, "__code__", code.replace(co_consts=(*code.co_consts,
                                                                                 1)))
    assert "a version which feedmill knows" in explained(pipeline)


# ---- functions that fail -------------------------------------------------------------------------


def fails_for_five(value):
    return 100 // (value - 5)


FAILING = {
    "behind its transform": lambda urls: decoded(urls).to_tuple("jpg", "cls").map_tuple(
        CROP, fails_for_five),
    "before its transform": lambda urls: decoded(urls).to_tuple("cls", "jpg").map_tuple(
        fails_for_five, CROP),
    "behind the stage": lambda urls: decoded(urls).map_dict(jpg=CROP).map_dict(cls=fails_for_five),
    "before the stage": lambda urls: decoded(urls).map_dict(cls=fails_for_five).map_dict(jpg=CROP),
    "in a function": lambda urls: decoded(urls).map(
        lambda one: (CROP(one["jpg"]), 100 // (one["cls"] - 5))),
    "of encoded images": lambda urls: dataset(urls).map(
        lambda one: (CROP(Image.open(io.BytesIO(one["jpg"])).convert("RGB")),
                     100 // (int(one["cls"]) - 5))),
}


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_random_numbers_behind_a_function_that_fails(shards, name, num_workers, batch_size):
    """Without workers, the next epoch draws behind what the failing sample's transforms drew."""
    got = check(lambda: FAILING[name](shards), (0, 0), num_workers=num_workers,
                batch_size=batch_size)
    assert got.count("ZeroDivisionError") == 2


# ---- errors that are left out --------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DAMAGES.keys() - {"image", "label", "image and label",
                                                          "no image", "empty image"}))
def test_what_can_not_be_read_is_left_out(tmp_path, name):
    shards = write_shards(tmp_path)
    DAMAGES[name](shards[1])
    handler = wds.ignore_and_continue

    def make():
        return decoded(shards, handler=handler).to_tuple("jpg", "cls").map_tuple(RESIZE)

    check(make, num_workers=2, batch_size=4)

    def make_of_stages():
        return wds.DataPipeline(
            wds.SimpleShardList(shards), wds.tarfile_to_samples(handler=handler),
            wds.decode("pil"), wds.map_dict(jpg=RESIZE))

    check(make_of_stages, num_workers=1, batch_size=4)


def test_warnings_of_what_is_left_out(tmp_path):
    shards = write_shards(tmp_path, (2, 2))
    DAMAGES["missing"](shards[0])
    pipeline = decoded(shards, handler=wds.warn_and_continue).map_dict(jpg=RESIZE)
    loader = feedmill.DataLoader(pipeline, batch_size=2, num_workers=1, native="require")
    with pytest.warns(UserWarning, match="No such file"):
        assert [one["cls"].tolist() for one in loader] == [[2, 3]]


def test_trials_do_not_warn(tmp_path):
    """What the plan reads before the epoch is not reported a second time."""
    shards = write_shards(tmp_path, (4, 2))
    (tmp_path / "more").mkdir()
    DAMAGES["cut short"](write_shards(tmp_path / "more", (12,))[0])
    damaged = str(tmp_path / "more" / "s-000.tar")
    n_warnings = []
    for kind, options in ((feedmill.DataLoader, {"native": "require"}), (DataLoader, {})):
        read = dataset([damaged, *shards], handler=wds.warn_and_continue)
        pipeline = read.select(lambda one: "cls" in one).decode("pil").map_dict(jpg=RESIZE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(kind(pipeline, batch_size=4, **options))
        n_warnings.append(sum(one.filename == wds.handlers.__file__ for one in caught))
    assert n_warnings[0] == n_warnings[1] > 0


def test_arrays_beside_the_image(tmp_path):
    shards = write_shards(tmp_path, (1,))
    with tarfile.open(shards[0]) as first, tarfile.open(tmp_path / "a.tar", "w") as tar:
        image = first.extractfile("0000.jpg").read()
        for number in range(5):
            array = io.BytesIO()
            np.save(array, np.arange(3 + number // 4))
            add(tar, f"{number}.jpg", image)
            add(tar, f"{number}.npy", array.getvalue())
    got = check(lambda: decoded(str(tmp_path / "a.tar")).map_dict(jpg=CROP), num_workers=1,
                batch_size=2)
    assert got[0]["npy"].shape == (2, 3)
