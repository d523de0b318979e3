"""Makes torchvision's image decoders work beside a CPU build of torch.

torchvision's wheels are built for CUDA builds of torch, whose libraries its compiled decoders are
linked to, also those that need no GPU. A stub with the names of their functions is enough for these.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile

import pytest
import torch
import torchvision

_LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so")
_FUNCTIONS = """
_ZN3c104cuda12device_countEv _ZN3c104cuda14ExchangeDeviceEa _ZN3c104cuda14MaybeSetDeviceEa
_ZN3c104cuda14current_deviceEv _ZN3c104cuda17getStreamFromPoolEba _ZN3c104cuda17getStreamFromPoolEia
_ZN3c104cuda20CUDACachingAllocator9allocatorE _ZN3c104cuda20getCurrentCUDAStreamEa
_ZN3c104cuda20getDefaultCUDAStreamEa _ZN3c104cuda20setCurrentCUDAStreamENS0_10CUDAStreamE
_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib
_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb _ZN3c104cuda9GetDeviceEPa
_ZN3c104cuda9SetDeviceEab _ZNK3c104cuda10CUDAStream11synchronizeEv
_ZNK3c104cuda10CUDAStream5queryEv _ZNK3c104cuda10CUDAStream6streamEv
""".split()


def load_stubs(libraries, functions):
    """Loads a stub of each library, for what is linked to these. Raises OSError or
    CalledProcessError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("they need a CUDA build of torch, or a compiler to make a stub of it")
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "stub.c")
        with open(source, "w") as file:
            file.writelines(f"void {one}(void) {{ __builtin_trap(); }}\n" for one in functions)
        for name in libraries:
            path = os.path.join(folder, name)
            subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", path, source],
                           check=True)
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


@functools.cache
def why_not():
    """Loads the decoders. Returns the reason why they can't be used; "" if they can."""
    image = torchvision.io.image
    if image._has_image_ops():
        return ""
    try:
        load_stubs(_LIBRARIES, _FUNCTIONS)
        torch.ops.load_library(os.path.join(os.path.dirname(torchvision.__file__), "image.so"))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"torchvision's decoders can't be loaded: {error}"
    image._has_image_ops = lambda: True
    return ""


def need():
    """Skips a file of tests where torchvision's decoders can't be used."""
    if reason := why_not():
        pytest.skip(reason, allow_module_level=True)
