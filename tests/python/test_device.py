"""The option device=, tested without a GPU: ordinary memory stands for GPU memory, and the native
loader's host device for the CUDA device. Every device must give the host device's results."""

import collections
import contextlib
import pickle
import sys
from pathlib import Path

import feedmill
import helpers
import pytest
import torch
from feedmill.engine import config as configs
from feedmill.engine import devices
from feedmill.iterators import collating
from feedmill.iterators import native as module
from feedmill.profiling.report.verdict import main_cause
from helpers import assert_same_image, compose, native_loader
from torch.utils.data import TensorDataset
from torchvision import transforms as T

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from fake_cuda import FakeCuda, FakeStream

TO_FLOAT = (T.Resize((8, 8)), T.ToTensor(), T.Normalize(helpers.MEAN, helpers.STD))


class FakeGpu:
    """A fake GPU, which records what is asked of it.

    Attributes:
        cuda: the fake torch.cuda.
        moved: tensors that torch copied. on_it: addresses of all memory on the fake GPU.
        recorded: the streams passed to record_stream().
        n_free: how many more tensors can be allocated.
    """

    def __init__(self, monkeypatch):
        self.cuda = FakeCuda(n_devices=2).install(monkeypatch)
        self.moved, self.recorded, self.n_free = [], [], 10**9
        self._kept = []  # keeps the memory, so that addresses are unique
        monkeypatch.setattr(devices, "_KIND", "host")
        of, host = devices.stage_config, ("host", 0)  # the host device, for any GPU number
        monkeypatch.setattr(configs, "stage_config", lambda *of_loader: (
            (config := of(*of_loader)) and host + config[2:]
        ))
        monkeypatch.setattr(devices, "empty", self._empty)
        monkeypatch.setattr(devices, "_pinned", lambda tensor: tensor)
        monkeypatch.setattr(devices, "_moved", self._move)
        monkeypatch.setattr(devices, "record_stream", self._record)
        monkeypatch.setattr(collating, "pin_memory", lambda data, device: data)
        monkeypatch.setattr(module, "allocate_pinned", self._pinned)

    def _empty(self, n_bytes, device):
        assert device.type == "cuda" and device.index is not None
        if not self.n_free:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.n_free -= 1
        self._kept.append(torch.full((n_bytes,), 0xEE, dtype=torch.uint8))
        return self._kept[-1]

    def _move(self, tensor, device):
        assert device.type == "cuda" and device.index is not None
        if self.has(tensor):
            return tensor
        self.moved.append(tensor)
        self._kept.append(tensor.clone())
        return self._kept[-1]

    def _record(self, tensor, stream):
        assert self.has(tensor)
        self.recorded.append(stream)

    def _pinned(self, n_bytes):
        owner = torch.empty(n_bytes, dtype=torch.uint8)
        return owner.data_ptr(), owner

    def has(self, tensor):
        at = tensor.data_ptr()
        return any(one.data_ptr() <= at < one.data_ptr() + max(1, one.numel() * one.itemsize)
                   for one in self._kept)


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch)


def assert_same(got, wanted):
    assert type(got) is type(wanted) is list and len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert one.dtype is other.dtype and one.stride() == other.stride()
        assert_same_image(one, other, "batch")


def compare(gpu, dataset, **options):
    """Compares epochs on the CPU with epochs on the device. Returns the stats of the latter."""
    wanted = list(native_loader(dataset, seed=3, **options))
    loader = native_loader(dataset, seed=3, device="cuda", **options)
    got = list(loader)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert_same(one, other)
        assert all(gpu.has(tensor) for tensor in one)
    return loader.stats()


# ---- copies by the native loader -----------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", [
    {}, {"dtype": torch.bfloat16}, {"dtype": torch.float16, "memory_format": torch.channels_last},
])
def test_batches_equal_those_on_the_cpu(gpu, small_images, num_workers, options):
    steps = (T.RandomResizedCrop(12), T.RandomHorizontalFlip(), *TO_FLOAT[1:])
    dataset = helpers.numbered_folder(small_images, compose(*steps))
    options = {"batch_size": 16, "num_workers": num_workers, "shuffle": True, **options}
    torch.manual_seed(5)
    wanted = list(native_loader(dataset, seed=3, **options))
    torch.manual_seed(5)
    loader = native_loader(dataset, seed=3, device="cuda", **options)
    got = list(loader)
    for one, other in zip(got, wanted, strict=True):
        assert_same(one, other)
    # torch copied nothing, and uint8 values were copied to the device.
    assert gpu.moved == []
    stats = loader.stats()
    assert (stats.gpu.h2d_batches, stats.gpu.h2d_bytes) == (3, 40 * 3 * 12 * 12 + 40 * 8)
    assert stats.gpu.steps == 3
    assert "to the GPU 3 batches, " in loader.report()


def test_uint8_batches(gpu, numbered):
    assert compare(gpu, numbered, batch_size=16).gpu.h2d_batches == 3


def test_values_that_no_uint8_pixel_has_are_copied_as_floats(gpu, small_images):
    steps = (*TO_FLOAT, T.RandomErasing(p=0.9, value=(0.1, 0.2, 0.3)))
    stats = compare(gpu, helpers.numbered_folder(small_images, compose(*steps)), batch_size=16)
    assert stats.gpu.h2d_bytes == 40 * 3 * 8 * 8 * 4 + 40 * 8


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_samples_that_pillow_makes(gpu, tmp_path, dtype):
    for i in range(6):
        save = helpers.save_bare_jpeg if i % 2 else helpers.save_jpeg
        save(tmp_path / "c" / f"{i}.jpg", 30 + i, 25) if i else None
    (tmp_path / "c").mkdir(exist_ok=True)
    dataset = helpers.numbered_folder(tmp_path, compose(T.CenterCrop(20), *TO_FLOAT[1:]))
    stats = compare(gpu, dataset, batch_size=3, dtype=dtype)
    assert stats.decode.fallback_samples == 3 and stats.gpu.h2d_batches == 2


@pytest.mark.parametrize("on_error", ["replace", "zero", "skip"])
def test_bad_samples(gpu, tmp_path, on_error):
    for i in range(8):
        helpers.save_jpeg(tmp_path / "c" / f"{i}.jpg", 30, 25, seed=i)
    (tmp_path / "c" / "3.jpg").write_bytes(b"no image")
    dataset = helpers.numbered_folder(tmp_path, compose(*TO_FLOAT))
    compare(gpu, dataset, batch_size=4, on_error=on_error)


@pytest.mark.parametrize("target", [0.5, "name", (1, 2.5), True, 1 << 62])
def test_targets_of_other_kinds(gpu, numbered, target):
    numbered.samples = [(path, target) for path, _ in numbered.samples]
    wanted = next(iter(native_loader(numbered, batch_size=4)))[1]
    got = next(iter(native_loader(numbered, batch_size=4, device="cuda")))[1]
    assert type(got) is type(wanted)
    if isinstance(target, tuple):
        assert all(torch.equal(*pair) and pair[0].dtype is pair[1].dtype
                   for pair in zip(got, wanted))
        assert all(map(gpu.has, got))
    elif isinstance(target, str):
        assert got == wanted
    else:
        assert torch.equal(got, wanted) and got.dtype is wanted.dtype and gpu.has(got)


def test_arrays(gpu):
    tensors = torch.arange(60.0).view(20, 3), torch.arange(20), torch.ones(20, 2, dtype=torch.bool)
    assert compare(gpu, TensorDataset(*tensors), batch_size=8).gpu.h2d_batches == 3


def test_batches_of_any_size(gpu, numbered):
    batches = [[0], [1, 2, 3], [4, 5], [9, 8, 7, 6, 5]]
    got = list(native_loader(numbered, batch_sampler=batches, device="cuda"))
    for (images, targets), indices in zip(got, batches):
        assert torch.equal(images, torch.stack([numbered[i][0] for i in indices]))
        assert targets.tolist() == indices and gpu.has(images) and gpu.has(targets)


def test_several_iterators_and_epochs(gpu, numbered):
    loader = native_loader(numbered, batch_size=8, device="cuda", num_workers=2,
                           persistent_workers=True)
    other = native_loader(numbered, batch_size=8, device="cuda:1")
    for _ in range(2):
        pairs = list(zip(loader, other, other))
        assert [[targets.tolist() for _, targets in three] for three in pairs] == [
            [list(range(i, i + 8))] * 3 for i in range(0, 40, 8)
        ]
    for n in range(4):  # left early
        for _, targets in loader:
            assert targets.tolist() == list(range(8))
            break
    assert len(helpers.targets_of(loader)) == 5


def test_a_bad_file_between_good_ones(gpu, tmp_path):
    for name in "abcd":
        helpers.save_jpeg(tmp_path / "c" / f"{name}.jpg", 20, 20)
    (tmp_path / "c" / "b.jpg").write_bytes(b"no image")
    iterator = iter(native_loader(helpers.numbered_folder(tmp_path), batch_size=1, device="cuda"))
    got = [helpers.take(iterator) for _ in range(5)]
    assert got[0] == [0] and got[2:] == [[2], [3], "end"] and issubclass(got[1][0], Exception)


def test_the_epoch_continues_after_out_of_memory(gpu, numbered):
    iterator = iter(native_loader(numbered, batch_size=8, device="cuda"))
    assert next(iterator)[1].tolist() == list(range(8))
    gpu.n_free = 0
    for n in range(8, 24, 8):  # these batches have their memory already
        assert next(iterator)[1].tolist() == list(range(n, n + 8))
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            next(iterator)
    gpu.n_free = 2
    assert [targets.tolist()[0] for _, targets in [next(iterator)]] == [24]
    gpu.n_free = 100
    assert [targets.tolist()[0] for _, targets in iterator] == [32]


@pytest.mark.parametrize("call", ["add_buffers", "take", "_add_buffer"])
@pytest.mark.parametrize("is_late", [False, True])
def test_interrupts(gpu, numbered, monkeypatch, call, is_late):
    """An interrupt before or after any of the calls loses no batch."""
    loader = native_loader(numbered, batch_size=4, device="cuda")
    original, calls = getattr(devices.Stage, call), []

    def interrupted(self):
        calls.append(call)
        if len(calls) % 5 == 3 and not is_late:
            raise KeyboardInterrupt
        result = original(self)
        if len(calls) % 5 == 3:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(devices.Stage, call, interrupted)
    iterator, got, n_interrupts = iter(loader), [], 0
    while True:
        try:
            images, targets = next(iterator)
        except KeyboardInterrupt:
            n_interrupts += 1
            continue
        except StopIteration:
            break
        assert torch.equal(images, torch.stack([numbered[i][0] for i in targets.tolist()]))
        got.append(targets.tolist())
    assert n_interrupts
    assert got == [list(range(i, i + 4)) for i in range(0, 40, 4)]


# ---- streams -------------------------------------------------------------------------------------


def test_another_stream_is_recorded(gpu, numbered):
    side = FakeStream(gpu.cuda)
    iterator = iter(native_loader(numbered, batch_size=8, device="cuda"))
    next(iterator)
    assert gpu.recorded == []
    with gpu.cuda.stream(side):
        next(iterator)
        assert gpu.recorded == [side, side]  # for the images and the targets


@pytest.mark.parametrize("native", ["auto", "hybrid", "off"])
def test_next_raises_while_a_cuda_graph_is_captured(gpu, numbered, native):
    if native == "hybrid":
        numbered.transform = compose(T.Lambda(lambda image: image.copy()), *numbered.transform.transforms)
    loader = feedmill.DataLoader(numbered, batch_size=8, device="cuda", native=native)
    iterator = iter(loader)
    next(iterator)
    gpu.cuda.current_stream().is_capturing = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="while a CUDA graph is being captured"):
            next(iterator)
    gpu.cuda.current_stream().is_capturing = False
    assert [targets.tolist()[0] for _, targets in iterator] == [8, 16, 24, 32]


def test_late_data_and_late_copies_are_distinguished(gpu, numbered, monkeypatch):
    """The consumer's stream waits a minute for each copy, without other work."""
    take, minute, skipped_ns = devices.Stage.take, 60 * 10**9, 0
    gpu.cuda.clock = lambda: 10**9 + skipped_ns

    def slow_take(self):
        gpu.cuda.current_stream().wait_until(gpu.cuda.clock() + minute)
        return take(self)

    monkeypatch.setattr(devices.Stage, "take", slow_take)
    loader = native_loader(numbered, batch_size=8, device="cuda")
    for _ in loader:
        skipped_ns += minute
    stats = loader.stats()
    assert stats.gpu.steps == 5 and stats.gpu.copy_ns == 5 * minute
    assert (stats.steps["gpu_copy_ns"] <= stats.steps["gpu_stall_ns"]).all()
    assert main_cause(stats) == "copy" and "copy-bound" in loader.report()
    assert "pageable" not in loader.report()


# ---- copies by torch -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"native": "off"},
    {"native": "hybrid"},
    {"native": "verify"},
    {"batch_size": None},
    {"collate_fn": lambda samples: {"images": [one for one, _ in samples], "n": len(samples)}},
    {"collate_fn": lambda samples: (torch.stack([one for one, _ in samples]), "text")},
])
def test_every_path_puts_batches_on_the_device(gpu, numbered, options):
    if options.get("native") == "hybrid":
        numbered.transform = compose(T.Lambda(lambda image: image.copy()), *numbered.transform.transforms)
    options = {"batch_size": 8, **options}
    loader = feedmill.DataLoader(numbered, device="cuda", **options)
    wanted = list(feedmill.DataLoader(numbered, **{**options, "native": "off"}))
    got = list(loader)
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted):
        assert_same_structure(gpu, one, other)
    assert loader.stats().gpu.steps == len(got)


def assert_same_structure(gpu, got, wanted):
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert gpu.has(got) and torch.equal(got, wanted)
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for key in wanted:
            assert_same_structure(gpu, got[key], wanted[key])
    elif isinstance(wanted, (tuple, list)):
        for pair in zip(got, wanted, strict=True):
            assert_same_structure(gpu, *pair)
    else:
        assert got == wanted


def test_to_device(gpu):
    Pair = collections.namedtuple("Pair", "first second")

    class Movable:
        def to(self, device, non_blocking=False):
            return device, non_blocking

    class KnowsOnlyTheDevice:
        def to(self, device):
            return device

    class Tagged(dict):
        tag = None

    device, x = torch.device("cuda", 1), torch.arange(3)
    tagged = Tagged(x=x)
    tagged.tag = 7
    for data in (x, (x, [x, "s", b"b", 5, None]), Pair(x, 2), {"a": (x,)}, tagged,
                 collections.OrderedDict(a=x), None):
        assert_same_structure(gpu, devices.to_device(data, device), data)
    assert devices.to_device(tagged, device).tag == 7
    assert devices.to_device(Movable(), device) == (device, True)
    assert devices.to_device([KnowsOnlyTheDevice()], device) == [device]


def test_devices_change_between_epochs(gpu, numbered):
    for options in ({}, {"native": "off"}, {"num_workers": 2, "persistent_workers": True}):
        loader = feedmill.DataLoader(numbered, batch_size=20, **options)
        for device in (None, "cuda", "cpu", torch.device("cuda:1")):
            loader.device = device
            for images, targets in loader:
                is_there = device not in (None, "cpu")
                assert gpu.has(images) == gpu.has(targets) == is_there


# ---- the choice between the two ------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 1.5, "mps", "cudaa", "cuda:x", torch.device("meta"), ["cuda"]])
def test_wrong_devices_are_refused(bad):
    with pytest.raises(ValueError, match="device is .*; it must be 'cuda', 'cuda:1' or the like"):
        feedmill.DataLoader([1], device=bad)
    loader = feedmill.DataLoader([1])
    loader.device = bad
    with pytest.raises(ValueError, match="device is"):
        iter(loader)


def test_the_device_cpu_needs_no_gpu(numbered):
    for device in (None, "cpu", torch.device("cpu")):
        assert len(list(feedmill.DataLoader(numbered, batch_size=8, device=device))) == 5
    assert "device" not in native_loader(numbered).explain()


def test_no_cuda(gpu, monkeypatch):
    def refused(device, **kept):
        with pytest.raises(RuntimeError) as caught:
            feedmill.DataLoader([1], device=device, **kept)
        return str(caught.value)

    assert "there is only cuda:0 to cuda:1: name one of those" in refused("cuda:2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no GPU that this process may use (CUDA_VISIBLE_DEVICES is '')" in refused("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    text = refused(torch.device("cuda:0"))
    assert text.startswith("device='cuda:0', but this torch (") and "built without CUDA" in text


def test_without_the_plug_in_torch_copies(gpu, numbered, monkeypatch):
    monkeypatch.setattr(devices, "_KIND", "cuda")
    monkeypatch.delenv(devices.LIBRARY_VARIABLE, raising=False)

    def none(kind):
        raise devices.native.Error("the plug-in can't be loaded: no such file")

    class Native:
        Error, device_count = devices.native.Error, staticmethod(none)

    monkeypatch.setattr(devices, "native", Native)
    loader = native_loader(numbered, batch_size=8, device="cuda")
    assert (
        "  device     cuda:0: copied by torch in the consumer's stream, as the plug-in can't be "
        "loaded: no such file"
    ) in loader.explain()
    for images, targets in loader:
        assert gpu.has(images) and gpu.has(targets)
    assert loader.stats().gpu.h2d_batches == 0
    monkeypatch.setenv(devices.LIBRARY_VARIABLE, "/nowhere.so")
    with pytest.raises(RuntimeError, match="device='cuda': the plug-in can't be loaded"):
        iter(loader)


def test_explain(gpu, numbered):
    lines = native_loader(numbered, device="cuda:1").explain().splitlines()
    assert "  device     cuda:1: copied ahead, in a stream of the loader's own" in lines
    text = native_loader(numbered, device="cuda", collate_fn=len).explain()
    assert "cuda:0: copied by torch in the consumer's stream, as collate_fn makes the batc" in text
    text = feedmill.DataLoader(numbered, device="cuda", native="off").explain()
    assert "batches are copied to cuda:0 by torch, in the consumer's stream" in text


def test_the_option_survives_pickling_and_rebuilding(gpu, numbered, tmp_path):
    loader = native_loader(numbered, batch_size=8, device="cuda:1", log=str(tmp_path / "log"))
    assert pickle.loads(pickle.dumps(loader)).device == "cuda:1"
    assert loader._feedmill_rebuilt(numbered).device == "cuda:1"
    list(loader)
    loader._feedmill.recorder.finish()
    (run,) = helpers.log_lines(tmp_path / "log")["run"]
    assert run["settings"]["device"] == "cuda:1"


# ---- memory at the end of an epoch ---------------------------------------------------------------


def test_no_device_memory_is_left(gpu, numbered):
    """Output buffers live until the native loader has ended its epoch, and no longer."""
    iterator = iter(native_loader(numbered, batch_size=8, device="cuda"))
    next(iterator)
    stage, handle = iterator._stage, iterator._handle
    assert len(stage._buffers) == handle.n_outputs == 2
    with contextlib.suppress(StopIteration):
        while True:
            next(iterator)
    assert len(stage._buffers) == 0 and iterator._stage is None
