"""Random scripts for diff_worlds: constructor arguments and actions, made from random bytes.

hypothesis draws the bytes all at once, which makes all scripts equally likely; separate draws would
often repeat each other. Zero stands for the simplest choice, so that shrinking simplifies scripts.
"""

from diff_worlds import (
    N_FILES,
    NATIVE_COLLATES,
    NATIVE_DATASETS,
    PIL_TRANSFORMS,
    TRANSFORMS,
    Script,
)
from hypothesis import strategies as st

# The most worker processes that a script may start. Each takes about 20 ms.
_MAX_FORKS = 5
_MAX_ACTIONS = 12
_BYTES_LOADER, _BYTES_SAMPLER, _BYTES_ACTION = 40, 140, 8


class _Choices:
    """Makes choices, one per byte. After the last byte it chooses the first option."""

    def __init__(self, entropy):
        self._bytes = iter(entropy)

    def below(self, n):
        return next(self._bytes, 0) * n >> 8

    def pick(self, options):
        return options[self.below(len(options))]

    def rarely(self, n):
        return self.below(n) == n - 1

    def several(self, make, at_least, at_most):
        return [make() for _ in range(at_least + self.below(at_most - at_least + 1))]

    def flag(self):
        return self.pick([False, True])


# ---- samplers ------------------------------------------------------------------------------------

_BAD_INDICES = [N_FILES, -N_FILES - 1, "x", 2.5, None, ("slice", 2), True]


class _Samplers:
    """Draws the samplers of a Script."""

    def __init__(self, entropy):
        self._choices = _Choices(entropy)

    def sampler(self):
        choices = self._choices
        if choices.rarely(3):
            return choices.pick([self._logged, self._logged, self._list])(self._item, 16)
        kinds = [self._sequential, self._random, self._random, self._subset, self._weighted,
                 self._distributed]
        return choices.pick(kinds)()

    def batch_sampler(self):
        choices = self._choices
        kind = choices.below(4)
        if kind >= 2:
            return (self._logged if kind == 3 else self._list)(self._batch, 8)
        return choices.pick(["batches", "batches", "own_batches"]), {
            "batch_size": 1 + choices.below(7),
            "drop_last": choices.flag(),
            "inner": self.sampler(),
        }

    def _index(self):
        return self._choices.below(N_FILES)

    def _item(self):
        choices = self._choices
        if choices.rarely(40):
            return choices.pick(_BAD_INDICES)
        if not choices.rarely(5):
            return self._index()
        kind = choices.pick(["negative", "int32", "tensor"])
        return -1 - self._index() if kind == "negative" else (kind, self._index())

    def _batch(self):
        choices = self._choices
        if choices.rarely(30):
            return choices.pick([("list", []), 3, "x", None])
        kind = choices.pick(["list", "list", "list", "tuple", "array", "tensor"])
        make = self._index if kind in ("array", "tensor") else self._item
        return kind, choices.several(make, 1, choices.pick([4, 9]))

    def _logged(self, make, at_most):
        choices = self._choices
        options = {
            "style": choices.pick(["iterator"] * 3 + ["generator"] * 3 + ["eager"] * 2 + ["bare"]),
            "draws": choices.rarely(3),
        }
        if choices.rarely(20):
            options["style"] = "broken"
        kind = choices.pick(["logged", "sized", "sized"])
        if kind == "sized":
            options["length"] = choices.pick([8, 5, 1, 0, 30, None])
        elif options["style"] != "eager":
            options["endless"] = choices.flag()
        items = choices.several(make, 1, at_most)
        if choices.rarely(5):
            items.insert(choices.below(len(items) + 1), ("fail", "this index"))
        return kind, {**options, "items": items}

    def _list(self, make, at_most):
        kind = self._choices.pick(["list", "once"])
        return kind, {"items": self._choices.several(make, 0, at_most)}

    def _own_generator(self):
        return self._choices.pick([None, None, "loader", 1, 2])

    def _sequential(self):
        return "sequential", {}

    def _random(self):
        options = {"replacement": self._choices.flag(), "own": self._own_generator()}
        num_samples = self._choices.pick([None, None, 5, 24, 30, 70])
        return "random", options if num_samples is None else {**options, "num_samples": num_samples}

    def _subset(self):
        indices = self._choices.several(self._index, 0, 15)
        return "subset", {"indices": indices, "own": self._own_generator()}

    def _weighted(self):
        return "weighted", {
            "weights": [1.0, 3.0] * (N_FILES // 2), "num_samples": 1 + self._choices.below(N_FILES),
            "replacement": self._choices.flag(), "own": self._own_generator(),
        }

    def _distributed(self):
        choices = self._choices
        return "distributed", {
            "num_replicas": 3, "rank": choices.below(3), "shuffle": choices.flag(),
            "seed": choices.below(3), "drop_last": choices.flag(),
        }


# ---- the constructor -----------------------------------------------------------------------------

# Options that make most constructor calls fail, or later iter().
_MISTAKES = [
    {"batch_size": 0}, {"batch_size": -1}, {"batch_size": True}, {"batch_size": 2.5},
    {"batch_size": None, "drop_last": True}, {"drop_last": "yes"}, {"drop_last": 1},
    {"num_workers": -1}, {"timeout": -1}, {"num_workers": 0, "prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1}, {"num_workers": 1, "prefetch_factor": 0},
    {"num_workers": 0, "persistent_workers": True}, {"num_workers": 0, "timeout": 5},
    {"multiprocessing_context": "nonsense"}, {"multiprocessing_context": 5},
    {"num_workers": 1, "multiprocessing_context": "nonsense"},
    {"num_workers": 1, "multiprocessing_context": 5}, {"shuffle": True}, {"shuffle": "yes"},
    {"batch_size": 3}, {"drop_last": True},
]


def _loader_options(choices, kind):
    options = {}
    num_workers = choices.pick([0] * 16 + [1] * 3 + [2] * 2 + [3])
    if num_workers or choices.flag():
        options["num_workers"] = num_workers
    if num_workers:
        options["prefetch_factor"] = choices.pick([None, 1, 2, 3])
        options["persistent_workers"] = choices.rarely(3)
        options["timeout"] = choices.pick([0, 0, 60])
        options["multiprocessing_context"] = choices.pick([None, None, "fork"])
    if num_workers < 2 and choices.rarely(6):
        # With more workers, the order of torch's batches would depend on timing.
        options["in_order"] = False
    if kind != "batch_sampler":
        options["batch_size"] = choices.pick([3, 1, 2, 4, 5, 6, 7, None])
        if options["batch_size"]:
            options["drop_last"] = choices.flag()
    if kind == "shuffle":
        options["shuffle"] = choices.pick([None, False, True, True])
    if choices.rarely(8):
        options["pin_memory"] = True
        options["pin_memory_device"] = choices.pick(["", "cuda"])
    if choices.rarely(16):
        options |= choices.pick(_MISTAKES)
    return options


# ---- actions -------------------------------------------------------------------------------------

_SETTINGS = [
    ("num_workers", 0), ("num_workers", 1), ("num_workers", -1), ("prefetch_factor", 1),
    ("prefetch_factor", 3), ("prefetch_factor", 0), ("prefetch_factor", None), ("timeout", 0),
    ("timeout", 60), ("timeout", -1), ("pin_memory", True), ("pin_memory", False),
    ("pin_memory_device", "cuda"), ("generator", None), ("generator", 4), ("worker_init_fn", None),
    ("multiprocessing_context", None), ("multiprocessing_context", "fork"),
    ("multiprocessing_context", "nonsense"),
    ("batch_size", 2), ("batch_sampler", None), ("sampler", None), ("drop_last", True),
    ("dataset", None), ("persistent_workers", True),
]
_SLOTS = [0, 0, 1]
# For each action: its weight, and the options of each argument.
_ACTIONS = {
    "make_iterator": (4, _SLOTS),
    "take": (7, _SLOTS, range(1, 7), [False, True]),
    "take_past_errors": (4, _SLOTS, range(1, 21)),
    "drop": (1, _SLOTS),
    "loop": (4, [1, 2, 3, 100, 100], [False, True]),
    "keep_list": (2,),
    "zipped": (1, range(1, 11)),
    "nested": (1, range(1, 4)),
    "length": (1,),
    "iterator_length": (1, _SLOTS),
    "pickle_iterator": (1, _SLOTS),
    "seed": (2, range(4)),
    "draw": (2,),
    "seed_generator": (2, range(4)),
    "set_epoch": (2, range(6), [False, True]),
    "set_attribute": (2, _SETTINGS),
    "set_transform": (1,),
    "drop_sample": (1,),
    "copy_loader": (1, ["pickle", "copy", "deepcopy"]),
    "change_held": (1,),
}
# The number of iterators that an action makes.
_FORKS = {"make_iterator": 1, "loop": 1, "keep_list": 1, "zipped": 2, "nested": 3}
# Changes that torch's persistent workers never see, as they keep the dataset of the first epoch;
# feedmill uses the current one.
_CHANGES = ("set_transform", "drop_sample")


def _action(choices, persistent, transforms):
    """Draws an action; None stands for no action."""
    names = [name for name, (weight, *_) in _ACTIONS.items() for _ in range(weight)
             if not (persistent and name in _CHANGES)]
    name = choices.pick([None, *names])
    if name is None:
        return None
    options_of = [transforms] if name == "set_transform" else _ACTIONS[name][1:]
    values = [choices.pick(options) for options in options_of]
    return (name, *values[0]) if name == "set_attribute" else (name, *values)


def _actions(parts, num_workers, persistent, transforms):
    actions, live, n_forks = [], set(), 0
    for part in parts:
        action = _action(_Choices(part), persistent, transforms)
        if action is None:
            continue
        wanted = [action]
        if action[0] in ("take", "take_past_errors") and action[1] not in live:
            wanted.insert(0, ("make_iterator", action[1]))
        n_more = sum(_FORKS.get(name, 0) for name, *_ in wanted) * num_workers
        if persistent:
            n_more = min(n_more, num_workers)
        if n_more and n_forks + n_more > _MAX_FORKS:
            continue
        n_forks += n_more
        actions += wanted
        live |= {arguments[0] for name, *arguments in wanted if name == "make_iterator"}
        live -= {action[1]} if action[0] == "drop" else live if action[0] in _CHANGES else set()
    return tuple(actions)


def _transforms(collate):
    """The transforms that are native with a collate function: several images only with torch's,
    PIL images only with one that makes tensors of them."""
    if collate == "of_pil":
        return sorted(PIL_TRANSFORMS)
    return sorted(name for name in TRANSFORMS.keys() - PIL_TRANSFORMS.keys()
                  if collate in ("none", "default") or not name.endswith("views"))


def _script(entropy):
    choices = _Choices(entropy[:_BYTES_LOADER])
    samplers = _Samplers(entropy[_BYTES_LOADER : _BYTES_LOADER + _BYTES_SAMPLER])
    rest = entropy[_BYTES_LOADER + _BYTES_SAMPLER :]
    kind = choices.pick(["shuffle", "shuffle", "sampler", "sampler", "batch_sampler"])
    options = _loader_options(choices, kind)
    n_actions = choices.pick([_MAX_ACTIONS, 8, 5, 3])
    parts = [rest[i : i + _BYTES_ACTION] for i in range(0, len(rest), _BYTES_ACTION)]
    collates = NATIVE_COLLATES if options.get("batch_size", 1) is not None else ("none",)
    if options.get("persistent_workers"):
        # At a reset, torch's workers first collate the batches that were prefetched, and draw
        # random numbers for them.
        collates = [one for one in collates if one != "drawing"]
    collate = choices.pick(collates)
    transforms = _transforms(collate)
    return Script(
        files=choices.pick(["good", "good", "bad"]),
        dataset=choices.pick(NATIVE_DATASETS),
        transform=choices.pick(transforms),
        collate=collate,
        sampler=samplers.sampler() if kind == "sampler" else None,
        batch_sampler=samplers.batch_sampler() if kind == "batch_sampler" else None,
        generator=choices.pick([None, None, 0, 7]),
        options=options,
        ours=choices.pick([{}, {"threads": 1}, {"threads": 3}, {"reader": "pread"}]),
        actions=_actions(parts[:n_actions], max(0, options.get("num_workers", 0)),
                         options.get("persistent_workers", False), transforms),
    )


def scripts():
    """A strategy for Scripts, most of which have a valid constructor call."""
    n_bytes = _BYTES_LOADER + _BYTES_SAMPLER + _MAX_ACTIONS * _BYTES_ACTION
    return st.binary(min_size=n_bytes, max_size=n_bytes).map(_script)
