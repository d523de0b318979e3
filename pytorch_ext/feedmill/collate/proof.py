"""Proves that a collate_fn gives the same result on another thread and at another time.

The proof reads the function's bytecode: every instruction, attribute and global that it can reach
must be on the lists below. Such a function draws no random number, does not call get_worker_info(),
reads nothing that may change, and changes only objects that it has made itself. A function with
anything else in it is not proved.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import default_collate

from feedmill._internals import is_collate_untouched
from feedmill.planner.attributes import PLAIN, NotUnderstood, attribute

# Instructions that move, compute, call and branch, of Python 3.10 to 3.14. Not listed are those
# that change an object (STORE_ATTR, STORE_SUBSCR, in-place operators, ...) or a global, import,
# await or yield to a caller.
_INSTRUCTIONS = frozenset(
    """
    BINARY_ADD BINARY_MULTIPLY BINARY_SUBTRACT BINARY_TRUE_DIVIDE BINARY_FLOOR_DIVIDE
    BINARY_MODULO BINARY_POWER BINARY_MATRIX_MULTIPLY BINARY_OP BINARY_SLICE BINARY_SUBSCR
    BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE
    CALL CALL_FUNCTION CALL_FUNCTION_KW CALL_FUNCTION_EX CALL_KW CALL_METHOD COMPARE_OP CONTAINS_OP
    COPY COPY_FREE_VARS DICT_MERGE DICT_UPDATE DUP_TOP DUP_TOP_TWO END_FOR EXTENDED_ARG
    FORMAT_SIMPLE FORMAT_VALUE FORMAT_WITH_SPEC FOR_ITER GET_ITER IS_OP JUMP_ABSOLUTE JUMP_BACKWARD
    JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP KW_NAMES
    LIST_APPEND LIST_EXTEND LIST_TO_TUPLE LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_CLOSURE
    LOAD_COMMON_CONSTANT LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR LOAD_FAST_BORROW
    LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_GLOBAL LOAD_METHOD
    LOAD_SMALL_INT MAKE_CELL MAKE_FUNCTION MAP_ADD NOP NOT_TAKEN POP_ITER POP_JUMP_BACKWARD_IF_FALSE
    POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE
    POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE
    POP_JUMP_FORWARD_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    POP_JUMP_IF_TRUE POP_TOP PRECALL PUSH_NULL RAISE_VARARGS RERAISE RESUME RETURN_CONST
    RETURN_GENERATOR RETURN_VALUE ROT_FOUR ROT_THREE ROT_TWO SET_ADD SET_FUNCTION_ATTRIBUTE
    SET_UPDATE STORE_DEREF STORE_FAST STORE_FAST_LOAD_FAST STORE_FAST_MAYBE_NULL
    STORE_FAST_STORE_FAST SWAP TO_BOOL UNARY_INVERT UNARY_NEGATIVE UNARY_NOT UNPACK_EX
    UNPACK_SEQUENCE YIELD_VALUE
    """.split()
)

# Attributes and methods of tensors, lists, dicts and numbers that neither change the object nor
# draw random numbers. append changes only a list that the function has just made.
_ATTRIBUTES = frozenset(
    """
    abs add amax amin any all append argmax argmin bool byte clone contiguous copy count cpu
    detach dim div double dtype eq expand extend float flatten ge get gt half index int item
    items keys long lt max mean min mul ndim ne new_full new_ones new_tensor new_zeros numel
    permute repeat reshape shape size squeeze sub sum t to tolist transpose type unbind
    unsqueeze values view
    """.split()
)
# Allowed attributes of the module torch.
_TORCH = frozenset(
    """
    Tensor arange as_tensor bfloat16 bool cat channels_last concat concatenate contiguous_format
    float float16 float32 float64 full half hstack int int16 int32 int64 int8 long ones
    ones_like stack tensor uint8 vstack zeros zeros_like
    """.split()
)
_BUILTINS = frozenset(
    """
    AssertionError IndexError KeyError RuntimeError TypeError ValueError abs all any bool dict
    enumerate float frozenset int isinstance len list map max min range reversed set sorted str sum
    tuple zip
    """.split()
)
_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.memory_format)
_MAX_DEPTH = 8
_ABSENT = object()


class Read(NamedTuple):
    """A constant that a function reads when it is called, and that may be replaced between calls.

    Attributes:
        holder: the object whose attribute it is, or the dict of global variables.
        name: of the attribute or variable.
        value: what was there when the function was proved.
    """

    holder: Any
    name: str
    value: Any

    def is_same(self) -> bool:
        """Whether the value is still there. Runs no code of the holder's class."""
        if type(self.holder) is dict:
            return self.holder.get(self.name, self) is self.value
        try:
            return attribute(self.holder, self.name) is self.value
        except NotUnderstood:
            return False


def is_proved(function: Callable[..., Any], reads: list[Read] | None = None) -> bool:
    """Whether a collate_fn is proved to compute its result from its samples alone.

    Args:
        function: the collate_fn.
        reads: for a function that is called when torch would call it, and may thus read what
            changes: gets what it reads so. It is proved as long as all of them are the same.
            None: the function must not read such values.
    """
    return _Proof(reads).is_proved(function, 0)


class _Proof:
    """Proves functions; see is_proved()."""

    def __init__(self, reads: list[Read] | None) -> None:
        self._reads = reads

    def is_proved(self, function: Any, depth: int) -> bool:
        if function is default_collate:
            return is_collate_untouched()
        if type(function) is not types.FunctionType or depth > _MAX_DEPTH:
            return False
        held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if not all(isinstance(one, _CONSTANTS) for one in held):
            return False
        if vars(function):  # attributes of a function are global state
            return False
        cells: dict[str, Any] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # empty
                return False
        return self._is_code_proved(function.__code__, function.__globals__, cells, depth)

    def _is_code_proved(
        self, code: types.CodeType, namespace: dict[str, Any], cells: dict[str, Any], depth: int
    ) -> bool:
        instructions = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
        own_cells = set(code.co_cellvars)
        is_read = False  # the instruction before has proved this one, too
        for place, one in enumerate(instructions):
            if one.opname not in _INSTRUCTIONS or (
                one.opname == "BINARY_OP" and one.argrepr.endswith("=")
            ):
                return False
            following = instructions[place + 1] if place + 1 < len(instructions) else None
            was_read, is_read = is_read and not one.is_jump_target, False
            if one.opname == "LOAD_GLOBAL":
                is_read = self._is_attribute_read(namespace.get(one.argval), following)
                if not is_read and not self._is_global_proved(
                    one.argval, following, namespace, depth
                ):
                    return False
            elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and not was_read:
                before = instructions[place - 1]
                is_of_torch = before.opname == "LOAD_GLOBAL" and (
                    namespace.get(before.argval) is torch
                )
                if one.argval not in (_TORCH if is_of_torch else _ATTRIBUTES):
                    return False
            elif one.opname == "LOAD_DEREF" and one.argval not in own_cells:
                value = cells.get(one.argval, _ABSENT)
                is_read = self._is_attribute_read(value, following)
                if not is_read and not self._is_value_proved(value, depth):
                    return False
            elif one.opname == "STORE_DEREF" and one.argval not in own_cells:
                return False
            elif one.opname == "LOAD_CONST" and isinstance(one.argval, types.CodeType):
                # A nested comprehension, lambda or function, which sees this one's variables, too.
                inner = {**cells, **dict.fromkeys(own_cells)}
                if not self._is_code_proved(one.argval, namespace, inner, depth + 1):
                    return False
        return True

    def _is_global_proved(
        self, name: str, following: Any, namespace: dict[str, Any], depth: int
    ) -> bool:
        if name not in namespace:
            return name in _BUILTINS and getattr(builtins, name, None) is not None
        value = namespace[name]
        if value is torch:  # only its listed attributes are allowed
            return following is not None and following.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if isinstance(value, torch.dtype | torch.memory_format):
            return True
        # A number or string could be reassigned while the epoch runs.
        return self._is_read(namespace, name, value) or self.is_proved(value, depth + 1)

    def _is_value_proved(self, value: Any, depth: int) -> bool:
        return isinstance(value, _CONSTANTS) or self.is_proved(value, depth + 1)

    def _is_attribute_read(self, holder: Any, following: Any) -> bool:
        """Whether the next instruction reads a constant from an object, such as a script's parsed
        arguments."""
        if self._reads is None or following is None or following.opname != "LOAD_ATTR":
            return False
        try:
            value = attribute(holder, following.argval)
        except NotUnderstood:
            return False
        return type(holder) is not types.ModuleType and self._is_read(
            holder, following.argval, value
        )

    def _is_read(self, holder: Any, name: str, value: Any) -> bool:
        if self._reads is None or type(value) not in PLAIN:
            return False
        self._reads.append(Read(holder, name, value))
        return True
