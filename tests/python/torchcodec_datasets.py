"""Datasets that open images by torchcodec; and imports it beside a CPU build of torch, as
torchvision_io does for torchvision: its wheels are built for CUDA builds, too."""

import importlib.util
import subprocess

import pytest
import torchvision_io
from torch.utils.data import Dataset

if importlib.util.find_spec("torchcodec") is None:
    pytest.skip("torchcodec is not installed", allow_module_level=True)
try:
    import torchcodec.decoders
except (ImportError, OSError, RuntimeError):
    try:
        torchvision_io.load_stubs(("libc10_cuda.so", "libtorch_cuda.so", "libnvrtc.so.13"),
                                  ("aoti_torch_get_current_cuda_stream",))
        import torchcodec.decoders
    except (ImportError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"torchcodec can't be imported: {error}", allow_module_level=True)

decode_image = getattr(torchcodec.decoders, "decode_image", None)
decode_jpeg = getattr(torchcodec.decoders, "decode_jpeg", None)
if decode_image is None:
    pytest.skip("this torchcodec decodes no images", allow_module_level=True)


class Files(Dataset):
    def __init__(self, paths, transform):
        self.paths = [str(path) for path in paths]
        self.labels = list(range(len(self.paths)))
        self.transform = transform

    def __len__(self):
        return len(self.paths)


class Decodes(Files):
    def __getitem__(self, index):
        return self.transform(decode_image(self.paths[index])), self.labels[index]


class DecodesJpegs(Files):
    def __getitem__(self, index):
        image = torchcodec.decoders.decode_jpeg(source=self.paths[index], mode="rgb")
        return {"image": self.transform(image), "label": self.labels[index]}
