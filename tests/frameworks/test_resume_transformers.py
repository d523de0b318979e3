"""Stopping and going on with transformers' Trainer."""

import json
import warnings

import feedmill
import frameworks
import killed
import pytest
import torch

transformers = frameworks.need("transformers")
frameworks.need("accelerate")
test_transformers = pytest.importorskip("test_transformers")

N_EPOCHS = 2


class Model(test_transformers.Model):
    """Keeps the samples of the run."""

    def __init__(self):
        super().__init__()
        self.done = []

    def forward(self, images, labels):
        self.done += killed.sample_keys(images, labels)
        return super().forward(images, labels)


class Saving(transformers.TrainerCallback):
    """Adds the samples to each checkpoint, then calls the step function of killed.py."""

    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_save(self, args, state, control, model=None, **_):
        with killed.replacing(self.folder / f"checkpoint-{state.global_step}" / "done") as path:
            path.write_text(json.dumps(model.done))
        self.step()


def latest(folder):
    """The latest checkpoint that is whole, or None."""
    found = [path for path in folder.glob("checkpoint-*") if (path / "done").exists()]
    return max(found, key=lambda path: int(path.name.partition("-")[2]), default=None)


def train(folder, options, step):
    warnings.simplefilter("ignore")
    torch.manual_seed(6)

    def make_loader(dataset):
        generator = torch.Generator().manual_seed(4)
        return frameworks.train_loader(dataset, generator=generator, **options)

    dataset = frameworks.train_set(options.pop("images"))
    model, checkpoint = Model(), latest(folder)
    if checkpoint is not None:
        model.done = json.loads((checkpoint / "done").read_text())
    with feedmill.keep_in_accelerate():
        trainer = test_transformers.Trainer(
            make_loader, lambda accelerator, loader: accelerator.prepare(loader), model=model,
            args=test_transformers.arguments(
                folder, num_train_epochs=N_EPOCHS, save_strategy="steps", save_steps=1
            ),
            train_dataset=dataset, callbacks=[Saving(folder, step)],
        )
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return model.done


def test_a_killed_training(images, tmp_path):
    def options(run):
        return {"images": str(images), "threads": 1 + run % 4,
                "reader": ["auto", "pread"][run % 2], "num_workers": run % 3}

    whole = killed.check(__name__, tmp_path, 12, options)
    assert len(whole) == N_EPOCHS * frameworks.N_IMAGES
    for epoch in (whole[: frameworks.N_IMAGES], whole[frameworks.N_IMAGES :]):
        frameworks.assert_every_index_once([target for target, _ in epoch])
