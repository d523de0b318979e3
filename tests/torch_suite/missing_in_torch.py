"""What the adapted test file has in place of a name that the installed torch lacks."""

import unittest
from typing import Any, NoReturn


class Missing:
    """Skips the test that uses it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise unittest.SkipTest(f"the installed torch has no {self._name}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self()
