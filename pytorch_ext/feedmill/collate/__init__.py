"""Calls a user's collate_fn ahead of its batch's turn.

May import: system, planner.

With num_workers > 0 torch calls a collate_fn in its worker processes, ahead of the batch's turn. On
the native path threads of this process make the samples. There the function is called

- in a thread of this process (``ahead.Ahead``), if ``proof`` shows from its bytecode that it draws
  no random number and neither reads nor changes global state, so that the result is the same;
- else in torch's worker processes (``workers.CollateWorkers``), which get the samples through
  shared memory (``blocks``) and run ``in_worker``.
"""
