"""The eight orientations of an image, numbered as in EXIF's tag Orientation, and how they combine.
"""

from __future__ import annotations

UPRIGHT = 1

Rect = tuple[int, int, int, int]  # left, top, width, height

# Pillow's Image.Transpose, by number: what it does, as an orientation.
OF_TRANSPOSE = {0: 2, 1: 4, 2: 8, 3: 3, 4: 6, 5: 5, 6: 7}


def swaps(orientation: int) -> bool:
    """Whether width and height change places."""
    return orientation >= 5


def turned_size(orientation: int, width: int, height: int) -> tuple[int, int]:
    """Width and height of an image of ``width`` x ``height`` after it is turned."""
    return (height, width) if swaps(orientation) else (width, height)


def stored_rect(orientation: int, rect: Rect, width: int, height: int) -> Rect:
    """The part of a stored image of this size that ``rect`` shows of it once it is turned."""
    left, top, n_columns, n_rows = rect
    if swaps(orientation):
        left, top, n_columns, n_rows = top, left, n_rows, n_columns
    if orientation in (2, 3, 7, 8):
        left = width - left - n_columns
    if orientation in (3, 4, 6, 7):
        top = height - top - n_rows
    return left, top, n_columns, n_rows


def _place(orientation: int, x: int, y: int) -> tuple[int, int]:
    """Where the corner (x, y) of a square goes; corners have the coordinates -1 and 1."""
    if orientation in (2, 3, 7, 8):
        x = -x
    if orientation in (3, 4, 6, 7):
        y = -y
    return (y, x) if swaps(orientation) else (x, y)


def _compose(first: int, second: int) -> int:
    corners = ((-1, -1), (1, -1))
    wanted = [_place(second, *_place(first, *corner)) for corner in corners]
    return next(o for o in range(1, 9) if [_place(o, *corner) for corner in corners] == wanted)


# COMPOSED[first][second]: both in turn, as one orientation. Index 0 is not used.
COMPOSED = tuple(
    tuple(_compose(first, second) if first and second else 0 for second in range(9))
    for first in range(9)
)
