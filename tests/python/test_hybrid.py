"""native="hybrid": native decoding, and Python transforms in threads."""

import gc
import io
import os
import re
import threading
import time
import traceback

import feedmill
import helpers
import numpy as np
import pytest
import torch
from feedmill.data import ImageList, NpyFolder
from helpers import compose
from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder


def invert(image):
    return torch.from_numpy(255 - np.array(image.resize((8, 9))))


def hybrid(dataset, **options):
    return feedmill.DataLoader(dataset, **{"native": "hybrid", "threads": 3, **options})


@pytest.fixture
def images(small_images):
    return ImageFolder(str(small_images), invert)


def batches_of(loader):
    torch.manual_seed(1)
    return list(loader)


def same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs) and ours.stride() == theirs.stride()
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, Image.Image):
        return ours.mode == theirs.mode and np.array_equal(ours, theirs)
    return ours == theirs


@pytest.mark.parametrize("options", [
    {"batch_size": 7}, {"batch_size": 7, "shuffle": True}, {"batch_size": None},
    {"batch_size": 8, "drop_last": True, "num_workers": 2, "shuffle": True},
    {"batch_size": 3, "num_workers": 1, "prefetch_factor": 1},
    {"batch_size": 5, "collate_fn": list}, {"batch_size": 5, "collate_fn": list, "num_workers": 2},
    {"batch_size": 6, "sampler": range(39, -1, -2)},
    {"batch_sampler": [[3, 1], [], [0, 39, 0]], "collate_fn": list},
])
def test_batches_equal_torchs(images, options):
    loader = hybrid(images, **options)
    ours, theirs = batches_of(loader), batches_of(TorchDataLoader(images, **options))
    assert len(ours) == len(theirs) > 0 and same(ours, theirs)
    stats = loader.stats()
    assert stats.path == "hybrid" and stats.decode.hybrid_batches == stats.batches == len(ours)
    assert "lambda" in stats.reasons[0] or "function" in stats.reasons[0]


@pytest.mark.parametrize("options", [
    {"dtype": torch.float16}, {"memory_format": torch.channels_last},
])
def test_dtype_and_memory_format(small_images, options):
    dataset = ImageFolder(str(small_images), lambda image: T.ToTensor()(image.resize((8, 9))))
    ours = batches_of(hybrid(dataset, batch_size=16, **options))
    theirs = batches_of(feedmill.DataLoader(dataset, batch_size=16, native="off", **options))
    assert same(ours, theirs)


def test_a_native_pipeline_stays_native(numbered):
    loader = hybrid(numbered, batch_size=8)
    assert len(list(loader)) == 5 and loader.stats().path == "native"


def test_other_datasets_take_torchs_path():
    loader = hybrid(torch.utils.data.TensorDataset(torch.arange(6)), batch_size=4,
                    collate_fn=lambda samples: samples)
    assert len(list(loader)) == 2 and loader.stats().path != "hybrid"


def test_subsets_concats_and_image_lists(small_images, images):
    files = sorted(small_images.rglob("*.jpg"))
    mine = ImageList(files[:9], transform=invert)
    for dataset in (Subset(images, [5, 3, 8]), ConcatDataset([images, mine]), mine,
                    Subset(Subset(mine, [1, 2, 3]), [2, 0])):
        loader = hybrid(dataset, batch_size=4)
        assert same(batches_of(loader), batches_of(TorchDataLoader(dataset, batch_size=4)))
        assert loader.stats().path == "hybrid"


def test_no_transform_and_a_collate_fn(small_images):
    dataset = ImageFolder(str(small_images))
    loader = hybrid(dataset, batch_size=6, collate_fn=list)
    assert same(batches_of(loader),
                batches_of(TorchDataLoader(dataset, batch_size=6, collate_fn=list)))
    assert loader.stats().path == "hybrid" and loader.stats().decode.collate_ns > 0


def test_files_of_other_formats(tmp_path):
    for i, (mode, name) in enumerate([("RGB", "png"), ("CMYK", "jpg"), ("L", "jpg"), ("P", "gif")]):
        image = Image.fromarray(helpers.pixels(20, 10, seed=i)).convert(mode)
        image.save(tmp_path / f"{i}.{name}")
    dataset = ImageList(sorted(tmp_path.iterdir()), transform=lambda image: np.array(image))
    assert same(batches_of(hybrid(dataset, batch_size=4)),
                batches_of(TorchDataLoader(dataset, batch_size=4)))


# ---- the image that the transform gets -----------------------------------------------------------


def described(image):
    """All public attributes of a PIL image that a transform can see."""
    exif = image.getexif()
    return {
        "type": type(image), "mode": image.mode, "size": image.size, "info": dict(image.info),
        "order": list(image.info), "readonly": image.readonly, "format": image.format,
        "palette": image.palette, "exif": dict(exif), "gps": dict(exif.get_ifd(0x8825)),
        "pixels": image.tobytes(), "upright": ImageOps.exif_transpose(image).tobytes(),
    }


def jpegs_with_metadata(folder):
    """Writes JPEGs with every kind of metadata that Pillow reads. Returns their paths."""
    picture = Image.fromarray(helpers.pixels(40, 24, seed=1))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112], exif[0x010E], exif[0x0128], exif[0x011A] = orientation, "a text", 3, 100.0
        exif[0x8825] = {1: "N", 2: (1.0, 2.0, 3.0)}
        picture.save(folder / f"exif{orientation}.jpg", exif=exif, subsampling=orientation % 3)
    picture.save(folder / "icc.jpg", icc_profile=bytes(range(256)) * 600)  # in several segments
    picture.save(folder / "dpi.jpg", dpi=(300, 200), comment=b"a comment", progressive=True)
    picture.save(folder / "xmp.jpg", xmp=b"<x:xmpmeta>an xmp packet</x:xmpmeta>")
    picture.convert("L").save(folder / "grey.jpg", dpi=(72, 72))
    picture.convert("CMYK").save(folder / "cmyk.jpg", exif=exif)
    picture.save(folder / "several.mpo.jpg", "MPO", save_all=True, append_images=[picture])
    blocks = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0\0\0\0\4" + b"text"
    plain = (folder / "icc.jpg").read_bytes()
    segment = b"\xff\xed" + (len(blocks) + 2).to_bytes(2, "big") + blocks
    (folder / "photoshop.jpg").write_bytes(plain[:2] + segment + plain[2:])
    return sorted(folder.iterdir())


def test_the_transform_gets_the_image_with_its_metadata(tmp_path, monkeypatch):
    dataset = ImageList(jpegs_with_metadata(tmp_path), transform=described)
    options = {"batch_size": 4, "collate_fn": list}
    theirs = batches_of(TorchDataLoader(dataset, **options))
    # Pillow only parses the headers; it decodes no image.
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", None)
    ours = batches_of(hybrid(dataset, **options))
    assert ours == theirs
    upright = [one for batch in ours for one, _ in batch if one["upright"] != one["pixels"]]
    assert len(upright) >= 7  # images with an orientation that Pillow applies


@pytest.mark.parametrize("kind", ["bytes", "range"])
def test_metadata_of_images_in_memory_and_in_parts_of_files(tmp_path, kind):
    class Encoded(torch.utils.data.Dataset):
        transform = staticmethod(described)

        def __len__(self):
            return len(paths)

        def feedmill_item(self, index):
            data = paths[index].read_bytes()
            return (data if kind == "bytes" else (str(joined), starts[index], len(data))), index

        def __getitem__(self, index):
            image = Image.open(io.BytesIO(paths[index].read_bytes())).convert("RGB")
            return self.transform(image), index

    (tmp_path / "parts").mkdir()
    paths = jpegs_with_metadata(tmp_path / "parts")
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(path.read_bytes() for path in paths))
    sizes = [path.stat().st_size for path in paths]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    options = {"batch_size": 4, "collate_fn": list}
    ours = hybrid(Encoded(), **options)
    assert batches_of(ours) == batches_of(TorchDataLoader(Encoded(), **options))
    assert ours.stats().path == "hybrid"


def test_metadata_of_other_formats(tmp_path):
    picture = Image.fromarray(helpers.pixels(20, 10, seed=1))
    text = PngImagePlugin.PngInfo()
    text.add(b"tEXt", b"Title\0a text", after_idat=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "text.png", pnginfo=text, dpi=(100, 100))
    picture.save(tmp_path / "exif.png", exif=exif)
    picture.save(tmp_path / "colour.png", transparency=(1, 2, 3))
    picture.convert("P").save(tmp_path / "palette.png", transparency=7)
    picture.save(tmp_path / "exif.webp", exif=exif)
    picture.convert("P").save(tmp_path / "colour.gif", transparency=7, comment=b"a comment")
    dataset = ImageList(sorted(tmp_path.iterdir()), transform=described)
    options = {"batch_size": 4, "collate_fn": list}
    assert batches_of(hybrid(dataset, **options)) == batches_of(TorchDataLoader(dataset, **options))


# ---- errors --------------------------------------------------------------------------------------


def outcomes(loader):
    """The result of each next(): a batch's targets, or an error's type and the first line of its
    text, without the sample's name, which torch's errors do not have."""
    found, iterator = [], iter(loader)
    while True:
        try:
            found.append(next(iterator)[1].tolist())
        except StopIteration:
            return found
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            text = re.sub(r" \[dataset index.*?\]", "", str(error))
            found.append((type(error), text.splitlines()[0]))


class Refusing:
    def __init__(self, *sizes):
        self.sizes = sizes

    def __call__(self, image):
        if image.size[0] in self.sizes:
            raise ValueError(f"width {image.size[0]}")
        return torch.zeros(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_equal_torchs(small_images, tmp_path, workers):
    files = sorted(small_images.rglob("*.jpg"))
    (tmp_path / "bad.jpg").write_text("no image")
    paths = [*files[:5], tmp_path / "bad.jpg", *files[5:12], tmp_path / "none.jpg", *files[12:20]]
    dataset = ImageList(paths, transform=Refusing(Image.open(files[2]).size[0]))
    options = {"batch_size": 2, "num_workers": workers}
    ours = outcomes(hybrid(dataset, **options))
    assert ours == outcomes(TorchDataLoader(dataset, **options))
    assert [type(one) for one in ours].count(tuple) == 3


def test_errors_name_the_sample(small_images):
    dataset = ImageFolder(str(small_images), Refusing(20))
    with pytest.raises(ValueError, match=r"width 20.*dataset index 0, file '.*000.jpg'"):
        next(iter(hybrid(dataset)))
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
        next(iter(hybrid(dataset, num_workers=1)))


def test_an_index_out_of_range_raises_with_its_batch(images):
    options = {"batch_sampler": [[0, 1], [2, 99], [3]]}
    assert outcomes(hybrid(images, **options)) == outcomes(TorchDataLoader(images, **options))


def test_samples_of_different_sizes(small_images):
    dataset = ImageFolder(str(small_images), T.ToTensor())  # all sizes are different
    loader = hybrid(dataset, batch_size=4)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(loader))
    assert loader.stats().path == "hybrid"


def test_timeout(images):
    may_go_on = threading.Event()
    images.transform = lambda image: may_go_on.wait()
    try:
        with pytest.raises(RuntimeError, match="DataLoader timed out after 0.1 seconds"):
            next(iter(hybrid(images, num_workers=1, timeout=0.1)))
    finally:
        may_go_on.set()


# ---- threads -------------------------------------------------------------------------------------


def test_the_transform_runs_in_several_threads_at_once(images):
    together = threading.Barrier(3, timeout=300)

    def meet(image):
        together.wait()
        assert torch.get_num_threads() == 1
        return threading.current_thread().name

    images.transform = meet
    n_intra_op = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        loader = hybrid(images, batch_size=3, sampler=range(39))
        names = {name for batch, _ in loader for name in batch}
        assert names == {"feedmill-0", "feedmill-1", "feedmill-2"}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(n_intra_op)


def n_hybrid_threads():
    return sum(one.name.startswith("feedmill-") for one in threading.enumerate())


def test_threads_end_with_the_iterator(images):
    def wait_until_none():
        deadline = time.monotonic() + 240
        while n_hybrid_threads() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert n_hybrid_threads() == 0

    gc.collect()  # frees iterators of other tests that tracebacks still hold
    wait_until_none()
    iterator = iter(hybrid(images, batch_size=2))
    next(iterator)
    assert n_hybrid_threads() == 3
    del iterator
    wait_until_none()
    for _ in hybrid(images, batch_size=2):
        break
    wait_until_none()


def test_persistent_workers_across_paths(images):
    options = {"batch_size": 8, "num_workers": 2, "persistent_workers": True, "shuffle": True}
    ours, theirs = hybrid(images, **options), TorchDataLoader(images, **options)
    torch.manual_seed(3)
    mine = [batch[1].tolist() for _ in range(3) for batch in ours]
    torch.manual_seed(3)
    assert mine == [batch[1].tolist() for _ in range(3) for batch in theirs]
    # From one path to the other, and back.
    images.transform = compose(T.Resize((8, 9)), T.PILToTensor())
    assert len(list(ours)) == 5 and ours.stats().path == "native"
    images.transform = invert
    assert len(list(ours)) == 5 and ours.stats().path == "hybrid"
    assert ours.stats().epochs == 5


def test_an_iterator_raises_after_a_fork(images):
    iterator = iter(hybrid(images))
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit("another process" not in str(error))
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


# ---- explain() and report() ----------------------------------------------------------------------


def test_hybrid_is_shown_in_explain_and_report(images):
    loader = hybrid(images, batch_size=8)
    text = loader.explain()
    assert text.startswith("hybrid: JPEGs are decoded natively") and "not reproducible by a seed" in text
    images.transform = lambda image: (time.sleep(0.002), invert(image))[1]
    list(loader)
    stats = loader.stats()
    assert stats.decode.hybrid_transform_ns > 40 * 2_000_000 and stats.decode.hybrid_decode_ns > 0
    assert stats.waits.python_ns + stats.waits.decode_ns == stats.waits.data_wait_ns
    report = loader.report()
    assert "40 samples in 5 hybrid batches" in report and "in the transform" in report
    assert any(text in report.splitlines()[0] for text in ("transform-bound", "decode-bound", "no stall", "start"))
    before = stats
    images.transform = compose(T.Resize((8, 9)), T.PILToTensor())
    list(loader)
    assert (loader.stats() - before).decode.hybrid_batches == 0


# ---- arrays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"batch_size": 3}, {"batch_size": 4, "num_workers": 2, "shuffle": True},
])
@pytest.mark.parametrize("direct", [False, True])
def test_npy_folder(tmp_path, options, direct):
    arrays = [np.random.default_rng(i).normal(size=(40, 30)) for i in range(10)]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
    for transform in (None, torch.from_numpy, lambda array: array[::2].mean()):
        dataset = NpyFolder(tmp_path, transform=transform, direct=direct)
        loader = hybrid(dataset, **options)
        assert same(batches_of(loader), batches_of(TorchDataLoader(dataset, **options)))
        is_python = direct or transform not in (None, torch.from_numpy)
        assert loader.stats().path == ("hybrid" if is_python else "native")
    assert 'with native="hybrid"' in feedmill.DataLoader(dataset).explain()


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_arrays(tmp_path, workers):
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.ones(3))
    with open(tmp_path / "2.npy", "ab") as file:
        file.write(b"more")
    options = {"batch_size": 2, "num_workers": workers}
    ours = outcomes(hybrid(NpyFolder(tmp_path), **options))
    assert ours == outcomes(TorchDataLoader(NpyFolder(tmp_path), **options))
    assert ours[0] == [0, 1] and type(ours[1]) is tuple
