"""The rooms of the package: each imports only those that its docstring names, none in a circle."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import feedmill

PACKAGE = Path(feedmill.__file__).parent
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
LOADER = "the loader"  # all files that lie in no room, but for those that belong to nobody
NOBODYS = {"__init__", "__main__", "_internals", "_ops", "_native"}


def imported(file):
    """What a file imports of feedmill, as parts of dotted names, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} has a relative import"
            names = [f"{node.module}.{one.name}" for one in node.names]
        yield from (name.split(".")[1:] for name in names if name.split(".")[0] == "feedmill")


def rooms_of(files):
    """The rooms that files import."""
    found = set()
    for file in files:
        for first, *_ in filter(None, imported(file)):
            if first in ROOMS:
                found.add(first)
            elif first not in NOBODYS and (PACKAGE / f"{first}.py").exists():
                found.add(LOADER)
    return found


def test_rooms_import_what_they_say():
    for room in sorted(ROOMS):
        text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
        said = re.search(r"^May import: ([^.]+)\.", text or "", re.MULTILINE)
        assert said, f"{room}/__init__.py does not say which rooms it may import"
        seen = rooms_of((PACKAGE / room).rglob("*.py")) - {room}
        assert "all rooms" in said[1] or seen <= set(said[1].split(", ")), (room, seen)


def test_no_room_is_imported_in_a_circle():
    graph = {room: rooms_of((PACKAGE / room).rglob("*.py")) - {room} for room in ROOMS}
    loader = [file for file in PACKAGE.glob("*.py") if file.stem not in NOBODYS]
    graph[LOADER] = rooms_of(loader) - {LOADER}
    TopologicalSorter(graph).prepare()  # raises CycleError
