"""Handlers of errors of webdataset's stages: those that raise them, and those that leave out what
fails."""

from __future__ import annotations

import ast
import builtins
import logging
import warnings
from types import FunctionType, MethodType
from typing import Any

from feedmill.planner.left_out import raises
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.sample_functions import function_of_one
from feedmill.planner.sources import Definition, is_global_fixed
from feedmill.planner.untouched import is_original
from feedmill.planner.webdataset_known import found, is_of

_CONTINUE = ("warn_and_continue", "ignore_and_continue")
_LOGGING = ("debug", "info", "warning", "error", "critical")
# Python's own, should a script replace them.
_TEXTS = (repr, str)
_PRINT, _WARN = print, warnings.warn


def check_handler(stage: Any) -> None:
    """Raises UnsupportedError if a stage's handler neither raises errors nor is known to do nothing
    but to report them, and to continue."""
    if not is_handler(handler_of(stage)):
        raise UnsupportedError(
            "a handler= of a pipeline of webdataset is supported natively if it is webdataset's "
            "reraise_exception, warn_and_continue or ignore_and_continue, or a function that only "
            "logs or prints the error and returns True"
        )


def handler_of(stage: Any) -> Any:
    """The handler of a stage that calls a function of webdataset."""
    function = stage.f
    default = (function.__kwdefaults__ or {}).get("handler")
    if default is None:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ())))
        default = defaults.get("handler")
    return stage.kw.get("handler", default)


def is_handler(handler: Any) -> bool:
    return _is_own(handler, "reraise_exception") or continues(handler)


def continues(handler: Any) -> bool:
    """Whether a handler leaves out what fails, and does nothing else but to report it."""
    return _is_own(handler, *_CONTINUE) or _only_reports(handler)


def leaves_out(stage: Any) -> bool:
    """Whether a stage's handler leaves out what fails."""
    return continues(handler_of(stage))


def raising(stage: Any) -> Any:
    """A stage that raises all errors: a trial must not report them."""
    return _with_handler(stage, found("handlers", "reraise_exception"))


def ignoring(stage: Any, own: Any) -> Any:
    """A stage that reports no error, and leaves out what one of the pipeline's own would."""
    if leaves_out(own):
        return _with_handler(stage, found("handlers", "ignore_and_continue"))
    return stage


def raising_left_out(stage: Any, handler: Any) -> Any:
    """A stage that raises LeftOut if its handler, see continues(), would be called."""
    return _with_handler(stage, raises(handler))


def _with_handler(stage: Any, handler: Any) -> Any:
    return type(stage)(stage.f, *stage.args, **{**stage.kw, "handler": handler})


def _is_own(handler: Any, *names: str) -> bool:
    return any(is_of(handler, module, *names) for module in ("filters", "handlers"))


# ---- functions of a script -----------------------------------------------------------------------


def _only_reports(function: Any) -> bool:
    """Whether a function of the script logs or prints its argument, as OpenCLIP's log_and_continue,
    and returns True."""
    definition = function_of_one(function)
    if definition is None:
        return False
    *reports, last = definition.body
    is_true = isinstance(last, ast.Return) and (
        isinstance(last.value, ast.Constant) and last.value.value is True
    )
    return is_true and all(_is_report(one, function, definition) for one in reports)


def _is_report(statement: ast.stmt, function: FunctionType, definition: Definition) -> bool:
    if not isinstance(statement, ast.Expr):
        return False
    call = statement.value
    if isinstance(call, ast.Constant):
        return True
    if not isinstance(call, ast.Call) or call.keywords or not call.args:
        return False
    called = _called(call.func, function, definition)
    return called is not None and all(_is_text(one, function) for one in call.args)


def _called(node: ast.expr, function: FunctionType, definition: Definition) -> Any:
    """print(), warnings.warn(), or a function of logging or of a logger; else None."""
    code = function.__code__
    names = (*code.co_varnames, *code.co_freevars)
    if isinstance(node, ast.Name):
        called = function.__globals__.get(node.id, vars(builtins).get(node.id))
        return called if called is _PRINT and node.id not in names else None
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return None
    owner = function.__globals__.get(node.value.id)
    if node.value.id in names or not is_global_fixed(definition, node.value.id):
        return None
    if owner is warnings and node.attr == "warn":
        return _WARN if warnings.warn is _WARN else None
    if node.attr not in _LOGGING:
        return None
    if owner is logging:
        called = vars(logging).get(node.attr)
        return called if is_original(called, "logging", node.attr) else None
    if type(owner) is logging.Logger:
        called = getattr(owner, node.attr)
        is_method = type(called) is MethodType and is_original(
            called.__func__, "logging", f"Logger.{node.attr}"
        )
        return called if is_method else None
    return None


def _is_text(node: ast.expr, function: FunctionType) -> bool:
    """Whether an expression is made of constants, the error and its text."""
    error = function.__code__.co_varnames[0]
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id == error
    if isinstance(node, ast.JoinedStr):
        return all(_is_text(one, function) for one in node.values)
    if isinstance(node, ast.FormattedValue):
        return node.format_spec is None and _is_text(node.value, function)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    name = node.func.id
    called = function.__globals__.get(name, vars(builtins).get(name))
    is_own = name not in (*function.__code__.co_varnames, *function.__code__.co_freevars)
    is_text = is_own and any(called is one for one in _TEXTS)
    return is_text and not node.keywords and all(_is_text(one, function) for one in node.args)
