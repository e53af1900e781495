"""What a registry refuses: a name that cannot name a folder, one that is taken, and what is no such class."""

import pytest

from nclib import label_noise, methods, models
from nclib.common.registry import Registry


class Made:
    """A class of no registry."""


@pytest.mark.parametrize("name", ["my method", "a/b", "", "1st"])
def test_a_name_that_cannot_name_a_folder(name):
    with pytest.raises(ValueError, match="letters, digits and underscores only"):
        Registry("thing").register(name, summary="")(Made)


@pytest.mark.parametrize(
    ("package", "allowed"),
    [(methods, "Method"), (label_noise, "DeepMethod or Projector"), (models, "Matcher")],
)
@pytest.mark.parametrize("other", [Made, lambda **sizes: None])
def test_another_class_is_refused(package, allowed, other):
    with pytest.raises(TypeError, match=f"'mine': must be a subclass of {allowed}, got "):
        package.register("mine", summary="")(other)
    assert "mine" not in package.available()


def test_a_reloaded_class_replaces_the_old_one_and_another_does_not():
    registry = Registry("thing")
    old, new, other = (type(name, (), {"__module__": "stalem"}) for name in ("A", "A", "B"))
    registry.register("a", summary="old", paper="None et al.")(old)
    assert registry.available()["a"] == "old (None et al.)"
    registry.register("a", summary="new")(new)
    assert registry["a"].factory is new
    assert registry.settings("a", "f30k") == {}
    with pytest.raises(ValueError, match=r"'a' is registered twice: by stalem\.A and by stalem\.B"):
        registry.register("a", summary="")(other)
    registry.register("f", summary="")(lambda: 1)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("f", summary="")(lambda: 2)
