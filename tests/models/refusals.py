"""What a refusal must say: one line that names the parameter and what is allowed, in whatever words."""

from collections.abc import Callable
from typing import Any

import pytest


def refused(error: type[Exception], call: Callable[[], Any], *named: str) -> None:
    """Ask for an error of this type, in one line that holds all of ``named``."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in named if word not in message] == [], message
