"""The targets of a healthy training loop, and how a loader meets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from feedmill.profiling.report.verdict import ReportContext
from feedmill.profiling.report.wording import cpus, percent

if TYPE_CHECKING:
    from feedmill.profiling.report.stats import Stats


@dataclass(frozen=True)
class Limits:
    """The numbers of the targets; see Stats.report(). ValueError if one is out of range."""

    wait_ms: float = 5
    gpu: float = 0.8
    cpu: tuple[float, float] = (0.6, 0.8)

    def __post_init__(self) -> None:
        low, high = self.cpu
        if not (self.wait_ms > 0 and 0 <= self.gpu <= 1 and 0 <= low <= high <= 1):
            raise ValueError(
                f"wait_ms is {self.wait_ms!r}, gpu {self.gpu!r} and cpu {self.cpu!r}; wait_ms must "
                "be above 0, gpu from 0 to 1, and cpu two numbers (low, high) from 0 to 1"
            )


class Target(NamedTuple):
    """A target and the measured value. All fields but is_met are texts.

    Attributes:
        is_met: whether the target is met. None if not known.
        name: the quantity.
        goal: the wanted range.
        value: the measured value. "" if not known.
        why: what a missed target means. May be "".
    """

    is_met: bool | None
    name: str
    goal: str
    value: str = ""
    why: str = ""


def targets(stats: Stats, context: ReportContext, limits: Limits) -> list[Target]:
    """The targets for waits, GPU and CPU, in this order. Empty before the first batch."""
    if not stats.batches:
        return []
    return [_wait(stats, limits), _gpu(stats, context, limits), _cpu(stats, context, limits)]


def _wait(stats: Stats, limits: Limits) -> Target:
    steps = stats.steps_of("steady")
    when = "steady state"
    if not len(steps):
        steps, when = stats.steps, "too few steps for a steady state"
    wait_ms = float(steps["data_wait_ns"].mean()) / 1e6 if len(steps) else 0.0
    return Target(
        wait_ms < limits.wait_ms,
        "wait for data",
        f"under {limits.wait_ms:g} ms",
        f"{wait_ms:.1f} ms a batch ({when})",
    )


def _gpu(stats: Stats, context: ReportContext, limits: Limits) -> Target:
    goal = f"above {percent(limits.gpu)}"
    if context.gpu_busy is not None:
        is_met = context.gpu_busy > limits.gpu
        return Target(is_met, "GPU", goal, f"{percent(context.gpu_busy)} busy on average")
    steady = len(stats.steps_of("steady")) > 0
    au = stats.steady_au if steady else stats.au
    if stats.gpu.steps:
        why = "the GPU runs out of work" if au <= limits.gpu else ""
        value = f"{percent(au)}: the share of time in which the GPU did not wait for a batch"
        return Target(au > limits.gpu, "accelerator utilization (AU)", goal, value, why)
    gpu = "the GPU's own use is not known" if context.uses_cuda else "no GPU is in use"
    return Target(
        au > limits.gpu,
        "accelerator utilization (AU)",
        goal,
        f"{percent(au)}: the share of time without a wait for data; {gpu}",
    )


def _cpu(stats: Stats, context: ReportContext, limits: Limits) -> Target:
    low, high = limits.cpu
    goal = f"{percent(low).removesuffix('%')}-{percent(high)}"
    share, busy, n_cpus = context.cpu_share, context.host_share, "its CPUs"
    if stats.process.elapsed_ns and stats.process.usable_cpus:
        cpu_ns = stats.process.elapsed_ns * stats.process.usable_cpus
        share, busy = stats.process.cpu_ns / cpu_ns, stats.process.host_busy_ns / cpu_ns
        n_cpus = cpus(stats.process.usable_cpus)
    if share is None:
        return Target(None, "CPU", f"{goal} of the usable CPUs")
    why = "" if share <= high else "the CPUs are the limit"
    if share < low:
        why = "there are CPUs to spare" if (busy or 0.0) < high else "other processes use the rest"
    value = f"{percent(share)} of {n_cpus} by this process and its workers"
    return Target(low <= share <= high, "CPU", goal, value, why)
