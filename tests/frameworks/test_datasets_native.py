"""Datasets of Hugging Face on the native path, compared with the library's own samples."""

import argparse
import functools
import io
import random
import struct

import feedmill
import frameworks
import helpers
import numpy as np
import pytest
import torch
from feedmill.planner import fingerprints, huggingface
from feedmill.planner.recognise import recognise
from PIL import Image, ImageOps
from torch.utils.data import BatchSampler, DataLoader, Subset
from torchvision import transforms

datasets = frameworks.need("datasets")

from image_rows import (  # noqa: E402
    EVALUATION,
    SIZE,
    TRAINING,
    XMP,
    collate,
    encoded,
    exif,
    mixed_images,
    of_images,
)

datasets.disable_progress_bars()

@pytest.fixture(scope="module")
def plain():
    return of_images([encoded(size=(30 + n, 50 - n), seed=n) for n in range(21)])


@pytest.fixture(scope="module")
def mixed():
    return of_images(mixed_images())


def named(name="image"):
    """A function for set_transform() as scripts have it, and one with random transforms."""

    def preprocess(batch):
        batch["pixel_values"] = [EVALUATION(image.convert("RGB")) for image in batch[name]]
        return batch

    return preprocess


def preprocess(batch):
    batch["pixel_values"] = [EVALUATION(image.convert("RGB")) for image in batch["image"]]
    del batch["image"]
    return batch


def preprocess_at_random(batch):
    batch["pixel_values"] = [TRAINING(image.convert("RGB")) for image in batch["image"]]
    del batch["image"]
    return batch


def assert_same(wanted, got):
    assert type(wanted) is type(got)
    if isinstance(wanted, torch.Tensor):
        assert wanted.dtype is got.dtype and torch.equal(wanted, got)
    elif isinstance(wanted, dict):
        assert list(wanted) == list(got)
        for key in wanted:
            assert_same(wanted[key], got[key])
    elif isinstance(wanted, (list, tuple)):
        for pair in zip(wanted, got, strict=True):
            assert_same(*pair)
    else:
        assert wanted == got


def assert_parity(dataset, **options):
    """Checks that all batches are equal to torch's; returns the native loader."""
    options = {"batch_size": 4, **options}
    own = {name: options.pop(name) for name in ("native",) if name in options}
    wanted = list(DataLoader(dataset, **options))
    loader = feedmill.DataLoader(dataset, **{"native": "require", **own}, **options)
    got = list(loader)
    assert loader.stats().path == "native"
    assert_same(wanted, got)
    return loader


def reasons(dataset, collate_fn=None, **options):
    """The reasons against the native path, as one text."""
    loader = feedmill.DataLoader(dataset, collate_fn=collate_fn, **{"batch_size": 4, **options})
    text = loader.explain()
    assert not text.startswith("native path"), text
    return text


# ---- the versions --------------------------------------------------------------------------------


def test_the_installed_version_is_known():
    """Each function is one of those listed. If not, compare it with the previous version, and add
    the hash that is printed here."""
    for place in huggingface.KNOWN:
        module, _, name = place.partition(":")
        home = __import__(module, fromlist=["_"])
        function = functools.reduce(getattr, name.split("."), home)
        function = function.fget if isinstance(function, property) else function
        found = fingerprints.fingerprint(function.__code__)
        assert huggingface.is_known(place), f"{place} of {datasets.__version__} is {found}"


# ---- parity --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_equal_torchs(plain, num_workers):
    loader = assert_parity(plain.with_transform(preprocess), num_workers=num_workers)
    assert loader.stats().decode.native_samples == len(plain)


@pytest.mark.parametrize("collate_fn", [None, collate])
def test_images_of_all_kinds_equal_torchs(mixed, collate_fn):
    """Those that metadata turns, and formats without a native decoder, are made by the library."""
    loader = assert_parity(mixed.with_transform(preprocess), collate_fn=collate_fn)
    decode = loader.stats().decode
    assert decode.native_samples > 10 and decode.fallback_kind >= 10


def jpeg_of_entries(little, before, behind, orientation=1):
    """A JPEG with XMP that turns it, and with EXIF: an orientation between two entries, which are
    (type, count, offset)."""
    order = "<" if little else ">"
    data = (b"II*\0" if little else b"MM\0*") + struct.pack(order + "IH", 8, 3)
    for tag, entry in ((0x010F, before), (0x0112, None), (0x0131, behind)):
        data += struct.pack(order + "H", tag)
        data += struct.pack(order + "HII", *entry) if entry else struct.pack(
            order + "HIHH", 3, 1, orientation, 0
        )
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + XMP % 6
    parts = [b"Exif\0\0" + data + bytes(14), xmp]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts]
    file = encoded(size=(40, 20))
    return file[:2] + b"".join(segments) + file[2:]


@pytest.mark.filterwarnings("ignore")
def test_orientations_that_pillow_does_not_reach():
    """Pillow ignores the entries behind a value that it can't read, and turns as XMP says."""
    beyond = jpeg_of_entries(True, (2, 10, 9999), (2, 4, 0))
    assert Image.open(io.BytesIO(beyond)).getexif()[0x0112] == 6
    upright = [jpeg_of_entries(little, (2, 10, 8), (5, 1, 8)) for little in (True, False)]
    assert Image.open(io.BytesIO(upright[0])).getexif()[0x0112] == 1
    loader = assert_parity(of_images([*upright, beyond]).with_transform(preprocess))
    assert loader.stats().decode.native_samples == 2
    numbers = random.Random(1)
    images = [
        jpeg_of_entries(numbers.random() < 0.5, *(
            (numbers.choice([*range(19), 65535]), numbers.choice([0, 1, 3, 8, 20, 50, 2**29]),
             numbers.choice([0, 8, 40, 55, 9999, 2**32 - 1]))
            for _ in range(2)
        ))
        for _ in range(2000)
    ]
    turns = [Image.open(io.BytesIO(one)).getexif().get(0x0112) for one in images]
    assert min(map(turns.count, (1, 6))) > 100
    loader = assert_parity(of_images(images).with_transform(preprocess), batch_size=100)
    assert 100 < loader.stats().decode.native_samples <= turns.count(1)


def test_a_mode_of_the_feature(mixed):
    dataset = mixed.cast_column("image", datasets.Image(mode="RGB"))

    def direct(batch):
        return {"x": [EVALUATION(image) for image in batch["image"]], "y": batch["label"]}

    assert_parity(dataset.with_transform(direct))
    assert_parity(dataset.with_transform(preprocess))
    dataset = mixed.cast_column("image", datasets.Image(mode="L"))
    assert "mode 'L'" in reasons(dataset.with_transform(preprocess))


def applied(transform):
    def apply(batch):
        return {"x": [transform(image) for image in batch["image"]], "y": batch["label"]}

    return apply


def test_images_converted_unless_they_are_rgb(mixed):
    """As in transformers' run_mae.py: a conversion that leaves out what it would not change."""
    convert = transforms.Lambda(lambda img: img.convert("RGB") if img.mode != "RGB" else img)
    equal = transforms.Lambda(lambda img: img if img.mode == "RGB" else img.convert("RGB"))
    for one in (convert, equal):
        dataset = mixed.with_transform(applied(transforms.Compose([one, EVALUATION])))
        assert_parity(dataset)
        list(feedmill.DataLoader(dataset, 8, native="verify"))

    def direct(batch):
        images = [EVALUATION(i.convert("RGB") if i.mode != "RGB" else i) for i in batch["image"]]
        return {"x": images, "y": batch["label"]}

    assert_parity(mixed.with_transform(direct))


@pytest.mark.parametrize("parts", [
    [lambda img: img.convert("L") if img.mode != "RGB" else img],
    [lambda img: img if img.mode != "RGB" else img.convert("RGB")],
    [lambda img: img.convert("RGB") if img.mode == "RGB" else img],
    [lambda img: img.convert("RGB") if img.mode != "L" else img],
    [lambda img: img.convert("RGB") if img.mode != "RGB" else ImageOps.invert(img)],
    [lambda img: ImageOps.invert(img) if img.mode != "RGB" else img],
    [lambda img: ImageOps.invert(img.convert("RGB")) if img.mode != "RGB" else img],
    [lambda img: img.convert("RGB") if img.size != "RGB" else img],
    [lambda img: img.convert("RGB") if "RGB" != img.mode else img],
    [lambda img: img.convert("RGB") if img.mode in "RGB" else img],
    [lambda img: ImageOps.invert(img) if img.mode == "RGB" else img.convert("RGB")],
    [transforms.Resize(30), lambda img: img.convert("RGB") if img.mode != "RGB" else img],
])
def test_other_conditional_conversions_are_not_native(mixed, parts):
    parts = [transforms.Lambda(one) if callable(one) and hasattr(one, "__code__") else one
             for one in parts]
    dataset = mixed.with_transform(applied(transforms.Compose([*parts, EVALUATION])))
    assert feedmill.DataLoader(dataset).explain().startswith("torch's own path")


@pytest.mark.parametrize("change", [
    lambda ds: ds.shuffle(seed=3),
    lambda ds: ds.shuffle(seed=3).select(range(9)),
    lambda ds: ds.select([3, 3, 20, 0]),
    lambda ds: ds.select(range(5, 17)),
    lambda ds: ds.train_test_split(0.3, seed=1)["test"],
    lambda ds: ds.shuffle(seed=3).flatten_indices(),
    lambda ds: ds.sort("label", reverse=True),
    lambda ds: ds.filter(lambda label: label % 3 == 0, input_columns="label"),
    lambda ds: datasets.concatenate_datasets([ds.select(range(4)), ds.shuffle(seed=1)]),
    lambda ds: ds.rename_column("image", "picture").rename_column("picture", "image"),
    lambda ds: ds.shard(3, 1),
    lambda ds: ds.add_column("id", [f"name {n}" for n in range(len(ds))]),
    lambda ds: ds.add_column("boxes", [[1.5] * 4 for n in range(len(ds))]),
    lambda ds: ds.add_column("more", [{"a": n, "b": None} for n in range(len(ds))])
        .remove_columns("more"),
], ids=lambda _: "")
def test_selections_equal_torchs(plain, change):
    assert_parity(change(plain).with_transform(preprocess))


def test_a_set_transform_of_some_columns(plain):
    dataset = plain.add_column("other", [None] * len(plain))
    dataset.set_transform(preprocess, columns=["label", "image"])
    assert list(next(iter(assert_parity(dataset)))) == ["label", "pixel_values"]


def test_files_equal_torchs(images, tmp_path):
    """load_dataset("imagefolder"), whose rows have paths; and parquet with the files' bytes."""
    folder = datasets.load_dataset(
        "imagefolder", data_dir=str(images), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert folder._data.table.column("image").chunk(0).field("bytes").null_count == len(folder)
    assert_parity(folder.with_transform(preprocess))
    assert_parity(folder.shuffle(seed=1).with_transform(preprocess), num_workers=2)
    embedded = datasets.Dataset.from_list([
        {"image": {"bytes": open(row["path"], "rb").read(), "path": "a.jpg"}, "label": number}
        for number, row in enumerate(
            folder.cast_column("image", datasets.Image(decode=False))["image"]
        )
    ]).cast_column("image", datasets.Image())
    embedded.to_parquet(str(tmp_path / "all.parquet"))
    read = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "all.parquet"), split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert_parity(read.with_transform(preprocess))
    embedded.save_to_disk(str(tmp_path / "saved"))
    assert_parity(datasets.load_from_disk(str(tmp_path / "saved")).with_transform(preprocess))


def test_rows_of_paths_and_of_bytes(tmp_path):
    path = tmp_path / "a:b.jpg"
    path.write_bytes(encoded(seed=5))
    rows = [encoded(), {"bytes": None, "path": str(path)}, {"bytes": encoded(seed=2), "path": "no"}]
    assert_parity(of_images(rows).with_transform(preprocess))


def test_samplers_and_subsets(plain):
    dataset = plain.with_transform(preprocess)
    assert_parity(dataset, batch_size=1, sampler=[3, -1, 3, 0])
    assert_parity(Subset(dataset, [4, 7, 1]))
    assert_parity(torch.utils.data.ConcatDataset([dataset, dataset]))
    loader = feedmill.DataLoader(dataset, 4, shuffle=True, native="require", seed=1)
    seen = [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(seen) == list(range(len(plain))) and seen != sorted(seen)


# ---- random transforms ---------------------------------------------------------------------------


def test_random_transforms_equal_the_scripts_own(mixed, plain):
    """native="verify" calls the user's function with the native draws, for 10,000 samples."""
    dataset = datasets.concatenate_datasets([mixed, plain]).with_transform(preprocess_at_random)
    n_epochs = -(-10000 // len(dataset))
    loader = feedmill.DataLoader(dataset, 50, shuffle=True, native="verify", seed=2)
    for epoch in range(n_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            assert batch["pixel_values"].shape[1:] == (3, SIZE, SIZE)
    assert loader.stats().path == "native"
    assert loader.stats().decode.verified_samples >= 10000


def preprocess_beside_the_image(batch):
    batch["pixel_values"] = [TRAINING(image.convert("RGB")) for image in batch["image"]]
    return batch


CONVERTING = transforms.Compose([
    transforms.Lambda(lambda img: img.convert("RGB") if img.mode != "RGB" else img), TRAINING,
])


def preprocess_all(examples):
    """As transformers' run_mae.py."""
    examples["pixel_values"] = [CONVERTING(image) for image in examples["image"]]
    return examples


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize(
    ("function", "collate_fn"),
    [
        (preprocess_at_random, None),
        (preprocess_beside_the_image, collate),  # which leaves out a key of the samples
        (preprocess_all, collate),
    ],
)
def test_random_transforms_equal_torchs_batches(mixed, function, collate_fn, num_workers):
    """With torch's random numbers, the default; some images are turned by their metadata."""
    dataset = mixed.with_transform(function)
    options = {"batch_size": 4, "shuffle": True, "num_workers": num_workers,
               "collate_fn": collate_fn}  # fmt: skip
    epochs = []
    for kind, own in ((DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        torch.manual_seed(3)
        loader = kind(dataset, **options, **own)
        epochs.append([list(loader) for _ in range(2)])
    assert loader.stats().path == "native"
    assert_same(*epochs)


class Preprocess:
    """A function that is an object, with two transforms as attributes."""

    def __init__(self):
        self.first = transforms.RandomResizedCrop(SIZE)
        self.second = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])

    def __call__(self, batch):
        images = [image.convert("RGB") for image in batch.pop("image")]
        cropped = [self.first(one) for one in images]
        return {**batch, "x": [self.second(one) for one in cropped]}


def test_an_object_with_several_transforms(mixed):
    dataset = mixed.with_transform(Preprocess())
    loader = feedmill.DataLoader(dataset, 8, native="verify", seed=1)
    assert [list(batch) for batch in loader][-1] == ["label", "x"]
    assert loader.stats().decode.verified_samples == len(mixed)


def test_draws_of_turned_images():
    dataset = of_images([encoded(size=(90, 20), exif=exif(6))] * 3 + [encoded()] * 3)
    loader = feedmill.DataLoader(
        dataset.with_transform(preprocess_at_random), 2, native="verify", seed=4
    )
    list(loader)
    drawn = dict(loader.draws(0, 0))["RandomResizedCrop"]
    assert drawn["top"] + drawn["height"] <= 90 and drawn["left"] + drawn["width"] <= 20


# ---- scripts -------------------------------------------------------------------------------------


def test_the_no_trainer_script(plain):
    """The functions of transformers' run_image_classification_no_trainer.py."""

    def main():
        args = argparse.Namespace(
            image_column_name="image", label_column_name="label", seed=3, max_train_samples=15
        )
        dataset = datasets.DatasetDict(train=plain)
        size = SIZE
        normalize = transforms.Normalize(mean=helpers.MEAN, std=helpers.STD)
        val_transforms = transforms.Compose(
            [
                transforms.Resize(size),
                transforms.CenterCrop(size),
                transforms.ToTensor(),
                normalize,
            ]
        )

        def preprocess_val(example_batch):
            """Apply _val_transforms across a batch."""
            example_batch["pixel_values"] = [
                val_transforms(image.convert("RGB")) for image in example_batch[args.image_column_name]
            ]
            return example_batch

        if args.max_train_samples is not None:
            dataset["train"] = dataset["train"].shuffle(seed=args.seed).select(range(args.max_train_samples))
        # Set the training transforms
        train_dataset = dataset["train"].with_transform(preprocess_val)

        # DataLoaders creation:
        def collate_fn(examples):
            pixel_values = torch.stack([example["pixel_values"] for example in examples])
            labels = torch.tensor([example[args.label_column_name] for example in examples])
            return {"pixel_values": pixel_values, "labels": labels}

        return train_dataset, collate_fn

    dataset, collate_fn = main()
    for num_workers in (0, 2):
        loader = assert_parity(dataset, collate_fn=collate_fn, num_workers=num_workers)
        assert loader.stats().decode.native_samples == 15


def test_the_trainers_script(plain):
    """The functions of transformers' run_image_classification.py."""

    def main(words):
        if len(words) == 2 and words[1].endswith(".json"):
            model_args, data_args = None, argparse.Namespace()
        else:
            model_args, data_args = None, argparse.Namespace(
                image_column_name="image", label_column_name="label"
            )
        assert model_args is None
        dataset = datasets.DatasetDict(train=plain.add_column("note", ["a"] * len(plain)))

        def collate_fn(examples):
            pixel_values = torch.stack([example["pixel_values"] for example in examples])
            labels = torch.tensor([example[data_args.label_column_name] for example in examples])
            return {"pixel_values": pixel_values, "labels": labels}

        _train_transforms = transforms.Compose(
            [
                transforms.Resize((SIZE, SIZE)),
                transforms.ToTensor(),
                transforms.Normalize(mean=helpers.MEAN, std=helpers.STD),
            ]
        )

        def train_transforms(example_batch):
            """Apply _train_transforms across a batch."""
            example_batch["pixel_values"] = [
                _train_transforms(pil_img.convert("RGB")) for pil_img in example_batch[data_args.image_column_name]
            ]
            return example_batch

        # Set the training transforms
        dataset["train"].set_transform(train_transforms)
        return dataset["train"], collate_fn

    dataset, collate_fn = main([])
    assert_parity(dataset, collate_fn=collate_fn, num_workers=2)
    loader = feedmill.DataLoader(dataset, 4, collate_fn=collate_fn, native="verify")
    assert len(list(loader)) == 6 and loader.stats().decode.verified_samples == len(plain)
    assert "del batch['image']" in reasons(dataset)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("bad", [
    b"no image", b"", encoded()[:200], {"bytes": None, "path": "/nowhere/a.jpg"},
    {"bytes": None, "path": None},
])
def test_errors_are_the_librarys(bad, num_workers):
    dataset = of_images([*[encoded()] * 5, bad, encoded()]).with_transform(preprocess)
    found = []
    for kind, options in ((DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        batches = iter(kind(dataset, batch_size=2, num_workers=num_workers, **options))
        assert len([next(batches), next(batches)]) == 2
        with pytest.raises(Exception) as caught:
            next(batches)
        found.append(caught)
    assert found[0].type is found[1].type
    first, second = (str(one.value).splitlines()[-1].partition(" <_io")[0] for one in found)
    first, _, named = first.partition(": '")
    assert first in second and named in second and "dataset index 5" in str(found[1].value)


def test_bad_samples_can_be_skipped():
    dataset = of_images([encoded(), b"no image", encoded()]).with_transform(preprocess)
    loader = feedmill.DataLoader(dataset, 3, native="require", on_error="skip")
    assert next(iter(loader))["label"].tolist() == [0, 2]


def test_an_index_beyond_the_end(plain):
    dataset = plain.with_transform(preprocess)
    for kind, options in ((DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        with pytest.raises(IndexError, match="Invalid key: 99 is out of bounds for size 21"):
            list(kind(dataset, sampler=[0, 99], **options))


def outcome(kind, dataset, **options):
    """The batches of one pass, or the type and text of its exception."""
    try:
        return list(kind(dataset, **options))
    except Exception as error:
        return type(error), str(error).splitlines()[-1]


@pytest.mark.parametrize("select", [
    lambda ds: ds, lambda ds: ds.shuffle(seed=3), lambda ds: ds.select([3, 1, 2]),
    lambda ds: ds.select(range(4)),
], ids=["all", "shuffle", "select", "range"])
@pytest.mark.parametrize("sampler", [[-1], [0, -3], [0, -99], [-1, 99], [np.int64(-2)]])
@pytest.mark.parametrize("around", [
    lambda ds: ds, lambda ds: Subset(Subset(ds, [0, -1, 2]), [0, 1, 2]),
    lambda ds: torch.utils.data.ConcatDataset([ds, ds]),
    lambda ds: torch.utils.data.ConcatDataset([Subset(ds, [0, -1]), ds]),
    lambda ds: Subset(torch.utils.data.ConcatDataset([ds, ds]), [0, -1, 2]),
], ids=["dataset", "subset", "concat", "concat of subset", "subset of concat"])
def test_negative_indices_do_what_they_do_in_torch(plain, select, sampler, around):
    """After select(), a Dataset takes them alone, but not in a list, by which torch asks for the
    rows of a batch."""
    dataset = around(select(plain).with_transform(preprocess))
    options = {"batch_size": 1, "sampler": sampler}
    wanted = outcome(DataLoader, dataset, **options)
    assert_same(wanted, outcome(feedmill.DataLoader, dataset, native="require", **options))


def test_negative_indices_after_a_selection(plain):
    dataset = plain.shuffle(seed=3).with_transform(preprocess)
    for kind, options in ((DataLoader, {}), (feedmill.DataLoader, {"native": "require"})):
        with pytest.raises(IndexError, match="Offset must be non-negative"):
            list(kind(dataset, sampler=[0, -1], **options))
    own = Pairs(plain.shuffle(seed=3), EVALUATION)
    assert_parity(own, batch_size=1, sampler=[0, -1, -21])


@pytest.mark.parametrize("index", ["label", "other", None, [0, 1], (0,), 1.5 + 1j, slice(2)])
@pytest.mark.parametrize("is_selected", [False, True])
def test_errors_of_indices_that_are_no_integers(plain, index, is_selected):
    dataset = (plain.shuffle(seed=3) if is_selected else plain).with_transform(preprocess)
    for one in (dataset, Subset(dataset, [0, index])):
        options = {"batch_size": 1, "sampler": [1 if one is not dataset else index]}
        wanted = outcome(DataLoader, one, **options)
        assert type(wanted) is tuple
        assert outcome(feedmill.DataLoader, one, native="require", **options) == wanted
    # An own dataset, and a ConcatDataset, pass indices on one by one.
    concat = torch.utils.data.ConcatDataset([Subset(dataset, [0, index])])
    options = {"batch_size": 1, "sampler": [1]}
    wanted = outcome(DataLoader, concat, **options)
    got = outcome(feedmill.DataLoader, concat, native="require", **options)
    assert got == wanted if type(wanted) is tuple else issubclass(got[0], Exception)


def test_floats_as_indices_are_not_taken_for_integers(plain):
    """torch makes a sample of some of them."""
    dataset = plain.with_transform(preprocess)
    for one in (dataset, Subset(dataset, [0.0, 1.0])):
        loader = feedmill.DataLoader(
            one, batch_size=1, sampler=[1.0 if one is dataset else 1], native="require"
        )
        with pytest.raises((TypeError, RuntimeError), match="Wrong key type|torch's path only"):
            list(loader)


# ---- refused -------------------------------------------------------------------------------------

COUNT = []


def counting(batch):
    COUNT.append(1)
    batch["pixel_values"] = [EVALUATION(image.convert("RGB")) for image in batch["image"]]
    return batch


def not_converted(batch):
    return {"x": [EVALUATION(image) for image in batch["image"]]}


def filtered(batch):
    return {"x": [EVALUATION(image.convert("RGB")) for image in batch["image"] if image]}


def of_pairs(batch):
    return {"x": [EVALUATION(i.convert("RGB")) for i, _ in zip(batch["image"], batch["label"])]}


def twice(batch):
    images = [image.convert("RGB") for image in batch["image"]]
    return {"x": [EVALUATION(one) for one in images], "y": [EVALUATION(one) for one in images]}


def stacked(batch):
    return {"x": torch.stack([EVALUATION(image.convert("RGB")) for image in batch["image"]])}


def unknown_column(batch):
    return {"x": [EVALUATION(image.convert("RGB")) for image in batch["picture"]]}


def drawing(batch):
    if random.random() < 0.5:
        return {"x": [EVALUATION(image.convert("RGB")) for image in batch["image"]]}
    return {"x": [TRAINING(image.convert("RGB")) for image in batch["image"]]}


def changed_labels(batch):
    batch["label"] = [label + 1 for label in batch["label"]]
    return preprocess(batch)


def shared(batch, seen={}):  # noqa: B006
    seen["x"] = [EVALUATION(image.convert("RGB")) for image in batch["image"]]
    return seen


def unknown_keys(batch):
    return {**vars(batch), "x": [EVALUATION(image.convert("RGB")) for image in batch["image"]]}


def to_lambda(batch):
    return {"x": [(lambda i: EVALUATION(i))(i.convert("RGB")) for i in batch["image"]]}


@pytest.mark.parametrize("function", [
    counting, not_converted, filtered, of_pairs, twice, stacked, unknown_column, drawing,
    changed_labels, shared, unknown_keys, to_lambda, functools.partial(preprocess, batch={}), len,
])
def test_other_functions_are_refused(plain, function):
    text = reasons(plain.with_transform(function), collate_fn=list)
    assert "the function of set_transform() does" in text
    assert COUNT == []


def iterating(examples):
    return {key: [example[key] for example in examples] for key in examples[0]}


def first_only(examples):
    return torch.stack([example["pixel_values"] for example in examples[:2]])


def passing_on(examples):
    return torch.utils.data.default_collate([dict(example) for example in examples])


def reading_the_image(examples):
    return [example["image"] for example in examples], len(examples)


def by_unknown_key(examples):
    keys = ["pixel_values"]
    return [example[key] for example in examples for key in keys]


def looking_around(examples):
    return [locals()["example"]["pixel_values"] for example in examples]


def with_a_function(examples):
    def of(example):
        return example["pixel_values"]

    return [of(example) for example in examples]


def assigning(examples):
    for example in examples:
        example["more"] = 1
    return examples


def counting_keys(examples):
    return [len(example) for example in examples]


def counting_first(examples):
    return len(examples[0])


def counting_all(examples):
    return len(*examples)


key = "label"


def by_variable_of_comprehension(examples):
    return [[str(example[key])[:4] for key in ("image", "label")] for example in examples]


def by_variable_of_generator(examples):
    return [tuple(example[key] for key in ("image",)) for example in examples]


def by_assigned_variable(examples):
    return [example[key] for example in examples if (key := "image")]


def by_argument(examples, key="image"):
    return [example[key] for example in examples]


def by_keyword(examples, *, key="image"):
    return [example[key] for example in examples]


def counting_by_variable(examples):
    return [len(examples) for len in (list, str)]


def by_global(examples):
    return [example[key] for example in examples], len(examples)


NEEDING_THE_IMAGE = (
    counting_all, by_variable_of_comprehension, by_variable_of_generator, by_assigned_variable,
    by_argument, by_keyword,
)


def test_a_collate_fn_may_read_a_key_of_a_global_variable(plain):
    assert_parity(plain.with_transform(named()), collate_fn=by_global)


@pytest.mark.parametrize("collate_fn", [
    counting_keys, counting_first, counting_all, by_variable_of_comprehension,
    by_variable_of_generator, by_assigned_variable, by_argument, by_keyword, counting_by_variable,
    iterating, first_only, passing_on, reading_the_image, by_unknown_key, looking_around,
    with_a_function, assigning, functools.partial(collate), list,
])
def test_a_collate_fn_may_not_see_that_the_image_is_missing(plain, collate_fn):
    text = reasons(plain.with_transform(named()), collate_fn)
    assert "del batch['image']" in text
    if collate_fn is not reading_the_image and collate_fn is not collate:
        if collate_fn in NEEDING_THE_IMAGE:
            return
        # Without the image in the samples, any function will do.
        loader = feedmill.DataLoader(
            plain.with_transform(preprocess), 4, collate_fn=collate_fn, native="require"
        )
        if collate_fn is not with_a_function and collate_fn is not looking_around:
            assert len(list(loader)) == 6


def test_a_collate_fn_that_loops_and_counts(plain):
    def looping(examples):
        pixels = []
        for one in examples:
            pixels = pixels + [one["pixel_values"]]
        return torch.stack(pixels), len(examples), [one["label"] for one in examples]

    assert_parity(plain.with_transform(named()), collate_fn=looping)


class Sub(datasets.Dataset):
    pass


def test_other_datasets_are_refused(plain, monkeypatch):
    assert "no transform" in reasons(plain, collate_fn=list)
    for kind in ("torch", "numpy", "arrow"):
        assert f"format '{kind}'" in reasons(plain.with_format(kind), collate_fn=list)
    own = plain.with_transform(preprocess)
    own.__class__ = Sub
    assert "Sub is not supported" in reasons(own)
    own = plain.with_transform(preprocess)
    own._getitem = lambda key: {}
    assert "own _getitem" in reasons(own)
    two = plain.add_column("second", [encoded()] * len(plain)).cast_column(
        "second", datasets.Image()
    )
    assert "2 columns of images" in reasons(two.with_transform(preprocess))
    sound = plain.add_column("data", [{"bytes": b"", "path": None}] * len(plain)).cast_column(
        "data", datasets.Audio()
    )
    assert "'data' is decoded" in reasons(sound.with_transform(preprocess))
    date = plain.add_column("day", np.array(["2026-01-01"] * len(plain), "datetime64[s]"))
    assert "'day' of type timestamp" in reasons(date.with_transform(preprocess))
    both = plain.add_column("more", list(range(len(plain))))
    both.set_transform(preprocess, columns=["image", "label"], output_all_columns=True)
    assert "output_all_columns" in reasons(both)
    dataset = plain.with_transform(preprocess)
    lists = BatchSampler(range(8), 4, False)
    loader = feedmill.DataLoader(dataset, batch_size=None, sampler=lists)
    assert_same(list(DataLoader(dataset, batch_size=None, sampler=lists)), list(loader))
    assert "batch_size=None" in loader.explain()
    remote = of_images([{"bytes": None, "path": "hf://datasets/a/b/c.jpg"}, encoded()])
    assert "at URLs" in reasons(remote.with_transform(preprocess))
    none = datasets.Dataset.from_dict({"image": [None, {"bytes": encoded(), "path": None}]})
    none = none.cast_column("image", datasets.Image())
    assert "without an image" in reasons(none.with_transform(preprocess))
    tiffs = of_images([encoded("TIFF")] * 3)
    assert "most images are not" in reasons(tiffs.with_transform(preprocess))


@pytest.mark.parametrize("place", sorted(huggingface.KNOWN))
def test_changed_functions_are_refused(plain, monkeypatch, place):
    dataset = plain.with_transform(preprocess)
    module, _, path = place.partition(":")
    owner, _, name = path.rpartition(".")
    home = __import__(module, fromlist=["_"])
    home = getattr(home, owner) if owner else home
    original = vars(home)[name]

    def other(*arguments, **options):
        return (original.fget if isinstance(original, property) else original)(
            *arguments, **options
        )

    monkeypatch.setattr(home, name, property(other) if isinstance(original, property) else other)
    assert "not that of a version" in reasons(dataset)


@pytest.mark.parametrize("name", ["fast_gather", "fast_slice", "num_rows"])
@pytest.mark.parametrize("kind", ["Table", "TableBlock", "InMemoryTable"])
def test_changed_classes_of_tables_are_refused(plain, monkeypatch, kind, name):
    """The methods are known in the classes that define them; others may hide them."""
    dataset = plain.shuffle(seed=1).with_transform(preprocess)
    assert "InMemoryTable" in {type(one).__name__ for one in (dataset._data, dataset._indices)}
    owner = getattr(datasets.table, kind)
    is_known_there = name in vars(owner)
    monkeypatch.setattr(owner, name, lambda *arguments: None, raising=False)
    expected = "not that of a version" if is_known_there else f"it has its own {name}"
    assert expected in reasons(dataset)


def test_changes_elsewhere_are_refused(plain, monkeypatch):
    from datasets import formatting
    from PIL import ImageOps

    dataset = plain.with_transform(preprocess)
    monkeypatch.setitem(formatting._FORMAT_TYPES, "custom", formatting.PythonFormatter)
    assert "the formatter 'custom'" in reasons(dataset)
    monkeypatch.undo()
    monkeypatch.setattr(ImageOps, "exif_transpose", lambda image: image)
    assert "exif_transpose was replaced" in reasons(dataset)
    monkeypatch.undo()
    monkeypatch.setattr(Image.Image, "getexif", lambda image: {})
    assert "getexif was replaced" in reasons(dataset)


def test_a_new_transform_is_seen_at_the_next_epoch(plain):
    dataset = plain.with_transform(preprocess)
    loader = feedmill.DataLoader(dataset, 4, native="require")
    first = next(iter(loader))
    dataset.set_transform(Preprocess())
    assert list(next(iter(loader))) == ["label", "x"] != list(first)
    dataset.set_transform(counting)
    with pytest.raises(Exception, match="more than|something else"):
        next(iter(loader))


# ---- datasets of the user's own around a Dataset -------------------------------------------------


class Wrapper(torch.utils.data.Dataset):
    def __init__(self, ds, transform):
        self.ds = ds
        self.transform = transform

    def __len__(self):
        return len(self.ds)


class Pairs(Wrapper):
    def __getitem__(self, index):
        row = self.ds[index]
        return self.transform(row["image"].convert("RGB")), row["label"]


class TwoLookups(Wrapper):
    def __getitem__(self, index):
        image = self.ds[index]["image"].convert("RGB")
        label = int(self.ds[index]["label"])
        if self.transform is not None:
            image = self.transform(image)
        return {"pixels": image, "target": label, "index": index}


class NotConverted(Wrapper):
    def __getitem__(self, index):
        row = self.ds[index]
        return self.transform(row["image"]), row["label"]


class Counting(Wrapper):
    def __getitem__(self, index):
        row = self.ds[index]
        COUNT.append(row["label"])
        return self.transform(row["image"].convert("RGB")), row["label"]


class OfColumn(Wrapper):
    def __getitem__(self, index):
        return self.transform(self.ds["image"][index].convert("RGB")), self.ds["label"][index]


class AnotherImage(Wrapper):
    def __getitem__(self, index):
        return self.transform(Image.open(self.ds[index]["path"]).convert("RGB")), 0


class Unknown(Wrapper):
    def __getitem__(self, index):
        row = self.ds[index]
        return self.transform(row["image"].convert("RGB")), row["other"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Pairs, TwoLookups])
def test_own_datasets_equal_torchs(mixed, kind, num_workers):
    dataset = kind(mixed.shuffle(seed=5), EVALUATION)
    loader = assert_parity(dataset, num_workers=num_workers)
    assert loader.stats().decode.native_samples > 10
    assert_parity(Subset(dataset, [5, 1, 8]), num_workers=num_workers)


@pytest.mark.parametrize("kind", [Pairs, TwoLookups])
def test_own_datasets_with_random_transforms(mixed, kind):
    loader = feedmill.DataLoader(kind(mixed, TRAINING), 8, shuffle=True, native="verify", seed=1)
    for epoch in range(5):
        loader.set_epoch(epoch)
        list(loader)
    assert loader.stats().decode.verified_samples == 5 * len(mixed)


def test_the_same_objects_give_the_same_samples(plain):
    """Otherwise native loaders could not be kept from one epoch to the next."""
    for dataset in (plain.with_transform(preprocess), Pairs(plain, EVALUATION)):
        loader = feedmill.DataLoader(dataset, 4)
        one, other = (recognise(loader).source for _ in range(2))
        assert one.is_like(other)
        if type(dataset) is datasets.Dataset:
            dataset.set_transform(preprocess_at_random)
            assert not one.is_like(recognise(loader).source)


def test_own_datasets_of_images_in_rgb(mixed):
    rgb = mixed.cast_column("image", datasets.Image(mode="RGB"))
    assert_parity(NotConverted(rgb, EVALUATION))
    assert_parity(Pairs(rgb, EVALUATION))


def test_errors_of_own_datasets():
    dataset = Pairs(of_images([*[encoded()] * 3, b"no image"]), EVALUATION)
    loader = feedmill.DataLoader(dataset, 2, native="require")
    with pytest.raises(Exception, match="cannot identify image file"):
        list(loader)
    dataset = Pairs(of_images([encoded()] * 4), EVALUATION)
    with pytest.raises(IndexError, match="Invalid key: 9 is out of bounds for size 4"):
        list(feedmill.DataLoader(dataset, sampler=[0, 9], native="require"))


def test_other_own_datasets_are_refused(plain):
    before = list(COUNT)
    for kind in (NotConverted, Counting, OfColumn, Unknown):
        reasons(kind(plain, EVALUATION))
    assert COUNT == before
    paths = plain.add_column("path", ["a.jpg"] * len(plain))
    assert "another image" in reasons(AnotherImage(paths, EVALUATION))
    assert "the format 'torch'" in reasons(Pairs(plain.with_format("torch"), EVALUATION))
    assert "the format 'custom'" in reasons(Pairs(plain.with_transform(preprocess), EVALUATION))
