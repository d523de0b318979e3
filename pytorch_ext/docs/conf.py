"""Configuration of the documentation, which `make docs` builds."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# So that the two modules below are found. The package is the installed one: see `make setup`.
sys.path.insert(0, str(HERE))

import docstrings  # noqa: E402
import headers  # noqa: E402

project = "feedmill"
author = copyright = "the feedmill authors"
version = release = re.search(
    r'FM_VERSION_STRING "([^"]+)"', (ROOT / "include/feedmill/version.h").read_text()
)[1]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"feedmill {version}"
html_show_sourcelink = False
# Keeps straight quotation marks.
smartquotes = False

# ---- Markdown ------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# ---- Python --------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
# Links are checked where they name something public of feedmill's. The signatures name much else:
# there is nothing here that it could link to.
nitpick_ignore_regex = [("py:.*", r"(?!feedmill\.(data\.)?\w+$).*")]
# Examples in docstrings are indented blocks of Python.
highlight_language = "python"


def setup(app):
    app.connect("source-read", insert_headers)
    app.connect("autodoc-process-docstring", convert_docstring)


def insert_headers(app, docname, source):
    """Pages of the C API: the text of a header stands where a page says `{{ header NAME }}`."""

    def text_of(match):
        path = ROOT / "include/feedmill" / match[1]
        app.env.note_dependency(str(path))
        return headers.as_markdown(path.read_text())

    source[0] = re.sub(r"^\{\{ header (\S+) \}\}$", text_of, source[0], flags=re.MULTILINE)


def convert_docstring(app, what, name, obj, options, lines):
    lines[:] = docstrings.as_rst(lines)
