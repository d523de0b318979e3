"""The classes of transforms that are supported, and checks that nobody has changed them.

These are not supported: subclasses and other classes, classes with replaced methods, objects with
attributes that hide methods, and replaced functions of torchvision or Pillow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch

from feedmill import _internals
from feedmill._internals import (
    CONTAINER,
    FUNCTIONAL,
    FUNCTIONAL_PIL,
    FUNCTIONAL_TENSOR,
    LINEAR,
    MODULE_CALL,
    OWN_OF_MODULES,
    PRESETS,
)
from feedmill.planner import augmentations, timm_objects
from feedmill.planner.arguments import V1, V1_AUTO, V2
from feedmill.planner.arithmetic import TensorCall
from feedmill.planner.attributes import NotUnderstood
from feedmill.planner.augmentations import AUTOMATIC, RANDOM_CONTAINERS
from feedmill.planner.drawing import STEPS
from feedmill.planner.efficient_crops import efficient_crop_of
from feedmill.planner.evaluating import is_own, transforms_in
from feedmill.planner.image_calls import Convert, ImageState
from feedmill.planner.lighting import Lighting, lighting_of
from feedmill.planner.numpy_calls import ArrayCall
from feedmill.planner.one_attempt import is_one_attempt
from feedmill.planner.plan import UnsupportedError
from feedmill.planner.untouched import (
    hooks_of,
    is_original,
    replaced_methods,
    shadowing_attributes,
    type_name,
)

GEOMETRY = frozenset({
    "Resize", "CenterCrop", "RandomResizedCrop", "RandomResizedCropAndInterpolation",
    "RandomHorizontalFlip", "ResizeKeepRatio", "CenterCropOrPad",
})
_TORCHVISIONS_GEOMETRY = GEOMETRY - timm_objects.NAMES[timm_objects.TRANSFORMS]
_TO_TENSOR = frozenset({"PILToTensor", "ToTensor", "ToImage"})
# The last three are timm's.
TO_TENSOR = _TO_TENSOR | {"MaybeToTensor", "MaybePILToTensor", "ToNumpy"}
PIXELS = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
AUGMENTATIONS = augmentations.NAMES | set(RANDOM_CONTAINERS)
_OTHERS = frozenset({"RandomErasing", "ToPILImage"})
_KNOWN = {
    V1: _TORCHVISIONS_GEOMETRY | AUGMENTATIONS | _OTHERS
        | {"PILToTensor", "ToTensor", "ConvertImageDtype", "Normalize"},
    V1_AUTO: AUTOMATIC,
    V2: _TORCHVISIONS_GEOMETRY | AUGMENTATIONS | _OTHERS | AUTOMATIC | _TO_TENSOR | PIXELS
        | {"Identity"},
    PRESETS: frozenset({"ImageClassification"}),
    LINEAR: frozenset({"Identity"}),
    **timm_objects.NAMES,
}
_CONTAINERS = {V1: "Compose", V2: "Compose", CONTAINER: "Sequential"}
# torchvision's functions that the transforms above call, by module.
_FUNCTIONS = {
    FUNCTIONAL: (
        "resize", "center_crop", "crop", "pad", "resized_crop", "hflip", "to_tensor",
        "pil_to_tensor", "convert_image_dtype", "normalize",
    ),
    FUNCTIONAL_PIL: ("resize", "crop", "pad", "hflip"),
    "torchvision.transforms.v2.functional": (
        "resize", "center_crop", "resized_crop", "horizontal_flip", "to_image", "pil_to_tensor",
        "to_dtype", "normalize",
    ),
}

_CALLED_BY = {"to_tensor": "ToTensor", "pil_to_tensor": "PILToTensor"}


def _is_known(kind: type, module: str, name: str) -> bool:
    # An object of one of torchvision's classes can exist only if its module was imported.
    return kind is getattr(sys.modules.get(module), name, None)


@dataclass(frozen=True)
class NotRead:
    """Stands for a transform of the user's own whose code was not understood.

    Attributes:
        transform: the function or object.
        why: what its code does.
    """

    transform: Any
    why: str


# Returns what is known of an image at the time of the call.
StateOf = Callable[[], ImageState | None]


def flatten(transform: Any, depth: int = 0, state_of: StateOf = lambda: None) -> Iterator[Any]:
    """The transforms within Compose and Sequential objects, in order, and those that Lambdas, the
    user's own functions and objects call, among them Converts, TensorCalls and STEPS.
    Raises UnsupportedError as module_of().

    Args:
        state_of: returns what is known of the image after the transforms that were yielded so far.
    """
    kind = type(transform)
    module = next((key for key, name in _CONTAINERS.items() if _is_known(kind, key, name)), None)
    if module is not None:
        inner = _transforms_of(transform, module)
    elif kind in (Convert, TensorCall, ArrayCall, Lighting, *STEPS) or _is_supported(kind):
        yield transform
        return
    elif kind is FunctionType and (same := _object_for(transform)) is not None:
        yield same
        return
    elif known := lighting_of(transform) or efficient_crop_of(transform):
        yield known
        return
    else:
        try:
            inner = _calls_of(transform, state_of)
        except NotUnderstood as error:
            yield NotRead(transform, str(error)) if is_own(transform) else transform
            return
    if depth == 16:
        raise UnsupportedError("Compose objects are nested more than 16 levels deep")
    for one in inner:
        for found in flatten(one, depth + 1, state_of):
            is_of_lambda = type(found) is NotRead and found.transform is one and _is_lambda(kind)
            yield NotRead(transform, found.why) if is_of_lambda else found


def _transforms_of(container: Any, module: str) -> Sequence[Any]:
    """The transforms of a Compose or Sequential."""
    name = _CONTAINERS[module]
    _check_object(container, module)
    inner = list(container.children()) if module == CONTAINER else container.transforms
    if type(inner) not in (list, tuple):
        raise UnsupportedError(f"{name}.transforms is not a list or tuple")
    found: Sequence[Any] = inner
    return found


def _calls_of(transform: Any, state_of: StateOf) -> Sequence[Any]:
    """The transforms that a Lambda or a transform of the user's own calls. Raises NotUnderstood."""
    kind = type(transform)
    if _is_known(kind, V2, "Lambda"):
        _check_object(transform, V2)
        if transform.types != (object,):
            raise NotUnderstood("its types are not the default")
        return [transform.lambd]
    if not is_own(transform) and not _is_lambda(kind):
        raise NotUnderstood("it is not the user's own")
    return transforms_in(transform, state_of())


def _object_for(function: FunctionType) -> Any:
    """The transform whose call does nothing but call this function of torchvision; None: another
    function. check_functions() finds out whether it was replaced."""
    for name, called_by in _CALLED_BY.items():
        if function is not getattr(sys.modules.get(FUNCTIONAL), name, None):
            continue
        kind = vars(sys.modules[V1]).get(called_by)
        # Another class may stand there.
        if type(kind) is type and (kind.__module__, kind.__qualname__) == (V1, called_by):
            return kind()
    return None


def _is_lambda(kind: type) -> bool:
    return any(_is_known(kind, module, "Lambda") for module in (V1, V2))


def _is_supported(kind: type) -> bool:
    return is_one_attempt(kind) or any(
        kind.__name__ in names and _is_known(kind, module, kind.__name__)
        for module, names in _KNOWN.items()
    )


def module_of(transform: Any) -> str:
    """The module that defines a transform's class. UnsupportedError if the class is not supported,
    or was changed."""
    kind = type(transform)
    if is_one_attempt(kind):
        _check_object(transform, V1)
        return V1
    for module, names in _KNOWN.items():
        if kind.__name__ in names and _is_known(kind, module, kind.__name__):
            _check_object(transform, module)
            if module == V2:
                _internals.params_method(transform)  # raises if there is none
            if module in timm_objects.NAMES:
                timm_objects.check_transform(kind)
            return module
    why = ""
    if kind is NotRead:
        transform, why = transform.transform, f": {transform.why}"
    name = type_name(type(transform))
    if type(transform) in (FunctionType, MethodType):
        name = f"{transform.__module__}.{transform.__qualname__}, a function,"
    elif kind is Convert:
        name = f"convert({transform.mode!r}) of images"
    elif kind is TensorCall:
        name = f"{transform.name}() of image tensors"
    elif kind is ArrayCall:
        name = f"{transform.kind} of images"
    raise UnsupportedError(f"the transform {name} is not supported natively{why}")


def _check_object(transform: Any, module: str) -> None:
    """Raises UnsupportedError if an object or its class is not as its library made it."""
    kind = type(transform)
    name = kind.__name__
    own = [one for one in shadowing_attributes(transform) if one not in OWN_OF_MODULES]
    if own:
        raise UnsupportedError(
            f"a {name} object has its own {', '.join(own)}, which hides that of its class"
        )
    if replaced := replaced_methods(kind, module.partition(".")[0]):
        raise UnsupportedError(f"{name}.{replaced[0]} was replaced")
    if isinstance(transform, torch.nn.Module):
        call = torch.nn.Module.__call__
        if kind.__call__ is not call or not is_original(call, *MODULE_CALL):
            raise UnsupportedError(f"{name}.__call__ was replaced")
        if hooks := hooks_of(transform):
            raise UnsupportedError(hooks)


def check_functions(augments: bool) -> None:
    """Raises UnsupportedError if a function that the transforms call was replaced.

    Args:
        augments: also check the functions that augmentations call.
    """
    check_torchvision(_FUNCTIONS)
    check_torchvision(_internals.FUNCTIONS)
    if augments:
        check_torchvision(augmentations.FUNCTIONS)
        check_torchvision(_internals.AUGMENTING_FUNCTIONS)
    _check_pillow(augments)


def check_resize_of_tensors() -> None:
    """The same for the function that v1's transforms call to resize tensors."""
    check_torchvision({FUNCTIONAL_TENSOR: ("resize",)})


def check_torchvision(functions: Mapping[str, Sequence[str]]) -> None:
    """Raises UnsupportedError if one of these functions, by module, was replaced."""
    for module, names in functions.items():
        if module not in sys.modules and module.startswith(V2):
            continue  # v2 was not imported, so the transform has no objects of it
        for name in names:
            function = getattr(sys.modules.get(module), name, None)
            if function is None:
                version = _internals.torchvision_version()
                raise UnsupportedError(
                    f"torchvision {version} has no {module}.{name}; this version is not supported"
                )
            home = getattr(function, "__module__", None) or ""
            if not home.startswith("torchvision.transforms") or not is_original(
                function, home, name
            ):
                raise UnsupportedError(f"{module}.{name} was replaced")


def _check_pillow(augments: bool) -> None:
    from PIL import Image

    methods: tuple[str, ...] = ("resize", "crop", "transpose", "convert", "paste")
    if augments:
        methods += augmentations.PILLOW_METHODS
        for module, names in augmentations.PILLOW_FUNCTIONS.items():
            for name in names:
                if not is_original(getattr(sys.modules.get(module), name, None), module, name):
                    raise UnsupportedError(f"{module}.{name} was replaced")
    for name in methods:
        if not is_original(vars(Image.Image).get(name), "PIL.Image", f"Image.{name}"):
            raise UnsupportedError(f"PIL.Image.Image.{name} was replaced")
