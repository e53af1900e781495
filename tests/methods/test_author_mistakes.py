"""An author's mistake in a method is told in one line, when the class is registered or at the first step."""

from dataclasses import dataclass

import pytest
import torch

import nclib
from nclib import label_noise, losses, methods
from nclib.common.options import make
from nclib.common.registry import Registry
from nclib.data import planted
from nclib.label_noise.base import METHODS as LABEL_METHODS
from nclib.methods import Method, Steps, option
from nclib.methods.base import METHODS
from nclib.models import build
from nclib.noise import Mismatch
from nclib.runs.loop import Place
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.options import PairSchedule
from nclib.runs.pair_trainer import PairTrainer


@dataclass(frozen=True)
class Tau:
    tau: float = option(0.05, above=0, help="temperature")


class Good(Method):
    Options = Tau

    def warmup_step(self, loop, batch):
        return {"loss": losses.info_nce(loop.similarity(batch), self.options.tau).mean()}

    def begin_epoch(self, loop):
        return loop.batches(purpose="pairs")

    step = warmup_step


@pytest.fixture(autouse=True)
def registries():
    """Take out what a test registered."""
    before = [(r, set(r)) for r in (METHODS, LABEL_METHODS)]
    yield
    for registry, names in before:
        for name in set(registry) - names:
            registry.remove(name)


def refused(cls, error=TypeError, package=methods, name="mine"):
    with pytest.raises(error) as caught:
        package.register(name, summary="for a test")(cls)
    message = str(caught.value)
    assert "\n" not in message
    assert name not in package.available() or name in ("ncr", "mrl")
    return message


# ---------------------------------------------------------------------------------------- at registration


def test_a_complete_class_is_registered():
    methods.register("mine", summary="for a test", paper="None et al.")(Good)
    assert methods.available()["mine"] == "for a test (None et al.)"
    assert methods.options("mine") is Tau
    assert methods.build("mine", tau=1).options.tau == 1.0
    assert methods.settings("mine", "f30k") == {}


@dataclass(frozen=True)
class Raw:
    tau: float = 0.05


@dataclass(frozen=True)
class Wild:
    tau: float = option(0.0, above=0)


@dataclass
class Thawed:
    tau: float = option(0.05)


class Undecorated(Tau):  # its new field would be lost
    margin: float = option(0.2)


def opted(options):
    return type("Opted", (Good,), {"Options": options})


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (type("Empty", (Method,), {}), "class Empty lacks begin_epoch, step, warmup_step"),
        (type("Short", (Good,), {"step": Method.step}), "class Short lacks step"),
        (opted(None), "Options must be a class with @dataclass(frozen=True), got None"),
        (opted({"tau": 0.05}), "Options must be a class with @dataclass(frozen=True), got {'tau': 0.05}"),
        (opted(Thawed), f"Options must be a class with @dataclass(frozen=True), got {Thawed}"),
        (opted(Undecorated), f"Options must be a class with @dataclass(frozen=True), got {Undecorated}"),
        (opted(Raw), "Raw.tau, default 0.05: must be declared by option(default, help=...)"),
        (opted(Wild), "Wild.tau, default 0.0: must be a number, above 0"),
        (dict, "register decorates a subclass of Method, got <class 'dict'>"),
    ],
)
def test_what_is_no_method_is_refused(cls, said):
    assert refused(cls) == f"method 'mine': {said}"


@pytest.mark.parametrize(
    ("name", "wrong", "taken", "wanted"),
    [
        ("load_state", lambda self, state: None, "(self, state)", "(self, loop, state)"),
        ("state", lambda self, loop: {}, "(self, loop)", "(self)"),
        ("__init__", lambda self: None, "(self)", "(self, options)"),
        ("begin_epoch", lambda self: None, "(self)", "(self, loop)"),
        ("step", lambda self, batch: None, "(self, batch)", "(self, loop, batch)"),
        ("end_epoch", lambda self: None, "(self)", "(self, loop)"),
        ("diagnostics", lambda self, loop, truth: {}, "(self, loop, truth)", "(self, truth)"),
        ("prepare", lambda self: None, "(self)", "(self, network)"),
    ],
)
def test_a_method_that_does_not_take_what_the_loop_passes(name, wrong, taken, wanted):
    said = f"method 'mine': Mine.{name} takes {taken}; write def {name}{wanted}"
    assert refused(type("Mine", (Good,), {name: wrong})) == said


def test_other_names_and_more_arguments_with_defaults_are_taken():
    class Own(Good):
        def __init__(self, chosen: Tau, *, more: int = 0) -> None:
            super().__init__(chosen)

        @staticmethod
        def load_state(trainer, saved): ...

        def begin_epoch(self, *given):
            return given[0].batches(purpose="pairs")

    methods.register("mine", summary="for a test")(Own)
    assert methods.build("mine").options == Tau()
    assert "end_epoch is not a function; write def end_epoch(self, loop)" in refused(
        type("Mine", (Good,), {"end_epoch": 3}), name="other"
    )


def test_an_option_with_the_name_of_a_parameter_of_every_run():
    @dataclass(frozen=True)
    class Same:
        epochs: int = option(3, low=1)
        model_options: str = option("none")

    methods.register("mine", summary="for a test")(opted(Same))
    with pytest.raises(ValueError, match=r"its options epochs, model_options are parameters of every run"):
        nclib.run("mine", dataset="planted")


@pytest.mark.parametrize("name", ["my method", "a/b", "", "1st"])
def test_a_name_that_cannot_name_a_folder_and_a_file(name):
    assert "letters, digits and underscores only" in refused(Good, ValueError, name=name)


def test_a_name_that_is_taken():
    message = refused(Good, ValueError, name="ncr")
    assert message.startswith("method 'ncr' is registered twice: by nclib.methods.ncr.NCR and by ")
    assert message.endswith("test_author_mistakes.Good")


def test_a_reloaded_class_replaces_the_old_one_and_another_does_not():
    registry = Registry("thing")
    old, new, other = (type(name, (), {"__module__": "stalem"}) for name in ("A", "A", "B"))
    registry.register("a", summary="old")(old)
    registry.register("a", summary="new")(new)
    assert registry["a"].factory is new
    with pytest.raises(ValueError, match=r"registered twice: by stalem\.A and by stalem\.B"):
        registry.register("a", summary="")(other)
    registry.register("f", summary="")(lambda: 1)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("f", summary="")(lambda: 2)


def test_a_method_for_labels_is_checked_likewise():
    class Half(label_noise.DeepMethod):
        Options = Tau

    class Third(label_noise.Projector):
        Options = Tau

    assert refused(Half, package=label_noise) == "category method 'mine': class Half lacks step"
    assert "subclass of DeepMethod or Projector" in refused(Good, package=label_noise)
    found = refused(Third, package=label_noise)
    assert found.endswith("class Third lacks fit, load_state, project_images, project_texts, state")


# ------------------------------------------------------------------------------------- at the first step


def fit(tmp_path, cls, warmup_epochs=0, epochs=1):
    data = planted.planted(n_train=12, n_val=4, n_test=4)
    options = {"feature_dim": data.feature_dim, "vocab_size": data.vocabulary.size}
    torch.manual_seed(0)
    trainer = PairTrainer(
        cls(Tau()),
        [build("vse", n_regions=data.n_regions, embed_dim=8, word_dim=8, **options)],
        NoisyPairs(data.train, Mismatch.draw(data.train.image_of, 0.0, seed=0)),
        data.val,
        make(PairSchedule, {"batch_size": 6, "epochs": epochs, "warmup_epochs": warmup_epochs}),
        Place(0, torch.device("cpu"), tmp_path, {}),
    )
    trainer.fit(progress=False)
    return trainer.history[-1]


def told(tmp_path, error, warmup_epochs=0, **members):
    with pytest.raises(error) as caught:
        fit(tmp_path, type("Mine", (Good,), members), warmup_epochs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def loss_of(self, loop, batch):
    return losses.info_nce(loop.similarity(batch), self.options.tau)


def a_tensor(self, loop, batch):
    return loss_of(self, loop, batch).mean()


def nothing(self, loop, batch):
    {"loss": loss_of(self, loop, batch).mean()}


def no_term(self, loop, batch):
    return {}


def a_number(self, loop, batch):
    return {"loss": loss_of(self, loop, batch).mean().item()}


def unreduced(self, loop, batch):
    return {"loss": loss_of(self, loop, batch)}


def detached(self, loop, batch):
    return {"loss": loss_of(self, loop, batch).mean(), "shown": loss_of(self, loop, batch).mean().detach()}


def yields_unreduced(self, loop, batch):
    yield {"loss": loss_of(self, loop, batch)}


FAULTS = [
    (a_tensor, "Tensor ()"),
    (nothing, "NoneType None"),
    (no_term, "dict {}"),
    (a_number, "{'loss': 'float "),
    (unreduced, "{'loss': 'Tensor (6,)'}"),
    (detached, "{'loss': 'Tensor ()', 'shown': 'Tensor () without gradient'}"),
    (yields_unreduced, "{'loss': 'Tensor (6,)'}"),
]


@pytest.mark.parametrize(("step", "given"), FAULTS)
def test_a_step_that_gives_something_else(tmp_path, step, given):
    for how in ({"step": step}, {"warmup_step": step, "warmup_epochs": 1}):
        said = told(tmp_path, TypeError, **how)
        assert said.startswith(f"{step.__qualname__} gave {given}")
        assert "; it must give named scalar tensors with gradient, such as {'loss': loss.mean()}" in said


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (None, TypeError, "not iterable"),
        (iter([]), ValueError, "returned no steps for network 0 in all 1 epochs after warm-up"),
    ],
)
def test_an_epoch_without_steps(tmp_path, result, error, message):
    assert message in told(tmp_path, error, begin_epoch=lambda self, loop: result)


@pytest.mark.slow
def test_an_epoch_may_train_nothing_when_others_do(tmp_path):
    def begin_epoch(self, loop):
        return loop.batches(torch.arange(0 if loop.epoch else 12), purpose="none")

    with pytest.warns(UserWarning, match=r"no step was taken in epoch 2: .*begin_epoch returned no items"):
        row = fit(tmp_path, type("Mine", (Good,), {"begin_epoch": begin_epoch}), epochs=2)
    assert (row["phase"], row["steps"]) == ("training", 0)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda b: b, list, iter, lambda b: Steps(iter(b), len(b))])
def test_any_iterable_is_an_epoch(tmp_path, wrap):
    def begin_epoch(self, loop):
        return wrap(loop.batches(purpose="pairs"))

    row = fit(tmp_path, type("Mine", (Good,), {"begin_epoch": begin_epoch}))
    assert row["steps"] == 10


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (lambda S: S.diagonal().mean(), "Tensor () without gradient"),
        (lambda S: S.diagonal()[1:], "Tensor (5,) without gradient"),
        (lambda S: 1.0, "float 1.0"),
    ],
)
def test_values_that_are_not_one_per_pair(tmp_path, loss, given):
    said = told(tmp_path, TypeError, begin_epoch=lambda self, loop: loop.per_pair(loss))
    assert said == f"the function of loop.per_pair or each_pair gave {given}; it must give a tensor (6, ...)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function", "given"),
    [
        ("diagnostics", lambda self, truth: None, "NoneType None"),
        ("diagnostics", lambda self, truth: {"auc": torch.tensor(0.5)}, "'auc' as Tensor () without grad"),
        ("state", lambda self: {"bank": {"seen": [1, {2}]}}, "'bank.seen.1' as set {2}"),
        ("state", lambda self: None, "NoneType None"),
    ],
)
def test_diagnostics_and_state_are_plain(tmp_path, name, function, given):
    said = told(tmp_path, TypeError, **{name: function})
    assert f"gave {given}" in said
    assert "; it must give a dict of numbers, text, lists, tuples and dicts" in said
