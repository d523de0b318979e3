"""Accelerate, which rebuilds the loaders that it prepares."""

import pickle
import socket
import threading
import warnings

import feedmill
import frameworks
import helpers
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

accelerate = frameworks.need("accelerate")
data_loader = frameworks.need("accelerate.data_loader")


def accelerator(**configuration):
    config = accelerate.DataLoaderConfiguration(**configuration)
    return accelerate.Accelerator(cpu=True, dataloader_config=config)


def targets_of(loader):
    return [target for _, targets in loader for target in targets.tolist()]


def images_of(loader):
    return torch.cat([images for images, _ in loader])


@pytest.fixture
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def shard(no_warnings):
    """Prepares a loader as one of two processes would, without starting processes."""
    def prepare(loader, process, **options):
        with feedmill.keep_in_accelerate():
            return data_loader.prepare_data_loader(
                loader, num_processes=2, process_index=process, **options
            )

    return prepare


# ---- warnings for a lost loader ------------------------------------------------------------------


def test_accelerates_prepare_warns_that_the_loader_is_lost(train_set):
    loader = frameworks.train_loader(train_set)
    with pytest.warns(UserWarning, match=r"feedmill\.prepare\(accelerator") as caught:
        prepared = accelerator().prepare(loader)
    assert [one.filename for one in caught] == [__file__]
    assert type(prepared.base_dataloader) is TorchDataLoader
    frameworks.assert_every_index_once(targets_of(prepared))
    with warnings.catch_warnings():  # the warning comes once for each loader
        warnings.simplefilter("error")
        accelerator().prepare(loader)


def test_accelerates_skip_first_batches_warns_too(train_set):
    with pytest.warns(UserWarning, match="feedmill.skip_first_batches"):
        accelerate.skip_first_batches(frameworks.train_loader(train_set), 2)
    prepared = feedmill.prepare(accelerator(), frameworks.train_loader(train_set))
    with pytest.warns(UserWarning, match="feedmill.skip_first_batches"):
        accelerate.skip_first_batches(prepared, 2)


def test_no_warning_where_nothing_is_lost(train_set, monkeypatch, no_warnings):
    accelerator().prepare(TorchDataLoader(train_set))
    assert frameworks.train_loader(train_set).multiprocessing_context is None
    # `feedmill run` replaces torch's DataLoader with feedmill's in every library.
    monkeypatch.setattr(data_loader, "DataLoader", feedmill.DataLoader)
    prepared = accelerator().prepare(feedmill.DataLoader(train_set, 4))
    assert type(prepared.base_dataloader) is feedmill.DataLoader
    with pytest.warns(UserWarning, match="one without its options"):
        accelerator().prepare(feedmill.DataLoader(train_set, 4, seed=7))


def test_a_warning_if_the_loader_cannot_be_kept(train_set, monkeypatch):
    monkeypatch.setattr(data_loader.DataLoaderAdapter, "__init__", lambda *_, **__: None)
    with pytest.warns(UserWarning, match="could not be kept: it now is a loader of another class"):
        feedmill.prepare(accelerator(), frameworks.train_loader(train_set))


# ---- keeping the loader --------------------------------------------------------------------------


def test_training_natively(train_set, eval_set, no_warnings):
    model = frameworks.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    accelerator_ = accelerator()
    model, optimizer, training, evaluation, torchs = feedmill.prepare(
        accelerator_, model, optimizer, frameworks.train_loader(train_set),
        feedmill.DataLoader(eval_set, 5, native="require"), TorchDataLoader(eval_set, 5),
    )
    assert isinstance(training, feedmill.DataLoader)
    assert frameworks.options_of(training) == frameworks.OPTIONS
    assert (evaluation.seed, evaluation.native) == (None, "require")
    assert type(torchs.base_dataloader) is TorchDataLoader
    assert data_loader.DataLoader is TorchDataLoader
    for _ in range(2):
        targets = []
        for images, batch in training:
            accelerator_.backward(torch.nn.functional.cross_entropy(model(images), batch))
            optimizer.step()
            optimizer.zero_grad()
            targets += batch.tolist()
        frameworks.assert_every_index_once(targets)
    frameworks.assert_native(training, 2)
    gathered = [accelerator_.gather_for_metrics(targets) for _, targets in evaluation]
    assert torch.cat(gathered).tolist() == list(range(frameworks.N_IMAGES))
    assert torch.equal(images_of(evaluation), images_of(torchs))
    assert "native path" in training.explain() and training.report()


@pytest.mark.parametrize("configuration", [
    {}, {"use_seedable_sampler": True, "data_seed": 11}, {"dispatch_batches": True},
    {"split_batches": True},
])
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_order(eval_set, configuration, workers, no_warnings):
    orders = []
    for loader in (frameworks.train_loader(eval_set, num_workers=workers),
                   TorchDataLoader(eval_set, 4, shuffle=True, num_workers=workers)):
        prepared = feedmill.prepare(accelerator(**configuration), loader)
        torch.manual_seed(4)
        orders.append([targets_of(prepared) for _ in range(2)])
        if type(loader) is feedmill.DataLoader:
            frameworks.assert_native(prepared, 2)
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


def test_random_draws_follow_the_epoch(train_set, no_warnings):
    direct = frameworks.train_loader(train_set, shuffle=False)
    prepared = feedmill.prepare(accelerator(), frameworks.train_loader(train_set, shuffle=False))
    epochs = [images_of(direct) for _ in range(4)]
    assert torch.equal(images_of(prepared), epochs[0])
    assert torch.equal(images_of(prepared), epochs[1])
    prepared.set_epoch(3)
    assert torch.equal(images_of(prepared), epochs[3])


def test_resuming_in_the_middle_of_an_epoch(train_set, no_warnings):
    for configuration in ({}, {"dispatch_batches": True}):
        prepared = feedmill.prepare(
            accelerator(**configuration), frameworks.train_loader(train_set, shuffle=False)
        )
        epochs = [images_of(prepared) for _ in range(3)]
        prepared.set_epoch(1)
        resumed = feedmill.skip_first_batches(prepared, 2)
        assert frameworks.options_of(resumed) == frameworks.OPTIONS
        assert torch.equal(images_of(resumed), epochs[1][2 * 4 :])
        frameworks.assert_native(resumed, 1, frameworks.N_IMAGES - 2 * 4)
        assert torch.equal(images_of(resumed), epochs[2][2 * 4 :])


def test_states_of_shards_of_other_batches_fit_their_number_of_ranks(train_set):
    """Batches of a sampler of the script's own can't be formed anew for other ranks."""
    class Batches(torch.utils.data.BatchSampler):
        pass

    def prepared(n_processes, process=0):
        batches = Batches(torch.utils.data.SequentialSampler(train_set), 2, False)
        loader = feedmill.DataLoader(train_set, batch_sampler=batches, **frameworks.OPTIONS)
        with feedmill.keep_in_accelerate():
            return data_loader.prepare_data_loader(
                loader, num_processes=n_processes, process_index=process,
            ).base_dataloader

    loader = prepared(2, 1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = torch.cat([images for images, _ in iterator])
    with pytest.raises(ValueError, match="BatchSamplerShard of 2 ranks, whose number must stay"):
        prepared(3).load_state_dict(state)
    again = prepared(2, 1)
    again.load_state_dict(state)
    assert torch.equal(images_of(again), rest)


def test_skipping_without_preparing(train_set, no_warnings):
    loader = frameworks.train_loader(train_set, shuffle=False)
    epochs = [images_of(loader) for _ in range(2)]
    loader.set_epoch(1)
    skipping = feedmill.skip_first_batches(loader, 5)
    assert type(skipping) is feedmill.DataLoader and len(skipping) == 1
    assert torch.equal(images_of(skipping), epochs[1][5 * 4 :])


def test_a_prepared_loader_can_be_pickled(train_set, no_warnings):
    prepared = feedmill.prepare(accelerator(), frameworks.train_loader(train_set, shuffle=False))
    first = images_of(prepared)
    again = pickle.loads(pickle.dumps(prepared))
    again.set_epoch(0)
    assert torch.equal(images_of(again), first)
    assert again.base_dataloader.stats().path == "native"


def test_native_require_raises_if_it_cannot_be_met(eval_set, no_warnings):
    loader = feedmill.DataLoader(eval_set)
    loader.worker_init_fn, loader.num_workers, loader.prefetch_factor = print, 1, 2
    loader.native = "require"
    with pytest.raises(RuntimeError, match="worker_init_fn"):
        feedmill.prepare(accelerator(), loader)
    assert data_loader.DataLoader is TorchDataLoader
    # The options of the loader that failed do not apply to the next one.
    prepared = feedmill.prepare(accelerator(), TorchDataLoader(eval_set))
    assert type(prepared.base_dataloader) is TorchDataLoader


def test_preparing_a_prepared_loader(train_set, no_warnings):
    accelerator_ = accelerator()
    prepared = feedmill.prepare(accelerator_, frameworks.train_loader(train_set))
    assert feedmill.prepare(accelerator_, prepared) is prepared
    assert accelerator_.prepare(prepared) is prepared


def test_other_threads_are_not_affected(train_set):
    results = []

    def prepare():
        with pytest.warns(UserWarning, match="replaces this feedmill.DataLoader"):
            prepared = accelerator().prepare(frameworks.train_loader(train_set))
        results.append(prepared)

    with feedmill.keep_in_accelerate():
        thread = threading.Thread(target=prepare)
        thread.start()
        thread.join()
    assert type(results[0].base_dataloader) is TorchDataLoader


# ---- several processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"split_batches": True}, {"even_batches": False}])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_shards_of_two_processes(train_set, shard, options, workers):
    targets = []
    for process in range(2):
        torchs = TorchDataLoader(train_set, 4, num_workers=workers)
        prepared = shard(
            frameworks.train_loader(train_set, shuffle=False, num_workers=workers),
            process, **options,
        )
        assert targets_of(prepared) == targets_of(shard(torchs, process, **options))
        assert frameworks.options_of(prepared) == frameworks.OPTIONS
        targets += targets_of(prepared)
        frameworks.assert_native(prepared, 2, frameworks.N_IMAGES // 2)
    frameworks.assert_every_index_once(targets)


PROCESS = """
import sys
sys.path.insert(0, {folder!r})
import accelerate, frameworks
accelerator = accelerate.Accelerator(cpu=True)
accelerate.utils.set_seed(5)
loader = frameworks.train_loader(frameworks.train_set(sys.argv[1]))
model = frameworks.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = feedmill.prepare(accelerator, model, optimizer, loader)
for epoch in range(2):
    targets = []
    for images, batch in loader:
        accelerator.backward(torch.nn.functional.cross_entropy(model(images), batch))
        optimizer.step()
        optimizer.zero_grad()
        targets += accelerator.gather_for_metrics(batch).tolist()
    frameworks.assert_every_index_once(targets)
frameworks.assert_native(loader, 2, frameworks.N_IMAGES // 2)
assert frameworks.options_of(loader) == frameworks.OPTIONS
accelerator.end_training()
print("trained", accelerator.process_index)
"""


def test_two_real_processes(images, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    processes = []
    for rank in range(2):
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, str(rank))
        script = PROCESS.format(folder=str(frameworks.__file__).rpartition("/")[0])
        processes.append(helpers.start_script(script, images))
    try:
        outputs = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert [out.splitlines()[-1] for out, _ in outputs] == ["trained 0", "trained 1"]
