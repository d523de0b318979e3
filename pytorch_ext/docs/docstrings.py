"""Turns the package's docstrings into reStructuredText, for autodoc.

Docstrings are plain text with a few rules: sections such as ``Args:`` with indented items
``name: text``, lists that begin with "- ", examples as indented blocks after an empty line, and
``code`` in backticks. All other markup of docutils is escaped, so that no docstring can break the
build.
"""

import re

_SECTIONS = {
    "Args:": "Arguments",
    "Attributes:": "Attributes",
    "Raises:": "Raises",
    "Returns:": "Returns",
    "Yields:": "Yields",
}
_ITEM = re.compile(r"([\w, .*]+?):(?: (.*))?")
_CODE = re.compile(r"``.+?``|`[^`]+`")


def as_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring, without its indentation, as reStructuredText."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        if title := _SECTIONS.get(lines[at]):
            body, at = _indented(lines, at + 1)
            out += ["", f"**{title}**", "", *_section(body), ""]
        elif _begins_example(lines, at):
            body, at = _indented(lines, at)
            out += ["::", "", *("    " + line for line in body), ""]
        else:
            out.append(_escaped(lines[at]))
            at += 1
    return out


def _begins_example(lines: list[str], at: int) -> bool:
    """Whether an indented block begins at this line, after an empty line, and outside of a list."""
    if not lines[at].startswith("    ") or (at and lines[at - 1].strip()):
        return False
    before = next((line for line in reversed(lines[:at]) if line.strip()), "")
    return not before.startswith((" ", "- "))


def _indented(lines: list[str], at: int) -> tuple[list[str], int]:
    """The indented lines from `at` on, unindented, and the index of the line after them."""
    end = at
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
        end += 1
    return [line[4:] for line in lines[at:end]], end


def _section(body: list[str]) -> list[str]:
    """A section's items as a definition list. Text that is not an item is kept."""
    out: list[str] = []
    names_before = ""
    for line in body:
        if not line.startswith(" ") and line.endswith(","):  # names on several lines
            names_before += line + " "
            continue
        line, names_before = names_before + line, ""
        item = None if line.startswith((" ", "- ")) else _ITEM.fullmatch(line)
        if item is None:
            is_behind_item = out and out[-1].startswith(" ") and line and not line.startswith(" ")
            out += ["", _escaped(line)] if is_behind_item else [_escaped(line)]
        else:
            names = ", ".join(f"``{name.strip()}``" for name in item[1].split(","))
            out += ["", names, "    " + _escaped(item[2] or "")]
    return out


def _escaped(line: str) -> str:
    """A line with its code marked as code, and all other markup escaped."""
    parts, end = [], 0
    for code in _CODE.finditer(line):
        parts += [_escaped_text(line[end : code.start()]), f"``{code[0].strip('`')}``"]
        end = code.end()
    return "".join([*parts, _escaped_text(line[end:])])


def _escaped_text(text: str) -> str:
    return re.sub(r"([*|`]|\b_\b|_(?=\W|$))", r"\\\1", text)
