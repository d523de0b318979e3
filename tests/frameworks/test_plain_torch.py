"""Training loops of plain torch."""

import feedmill
import frameworks
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, SubsetRandomSampler, TensorDataset


def train(loader, n_epochs):
    """Trains for some epochs. Returns the targets of each epoch in order."""
    model = frameworks.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = [parameter.clone() for parameter in model.parameters()]
    epochs = []
    for epoch in range(n_epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        epochs.append([])
        for images, targets in loader:
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epochs[-1] += targets.tolist()
    assert torch.isfinite(loss)
    assert not any(map(torch.equal, before, model.parameters()))
    return epochs


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffled_epochs_have_torchs_order(eval_set, workers):
    # Without random transforms: torch's would draw from the generator that seeds the order.
    loader = frameworks.train_loader(eval_set, num_workers=workers)
    orders = []
    for one in (loader, TorchDataLoader(eval_set, 4, shuffle=True, num_workers=workers)):
        torch.manual_seed(3)
        orders.append(train(one, 2))
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]
    for targets in orders[0]:
        frameworks.assert_every_index_once(targets)
    frameworks.assert_native(loader, 2)


def test_the_shards_of_a_distributed_sampler(train_set):
    epochs = [[], []]
    for rank in range(2):
        sampler = DistributedSampler(train_set, num_replicas=2, rank=rank, seed=5)
        loader = frameworks.train_loader(train_set, shuffle=None, sampler=sampler)
        for all_targets, targets in zip(epochs, train(loader, 2)):
            all_targets += targets
        frameworks.assert_native(loader, 2, frameworks.N_IMAGES // 2)
    assert epochs[0] != epochs[1]
    for targets in epochs:
        frameworks.assert_every_index_once(targets)


def test_a_subset_random_sampler(train_set):
    loader = frameworks.train_loader(train_set, shuffle=None, sampler=SubsetRandomSampler(range(9)))
    (targets,) = train(loader, 1)
    frameworks.assert_every_index_once(targets, 9)
    frameworks.assert_native(loader, 1, 9)


class Tensors(TensorDataset):
    pass


def test_another_dataset_takes_torchs_path_and_is_counted():
    images = torch.rand(frameworks.N_IMAGES, 3, frameworks.SIZE, frameworks.SIZE)
    dataset = Tensors(images, torch.arange(frameworks.N_IMAGES))
    loader = feedmill.DataLoader(dataset, 4, shuffle=True)
    for targets in train(loader, 2):
        frameworks.assert_every_index_once(targets)
    stats = loader.stats()
    assert (stats.path, stats.waits.torch_batches, stats.epochs) == ("torch", 12, 2)
    assert "Tensors" in stats.reasons[0]
