"""Warnings about random numbers, each at most once per loader: a seed that has no effect, a path
that is kept for its random numbers, an epoch that repeats the previous one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from feedmill.planner.epochs import sampler_epoch
from feedmill.planner.samples import Support
from feedmill.system.callers import caller_stacklevel

if TYPE_CHECKING:
    from feedmill._dispatch.paths import LoaderState

# An epoch with fewer samples does not tell what a dataset's files are like.
_LEAST_SAMPLES = 64


def warn(loader: Any, support: Support) -> None:
    """Called before an epoch begins, with what choose() returned for it."""
    source = support.source
    if source is None or not source.plan:
        if loader._feedmill_options().seed is not None:
            _warn_once(loader, "no effect", without_effect(loader, support.path))
        return
    if source.plan.is_random:
        if text := kept_from_torch(loader):
            _warn_once(loader, "kept", text)
        if text := _repetition(loader):
            _warn_once(loader, "repetition", text)
    loader._feedmill.sampler_epoch = sampler_epoch(loader)


def _warn_once(loader: Any, kind: str, text: str) -> None:
    known: set[str] = loader._feedmill.warned_of
    if kind not in known:
        known.add(kind)
        warnings.warn(text, UserWarning, stacklevel=caller_stacklevel())


def without_effect(loader: Any, path: str) -> str:
    """Text: seed= has no effect on ``path``, "torch" or "hybrid"."""
    text = f"seed={loader._feedmill_options().seed} has no effect: "
    if path == "torch":
        return text + (
            "this DataLoader takes torch's own path (explain() says why), whose random numbers "
            "follow torch.manual_seed() and the number of workers"
        )
    return text + (
        "native='hybrid' calls the transform in threads, and its random numbers come from this "
        "process's generators in no fixed order"
    )


# ---- samples that Pillow decodes -----------------------------------------------------------------


def mostly_by_pillow(loader: Any) -> str:
    """Text if torch's workers would be faster, judged by the latest native epoch; else "".

    Pillow decodes on the consumer's thread, one sample at a time. torch's workers are faster if
    that happens to half of the samples.
    """
    latest = loader._feedmill.latest_epoch()
    n_delivered, n_native, n_pillow = (
        latest.get(name, 0) for name in ("samples", "native_samples", "fallback_samples")
    )
    n_samples = max(n_delivered, n_native + n_pillow)  # or the files of these, if they have several
    if loader.num_workers < 2 or n_samples < _LEAST_SAMPLES or 2 * n_pillow < n_samples:
        return ""
    return (
        f"{n_pillow:,} of {n_samples:,} samples of the latest native epoch went through Pillow, "
        "one by one, as the native decoder does not take such files"
    )


def kept_from_torch(loader: Any) -> str:
    """Text if torch's path would be faster and is not taken because its random numbers differ; else
    ""."""
    options = loader._feedmill_options()
    if options.native not in ("auto", "hybrid") or options.on_error != "raise":
        return ""
    if loader._feedmill_draws_as_torch() and not loader.persistent_workers:
        return ""
    text = mostly_by_pillow(loader)
    return text and (
        f"{text}; torch's workers may be faster: native='off'. The path stays as it is within a "
        "run, as the transform's random numbers would change with it"
    )


# ---- epochs that repeat the previous one ---------------------------------------------------------


def _repetition(loader: Any) -> str:
    """Text if the epoch that begins has the same random numbers as the latest one; else "".

    With seed= the sampler's epoch is part of their key, so they repeat if it has not moved. Only an
    epoch that ran to its end counts.
    """
    state: LoaderState = loader._feedmill
    number = sampler_epoch(loader)
    if loader._feedmill_options().seed is None or number is None or number != state.sampler_epoch:
        return ""
    try:
        n_batches = len(loader)
    except TypeError:  # the loader has no length
        return ""
    if not 0 < n_batches <= state.latest_epoch().get("batches", 0):
        return ""
    return (
        f"the sampler's epoch is {number} again, as in the epoch before: with "
        f"seed={loader._feedmill_options().seed} every image gets the same random crops, flips and "
        "so on as then; call sampler.set_epoch(epoch), or this DataLoader's set_epoch(epoch), "
        "before each epoch"
    )
