"""Sphinx's settings of the documentation site, which ``docs/website/build.py`` builds: `make docs`.

No page loads anything from a network, neither while it is built nor while it is read: no fonts, no MathJax, no index of
another site.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "website")]

import figures  # noqa: E402
from docstrings import as_rst, skips  # noqa: E402

from rlhfless import __version__  # noqa: E402

project = "RLHFless"
author = "the authors of RLHFless"
copyright = "the authors of RLHFless"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["data/**"]
nb_execution_mode = "off"  # notebooks come with their outputs: docs/website/outputs.py
nb_ipywidgets_js = {}  # would be loaded from a network
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
smartquotes = False  # would make one dash of the two before an option

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them, and docstrings name what they do not say
autodoc_preserve_defaults = True
add_module_names = False
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"  # shows all pages with captions beside the text, in light and dark, and brings its fonts and scripts along
html_title = f"RLHFless {release}"
html_static_path = [str(HERE / "website" / "static")]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def _draw_figures(app, page, template, context, doctree):
    """Pack the figures of a page, and add the script that draws them."""
    if context.get("body"):
        context["body"] = figures.collect(context["body"], context["pathto"]("_static", resource=True))


def _level_captions(app, page, template, context, doctree):
    """Give the captions of the navigation, which are headings, a level."""
    tree = context.get("furo_navigation_tree")
    if tree:
        context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def _write_scripts(app, error):
    if error is None:
        figures.write_scripts(Path(app.outdir, "_static"))


def setup(app):
    """Connect what this site adds to Sphinx."""
    app.connect("html-page-context", _draw_figures)
    app.connect("html-page-context", _level_captions, priority=900)  # after the theme has made it
    app.connect("build-finished", _write_scripts)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon reads its sections
    app.connect("autodoc-skip-member", skips)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
