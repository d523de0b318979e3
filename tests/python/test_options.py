"""Arguments of the DataLoader: torch's checks, feedmill's checks, len(), pickling, subclasses."""

import copy
import inspect
import pickle
import traceback
import warnings

import feedmill
import pytest
import torch
from feedmill._dispatch.options import Options
from feedmill._dispatch.paths import n_threads
from feedmill._ops import native
from feedmill.system import peer_processes
from helpers import native_loader, targets_of
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


DATA = list(range(10))
BAD_ARGUMENTS = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"persistent_workers": True},
    {"multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "nonsense"},
    {"num_workers": 1, "multiprocessing_context": 3},
    {"shuffle": True, "sampler": SequentialSampler(DATA)},
    {"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False), "batch_size": 2},
    {"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False), "shuffle": True},
    {"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False), "drop_last": True},
    {"batch_sampler": [[1]], "sampler": SequentialSampler(DATA)},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -3},
    {"batch_size": 2.5},
    {"batch_size": True},
    {"drop_last": 1},
    {"dataset": [], "shuffle": True},
    {"dataset": Stream(), "shuffle": True},
    {"dataset": Stream(), "sampler": SequentialSampler(DATA)},
    {"dataset": Stream(), "batch_sampler": [[1]]},
]


def outcome(kind, options):
    options = {"dataset": DATA, **options}
    try:
        loader = kind(**options)
    except Exception as error:
        return type(error), str(error)
    return type(loader.batch_size), len(loader)


@pytest.mark.parametrize("options", BAD_ARGUMENTS, ids=lambda o: "-".join(o))
def test_wrong_arguments_raise_torchs_errors(options):
    assert outcome(feedmill.DataLoader, options) == outcome(torch.utils.data.DataLoader, options)


def test_positional_arguments_are_those_of_torch(numbered):
    loader = feedmill.DataLoader(numbered, 4, False, None, None, 2, None, False, True, 5)
    assert loader.batch_size == 4 and loader.num_workers == 2
    assert loader.drop_last and loader.timeout == 5
    assert isinstance(loader, torch.utils.data.DataLoader)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"native": "sometimes"}, "'auto', 'hybrid', 'require', 'verify', 'off'"),
        ({"native": None}, "'auto', 'hybrid', 'require', 'verify', 'off'"),
        ({"worker_init": True}, "'fallback', 'ignore'"),
        ({"reader": "mmap"}, "'auto', 'uring', 'pread'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": True}, "seed is True"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 5000}, "1 to 1024"),
        ({"threads": "2"}, "threads is '2'"),
        ({"memory_budget": 0}, "memory_budget is 0"),
        ({"memory_budget": 1e9}, "memory_budget is 1000000000.0"),
        ({"dtype": torch.float64}, "dtype is torch.float64"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"dtype": torch.uint8}, "None, torch.float32, torch.float16, torch.bfloat16"),
        ({"memory_format": None}, "memory_format is None"),
        ({"memory_format": torch.preserve_format}, "torch.channels_last"),
    ],
)
def test_wrong_values_of_feedmills_options(numbered, options, text):
    with pytest.raises(ValueError, match="must be") as caught:
        feedmill.DataLoader(numbered, **options)
    assert text in str(caught.value)
    # Values that are set later are refused at iter().
    loader = feedmill.DataLoader(numbered)
    for name, value in options.items():
        setattr(loader, name, value)
    with pytest.raises(ValueError, match="must be"):
        iter(loader)


def test_feedmills_options_are_keyword_only_and_attributes(numbered):
    options = {"native": "off", "seed": -3, "threads": 3, "memory_budget": 1 << 30, "reader": "pread",
               "worker_init": "ignore", "dtype": torch.float16, "memory_format": torch.channels_last}
    loader = feedmill.DataLoader(numbered, **options)
    assert {name: getattr(loader, name) for name in options} == options
    with pytest.raises(TypeError):
        feedmill.DataLoader(numbered, *[None] * 12, "auto")


def test_the_error_of_a_small_budget_names_the_bytes(numbered):
    loader = native_loader(numbered, batch_size=32, memory_budget=1000)
    with pytest.raises(ValueError, match="memory_budget of 1000 bytes is too small"):
        iter(loader)


def test_the_class_can_be_subscripted_in_annotations(numbered):
    annotated = feedmill.DataLoader[list[torch.Tensor]]
    assert targets_of(annotated(numbered, batch_size=20)) == [[*range(20)], [*range(20, 40)]]


def test_attributes_that_torch_freezes(numbered):
    loader = native_loader(numbered, batch_size=4)
    for name in ("batch_size", "sampler", "drop_last", "dataset"):
        with pytest.raises(ValueError, match="should not be set"):
            setattr(loader, name, 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_of_iter(numbered, num_workers):
    options = {"timeout": 3} if num_workers == 0 else {"num_workers": 2, "prefetch_factor": 0}
    texts = []
    for kind in (torch.utils.data.DataLoader, native_loader):
        with pytest.raises(AssertionError) as caught:
            iter(kind(numbered, **options))
        texts.append(str(caught.value))
        # torch's unfinished iterator raises when it is deleted, which should happen here.
        traceback.clear_frames(caught.tb)
    assert texts[0] in ("", texts[1])  # older versions have no text


def test_warning_of_too_many_workers(numbered):
    with pytest.warns(UserWarning, match="This DataLoader will create 500 worker"):
        loader = native_loader(numbered, num_workers=500, batch_size=4)
    assert n_threads(loader) < 500


def test_pin_memory_without_accelerator_warns(numbered):
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    texts = []
    for kind in (native_loader, torch.utils.data.DataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            images, _ = next(iter(kind(numbered, batch_size=4, pin_memory=True)))
        assert not images.is_pinned()
        texts.append([str(one.message) for one in caught if "pin_memory" in str(one.message)])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, 40, 100])
def test_length(numbered, batch_size, drop_last):
    loader = native_loader(numbered, batch_size=batch_size, drop_last=drop_last, num_workers=1)
    iterator = iter(loader)
    assert len(loader) == len(iterator) == len(list(iterator))


def test_pickle_and_copy(numbered):
    loader = native_loader(numbered, batch_size=8, seed=3)
    wanted = targets_of(loader)
    for again in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert (again.native, again.seed) == ("require", 3)
        assert targets_of(again) == wanted
    with pytest.raises(NotImplementedError):
        pickle.dumps(iter(loader))


def test_rebuilt_from_its_attributes(numbered):
    """Lightning rebuilds loaders this way to inject a sampler."""
    import inspect

    loader = native_loader(numbered, batch_size=4, seed=5, threads=1)
    names = inspect.signature(feedmill.DataLoader.__init__).parameters
    options = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    options.pop("batch_sampler")
    options["sampler"] = RandomSampler(numbered)
    again = type(loader)(**options)
    assert again.seed == 5 and again.native == "require"
    assert sorted(sum(targets_of(again), [])) == list(range(40))


def test_threads_by_num_workers(numbered, monkeypatch):
    usable = feedmill._ops.native.usable_cpus()
    monkeypatch.setattr(peer_processes, "recent_peers", list)  # no other feedmill processes
    assert n_threads(native_loader(numbered, num_workers=1)) == 1
    assert n_threads(native_loader(numbered)) == max(1, usable - 1)
    assert n_threads(native_loader(numbered, threads=9)) == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(usable))
    assert n_threads(native_loader(numbered)) == 1


def test_timeout_restarts_after_a_batchs_worth_of_samples(numbered):
    """Finished reads and single finished samples do not restart it."""

    class Handle:
        def __init__(self, n_samples):
            self.n_samples = iter(n_samples)

        def stats(self):
            return {"native_samples": next(self.n_samples)}

        def next(self, timeout_ns):
            assert timeout_ns == 10**9
            return native.AGAIN, None, 0

    iterator = iter(native_loader(numbered, batch_size=8, num_workers=1, timeout=1))
    for counts in ([5, 12], [5, 13, 13, 20], [0, 8, 8, 30, 30, 30]):
        numbers = Handle(counts)
        receiver = iterator._receiver
        real, receiver.handle = receiver.handle, numbers
        with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
            receiver._wait()
        receiver.handle = real
        assert next(numbers.n_samples, None) is None


# ---- arguments of a newer torch ------------------------------------------------------------------


def test_new_arguments_go_to_torchs_constructor(numbered, monkeypatch):
    original = torch.utils.data.DataLoader.__init__

    def newer(self, *args, colour="red", **options):
        original(self, *args, **options)
        self.colour = colour

    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", newer)
    assert feedmill.DataLoader(numbered, colour="blue").colour == "blue"
    loader = native_loader(numbered, batch_size=20, seed=1, colour="blue")
    assert targets_of(loader) == [[*range(20)], [*range(20, 40)]]
    assert loader._feedmill_rebuilt(numbered, colour="green").colour == "green"


@pytest.mark.parametrize("options", [{"colour": "blue"}, {"colour": 1, "batch_size": 4}])
def test_unknown_arguments_raise_torchs_error(options):
    assert outcome(feedmill.DataLoader, options) == outcome(torch.utils.data.DataLoader, options)
    assert "unexpected keyword argument 'colour'" in outcome(feedmill.DataLoader, options)[1]


def test_arguments_that_an_older_torch_lacks(numbered, monkeypatch):
    original = torch.utils.data.DataLoader.__init__

    def older(self, dataset, *args, prefetch_factor=None, persistent_workers=False):
        original(self, dataset, *args, prefetch_factor=prefetch_factor,
                 persistent_workers=persistent_workers)

    older.__qualname__ = "DataLoader.__init__"
    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", older)
    feedmill.DataLoader(numbered, in_order=True, pin_memory_device="")
    for options in ({"in_order": False}, {"pin_memory_device": "cuda"}):
        wanted = outcome(torch.utils.data.DataLoader, options)
        assert wanted[0] is TypeError and outcome(feedmill.DataLoader, options) == wanted


# ---- names of options in subclasses --------------------------------------------------------------

# Values that a subclass stores under the names of options. As options, they would be refused or
# would change the loader.
OWN = {
    "native": "off", "seed": "mine", "threads": object(), "memory_budget": -1, "reader": "mine",
    "worker_init": print, "dtype": torch.float64, "memory_format": "mine", "log": print,
    "log_samples": "mine", "cache": {}, "on_error": print, "max_errors": -1,
    "device": torch.device("cuda"),
}


class SetsBefore(feedmill.DataLoader):
    def __init__(self, *args, **options):
        vars(self).update(OWN)
        super().__init__(*args, **options)


class SetsAfter(feedmill.DataLoader):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        for name, value in OWN.items():
            setattr(self, name, value)


class SetsLater(feedmill.DataLoader):
    def __iter__(self):
        for name, value in OWN.items():
            setattr(self, name, value)
        return super().__iter__()


class Defines(feedmill.DataLoader):
    device = OWN["device"]

    def seed(self):
        return "mine"

    @property
    def cache(self):
        return OWN["cache"]


@pytest.mark.parametrize("kind", [SetsBefore, SetsAfter, SetsLater, Defines])
def test_a_subclass_may_use_the_names_of_options(numbered, kind):
    options = {"native": "require", "seed": 5, "threads": 1, "dtype": torch.float16}
    loader = kind(numbered, batch_size=20, **options)
    plain = feedmill.DataLoader(numbered, batch_size=20, **options)
    wanted = list(plain)
    clones = [copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
    for one in (loader, *clones, loader._feedmill_rebuilt(numbered, batch_size=20)):
        got = list(one)
        assert [images.dtype for images, _ in got] == [torch.float16] * 2
        assert all(map(torch.equal, sum(got, []), sum(wanted, [])))
        assert one.stats().path == "native"
        text = one.explain()
        assert "seed=5, epochs counted" in text
        if isinstance(one, kind):
            assert f"device is an attribute of {kind.__name__}'s own; the option is device=None" in text
    if kind is not Defines:
        assert {name: getattr(loader, name) for name in OWN} == OWN
    else:
        assert (loader.device, loader.seed(), loader.cache) == (OWN["device"], "mine", {})


def test_options_have_the_same_types_wherever_they_are_declared():
    """In the dataclass, in the constructor's signature, and as attributes of a DataLoader."""
    types = Options.__annotations__
    parameters = inspect.signature(feedmill.DataLoader.__init__).parameters
    names = [name for name in parameters if name in types]
    assert names == list(types)
    assert {name: parameters[name].annotation for name in names} == types
    attributes = feedmill.DataLoader.__annotations__
    assert {name: attributes[name] for name in names} == types


def test_a_subclass_without_such_attributes(numbered):
    class Plain(feedmill.DataLoader):
        pass

    loader = Plain(numbered, batch_size=20, native="require", seed=5)
    assert (loader.native, loader.seed, loader.device) == ("require", 5, None)
    assert "Plain's own" not in loader.explain()
    loader.seed = 6
    assert "the option is seed=5, as the constructor got it" in loader.explain()


def test_options_of_a_loader_can_be_set_and_deleted(numbered):
    loader = feedmill.DataLoader(numbered, batch_size=20, seed=5, rng="feedmill")
    for value in (6, None):
        loader.seed = value
        assert f"seed={value}" in loader.explain()
        assert copy.copy(loader).seed == pickle.loads(pickle.dumps(loader)).seed == value
        assert loader._feedmill_rebuilt(numbered).seed == value
    loader.native = "off"
    assert next(iter(loader)) and loader.stats().path == "torch"
    del loader.native  # returns to the constructor's value
    assert next(iter(loader)) and loader.stats().path == "native"
