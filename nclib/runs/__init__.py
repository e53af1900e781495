"""Runs: everything between a keyword and a record.

==================  ==================================================================================
``options``         typed settings, with what each may be
``presets``         the values of ``quick``, ``standard`` and ``paper``
``experiment``      class :class:`Experiment`: resolve, check, run, finish, open
``pairs labels``    its two subclasses, each with load, train and evaluate; ``tasks``: that of a method
``loop``            base of both trainers: epochs, selection, exact resume
``pair_trainer``    trainer of pairs; ``noisy_pairs`` has its batches
``label_trainer``   trainer of category retrieval
``collapse``        whether training undid what the warm-up had learnt
``identity``        what names a run, and the number of the numerics
``checkpoint``      tensors and plain data in one file
``record``          :class:`Record`, and the file of one; ``sense``: what its numbers must fulfil
``request``         a run that is asked for, what names it, and whether a record answers
``paths``           the paths of one machine among settings
``store curves``    tables of records in files: read, appended; ``digests`` of these files
``frame``           records as one data frame
``machine``         device, threads, memory, versions
``combination``     finished runs tested as one model
``tracking``        reports of epochs to a function or an object
``trained``         a finished run as an object that scores and searches
``plan``            what a run would do, without training
``words``           parameters as words of a command line
==================  ==================================================================================
"""

from __future__ import annotations

from typing import Any, Unpack

from nclib.runs.combination import combine
from nclib.runs.experiment import Experiment, LoadedRun
from nclib.runs.frame import table
from nclib.runs.identity import NUMERICS, since
from nclib.runs.loop import epoch_arrays
from nclib.runs.options import RunParameters, Settings
from nclib.runs.record import Record
from nclib.runs.store import append
from nclib.runs.store import load as load_record
from nclib.runs.tasks import experiment_of
from nclib.runs.trained import TrainedModel, load

__all__ = [
    "NUMERICS",
    "Experiment",
    "LoadedRun",
    "Record",
    "RunParameters",
    "Settings",
    "TrainedModel",
    "append",
    "combine",
    "epoch_arrays",
    "experiment_of",
    "load",
    "load_record",
    "open_run",
    "resolve",
    "run",
    "since",
    "table",
]


def run(
    method: str = "l2rm",
    *,
    progress: bool = True,
    tracker: Any = None,
    **given: Unpack[RunParameters],
) -> Record:
    """Train one method on noisy pairs or noisy labels, test the selected epoch, and leave a record.

    A run lives in a folder named after its settings, its data and code of the user's. Called again, an
    unfinished run continues from its last epoch, exactly; a finished one is returned from its record, after
    a comparison with what is asked. None means "as the preset says".

    Parameters
    ----------
    method : str
        One of ``nclib.methods.available()`` (pairs) or ``nclib.label_noise.available()`` (labels).
    progress : bool
        Print one line per epoch, and draw a bar in a terminal.
    tracker : callable or object, optional
        Told the numbers of each epoch: a function of a dict and the epoch, or what has such a ``log``, as
        the modules ``wandb`` and ``trackio`` do after their ``init``.
    **given : RunParameters
        The parameters below, and the options of the method, which ``nclib run METHOD --help`` lists.
    dataset : str, optional
        One of ``nclib.data.available("pairs")``; for labels one of ``nclib.data.available("categories")``.
    model : str, optional
        One of ``nclib.models.available()``. Pairs only.
    mrate : float in [0, 1], optional
        Mismatch rate: the share of training pairs that the drawn noise makes wrong. Pairs only. 0.6 for the
        benchmarks ``emoji``, ``planted``, ``f8k``, ``f30k`` and ``coco``, 0 for all other data, among them
        files in the layout of a benchmark whose vocabulary is built from them.
    noise_rate : float in [0, 1], optional
        Labels: the share of training labels that are redrawn; 0.4 for the benchmarks, 0 for all other data.
        Pairs: another name of ``mrate``.
    protocol : str, optional
        Kind of noise. Pairs: ``images``, ``captions``, ``pairs`` or ``near``. Labels: ``symmetric``,
        ``symmetric_exclusive`` or ``asymmetric``.
    scope : {"modality", "pair"}, optional
        Noise for images and texts apart, or one draw per pair. Labels only.
    noise_file : path, optional
        File that gives the noise in place of a draw; a given rate and protocol then do not count.
    seed : int, optional
        Seed of noise, weights and batches.
    noise_seed : int, optional
        Seed of the noise alone, where it is not that of the run; without a ``noise_file``.
    networks : int, optional
        Networks that are trained apart on the same noise, from the seeds ``seed``, ``seed + 1000``, ...; the
        mean of their similarities is tested, as :func:`combine` does. Each is a run of its own in ``out``.
        Pairs only.
    preset : {"quick", "standard", "paper"}, optional
        Size of the run.
    batch_size, epochs : int, optional
        Pairs in a batch; epochs of training, for pairs those after the warm-up, for labels with it. On labels
        a warm-up as long as all epochs is refused.
    warmup_epochs : int, optional
        Epochs of warm-up on all pairs.
    optimizer : {"adam", "amsgrad", "adamp"}, optional
        Rule of the steps. Pairs only; labels take Adam.
    lr : float, optional
        Learning rate.
    decay_every : int, optional
        Training epochs after which the rate falls. Pairs only.
    decay_factor : float, optional
        What is left of the rate when it falls; a tenth by default. Pairs only.
    decay_again : int, optional
        Training epochs after which the rate falls once more; 0 for never. Pairs only.
    decay : {"steps", "cosine"}, optional
        Course of the rate between falls: constant, or along a cosine to 0. Pairs only.
    weight_decay : float, optional
        Decoupled weight decay: with Adam this is AdamW. Pairs only.
    grad_clip : float, optional
        Largest norm of a network's gradient. Pairs only.
    precision : {"auto", "fp32", "tf32", "bf16"}, optional
        Of products of matrices: float32, the default; TF32, on a GPU only; bfloat16 in the forward pass.
        ``"auto"`` is tf32 on a GPU and fp32 elsewhere, and the record holds which. Pairs only.
    compile : {"auto", "off"}, optional
        Whether the comparison of pairs is compiled on a GPU. Pairs only.
    lr_schedule : {"cosine", "constant"}, optional
        Course of the learning rate. Labels only.
    hidden, dim : int, optional
        Width of hidden layers and of the common space. Labels only.
    model_options, data_options : mapping, optional
        Passed to the model and to the loader of the data, over those of the preset.
    device : str, optional
        ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
    threads : int, optional
        CPU threads; 0 for torch's own choice.
    pictures_on : {"auto", "host", "device"}, optional
        Memory that holds the training pictures, a matter of time alone. ``auto``: that of a GPU where they
        take at most a third of what is free there. ``device``: an error where they do not fit. Pairs only.
    out : path, optional
        Folder for records, checkpoints and arrays.

    Returns
    -------
    Record
        Also written to ``<out>/<run>/record.json``.

    Raises
    ------
    ValueError
        For an unknown name, a misspelt parameter or a value out of range, before anything is loaded.
    RuntimeError
        When another process works on this run, or a loss is no longer finite.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     record = run("plain", dataset="planted", model="vse", mrate=0.4, epochs=1, warmup_epochs=0,
    ...                  data_options={"n_train": 40}, out=folder, progress=False)
    >>> record.noise_rate, record.best_epoch, record.data["train_pairs"]
    (0.4, 1, 200)
    """
    experiment = experiment_of(method)
    return experiment.run(experiment.resolve(**given), progress, tracker)


def resolve(method: str = "l2rm", **given: Unpack[RunParameters]) -> Settings:
    """Return the complete settings of a run: defaults, then the preset, then the given values.

    Parameters
    ----------
    method : str
    **given : RunParameters
        Parameters of :func:`run`, options of the method among them.

    Returns
    -------
    Settings

    Raises
    ------
    ValueError
        As :func:`run`.

    Examples
    --------
    >>> settings = resolve("uot_rcl", noise_rate=0.2)
    >>> settings.run.dataset, settings.run.protocol, settings.schedule.epochs
    ('emoji_category', 'symmetric', 24)
    """
    return experiment_of(method).resolve(**given)


def open_run(record: Record, device: str = "cpu") -> LoadedRun:
    """Load the objects of a finished run with the weights of its selected epoch.

    Parameters
    ----------
    record : Record
        Its ``folder`` must hold the checkpoint.
    device : str
        ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...

    Returns
    -------
    LoadedRun
        ``trainer``, with the weights in place and its networks in eval mode; ``dataset``; ``noise``.

    Raises
    ------
    FileNotFoundError
        When the checkpoint is not there.
    ValueError
        When it is damaged or belongs to other settings, data or code, or the device does not exist here.
    """
    return experiment_of(record.settings["method"]).open_run(record, device)
