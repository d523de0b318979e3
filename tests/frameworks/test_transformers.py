"""Hugging Face's Trainer, which has Accelerate prepare its loaders."""

import warnings

import feedmill
import frameworks
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

transformers = frameworks.need("transformers")
frameworks.need("accelerate")


class Model(torch.nn.Module):
    """frameworks.network() with the interface that the Trainer needs. It records the labels."""

    def __init__(self):
        super().__init__()
        self.model = frameworks.network()
        self.seen_labels = []

    def forward(self, pixel_values, labels):
        self.seen_labels.append(labels.tolist())
        logits = self.model(pixel_values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    def epochs(self):
        """The labels of each whole epoch."""
        labels = sum(self.seen_labels, [])
        n = frameworks.N_IMAGES
        assert len(labels) % n == 0
        return [labels[i : i + n] for i in range(0, len(labels), n)]


class Trainer(transformers.Trainer):
    """A Trainer with a custom loader, whose batches are lists.

    Args:
        make_loader: dataset -> loader.
        prepare: (accelerator, loader) -> loader.
    """

    def __init__(self, make_loader, prepare, **options):
        super().__init__(**options)
        self.make_loader, self.prepare = make_loader, prepare

    def get_train_dataloader(self):
        self.loader = self.prepare(self.accelerator, self.make_loader(self.train_dataset))
        return self.loader

    def get_eval_dataloader(self, eval_dataset=None):
        loader = feedmill.DataLoader(self.eval_dataset, 5, native="require")
        return self.prepare(self.accelerator, loader)

    def get_test_dataloader(self, test_dataset):
        return self.get_eval_dataloader()

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(*inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    def prediction_step(self, model, inputs, *_, **__):
        with torch.no_grad():
            outputs = model(*self._prepare_inputs(inputs))
        return outputs["loss"], outputs["logits"], inputs[1]


def arguments(folder, **options):
    return transformers.TrainingArguments(**{
        "output_dir": str(folder), "num_train_epochs": 2, "use_cpu": True, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no",
        "per_device_train_batch_size": 4, **options,
    })


@pytest.fixture(autouse=True)
def no_warning_of_a_loss():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*feedmill")
        yield


def train(folder, train_set, make_loader, prepare=feedmill.prepare, resume=None, **options):
    trainer = Trainer(
        make_loader, prepare, model=Model(), args=arguments(folder, **options),
        train_dataset=train_set, eval_dataset=train_set,
    )
    torch.manual_seed(6)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_training_natively_in_torchs_order(eval_set, tmp_path):
    trainer = train(tmp_path, eval_set, frameworks.train_loader)
    assert frameworks.options_of(trainer.loader) == frameworks.OPTIONS
    frameworks.assert_native(trainer.loader, 2)
    epochs = trainer.model.epochs()
    for labels in epochs:
        frameworks.assert_every_index_once(labels)
    torchs = train(tmp_path, eval_set, lambda dataset: TorchDataLoader(dataset, 4, shuffle=True))
    assert torchs.model.epochs() == epochs and epochs[0] != epochs[1]


def test_evaluation_and_prediction(eval_set, tmp_path):
    trainer = train(tmp_path, eval_set, frameworks.train_loader, eval_strategy="epoch")
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.predict(eval_set).label_ids.tolist() == list(range(frameworks.N_IMAGES))


def test_resuming_in_the_middle_of_an_epoch(train_set, tmp_path):
    """The Trainer calls Accelerate itself. The batches equal those of an uninterrupted run."""
    options = {"save_strategy": "steps", "save_steps": 8}

    def make_loader(dataset):
        return frameworks.train_loader(dataset, shuffle=False)

    def prepare(accelerator, loader):
        return accelerator.prepare(loader)

    with feedmill.keep_in_accelerate():
        whole = train(tmp_path, train_set, make_loader, prepare, **options)
        frameworks.assert_native(whole.loader, 2)
        checkpoint = tmp_path / "checkpoint-8"
        rest = train(tmp_path, train_set, make_loader, prepare, checkpoint)
    assert rest.model.seen_labels == whole.model.seen_labels[8:]
    assert all(map(torch.equal, rest.model.parameters(), whole.model.parameters()))


UNCHANGED = """
import test_transformers, transformers

def collate(samples):
    return {"pixel_values": torch.stack([image for image, _ in samples]),
            "labels": torch.tensor([label for _, label in samples])}

arguments = test_transformers.arguments(sys.argv[2], dataloader_num_workers=int(sys.argv[3]))
trainer = transformers.Trainer(
    model=test_transformers.Model(), args=arguments, data_collator=collate,
    train_dataset=frameworks.train_set(sys.argv[1]),
)
trainer.train()
tell(trainer.callback_handler.train_dataloader, epochs=trainer.model.epochs())
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unchanged_trainer(images, tmp_path, workers):
    """A Trainer with its own worker_init_fn and a collator."""
    (told,) = frameworks.run_unchanged(tmp_path, UNCHANGED, images, tmp_path, workers)
    assert len(told["epochs"]) == 2
    for labels in told["epochs"]:
        frameworks.assert_every_index_once(labels)
    assert told["path"] == "native", told["reasons"]
    assert told["native_samples"] == 2 * frameworks.N_IMAGES
