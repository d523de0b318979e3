"""Arithmetic of image tensors in functions of the user's own: what is native, and what is not."""

import operator
import types

import feedmill
import pytest
import torch
from feedmill.planner.arithmetic import TensorCall
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.evaluating import transforms_in
from helpers import MEAN, STD, compose, native_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SIZE = T.Resize((8, 8))


def explain(root, *steps):
    return feedmill.DataLoader(ImageFolder(str(root), compose(SIZE, *steps))).explain()


# ---- understood ----------------------------------------------------------------------------------


def in_place(x):
    x *= 255
    x -= 3
    x += 1.5
    x /= 7
    return x


class Range:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __call__(self, tensor):
        """Maps [0, 1] to [low, high]."""
        return tensor * 2.5 - 1 if self.low is None else tensor.mul(4).add_(-0.5).clamp(self.low)


def limited(x):
    return torch.clamp(torch.div(x, 0.7), min=0.25, max=1)


NATIVE = {
    "diffusion": (T.ToTensor(), T.Lambda(lambda t: (t * 2) - 1)),
    "style": (T.ToTensor(), T.Lambda(lambda x: x.mul(255))),
    "in_place": (T.ToTensor(), in_place, T.Normalize(MEAN, STD)),
    "bytes": (T.PILToTensor(), lambda x: x.float() / 255),
    "bytes_divided": (T.PILToTensor(), lambda x: x / 127.5 - 1),
    "types": (T.PILToTensor(), lambda x: x.to(torch.float32).half(), lambda x: 1 - x),
    "bfloat16": (T.ToTensor(), lambda x: x.bfloat16() * 3, T.RandomHorizontalFlip(1.0)),
    "object": (T.ToTensor(), Range(None, 1), Range(0.125, 1)),
    "limited": (T.ToTensor(), limited, v2.Identity()),
    "image": (v2.ToImage(), v2.ToDtype(torch.float32, scale=True), lambda x: 2 * x + 1),
    "channels": (T.ToTensor(), lambda x: x.expand(3, -1, -1).contiguous().clone()),
    "erased": (T.ToTensor(), T.RandomErasing(0.0), lambda x: x.mul(-1)),
}


@pytest.mark.parametrize("name", NATIVE)
def test_these_are_native_and_equal_torchs(small_images, name):
    dataset = ImageFolder(str(small_images), compose(SIZE, *NATIVE[name]))
    ours = native_loader(dataset, batch_size=8)
    for mine, other in zip(ours, torch.utils.data.DataLoader(dataset, batch_size=8), strict=True):
        assert type(mine[0]) is type(other[0]) and mine[0].dtype is other[0].dtype
        assert torch.equal(mine[0], other[0]) and mine[0].stride() == other[0].stride()
    assert ours.stats().path == "native"


def test_erased_values_are_changed_like_pixels(small_images):
    """The value comes behind the erased area is drawn, and before what follows it."""
    steps = (T.ToTensor(), T.RandomErasing(1.0, value=(0.1, 0.2, 0.3)), lambda x: x * 3 - 1)
    dataset = ImageFolder(str(small_images), compose(SIZE, *steps))
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify")
    list(loader)
    assert loader.stats().decode.verified_samples == len(dataset)


def test_with_the_same_draws(small_images):
    steps = (T.RandomResizedCrop(9), T.ColorJitter(0.4), T.ToTensor(), in_place)
    dataset = ImageFolder(str(small_images), compose(*steps))
    loader = feedmill.DataLoader(dataset, batch_size=8, native="verify", num_workers=2)
    list(loader)
    assert loader.stats().decode.verified_samples == len(dataset)


# ---- left to torch -------------------------------------------------------------------------------


def kept_before(x):
    y = x
    x *= 2
    return y


def of_two(x):
    return x + x


OTHER = {"other": 1}
HALF = torch.tensor(0.5)


def of_pixels(x):
    return x / x.max()


def of_a_tensor(x):
    return x - HALF


def by_branch(x):
    return x * 2 if x.mean() > 0.5 else x


NOT_NATIVE = (
    kept_before, of_two, of_pixels, of_a_tensor, by_branch, lambda x: x ** 2, lambda x: x.exp(),
    lambda x: 1 / x, lambda x: x // 2, lambda x: x.add(1, alpha=2), lambda x: x.clamp(),
    lambda x: x.clamp(0, 1, min=0), lambda x: torch.clamp(x, *(0, 1)), lambda x: x.to("cpu"),
    lambda x: x.div(3, rounding_mode="floor"), lambda x: x * True, lambda x: x * None,
    lambda x: x.repeat(1, 1, 2), lambda x: x.expand(3, 8, 8), lambda x: x.mul(x), lambda x: -x,
    lambda x: x.flip(-1), lambda x: torch.add(1, x), lambda x: x.add(**OTHER),
    lambda x: x.sum(0), lambda x: x.__mul__(2),
)


@pytest.mark.parametrize("function", NOT_NATIVE)
def test_these_are_left_to_torch(small_images, function):
    assert explain(small_images, T.ToTensor(), function).startswith("torch's own path")


@pytest.mark.parametrize(
    "steps",
    [
        (lambda x: x * 2, T.ToTensor()),  # of a PIL image: an error with torch, too
        (T.PILToTensor(), lambda x: x * 2),  # other bytes
        # What becomes of values that the type can't hold depends on the instructions used.
        (T.ToTensor(), lambda x: (x * 1e12).to(torch.uint32).float()),
        (T.ToTensor(), lambda x: x.to(torch.uint8).float()),
        (T.PILToTensor(), lambda x: x.mul_(0.5)),  # an error with torch, too
        (T.ToTensor(), lambda x: x / 0),
        (T.ToTensor(), lambda x: x.double()),
        (T.ToTensor(), lambda x: x.expand(1, -1, -1)),  # an error with torch, too
        (T.ToTensor(), lambda x: x - 1, T.CenterCrop(20)),  # pads with another color
        (T.ToTensor(), T.RandomApply([lambda x: x * 2])),
    ],
)
def test_these_orders_are_left_to_torch(small_images, steps):
    assert explain(small_images, *steps).startswith("torch's own path")


@pytest.mark.parametrize(
    "name, function",
    [
        ("__mul__", lambda x: x * 2), ("mul", lambda x: x.mul(2)), ("__rsub__", lambda x: 1 - x),
        ("float", lambda x: x.float()), ("clamp", lambda x: torch.clamp(x, 0, 1)),
    ],
)
def test_replaced_methods(small_images, monkeypatch, name, function):
    assert explain(small_images, T.ToTensor(), function).startswith("native path")
    monkeypatch.setattr(torch.Tensor, name, lambda x, *_: x.flip(-1), raising=False)
    text = explain(small_images, T.ToTensor(), function)
    assert text.startswith("torch's own path") and f"Tensor.{name} was replaced" in text
    monkeypatch.setattr(torch.Tensor, name, torch.Tensor.cumsum_)
    assert f"Tensor.{name} was replaced" in explain(small_images, T.ToTensor(), function)


def test_a_method_written_in_python_with_other_code(small_images, monkeypatch):
    def function(x):
        return 1 - x

    other = torch.Tensor.__rpow__
    made = types.FunctionType(other.__code__, other.__globals__, "__rsub__", other.__defaults__,
                              other.__closure__)
    monkeypatch.setattr(torch.Tensor, "__rsub__", made)
    assert "Tensor.__rsub__ was replaced" in explain(small_images, T.ToTensor(), function)


def test_replaced_functions(small_images, monkeypatch):
    def limit(x):
        return torch.clamp(x, 0, 1)

    assert explain(small_images, T.ToTensor(), limit).startswith("native path")
    for other in (lambda x, *_: x.flip(-1), torch.cumsum):
        monkeypatch.setattr(torch, "clamp", other)
        assert explain(small_images, T.ToTensor(), limit).startswith("torch's own path")


# ---- values do not depend on where they stand ----------------------------------------------------

_OPERATIONS = [
    ("mul", 2.7), ("mul", -1), ("add", 0.3), ("sub", 7), ("div", 3), ("div", 255.0), ("clamp", 0.2),
    ("__rsub__", 1), ("__truediv__", 0.7), ("__itruediv__", 127.5), ("mul_", 1e-3),
]
_TYPES = ("uint8", "float32", "float16", "bfloat16", "float64")


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 5, 7), (1, 16, 33), (3, 64, 64)])
@pytest.mark.parametrize("name, number", _OPERATIONS)
def test_a_table_of_values_is_enough(name, number, shape):
    """torch computes the same bits for a value in a table as in an image of any size, with its
    vector instructions and without."""
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randint(256, shape, generator=generator)
    ramp = torch.arange(256)
    for start in _TYPES:
        for target in ("float", "half", "bfloat16", "clone"):
            for scale in (1, 255):
                def calls(values):
                    values = values.to(torch.uint8) if start == "uint8" else (
                        (values / scale).to(getattr(torch, start)))
                    return getattr(TensorCall(name, (number,))(values), target)()

                try:
                    table = calls(ramp)
                except RuntimeError:  # in place, to another type
                    with pytest.raises(RuntimeError):
                        calls(pixels)
                    continue
                image = calls(pixels.clone())
                assert image.dtype is table.dtype and torch.equal(image, table[pixels])
                image = calls(pixels.permute(1, 2, 0)).permute(2, 0, 1)
                assert torch.equal(image, table[pixels])


# ---- random code ---------------------------------------------------------------------------------

_NUMBERS = st.sampled_from(["2", "-1", "0.5", "255", "1e-3", "3"])
_FORMS = ("({0} * {1})", "({0} + {1})", "({0} - {1})", "({0} / {1})", "({1} * {0})", "({1} - {0})",
          "{0}.mul({1})", "{0}.sub({1})", "{0}.clamp({1})", "{0}.clamp(max={1})", "{0}.add_({1})",
          "torch.mul({0}, {1})", "{0}.float()", "{0}.half()", "{0}.to(torch.float32)")


@st.composite
def _expressions(draw):
    text = "x"
    for form in draw(st.lists(st.sampled_from(_FORMS), min_size=1, max_size=5)):
        text = form.format(text, draw(_NUMBERS))
    return text


def test_random_code_does_what_was_understood(tmp_path):
    """The methods that were understood, called in turn, make what the code makes, to the bit."""
    torch.manual_seed(1)
    image = torch.rand(3, 5, 7)
    n_understood = 0

    @settings(max_examples=400, deadline=None, derandomize=True)
    @given(_expressions())
    def check(text):
        nonlocal n_understood
        path = tmp_path / f"code_{abs(hash(text))}.py"
        path.write_text(f"import torch\n\ndef function(x):\n    return {text}\n")
        scope = {"__name__": path.stem}
        exec(compile(path.read_text(), str(path), "exec"), scope)
        try:
            calls = transforms_in(scope["function"], None)
        except NotUnderstood:
            return
        n_understood += 1
        result = image.clone()
        for call in calls:
            assert type(call) is TensorCall
            result = call(result)
        expected = scope["function"](image.clone())
        assert operator.is_(result.dtype, expected.dtype) and torch.equal(result, expected)

    check()
    assert n_understood >= 300
