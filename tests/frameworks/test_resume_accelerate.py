"""Stopping and going on under Accelerate: use_stateful_dataloader, save_state() and load_state(),
and other numbers of processes."""

import json
import os
import random
import warnings

import feedmill
import frameworks
import killed
import pytest
import torch
from torch.utils.data import SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

accelerate = frameworks.need("accelerate")
data_loader = frameworks.need("accelerate.data_loader")
frameworks.need("torchdata.stateful_dataloader")

N_EPOCHS = 2
# torchdata's own, at its import and while it makes a loader.
pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital")


@pytest.fixture(autouse=True)
def no_running_epochs():
    """Accelerate keeps a list of the loaders whose epoch did not end, for the whole process."""
    yield
    accelerate.state.GradientState._reset_state()


def accelerator(**configuration):
    return accelerate.Accelerator(cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(
        use_stateful_dataloader=True, **configuration
    ))


def keys_of(loader):
    return [killed.sample_keys(*batch) for batch in loader]


# ---- one process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", [
    {}, {"use_seedable_sampler": True, "data_seed": 11}, {"dispatch_batches": True},
])
def test_states_at_each_step(train_set, tmp_path, configuration):
    def prepared():
        torch.manual_seed(3)
        accelerator_ = accelerator(**configuration)
        return accelerator_, feedmill.prepare(accelerator_, frameworks.train_loader(train_set))

    accelerator_, loader = prepared()
    assert loader.use_stateful_dataloader and isinstance(loader, feedmill.DataLoader)
    whole = []
    for _ in range(3):
        for batch in loader:
            whole.append(killed.sample_keys(*batch))
            accelerator_.save_state(tmp_path / f"{len(whole)}")
    frameworks.assert_native(loader, 3)
    for n in (1, 5, 6, 7, 12, 17):
        accelerator_, loader = prepared()
        accelerator_.load_state(tmp_path / f"{n}")
        rest = []
        while loader.iteration < 3:
            rest += keys_of(loader)
        assert rest == whole[n:], n


def test_torchdatas_loader_is_left_alone(train_set):
    from torchdata.stateful_dataloader import StatefulDataLoader

    prepared = feedmill.prepare(accelerator(), StatefulDataLoader(train_set, 4))
    assert type(prepared.base_dataloader) is StatefulDataLoader
    with pytest.warns(UserWarning, match="replaces this feedmill.DataLoader"):
        lost = accelerator().prepare(frameworks.train_loader(train_set))
    assert type(lost.base_dataloader) is StatefulDataLoader
    assert not hasattr(data_loader.DataLoaderAdapter.__init__, "__wrapped__")


def train(folder, options, step):
    warnings.simplefilter("ignore")
    torch.manual_seed(3)
    accelerator_ = accelerator(**options.pop("configuration"))
    loader = frameworks.train_loader(frameworks.train_set(options.pop("images")), **options)
    model = frameworks.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = feedmill.prepare(accelerator_, model, optimizer, loader)
    latest, done = folder / "latest", []
    if latest.exists():
        accelerator_.load_state(latest)
        done = json.loads((latest / "done.json").read_text())
    while loader.iteration < N_EPOCHS:
        for images, targets in loader:
            accelerator_.backward(torch.nn.functional.cross_entropy(model(images), targets))
            optimizer.step()
            optimizer.zero_grad()
            done += killed.sample_keys(images, targets)
            checkpoint = folder / f"{len(done)}-{os.getpid()}"
            accelerator_.save_state(checkpoint)
            (checkpoint / "done.json").write_text(json.dumps(done))
            with killed.replacing(latest) as link:
                link.symlink_to(checkpoint)
            step()
    return done


@pytest.mark.parametrize(
    "configuration", [{}, {"use_seedable_sampler": True, "data_seed": 11}][: killed.N_KILLS]
)
def test_a_killed_training(images, tmp_path, configuration):
    def options(run):
        return {
            "images": str(images), "configuration": configuration, "threads": 1 + run % 4,
            "reader": ["auto", "pread"][run % 2], "num_workers": run % 3,
        }

    whole = killed.check(__name__, tmp_path, 12, options, seed=len(configuration))
    assert len(whole) == N_EPOCHS * frameworks.N_IMAGES
    frameworks.assert_every_index_once([target for target, _ in whole[: frameworks.N_IMAGES]])


# ---- other numbers of processes ------------------------------------------------------------------


def shards(dataset, n_ranks, batch_size, configuration, make_sampler=None, **options):
    """The loaders that Accelerate makes in each of n processes, without starting processes."""
    configuration = dict(configuration)
    loaders = []
    for rank in range(n_ranks):
        torch.manual_seed(3)
        if make_sampler is not None:
            options |= {"sampler": make_sampler(dataset), "shuffle": False}
        with feedmill.keep_in_accelerate():
            loaders.append(data_loader.prepare_data_loader(
                frameworks.train_loader(dataset, batch_size=batch_size, **options),
                num_processes=n_ranks, process_index=rank, use_stateful_dataloader=True,
                **configuration,
            ))
    return loaders


def steps_of(loaders, n_steps=None):
    """[the keys of all ranks' samples for each step], after at most n steps."""
    steps = []
    iterators = [iter(loader) for loader in loaders]
    while n_steps is None or len(steps) < n_steps:
        batches = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in batches):
            break
        steps.append([
            key for batch in batches if batch is not None for key in killed.sample_keys(*batch)
        ])
    states = [loader.state_dict() for loader in loaders]
    return steps, states


SEEDABLE = {"use_seedable_sampler": True, "data_seed": 5}


@pytest.mark.parametrize("configuration", [
    SEEDABLE, {**SEEDABLE, "even_batches": False}, {**SEEDABLE, "split_batches": True}, {},
])
def test_4_1_3_2_ranks(train_set, configuration):
    """Every sample comes once, with the pixels of an unbroken run, and any rank's state serves."""
    whole = steps_of(shards(train_set, 1, 24, configuration))[0]
    got, state = [], None
    for i, (n_ranks, n_steps) in enumerate([(4, 1), (1, 2), (3, 1), (2, None)]):
        size = 2
        if "split_batches" in configuration:
            size = 4 if n_ranks == 4 else 6
        loaders = shards(train_set, n_ranks, size, configuration)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(json.loads(json.dumps(state)))
        steps, states = steps_of(loaders, n_steps)
        got += [key for step in steps for key in step]
        state = states[i % n_ranks]
        assert all(loader.base_dataloader.stats().path == "native" for loader in loaders)
    assert len(got) <= frameworks.N_IMAGES + 2 * 6
    assert sorted(map(tuple, got[: frameworks.N_IMAGES])) == sorted(map(tuple, whole[0]))
    assert all(key in whole[0] for key in got)


@pytest.mark.parametrize("seed", range(10))
def test_random_plans(train_set, seed):
    """The global batches are those of an unbroken run where ranks times batch size stays."""
    picks = random.Random(seed)
    whole = steps_of(shards(train_set, 1, 6, SEEDABLE))[0]
    got, state = [], None
    while len(got) < len(whole):
        n_ranks = picks.choice([1, 2, 3, 6])
        loaders = shards(train_set, n_ranks, 6 // n_ranks, SEEDABLE)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        steps, states = steps_of(loaders, picks.randrange(1, 3))
        got += steps
        state = picks.choice(states)
    assert list(map(sorted, got)) == list(map(sorted, whole))
    # The next epoch, too.
    loaders = shards(train_set, 2, 3, SEEDABLE)
    for loader in loaders:
        loader.load_state_dict(state)
    unbroken = shards(train_set, 1, 6, SEEDABLE)
    steps_of(unbroken)
    assert list(map(sorted, steps_of(loaders)[0])) == list(map(sorted, steps_of(unbroken)[0]))


@pytest.mark.parametrize("make", [
    SequentialSampler,
    lambda dataset: SubsetRandomSampler(range(20), torch.Generator().manual_seed(2)),
    lambda dataset: WeightedRandomSampler(
        [1.0] * 24, 18, replacement=False, generator=torch.Generator().manual_seed(2)
    ),
])
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_samplers(train_set, make, drop_last):
    def loaders_of(n_ranks, batch_size):
        return shards(
            train_set, n_ranks, batch_size, {"even_batches": False}, make, drop_last=drop_last
        )

    whole = [key for step in steps_of(loaders_of(1, 2))[0] for key in step]
    first = loaders_of(2, 2)
    got, states = steps_of(first, 2)
    second = loaders_of(1, 4)
    second[0].load_state_dict(states[1])
    got += steps_of(second, 1)[0]
    third = loaders_of(3, 1)
    for loader in third:
        loader.load_state_dict(second[0].state_dict())
    got += steps_of(third)[0]
    got = [key for step in got for key in step]
    n = len(got)
    assert got == whole[:n] and n >= len(whole) - 2 * drop_last


def test_what_can_not_be_dealt_again_is_refused(train_set):
    _, (state, _) = steps_of(shards(train_set, 2, 2, SEEDABLE), 2)
    other = {**SEEDABLE, "data_seed": 6}
    with pytest.raises(ValueError, match="data_seed=5.*data_seed=6"):
        shards(train_set, 3, 2, other)[0].load_state_dict(state)
    with pytest.raises(ValueError, match="without seed= the draws are those of each"):
        unseeded = shards(train_set, 2, 2, SEEDABLE, seed=None)
        _, (state, _) = steps_of(unseeded, 1)
        shards(train_set, 3, 2, SEEDABLE, seed=None)[0].load_state_dict(state)
