"""keep_in_accelerate() in several threads, with a fake accelerate module that rebuilds loaders as
the real one does. tests/frameworks has tests with Accelerate itself."""

import sys
import threading
import types
import warnings

import feedmill
import pytest
import torch
from helpers import in_child

ACCELERATES = '''
from torch.utils.data import DataLoader

def prepare(loader):
    context = loader.multiprocessing_context
    return DataLoader(loader.dataset, batch_size=loader.batch_size, multiprocessing_context=context)
'''


@pytest.fixture
def accelerate(monkeypatch):
    package, module = types.ModuleType("accelerate"), types.ModuleType("accelerate.data_loader")
    exec(ACCELERATES, module.__dict__)
    package.data_loader = module
    monkeypatch.setitem(sys.modules, "accelerate", package)
    monkeypatch.setitem(sys.modules, "accelerate.data_loader", module)
    return module


def loader():
    return feedmill.DataLoader([1, 2, 3], batch_size=2, seed=5)


def is_kept(prepared):
    return type(prepared) is feedmill.DataLoader and prepared.seed == 5


def test_one_thread(accelerate):
    with feedmill.keep_in_accelerate():
        assert is_kept(accelerate.prepare(loader()))
    assert accelerate.DataLoader is torch.utils.data.DataLoader
    with pytest.warns(UserWarning, match="Accelerate replaces this feedmill.DataLoader"):
        assert not is_kept(accelerate.prepare(loader()))


class Context:
    """keep_in_accelerate() in a thread of its own, which the test enters and leaves."""

    def __init__(self, accelerate):
        self._prepare = accelerate.prepare
        self._orders, self._done = [], threading.Semaphore(0)
        self._wanted = threading.Semaphore(0)
        self.results = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._done.acquire()

    def _run(self):
        with feedmill.keep_in_accelerate():
            self._done.release()
            self._wanted.acquire()
            while self._orders.pop() != "leave":
                self.results.append(is_kept(self._prepare(loader())))
                self._done.release()
                self._wanted.acquire()

    def prepare(self):
        self._orders.append("prepare")
        self._wanted.release()
        self._done.acquire()
        return self.results[-1]

    def leave(self):
        self._orders.append("leave")
        self._wanted.release()
        self._thread.join()


@pytest.mark.parametrize("order", ["first", "last"])
def test_contexts_that_overlap(accelerate, order):
    contexts = [Context(accelerate), Context(accelerate)]
    assert all(context.prepare() for context in contexts)
    left, other = contexts if order == "first" else reversed(contexts)
    left.leave()
    assert other.prepare(), "the loaders of the other thread are still kept"
    other.leave()
    assert accelerate.DataLoader is torch.utils.data.DataLoader
    with feedmill.keep_in_accelerate():
        assert is_kept(accelerate.prepare(loader()))


def test_a_thread_without_a_context(accelerate):
    context = Context(accelerate)
    with pytest.warns(UserWarning, match="Accelerate replaces this feedmill.DataLoader"):
        prepared = accelerate.prepare(loader())
    assert type(prepared) is torch.utils.data.DataLoader
    # Accelerate's class is feedmill's, as under `feedmill run`, so there is no warning.
    context.leave()
    accelerate.DataLoader = feedmill.DataLoader
    context = Context(accelerate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = accelerate.prepare(feedmill.DataLoader([1, 2], batch_size=2))
    assert type(prepared) is feedmill.DataLoader
    context.leave()
    assert accelerate.DataLoader is feedmill.DataLoader


def test_nested_and_failed(accelerate):
    with pytest.raises(ZeroDivisionError), feedmill.keep_in_accelerate():
        with feedmill.keep_in_accelerate():
            assert is_kept(accelerate.prepare(loader()))
        assert is_kept(accelerate.prepare(loader()))
        raise ZeroDivisionError
    assert accelerate.DataLoader is torch.utils.data.DataLoader


def test_other_code_replaces_the_class_meanwhile(accelerate):
    mine = type("Mine", (torch.utils.data.DataLoader,), {})
    with feedmill.keep_in_accelerate():
        accelerate.DataLoader = mine
        with feedmill.keep_in_accelerate():
            assert is_kept(accelerate.prepare(loader()))
    with feedmill.keep_in_accelerate():
        pass
    assert accelerate.DataLoader is mine


def test_a_fork_while_another_thread_is_inside(accelerate):
    context = Context(accelerate)

    def child():
        with feedmill.keep_in_accelerate():
            assert is_kept(accelerate.prepare(loader()))

    assert in_child(child) == 0
    context.leave()
