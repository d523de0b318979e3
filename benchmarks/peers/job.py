"""The job that every loader does, as plain data that is sent between processes as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True)
class Job:
    """One epoch over a folder.

    folder: an ImageFolder.
    kind: "train" (RandomResizedCrop, flip) or "eval" (Resize(256), CenterCrop); both normalize.
    n_samples: samples in an epoch, a multiple of batch_size. The folder's list is repeated and
        truncated to it.
    workers: threads or processes that decode.
    n_checked: files whose pixels are compared.
    scratch: folder for data in a loader's own format.
    """

    folder: str
    scratch: str
    n_samples: int
    kind: str = "train"
    batch_size: int = 64
    workers: int = 2
    n_checked: int = 64
    size: int = 224

    def files(self) -> list[tuple[str, int]]:
        """Path and label of each file of the folder, once, in ImageFolder's order."""
        root = pathlib.Path(self.folder)
        classes = sorted(p for p in root.iterdir() if p.is_dir())
        kinds = {".jpg", ".jpeg"}
        return [
            (str(path), label)
            for label, folder in enumerate(classes)
            for path in sorted(folder.rglob("*"))
            if path.suffix.lower() in kinds
        ]

    def samples(self) -> list[tuple[str, int]]:
        """Path and label of each sample of an epoch."""
        files = self.files()
        return (files * -(-self.n_samples // len(files)))[: self.n_samples]

    def checked(self) -> list[tuple[str, int]]:
        """The files whose pixels are compared, evenly chosen from the folder."""
        files = self.files()
        return files[:: max(1, len(files) // self.n_checked)][: self.n_checked]

    def scratch_file(self, name: str, samples: list[tuple[str, int]]) -> pathlib.Path:
        """A path for data made of these samples; other samples get another path."""
        key = hashlib.sha256(json.dumps(samples).encode()).hexdigest()[:12]
        folder = pathlib.Path(self.scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{key}-{name}"
