"""feedmill: a native data loader for PyTorch image training.

    from feedmill import DataLoader

takes the place of ``torch.utils.data.DataLoader``: same arguments, same batches, same order.
"""

from feedmill._ops import __version__
from feedmill.loader import DataLoader
from feedmill.stats import Stats

__all__ = ["DataLoader", "Stats", "__version__"]
