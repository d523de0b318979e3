"""Turns one of feedmill's C headers into Markdown: comments become text, declarations code.

A header consists of blocks that empty lines separate. Comments such as `/* ---- status ---- */`
name its sections. A comment on lines of its own belongs to the declarations below it, up to the
next empty line outside of braces.
"""

import re

_TITLE = re.compile(r"/\* -{4} (.+?) -+ \*/")
# Lines that are left out: include guards, lines for C++ compilers, and includes.
_GUARDS = re.compile(
    r"^#(ifndef|define) FEEDMILL_\w+_H\n|^#ifdef __cplusplus\n(extern \"C\" \{|\})\n#endif\n"
    r"|^#endif\n\Z|^#include .*\n",
    re.MULTILINE,
)
# The name of a declaration: a type, a function or a macro.
_NAMES = (
    re.compile(r"^typedef (?:enum|struct) (\w+)", re.MULTILINE),
    re.compile(r"^FM_API (?:FM_CHECK_RESULT )?[^(]*?\b(fm_\w+)\(", re.MULTILINE),
    re.compile(r"^#define (\w+)", re.MULTILINE),
)


def as_markdown(header: str) -> str:
    """The header as sections (##), if it has any, and declarations one level below."""
    lines = _GUARDS.sub("", header).splitlines()
    level = "###" if _TITLE.search(header) else "##"
    parts: list[str] = []
    seen: set[str] = set()
    for comment, code in _blocks(lines):
        if title := _TITLE.fullmatch(comment):
            parts.append(f"## {title[1].capitalize()}")
            comment = ""
        name = _name_of(code)
        if name and name not in seen:
            seen.add(name)
            parts.append(f"{level} `{name}`")
        if comment:
            parts.append(_text_of(comment))
        if code:
            parts.append(f"```c\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def _blocks(lines: list[str]) -> list[tuple[str, str]]:
    """(comment, declarations) in order; either may be empty."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        comment, at = _comment_at(lines, at)
        code, at = ("", at) if _TITLE.fullmatch(comment) else _code_at(lines, at)
        found.append((comment, code))
    return found


def _comment_at(lines: list[str], at: int) -> tuple[str, int]:
    """The comment that begins at a line ("" if there is none), and the index after it."""
    if not lines[at].startswith("/*"):
        return "", at
    end = at
    while "*/" not in lines[end]:
        end += 1
    return "\n".join(lines[at : end + 1]), end + 1


def _code_at(lines: list[str], at: int) -> tuple[str, int]:
    """Declarations up to the next empty line or comment outside of braces, and the index after."""
    begin, depth = at, 0
    while at < len(lines):
        is_outside = depth == 0 and not (at > begin and lines[at - 1].endswith("\\"))
        if is_outside and (not lines[at].strip() or lines[at].startswith("/*")):
            break
        bare = re.sub(r"/\*.*?\*/|\".*?\"", "", lines[at])
        depth += bare.count("{") - bare.count("}")
        at += 1
    return "\n".join(lines[begin:at]).rstrip(), at


def _name_of(code: str) -> str:
    return next((found[1] for name in _NAMES if (found := name.search(code))), "")


def _text_of(comment: str) -> str:
    """A comment as Markdown. Indented lines become code blocks."""
    text = re.sub(r"^/\*+ ?|\s*\*/$", "", comment)
    lines = [re.sub(r"^ ?\*? ?", "", line, count=1) for line in text.splitlines()]
    out = []
    for line in lines:
        is_code = line.startswith("    ")
        if is_code and out and out[-1] and not out[-1].startswith("    "):
            out.append("")
        elif not is_code and out and out[-1].startswith("    ") and line:
            out.append("")
        out.append(line if is_code else _escaped(line))
    return "\n".join(out).strip("\n")


def _escaped(line: str) -> str:
    """A line in which all markup but `code` is escaped."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        one if i % 2 else re.sub(r"([*<>\[\]_`])", r"\\\1", one) for i, one in enumerate(parts)
    )
