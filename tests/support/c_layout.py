"""Checks that ctypes.Structures have the layout of the C structs they stand for."""

import ctypes
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(structures, headers):
    """Raises RuntimeError, with the C compiler's messages, for a size or an offset that differs.

    `structures` maps names of C types to ctypes.Structure classes, `headers` are as in #include.
    """
    lines = ["#include <stddef.h>", *(f'#include "{header}"' for header in headers)]
    for name, structure in structures.items():
        n_bytes = ctypes.sizeof(structure)
        lines.append(f'_Static_assert(sizeof({name}) == {n_bytes}, "size of {name}");')
        for field, *_ in structure._fields_:
            offset = getattr(structure, field).offset
            lines.append(
                f"_Static_assert(offsetof({name}, {field}) == {offset}, "
                f'"offset of {name}.{field}");'
            )
    done = subprocess.run(
        [os.environ.get("CC", "cc"), "-std=c17", f"-I{ROOT / 'include'}", f"-I{ROOT / 'loader'}"]
        + ["-fsyntax-only", "-x", "c", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"a ctypes.Structure differs from its C struct:\n{done.stderr}")
