"""Samples that are copied to their batch's memory when they are made: torch's batches, whoever else
refers to a sample, and torch's errors."""

import contextlib
import copy
import threading
import weakref

import numpy as np
import pytest
import torch
from cpus import needs_handover
from feedmill import handover
from feedmill.handover import received, sending
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_handover import Pair, same
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data._utils import worker
from torch.utils.data._utils.collate import default_collate_fn_map

pytestmark = needs_handover

torch_loop = worker._worker_loop
N = 5000  # values of a tensor that is large enough


def loop(*arguments):
    arguments = list(arguments)
    reason = handover.install_in_worker(arguments[3], places_samples=True)
    assert not reason, reason
    arguments[2] = handover.placing_queue(arguments[2])
    if sending._placing is not None:
        sending._placing.end = counted(sending._placing.end)
    torch_loop(*arguments)


def counted(end):
    def counting(batch):
        result = end(batch)
        placed.value += result is not None
        return result

    return counting


# How many tensors of batches were placed, in worker processes that were forked.
placed = torch.multiprocessing.get_context("fork").Value("i", 0)


@contextlib.contextmanager
def placing():
    worker._worker_loop = loop
    placed.value = 0
    try:
        yield
    finally:
        worker._worker_loop = torch_loop


def ours(loader):
    with placing():
        return list(loader)


def check(dataset, n_placed=None, **options):
    """Batches equal torch's; n_placed: how many tensors of batches are placed."""
    options = {"batch_size": 4, "num_workers": 1, **options}
    theirs = list(DataLoader(dataset, **options))
    batches = ours(DataLoader(dataset, **options))
    assert len(batches) == len(theirs) > 0
    for one, other in zip(batches, theirs):
        same(one, other)
    if n_placed is not None:
        assert placed.value == n_placed
    return batches


class Made(Dataset):
    """Samples that make(i) makes."""

    def __init__(self, make, n=12):
        self.make, self.n = make, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.make(i)


def image(i, n=N):
    return torch.arange(float(n)) * (i + 1)


SAMPLES = {
    "tensor": (image, 1),
    "tuple": (lambda i: (image(i), i), 1),
    "list": (lambda i: [image(i), image(i + 7)], 2),
    "dict": (lambda i: {"image": image(i), "name": str(i), "mask": image(i).to(torch.uint8)}, 1),
    "views": (lambda i: ([image(i), image(i + 3), image(i, 4100)], i), 3),
    "pair": (lambda i: Pair(image(i), i), 0),
    "turned": (lambda i: image(i, 6000).view(60, 100).t().clone(), 1),
    "strided": (lambda i: torch.empty_strided((60, 100), (1, 60)).copy_(image(i, 6000)
                                                                       .view(60, 100)), 1),
    "array": (lambda i: (np.full((60, 100), i, np.float32), i), 1),
    "of_array": (lambda i: torch.from_numpy(np.full((60, 100), i, np.float32)), 0),
    "reversed": (lambda i: np.full((60, 100), i, np.int64).T, 0),
    "small": (lambda i: (torch.full((10,), i), i), 0),
    "bool": (lambda i: image(i, 40000) > 7, 1),
    "complex": (lambda i: torch.complex(image(i), image(i)), 1),
    "infinite": (lambda i: torch.full((N,), -float("inf")), 1),
    "part": (lambda i: image(i, 9000)[1:6000], 0),
    "parameter": (lambda i: torch.nn.Parameter(image(i), requires_grad=False), 0),
    "shared": (lambda i: image(i).share_memory_(), 0),
    "same": (lambda i: [image(i)] * 2, 0),
    "overlapping": (lambda i: list(image(i, 2 * N).split(N)), 0),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name):
    make, n = SAMPLES[name]
    check(Made(make), n_placed=3 * n)


@pytest.mark.parametrize("options", [
    {"batch_size": 5}, {"batch_size": 5, "drop_last": True}, {"batch_size": 1},
    {"num_workers": 3}, {"persistent_workers": True}, {"batch_size": None},
    {"batch_sampler": [(1, 2, 3), [5], [4, 4]], "batch_size": 1},
    {"collate_fn": default_collate}, {"collate_fn": lambda samples: samples},
])
def test_options(options):
    check(Made(SAMPLES["tuple"][0]), **options)


def test_large_batches_are_few_slots():
    with placing():
        loader = DataLoader(Made(SAMPLES["tuple"][0], 400), batch_size=4, num_workers=1)
        for number, (images, labels) in enumerate(loader):
            assert torch.equal(images[2], image(4 * number + 2)) and labels[3] == 4 * number + 3
    assert placed.value == 100


# ---- others refer to a sample --------------------------------------------------------------------


class Keeping(Dataset):
    """Keeps what it has returned in some way, and changes it before the batch is collated."""

    def __init__(self, how):
        self.how, self.kept = how, []

    def __len__(self):
        return 12

    def __getitem__(self, i):
        for one in self.kept:
            one += 1
        self.kept = []
        made = image(i)
        return getattr(self, self.how)(made)

    def tensor(self, made):
        self.kept.append(made)
        return made, 1

    def view(self, made):
        self.kept.append(made[:7])
        return made, 1

    def array(self, made):
        self.kept.append(made.numpy())
        return made, 1

    def storage(self, made):
        storage = made.untyped_storage()
        self.kept.append(_Bytes(storage))
        return made, 1

    def detached(self, made):
        self.kept.append(made.detach())
        return made

    def dlpack(self, made):
        self.kept.append(torch.from_dlpack(made))
        return made

    def numpy_dlpack(self, made):
        array = np.from_dlpack(made)  # read-only in some versions of NumPy
        self.kept.append(array if array.flags.writeable else _ReadOnly(array))
        return made

    def memory(self, made):
        array = made.numpy().copy()
        self.kept.append(np.asarray(memoryview(array)))
        return array

    def from_array(self, made):
        array = made.numpy().copy()
        self.kept.append(array)
        return torch.from_numpy(array)

    def from_buffer(self, made):
        buffer = bytearray(made.numpy().tobytes())
        self.kept.append(np.frombuffer(buffer, np.float32))
        return torch.frombuffer(buffer, dtype=torch.float32)

    def sample(self, made):
        pair = made, 1
        self.kept.append(_First(pair))
        return pair

    def container(self, made):
        samples = [made, made + 1]
        self.kept.append(_Replaced(samples))
        return samples

    def nested(self, made):
        inner = [made]
        self.kept.append(_Replaced(inner))
        return {"a": inner, "b": 3}


class _Bytes:
    def __init__(self, storage):
        self.storage = storage

    def __iadd__(self, _one):
        self.storage.fill_(7)
        return self


class _ReadOnly:
    def __init__(self, array):
        self.array = array

    def __iadd__(self, _one):
        return self


class _First:
    def __init__(self, pair):
        self.pair = pair

    def __iadd__(self, one):
        self.pair[0].add_(one)
        return self


class _Replaced:
    def __init__(self, values):
        self.values = values

    def __iadd__(self, _one):
        self.values[0] = torch.zeros(N)
        return self


@pytest.mark.parametrize("how", [name for name in vars(Keeping) if not name.startswith("_")])
def test_what_a_dataset_keeps(how):
    check(Keeping(how), n_placed=0)


def test_a_buffer_that_is_returned_each_time():
    class Buffer(Dataset):
        def __init__(self):
            self.buffer = torch.zeros(N)

        def __len__(self):
            return 12

        def __getitem__(self, i):
            return self.buffer.fill_(i)

    check(Buffer(), n_placed=0)


class Cache(Dataset):
    """Finds a tensor again as long as it is alive."""

    def __init__(self):
        self.known, self.n_made = weakref.WeakValueDictionary(), 0

    def __len__(self):
        return 12

    def __getitem__(self, i):
        made = self.known.get(0)
        if made is None:
            self.n_made += 1
            made = self.known[0] = image(self.n_made)
        return made


def test_weak_references():
    check(Cache(), n_placed=0)


def test_a_thread_that_keeps_a_sample():
    class Threaded(Made):
        def __getitem__(self, i):
            made = image(i)
            started, end = threading.Event(), threading.Event()

            def hold(kept):
                started.set()
                end.wait()
                return kept

            threading.Thread(target=hold, args=[made], daemon=True).start()
            started.wait()
            return made

    check(Threaded(None), n_placed=0)


def test_a_deep_copy_of_what_is_kept():
    class Copied(Made):
        def __getitem__(self, i):
            self.kept = (image(i), i)
            return copy.deepcopy(self.kept)

    check(Copied(None), n_placed=3)


# ---- errors and odd batches ----------------------------------------------------------------------


def last_line(function, *arguments):
    with pytest.raises(Exception) as error:
        function(*arguments)
    lines = str(error.value).splitlines()
    return type(error.value), lines[0], lines[-1]


def both_fail(make, **options):
    options = {"batch_size": 4, "num_workers": 1, **options}
    theirs = last_line(list, DataLoader(Made(make), **options))
    assert last_line(ours, DataLoader(Made(make), **options)) == theirs


@pytest.mark.parametrize("at", [3, *(pytest.param(at, marks=pytest.mark.slow) for at in (0, 1, 6))])
def test_errors(at):
    def failing(i):
        if i == at:
            raise ValueError(f"no sample {i}")
        return image(i), i

    both_fail(failing)
    both_fail(lambda i: image(i, N + (i == at)))
    both_fail(lambda i: (image(i),) * (1 + (i == at)) if at % 4 else image(i, N + (i == at)))
    both_fail(lambda i: {"a": image(i), "c" if i % 4 else "b": 1})


def test_tracebacks_are_torchs():
    def failing(i):
        raise ValueError(f"no sample {i}")

    texts = []
    for run in (list, ours):
        with pytest.raises(ValueError, match="no sample 0") as error:
            run(DataLoader(Made(failing), num_workers=1))
        # Both loops have functions of the same name in other files.
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_kinds_that_change_within_a_batch():
    check(Made(lambda i: (image(i).numpy() if i % 4 else image(i).numpy() + 1, i)))
    check(Made(lambda i: image(i).double() if i // 4 % 2 else image(i)), n_placed=3)
    check(Made(lambda i: [image(i), image(i)] if i // 4 % 2 else [image(i, 9000)] * 2))
    kinds = [lambda i: image(i).view(50, 100).t().contiguous(), lambda i: image(i).view(100, 50)]
    check(Made(lambda i: kinds[i % 2](i)), n_placed=0)


def test_samples_in_groups_are_left_to_torch():
    class Grouped(Made):
        def __getitems__(self, indices):
            return [self.make(i) for i in indices]

    check(Grouped(image), n_placed=0)


def test_handlers_of_the_user():
    def doubled(batch, *, collate_fn_map=None):
        return 2 * torch.stack(list(batch))

    before = default_collate_fn_map[torch.Tensor]
    default_collate_fn_map[torch.Tensor] = doubled
    try:
        check(Made(image), n_placed=0)
    finally:
        default_collate_fn_map[torch.Tensor] = before


def register_late(_number):
    default_collate_fn_map[list] = lambda batch, *, collate_fn_map=None: ["mine", len(batch)]


def test_handlers_that_are_registered_later():
    assert check(Made(SAMPLES["list"][0]), n_placed=0, worker_init_fn=register_late)[0][0] == "mine"


def use_file_system(_number):
    torch.multiprocessing.set_sharing_strategy("file_system")


def test_another_sharing_strategy():
    check(Made(image), n_placed=0, worker_init_fn=use_file_system)


def test_no_memory(monkeypatch):
    monkeypatch.setattr(sending, "_MAX_SLOTS", 4)
    batches = check(Made(SAMPLES["tuple"][0], 80))
    assert len(batches) == 20 and received._senders is not None


values = st.sampled_from(sorted(SAMPLES))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([tuple, list]),
       st.sampled_from([1, 3, 5]), st.booleans())
def test_structures(names, kind, batch_size, nested):
    def make(i):
        sample = kind([SAMPLES[name][0](i) for name in names])
        return {"a": sample, "b": i} if nested else sample

    check(Made(make), batch_size=batch_size)
