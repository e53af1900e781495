"""Figures for dark pages: pictures keep their colours, and so does text that lies on them."""

from __future__ import annotations

import io
import re

import matplotlib.pyplot as plt
import numpy as np
from dark_figures import IMAGE, dark, turned


def figure_with_picture() -> str:
    """Return a figure with a picture, black text on the picture and beside it, and a coloured line."""
    figure, axis = plt.subplots(figsize=(3, 3))
    axis.imshow(np.array([[0.0, 1.0]]), extent=(0, 2, 0, 1))
    axis.text(1.0, 0.5, "on the picture")
    axis.text(0.0, -0.9, "below it", color="#d55e00")
    axis.plot([0, 2], [1.5, 1.5], color="#0072b2")
    axis.set(xlim=(0, 2), ylim=(-1, 2), title="a title\nits second line")
    target = io.StringIO()
    figure.savefig(target, format="svg")
    plt.close(figure)
    return target.getvalue()


def fill_of(svg: str, words: str) -> str:
    found = re.search(rf"<!-- {words} -->\s*<g style=\"fill: ([^\";]+)", svg)
    assert found, words
    return found[1]


def test_the_ground_and_the_lines_change_and_pictures_and_text_on_them_stay() -> None:
    light = figure_with_picture()
    after = dark(light)
    assert fill_of(after, "on the picture") == "#000000"
    assert fill_of(after, "a title") == turned("#000000")
    assert fill_of(after, "its second line") == turned("#000000")
    assert fill_of(after, "below it") == turned("#d55e00")
    assert IMAGE.search(light)
    for colour in ("#ffffff", "#0072b2"):
        assert f": {colour}" in light
        assert f": {colour}" not in after
        assert f": {turned(colour)}" in after
    pictures = [re.findall(r"base64,([^\"]*)", text) for text in (light, after)]
    assert pictures[0] == pictures[1] != []
