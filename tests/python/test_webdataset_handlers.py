"""Handlers of webdataset's stages that leave out samples: batches, order, random numbers and
warnings equal those of torch's DataLoader."""

import io
import logging
import os
import random
import tarfile
import warnings

import feedmill
import helpers
import pytest
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms

wds = pytest.importorskip("webdataset")

from stream_outcomes import check  # noqa: E402
from webdataset_files import (  # noqa: E402
    CROP,
    RESIZE,
    add,
    changed,
    dataset,
    explained,
    overwritten,
    write_shards,
)

IGNORE, WARN = wds.ignore_and_continue, wds.warn_and_continue
logger = logging.getLogger(__name__)
COUNTED = []


def log_and_continue(exn):
    """As OpenCLIP's."""
    logging.warning(f"Handling webdataset error ({repr(exn)}). Ignoring.")  # noqa: RUF010
    return True


def prints_and_continues(exn):
    print("left out", str(exn))
    logger.debug("left out")
    return True


def warns(exn):
    warnings.warn(str(exn))  # noqa: B028
    return True


# Samples with a bad image: the first and the last ones of tar files, some in a row, a whole batch.
BAD = ("0000", "0003", "0009", "0010", "0013", "0014", "0017", "0018", "0019", "0020", "0021",
       "0026")


def hollowed(name):
    """Overwrites an image but for its first and last bytes."""

    def change(data, members):
        one = members[f"{name}.jpg"]
        data[one.offset_data + 3 : one.offset_data + one.size - 2] = b"x" * (one.size - 5)
        return data

    return lambda path: changed(path, change)


def damaged(root, names=BAD, label=()):
    """Every other bad image begins and ends as a JPEG."""
    paths = write_shards(root)
    for path in paths:
        with tarfile.open(path) as tar:
            members = tar.getnames()
        for name in names:
            if f"{name}.jpg" in members:
                change = overwritten(f"{name}.jpg", b"x") if int(name) % 2 else hollowed(name)
                change(path)
        for name in label:
            if f"{name}.cls" in members:
                overwritten(f"{name}.cls", b"q")(path)
    return paths


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return damaged(tmp_path_factory.mktemp("bad"), label=("0002", "0009", "0023"))


def item(value):
    return value["a"]


# By name: a pipeline, and the DataLoader's batch size.
PIPELINES = {
    "pairs": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).to_tuple(
        "jpg;png", "cls").map_tuple(t), 4),
    "shuffled": (lambda urls, t, h: dataset(urls, shardshuffle=9, seed=5).shuffle(
        6, seed=9).decode("pilrgb", handler=h).to_tuple("jpg;png", "cls").map_tuple(t), 4),
    "single samples": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).to_tuple(
        "__key__", "jpg", "cls").map_tuple(None, t, float), None),
    "dicts": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).map_dict(jpg=t), 3),
    "batched": (lambda urls, t, h: dataset(urls).shuffle(6, seed=9).decode("pil", handler=h)
                .to_tuple("jpg", "cls", "json", "__key__").map_tuple(t, int, item).batched(4),
                None),
    "batched, none too small": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).to_tuple(
        "jpg", "cls").map_tuple(t).batched(4, partial=False), None),
    "batched, with_epoch": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).to_tuple(
        "jpg", "cls").map_tuple(t).batched(4, partial=False).with_epoch(7), None),
    "batched in pairs, with_epoch": (lambda urls, t, h: dataset(urls).decode(
        "pil", handler=h).map_dict(jpg=t).batched(2).with_epoch(9), None),
    "as in OpenCLIP": (lambda urls, t, h: dataset(urls).select(
        lambda one: "json" in one).decode("pilrgb", handler=h).rename(
        image="jpg;png;jpeg;webp", text="json", handler=h).map_dict(
        image=t, text=lambda x: x["a"]).to_tuple("image", "text").batched(5, partial=False), None),
    "with_epoch": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).map_dict(
        jpg=t).with_epoch(40), 3),
    "repeat": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).map_dict(
        jpg=t).repeat(2), 4),
    "detshuffle": (lambda urls, t, h: dataset(urls, shardshuffle=9, detshuffle=True, seed=2).decode(
        "pil", handler=h).to_tuple("jpg", "cls").map_tuple(t), 3),
    "without an image": (lambda urls, t, h: dataset(urls).decode("pil", handler=h).to_tuple(
        "jpg", "missing", "cls", handler=h).map_tuple(t), 4),
}


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - {"without an image"}))
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_equal_torchs(shards, name, num_workers):
    make, batch_size = PIPELINES[name]
    # Refused: batched() with random transforms and without workers.
    transform = CROP if num_workers or batch_size or name == "single samples" else RESIZE
    check(lambda: make(shards, transform, IGNORE), num_workers=num_workers, batch_size=batch_size)
    check(lambda: make(shards, RESIZE, IGNORE), num_workers=num_workers, batch_size=batch_size)


@pytest.mark.parametrize("name", ["batched, with_epoch", "batched in pairs, with_epoch",
                                  "batched", "detshuffle", "with_epoch", "pairs"])
def test_persistent_workers(shards, name):
    make, batch_size = PIPELINES[name]
    check(lambda: make(shards, CROP, IGNORE), (0, 0, 0), num_workers=2, batch_size=batch_size,
          persistent_workers=True)


@pytest.mark.parametrize("name", ["batched in pairs, with_epoch", "with_epoch"])
@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_epochs_that_are_left(shards, name, stop):
    make, batch_size = PIPELINES[name]
    check(lambda: make(shards, CROP, IGNORE), (stop, 2, 0), num_workers=2, batch_size=batch_size,
          persistent_workers=True, prefetch_factor=1)


@pytest.mark.parametrize("seed", range(12))
def test_random_damages(tmp_path, seed):
    """The sizes of batches, prefetching and the samples that can't be decoded vary."""
    draw = random.Random(seed)
    names = [f"{i:04}" for i in range(1, 27)]  # the first one is needed for a trial
    urls = damaged(tmp_path, draw.sample(names, draw.randint(1, 14)), draw.sample(names, 2))
    name = draw.choice(sorted(PIPELINES.keys() - {"without an image"}))
    make, batch_size = PIPELINES[name]
    is_batched = batch_size is None and name != "single samples"
    options = {"num_workers": draw.randint(int(is_batched), 3), "batch_size": batch_size}
    if batch_size is not None:
        options.update(batch_size=draw.randint(1, 5), drop_last=draw.random() < 0.5)
    if options["num_workers"]:
        options.update(prefetch_factor=draw.randint(1, 4), persistent_workers=True)
    check(lambda: make(urls, CROP, IGNORE), (0, 0), seed=seed, **options)


# ---- what handlers are called with -----------------------------------------------------------------


def _reported(kind, make, caplog, capsys, **options):
    caplog.clear()
    loader = kind(make(), **options, **({"native": "require"} if kind is not DataLoader else {}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
    of_webdataset = [one for one in caught if one.filename == wds.handlers.__file__]
    texts = [(one.category, str(one.message)) for one in of_webdataset]
    return texts, [one.getMessage() for one in caplog.records], capsys.readouterr().out


@pytest.mark.parametrize("handler", [WARN, log_and_continue, prints_and_continues])
def test_handlers_get_webdatasets_errors(tmp_path, handler, caplog, capsys, monkeypatch):
    """Images, and labels before and behind them; some samples fail twice."""
    monkeypatch.setattr(wds.handlers.time, "sleep", lambda seconds: None)
    urls = damaged(tmp_path, ("0003", "0009", "0010", "0026"), ("0002", "0009", "0023"))

    def make():
        decoded = dataset(urls).decode("pil", handler=handler)
        return decoded.rename(image="jpg", label="cls", handler=handler).map_dict(
            label=item_or_number, handler=handler).map_dict(image=CROP)

    reports = [
        _reported(kind, make, caplog, capsys, batch_size=4)
        for kind in (feedmill.DataLoader, DataLoader)
    ]
    for got, wanted in zip(*reports):
        # Labels fail when samples are read ahead, images when they are decoded.
        lines = [sorted(one.split("\n")) if type(one) is str else sorted(one, key=str)
                 for one in (got, wanted)]
        assert lines[0] == lines[1]
    assert sum(len(one) > 2 for one in reports[1]) == 1


def item_or_number(value):
    return int(value) + 100 // (int(value) - 5)


def test_a_handler_is_called_once_for_each_sample(tmp_path, caplog):
    urls = damaged(tmp_path)

    def make():
        return dataset(urls).decode("pil", handler=log_and_continue).map_dict(jpg=CROP)

    loader = feedmill.DataLoader(make(), batch_size=3, num_workers=2, native="require")
    for _ in range(2):
        caplog.clear()
        assert sum(len(one["cls"]) for one in loader) == 27 - len(BAD)
        texts = [one.getMessage() for one in caplog.records]
        assert len(texts) == len(BAD) == sum("DecodingError" in one for one in texts)
    n_later = sum(int(one) % 2 == 0 for one in BAD)  # the others are seen to be no images
    assert loader.stats().bad_samples == 2 * n_later
    assert "left out" in str(loader.report())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_handler_that_raises(tmp_path, num_workers):
    """Warnings that are errors."""
    urls = damaged(tmp_path, ("0003",))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*DecodingError.*")
        got = check(lambda: dataset(urls).decode("pil", handler=WARN).map_dict(jpg=CROP),
                    batch_size=2, num_workers=num_workers)
    assert "UserWarning" in got


def make_sample(sample):
    return RESIZE(sample["jpg"]), 100 // (sample["cls"] - 5)


SMALL = transforms.Compose([transforms.CenterCrop(16), transforms.ToTensor()])
# Their transforms draw no random numbers.
BEHIND_TRANSFORMS = {
    "map": lambda urls: dataset(urls).decode("pil").map(make_sample, handler=IGNORE),
    "map, decode": lambda urls: dataset(urls).decode("pil", handler=IGNORE).map(
        make_sample, handler=IGNORE),
    "map_tuple": lambda urls: dataset(urls).decode("pil", handler=IGNORE).to_tuple(
        "jpg", "cls").map_tuple(SMALL, item_or_number, handler=IGNORE),
    "map_dict": lambda urls: dataset(urls).decode("pil", handler=IGNORE).map_dict(
        cls=item_or_number, jpg=SMALL, handler=IGNORE).to_tuple("jpg", "cls", handler=IGNORE),
}


@pytest.mark.parametrize("name", BEHIND_TRANSFORMS)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("bad", [(), ("0005",), ("0007", "0008")])
def test_handlers_behind_transforms(tmp_path, name, num_workers, bad):
    urls = damaged(tmp_path, bad)
    check(lambda: BEHIND_TRANSFORMS[name](urls), num_workers=num_workers, batch_size=4)


def test_an_image_that_raises_before_a_handler_that_continues(tmp_path):
    """Of a sample whose label fails behind the decoder, the image fails first."""
    urls = damaged(tmp_path, ("0005",))

    def make():
        return dataset(urls).decode("pil").map_dict(cls=item_or_number, handler=IGNORE).map_dict(
            jpg=CROP)

    assert "DecodingError" in check(make, num_workers=1, batch_size=2)


# ---- what is refused ---------------------------------------------------------------------------------


def counts_and_continues(exn):
    COUNTED.append(exn)
    return True


def stops(exn):
    return False


def returns_a_number(exn):
    return 1


def continues_sometimes(exn):
    if isinstance(exn, OSError):
        return True
    raise exn


def changes_it(exn):
    logging.warning(exn.args)
    return True


def with_traceback(exn):
    logging.warning(exn, exc_info=True)
    return True


def draws(exn):
    logging.warning(f"{random.random()}")
    return True


def calls_it(exn):
    exn()
    return True


def formats(exn):
    logging.warning(f"{exn:>10}")
    return True


def with_default(exn, other=1):
    return True


def yields(exn):
    yield True


def of_logging(logging):
    def handler(exn):
        logging.warning("left out")
        return True

    return handler


class Logger(logging.Logger):
    pass


own_logger = Logger("own")


def by_own_logger(exn):
    own_logger.warning("left out")
    return True


def exits(exn):
    os.abort()
    return True


class Handler:
    def __call__(self, exn):
        return True

    def method(self, exn):
        return True


@pytest.mark.parametrize("handler", [
    counts_and_continues, stops, returns_a_number, continues_sometimes, changes_it, with_traceback,
    draws, calls_it, formats, with_default, yields, of_logging(random), by_own_logger, exits,
    Handler(), Handler().method, wds.warn_and_stop, wds.ignore_and_stop, print, bool,
    lambda exn: COUNTED or True, lambda *exn: True, lambda exn: None,
], ids=lambda one: getattr(one, "__name__", "?"))
def test_refused_handlers(shards, handler):
    for pipeline in (
        dataset(shards).decode("pil", handler=handler).map_dict(jpg=RESIZE),
        dataset(shards, handler=handler).decode("pil").map_dict(jpg=RESIZE),
        dataset(shards).decode("pil").rename(jpg="jpg", handler=handler).map_dict(jpg=RESIZE),
    ):
        text = explained(pipeline)
        assert text.startswith("torch's own path")
        assert "handler=" in text or "StreamingOpen" in text


def test_replaced_handlers(shards, monkeypatch):
    def make(handler):
        return dataset(shards).decode("pil", handler=handler).map_dict(jpg=RESIZE)

    assert explained(make(lambda exn: True)).startswith("native path")
    assert explained(make(log_and_continue)).startswith("native path")
    monkeypatch.setattr(logging, "warning", COUNTED.append)
    assert explained(make(log_and_continue)).startswith("torch's own path")
    monkeypatch.setattr(wds.handlers, "ignore_and_continue", stops)
    assert explained(make(stops)).startswith("torch's own path")
    monkeypatch.undo()
    assert explained(make(warns)).startswith("native path")
    monkeypatch.setattr(warnings, "warn", COUNTED.append)
    assert explained(make(warns)).startswith("torch's own path")
    monkeypatch.undo()
    monkeypatch.setattr(logger, "debug", COUNTED.append)
    assert explained(make(prints_and_continues)).startswith("torch's own path")
    monkeypatch.undo()
    monkeypatch.setattr(logging.Logger, "debug", lambda *arguments: None)
    assert explained(make(prints_and_continues)).startswith("torch's own path")
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "print", COUNTED.append)
    assert explained(make(prints_and_continues)).startswith("torch's own path")
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "repr", COUNTED.append)
    assert explained(make(log_and_continue)).startswith("torch's own path")


@pytest.mark.parametrize("make", [
    lambda urls: dataset(urls).decode("pil").map_dict(jpg=CROP, handler=IGNORE),
    lambda urls: dataset(urls).decode("pil").map_dict(jpg=CROP).to_tuple(
        "jpg", "cls", handler=IGNORE),
    lambda urls: dataset(urls).decode("pil").map(
        lambda one: (CROP(one["jpg"]), one["cls"]), handler=IGNORE),
])
def test_handlers_behind_random_transforms_are_refused(shards, make):
    assert "when its random transforms have drawn" in explained(make(shards))


# ---- images that may be none ---------------------------------------------------------------------


def _shard(path, images):
    with tarfile.open(path, "w") as tar:
        for i, data in enumerate(images):
            add(tar, f"{i:03}.jpg", data)
            add(tar, f"{i:03}.cls", str(i).encode())
    return str(path)


def test_images_with_more_bytes_behind_them(tmp_path):
    """They are in doubt, and left out only if webdataset leaves them out."""
    image, png, webp = (io.BytesIO() for _ in range(3))
    for file, form in ((image, "JPEG"), (png, "PNG"), (webp, "WEBP")):
        Image.fromarray(helpers.pixels(40, 30)).save(file, form)
    good, cut = image.getvalue(), image.getvalue()[:-400]
    images = [good, good + b"more", good[:-2], cut, b"<html></html>", b"", b"RIFF", png.getvalue(),
              png.getvalue()[:-6], webp.getvalue(), webp.getvalue() + b"x", webp.getvalue()[:-9]]
    url = _shard(tmp_path / "a.tar", [*images, *[good + b"more"] * 12, *images])
    for num_workers in (0, 1):
        check(lambda: dataset(url).decode("pil", handler=IGNORE).map_dict(jpg=CROP), (0, 0),
              num_workers=num_workers, batch_size=3)
