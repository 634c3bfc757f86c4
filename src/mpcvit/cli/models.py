"""`mpcvit evaluate`, `mpcvit show` and `mpcvit import`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.cli import app
from mpcvit.cli.making.start import import_checkpoint
from mpcvit.cli.options import (
    AnyModelFile,
    AsJson,
    DataFolder,
    ModelFile,
    parse_numbers,
)
from mpcvit.cli.running import load_images
from mpcvit.cli.show import print_json, print_pairs
from mpcvit.errors import UserError, shown
from mpcvit.lowering import EMULATED_BATCH
from mpcvit.storage import read_text, require_writable

if TYPE_CHECKING:
    from mpcvit.model.checkpoint import Checkpoint

_BATCH = 256  # images that a checkpoint classifies at a time


@app.command()
def evaluate(
    model_file: AnyModelFile,
    data: DataFolder = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Images per step. [default: {_BATCH}, and {EMULATED_BATCH} of a program, which "
            "compiles faster then]",
        ),
    ] = None,
    fixed_point: Annotated[
        bool,
        typer.Option("--fixed-point", help="Round as the program's engine does, which is slower."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model's accuracy on the test split of a data set.

    The data set is the one that the model was trained on. Give its folder
    with --data, unless it is embedded. Its classes are matched with the model's by
    name, and the output says so. A lowered program is emulated: in plaintext, by
    the formulas of a private run. The output then counts values outside of their
    intervals.

    Example: mpcvit evaluate runs/digits/model.safetensors
    """
    from mpcvit.codec import encode
    from mpcvit.cores import split_cpu

    batch_size = batch_size or (EMULATED_BATCH if model_file.is_dir() else _BATCH)
    split_cpu(batch_size)

    from mpcvit.lowering.program import SecureProgram, load_model
    from mpcvit.report.live import counting

    model, out_of_range, judged = load_model(model_file), None, dict[str, int]()
    if fixed_point and not isinstance(model, SecureProgram):
        raise UserError("--fixed-point needs a lowered program, as mpcvit lower makes it")
    with counting() as progress:
        split = load_images(model, data, "test", progress)

        if isinstance(model, SecureProgram):
            from mpcvit.lowering.emulate import emulate

            emulation = emulate(
                model,
                split,
                batch_size=batch_size,
                fixed_point=fixed_point,
                progress=progress,
            )
            evaluation, out_of_range = emulation.evaluation, emulation.out_of_range
            judged = {name: getattr(emulation, name) for name in ("left", "refused", "close")}
        else:
            from mpcvit.train.evaluate import evaluate_checkpoint

            show_progress = partial(progress, "evaluating")
            evaluation = evaluate_checkpoint(model, split, batch_size, show_progress)
    if as_json:
        print_json(
            encode(evaluation)
            | {"classes": split.matching}
            | ({} if out_of_range is None else {"outside": out_of_range})
            | judged
        )
        return
    rate = evaluation.images / evaluation.seconds
    # of five classes or fewer, every answer is among the five likeliest
    top5 = {"top-5": f"{100 * evaluation.top5:.2f} %"} if model.model.classes > 5 else {}
    print_pairs(
        {
            "images": f"{evaluation.images:,}",
            "classes": split.matching,
            "top-1": f"{100 * evaluation.top1:.2f} %",
            **top5,
            "loss": f"{evaluation.loss:.4f}",
            "time": f"{evaluation.seconds:.1f} s ({rate:,.0f} images/s)",
        }
    )
    if evaluation.stray:
        print(
            f"of {evaluation.stray:,} images the network gives no numbers; they count as wrong, "
            "and not for the loss"
        )
    if out_of_range is not None:
        met = {place: share for place, share in out_of_range.items() if share}
        print("outside of the calibrated intervals" + ("" if met else ": nothing"))
        for place, share in met.items():
            print(f"  {place:<22} {100 * share:.4f} % of its values")
        print(f"left    {judged['left']:,} images have such values, or logits out of bounds")
        print(f"refused {judged['refused']:,} images get no answer in a private run")
        print(
            f"close   {judged['close']:,} answers come with the word 'close': another class may be "
            "as likely"
        )


@app.command()
def show(model_file: ModelFile, as_json: AsJson = False) -> None:
    """Show what a checkpoint holds: config, architecture, parameters, provenance.

    Example: mpcvit show runs/digits/model.safetensors
    """
    from mpcvit.codec import encode
    from mpcvit.model.checkpoint import Checkpoint

    checkpoint = Checkpoint.load(model_file)
    sizes = _parameters_by_part(checkpoint)
    model, provenance = encode(checkpoint.model), encode(checkpoint.provenance)
    if as_json:
        print_json(
            {
                "model": model,
                "architecture": encode(checkpoint.architecture),
                "data": encode(checkpoint.data),
                "classes": list(checkpoint.classes),
                "parameters": sizes,
                "provenance": provenance,
            }
        )
        return
    config = provenance.pop("config")
    if config:
        provenance |= {"seed": config["seed"], "epochs": config["train"]["epochs"]}
    _print_section("Model", model)
    print("\nArchitecture")
    print("  " + checkpoint.architecture.picture().replace("\n", "\n  "))
    _print_section("\nParameters", {name: f"{size:>12,}" for name, size in sizes.items()})
    _print_section("\nInput", _input_of(checkpoint))
    _print_section("\nProvenance", {**provenance.pop("environment"), **provenance})
    print(f"\nClasses ({len(checkpoint.classes)})\n  {', '.join(map(shown, checkpoint.classes))}")


@app.command(name="import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="PyTorch file, safetensors file, or folder with config.json.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Checkpoint to write (.safetensors).")],
    heads: Annotated[
        int | None,
        typer.Option(min=1, help="Heads per layer, if the file does not say."),
    ] = None,
    class_names: Annotated[
        Path | None,
        typer.Option(help="Text file with one class name per line, if the weights have no names."),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="Mean per channel of the images, as in 0.485,0.456,0.406."),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(help="Standard deviation per channel of the images, as in 0.229,0.224,0.225."),
    ] = None,
    relu_after: Annotated[
        bool, typer.Option(help="Whether MPCViT+ tokens without GeLU end in a ReLU.")
    ] = True,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Image size of the checkpoint in pixels; positions are interpolated to it."
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace the file that --out names.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import foreign weights: the paper's authors', timm's or Hugging Face's.

    Pickled code is never run, and PyTorch is not needed.

    Example: mpcvit import vit-base/ --out vit-base.safetensors
    """
    if out.exists() and not fresh:
        raise UserError(f"{out} exists already; add --fresh to replace it, or choose another --out")
    require_writable(out)
    names = None if class_names is None else read_text(class_names, "list of classes").splitlines()
    checkpoint = import_checkpoint(
        source,
        mean=parse_numbers(mean, "--mean"),
        std=parse_numbers(std, "--std"),
        heads=heads,
        class_names=names,
        relu_after=relu_after,
        image_size=image_size,
    )
    checkpoint.save(out)
    if as_json:
        print_json({"model": str(out), "parameters": checkpoint.parameter_count})
        return
    print(checkpoint.architecture.picture())
    _print_section("Input", _input_of(checkpoint))
    print(f"{checkpoint.parameter_count:,} parameters written to {out}")


def _parameters_by_part(checkpoint: "Checkpoint") -> dict[str, int]:
    from mpcvit.model.checkpoint import flatten_parameters

    sizes: dict[str, int] = {}
    for name, tensor in flatten_parameters(checkpoint.parameters).items():
        part = name.split(".")[0].split("_")[0]
        sizes[part] = sizes.get(part, 0) + tensor.size
    return {**sizes, "total": sum(sizes.values())}


def _input_of(checkpoint: "Checkpoint") -> dict[str, Any]:
    """Return how pictures become the model's input."""
    data, size = checkpoint.data, checkpoint.model.image_size
    fit = data.fit.describe(size, data.eval_crop)
    return {"pictures": fit, "mean": data.mean, "std": data.std}


def _print_section(title: str, entries: dict[str, Any]) -> None:
    def text(value: Any) -> Any:
        if isinstance(value, dict):
            return ", ".join(f"{key} {item}" for key, item in value.items())
        return ", ".join(map(str, value)) if isinstance(value, tuple) else value

    print(title)
    print_pairs({name: text(value) for name, value in entries.items()}, indent="  ")
