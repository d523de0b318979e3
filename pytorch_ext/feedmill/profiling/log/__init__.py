"""Writes and reads the log of a run, and exports to TensorBoard and torch.profiler.

The log is a file of JSON lines: what each step waited for, and what the process and the host did.
Each line is an object with "type" and "loader", an id of the loader that the line is about. Types:

- run: the loader's process, path and settings. The first line of each loader; written again when a
  value has changed, and when another writer has written to the file.
- step: a record of records.STEP_DTYPE. Each step is written once; where a GPU is measured, after
  the GPU has reached the step. "source" is the number of the native engine, or of torch's path, by
  which step and epoch are counted.
- sample: a record of records.SAMPLE_DTYPE, if samples are recorded. "source" as in step lines.
- system: see feedmill.system.usage.System. Every second and at the end of an epoch.
- slow: one of the slowest samples since the start, slowest first. At the end of an epoch.
- stats: the counters of Stats by their flat names (report.stats_parts.FLAT_NAMES), totals since the
  start. At the end of an epoch.
- lost: how many steps and samples were overwritten before they could be written.

Several loaders and processes may write to one file.
"""
