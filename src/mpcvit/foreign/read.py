"""Opens a foreign checkpoint, recognises its naming and converts it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mpcvit.errors import UserError
from mpcvit.foreign import authors, huggingface, timm
from mpcvit.foreign.mapping import shorten
from mpcvit.foreign.model import PREPROCESSORS, ForeignModel, Options, Source
from mpcvit.foreign.pickled import InertObject
from mpcvit.foreign.safetensors_file import is_safetensors, open_safetensors
from mpcvit.foreign.tensor import Tensor
from mpcvit.foreign.torch_file import open_torch
from mpcvit.foreign.unusable import UnusableError, about
from mpcvit.storage import read_json

_FORMATS = (authors, huggingface, timm)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_POINTER = b"version https://git-lfs"
# Where training scripts keep the weights; the authors' inference reads the first.
_STATES = ("state_dict", "model", "state_dict_ema", "model_ema")


def read_foreign(
    path: Path,
    *,
    heads: int | None = None,
    class_names: Sequence[str] | None = None,
    relu_after: bool = True,
    image_size: int | None = None,
) -> ForeignModel:
    """Read a checkpoint of the MPCViT authors, of timm or of Hugging Face.

    `path` is a PyTorch zip file, a safetensors file, or a folder with weights
    and config.json. `heads` is needed where the source does not say it;
    `relu_after` tells whether tokens without GeLU end in a ReLU (MPCViT+);
    `image_size` is another size than the source's, for which positions are interpolated.
    Nothing in the file is executed.
    """
    names = None if class_names is None else tuple(class_names)
    options = Options(heads=heads, class_names=names, relu_after=relu_after, image_size=image_size)
    try:
        with open_source(Path(path)) as source, about(source.origin):
            return _choose_format(source).convert(source, options)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _choose_format(source: Source) -> Any:
    """Return the module that reads a source, or refuse it by its type."""
    kind = source.config.get("model_type")
    family = huggingface.TYPES.get(kind) if isinstance(kind, str) else None
    if kind is None or family is not None:
        for form in _FORMATS:
            if form.recognises(source.tensors):
                return form
    if family is not None and not any("classifier" in name for name in source.tensors):
        huggingface.refuse_headless(family)
    kind = kind or source.config.get("architecture")
    readable = (
        "those that can be read are of the MPCViT authors, timm (vit, deit, deit3) and Hugging "
        f"Face ({', '.join(huggingface.FAMILIES)}), each with its classifier"
    )
    if kind is None:
        raise UnusableError(
            f"is not a model that is known; {readable}; its tensors are {shorten(source.tensors)}"
        )
    raise UnusableError(f"is a model of type {shorten([str(kind)])}; {readable}")


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Give a file or folder as named tensors, readable until the block ends."""
    weights = _find_weights(path) if path.is_dir() else (path,)
    beside = path if path.is_dir() else None
    with ExitStack() as stack:
        tensors: dict[str, Tensor] = {}
        arguments: Mapping[str, Any] = {}
        for file in weights:
            found, arguments = stack.enter_context(_open_tensors(file))
            if twice := tensors.keys() & found.keys():
                raise UserError(
                    f"{file} holds {shorten(sorted(twice))}, as another file of its index does: "
                    "download all of them again"
                )
            tensors |= found
        preprocessor, preprocessing = _read_preprocessing(beside)
        yield Source(
            origin=str(weights[0]),
            tensors=_strip_wrappers(tensors),
            config=_read_object(beside, "config.json"),
            preprocessing=preprocessing,
            preprocessor=preprocessor,
            arguments=arguments,
        )


def _find_weights(folder: Path) -> tuple[Path, ...]:
    """Return the file of weights in a folder, or the files that its index lists."""
    for name in _WEIGHTS:
        if (folder / name).is_file():
            return (folder / name,)
        index = f"{name}.index.json"
        if (folder / index).is_file():
            return _read_index(folder, index)
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{folder} holds an adapter (LoRA), not a whole model: merge it into its model "
            "(merge_and_unload of peft), and save that"
        )
    raise UserError(
        f"{folder} holds neither {' nor '.join(_WEIGHTS)}: save the model again with PyTorch, or "
        "give the file of weights itself"
    )


def _read_index(folder: Path, name: str) -> tuple[Path, ...]:
    listed = _read_object(folder, name).get("weight_map")
    if not isinstance(listed, Mapping) or not listed:
        raise UserError(f"{folder / name} has no weight_map, so it names no files")
    files = sorted({str(file) for file in listed.values()})
    for file in files:
        if Path(file).name != file:
            raise UserError(f"{folder / name} names {file!r}, which is not a file beside it")
        if not (folder / file).is_file():
            raise UserError(f"{folder} lacks {file}, which {name} lists; download it again")
    return tuple(folder / file for file in files)


def _read_preprocessing(folder: Path | None) -> tuple[str, Mapping[str, Any]]:
    """Return how pictures are prepared, and the name of the file that says it."""
    alone, nesting = PREPROCESSORS
    if document := _read_object(folder, alone):
        return alone, document
    nested = _read_object(folder, nesting).get("image_processor")
    return (nesting, nested) if isinstance(nested, Mapping) else (alone, {})


def _read_object(folder: Path | None, name: str) -> Mapping[str, Any]:
    """Return the JSON object in a file of a folder; empty if there is no such file."""
    if folder is None or not (folder / name).is_file():
        return {}
    document = read_json((folder / name).read_bytes(), str(folder / name))
    if not isinstance(document, dict):
        raise UserError(f"{folder / name} must hold a JSON object")
    return document


@contextmanager
def _open_tensors(path: Path) -> Iterator[tuple[Mapping[str, Tensor], Mapping[str, Any]]]:
    """Give a file's tensors, and the arguments that its training script recorded."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise UserError(
                f"{path} is a pointer of Git LFS and not the weights: run `git lfs pull` in its "
                "folder, or download the file itself"
            )
    if is_safetensors(path):
        with open_safetensors(path) as tensors:
            yield tensors, {}
    else:
        with open_torch(path) as content:
            yield _find_state(content, path), _find_arguments(content)


def _find_state(content: Any, path: Path) -> Mapping[str, Tensor]:
    if isinstance(content, InertObject):
        raise UserError(
            f"{path} holds an object of class {shorten([content.path])}, not a checkpoint; "
            "torch.save its state_dict() instead"
        )
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no dictionary of tensors, so it is not a checkpoint")
    nested = [content[key] for key in _STATES if isinstance(content.get(key), dict)]
    state = nested[0] if nested else content
    strange = [
        _spell(key)
        for key, value in state.items()
        if not (isinstance(key, str) and isinstance(value, Tensor))
    ]
    if strange or not state:
        raise UserError(
            f"{path} holds no dictionary of tensors only; "
            + (f"these entries are none: {shorten(strange)}" if state else "it is empty")
        )
    return state


def _spell(key: Any) -> str:
    return key if isinstance(key, str) else f"a {type(key).__name__}"


def _find_arguments(content: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Return the recorded argparse.Namespace, and the name of the architecture."""
    recorded = content.get("args")
    state = recorded.state if isinstance(recorded, InertObject) else None
    return {"arch": content.get("arch"), **(state if isinstance(state, dict) else {})}


def _strip_wrappers(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Drop the prefixes of DataParallel and torch.compile, where all names have them."""
    while tensors and all(re.match(r"module\.|_orig_mod\.", name) for name in tensors):
        tensors = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}
    return tensors
