"""Compares the speed of scripts' loaders with torch's, and chooses loaders to measure again.

hook/public_scripts_hook/speed.py measures.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts import Runner, Script

# A median below this is slower than torch by more than 2%.
LIMIT = 1 / 1.02


@dataclass(frozen=True)
class Speed:
    """What was measured of one loader, or of a script that failed.

    Attributes:
        script: its id.
        number: of the loader, in the order in which the script makes them; -1: the script failed.
        loader: where the script makes the loader, and its dataset's class.
        path: that feedmill's side took: "native", "deferred" or "torch".
        workers: number of torch's worker processes.
        batches: number of batches in each turn.
        compared: how far the first batches of both sides were equal.
        cpu_s, wall_s: of each round, the seconds that torch's turn and feedmill's took.
        error: what failed; "" if nothing did.
    """

    script: str
    number: int = -1
    loader: str = ""
    path: str = ""
    workers: int = 0
    batches: int = 0
    compared: str = ""
    cpu_s: Sequence[Sequence[float]] = ()
    wall_s: Sequence[Sequence[float]] = ()
    error: str = ""

    @property
    def cpu_ratio(self) -> float:
        """How many times as many batches per CPU-second as torch: the rounds' median."""
        return median(torch / ours for torch, ours in self.cpu_s)

    @property
    def wall_ratio(self) -> float:
        """The same per second."""
        return median(torch / ours for torch, ours in self.wall_s)

    @property
    def is_good(self) -> bool:
        return not self.error and self.compared != "differ" and self.cpu_ratio >= LIMIT


def measure(
    runner: Runner, script: Script, n_rounds: int, turn_s: float, numbers: Collection[int]
) -> Iterator[Speed]:
    """Runs a script and measures its loaders.

    Args:
        runner: runs it.
        script: the script.
        n_rounds: how often torch and feedmill take turns.
        turn_s: CPU seconds that torch's turns are to take.
        numbers: the loaders to measure; all if empty.
    """
    outcome = runner.run(script, "auto", speed=f"{n_rounds} {turn_s}", measured=numbers)
    for one in outcome.loaders:
        if numbers and one["number"] not in numbers:
            continue
        loader = f"{one['place']} {one['dataset']}"
        if error := one.get("error") or one.get("speed_error"):
            yield Speed(script.id, one["number"], loader, error=error)
            continue
        rounds = list(zip(one["torch"], one["feedmill"]))
        yield Speed(
            script.id,
            one["number"],
            loader,
            one["plain_path"],
            one["num_workers"],
            one["batches"],
            one["compared"],
            [(theirs[0], ours[0]) for theirs, ours in rounds],
            [(theirs[1], ours[1]) for theirs, ours in rounds],
        )
    if outcome.error:
        yield Speed(script.id, error=outcome.error)


def doubtful(path: Path, below: float) -> dict[str, list[int]]:
    """The loaders whose CPU ratio in an earlier measurement was below a limit, or that failed
    there: numbers by script, none for a whole script.

    Args:
        path: the .jsonl file of the earlier measurement.
        below: the limit.
    """
    found: dict[str, list[int]] = {}
    for one in read(path):
        if one.error or one.cpu_ratio < below:
            numbers = found.setdefault(one.script, [])
            if one.number >= 0:
                numbers.append(one.number)
    return found


def read(path: Path) -> list[Speed]:
    """The contents of a .jsonl file of a measurement."""
    return [Speed(**json.loads(line)) for line in path.read_text().splitlines()]


def table(speeds: Sequence[Speed]) -> str:
    """A Markdown table of all loaders, the slowest first, and what it adds up to."""
    rows = [
        "| script | loader | path | workers | batches | rounds | CPU | range | wall | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    measured = sorted((one for one in speeds if not one.error), key=lambda one: one.cpu_ratio)
    for one in measured:
        ratios = [torch / ours for torch, ours in one.cpu_s]
        cells = (
            one.script, one.loader, one.path, one.workers, one.batches, len(ratios),
            f"{one.cpu_ratio:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{one.wall_ratio:.2f}", one.compared,
        )  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |")
    for one in speeds:
        if one.error:
            text = one.error.replace("|", "\\|")[:160]
            rows.append(f"| {one.script} | {one.loader} | | | | | | | | failed: {text} |")
    rows += ["", f"{len(measured)} loaders measured, {len(speeds) - len(measured)} failed"]
    if measured:
        n_slower = sum(one.cpu_ratio < LIMIT for one in measured)
        rows.append(
            f"batches per CPU-second beside torch's: median of all "
            f"{median(one.cpu_ratio for one in measured):.2f}, least {measured[0].cpu_ratio:.2f}; "
            f"{n_slower} slower by more than 2%"
        )
    return "\n".join(rows) + "\n"
