"""to_tensor() and normalize() while images are deferred: torchvision's values, types and errors."""

import math
import warnings

import helpers
import numpy as np
import pytest
import torch
from feedmill import deferred_images
from feedmill._ops import native
from feedmill.deferred import patches, replacements, tensors, tensors_of_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms, tv_tensors
from torchvision.transforms import functional, v2

pytestmark = pytest.mark.skipif(bool(patches.why_not()), reason=patches.why_not())

with deferred_images():
    pass  # installs


@pytest.fixture
def used(monkeypatch):
    """The calls of native kernels."""
    calls = []

    def counted(name):
        function = getattr(native, name)

        def call(*arguments):
            calls.append(name)
            return function(*arguments)

        return call

    class Counting:
        scale_pixels, normalize = counted("scale_pixels"), counted("normalize")
        scale_bytes, normalize_pixels = counted("scale_bytes"), counted("normalize_pixels")

    monkeypatch.setattr(tensors, "native", Counting)
    monkeypatch.setattr(tensors_of_bytes, "native", Counting)
    return calls


def outcome(function, *arguments, **options):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = function(*arguments, **options)
        except Exception as error:
            return type(error), str(error)
    if isinstance(result, torch.Tensor):
        result = (type(result), result.dtype, result.shape, result.stride(), result.requires_grad,
                  result.is_contiguous(), result.untyped_storage().nbytes(),
                  result.detach().numpy().tobytes())
    return result, [str(one.message) for one in seen]


def check(function, *arguments, **options):
    """Compares a call with the same one while images are deferred. Then torchvision's functions are
    others, which are found by their names."""
    name = getattr(function, "__name__", "")
    is_torchvisions = getattr(functional, name, None) is function
    with deferred_images():
        within = getattr(functional, name) if is_torchvisions else function
        ours = outcome(within, *arguments, **options)
    assert ours == outcome(function, *arguments, **options)
    return ours


def test_both_functions_are_used(used):
    image = Image.fromarray(helpers.pixels(31, 22))
    chain = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.2] * 3)])
    check(chain, image)
    assert used == ["scale_pixels", "normalize"]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "1", "P", "I", "F", "I;16", "YCbCr"])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2), (23, 5), (300, 7)])
def test_images(mode, size):
    image = Image.new(mode, size) if mode == "I;16" else (
        Image.fromarray(helpers.pixels(*size)).convert(mode))
    check(functional.to_tensor, image)
    check(functional.pil_to_tensor, image)


def test_all_bytes_in_all_channels():
    values = np.arange(256, dtype=np.uint8)
    for roll in range(0, 256, 37):
        check(functional.to_tensor, Image.fromarray(
            np.stack([values, np.roll(values, roll), values[::-1]], -1)[None].repeat(2, 0)))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 70), st.integers(2, 70), st.booleans())
def test_deferred_and_plain(tmp_path_factory, width, height, crop):
    path = tmp_path_factory.mktemp("images") / "image.jpg"
    helpers.save_jpeg(path, 90, 80, seed=width)

    def make():
        image = Image.open(path).convert("RGB")
        if crop:
            image = image.crop((3, 5, 3 + width, 5 + height))
        return functional.to_tensor(image.resize((width, height)))

    check(make)


def test_files_that_are_not_loaded(tmp_path):
    path = tmp_path / "image.jpg"
    helpers.save_jpeg(path, 90, 80, seed=3)
    check(lambda: functional.to_tensor(Image.open(path)))
    path.write_bytes(path.read_bytes()[:-300])
    check(lambda: functional.to_tensor(Image.open(path)))
    check(lambda: functional.to_tensor(Image.open(path).convert("RGB")))
    image = Image.open(path)
    image.close()
    check(functional.to_tensor, image)


def test_other_arguments():
    class Own(Image.Image):
        pass

    own = Own()
    own.__dict__.update(vars(Image.fromarray(helpers.pixels(8, 9))))
    for value in (own, helpers.pixels(8, 9), helpers.pixels(8, 9)[0], None, "text", [1],
                  torch.zeros(3, 4, 5)):
        check(functional.to_tensor, value)
    check(functional.to_tensor)
    check(functional.to_tensor, 1, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_default_dtype(dtype, used):
    torch.set_default_dtype(dtype)
    try:
        check(functional.to_tensor, Image.fromarray(helpers.pixels(8, 9)))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not used


floats = st.one_of(
    st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan, math.inf, 1e-45, 3e38, 0.5]))


@settings(max_examples=300, deadline=None)
@given(st.lists(floats, min_size=12, max_size=12), st.lists(floats, min_size=3, max_size=3),
       st.lists(floats, min_size=3, max_size=3), st.sampled_from([list, tuple]))
def test_normalize_values(values, mean, std, kind):
    check(functional.normalize, torch.tensor(values).view(3, 2, 2), kind(mean), kind(std))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=30, max_size=30))
def test_normalize_all_bits(bits):
    tensor = torch.from_numpy(np.array(bits, np.uint32).view(np.float32)).view(3, 2, 5)
    check(functional.normalize, tensor, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def test_normalize_other_arguments(used):
    image = torch.rand(3, 8, 9)
    mean, std = [0.4, 0.5, 0.6], [0.1, 0.2, 0.3]
    others = (
        image.double(), image.half(), image.to(torch.uint8), image[0], image[None],
        image.transpose(1, 2), image[:, ::2], image.expand(3, 8, 9), image[:1], torch.zeros(3, 0, 9),
        torch.zeros(3, 1, 1), image.clone().requires_grad_(), tv_tensors.Image(image), None,
        image.permute(1, 2, 0).contiguous().permute(2, 0, 1), torch.rand(3, 8, 1),
        torch.nn.Parameter(image), torch.rand(3, 8, 9, dtype=torch.cfloat).conj().imag,
        image.to("meta"),
    )
    for value in others:
        check(functional.normalize, value, mean, std)
    used.clear()
    for one, other in (
        ([0, 0, 0], std), (0.5, std), ([0.5], std), (mean, [0.1]), (mean, [0.1, 0.0, 0.1]),
        (torch.tensor(mean), torch.tensor(std)), (np.array(mean), std), (mean, [math.nan] * 3),
        ([1e39] * 3, std), (mean, [1e-50] * 3), (mean[:2], std), (["a"] * 3, std), (None, None),
        ([True, 0.5, 0.5], std), ([np.float64(0.5)] * 3, std),
    ):
        check(functional.normalize, image, one, other)
    check(functional.normalize, image)
    assert not used
    check(functional.normalize, tensor=image, mean=mean, std=std)
    assert used == ["normalize"]
    copy = image.clone()
    with deferred_images():
        assert functional.normalize(copy, mean, std, True) is copy
    assert used == ["normalize"] and torch.equal(copy, functional.normalize(image, mean, std))


def test_scripts_and_graphs():
    image = torch.rand(3, 8, 9)
    step = transforms.Normalize([0.4, 0.5, 0.6], [0.1, 0.2, 0.3])
    scripted = torch.jit.script(step)
    with deferred_images():
        assert torch.equal(scripted(image), step(image))
        traced = torch.jit.trace(step, image)
        assert torch.equal(traced(2 * image), step(2 * image))


def test_foreign_functions_stay(monkeypatch):
    def foreign(pic):
        return "theirs"

    monkeypatch.setattr(tensors, "_is_installed", False)
    monkeypatch.setattr(tensors, "_compared", {})
    monkeypatch.setattr(replacements, "_all", [])
    monkeypatch.setattr(functional, "to_tensor", foreign)
    with deferred_images():
        assert functional.to_tensor is foreign
        assert functional.to_tensor(Image.new("RGB", (4, 4))) == "theirs"


@pytest.mark.parametrize("name", ["scale_pixels", "normalize"])
def test_differing_kernels_are_not_used(monkeypatch, name):
    original = {"scale_pixels": functional.to_tensor, "normalize": functional.normalize}[name]

    class Wrong:
        scale_pixels, normalize = native.scale_pixels, native.normalize

    setattr(Wrong, name, staticmethod(lambda *_: True))
    monkeypatch.setattr(tensors, "native", Wrong)
    monkeypatch.setattr(tensors, "_is_installed", False)
    monkeypatch.setattr(tensors, "_compared", {})
    monkeypatch.setattr(replacements, "_all", [])
    with deferred_images():
        assert getattr(functional, original.__name__) is original


def photo(tmp_path, size=(90, 80)):
    """Makes an image that is deferred within a block."""
    path = tmp_path / "image.jpg"
    if not path.exists():
        helpers.save_jpeg(path, *size, seed=3)
    return Image.open(path).convert("RGB")


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def test_chains_of_bytes_and_floats(tmp_path, used):
    kinds = {
        "v1": [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float32),
               transforms.Normalize(MEAN, STD)],
        "v2": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
        "v2, plain": [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True),
                      v2.Normalize(MEAN, STD)],
        "v2, pure": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
                     v2.ToPureTensor()],
    }
    for name, steps in kinds.items():
        for n in range(1, len(steps) + 1):
            for before in ([], [v2.CenterCrop(40), v2.Resize((33, 21))]):
                used.clear()
                step = transforms.Compose([*before, *steps[:n]])
                check(lambda step=step: step(photo(tmp_path)))
                assert used == ["scale_bytes", "normalize_pixels"][: max(0, n - 1)], name


@pytest.mark.parametrize("set_type", ["TVTensor", "Tensor"])
def test_types_of_v2(tmp_path, set_type):
    with tv_tensors.set_return_type(set_type):
        check(lambda: v2.functional.to_image(photo(tmp_path)))
        image = v2.functional.to_image(photo(tmp_path))
        check(v2.functional.to_dtype, image, torch.float32, True)
        check(v2.functional.normalize, v2.functional.to_dtype(image, torch.float32, True), MEAN, STD)


def test_tensors_of_pillow_images_are_writable(tmp_path):
    with deferred_images():
        source = photo(tmp_path)
        one, other = functional.pil_to_tensor(source), functional.pil_to_tensor(source)
    want = other.clone()
    one.fill_(7)
    assert torch.equal(other, want)
    assert torch.equal(functional.pil_to_tensor(source), want)
    assert one._base is not None and one.untyped_storage().nbytes() == 90 * 80 * 3
    del source
    assert torch.equal(other, want)


def test_pillow_images_that_are_not_deferred(tmp_path):
    check(lambda: functional.pil_to_tensor(photo(tmp_path)))
    check(lambda: functional.pil_to_tensor(photo(tmp_path).convert("L")))
    check(lambda: functional.pil_to_tensor(photo(tmp_path).crop((3, 4, 4, 30))))
    check(lambda: functional.pil_to_tensor(photo(tmp_path).crop((80, 4, 130, 30))))
    path = tmp_path / "image.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    check(lambda: functional.pil_to_tensor(Image.open(path)))
    check(lambda: functional.pil_to_tensor(photo(tmp_path)))

    def replaced():
        image = photo(tmp_path)
        image.tobytes = lambda *_: b"no pixels"
        return functional.pil_to_tensor(image)

    check(replaced)
    for value in (None, "text", helpers.pixels(4, 5), torch.zeros(3, 4, 5)):
        check(functional.pil_to_tensor, value)
        check(v2.functional.pil_to_tensor, value)
        check(v2.functional.to_image, value)


def bytes_of(height, width, n=3):
    values = torch.arange(n * height * width).to(torch.uint8).view(height, width, n)
    return values.permute(2, 0, 1)


@pytest.mark.parametrize("function", [
    lambda image, dtype: functional.convert_image_dtype(image, dtype),
    lambda image, dtype: v2.functional.to_dtype(image, dtype, scale=True),
    lambda image, dtype: v2.functional.to_dtype(tv_tensors.Image(image), dtype, scale=True),
    lambda image, dtype: v2.functional.to_dtype(tv_tensors.Mask(image), dtype, scale=True),
    lambda image, dtype: v2.functional.to_dtype(image, dtype),
    lambda image, dtype: v2.ConvertImageDtype(dtype)(image),
])
def test_floats_of_bytes(function):
    image = bytes_of(32, 24)
    for one in (image, image.contiguous(), image[:, ::2], image.transpose(1, 2), image[:1], image[0],
                image[None], bytes_of(1, 9), bytes_of(9, 1), bytes_of(1, 1), bytes_of(5, 7, 4),
                bytes_of(2, 2), image[:, :0], image.float(), image.to(torch.int32), image > 3,
                image.to("meta"), image.expand(3, 32, 24), image.clone().resize_(3, 7, 5),
                None, "text"):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.uint8, torch.int64, None):
            if one is None or isinstance(one, str) or one.device.type == "cpu":
                check(function, one, dtype)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 40), st.integers(2, 40), st.lists(floats, min_size=3, max_size=3),
       st.lists(floats, min_size=3, max_size=3), st.booleans(), st.integers(0, 1 << 30))
def test_normalize_of_interleaved_values(height, width, mean, std, of_bits, seed):
    generator = np.random.default_rng(seed)
    bits = generator.integers(0, 1 << 32, (height, width, 3), dtype=np.uint32)
    values = bits.view(np.float32) if of_bits else (bits >> 24).astype(np.float32) / 255
    image = torch.from_numpy(values).permute(2, 0, 1)
    check(functional.normalize, image, mean, std)
    check(v2.functional.normalize, image, mean, std)
    check(v2.functional.normalize, tv_tensors.Image(image), mean, std)
    check(v2.functional.normalize, image.contiguous(), mean, std)


def test_normalize_of_v2_with_other_arguments():
    image = torch.rand(3, 8, 9)
    for one in (image, tv_tensors.Image(image), tv_tensors.Video(image[None]), image.double(),
                bytes_of(4, 4), image[0], image[:, :0], image.clone().requires_grad_(), None):
        for mean, std in ((MEAN, STD), (MEAN, [0.1, 0.0, 0.1]), (0.5, 0.1), (MEAN[:2], STD),
                          (None, None), ([0.5], [0.1]), (tuple(MEAN), tuple(STD)), ("abc", STD)):
            check(v2.functional.normalize, one, mean, std)

    class Own(tv_tensors.Image):
        pass

    check(v2.functional.normalize, Own(image), MEAN, STD)
    check(v2.functional.normalize, image)
    copy = image.clone()
    with deferred_images():
        assert v2.functional.normalize(copy, MEAN, STD, inplace=True) is copy


def test_foreign_kernels_of_v2_stay():
    """A kernel that a script registers in the place of torchvision's is used."""
    from torchvision.transforms.v2.functional import _utils as registry

    kernels = registry._KERNEL_REGISTRY[v2.functional.normalize]
    original = kernels[torch.Tensor]
    kernels[torch.Tensor] = lambda image, mean, std, inplace: "theirs"
    try:
        with deferred_images():
            assert v2.functional.normalize(torch.rand(3, 4, 5), MEAN, STD) == "theirs"
    finally:
        kernels[torch.Tensor] = original
    with deferred_images():
        assert kernels[torch.Tensor] is not original
    assert kernels[torch.Tensor] is original


@pytest.mark.parametrize("name", ["scale_bytes", "normalize_pixels"])
def test_differing_kernels_of_bytes_are_not_used(monkeypatch, name):
    class Wrong:
        normalize, scale_bytes = native.normalize, native.scale_bytes
        normalize_pixels = native.normalize_pixels

    setattr(Wrong, name, staticmethod(lambda *_: None))
    monkeypatch.setattr(tensors, "native", Wrong)
    monkeypatch.setattr(tensors_of_bytes, "native", Wrong)
    monkeypatch.setattr(tensors_of_bytes, "_seen", [])
    monkeypatch.setattr(tensors_of_bytes, "_compared", {})
    monkeypatch.setattr(tensors_of_bytes, "_replaced", set())
    monkeypatch.setattr(replacements, "_all", [])
    used = v2.functional.normalize if name == "normalize_pixels" else v2.functional.to_dtype
    from torchvision.transforms.v2.functional import _utils as registry

    before = dict(registry._KERNEL_REGISTRY[used])
    with deferred_images():
        assert registry._KERNEL_REGISTRY[used] == before


def test_native_arguments():
    with pytest.raises(ValueError, match="number of bytes"):
        native.scale_pixels(b"12345", 2, 0)
    with pytest.raises(ValueError, match="numbers of values"):
        native.normalize(0, 0, 1, (0.5,), ())
    with pytest.raises(TypeError):
        native.normalize(0, 0, 1, ("a",), (0.5,))
    with pytest.raises(ValueError, match="three"):
        native.normalize_pixels(0, 0, 1, (0.5, 0.5), (0.5, 0.5, 0.5))
    with pytest.raises(TypeError):
        native.normalize_pixels(0, 0, 1, (0.5, 0.5, "a"), (0.5, 0.5, 0.5))
    with pytest.raises(ValueError, match="negative"):
        native.scale_bytes(0, 0, -1, (1.0, 255.0))
