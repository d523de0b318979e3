"""timm's own loader, in a script that does not import feedmill."""

import frameworks
import pytest

frameworks.need("timm")

# The arguments that the script passes to create_loader(), by name.
TRAINING = {"is_training": True}
VARIANTS = {
    "training": TRAINING,
    "erasing": {**TRAINING, "re_prob": 0.5, "re_mode": "pixel"},  # by the prefetcher
    "no prefetcher": {**TRAINING, "use_prefetcher": False, "re_prob": 0.5},
    "auto augment": {**TRAINING, "auto_augment": "rand-m5-inc1"},
    "mixed": {**TRAINING, "auto_augment": "augmix-m3"},
    "one iterator": {**TRAINING, "use_multi_epochs_loader": True},
    "evaluation": {"is_training": False},
    # A tar file of the same images.
    "tar": TRAINING,
    "tar, no prefetcher": {**TRAINING, "use_prefetcher": False},
    "tar, evaluation": {"is_training": False},
    # These get torchvision's dataset and transforms.
    "torchvision's": {**TRAINING, "use_prefetcher": False},
    "torchvision's, one iterator": {
        **TRAINING, "use_prefetcher": False, "use_multi_epochs_loader": True
    },
}
ON_TORCHS_PATH = ("mixed",)

SCRIPT = """
import tarfile, timm, timm.data
import test_timm
from torchvision.datasets import ImageFolder

def train(loader, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        epoch = []
        for images, targets in loader:
            assert images.dtype == torch.float32
            assert tuple(images.shape) == (4, 3, frameworks.SIZE, frameworks.SIZE)
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch += targets.tolist()
        assert torch.isfinite(loss)
        yield epoch

torch.set_num_threads(1)  # leaves the cores to the workers
with tarfile.open(sys.argv[2], "w") as tar:
    tar.add(sys.argv[1], "")
model = timm.create_model("test_resnet", num_classes=3)
for name, options in test_timm.VARIANTS.items():
    of_torchvision = name.startswith("torchvision's")
    if of_torchvision:
        dataset = ImageFolder(sys.argv[1])
    else:
        dataset = timm.data.create_dataset("", sys.argv[2 if name.startswith("tar") else 1])
    loader = timm.data.create_loader(
        dataset, input_size=frameworks.SIZE, batch_size=4, num_workers=2,
        persistent_workers=False, device=torch.device("cpu"), **options,
    )
    inner = getattr(loader, "loader", loader)
    if of_torchvision:
        dataset.transform = frameworks.train_set(sys.argv[1]).transform
    tell(inner, name=name, epochs=list(train(loader, model)))
"""


@pytest.fixture(scope="module")
def told(images, tmp_path_factory):
    """The script's results for each variant, by name."""
    root = tmp_path_factory.mktemp("timm")
    results = frameworks.run_unchanged(root, SCRIPT, images, root / "images.tar")
    return {one["name"]: one for one in results}


@pytest.mark.parametrize("name", VARIANTS)
def test_create_loader(told, name):
    n_each = frameworks.N_IMAGES // 3
    for targets in told[name]["epochs"]:
        assert sorted(targets) == n_each * [0] + n_each * [1] + n_each * [2]
    if name not in ON_TORCHS_PATH:
        assert (told[name]["path"], told[name]["torch_batches"]) == ("native", 0)
        assert told[name]["native_samples"] >= 2 * frameworks.N_IMAGES
        return
    # The others mean torch's path, and each reason is listed.
    assert (told[name]["path"], told[name]["torch_batches"]) == ("torch", 12)
    assert told[name]["host_wait_ns"] > 0
    for reason in told[name]["reasons"]:
        assert reason in told[name]["explanation"]
    assert any("timm.data" in reason for reason in told[name]["reasons"])
