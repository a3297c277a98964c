"""The configuration of the documentation site, which `make docs` builds.

Every page is Markdown that reads well on a Git host, too, so pages contain no Sphinx directives. On the site,
``_site`` replaces each comment such as ``<!-- site: menu -->`` with generated content.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "gradwire"
html_title = "gradwire"
html_show_copyright = False
html_show_sphinx = False

extensions = [
    "myst_parser",  # the pages are Markdown
    "sphinx.ext.autodoc",  # what Python offers is described by its docstrings
    "sphinx.ext.napoleon",  # which have NumPy's sections
    "sphinx_design",  # the cards of the front page
    "sphinx_copybutton",  # code is there to be copied
    "written",  # _site/written.py: the menu, and the references that the code itself gives
]
root_doc = "index"
exclude_patterns = ["README.md", "_site"]
nitpicky = True  # a name that leads nowhere is an error
nitpick_ignore_regex = [
    (r"py:.*", r".*"),  # types in signatures: torch's, whose pages are on another host, and internal ones
]

myst_heading_anchors = 4  # the same anchors as on a Git host
myst_enable_extensions = ["colon_fence"]  # for the front page

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": False}
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
