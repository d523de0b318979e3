"""Imported at the start of every Python process under ``feedmill run``, by way of PYTHONPATH.

It acts when torch is imported. Otherwise it leaves the process as it would be: it removes its
folder from sys.path, and imports the sitecustomize module that it hides.
"""

import os
import sys

# typing is not imported at run time: every process would pay for it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Finds torch and feedmill with the other finders, and calls _imported() after their import."""

    @staticmethod
    def find_spec(name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        if name not in ("torch", "feedmill"):
            return None
        spec = _find(name, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _act_after(spec.loader, name)
        return spec


def _find(name: str, path: "Any", target: "Any") -> "ModuleSpec | None":
    for finder in list(sys.meta_path):
        if finder is not _Finder and hasattr(finder, "find_spec"):
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    if name != "feedmill":
        return None
    # `feedmill run` may have found the package in its current folder, which is not on the script's
    # path.
    from importlib.util import spec_from_file_location

    package = os.path.dirname(os.path.dirname(_HERE))
    return spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )


def _act_after(loader: "Any", name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: "ModuleType") -> "Any":
        if module.__name__ != name:  # some loaders serve several modules
            return execute(module)
        vars(loader).pop("exec_module", None)  # uncovers the class's method
        execute(module)
        _imported(name)

    loader.exec_module = exec_module


def _imported(name: str) -> None:
    try:
        if name == "torch":
            # Calls _imported("feedmill"). If feedmill is what imports torch, that happens later.
            import feedmill  # noqa: F401
        else:
            from feedmill.cli.injected import install

            install()
    except Exception as error:
        sys.stderr.write(
            f"feedmill run: could not replace torch's DataLoader in process {os.getpid()}: "
            f"{type(error).__name__}: {error}\n"
        )


if "FEEDMILL_RUN" in os.environ:
    sys.meta_path.insert(0, _Finder)
    if "torch" in sys.modules:  # by a .pth file
        _imported("torch")
sys.path[:] = [_folder for _folder in sys.path if _folder != _HERE]
del sys.modules["sitecustomize"]
# If there is none, the import fails, and Python continues as it would have without this file.
import sitecustomize  # noqa: E402, F401
