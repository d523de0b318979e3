"""A collate_fn of the script's own, called ahead of the turn of its batch.

May import: system, planner.

With num_workers > 0 torch calls a collate_fn in its worker processes, ahead of the batch's turn.
Natively, samples are made by threads of this process, so that the function is called

- by ``ahead.Ahead``, in a thread of this process, if ``proof`` shows from its bytecode that it
  draws no random number and neither reads nor changes anything global: nobody can tell;
- by ``workers.CollateWorkers`` otherwise, in worker processes of torch's own, which get the samples
  through shared memory (``blocks``) and run ``in_worker``.
"""
