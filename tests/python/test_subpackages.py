"""Subpackages import only what their docstrings name, and neither they nor the parts of `profiling`
import each other in a circle."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import feedmill
import pytest

PACKAGE = Path(feedmill.__file__).parent
SUBPACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
LOADER = "the loader"  # the modules of the package itself that are not SHARED
SHARED = {"__init__", "__main__", "_internals", "_native", "_ops"}


def imported(file):
    """The dotted names, split into parts, that a file imports from feedmill anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} has a relative import"
            names = [f"{node.module}.{one.name}" for one in node.names]
        yield from (name.split(".")[1:] for name in names if name.split(".")[0] == "feedmill")


def subpackages_of(files):
    """The subpackages that these files import."""
    found = set()
    for file in files:
        for first, *_ in filter(None, imported(file)):
            if first in SUBPACKAGES:
                found.add(first)
            elif first not in SHARED and (PACKAGE / f"{first}.py").exists():
                found.add(LOADER)
    return found


def test_subpackages_import_only_what_they_declare():
    for name in sorted(SUBPACKAGES):
        text = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text())) or ""
        said = re.search(r"^May import: ([^.]+)\.", text, re.MULTILINE)
        assert said, f"{name}/__init__.py does not say which subpackages it may import"
        allowed = set(said[1].replace("\n", " ").split(", "))
        seen = subpackages_of((PACKAGE / name).rglob("*.py")) - {name}
        assert "all subpackages" in said[1] or seen <= allowed, (name, seen - allowed)


def test_subpackages_do_not_import_in_a_circle():
    graph = {
        name: subpackages_of((PACKAGE / name).rglob("*.py")) - {name} for name in SUBPACKAGES
    }
    loader = [file for file in PACKAGE.glob("*.py") if file.stem not in SHARED]
    graph[LOADER] = subpackages_of(loader) - {LOADER}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("name", sorted(SUBPACKAGES))
def test_files_do_not_import_in_a_circle(name):
    """Checks the files of one subpackage, without imports for type checkers only."""
    folder = PACKAGE / name
    graph = {}
    for file in folder.rglob("*.py"):
        tree = ast.parse(file.read_text())
        runtime = "".join(
            ast.unparse(node) + "\n" for node in tree.body
            if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        )
        found = set()
        for node in ast.walk(ast.parse(runtime)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(f"feedmill.{name}"):
                path = PACKAGE.joinpath(*node.module.split(".")[1:])
                found |= {path.with_suffix(".py")} if path.with_suffix(".py").exists() else {
                    path / f"{one.name}.py" for one in node.names}
        graph[file] = found - {file}
    TopologicalSorter(graph).prepare()


def test_one_file_imports_ray():
    files = {
        file.name for file in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(import|from) ray\b", file.read_text(), re.MULTILINE)
    }
    assert files == {"on_ray.py"}
