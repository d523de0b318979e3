"""Puts feedmill's DataLoader in place of torchdata's StatefulDataLoader in every Python process.

Python imports this module when it starts, because its folder is on PYTHONPATH; the processes that
tests start have it, too.
"""

from replacing import call_after_import


def _replace(module):
    import feedmill

    class StatefulDataLoader(feedmill.DataLoader):
        """Takes the one argument that torchdata's class has besides torch's. It says how often a
        worker sends its state, of which feedmill needs none."""

        def __init__(self, *args, snapshot_every_n_steps=1, **kwargs):
            super().__init__(*args, **kwargs)

    StatefulDataLoader.__module__ = "feedmill"
    module.StatefulDataLoader = StatefulDataLoader


call_after_import("torchdata.stateful_dataloader", _replace)
