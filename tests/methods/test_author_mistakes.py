"""An author's mistake in a method is told in one line, when the class is registered or at the first step."""

import math
import re
from dataclasses import dataclass

import pytest
import torch

import nclib
from nclib import label_noise, losses, methods, models
from nclib.common.method import check_report
from nclib.common.options import make
from nclib.common.registry import Registry
from nclib.data import planted
from nclib.label_noise.base import METHODS as LABEL_METHODS
from nclib.methods import Method, Steps, option
from nclib.methods.base import METHODS
from nclib.models import build
from nclib.noise import Mismatch
from nclib.runs.label_trainer import LabelTrainer
from nclib.runs.noisy_pairs import NoisyPairs
from nclib.runs.options import LabelSchedule, PairSchedule
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


@pytest.mark.parametrize("lacking", ["step", "warmup_step", "begin_epoch"])
def test_a_missing_method_is_named(lacking):
    members = {n: v for n, v in vars(Good).items() if n != lacking and not n.startswith("_abc")}
    cls = type("Short", (Method,), members)
    assert refused(cls) == f"method 'mine': class Short lacks {lacking}"


def test_all_missing_methods_are_named_at_once():
    assert refused(type("Empty", (Method,), {})).endswith("lacks begin_epoch, step, warmup_step")


def test_no_options():
    class Bare(Method):
        warmup_step, begin_epoch, step = Good.warmup_step, Good.begin_epoch, Good.step

    assert refused(Bare) == (
        "method 'mine': class Bare has no Options; give it a frozen dataclass of option(...) fields"
    )


def with_options(options):
    return type("Opted", (Good,), {"Options": options})


def test_options_without_the_dataclass_decorator():
    class Plain:
        tau: float = option(0.05)

    class Inherits(Tau):  # its new field would be lost
        margin: float = option(0.2)

    @dataclass
    class Thawed:
        tau: float = option(0.05)

    for options in (Plain, Inherits, Thawed, {"tau": 0.05}):
        assert "Options must be a class with @dataclass(frozen=True), got" in refused(with_options(options))


def test_a_field_without_option():
    @dataclass(frozen=True)
    class Raw:
        tau: float = 0.05

    assert refused(with_options(Raw)) == (
        "method 'mine': Raw.tau is declared without option(...); write tau: float = option(default, help=...)"
    )


def test_a_default_out_of_its_own_range():
    @dataclass(frozen=True)
    class Wild:
        tau: float = option(0.0, above=0)

    assert refused(with_options(Wild)) == "method 'mine': Wild.tau, default 0.0: must be a number, above 0"


def test_what_is_no_method():
    assert refused(dict) == "method 'mine': register decorates a subclass of Method, got <class 'dict'>"
    assert "register decorates a subclass of Method, got <function" in refused(lambda: None)
    other = refused(Good, package=label_noise)
    assert other.startswith(
        "category method 'mine': register decorates a subclass of DeepMethod or Projector"
    )


def test_an_option_of_models_in_the_options_of_a_method():
    @dataclass(frozen=True)
    class Mixed:
        tau: float = models.option(0.05, above=0)

    said = "Mixed.tau is declared with the option(...) of models; write from nclib.{} import option"
    assert refused(with_options(Mixed)) == "method 'mine': " + said.format("methods")
    labels = type("Labels", (label_noise.DeepMethod,), {"Options": Mixed, "step": Good.step})
    assert refused(labels, package=label_noise).endswith(said.format("label_noise"))


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


def test_a_method_for_labels_that_does_not_take_what_the_loop_passes():
    members = {"Options": Tau, "step": Good.step, "build": lambda self: None}
    assert refused(type("Mine", (label_noise.DeepMethod,), members), package=label_noise) == (
        "category method 'mine': Mine.build takes (self); write def build(self, shape)"
    )


def test_a_constructor_that_forgets_the_one_of_its_base():
    methods.register("mine", summary="for a test")(
        type("Mine", (Good,), {"__init__": lambda self, options: None})
    )
    with pytest.raises(TypeError, match=r"^method 'mine': Mine\.__init__ must call super\(\)\.__init__\(opt"):
        methods.build("mine")


def test_an_option_with_the_name_of_a_parameter_of_every_run():
    @dataclass(frozen=True)
    class Same:
        epochs: int = option(3, low=1)
        model_options: str = option("none")

    methods.register("mine", summary="for a test")(with_options(Same))
    with pytest.raises(ValueError, match=r"its options epochs, model_options are parameters of every run"):
        nclib.run("mine", dataset="planted")


@pytest.mark.parametrize("name", ["my method", "a/b", "", "1st"])
def test_a_name_that_cannot_name_a_folder_and_a_file(name):
    assert "letters, digits and underscores only" in refused(Good, ValueError, name=name)


def test_a_name_that_is_taken():
    message = refused(Good, ValueError, name="ncr")
    assert message.startswith("method 'ncr' is registered twice: by nclib.methods.ncr.NCR and by ")
    assert message.endswith("test_author_mistakes.Good")


def test_a_cell_can_be_run_again():
    registry = Registry("thing")
    old, new, other = (type(name, (), {"__module__": "__main__"}) for name in ("A", "A", "B"))
    registry.register("a", summary="old")(old)
    registry.register("a", summary="new")(new)
    assert registry["a"].factory is new
    assert registry.catalogue() == {"a": "new"}
    with pytest.raises(ValueError, match=r"registered twice: by __main__\.A and by __main__\.B"):
        registry.register("a", summary="")(other)


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
    found = refused(Third, package=label_noise)
    assert found.endswith("class Third lacks fit, load_state, project_images, project_texts, state")


# ------------------------------------------------------------------------------------- at the first step


def fit(tmp_path, cls, warmup_epochs=0, epochs=1):
    data = planted.planted(n_train=12, n_val=4, n_test=4)
    options = {"feature_dim": data.feature_dim, "vocab_size": data.vocabulary.size}
    torch.manual_seed(0)
    trainer = PairTrainer(
        cls(Tau()),
        [build("vse", n_regions=data.n_regions, **options)],
        NoisyPairs(data.train, Mismatch.draw(data.train.image_of, 0.0, seed=0)),
        data.val,
        make(PairSchedule, {"batch_size": 6, "epochs": epochs, "warmup_epochs": warmup_epochs}),
        seed=0,
        device=torch.device("cpu"),
        folder=tmp_path,
        fingerprint="test",
        data_checksum="test",
    )
    trainer.fit(progress=False)
    return trainer.history[-1]


def told(tmp_path, error, warmup_epochs=0, **members):
    with pytest.raises(error) as caught:
        fit(tmp_path, type("Mine", (Good,), members), warmup_epochs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_a_correct_method_trains(tmp_path):
    assert math.isfinite(fit(tmp_path, Good)["loss_loss"])


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


def yields_a_tensor(self, loop, batch):
    yield {"loss": loss_of(self, loop, batch).mean()}
    yield loss_of(self, loop, batch).mean()


def yields_unreduced(self, loop, batch):
    yield {"loss": loss_of(self, loop, batch)}


FAULTS = [
    (a_tensor, TypeError, "returned a Tensor; it must return a dict of loss terms, such as {'loss': loss}"),
    (nothing, TypeError, "returned None; it must return a dict of loss terms, such as {'loss': loss}"),
    (no_term, ValueError, "returned an empty dict; it must return at least one loss term"),
    (a_number, TypeError, "returned term 'loss' as a float; it must be a scalar tensor"),
    (unreduced, ValueError, "returned term 'loss' with shape (6,), reduce it: .mean()"),
    (detached, ValueError, "returned term 'shown' without gradient; is it detached or made under no_grad?"),
    (
        yields_a_tensor,
        TypeError,
        "yielded a Tensor; it must yield a dict of loss terms, such as {'loss': loss}",
    ),
    (yields_unreduced, ValueError, "yielded term 'loss' with shape (6,), reduce it: .mean()"),
]


@pytest.mark.parametrize(("step", "error", "message"), FAULTS)
def test_a_step_that_gives_something_else(tmp_path, step, error, message):
    assert told(tmp_path, error, step=step) == f"{step.__qualname__} {message}"
    assert told(tmp_path, error, warmup_epochs=1, warmup_step=step) == f"{step.__qualname__} {message}"


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (None, TypeError, "None; it must return what step receives, one item per step, such as "),
        (3, TypeError, "an int; it must return what step receives, one item per step, such as "),
        ({"pairs": 1}, TypeError, "a dict; it must return batches, such as "),
        (torch.arange(6), TypeError, "indices, a tensor of torch.int64; it must return loop.batches(index, "),
        ([], ValueError, "no steps, []; it must return batches, such as "),
        (iter([]), ValueError, "no steps for network 0 in all 1 epochs after warm-up: the method did not"),
    ],
)
def test_an_epoch_without_steps(tmp_path, result, error, message):
    def begin_epoch(self, loop):
        loop.batches(purpose="pairs")
        return result

    found = told(tmp_path, error, begin_epoch=begin_epoch)
    assert f"begin_epoch returned {message}" in found
    assert found.endswith(("purpose='pairs')", "or another threshold"))


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
    ("loss", "error", "message"),
    [
        (
            lambda S: S.diagonal().mean(),
            ValueError,
            "a scalar for 6 pairs; it must return one value per pair",
        ),
        (
            lambda S: S.diagonal()[1:],
            ValueError,
            r"shape \(5,\) for 6 pairs; it must return one value per pair",
        ),
        (lambda S: 1.0, TypeError, "a float; it must return one value per pair"),
    ],
)
def test_values_that_are_not_one_per_pair(tmp_path, loss, error, message):
    def begin_epoch(self, loop):
        loop.per_pair(loss)
        return loop.batches(purpose="pairs")

    with pytest.raises(error, match=f"^the function of loop.per_pair or each_pair returned {message}"):
        fit(tmp_path, type("Mine", (Good,), {"begin_epoch": begin_epoch}))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "None; it must return a dict of numbers, which may be empty"),
        ({"auc": torch.tensor(0.5)}, "'auc' as a Tensor; it must be a number, such as float(...)"),
    ],
)
def test_diagnostics_that_are_not_numbers(result, message):
    def diagnostics(truth):
        return result

    with pytest.raises(TypeError, match=re.escape(f"diagnostics returned {message}")):
        check_report(diagnostics(None), diagnostics)


@pytest.mark.slow
def test_diagnostics_and_state_are_checked_in_a_run(tmp_path):
    found = told(tmp_path / "a", TypeError, diagnostics=lambda self, truth: None)
    assert found.endswith("returned None; it must return a dict of numbers, which may be empty")
    found = told(tmp_path / "b", TypeError, state=lambda self: {"bank": {"seen": [1, {2}]}})
    assert "returned 'bank.seen.1' as a set; it must be a tensor, number" in found
    assert told(tmp_path / "c", TypeError, state=lambda self: None).endswith("which may be empty")


@pytest.mark.parametrize(("step", "error", "message"), FAULTS[:6])
def test_a_step_of_a_method_for_labels(tmp_path, step, error, message):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 5, generator=g), torch.tensor([0, 1, 2, 0, 1, 2])
    train = label_noise.Training(x, x, y, y, 3)
    cls = type("Mine", (label_noise.DeepMethod,), {"Options": Tau, "step": step})
    method = cls(Tau())
    trainer = LabelTrainer(
        method,
        method.build(label_noise.Shape(5, 5, 3, hidden=4, dim=4)),
        train,
        y.numpy(),
        None,
        make(LabelSchedule, {"batch_size": 6, "epochs": 1}),
        seed=0,
        device=torch.device("cpu"),
        folder=tmp_path,
        identity={},
    )

    def similarity(batch):
        return trainer.network.images(batch.images) @ trainer.network.texts(batch.texts).T

    trainer.similarity = similarity
    with pytest.raises(error) as caught:
        trainer.fit(progress=False)
    assert str(caught.value) == f"{step.__qualname__} {message}"
