"""Examines a folder of images for ``feedmill doctor DIR``."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

from feedmill.cli import measure
from feedmill.cli.survey import bytes_text, sample, survey
from feedmill.system import machine

# Time limits of the parts, in seconds.
_SURVEY_S, _READ_S, _TRY_S, _DECODE_S = 3.0, 3.0, 2.0, 1.5
_SIZE, _DTYPE = 224, "float32"
_MAX_NAMED = 5


def check_folder(folder: Path, n_usable: int) -> dict[str, Any]:
    """Facts and rates, as in the JSON of ``feedmill doctor``. Takes at most about 15 seconds.

    Args:
        folder: the folder.
        n_usable: number of CPUs that this process may use.
    """
    busy = machine.load_note()
    files = survey(folder, _SURVEY_S)
    images = files.images()
    paths = sample(images or [one for one in files.files if one[1]])
    reading = measure.read_rates(paths, _READ_S)
    mount = machine.mount_of(str(folder))
    unreadable = {**files.unreadable, **reading.unreadable}
    return {
        "path": str(folder),
        "busy": busy,
        "mount": mount and mount._asdict(),
        "is_far": machine.is_high_latency(mount),
        "files": len(files.files),
        "bytes": files.n_bytes,
        "images": len(images),
        "image_bytes": sum(size for _, size in images),
        "complete": files.complete,
        "by_type": {
            suffix: {"files": n, "bytes": n_bytes} for suffix, (n, n_bytes) in files.by_type.items()
        },
        "unreadable": len(unreadable),
        "unreadable_named": dict(list(unreadable.items())[:_MAX_NAMED]),
        "reading": {
            name: value
            for name, value in dataclasses.asdict(reading).items()
            if name != "unreadable"
        },
        "decoding": _decoding([path for path in paths if path not in reading.unreadable], n_usable)
        if images else None,
    }


def _decoding(paths: list[str], n_usable: int) -> dict[str, Any] | None:
    if not paths:
        return None
    decoded, rejected = measure.try_natively(paths, n_usable, _TRY_S, _SIZE, _DTYPE)
    one = every = None
    if decoded:
        one = measure.decode_rate(decoded, 1, _DECODE_S, _SIZE, _DTYPE)
        every = one
        if n_usable > 1:
            every = measure.decode_rate(decoded, n_usable, _DECODE_S, _SIZE, _DTYPE)
    return {
        "size": _SIZE,
        "dtype": _DTYPE,
        "tried": len(decoded) + len(rejected),
        "rejected": len(rejected),
        "rejected_why": dict(Counter(map(_kind, rejected.values())).most_common(_MAX_NAMED)),
        "rejected_named": dict(list(rejected.items())[:_MAX_NAMED]),
        "images_per_s_one_core": one and one.rate(n_usable),
        "images_per_s_all_cpus": every and every.rate(n_usable),
    }


def _kind(why: str) -> str:
    """A reason without its byte offset, so that equal kinds of damage are counted together."""
    return re.sub(r" at byte \d+", "", why)


# ---- text ----------------------------------------------------------------------------------------


def rows(found: dict[str, Any], n_usable: int) -> list[tuple[str, str]]:
    """(name, text) of each finding."""
    more = "" if found["complete"] else f"; only those listed in the first {_SURVEY_S:.0f} s"
    result = [
        ("files", f"{found['files']:,}, {bytes_text(found['bytes'])} ({_types(found)}{more})"),
        ("on", _place(found["mount"])),
    ]
    if found["busy"]:
        result.append(("busy", found["busy"]))
    if found["unreadable"]:
        named = ", ".join(f"{path}: {why}" for path, why in found["unreadable_named"].items())
        more = ", ..." if found["unreadable"] > len(found["unreadable_named"]) else ""
        result.append(("unreadable", f"{found['unreadable']:,} ({named}{more})"))
    return result + _reading_rows(found["reading"]) + _decoding_rows(found["decoding"], n_usable)


def _types(found: dict[str, Any]) -> str:
    parts = [f"{one['files']:,} {suffix} {bytes_text(one['bytes'])}"
             for suffix, one in found["by_type"].items()]
    more = [f"{len(parts) - _MAX_NAMED} other types"] if len(parts) > _MAX_NAMED else []
    return ", ".join([*parts[:_MAX_NAMED], *more]) or "none"


def _place(mount: dict[str, str] | None) -> str:
    if mount is None:
        return "an unknown file system: /proc/self/mountinfo does not list it"
    return f"{mount['kind']} of {mount['source']}, mounted at {mount['place']}"


def _reading_rows(reading: dict[str, Any]) -> list[tuple[str, str]]:
    size = reading["n_bytes"] / max(1, reading["n_files"])
    of = f"{reading['n_files']:,} files"

    def rate(value: float) -> str:
        return f"{value / 1e9:.2f} GB/s, {value / size:,.0f} files/s"

    cold = f"unknown: {reading['why_not_cold']}"
    if reading["cold"] is not None:
        cold = (f"{rate(reading['cold'])}, {1e3 * reading['cold_file_s']:.2f} ms per file ({of}, "
                f"{reading['cold_in_flight']} at a time)")
    warm = "unknown" if reading["warm"] is None else f"{rate(reading['warm'])} ({of})"
    return [("cold read", cold), ("warm read", warm)]


def _decoding_rows(decoding: dict[str, Any] | None, n_usable: int) -> list[tuple[str, str]]:
    if decoding is None:
        return [("decode", "unknown: there is no readable image")]
    one, every = decoding["images_per_s_one_core"], decoding["images_per_s_all_cpus"]
    text = "unknown: no sample was decoded in time"
    if one and every:
        size = decoding["size"]
        text = (f"{one:,.0f} images/s per core, {every:,.0f} on {n_usable} CPUs ({size} x {size} "
                f"{decoding['dtype']}, random crop and flip)")
    elif not decoding["tried"] or decoding["tried"] == decoding["rejected"]:
        text = "unknown: the native decoder supports none of the files tried"
    rejected = f"all of the {decoding['tried']:,} files tried"
    if decoding["rejected"]:
        share = f"{100 * decoding['rejected'] / decoding['tried']:.1f}%"
        why = "; ".join(f"{n:,} x {text}" for text, n in decoding["rejected_why"].items())
        example = next(iter(decoding["rejected_named"]))
        rejected = (f"all but {decoding['rejected']:,} of the {decoding['tried']:,} files tried "
                    f"({share} go through Pillow: {why}; for example {example})")
    return [("decode", text), ("native", rejected)]
