"""Sphinx extension: with a repository in ``_config.yml``, pages link to their sources and launch on Binder.

One line configures both, ``repository: {url: https://github.com/OWNER/NAME, branch: main}``. Without an
address there is no button: nothing would be behind it.
"""

from __future__ import annotations

from sphinx.application import Sphinx
from sphinx.config import Config

BUTTONS = ("use_repository_button", "use_source_button", "use_issues_button")
BINDER = "https://mybinder.org"


def add_buttons(app: Sphinx | None, config: Config) -> None:
    """Turn the theme's buttons on where they have a target; an event handler of ``config-inited``."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options.update(dict.fromkeys(BUTTONS, True))
        launch = options.get("launch_buttons", {})
        options["launch_buttons"] = {**launch, "binderhub_url": BINDER, "notebook_interface": "jupyterlab"}


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", add_buttons)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
