"""Functions of other libraries than Pillow that load image files, as a dataset's way to open
them. Those files of which they are known to give the native decoder's pixels are decoded natively;
all other files are loaded by the function itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What a dataset's transform is given; see transforms.read_transform().
GIVEN_RGB, GIVEN_ANY, GIVEN_TENSOR = "RGB", "any mode", "tensor"
GIVEN_ARRAY, GIVEN_REVERSED = "array", "reversed array"

JPEG_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")


class NoImageError(Exception):
    """A loader returned None in place of an image. What the dataset does then is not known: it may
    raise an error of its own."""


class FileLoader:
    """path -> the image that the dataset's calls give. Raises what they raise, or NoImageError.
    Equal calls are one object.

    Attributes:
        given: what the dataset's transform is given: one of the values above.
        rejects: images that only the loader can load, as fm_config.rejected_formats.
        turns: it may turn images as their metadata says.
    """

    given: str
    rejects: int
    turns = False

    def __call__(self, path: Any) -> Any:
        raise NotImplementedError

    def reasons_against(self, paths: Sequence[str]) -> list[str]:
        """Reasons why most of a dataset's files can't be decoded natively.

        Args:
            paths: of some of the files.
        """
        if reason := self._why_not():
            return [reason]
        n_jpegs = sum(map(is_jpeg, paths))
        if 2 * n_jpegs >= len(paths):
            return []
        return [
            f"most files are no JPEGs by name ({n_jpegs} of {len(paths)} sampled files are); of "
            f"those that {self} reads, only JPEGs are decoded natively"
        ]

    def may_differ(self, paths: Sequence[str]) -> bool:
        """Whether images may have other shapes and types than those of color JPEGs.

        Args:
            paths: of some of the files.
        """
        raise NotImplementedError

    def why_no_path(self, path: Any) -> str:
        """Why the loader does not load a path that is str, bytes or os.PathLike; "" if it does."""
        raise NotImplementedError

    def _why_not(self) -> str:
        """Why no file can be decoded natively; "" if some can."""
        raise NotImplementedError


def is_jpeg(path: str) -> bool:
    """Whether a file is a JPEG by its name."""
    return path.lower().endswith(JPEG_SUFFIXES)
