"""The output of ``feedmill sweep``, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from feedmill.cli import sweep_model as model
from feedmill.cli.sweep_model import Cell, Number

if TYPE_CHECKING:
    from feedmill.cli.sweep import Known

_MARKS = {model.MEASURED: "m", model.GIVEN: "g", model.MODELLED: "~", model.UNKNOWN: ""}
_LEGEND = "m measured, g given, ~ modelled; GB/s: 1e9 bytes of encoded samples per second"


class KeepsUp(NamedTuple):
    """The number of threads that keep up at a batch size; see model.ThreadsNeeded."""

    batch_size: int
    demand: float
    threads: int | None
    stopped_by: str | None


@dataclass
class Sweep:
    """A finished sweep.

    Attributes:
        src: the folder, or None.
        known: the rates and where they come from.
        cells: the rows of the table.
        is_prepare_given: True if --prepare-ms replaces all stages.
    """

    src: str | None
    known: Known
    cells: list[Cell]
    is_prepare_given: bool

    @property
    def has_step(self) -> bool:
        return any(one.step_s.known for one in self.cells)

    # ---- JSON ------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        rates, how = self.known.rates, self.known.how
        sizes = {"sample_bytes": (rates.sample_bytes, "sample"),
                 "delivered_bytes": (rates.delivered_bytes, "delivered")}
        per_s = {"storage": rates.storage, "memory bandwidth": rates.memory, "copy": rates.copy}
        return {
            "src": self.src,
            "gpu_preprocessing": rates.gpu_preprocessing,
            **{name: {**_pair(one), "how": how.get(key, "")} for name, (one, key) in sizes.items()},
            "bytes_per_s": {
                stage: {**_pair(one), "how": how.get(stage, "")} for stage, one in per_s.items()
            },
            "cpu_samples_per_s": {
                "how": how.get(model.CPU, ""),
                "by_threads": {str(n): _pair(one) for n, one in sorted(rates.cpu.items())},
            },
            "rows": [self._row_as_json(one) for one in self.cells],
            "keeps_up": [one._asdict() for one in self._threads_needed()],
            "notes": self.notes(),
        }

    def _row_as_json(self, one: Cell) -> dict[str, Any]:
        size = self.known.rates.sample_bytes
        return {
            "batch_size": one.batch_size,
            "threads": one.threads or None,
            "step_ms": _pair(_times(one.step_s, 1e3)),
            "prepare_ms": _pair(_times(one.prepare_s, 1e3)),
            "demand_samples_per_s": _pair(one.demand),
            "supply_samples_per_s": _pair(one.supply),
            "demand_gb_per_s": _pair(_gigabytes(one.demand, size)),
            "supply_gb_per_s": _pair(_gigabytes(one.supply, size)),
            "binding": one.binding or model.UNKNOWN,
            "gpu_utilization": _pair(one.utilization),
        }

    # ---- text ------------------------------------------------------------------------------------

    def as_text(self) -> str:
        lines = [] if self.is_prepare_given else [*self._inputs(), ""]
        lines += _aligned([self._heads(), *map(self._row, self.cells)])
        lines.append(_LEGEND)
        if self.has_step:
            lines.append(self._keeps_up())
        return "\n".join([*lines, *(f"note: {text}" for text in self.notes())])

    def _inputs(self) -> list[str]:
        """A line for each number from which the table is computed."""
        rates, how = self.known.rates, self.known.how
        rows = [
            ("sample", _with_source(rates.sample_bytes, "{:,.0f} bytes"), how.get("sample", "")),
            ("delivered", _with_source(rates.delivered_bytes, "{:,.0f} bytes"),
             how.get("delivered", "")),
        ]
        for stage, rate in ((model.STORAGE, rates.storage), (model.MEMORY, rates.memory),
                            (model.COPY, rates.copy)):
            text = _with_source(_times(rate, 1e-9), "{:,.2f} GB/s")
            rows.append((stage, text, how.get(stage, "")))
        if rates.gpu_preprocessing:
            rows.insert(3, (model.CPU, "none", "the GPU decodes and transforms"))
        else:
            text = "; ".join(
                f"{_with_source(one, '{:,.0f} img/s')} with {n} thread{'s' if n > 1 else ''}"
                for n, one in rates.cpu.items()
            )
            rows.insert(3, (model.CPU, text or model.UNKNOWN, how.get(model.CPU, "")))
        lines = [f"{name:<17} {text}" + (f": {why}" if why else "") for name, text, why in rows]
        return [f"rates{f' for {self.src}' if self.src else ''}:",
                *(f"  {line}" for line in lines)]

    def _heads(self) -> list[str]:
        if not self.has_step:
            return ["batch", "threads", "prepare ms", "supply GB/s", "supply img/s",
                    "bottleneck"]
        return ["batch", "threads", "step ms", "prepare ms", "demand GB/s", "supply GB/s",
                "bottleneck", "GPU utilization"]

    def _row(self, one: Cell) -> list[str]:
        size = self.known.rates.sample_bytes
        first = [str(one.batch_size), str(one.threads or "-")]
        prepare_ms = _marked(_times(one.prepare_s, 1e3), "{:,.2f}")
        supply = _marked(_gigabytes(one.supply, size), "{:,.3f}")
        binding = one.binding or model.UNKNOWN
        if not self.has_step:
            return [*first, prepare_ms, supply, _marked(one.supply, "{:,.0f}"), binding]
        return [
            *first,
            _marked(_times(one.step_s, 1e3), "{:,.2f}"),
            prepare_ms,
            _marked(_gigabytes(one.demand, size), "{:,.3f}"),
            supply,
            binding,
            _marked(_times(one.utilization, 100), "{:.1f}%"),
        ]

    # ---- conclusions -----------------------------------------------------------------------------

    def _threads_needed(self) -> list[KeepsUp]:
        """The number of threads that keep up, for each batch size with a known step time."""
        if self.is_prepare_given:
            return []
        rates = self.known.rates
        demands = {(one.batch_size, one.demand.value): None for one in self.cells}  # in order
        return [
            KeepsUp(batch_size, demand, *model.threads_that_keep_up(rates, demand))
            for batch_size, demand in demands
            if demand is not None
        ]

    def _keeps_up(self) -> str:
        if self.is_prepare_given:
            slow = [str(one.batch_size) for one in self.cells if one.binding != model.GPU]
            if not slow:
                return "preparing keeps up with the step"
            return f"preparing does not keep up with the step at batch {', '.join(slow)}"
        texts = map(self._keeps_up_text, self._threads_needed())
        return "threads that keep up: " + ", ".join(texts)

    def _keeps_up_text(self, one: KeepsUp) -> str:
        at = f"at batch {one.batch_size} ({one.demand:,.0f} img/s"
        if one.threads is not None:
            return f"{one.threads or 'none needed'} {at})"
        if one.stopped_by is None:
            return f"unknown {at}): the CPU's rate is not known"
        supply = model.supplies(self.known.rates, model.MOST_THREADS)[one.stopped_by].value
        return f"none {at}): {one.stopped_by} delivers {supply:,.0f}"

    def notes(self) -> list[str]:
        """Stages whose supply is unknown, and remarks on the measurements."""
        notes = []
        if not self.is_prepare_given:
            demands = [one.demand.value for one in self.cells]
            most = max((one for one in demands if one is not None), default=None)
            for stage, one in model.supplies(self.known.rates, 1).items():
                if not one.known:
                    notes.append(self._unknown(stage, most))
        return notes + self.known.notes

    def _unknown(self, stage: str, most: float | None) -> str:
        rates = self.known.rates
        text = f"the supply of {stage} is unknown"
        rate, size = {
            model.STORAGE: (rates.storage, rates.sample_bytes),
            model.CPU: (model.NOT_KNOWN, model.NOT_KNOWN),
            model.MEMORY: (rates.memory, model.memory_moves(rates)),
            model.COPY: (rates.copy, model.copied_bytes(rates)),
        }[stage]
        if rate.known:
            text += ", as the size of a sample is (--sample-bytes)"
        text += ", so it is not considered as the bottleneck"
        if most is None:
            return text
        if stage == model.CPU:
            need = f"{most:,.0f} img/s"
        elif size.value is not None:
            need = f"{most * size.value / 1e9:,.2f} GB/s"
        else:
            return text
        return f"{text}; the table is valid if it delivers {need} or more"


# ---- formatting ----------------------------------------------------------------------------------


def _times(one: Number, factor: float) -> Number:
    return one if one.value is None else Number(one.value * factor, one.source)


def _gigabytes(samples: Number, size: Number) -> Number:
    """Samples per second, as 1e9 bytes of encoded samples per second."""
    if samples.value is None or size.value is None:
        return model.NOT_KNOWN
    return Number(samples.value * size.value / 1e9, model.worst([samples.source, size.source]))


def _pair(one: Number) -> dict[str, Any]:
    return one._asdict()


def _marked(one: Number, form: str) -> str:
    return model.UNKNOWN if one.value is None else form.format(one.value) + _MARKS[one.source]


def _with_source(one: Number, form: str) -> str:
    return model.UNKNOWN if one.value is None else f"{form.format(one.value)} {one.source}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]
