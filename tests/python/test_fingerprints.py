"""Functions of libraries are recognised by their source code."""

import ast
import hashlib
import importlib.util
import random
import sys
import types

import pytest
from feedmill.planner import fingerprints

SOURCE = '''
import math
import random as chance


def helper(x):
    return x + 1


class Thing:
    @staticmethod
    def draw(size, scale=(0.5, 1.0)):
        # a comment
        """What it does."""
        return [math.sqrt(x) for x in range(size)], chance.random(), helper(scale)

    def __call__(self, x: int) -> int:
        return len(str(x))
'''
# The same functions in another layout, which a hash must not see.
SAME = '''
import math
import random as chance
def helper(x: "number") -> "number":
    """Adds one."""
    return (x
            + 1)  # one
class Thing:
    @staticmethod
    def draw(size: int, scale: tuple = (0.5, 1.0)):
        return [math.sqrt(x)
                for x in range(size)], chance.random(), helper(scale)
    def __call__(self, x): return len(str(x))
'''
PLACES = ("library:helper", "library:Thing.draw", "library:Thing.__call__")
MEANINGS = {"math": "math", "chance": "random", "helper": "library:helper"}


def hash_in(text, place):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == place.rpartition(".")[2].rpartition(
            ":"
        )[2]:
            return hashlib.sha256(fingerprints.canonical(node).encode()).hexdigest()[:16]
    raise AssertionError(place)


KNOWN = {place: frozenset({hash_in(SOURCE, place)}) for place in PLACES}


def load(tmp_path, monkeypatch, text=SOURCE):
    path = tmp_path / "library.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("library", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "library", module)
    spec.loader.exec_module(module)
    fingerprints._read_file.cache_clear()
    fingerprints._definition_in.cache_clear()
    fingerprints.linecache.clearcache()
    return module


def known(module):
    functions = module.helper, vars(module.Thing)["draw"], vars(module.Thing)["__call__"]
    return [
        fingerprints.is_known(function, place, KNOWN, MEANINGS)
        for function, place in zip(functions, PLACES)
    ]


@pytest.mark.parametrize("text", [SOURCE, SAME])
def test_the_source_is_recognised(tmp_path, monkeypatch, text):
    assert known(load(tmp_path, monkeypatch, text)) == [True, True, True]


@pytest.mark.parametrize("old, new, expected", [
    ("x + 1", "x + 2", [False, False, True]),
    ("0.5", "0.25", [True, False, True]),
    ("range(size)", "range(size, 9)", [True, False, True]),
    ("len(str(x))", "len(repr(x))", [True, True, False]),
    ("import random as chance", "import time as chance", [True, False, True]),
    ("import math", "import math\nlen = abs", [True, True, False]),
])
def test_changed_sources_are_not(tmp_path, monkeypatch, old, new, expected):
    text = SOURCE.replace(old, new)
    assert text != SOURCE
    assert known(load(tmp_path, monkeypatch, text)) == expected


def test_a_wrapped_function_is_not_recognised(tmp_path, monkeypatch):
    text = "wrap = lambda f: (lambda *a: f(*a))\n" + SOURCE.replace(
        "def helper", "@wrap\ndef helper"
    )
    assert known(load(tmp_path, monkeypatch, text)) == [False, False, True]


def test_changes_in_the_process_are_seen(tmp_path, monkeypatch):
    def changed(change):
        module = load(tmp_path, monkeypatch)
        assert known(module) == [True, True, True]
        change(module)
        return known(module)

    def code(module):
        def helper(x):
            return x + 2

        module.helper.__code__ = helper.__code__

    def defaults(module):
        module.Thing.draw.__defaults__ = ((0.1, 1.0),)

    def a_global(module):
        module.math = types.SimpleNamespace(sqrt=abs)

    def a_helper(module):
        module.helper = lambda x: x + 1

    def a_builtin(module):
        module.str = repr

    assert changed(code) == [False, False, True]
    assert changed(defaults) == [True, False, True]
    assert changed(a_global) == [True, False, True]
    assert changed(a_helper) == [False, False, True]
    assert changed(a_builtin) == [True, True, False]


def test_a_file_that_changed_after_the_import(tmp_path, monkeypatch):
    module = load(tmp_path, monkeypatch, SOURCE.replace("x + 1", "x + 3"))
    (tmp_path / "library.py").write_text(SOURCE)
    assert known(module)[:2] == [False, False]


def test_functions_without_source():
    namespace = {"__name__": "library"}
    exec(SOURCE, namespace)
    assert not fingerprints.is_known(namespace["helper"], PLACES[0], KNOWN, MEANINGS)
    assert not fingerprints.is_known(len, PLACES[0], KNOWN, MEANINGS)
    assert not fingerprints.is_known(random.Random, PLACES[0], KNOWN, MEANINGS)
