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


def check_handler(stage: Any, may_continue: bool = False) -> None:
    """Raises UnsupportedError if a stage's handler of errors does not raise them.

    Args:
        may_continue: it may also be one of webdataset's own that leave out what fails.
    """
    function = stage.f
    default = (function.__kwdefaults__ or {}).get("handler")
    if default is None:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ())))
        default = defaults.get("handler")
    if not is_handler(stage.kw.get("handler", default), may_continue):
        raise UnsupportedError(
            "a handler= that does not raise errors is not supported natively for a pipeline of "
            "webdataset, but where it reads tar files, if it is webdataset's warn_and_continue or "
            "ignore_and_continue"
        )


def is_handler(handler: Any, may_continue: bool) -> bool:
    """Whether a handler raises errors, or else continues; see check_handler()."""
    names = ["reraise_exception"]
    if may_continue:
        names += ["warn_and_continue", "ignore_and_continue"]
    return any(is_of(handler, module, *names) for module in ("filters", "handlers"))
