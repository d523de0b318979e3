"""Puts feedmill's DataLoader in place of torch's in every Python process that imports torch.

Python imports this module when it starts, because its folder is on PYTHONPATH. The environment
and so the replacement reach the processes that tests start, too: spawned ones, fork servers and
``python -c``. Forked ones have it from their parent.
"""

from replacing import call_after_import


def _replace(_):
    # feedmill binds torch's class while it is imported, so it comes first.
    import feedmill
    import torch.utils.data

    torch.utils.data.DataLoader = feedmill.DataLoader
    torch.utils.data.dataloader.DataLoader = feedmill.DataLoader


call_after_import("torch", _replace)
