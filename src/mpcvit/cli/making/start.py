"""`--from`: the checkpoint that a training starts from."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.artifacts.config import Config, DataConfig, load_config
from mpcvit.artifacts.shipped import CONFIGS, find_shipped
from mpcvit.cli import complete
from mpcvit.cli.options import settings_of
from mpcvit.cli.running import check_run_folder
from mpcvit.codec import decode, encode, override, read_toml, spell
from mpcvit.cores import split_cpu
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.model.checkpoint import Checkpoint

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Checkpoint, or timm or Hugging Face folder, whose weights to start with.",
        autocompletion=complete.checkpoint,
    ),
]

# keys that belong to a training, and not to the model that it starts from
_PLACE = ("source", "path")
_OF_A_RUN = {
    "model": ("attention", "dropout", "attention_dropout", "stochastic_depth"),
    "data": (*_PLACE, "validation_images", "train_images", "workers"),
}


def load_start(path: Path | None) -> "Checkpoint | None":
    """Load a checkpoint of this project, or of another one."""
    if path is None:
        return None
    from mpcvit.model.checkpoint import Checkpoint

    return Checkpoint.load(path) if _is_checkpoint(path) else import_checkpoint(path)


def _is_checkpoint(path: Path) -> bool:
    from mpcvit.foreign.safetensors_file import is_safetensors
    from mpcvit.model.checkpoint import FORMAT, read_tensors

    is_file = path.is_file() and is_safetensors(path)
    return is_file and read_tensors(path)[1].get("format") == FORMAT


def import_checkpoint(
    source: Path,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    **options: Any,
) -> "Checkpoint":
    """Read another project's network as a checkpoint; `options` are those of `read_foreign`."""
    from mpcvit.artifacts.provenance import Environment, Provenance
    from mpcvit.foreign import read_foreign
    from mpcvit.model.checkpoint import Checkpoint

    if _is_checkpoint(source):
        raise UserError(f"{source} is a checkpoint of mpcvit already; use it as it is")
    foreign = read_foreign(source, **options)
    data = foreign.data_config(mean, std)
    if data is None:
        raise UserError(
            f"{source} does not say how its images are prepared (preprocessor_config.json, or "
            "pretrained_cfg in config.json): copy that file beside the weights, or add --mean and "
            "--std to mpcvit import"
        )
    return Checkpoint(
        model=foreign.model,
        architecture=foreign.architecture,
        data=data,
        classes=foreign.classes,
        parameters=foreign.parameters,
        provenance=Provenance(
            origin=f"imported from {source.name}", environment=Environment.current()
        ),
    )


def begin_training(
    config_file: Path,
    start: Path | None,
    data: Path | None,
    overrides: list[str] | None,
    out: Path | None,
    *,
    resume: bool,
    fresh: bool,
) -> "tuple[Config, Path, Checkpoint | None]":
    """Return configuration, run folder and start of a training, once the folder is free."""
    begun = load_start(start)
    config = load_config(config_file, settings_from(begun, config_file, data, overrides))
    folder = out or config.folder
    check_run_folder(folder, resume=resume, fresh=fresh)
    split_cpu(config.train.batch_size)
    return config, folder, begun


def settings_from(
    start: "Checkpoint | None", config_file: Path, data: Path | None, overrides: list[str] | None
) -> list[str]:
    """Return the settings of a command line, and what a checkpoint knows and no one else says.

    The number of classes is that of the data.
    """
    settings, known = settings_of(data, overrides), dict[str, dict[str, Any]]()
    if start is None:
        return settings
    document = read_toml(find_shipped(config_file, CONFIGS, "configuration"), "configuration")
    for assignment in settings:
        override(document, assignment)
    size, prepared = document.get("model", {}).get("image_size"), start.data
    if type(size) is int:
        prepared = replace(prepared, fit=prepared.fit.scaled(start.model.image_size, size))
    for section, whole in (("model", encode(start.model)), ("data", encode(prepared))):
        said = document.get(section, {})
        known[section] = {
            key: value
            for key, value in whole.items()
            if key not in _OF_A_RUN[section] and key not in said
        }
    if "eval_crop" in document.get("data", {}):  # test images are cut in the configuration's way
        known["data"].pop("fit", None)
    known["model"]["classes"] = _count_classes(start, document)
    added = [
        f"{section}.{key}={spell(value)}"
        for section, values in known.items()
        for key, value in values.items()
    ]
    return [*added, *settings]


def _count_classes(start: "Checkpoint", document: dict[str, Any]) -> int:
    """Return how many classes the data of a command line has."""
    from mpcvit.data import count_classes

    model, channels = document.get("model", {}), start.model.channels
    said = {key: value for key, value in document.get("data", {}).items() if key in _PLACE}
    classes = count_classes(decode(DataConfig, said, "data"), model.get("channels", channels))
    if model.get("classes", classes) != classes:
        raise UserError(
            f"the data has {classes} classes, but model.classes is {model['classes']}: "
            "leave model.classes out"
        )
    return classes
