"""Functions and objects of the user's own in the place of transforms: which are read as the
transforms that they call, and which are not."""

import copy
import functools
import linecache
import sys
import types

import feedmill
import numpy as np
import pytest
import torch
from feedmill.iterators import pillow_fallback
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.evaluating import transforms_in
from feedmill.planner.image_calls import Convert
from feedmill.planner.known import NotRead, flatten
from helpers import MEAN, STD, compose, native_loader
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as T
from torchvision.datasets import MNIST, ImageFolder
from torchvision.transforms import v2

SIZE = (8, 8)


def explain(root, transform):
    return feedmill.DataLoader(ImageFolder(str(root), transform)).explain()


# ---- understood ----------------------------------------------------------------------------------


class Preset:
    """As torchvision's reference presets."""

    def __init__(self, *steps):
        self.transforms = T.Compose(list(steps))

    def __call__(self, img):
        return self.transforms(img)


class Steps:
    """As a class that somebody wrote in the place of Compose, with options."""

    first = T.Resize(SIZE)

    def __init__(self, *steps, last=None, verbose=False):
        self.steps = list(steps)
        self.last = last
        self.verbose = verbose

    def apply(self, image, times=2):
        for step in self.steps:
            image = step(image)
        if self.last is not None and times == 2:
            image = self.last(image)
        elif self.verbose or not self.steps:
            print("nothing to do")
        return image

    def __call__(self, image: Image.Image, *rest, mode="RGB", **options) -> torch.Tensor:
        """Applies the steps."""
        result: torch.Tensor = image if image.mode == mode else image.convert(mode)
        resized = self.first(result)
        if isinstance(resized, torch.Tensor) if self.verbose else False:
            return self.last(resized)
        if self.verbose:
            pass
        return resized if not self.last else self.apply(resized)


class Forward(torch.nn.Module):
    def __init__(self, *steps):
        super().__init__()
        self.steps = torch.nn.ModuleList(steps)
        self.crop = v2.CenterCrop(6)

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return self.crop(x)


class ComposeOfOwn(T.Compose):
    """A subclass that changes nothing."""


class PrintsItself(Preset):
    def __repr__(self):
        raise RuntimeError("never called")


resize = T.Resize(SIZE)


def to_rgb(image):
    return image.convert("RGB")


def resized(image):
    return resize(to_rgb(image))


def maybe_to_tensor(image):
    if isinstance(image, torch.Tensor):
        return image
    return to_tensor(image)


to_tensor = T.ToTensor()


class PassesOn(Preset):
    def __call__(self, *args, **kwargs):
        return self.transforms(*args, **kwargs)


def first_of(*images):
    return images[0] if len(images) == 1 else resize(images)


def around(step):
    def call(image):
        return step(image)

    return call


def converted_unless_array(image):
    if isinstance(image, (np.ndarray, torch.Tensor)):
        return image
    return image.convert("RGB")


def branches(image):
    if isinstance(image, Image.Image) and image.mode != "RGB":
        image = image.convert("RGB")
    return image


UNDERSTOOD = {
    "preset": lambda: Preset(T.Resize(SIZE), T.PILToTensor()),
    "preset_v2": lambda: Preset(v2.Resize(SIZE), v2.PILToTensor(), v2.ToDtype(torch.float32, True),
                                v2.Normalize(MEAN, STD), v2.ToPureTensor()),
    "preset_in_preset": lambda: Preset(Preset(T.Resize(SIZE)), Preset(T.ToTensor())),
    "steps": lambda: Steps(T.CenterCrop(5), last=T.ToTensor()),
    "forward": lambda: Forward(v2.Resize(SIZE), v2.ToImage()),
    "in_sequential": lambda: torch.nn.Sequential(Forward(T.Resize(SIZE)), Forward(v2.ToImage())),
    "compose": lambda: ComposeOfOwn([T.Resize(SIZE), T.ToTensor()]),
    "never_printed": lambda: PrintsItself(T.Resize(SIZE), T.ToTensor()),
    "functions": lambda: compose(resized, branches, T.CenterCrop(7), to_rgb, maybe_to_tensor,
                                 maybe_to_tensor),
    "passes_on": lambda: compose(T.Resize(SIZE), first_of, PassesOn(v2.ToImage())),
    "to_tensor": lambda: compose(T.Resize(SIZE), T.functional.to_tensor, T.Normalize(MEAN, STD)),
    "to_tensor_in_lambda": lambda: compose(T.Resize(SIZE), T.Lambda(T.functional.to_tensor)),
    "pil_to_tensor": lambda: compose(T.Resize(SIZE), around(T.functional.pil_to_tensor)),
    "kinds": lambda: compose(converted_unless_array, resized, to_tensor, converted_unless_array),
    "closure": lambda: compose(around(T.Resize(SIZE)), around(around(T.ToTensor()))),
    "method": lambda: compose(resized, Preset(T.ToTensor()).__call__),
    "lambdas": lambda: compose(T.Lambda(lambda image: image), T.Lambda(to_rgb), resized,
                               lambda image: image.convert("RGB"), T.Lambda(lambda x: to_tensor(x)),
                               v2.Lambda(lambda x: x)),
    "one_line": lambda: compose(*[lambda x: resize(x), lambda x: to_tensor(x), lambda x: x]),
    "clip": lambda: compose(T.Resize(8, T.InterpolationMode.BICUBIC), T.CenterCrop(8), to_rgb,
                            T.ToTensor(), T.Normalize(MEAN, STD)),
    "random_apply": lambda: compose(T.RandomApply([to_rgb, T.Lambda(to_rgb)]), resized, to_tensor),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_these_are_native_and_equal_their_own_result(small_images, name):
    if name in ("lambdas", "one_line") and sys.version_info < (3, 11):
        pytest.skip("lambdas of one line are told apart by the columns of their instructions")
    dataset = ImageFolder(str(small_images), UNDERSTOOD[name]())
    ours = native_loader(dataset, batch_size=8)
    n_batches = 0
    for mine, other in zip(ours, torch.utils.data.DataLoader(dataset, batch_size=8), strict=True):
        assert type(mine[0]) is type(other[0])
        assert torch.equal(mine[0], other[0]) and torch.equal(mine[1], other[1])
        assert mine[0].stride() == other[0].stride()
        n_batches += 1
    assert n_batches == 5 and ours.stats().path == "native"
    assert ours.explain().startswith("native path")


def without_resize(steps):
    """With an attribute of its own in the place of the class's."""
    steps.first = torch.nn.Identity()
    return steps


RANDOM = {
    "preset": lambda *steps: Preset(*steps),
    "steps": lambda *steps: without_resize(Steps(*steps[:-1], last=steps[-1])),
    "forward": lambda *steps: Forward(*steps),
    "nested": lambda first, *steps: Preset(Preset(first), Forward(*steps[:2]), Preset(*steps[2:])),
}


@pytest.mark.parametrize("library", [T, v2])
@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_equal_the_objects_own_result(small_images, monkeypatch, name, library):
    """The user's object itself, whose transforms take the native draws in the place of their own,
    makes the native samples."""
    if name in ("forward", "nested") and library is T:
        pytest.skip("torch.nn.ModuleList holds modules only, and PILToTensor is none")
    own = RANDOM[name](library.RandomResizedCrop(9), library.RandomHorizontalFlip(),
                       library.ColorJitter(0.4, 0.4, 0.4, 0.1), library.PILToTensor())
    n_calls = []

    def run_object(steps, image, draws_of):
        memo, draws = {}, list(draws_of(*image.size))
        for step in steps:
            of_step = draws[: len(step.kinds)]
            del draws[: len(step.kinds)]
            memo[id(step.transform)] = pillow_fallback._with_draws(step, image, of_step)
        n_calls.append(len(memo))
        return copy.deepcopy(own, memo)(image)

    monkeypatch.setattr(pillow_fallback, "run_steps", run_object)
    loader = native_loader(ImageFolder(str(small_images), own), batch_size=8, native="verify")
    for _ in range(3):
        assert len(list(loader)) == 5
    assert len(n_calls) == 3 * 40 and min(n_calls) >= 4
    assert loader.stats().path == "native"


# ---- left to Python ------------------------------------------------------------------------------

LOG = []


class Counts(Preset):
    def __call__(self, img):
        self.n = 1
        return self.transforms(img)


class Adds(Preset):
    n = 0

    def __call__(self, img):
        self.n += 1
        return self.transforms(img)


class Logs(Preset):
    def __call__(self, img):
        LOG.append(img)
        return self.transforms(img)


class WithProperty(Preset):
    def __init__(self, *steps):
        self.kept = T.Compose(list(steps))

    @property
    def transforms(self):
        LOG.append("read")
        return self.kept


class Descriptor:
    def __get__(self, instance, owner):
        return T.Compose([T.Resize((5, 5)), T.PILToTensor()])


class WithDescriptor(Preset):
    transforms = Descriptor()

    def __init__(self, *steps):
        pass


class DataDescriptor(Descriptor):
    def __set__(self, instance, value):
        pass


class WithDataDescriptor(Preset):
    """The instance's own attribute is hidden."""

    transforms = DataDescriptor()


class GetAttr(Preset):
    def __init__(self, *steps):
        self.kept = T.Compose(list(steps))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        LOG.append(name)
        return self.kept


class GetAttribute(Preset):
    def __getattribute__(self, name):
        LOG.append(name)
        return object.__getattribute__(self, name)


class Overridden(Preset):
    def __call__(self, img):
        return super().__call__(img).flip(-1)


class Twice(Preset):
    def __call__(self, img):
        self.transforms(img)
        return self.transforms(img)


class Dropped(Preset):
    def __call__(self, img):
        other = self.transforms(img)
        return img if other is None else self.transforms(img)


class OnlySome(Preset):
    def __call__(self, img):
        if img.width > 30:
            return self.transforms(img)
        return self.transforms(img.rotate(90))


class TakesMore(Preset):
    def __call__(self, img, target):
        return self.transforms(img)


class Starred(Preset):
    def __call__(self, *images):
        return self.transforms(*images, *images)


class PassesOnMore(Preset):
    more = {"other": 1}

    def __call__(self, *args):
        return self.transforms(*args, **self.more)


class Generates(Preset):
    def __call__(self, img):
        return self.transforms(img)
        yield img


class Tries(Preset):
    def __call__(self, img):
        try:
            return self.transforms(img)
        except OSError:
            return self.transforms(Image.new("RGB", (9, 9)))


class Asserts(Preset):
    def __call__(self, img):
        assert LOG.append(1) is None
        return self.transforms(img)


class LikeImages(type):
    def __instancecheck__(cls, instance):
        LOG.append(instance)
        return False


class AsksAClass(Preset):
    class Kind(metaclass=LikeImages):
        pass

    def __call__(self, img):
        return img if isinstance(img, (np.ndarray, self.Kind)) else self.transforms(img)


class Truthy(T.Compose):
    def __bool__(self):
        LOG.append("bool")
        return True


class AsksForTruth(Preset):
    def __init__(self, *steps):
        self.transforms = Truthy(list(steps))

    def __call__(self, img):
        if self.transforms:
            img = self.transforms(img)
        return img


class OwnModule(torch.nn.Module):
    def __init__(self, *steps):
        super().__init__()
        self.transforms = T.Compose(list(steps))

    def forward(self, img):
        return self.transforms(img)


class OwnCall(OwnModule):
    def __call__(self, img):
        return super().__call__(img).flip(-1)


class OwnCallImpl(OwnModule):
    def _call_impl(self, img):
        return super()._call_impl(img).flip(-1)


def hooked(*steps):
    module = OwnModule(*steps)
    module.register_forward_hook(lambda *_: None)
    return module


def with_own_dict(*steps):
    class OwnDict(Preset):
        @property
        def __dict__(self):
            return {}

    return OwnDict(*steps)


def replaced_code(*steps):
    """The source of a function is not that of its code."""
    function = around(compose(*steps))
    other = around(compose(*steps))

    def turned(image):
        return step(image).flip(-1)

    step = compose(*steps)
    function.__code__ = turned.__code__
    assert other is not function
    return function


def rebound(*steps):
    step = compose(*steps)

    def call(image):
        return step(image)

    step = compose(*steps, T.RandomHorizontalFlip(1.0))
    return call


def rebinding(*steps):
    step = compose(*steps)

    def call(image):
        return step(image)

    def change():
        nonlocal step
        step = None

    call.change = change
    return call


def in_a_loop(*steps):
    calls = []
    for step in [compose(*steps), compose(*steps, T.RandomHorizontalFlip(1.0))]:
        calls.append(lambda image: step(image))
    return calls[0]


current = None


def change_current():
    global current
    current = None


def reads_global(*steps):
    global current
    current = compose(*steps)
    return lambda image: current(image)


def decorated(*steps):
    @functools.wraps(resized)
    def call(*arguments, **options):
        return compose(*steps)(*arguments, **options).flip(-1)

    return call


def from_text(*steps):
    scope = {"step": compose(*steps)}
    exec("def call(image):\n    return step(image)", scope)
    return scope["call"]


HEAD = (T.Resize(SIZE), T.PILToTensor())
LEFT = [Counts, Adds, Logs, WithProperty, WithDescriptor, WithDataDescriptor, GetAttr, GetAttribute,
        AsksAClass, Overridden, Twice, Dropped, OnlySome, TakesMore, Starred, PassesOnMore,
        Generates, Tries, Asserts, AsksForTruth, OwnCall, OwnCallImpl, hooked, with_own_dict,
        replaced_code, rebound, rebinding, in_a_loop, reads_global, decorated, from_text]


@pytest.mark.parametrize("make", LEFT)
def test_these_are_left_to_torch(small_images, make):
    own = make(*HEAD)
    LOG.clear()
    text = explain(small_images, own)
    assert text.startswith("torch's own path, because\n") and "is not supported natively: " in text
    assert LOG == [] or make is GetAttribute
    inside = explain(small_images, compose(own))
    assert inside.startswith("torch's own path, because\n")


def test_a_function_is_not_a_class_that_was_replaced(small_images, monkeypatch):
    class ToTensor(T.ToTensor):
        def __init__(self):
            LOG.append("made")

        def __call__(self, image):
            return super().__call__(image) * 2

    monkeypatch.setattr(T.transforms, "ToTensor", ToTensor)
    LOG.clear()
    text = explain(small_images, compose(T.Resize(SIZE), T.functional.to_tensor))
    assert text.startswith("torch's own path, because\n") and not LOG


def test_the_reason_names_the_line(small_images):
    text = explain(small_images, Adds(*HEAD))
    line = Adds.__call__.__code__.co_firstlineno + 1
    assert ("the transform test_own_transforms.Adds is not supported natively: it does more than "
            f"to pass the image on (test_own_transforms.py, line {line})") in text


def test_what_is_inside_is_read_as_ever(small_images, monkeypatch):
    assert explain(small_images, Preset(*HEAD)).startswith("native path")
    text = explain(small_images, Preset(T.GaussianBlur(3), *HEAD))
    assert "torchvision.transforms.transforms.GaussianBlur is not supported natively\n" in text + "\n"
    assert "Preset" not in text
    patched = Preset(T.Resize(SIZE), T.PILToTensor())
    patched.transforms.transforms[0].forward = lambda image: image
    assert "its own forward" in explain(small_images, patched)
    monkeypatch.setattr(T.Compose, "__call__", lambda self, image: image)
    assert "Compose.__call__ was replaced" in explain(small_images, Preset(*HEAD))


def test_changes_are_seen_at_the_next_epoch(small_images, monkeypatch):
    own = Preset(*HEAD)
    loader = feedmill.DataLoader(ImageFolder(str(small_images), own), batch_size=40)
    assert next(iter(loader))[0].shape[2:] == (8, 8)
    own.transforms = compose(T.Resize((5, 7)), T.PILToTensor())
    assert next(iter(loader))[0].shape[2:] == (5, 7)
    monkeypatch.setattr(Preset, "__call__", lambda self, image: self.transforms(image)[:, :3])
    assert loader.explain().startswith("torch's own path")
    assert next(iter(loader))[0].shape[2:] == (3, 7)
    monkeypatch.undo()
    monkeypatch.setitem(globals(), "resize", T.Resize((4, 4)))
    loader.dataset.transform = compose(resized, to_tensor)
    assert loader.explain().startswith("native path")
    assert next(iter(loader))[0].shape[2:] == (4, 4)
    monkeypatch.setitem(globals(), "resize", lambda image: image.rotate(9).resize((3, 3)))
    assert loader.explain().startswith("torch's own path")
    assert next(iter(loader))[0].shape[2:] == (3, 3)


def test_a_file_that_was_edited_since_its_import(small_images, tmp_path):
    path = tmp_path / "edited.py"
    text = "def call(image):\n    return step(image)\n"
    path.write_text(text)
    scope = {"step": compose(*HEAD)}
    exec(compile(text, str(path), "exec"), scope)
    path.write_text(text.replace("step(image)", "step(other)"))
    assert "was changed after its import" in explain(small_images, scope["call"])
    exec(compile(text.replace("call", "other"), str(path), "exec"), scope)
    path.write_text(text.replace("call", "other"))
    assert explain(small_images, scope["other"]).startswith("native path")


def test_grey_images_are_not_rgb_already():
    small = MNIST.__new__(MNIST)
    small.data = torch.zeros(4, 28, 28, dtype=torch.uint8)
    small.targets, small.target_transform = torch.arange(4), None
    small.transform = compose(to_rgb, T.ToTensor())
    assert "convert('RGB') of images is not supported" in feedmill.DataLoader(small).explain()
    small.transform = compose(T.Grayscale(3), to_rgb, branches, T.ToTensor())
    assert feedmill.DataLoader(small).explain().startswith("native path")
    small.transform = compose(branches, T.ToTensor())
    assert "convert('RGB') of images is not supported" in feedmill.DataLoader(small).explain()
    small.transform = compose(T.ToTensor(), branches)
    assert feedmill.DataLoader(small).explain().startswith("native path")
    small.transform = compose(T.ToTensor(), to_rgb)
    assert "convert('RGB') of images is not supported" in feedmill.DataLoader(small).explain()


def test_a_function_that_calls_itself(small_images):
    def forever(image):
        return forever(image)

    assert "more than 16 levels deep" in explain(small_images, forever)


# ---- random functions ----------------------------------------------------------------------------


class Token:
    """Stands for an image: the transforms that it went through."""

    def __init__(self, seen=()):
        self.seen = seen

    def convert(self, mode):
        CALLED.append(Convert(mode))
        return Token((*self.seen, Convert(mode)))


class Marks:
    """A transform that notes its calls."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *image):
        CALLED.append(self)
        return Token((*image[0].seen, self))


CALLED = []
EXPRESSIONS = ["{v}", "self.a({v})", "self.b({v})", "outer({v})", "self.b(self.a({v}))",
               "{v}.convert('RGB')", "self.a({v}) if self.flag else self.b({v})", "self.none",
               "self.a(self.none) if self.none else {v}", "self.twice({v})", "self.a({v}, 1)",
               "(lambda y: self.a(y))({v})", "[self.a({v})][0]", "self.c"]
LINES = ["x = {e}", "y = {e}", "x = y = {e}", "if self.flag:\n    x = {e}\nelse:\n    x = {f}",
         "if not self.none and {v} is not None:\n    y = {e}", "for t in self.list:\n    x = t({v})",
         "for x in self.list:\n    y = {e}", "self.flag = False", "{e}", "self.n += 1",
         "if self.number == 3:\n    return {e}", "return {e}", "pass", "'text'", "x: object = {e}",
         "while self.flag:\n    return {e}", "with self.a:\n    x = {e}", "x, y = {e}, {f}",
         "if self.flag is True or self.none:\n    x = {e}", "outer = self.a\nx = outer({v})"]


@st.composite
def bodies(draw):
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        expressions = [
            draw(st.sampled_from(EXPRESSIONS)).format(v=draw(st.sampled_from("xxxy")))
            for _ in range(2)
        ]
        line = draw(st.sampled_from(LINES))
        lines += line.format(e=expressions[0], f=expressions[1],
                             v=draw(st.sampled_from("xxxy"))).split("\n")
    lines.append(draw(st.sampled_from(["return x", "return x", "return y", "return self.a(x)", ""])))
    return lines


def test_random_functions_do_what_was_understood():
    understood = []

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(bodies())
    def check(lines):
        understood.append(does_what_was_understood(lines))

    check()
    assert sum(understood) > 10


def does_what_was_understood(lines):
    """Compares what a function does with what was understood; False: nothing was."""
    name = "<random function>"
    text = "\n".join([
        "class Own:", "    flag, none, number, n = True, None, 3, 0",
        "    def twice(self, image):", "        return self.b(self.a(image))",
        "    def __call__(self, x):", *("        " + line for line in lines), "        pass",
    ])
    linecache.cache[name] = (len(text), None, [line + "\n" for line in text.split("\n")], name)
    scope = {"outer": Marks("outer")}
    exec(compile(text, name, "exec"), scope)
    own = scope["Own"]()
    own.a, own.b, own.list = Marks("a"), Marks("b"), [Marks("0"), Marks("1")]
    try:
        found = transforms_in(own, None)
    except NotUnderstood:
        return False
    wanted = [one for call in found for one in inlined(call)]
    before = dict(vars(own))
    CALLED.clear()
    result = own(Token())
    assert type(result) is Token and list(result.seen) == CALLED == wanted
    assert vars(own) == before
    return True


def inlined(call):
    return transforms_in(call, None) if isinstance(call, types.MethodType) else [call]


def test_without_an_image_only_plain_functions_are_understood():
    own = Steps(Marks("a"), last=Marks("b"))
    assert [type(one) for one in flatten(own)] == [NotRead]  # it asks for the image's mode
    assert [one.name for one in transforms_in(own.apply, None)] == ["a", "b"]


class ModuleCalled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = T.PILToTensor()

    def forward(self, image):
        return self.inner(image)


def test_a_replaced_call_of_modules(small_images, monkeypatch):
    dataset = ImageFolder(str(small_images), compose(T.Resize((8, 8)), ModuleCalled()))
    loader = feedmill.DataLoader(dataset)
    assert loader.explain().startswith("native path")
    call = torch.nn.Module.__call__
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda self, *a: call(self, *a) * 0)
    assert loader.explain().startswith("torch's own path")
    with pytest.raises(NotUnderstood):
        transforms_in(dataset.transform.transforms[1], None)


GLOBALS = {
    "once": ("resize = T.Resize((8, 8))", True),
    "in __main__ only": ("resize = T.Resize((8, 8))\nif __name__ == '__main__':\n"
                         "    resize = T.Resize((4, 4))", False),
    "twice": ("resize = T.Resize((8, 8))\nresize = T.Resize((4, 4))", False),
    "under a condition": ("if True:\n    resize = T.Resize((8, 8))", False),
    "in a loop": ("for resize in [T.Resize((8, 8))]:\n    pass", False),
    "by a function": ("resize = T.Resize((8, 8))\ndef change():\n    global resize\n"
                      "    resize = None", False),
}


@pytest.mark.parametrize("name", GLOBALS)
def test_global_variables_that_a_worker_may_set_anew(name):
    """A worker process that is spawned imports the file again."""
    lines, is_understood = GLOBALS[name]
    file = f"<globals {name}>"
    text = f"import torchvision.transforms as T\n{lines}\ndef apply(x):\n    return resize(x)\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope = {"__name__": "globals_of_test"}
    exec(compile(text, file, "exec"), scope)
    if is_understood:
        assert transforms_in(scope["apply"], None) == [scope["resize"]]
        return
    with pytest.raises(NotUnderstood, match="may be assigned again"):
        transforms_in(scope["apply"], None)
