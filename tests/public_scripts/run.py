"""Runs the training scripts of public codebases with torch's DataLoader and under `feedmill run`.

    python tests/public_scripts/run.py [--only TEXT ...] [--hybrid] [--rng feedmill] [--list]
    python tests/public_scripts/run.py --speed ROUNDS [--again FILE.jsonl]

codebases.toml lists the codebases, their commits and the commands. Each command runs once with
torch's DataLoader and once under `feedmill run`, until its loaders have given a few batches
(hook/public_scripts_hook/record.py); the batches are compared. Where loaders differ, further runs
say more:

- with torch again, for what does not repeat itself with torch alone;
- with native="verify", for what runs natively. A loader with feedmill's own random numbers may
  differ from torch's if the script asked for them (seed= or rng="feedmill"): labels and layout equal
  torch's, and each sample equals what the script's own dataset makes of the same draws;
- for such a loader whose collate_fn draws random numbers itself: with torch and native="verify", the
  generators seeded alike for each call of it;
- with native="hybrid", for loaders that took torch's path (--hybrid).

With --speed, each command runs once, and its loaders are measured beside torch's (speeds.py).

README.md explains the tables. Exit status: 0 if no batch differs, no loader is slower than torch's
by more than 2%, and each command ran, else 1; 77 if no repository can be had.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import data
import speeds
import trees
from scripts import WORK, Outcome, Runner, Script, scripts

_SKIPPED = 77


# ---- comparing -----------------------------------------------------------------------------------


@dataclass
class Result:
    """What became of one loader, or of a script that failed.

    Attributes:
        script: its id.
        loader: where the script makes the loader, and its dataset's class.
        path: "native", "torch" or "deferred": what feedmill takes by default.
        hybrid: whether native="hybrid" runs it natively; None if that was not tried.
        result: "equal"; "same draws" (the loader asks for feedmill's own random numbers, labels and
            layout equal torch's, and with the same random draws each sample does); "collate draws"
            (the same, once the generators are seeded alike for each call of the collate_fn);
            "not repeatable" (two runs with torch differ as well); "no images"; "differs"; "failed".
        text: feedmill's reasons for its path, or what failed.
        n_batches: how many were compared.
    """

    script: str
    loader: str = ""
    path: str = ""
    hybrid: bool | None = None
    result: str = ""
    text: str = ""
    n_batches: int = 0

    @property
    def is_good(self) -> bool:
        return self.result in (
            "equal", "same draws", "collate draws", "not repeatable", "no images"
        )  # fmt: skip


def compare(
    runner: Runner, script: Script, with_hybrid: bool, torch_only: bool
) -> Iterator[Result]:
    """Runs a script with torch and feedmill, and compares its loaders one by one."""
    torch = runner.run(script, "torch")
    if torch.error:
        yield Result(script.id, result="failed", text=f"with torch: {torch.error}")
        return
    if torch_only:
        for one in torch.loaders:
            layouts = [batch["layout"] for batch in one["batches"]] or ["no batches"]
            text = f"{one['images']} images; {one.get('error') or layouts[0]}"
            yield Result(script.id, f"{one['place']} {one['dataset']}", "", None, "", text)
        return
    ours = runner.run(script, "auto")
    if ours.error:
        yield Result(script.id, result="failed", text=f"with feedmill: {ours.error}")
        return
    if any("path" not in loader for loader in ours.loaders):
        yield Result(script.id, result="failed", text="feedmill could not be imported")
        return
    pairs = list(zip(torch.loaders, ours.loaders))
    differing = [ours for theirs, ours in pairs if not _equal(theirs, ours)]
    again = verified = hybrid = None
    seeded: tuple[Outcome | None, Outcome | None] = (None, None)
    if any(loader["path"] == "native" for loader in differing):
        verified = runner.run(script, "verify")
    if any(
        mine.get("asks_for_own_draws") and not _equal(theirs, mine, "labels", "layout")
        for theirs, mine in pairs
    ):
        seeded = (
            runner.run(script, "torch", seeds_collate=True),
            runner.run(script, "verify", seeds_collate=True),
        )
    if any(not loader.get("asks_for_own_draws") for loader in differing):
        again = runner.run(script, "torch")
    if with_hybrid and any(
        loader["path"] in ("torch", "deferred") for loader in ours.loaders
    ):
        hybrid = runner.run(script, "hybrid")
    for i, (theirs, mine) in enumerate(pairs):
        result = _result(theirs, mine, *(_at(one, i) for one in (again, verified, *seeded)))
        yield Result(
            script.id,
            f"{mine['place']} {mine['dataset']}",
            mine["path"],
            (_at(hybrid, i) or {}).get("path") in ("native", "hybrid") if hybrid else None,
            *result,
            len(theirs["batches"]),
        )
    if len(torch.loaders) != len(ours.loaders):
        text = f"{len(torch.loaders)} loaders with torch, {len(ours.loaders)} with feedmill"
        yield Result(script.id, result="failed", text=text)


def _at(outcome: Outcome | None, i: int) -> dict[str, Any] | None:
    return outcome.loaders[i] if outcome and i < len(outcome.loaders) else None


def _equal(theirs: dict[str, Any], ours: dict[str, Any], *kinds: str) -> bool:
    """Whether two loaders gave equal batches, in all or in some kinds of digests."""
    kinds = kinds or ("all", "labels", "layout")
    return _error(theirs) == _error(ours) and (
        [[batch[kind] for kind in kinds] for batch in theirs["batches"]]
        == [[batch[kind] for kind in kinds] for batch in ours["batches"]]
    )


def _error(loader: dict[str, Any]) -> str:
    """A loader's error, without the sample that feedmill adds to the messages of a dataset's own."""
    return re.sub(r" \[dataset index \d+.*\]$", "", loader.get("error", ""))


def _result(
    theirs: dict[str, Any],
    ours: dict[str, Any],
    again: dict[str, Any] | None,
    verified: dict[str, Any] | None,
    seeded_theirs: dict[str, Any] | None,
    seeded_verified: dict[str, Any] | None,
) -> tuple[str, str]:
    reasons = "; ".join(ours.get("reasons", ()))
    if _error(theirs) and _equal(theirs, ours):
        n = len(theirs["batches"])
        return "failed", f"with torch and feedmill, after {n} equal batches: {_error(theirs)}"
    if not theirs["batches"]:
        return "failed", f"no batches with torch: {theirs.get('error', 'too few images')}"
    if not theirs["images"]:
        return "no images", reasons
    if _equal(theirs, ours):
        return "equal", reasons
    if ours["path"] == "native" and verified:
        if "error" in verified or not verified["counters"]["verified_samples"]:
            return "differs", f"verify: {verified.get('error', 'no sample was verified')}"
        if ours["asks_for_own_draws"]:
            if _equal(theirs, ours, "labels", "layout"):
                return "same draws", ""
            if _is_verified_alike(seeded_theirs, seeded_verified):
                return "collate draws", _difference(theirs, ours)
    if again and not _equal(theirs, again):
        return "not repeatable", reasons
    return "differs", ours.get("error") or _difference(theirs, ours)


def _is_verified_alike(theirs: dict[str, Any] | None, ours: dict[str, Any] | None) -> bool:
    """Whether batches have equal labels and layout, and feedmill verified the samples."""
    return (
        theirs is not None
        and ours is not None
        and "error" not in ours
        and ours["counters"]["verified_samples"] > 0
        and _equal(theirs, ours, "labels", "layout")
    )


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    if len(theirs["batches"]) != len(ours["batches"]):
        return f"{len(theirs['batches'])} batches with torch, {len(ours['batches'])} with feedmill"
    for i, (one, other) in enumerate(zip(theirs["batches"], ours["batches"])):
        for kind in ("layout", "labels", "all"):
            if one[kind] != other[kind]:
                return f"batch {i}, {kind}: {one[kind]} with torch, {other[kind]} with feedmill"
    return f"{theirs.get('error')} with torch"


# ---- the report ----------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """A Markdown table of all loaders, and what it adds up to."""
    rows = ["| script | loader | path | hybrid | batches | |", "|---|---|---|---|---|---|"]
    for one in results:
        hybrid = {None: "", True: "yes", False: "no"}[one.hybrid]
        text = one.text.replace("|", "\\|").replace("\n", " ")[:160]
        cells = (one.script, one.loader, one.path, hybrid, one.result, text)
        rows.append(f"| {' | '.join(cells)} |")
    counted = [one for one in results if one.result != "no images"]
    paths = Counter(one.path or "failed" for one in counted)
    ends = Counter(one.result for one in counted)
    rows += ["", f"{len(counted)} loaders: " + _sum(paths), f"batches: {_sum(ends)}"]
    return "\n".join(rows) + "\n"


def _sum(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.most_common())


def main() -> int:
    options = _options()
    chosen = [one for one in scripts() if any(text in one.id for text in options.only)]
    if options.list:
        print("\n".join(one.id for one in chosen))
        return 0
    images = options.images and data.Given(options.images, options.training_files)
    make_rows: Callable[[Script], Iterator[Any]]
    if options.speed:
        again = speeds.doubtful(options.again, options.below) if options.again else None
        if again is not None:
            chosen = [one for one in chosen if one.id in again]
        runner = Runner(options.batches, options.limit or 3600, options.rng, images)
        name, make_table, print_row = "speeds", speeds.table, _print_speed

        def make_rows(script: Script) -> Iterator[Any]:
            numbers = (again or {}).get(script.id, ())
            return speeds.measure(runner, script, options.speed, options.turn, numbers)

    else:
        runner = Runner(options.batches, options.limit or 300, options.rng, images)
        name, make_table, print_row = "results", table, _print_result

        def make_rows(script: Script) -> Iterator[Any]:
            return compare(runner, script, options.hybrid, options.torch_only)

    out = options.out or WORK / name
    rows = []
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_suffix(".jsonl").open("w") as lines:
        for script in chosen:
            try:
                for one in make_rows(script):
                    rows.append(one)
                    lines.write(json.dumps(vars(one)) + "\n")
                    lines.flush()
                    print_row(one)
            except trees.MissingError as error:
                print(f"{script.id:45} skipped: {error}", flush=True)
    text = make_table(rows)
    out.with_suffix(".md").write_text(text)
    print(text)
    if not rows:
        print("skipped: no repository can be had; set FEEDMILL_PUBLIC_REPOS")
        return _SKIPPED
    return 0 if all(one.is_good for one in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT",
                        help="only scripts whose name contains one of these")  # fmt: skip
    parser.add_argument("--batches", type=int, default=3, metavar="N",
                        help="batches to take from each loader (default 3)")  # fmt: skip
    parser.add_argument("--images", type=Path, metavar="FOLDER",
                        help="use the JPEGs of this folder, which has a folder per class, for "
                        "ImageNet-like data sets; training repeats them")  # fmt: skip
    parser.add_argument("--training-files", type=int, default=10_000, metavar="N",
                        help="with --images: how many files training has at least (default 10000); "
                        "so many as there are images for turns of several epochs")  # fmt: skip
    parser.add_argument("--limit", type=float, metavar="SECONDS",
                        help="end a script after so long (default 300; with --speed 3600)")  # fmt: skip
    parser.add_argument("--torch-only", action="store_true",
                        help="only see which scripts run with torch's DataLoader")  # fmt: skip
    parser.add_argument("--hybrid", action="store_true", help="also try native='hybrid'")
    parser.add_argument("--rng", choices=("auto", "feedmill"), default="auto",
                        help="feedmill: native transforms draw feedmill's own random numbers")  # fmt: skip
    parser.add_argument("--speed", type=int, default=0, metavar="ROUNDS",
                        help="measure the loaders beside torch's, in so many rounds")  # fmt: skip
    parser.add_argument("--turn", type=float, default=2.0, metavar="SECONDS",
                        help="with --speed: CPU seconds of a turn of torch's (default 2)")  # fmt: skip
    parser.add_argument("--again", type=Path, metavar="FILE.jsonl",
                        help="with --speed: only loaders that failed or were slow in this earlier "
                        "measurement")  # fmt: skip
    parser.add_argument("--below", type=float, default=1.3, metavar="RATIO",
                        help="what --again takes for slow, in batches per CPU-second beside torch's "
                        "(default 1.3)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="STEM",
                        help="write STEM.jsonl and STEM.md (default: results, or with --speed "
                        f"speeds, in {WORK})")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the scripts' names, and end")
    return parser.parse_args()


def _print_result(one: Result) -> None:
    print(f"{one.script:45} {one.loader:45} {one.path:8} {one.result} {one.text}"[:230], flush=True)


def _print_speed(one: speeds.Speed) -> None:
    text = one.error or f"{one.path:8} {one.cpu_ratio:.2f} wall {one.wall_ratio:.2f} {one.compared}"
    print(f"{one.script:45} {one.loader:45} {text}"[:230], flush=True)


if __name__ == "__main__":
    sys.exit(main())
