"""Stages of webdataset's pipelines: which function each calls, with which arguments."""

from __future__ import annotations

from typing import Any

from feedmill.planner.plan import UnsupportedError
from feedmill.planner.untouched import type_name
from feedmill.planner.webdataset_known import is_of


def unknown(stage: Any) -> UnsupportedError:
    return UnsupportedError(
        f"the stage {stage_name(stage)} of a pipeline of webdataset is not supported natively"
    )


def stage_name(stage: Any) -> str:
    function = getattr(stage, "f", stage)
    name = getattr(function, "__qualname__", None)
    return str(name) if isinstance(name, str) else type_name(type(stage))


def is_filter(stage: Any, *names: str, module: str = "filters") -> bool:
    """Whether a stage calls one of these functions of webdataset."""
    return (
        is_of(type(stage), "filters", "FilterFunction")
        and vars(stage).keys() == {"f", "args", "kw"}
        and type(stage.args) is tuple and type(stage.kw) is dict
        and is_of(stage.f, module, *names)
    )


def argument_of(stage: Any, place: int, name: str, default: Any) -> Any:
    """An argument of a stage's function."""
    return stage.args[place] if len(stage.args) > place else stage.kw.get(name, default)


def check_arguments(stage: Any, named: set[str] | None, n: int | None) -> None:
    """Raises UnsupportedError if a stage has other arguments than these by name (None: any), or
    more than ``n`` others."""
    others = () if named is None else sorted(stage.kw.keys() - named)
    if others or (n is not None and len(stage.args) > n):
        more = ", ".join(others) or "more arguments"
        raise UnsupportedError(
            f"the stage {stage_name(stage)} with {more} of a pipeline of webdataset is not "
            "supported natively"
        )
