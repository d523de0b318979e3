"""Stopping and going on under Lightning: checkpoints inside an epoch, and other numbers of ranks."""

import json
import warnings

import feedmill
import frameworks
import helpers
import killed
import pytest
import torch

lightning = frameworks.need("lightning.pytorch")
test_lightning = pytest.importorskip("test_lightning")

N_EPOCHS = 2
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers and samplers


class Module(test_lightning.Module):
    """Keeps the samples of the run in its checkpoints."""

    def __init__(self, step=None, **options):
        super().__init__(**options)
        self.done, self.step = [], step

    def training_step(self, batch, i):
        images, targets = batch
        self.done.append(killed.sample_keys(images, targets))
        return torch.nn.functional.cross_entropy(self.model(images), targets)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["done"] = json.dumps(self.done)

    def on_load_checkpoint(self, checkpoint):
        self.done = json.loads(checkpoint["done"])


class Step(lightning.Callback):
    """Calls the step function of tests/frameworks/killed.py. After ModelCheckpoint, which Lightning
    calls last, the next batch starts."""

    def on_train_batch_start(self, trainer, module, batch, i):
        if module.done:
            module.step()


def checkpoint_every_step(folder):
    return lightning.callbacks.ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )


def latest(folder):
    """The path of the latest checkpoint that is whole, or None."""
    found = sorted(folder.glob("step=*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
    for path in reversed(found):
        try:
            torch.load(path, weights_only=False)
        except Exception:  # it was being written
            path.unlink()
        else:
            return path
    return None


def train(folder, options, step):
    warnings.simplefilter("ignore")
    lightning.seed_everything(1, verbose=False)
    generator = torch.Generator().manual_seed(4)
    loader = frameworks.train_loader(
        frameworks.train_set(options.pop("images")), generator=generator, **options
    )
    module = Module(step)
    trainer = test_lightning.trainer(
        enable_checkpointing=True, max_epochs=N_EPOCHS, default_root_dir=folder,
        callbacks=[Step(), checkpoint_every_step(folder)],
    )
    trainer.fit(module, loader, ckpt_path=latest(folder), weights_only=False)
    return [key for batch in module.done for key in batch]


def test_a_killed_training(images, tmp_path):
    # Lightning does not ask for an epoch's end. Without workers the sampler is then not asked, either,
    # and has drawn one time less from the generator; with torch's loader, too.
    def options(run):
        return {"images": str(images), "threads": 1 + run % 4,
                "reader": ["auto", "pread"][run % 2], "num_workers": 1 + run % 3}

    whole = killed.check(__name__, tmp_path, 12, options)
    assert len(whole) == N_EPOCHS * frameworks.N_IMAGES
    for epoch in (whole[: frameworks.N_IMAGES], whole[frameworks.N_IMAGES :]):
        frameworks.assert_every_index_once([target for target, _ in epoch])


RANKS = """
import json, os, sys
sys.path.insert(0, {folder!r})
import frameworks, killed, test_lightning, test_resume_lightning as here

images, folder, load, n_ranks, n_steps, batch_size = sys.argv[1:]
here.lightning.seed_everything(1, verbose=False)
loader = frameworks.train_loader(frameworks.train_set(images), batch_size=int(batch_size))

class Module(here.Module):
    def on_fit_end(self):
        with open(f"{{folder}}/rank{{self.global_rank}}.json", "w") as file:
            json.dump(self.done, file)

    def on_load_checkpoint(self, checkpoint):
        pass

test_lightning.trainer(
    strategy="ddp_fork", devices=int(n_ranks), max_epochs=1, max_steps=int(n_steps),
    enable_checkpointing=True, default_root_dir=folder,
    callbacks=[here.checkpoint_every_step(folder)],
).fit(Module(), loader, ckpt_path=load or None, weights_only=False)
"""


def test_another_number_of_ranks(images, tmp_path):
    """Lightning gives a shuffled loader torch's DistributedSampler."""
    script = RANKS.format(folder=frameworks.__file__.rpartition("/")[0])
    steps, load = [], ""
    for n_ranks, n_steps, batch_size in ((4, 2, 1), (2, 12, 2)):
        folder = tmp_path / f"{n_ranks}"
        folder.mkdir()
        process = helpers.start_script(script, images, folder, load, n_ranks, n_steps, batch_size)
        try:
            output = process.communicate(timeout=600)
        finally:
            process.kill()
        assert process.returncode == 0, output
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(n_ranks)]
        steps += [[key for batch in step for key in batch] for step in zip(*ranks)]
        load = str(latest(folder))
    whole = feedmill.DataLoader(
        frameworks.train_set(images), 4, **frameworks.OPTIONS,
        sampler=torch.utils.data.DistributedSampler(range(frameworks.N_IMAGES), 1, 0, seed=1),
    )
    wanted = [killed.sample_keys(*batch) for batch in whole]
    assert list(map(sorted, steps)) == list(map(sorted, wanted))
