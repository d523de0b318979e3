"""Lightning's Trainer, which rebuilds a loader if it replaces the sampler."""

import feedmill
import frameworks
import helpers
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import RandomSampler, SequentialSampler

lightning = frameworks.need("lightning.pytorch")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and samplers


class Module(lightning.LightningModule):
    """Trains frameworks.network() and keeps the targets of each training epoch.

    Args:
        make_loader: called by the hook train_dataloader(). None: the loader is passed to fit().
    """

    def __init__(self, make_loader=None):
        super().__init__()
        self.model = frameworks.network()
        self.epochs = []
        if make_loader:
            self.train_dataloader = make_loader

    def on_train_epoch_start(self):
        self.epochs.append([])

    def training_step(self, batch, _):
        images, targets = batch
        self.epochs[-1] += targets.tolist()
        return torch.nn.functional.cross_entropy(self.model(images), targets)

    def validation_step(self, batch, _):
        return None

    def predict_step(self, batch, _):
        return batch[1]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(**options):
    return lightning.Trainer(**{
        "accelerator": "cpu", "max_epochs": 2, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, **options,
    })


def fit(loader, validation=None, seed=1, **options):
    """Runs fit(). Returns (the module, the trainer)."""
    lightning.seed_everything(seed, workers=False, verbose=False)
    module, trainer_ = Module(), trainer(**options)
    trainer_.fit(module, loader, validation)
    return module, trainer_


def test_samplers_are_kept(eval_set):
    """The validation loader is also iterated for the sanity check, which ends early."""
    validation = feedmill.DataLoader(eval_set, 4, native="require", seed=3)
    loader = frameworks.train_loader(eval_set, num_workers=2)
    module, trainer_ = fit(loader, validation)
    assert trainer_.train_dataloader is loader and trainer_.val_dataloaders is validation
    for targets in module.epochs:
        frameworks.assert_every_index_once(targets)
    frameworks.assert_native(loader, 2)
    stats = validation.stats()
    assert (stats.path, stats.waits.torch_batches, stats.epochs) == ("native", 0, 3)
    assert stats.samples == 2 * 4 + 2 * frameworks.N_IMAGES
    torchs = TorchDataLoader(eval_set, 4, shuffle=True, num_workers=2)
    assert module.epochs == fit(torchs, TorchDataLoader(eval_set, 4))[0].epochs
    assert module.epochs[0] != module.epochs[1]


def test_a_replaced_sampler_of_a_loader_passed_to_fit(train_set):
    given = frameworks.train_loader(train_set, drop_last=True, num_workers=1, prefetch_factor=3)
    module, trainer_ = fit(given, overfit_batches=2)
    assert module.epochs == 2 * [list(range(8))]
    assert given.stats().path == "none"
    assert_rebuilt(trainer_.train_dataloader, given)


@pytest.mark.parametrize("positional", [False, True])
def test_a_replaced_sampler_of_a_loader_from_a_hook(train_set, positional):
    made = []

    def train_dataloader():
        arguments = [train_set, 4] if positional else []
        named = {} if positional else {"dataset": train_set, "batch_size": 4}
        made.append(feedmill.DataLoader(*arguments, **named, shuffle=True, drop_last=True,
                                        **frameworks.OPTIONS))
        made[-1].set_epoch(4)
        return made[-1]

    module, trainer_ = Module(train_dataloader), trainer(overfit_batches=2)
    trainer_.fit(module)
    assert module.epochs == 2 * [list(range(8))]
    assert_rebuilt(trainer_.train_dataloader, made[0])


def assert_rebuilt(loader, given):
    """Checks that it ran two epochs of two batches, and equals `given` but for the sampler."""
    assert type(loader) is feedmill.DataLoader and loader is not given
    assert isinstance(given.sampler, RandomSampler)
    assert isinstance(loader.sampler, SequentialSampler)
    for name in ("batch_size", "drop_last", "num_workers", "prefetch_factor", "dataset"):
        assert getattr(loader, name) == getattr(given, name), name
    assert frameworks.options_of(loader) == frameworks.OPTIONS
    stats = loader.stats()  # the epochs end early, with batches in flight
    assert (stats.path, stats.waits.torch_batches) == ("native", 0)
    assert stats.decode.fallback_samples == 0
    assert stats.epochs == 2 and stats.decode.native_samples >= 2 * 8


def test_predictions_with_lightnings_batch_sampler(eval_set):
    given = frameworks.train_loader(eval_set, shuffle=False)
    trainer_ = trainer()
    targets = trainer_.predict(Module(), given)
    assert torch.cat(targets).tolist() == list(range(frameworks.N_IMAGES))
    loader = trainer_.predict_dataloaders
    assert frameworks.options_of(loader) == frameworks.OPTIONS
    frameworks.assert_native(loader, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_seeded_workers(train_set, workers, monkeypatch):
    """seed_everything(workers=True) makes Lightning set a worker_init_fn."""
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    loader = feedmill.DataLoader(train_set, 4, shuffle=True, num_workers=workers)
    module = Module()
    trainer().fit(module, loader)
    for targets in module.epochs:
        frameworks.assert_every_index_once(targets)
    assert loader.worker_init_fn is not None
    assert loader.stats().path == "native"
    assert workers == 0 or "it only seeds generators" in loader.explain()


DISTRIBUTED = """
import sys
sys.path.insert(0, {folder!r})
import frameworks, test_lightning
from torch.utils.data import DistributedSampler

class Module(test_lightning.Module):
    def on_fit_end(self):
        loader = self.trainer.train_dataloader
        assert type(loader) is feedmill.DataLoader and type(loader.sampler) is DistributedSampler
        assert loader.sampler.num_replicas == 2 and loader.sampler.rank == self.global_rank
        assert frameworks.options_of(loader) == frameworks.OPTIONS
        frameworks.assert_native(loader, 2, frameworks.N_IMAGES // 2)
        torch.save(self.epochs, f"{{sys.argv[2]}}/rank{{self.global_rank}}")

loader = frameworks.train_loader(frameworks.train_set(sys.argv[1]))
test_lightning.trainer(strategy="ddp_fork", devices=2).fit(Module(), loader)
"""


def test_two_processes(images, tmp_path):
    """Lightning makes the sampler a DistributedSampler in each process."""
    script = DISTRIBUTED.format(folder=frameworks.__file__.rpartition("/")[0])
    process = helpers.start_script(script, images, tmp_path)
    try:
        output = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, output
    ranks = [torch.load(tmp_path / f"rank{rank}") for rank in range(2)]
    for first, second in zip(*ranks):
        frameworks.assert_every_index_once(first + second)
    assert ranks[0][0] != ranks[0][1]
