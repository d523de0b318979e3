"""dtype=, memory_format= and transforms that end in a 16-bit type: values and strides of .to()."""

import pickle
import platform
from collections import namedtuple

import feedmill
import helpers
import pytest
import torch
from feedmill._ops import native
from feedmill.iterators.pillow_fallback import write_sample
from feedmill.planner.formats import FormattingCollate
from feedmill.planner.plan import CENTER_CROP, Op
from feedmill.planner.recognise import recognise
from helpers import MEAN, STD, assert_same_image, compose, native_loader, save_jpeg
from PIL import Image
from test_pinned import pinned  # noqa: F401
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, TensorDataset, default_collate
from torchvision import transforms as T
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (None, torch.float32, *HALVES)
FORMATS = (torch.contiguous_format, torch.channels_last)
EACH = [(dtype, layout) for dtype in DTYPES for layout in FORMATS]
ON_BOTH = [EACH[2], EACH[5], EACH[6]]
SIZE = (37, 53)
TO_FLOAT = (T.ToTensor(), T.Normalize(MEAN, STD))
RANDOM = (T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip())

# Transforms from a PIL image to a tensor.
PIXELS = {
    "uint8": (T.PILToTensor(),),
    "to_tensor": (T.ToTensor(),),
    "normalize": TO_FLOAT,
    "one_mean": (T.ToTensor(), T.Normalize([0.5], [0.25])),
    "v2_uint8": (v2.ToImage(), v2.ToPureTensor()),
    "v2": (v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)),
}
for _half in HALVES:
    PIXELS[f"convert_{_half}"] = (T.ToTensor(), T.ConvertImageDtype(_half))
    PIXELS[f"convert_uint8_{_half}"] = (T.PILToTensor(), T.ConvertImageDtype(_half))
    PIXELS[f"half_then_normalize_{_half}"] = (
        T.ToTensor(), T.ConvertImageDtype(_half), T.Normalize(MEAN, STD)
    )
    PIXELS[f"normalize_then_half_{_half}"] = (*TO_FLOAT, T.ConvertImageDtype(_half))
    PIXELS[f"v2_half_{_half}"] = (v2.ToImage(), v2.ToDtype(_half, scale=True))
    PIXELS[f"v2_unscaled_{_half}"] = (v2.PILToTensor(), v2.ToDtype(_half))
    PIXELS[f"v2_half_then_normalize_{_half}"] = (
        v2.ToImage(), v2.ToDtype(_half, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()
    )
    PIXELS[f"v2_normalize_then_half_{_half}"] = (
        v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
        v2.ToDtype(_half), v2.RandomHorizontalFlip(1.0),
    )
    PIXELS[f"half_and_back_{_half}"] = (
        *TO_FLOAT, T.ConvertImageDtype(_half), T.ConvertImageDtype(torch.float32)
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of twelve images, large, small and noisy; one of them is not decoded natively."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(11):
        save_jpeg(root / "a" / f"{i:02}.jpg", 40 + 15 * i, 200 - 13 * i, seed=i)
    Image.fromarray(helpers.pixels(90, 70, 5)).save(root / "a" / "11.bmp")
    return root


def assert_same_batch(got, wanted, what=""):
    """Compares types, values and strides."""
    assert type(got) is type(wanted) and len(got) == len(wanted) == 2
    assert_same_image(got[0], wanted[0], what)
    assert type(got[0]) is type(wanted[0])
    assert got[0].stride() == wanted[0].stride(), what
    assert torch.equal(got[1], wanted[1]), what


def all_of(loader):
    images, targets = zip(*loader)
    return torch.cat(images), torch.cat(targets)


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pixels", PIXELS.values(), ids=PIXELS.keys())
def test_values_equal_those_of_to(photos, pixels):
    """On the native path, on torch's path, and with torch's DataLoader and .to()."""
    dataset = ImageFolder(str(photos), compose(T.Resize(60), T.CenterCrop(SIZE), *pixels))
    images, targets = all_of(TorchDataLoader(dataset, batch_size=5))
    for dtype, layout in EACH:
        wanted = [images if dtype is None else images.to(dtype), targets]
        wanted[0] = wanted[0].contiguous(memory_format=layout)
        options = {"batch_size": 12, "dtype": dtype, "memory_format": layout}
        for mode in ("require", "off") if (dtype, layout) in ON_BOTH else ("require",):
            (got,) = feedmill.DataLoader(dataset, native=mode, **options)
            assert_same_batch(got, wanted, f"{mode}, {dtype}, {layout}")
            assert got[0].is_contiguous(memory_format=layout)


@pytest.mark.parametrize(("dtype", "layout"), EACH)
@pytest.mark.parametrize("pixels", [PIXELS["uint8"], PIXELS["v2"]])
def test_random_draws(photos, pixels, dtype, layout):
    dataset = ImageFolder(str(photos), compose(*RANDOM, *pixels))
    loader = native_loader(dataset, batch_size=5, seed=3, dtype=dtype, memory_format=layout)
    images, _ = all_of(loader)
    for index in range(1, 12, 2):
        image, _ = loader.fetch(index, 0)
        wanted = helpers.reference(loader, index, 0).as_subclass(torch.Tensor)
        wanted = wanted if dtype is None else wanted.to(dtype)
        assert_same_image(image, wanted, f"fetch({index})")
        assert_same_image(images[index], wanted, f"index {index}")
        assert image.stride() == wanted[None].contiguous(memory_format=layout)[0].stride()
    assert loader.stats().decode.fallback_samples >= 1  # the BMP
    (batch,) = native_loader(dataset, batch_size=12, native="verify", seed=3, dtype=dtype,
                             memory_format=layout)
    assert_same_image(batch[0], images, "verified")


# Those that there are for this kind of processor.
TIERS = ["scalar", "neon"] if platform.machine() == "aarch64" else ["scalar", "sse41", "avx2"]


@pytest.mark.parametrize("tier", TIERS)
def test_every_tier(photos, monkeypatch, tier):
    dataset = ImageFolder(str(photos), compose(T.Resize(SIZE), *TO_FLOAT))
    wanted = torch.stack([image for image, _ in dataset])
    monkeypatch.setenv("FEEDMILL_CPU", tier)
    for dtype, layout in EACH:
        loader = native_loader(dataset, batch_size=12, dtype=dtype, memory_format=layout)
        for images, _ in loader:
            assert_same_image(images, wanted if dtype is None else wanted.to(dtype), dtype)


def change_type(steps):
    steps[1].dtype = torch.float64


def change_value(steps):
    steps[2].mean = [0.485, 0.456, 0.407]


@pytest.mark.parametrize("change", [change_type, change_value])
def test_verify_finds_a_changed_type_or_value(photos, change):
    """dtype= does not hide a change in what the transform returns."""
    steps = [T.PILToTensor(), T.ConvertImageDtype(torch.float32), T.Normalize(MEAN, STD)]
    dataset = ImageFolder(str(photos), compose(T.Resize(SIZE), *steps))
    loader = native_loader(dataset, native="verify", dtype=torch.float16)
    iterator = iter(loader)
    next(iterator)
    change(steps)
    with pytest.raises(feedmill.VerificationError) as caught:
        list(iterator)
    if change is change_type:
        assert "torch.float16 natively, (3, 37, 53) of torch.float64" in str(caught.value)


# ---- collate_fn and datasets ---------------------------------------------------------------------


def stacked(samples):
    return [torch.stack([image for image, _ in samples]), [image for image, _ in samples]]


def doubled(samples):
    images, targets = default_collate(samples)
    return images * 2, targets


def first_is_no_image(samples):
    return [torch.ones(3), default_collate(samples)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("dtype", "layout"), [(None, FORMATS[1]), *EACH[4:]])
@pytest.mark.parametrize("collate_fn", [stacked, doubled, first_is_no_image])
def test_a_collate_fn_gets_converted_samples(small_images, collate_fn, dtype, layout, num_workers):
    """On both paths, samples have the type and the strides; the collated batch gets its strides."""
    dataset = ImageFolder(str(small_images), compose(T.Resize(SIZE), *TO_FLOAT))
    options = {"batch_size": 20, "collate_fn": collate_fn, "dtype": dtype, "memory_format": layout}
    for ours, torchs in zip(
        native_loader(dataset, **options),
        feedmill.DataLoader(dataset, native="off", num_workers=num_workers, **options),
    ):
        assert type(ours) is type(torchs)
        assert ours[0].stride() == torchs[0].stride() and torch.equal(ours[0], torchs[0])
        if collate_fn is not first_is_no_image:
            assert ours[0].is_contiguous(memory_format=layout)
            assert ours[0].dtype is (dtype or torch.float32)
        if collate_fn is stacked:
            for mine, other in zip(ours[1], torchs[1]):
                assert_same_image(mine, other, "a sample")
                assert mine.stride() == other.stride()
                assert mine.untyped_storage().nbytes() == mine.nbytes
                assert mine.data_ptr() != ours[0].data_ptr()


@pytest.mark.parametrize(("dtype", "layout"), EACH)
def test_without_batching(small_images, dtype, layout):
    dataset = ImageFolder(str(small_images), compose(T.Resize(SIZE), *TO_FLOAT))
    options = {"batch_size": None, "dtype": dtype, "memory_format": layout}
    pairs = zip(native_loader(dataset, **options), feedmill.DataLoader(dataset, native="off", **options))
    for ours, torchs in pairs:
        assert_same_image(ours[0], torchs[0], "a sample")
        assert type(ours) is type(torchs) and ours[0].stride() == torchs[0].stride()


@pytest.mark.parametrize("dtype", HALVES)
def test_samples_stay_tv_tensors(small_images, dtype):
    dataset = ImageFolder(str(small_images), v2.Compose([v2.Resize(SIZE), v2.ToImage()]))
    options = {"batch_size": 4, "dtype": dtype, "memory_format": torch.channels_last}
    for mode in ("require", "off"):
        samples = next(iter(feedmill.DataLoader(dataset, native=mode, collate_fn=list, **options)))
        assert type(samples[0][0]) is tv_tensors.Image and samples[0][0].dtype is dtype
        assert samples[0][0].stride() == (1, 3 * SIZE[1], 3)
        images, _ = next(iter(feedmill.DataLoader(dataset, native=mode, **options)))
        assert type(images) is torch.Tensor


def test_a_batch_larger_than_a_native_batch(small_images):
    """A batch that is larger than the native loader's limit is assembled from several."""
    dataset = ImageFolder(str(small_images), compose(T.Resize(SIZE), *TO_FLOAT))
    loader = native_loader(dataset, batch_sampler=[[0], [1, 2, 3]], dtype=torch.bfloat16,
                           memory_format=torch.channels_last)
    _, (images, _) = list(loader)
    wanted = torch.stack([dataset[i][0] for i in (1, 2, 3)]).to(torch.bfloat16)
    assert_same_image(images, wanted, "a batch in parts")
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize(("dtype", "layout"), EACH)
def test_pinned_batches(pinned, photos, dtype, layout):  # noqa: F811
    allocations, _ = pinned
    dataset = ImageFolder(str(photos), compose(T.Resize(SIZE), *TO_FLOAT))
    options = {"batch_size": 5, "dtype": dtype, "memory_format": layout}
    pairs = zip(native_loader(dataset, pin_memory=True, **options), native_loader(dataset, **options))
    for got, wanted in pairs:
        assert_same_batch(got, wanted)
        assert got[0].data_ptr() in {address for address, _ in allocations}


# ---- torch's path --------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["image", "target"])


class Made(Dataset):
    """A dataset without a native path, whose samples a function makes."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.make(torch.full((3, 4, 5), float(index)) / 3)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_other_datasets(num_workers):
    options = {"batch_size": 4, "dtype": torch.float16, "memory_format": torch.channels_last,
               "num_workers": num_workers}
    images = (torch.arange(4.0) / 3).to(torch.float16)[:, None, None, None].expand(4, 3, 4, 5)
    (got,) = feedmill.DataLoader(Made(image_alone), **options)
    assert torch.equal(got, images) and got.stride() == (60, 1, 15, 3)
    (got,) = feedmill.DataLoader(Made(pair_of), **options)
    assert type(got) is Pair and torch.equal(got.image, images)
    assert got.image.stride() == (60, 1, 15, 3) and got.target.dtype is torch.float32
    # The dataset returns whole batches.
    whole = TensorDataset(torch.rand(2, 6, 3, 4, 5), torch.rand(2, 6))
    for got in feedmill.DataLoader(whole, **{**options, "batch_size": None}):
        assert got[0].dtype is torch.float16 and got[0].stride() == (60, 1, 15, 3)
        assert got[1].dtype is torch.float32


def image_alone(image):
    return image


def pair_of(image):
    return Pair(image, image.sum())


def test_samples_without_an_image():
    makers = {
        "not a dict": lambda image: {"image": image},
        "not a int": lambda image: 3,
        r"not \(4, 5\)": lambda image: (image[0], 0),
        "of torch.int64": lambda image: (image.long(), 0),
    }
    for words, make in makers.items():
        with pytest.raises(TypeError, match=words):
            list(feedmill.DataLoader(Made(make), dtype=torch.float16))
        list(feedmill.DataLoader(Made(make)))  # without options samples are not inspected


def test_the_attribute_collate_fn_does_not_change(numbered):
    loader = feedmill.DataLoader(numbered, native="off", dtype=torch.float16)
    next(iter(loader))
    assert loader.collate_fn is default_collate
    loader.collate_fn = None  # torch's iterator fails only at its first batch
    with pytest.raises(TypeError):
        next(iter(loader))
    assert loader.collate_fn is None
    pickle.loads(pickle.dumps(FormattingCollate(list, False, True, torch.half, FORMATS[1])))


# ---- changes of options --------------------------------------------------------------------------


def test_a_change_takes_effect_at_the_next_epoch(numbered):
    loader = native_loader(numbered, batch_size=8)
    assert next(iter(loader))[0].dtype is torch.uint8
    loader.dtype, loader.memory_format = torch.bfloat16, torch.channels_last
    loader = pickle.loads(pickle.dumps(loader))
    images, _ = next(iter(loader))
    assert images.dtype is torch.bfloat16 and images.stride() == (192, 1, 24, 3)
    loader.native = "off"
    assert_same_image(next(iter(loader))[0], images, "torch's path")


def _stacked(samples):
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def test_persistent_workers_see_a_change_of_the_layout(numbered):
    loader = native_loader(numbered, batch_size=8, num_workers=2, persistent_workers=True,
                           collate_fn=_stacked)
    for memory_format, stride in [
        (torch.contiguous_format, (192, 64, 8, 1)),
        (torch.channels_last, (192, 1, 24, 3)),
        (torch.contiguous_format, (192, 64, 8, 1)),
    ]:
        loader.memory_format = memory_format
        assert all(images.stride() == stride for images, _ in loader if len(images) == 8)


class _Pair(tuple):
    pass


class _PairList(list):
    pass


class _Typed(torch.utils.data.Dataset):
    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.kind((torch.ones(3, 2, 2), index))


def test_sample_classes_are_kept_or_refused():
    options = {"batch_size": 2, "collate_fn": list, "dtype": torch.float16}
    (batch,) = feedmill.DataLoader(_Typed(_PairList), **options)
    assert all(type(one) is _PairList and one[0].dtype is torch.float16 for one in batch)
    with pytest.raises(TypeError, match="a _Pair can't be copied"):
        list(feedmill.DataLoader(_Typed(_Pair), **options))


def test_explain_shows_conversions(small_images, capsys):
    dataset = ImageFolder(str(small_images), compose(T.Resize(SIZE), *TO_FLOAT))
    assert "Resize(37, 53) -> float32; pixels" in native_loader(dataset).explain()
    loader = native_loader(dataset, dtype=torch.float16, memory_format=torch.channels_last)
    assert "Resize(37, 53) -> float32 -> float16, channels_last; pixels" in loader.explain()
    loader.native = "off"
    assert loader.explain().splitlines()[-2:] == [
        "images are converted to torch.float16 before collate_fn gets them",
        "images of a batch get the strides of torch.channels_last",
    ]


def test_old_pickles_have_the_defaults(numbered):
    loader = native_loader(numbered, batch_size=8)
    state = loader.__getstate__()
    del state["dtype"], state["memory_format"]
    loader = object.__new__(feedmill.DataLoader)
    loader.__setstate__(state)
    assert next(iter(loader))[0].dtype is torch.uint8


def test_the_native_loader_checks_its_arguments():
    options = {"ops": [Op(CENTER_CROP, 8, 8)], "n_samples": 1, "batch_size": 1}
    with pytest.raises(ValueError, match="it must be one of 'nchw', 'nhwc'"):
        native.Loader(dtype="uint8", layout="hwc", **options)
    with pytest.raises(ValueError, match="3072 bytes; it must be 3 x 256 values of 2 bytes"):
        native.Loader(dtype="bfloat16", value_table=bytes(3072), **options)
    with pytest.raises(ValueError, match="1536 bytes; it must be 3 x 256 values of 4 bytes"):
        native.Loader(dtype="float32", value_table=bytes(1536), **options)
    for op in (tuple(Op(CENTER_CROP, 8, 8))[:9], list(Op(CENTER_CROP, 8, 8))):
        with pytest.raises(TypeError, match="an op must be a tuple .kind, height, width,"):
            native.Loader(dtype="uint8", **{**options, "ops": [op]})


@pytest.mark.parametrize(("dtype", "layout"), EACH[2:])
def test_a_fallback_sample_is_written_in_the_batchs_layout(numbered, dtype, layout):
    plan = recognise(native_loader(numbered, dtype=dtype, memory_format=layout)).source.plan
    image = torch.randn(3, 4, 5).to(dtype).permute(0, 2, 1).contiguous().permute(0, 2, 1)
    out = bytearray(3 * 4 * 5 * dtype.itemsize)
    write_sample(image, out, (3, 4, 5), plan)
    shape = (1, 4, 5, 3) if layout is torch.channels_last else (1, 3, 4, 5)
    written = torch.frombuffer(out, dtype=dtype).view(shape)
    written = written.permute(0, 3, 1, 2) if layout is torch.channels_last else written
    assert_same_image(written[0], image, "written")
    with pytest.raises(RuntimeError, match="the transform gave"):
        write_sample(image.double(), out, (3, 4, 5), plan)
