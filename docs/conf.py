"""Sphinx settings of the documentation site; `make docs` builds it. Nothing on a page is loaded from the network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import elegantrl  # noqa: E402  only after the path of this clone is known

project = "elegantrl"
author = "the elegantrl authors"
version = release = elegantrl.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "named_tuples", "tables"]
exclude_patterns = ["_build", "_ext", "figures/*.py"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
maximum_signature_line_length = 100

smartquotes_action = "qe"  # quotes and ellipses; the two dashes of an option stay as they are
html_domain_indices = False  # nearly everything is documented under the name of the package

html_theme = "furo"
html_title = f"elegantrl {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
highlight_language = "text"  # of blocks that name none
pygments_style = "friendly"
pygments_dark_style = "monokai"


def list_new_pages(app: Any, docname: str, source: list[str]) -> None:
    """Replace each pattern in the lists of the front page by the pages that it matches and that no other line names."""
    if docname != "index":
        return
    lines = source[0].splitlines()
    named, listed = {"index", *lines}, []
    for line in lines:
        found = [line]
        if re.fullmatch(r"[\w/]*\*", line):
            pages = sorted(str(path.relative_to(HERE).with_suffix("")) for path in HERE.glob(f"{line}.md"))
            found = [page for page in pages if page not in named]
            named.update(found)
        listed += found
    source[0] = "\n".join(listed) + "\n"


def setup(app: Any) -> None:
    app.connect("source-read", list_new_pages)
