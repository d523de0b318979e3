"""The log of a run, written and read; and what a run tells TensorBoard and torch.profiler.

The log is JSON lines that say what each step waited for, and what the machine did: one object a
line, each with "type" and "loader", which names the loader that it is of:

- run: who writes what follows, and how it is set up. The first line; again when something in it has
  changed, and when somebody else has written to the file meanwhile.
- step: a record of records.STEP_DTYPE, each step exactly once, when the GPU has come so far where
  one is measured; "source" names the native loader, or
  the count of torch's path, in which step and epoch are numbered.
- sample: one of records.SAMPLE_DTYPE, where samples are recorded; "source" as of steps.
- system: as host.system.System has it, every second and at the end of an epoch.
- slow: samples that took longest since the start, at the end of an epoch, the slowest first.
- stats: the int and str fields of Stats, totals since the start, at the end of an epoch.
- lost: so many steps and samples were overwritten before they could be written.

Several loaders and processes may write to one file.
"""
