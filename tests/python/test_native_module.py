"""The extension module's interface: wrong use from Python must raise an exception, never crash.

Tests that might crash run in a process of their own, which must exit with 0 and without output.
"""

import contextlib
import copy
import ctypes
import functools
import math
import os
import pickle
import random
import sys
import tempfile
import threading
import time

import helpers
import numpy as np
import pytest
import torch
from feedmill._ops import native
from feedmill.planner.plan import CENTER_CROP, Op
from held_files import HeldFiles
from helpers import run_script, save_jpeg, threads, threads_left
from PIL import Image

try:
    import _testcapi
except ImportError:  # some builds of Python do not have it
    _testcapi = None

SIDE = 16
SAMPLE_BYTES = 3 * SIDE * SIDE
TYPES = [
    value for value in vars(native).values()
    if isinstance(value, type) and not issubclass(value, BaseException)
]
# Methods and attributes of a closed object that do not raise.
KNOWN_WHEN_CLOSED = {"close", "n_pending", "offsets", "out_shape", "pid", "slot_bytes",
                     "view_shapes"}


class Number:
    """An argument whose conversion runs Python code."""

    def __init__(self, convert):
        self.convert = convert

    def __index__(self):
        return self.convert()


def open_loader(**options):
    return native.Loader(**{
        "ops": [Op(CENTER_CROP, SIDE, SIDE)], "dtype": "uint8", "n_samples": 4, "batch_size": 2,
        "n_threads": 1, "prefetch_batches": 3, "memory_budget_bytes": 64 << 20,
        "reader": "pread", "read_depth": 1, **options,
    })


VALUES = np.arange(4, dtype=np.int64)
ROWS = {"ops": [], "arrays": [(VALUES.ctypes.data, 4, 8, 8, 0, 64, ())], "owners": VALUES}


def open_rows(**options):
    """A loader that gathers rows of an array."""
    return open_loader(**{**ROWS, **options})


def open_transformer(**options):
    return native.Transformer(**{
        "ops": [Op(CENTER_CROP, SIDE, SIDE)], "dtype": "uint8", **options,
    })


def some_of(kind):
    """An open object of one of the module's types."""
    makers = {
        native.Loader: open_loader,
        native.Cache: lambda: native.Cache(1 << 20),
        native.DiskCache: lambda: native.DiskCache(tempfile.mkdtemp(), 1 << 20),
        native.Remote: native.Remote,
        native.Transcoder: native.Transcoder,
        native.Transformer: open_transformer,
    }
    assert kind in makers, f"{kind} is new: say here how to make one"
    return makers[kind]()


def methods_of(kind):
    return [name for name, value in vars(kind).items()
            if not name.startswith("__") and callable(value)]


def attributes_of(kind):
    return [name for name, value in vars(kind).items()
            if not name.startswith("__") and not callable(value)]


def argument_lists():
    """Lists of arguments of many lengths and types, for all methods, also future ones."""
    for value in (0, -1, 1 << 40, None, b"", b"8 bytes!", "", [], [0], [b""], (), object()):
        for n in range(7):
            yield (value,) * n
    yield [0, 1], ["a", "b"]
    yield [0], [""], [b"no image"], [3]


def outcomes(obj):
    """The results or exceptions of every attribute, and of every method with each argument list."""
    found = {}
    for name in attributes_of(type(obj)):
        found[name] = [result_of(getattr, obj, name)]
    for name in methods_of(type(obj)):
        found[name] = [result_of(getattr(obj, name), *args) for args in argument_lists()]
    return found


def result_of(function, *args, **named):
    try:
        return function(*args, **named)
    except Exception as error:
        return error


def submitted(loader, data, n=1):
    loader.start(7, 0)
    for _ in range(n):
        assert loader.submit([0, 1], ["", ""], [data, data])
    return loader


@pytest.fixture(scope="module")
def jpeg(tmp_path_factory):
    path = save_jpeg(tmp_path_factory.mktemp("jpeg") / "a.jpg", 40, 30)
    return path.read_bytes()


# ---- C++ exceptions ------------------------------------------------------------------------------


def check_huge_sequences():
    huge = range(10**13)
    for function in (
        lambda: native.indices(huge, 10**14),
        lambda: native.indices(range(sys.maxsize), sys.maxsize),
        lambda: open_loader().submit(huge, huge),
        lambda: open_loader().submit(huge, huge, huge, huge),
        lambda: open_loader().submit([0], [""], [b""], huge),
        lambda: open_loader(ops=huge),
        lambda: open_rows(arrays=huge),
        lambda: open_rows(arrays=[(0, 4, 8, 8, 0, 64, huge)]),
        lambda: open_loader(ops=[Op(CENTER_CROP, 8, 8)._replace(values=huge)]),
    ):
        found = result_of(function)
        assert isinstance(found, MemoryError | ValueError | TypeError), found


@pytest.mark.slow
def test_no_cpp_exception_leaves_the_module():
    run_script("import test_native_module as tests; tests.check_huge_sequences()")


def test_indices_are_checked():
    assert native.indices(range(3), 3) == np.arange(3).tobytes()
    for refused in (range(10**6), [0, 3], [-1], [True], [1.0], [1 << 70], ["0"]):
        assert native.indices(refused, 3) is None
    with pytest.raises(TypeError):
        native.indices(3, 3)


# ---- closed and unopened objects -----------------------------------------------------------------


def check_made_by_new():
    for kind in TYPES:
        found, wanted = result_of(kind.__new__, kind), result_of(kind)
        assert type(found) is type(wanted) and str(found)[:20] == str(wanted)[:20], kind
        assert isinstance(result_of(object.__new__, kind), TypeError)
        for args in argument_lists():
            obj = result_of(kind.__new__, kind, *args)
            if isinstance(obj, kind):
                outcomes(obj)
        obj = some_of(kind)
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            assert isinstance(result_of(duplicate, obj), TypeError), kind
        result_of(kind.__init__, obj)
        result_of(obj.__init__, 1, a=2)
        outcomes(obj)


@pytest.mark.slow
def test_objects_made_by_new_are_open_or_not_made():
    run_script("import test_native_module as tests; tests.check_made_by_new()")


def check_closed():
    for make in (open_loader, open_rows):
        loader = make()
        loader.close()
        for _ in range(2):
            for name, results in outcomes(loader).items():
                if name in KNOWN_WHEN_CLOSED:
                    assert not isinstance(results[0], Exception), name
                    continue
                for one in results:
                    assert isinstance(one, ValueError | TypeError), f"{name} gives {one!r}"
                    assert isinstance(one, ValueError) or "argument" in str(one), name
                assert any("this loader is closed" in str(one) for one in results), name
            loader.close()


@pytest.mark.slow
def test_every_method_of_a_closed_loader_raises():
    run_script("import test_native_module as tests; tests.check_closed()")


def check_any_arguments():
    for kind in TYPES:
        for _ in range(3):
            outcomes(some_of(kind))
    for name, function in vars(native).items():
        if type(function) is type(native.version):
            for args in argument_lists():
                result_of(function, *args)
            assert name


@pytest.mark.slow
def test_methods_accept_or_refuse_any_arguments():
    run_script("import test_native_module as tests; tests.check_any_arguments()")


# ---- concurrent and nested calls -----------------------------------------------------------------


def in_allocator(loader_options, act, data):
    """Calls act(loader) within a loader's next(), from its allocator."""
    loader = None
    found = []

    def alloc(n_bytes):
        memory = torch.empty(n_bytes, dtype=torch.uint8)
        if loader is not None:
            found.append(act(loader))
        return memory.data_ptr(), memory

    loader = open_loader(alloc=alloc, **loader_options)
    outcome = submitted(loader, data).next(-1)
    return loader, outcome, found


def test_a_loader_has_one_call_at_a_time(jpeg):
    def act(loader):
        return {name: results for name, results in outcomes(loader).items() if name != "close"}

    # For methods without arguments, Python's own check comes first.
    methods = [name for name in methods_of(native.Loader) if name != "close"]
    any_thread = {
        "before_pixels", "draws", "draws_torch", "stats", "steps", "sample_records", "slow_samples",
        "step_ready", "step_request", "step_return", "wake",
    }
    loader, (outcome, images, n), (found,) = in_allocator(
        {}, lambda loader: {name: result_of(getattr(loader, name)) for name in methods}, jpeg
    )
    assert outcome == native.OK and n == 2 and len(images) >= 2 * SAMPLE_BYTES
    for name, result in found.items():
        if name in any_thread:
            assert not isinstance(result, RuntimeError), name
        else:
            assert isinstance(result, RuntimeError) and "in progress" in str(result), name
    assert act(submitted(loader, jpeg)) is not None
    loader.close()


def test_close_within_a_call_takes_effect_at_its_end(jpeg):
    before = threads()

    def act(loader):
        loader.close()
        loader.close()
        return result_of(loader.stats), result_of(loader.next, -1)

    loader, (outcome, _, n), (found,) = in_allocator({}, act, jpeg)
    assert outcome == native.OK and n == 2
    assert all(isinstance(one, ValueError) and "closed" in str(one) for one in found)
    with pytest.raises(ValueError, match="closed"):
        loader.stats()
    assert not threads_left(before)


def test_arguments_whose_conversion_closes_the_loader(jpeg):
    for call in (
        lambda loader, number: loader.next(number),
        lambda loader, number: loader.submit([number], [""], [jpeg]),
        lambda loader, number: loader.submit([0], [""], [jpeg], [number]),
        lambda loader, number: loader.draws(1, 1, number, 1, 9, 9),
    ):
        loader = open_loader()
        loader.start(7, 0)
        result_of(call, loader, Number(lambda loader=loader: loader.close() or 0))
        with pytest.raises(ValueError, match="closed"):
            loader.stats()


def test_call_between_always_calls_leave():
    said = []

    def fail(what):
        said.append(what)
        raise KeyError(what)

    enter, leave = (functools.partial(said.append, what) for what in ("enter", "leave"))
    assert native.call_between(enter, lambda: 5, leave) == 5
    with pytest.raises(KeyError, match="work"):
        native.call_between(enter, lambda: fail("work"), leave)
    with pytest.raises(KeyError, match="at once"):
        native.call_between(lambda: fail("at once"), said.clear, said.clear)
    with pytest.raises(KeyError, match="late"):
        native.call_between(enter, lambda: 5, lambda: fail("late"))
    assert said == ["enter", "leave", "enter", "work", "leave", "at once", "enter", "late"]


@pytest.fixture
def stuck(tmp_path, jpeg):
    """A file whose reads block until the test ends."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "stuck.jpg").write_bytes(jpeg)
    files = HeldFiles(tmp_path / "files", tmp_path / "seen", "stuck.jpg")
    yield str(tmp_path / "seen" / "stuck.jpg")
    files.release()
    files.close()


def test_close_ends_next_in_another_thread(stuck):
    loader = open_loader()
    loader.start(7, 0)
    assert loader.submit([0], [stuck])
    found = []
    thread = threading.Thread(target=lambda: found.append(result_of(loader.next, -1)))
    thread.start()
    while "in progress" not in str(result_of(loader.fallback)):  # the thread is not in next() yet
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="another call of this loader is in progress"):
        loader.stop()
    assert loader.stats()["batches"] == 0
    loader.close()
    thread.join()
    assert isinstance(found[0], ValueError) and "closed" in str(found[0])


MEETING = """
import test_native_module as tests
tests.check_meetings(sys.argv[1], int(sys.argv[2]))
"""


def check_meetings(image, n_rounds):
    """Threads call all methods of a loader until another thread has closed it."""
    with open(image, "rb") as file:
        data = [file.read(), b"no image"]
    loader, is_over = None, False
    begin, end = threading.Barrier(6), threading.Barrier(6)
    wrong = []
    sys.setswitchinterval(1e-5)

    def consume(k):
        loader.start(7, k)
        for i in range(4):
            loader.submit([0, 1], ["", ""], [data[0], data[k % 2]])
            outcome, payload, _ = loader.next(-1)
            if outcome == native.FALLBACK:
                place = loader.fallback()[5]
                place[:] = bytes(len(place))
                loader.fallback_done(i % 2 == 0)
            elif outcome == native.OK:
                torch.from_dlpack(payload).sum()
        loader.finish()
        loader.stop()

    def consume_ahead(k):
        loader.start(7, k, True)
        loader.submit([0, 1], ["", ""], [data[0], data[0]])
        loader.step_request()
        if loader.next_ahead()[0] == native.OK:
            result_of(loader.step_ready, 0, 0, 1)  # another thread may have started a new epoch
            loader.step_return()

    def look(k):
        loader.stats(), loader.steps(0), loader.slow_samples(), loader.sample_records(0)
        loader.draws(1, 1, 1, 1, 30, 30)

    def disturb(k):
        for name in methods_of(native.Loader):
            if name != "close":
                for args in ((), (0,), (0, 0), ([0], [""], [data[0]])):
                    result_of(getattr(loader, name), *args)
        look(k)

    def run(act):
        while True:
            begin.wait()
            if is_over:
                return
            k = 0
            try:
                while True:
                    with contextlib.suppress(RuntimeError):  # another thread was faster
                        act(k)
                    k += 1
            except ValueError as error:
                if "closed" not in str(error):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)
            end.wait()

    acts = (consume, consume, consume_ahead, look, disturb)
    workers = [threading.Thread(target=run, args=(act,), daemon=True) for act in acts]
    for worker in workers:
        worker.start()
    for k in range(n_rounds):
        loader = open_loader(sample_records=64)
        begin.wait()
        for _ in range(k % 7):
            time.sleep(0)
        if k % 3 == 0:
            result_of(loader.start, 1, 1)
        loader.close()
        end.wait()
        assert not wrong, wrong
    is_over = True
    begin.wait()


@pytest.mark.slow
def test_close_during_all_other_calls(tmp_path, jpeg):
    (tmp_path / "a.jpg").write_bytes(jpeg)
    n_rounds = int(os.environ.get("FEEDMILL_CLOSE_ROUNDS", "200"))
    run_script(MEETING, tmp_path / "a.jpg", n_rounds)


AT_EXIT = """
import threading
import test_native_module as tests

def run():
    while True:
        tests.result_of(loader.next, 1000)
        begun.set()

loader = tests.open_loader()
loader.start(7, 0)
begun = threading.Event()
threading.Thread(target=run, daemon=True).start()
begun.wait()
"""


def test_the_interpreter_may_exit_while_a_thread_waits():
    """Python ends such a thread when it requests the GIL, by unwinding its stack."""
    run_script(AT_EXIT)


# ---- the output of a fallback sample -------------------------------------------------------------


def fallback_of(loader):
    assert loader.next(-1)[0] == native.FALLBACK
    return loader.fallback()[5]


def test_a_samples_output_outlives_its_slot():
    loader = submitted(open_loader(), b"no image")
    places = [fallback_of(loader)]
    loader.fallback_done(True)
    places.append(fallback_of(loader))
    views = [memoryview(one) for one in places]
    loader.stop()
    loader.close()
    for view in views:
        view[:] = b"\xff" * SAMPLE_BYTES
        assert bytes(view) == b"\xff" * SAMPLE_BYTES
    del loader, places
    assert views[0][0] == 255


def test_a_samples_output_is_copied_when_the_fallback_ends():
    loader = submitted(open_loader(), b"no image")
    first = fallback_of(loader)
    assert bytes(first) == bytes(SAMPLE_BYTES)
    first[:] = bytes(range(256)) * (SAMPLE_BYTES // 256)
    late = loader.fallback()[5]  # the latest output object replaces the one before
    assert late is not first
    late[:] = b"\x07" * SAMPLE_BYTES
    loader.fallback_done(True)
    late[:] = b"\x09" * SAMPLE_BYTES
    fallback_of(loader)[:] = b"\x08" * SAMPLE_BYTES
    loader.fallback_done(True)
    outcome, capsule, _ = loader.next(-1)
    assert outcome == native.OK
    assert [image.unique().tolist() for image in torch.from_dlpack(capsule)] == [[7], [8]]
    loader.close()


def test_a_samples_output_that_was_not_written_correctly():
    loader = submitted(open_loader(), b"no image", n=2)
    with pytest.raises(native.Error, match="no fallback is pending"):
        loader.fallback_done(True)
    assert loader.next(-1)[0] == native.FALLBACK
    with pytest.raises(RuntimeError, match="the sample was not written"):
        loader.fallback_done(True)
    place = loader.fallback()[5]
    place.append(1)
    with pytest.raises(ValueError, match=f"has {SAMPLE_BYTES + 1} bytes; it must keep its"):
        loader.fallback_done(True)
    place.clear()
    with pytest.raises(ValueError, match="has 0 bytes"):
        loader.fallback_done(True)
    place.extend(bytes(SAMPLE_BYTES))
    loader.fallback_done(True)
    # The former sample's output can't be used for the next sample.
    assert loader.next(-1)[0] == native.FALLBACK
    with pytest.raises(RuntimeError, match="the sample was not written"):
        loader.fallback_done(True)
    loader.fallback_done(False)
    assert loader.next(-1)[0] == native.ERR_FORMAT
    loader.close()


# ---- references and memory -----------------------------------------------------------------------


def test_errors_do_not_leak_references(jpeg):
    data = bytes(bytearray(jpeg))
    path, number = "a name that nobody else has", 1 << 80
    watched = [data, path, number]

    def fail():
        loader = open_loader()
        loader.start(7, 0)
        for bad in (
            ([0, 99], [path, path], [data, data]),
            ([0, number], [path, path], [data, data]),
            ([0, 1], [path, number], [data, data]),
            ([0, 1], [path, path], [data, path]),
            ([0, 1], [path, path], [data, (1, 2, 3)]),
            ([0, 1], [path, path], [data, (1, 2, True, (path,))]),
            ([0, 1], [path, path], [data, data], [0, path]),
            ([0, 1], [path, path], [data, data], [0, number]),
            ([0, 1, 2], [path] * 3, [data] * 3),
        ):
            assert isinstance(result_of(loader.submit, *bad), Exception)
        loader.submit([0], [path], [data])
        result_of(native.indices, [number], 5)
        result_of(open_loader, owners=data, cache=path)
        result_of(open_loader, ops=[number], owners=data)
        result_of(open_rows, arrays=[(1, 2)], owners=data)

    fail()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(3):
        fail()
    assert [sys.getrefcount(one) for one in watched] == before


# For render(): new size, filter, order of the passes, window and its orientation.
RESIZE = (9, 8, 0, 0, (1, 1, 7, 6), 3)


def transformed(transformer, data):
    """The memory of the result."""
    out = bytearray(math.prod(transformer.shape))
    memory = (ctypes.c_char * len(out)).from_buffer(out)
    assert transformer.draw(30, 30, 0) is None
    assert transformer.run((data,), ctypes.addressof(memory), 0) is None
    transformer.draw(30, 30, 0, random.getstate())
    return out


def check_allocations(image):
    """Lets each of Python's allocations fail once, in each method."""
    with open(image, "rb") as file:
        data = file.read()
    draws = [Op(CENTER_CROP, SIDE, SIDE)]
    actions = {
        "open": lambda loader: open_loader(ops=draws).close(),
        "open_rows": lambda loader: open_rows(),
        "cycle": lambda loader: submitted(loader, data).next(-1),
        "error": lambda loader: loader.submit([99], [""], [data]),
        "fallback": lambda loader: fallback_of(submitted(loader, b"no image")),
        "stats": lambda loader: loader.stats(),
        "draws": lambda loader: loader.draws(1, 1, 1, 1, 30, 30),
        "steps": lambda loader: loader.steps(0),
        "records": lambda loader: loader.sample_records(0),
        "slow": lambda loader: loader.slow_samples(),
        "shape": lambda loader: loader.out_shape,
        "rows": lambda loader: rows.offsets,
        "take_rows": lambda loader: take_rows(),
        "imread": lambda loader: native.imread(data, True, 0),
        "imread_fails": lambda loader: native.imread(b"no image", True, 0),
        "image_header": lambda loader: native.image_header(data),
        "render": lambda loader: native.render((data,), (1, 2, 6, 5), 6, RESIZE),
        "indices": lambda loader: native.indices(range(300, 340), 1000),
        "transcoder": lambda loader: native.Transcoder().run(data),
        "transformer": lambda loader: transformed(open_transformer(ops=draws), data),
        "devices": lambda loader: native.device_count("cuda"),
    }
    rows = open_rows()

    def take_rows():
        rows.start(7, 0)
        rows.submit_rows(native.indices([0, 1], 4))
        return rows.next(-1)

    n_failed = 0
    loader = open_loader(sample_records=64)
    for name, act in actions.items():
        result_of(act, loader)
        for k in range(10_000):
            _testcapi.set_nomemory(k, k + 1)
            try:
                act(loader)
                failed = False
            except MemoryError:
                failed = True
            except (native.Error, RuntimeError, AssertionError, ValueError):
                failed = True  # a later step of the action met the state that the failure left
            finally:
                _testcapi.remove_mem_hooks()
            n_failed += failed
            if not failed and k > 200:
                break
        assert name == "devices" or not isinstance(result_of(act, loader), MemoryError)
    loader.close()
    assert n_failed > 100
    print(n_failed)


@pytest.mark.slow
@pytest.mark.skipif(_testcapi is None, reason="this Python has no module _testcapi")
def test_every_allocation_of_python_may_fail(tmp_path, jpeg):
    (tmp_path / "a.jpg").write_bytes(jpeg)
    assert int(run_script(
        "import test_native_module as tests; tests.check_allocations(sys.argv[1])",
        tmp_path / "a.jpg",
    )) > 100


def test_fallback_images_equal_pillows(tmp_path, small_images):
    """Samples that go through Pillow arrive unchanged, bit for bit."""
    dataset = helpers.numbered_folder(small_images)
    loader = helpers.native_loader(dataset, batch_size=4)
    bare = helpers.save_bare_jpeg(tmp_path / "bare.jpg", 30, 20)
    dataset.samples[1] = (str(bare), 1)
    images = next(iter(loader))[0]
    with Image.open(bare) as image:
        wanted = dataset.transform(image.convert("RGB"))
    assert torch.equal(images[1], wanted)
    assert loader.stats().decode.fallback_samples == 1
