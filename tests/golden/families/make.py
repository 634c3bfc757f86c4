"""Make the golden files of model families and of pictures, with timm and transformers.

    python tests/golden/families/make.py

needs torch, torchvision, timm and transformers; `versions.json` says which ones were used.
Every case is a small network with random weights, in its native format.
`<case>.npz` has random images and their logits, and what the framework makes of `pictures/`:
pixels after resizing and cutting, and logits. `pictures.npz` has the pixels alone, for each
entry of `pictures.json`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import timm
import torch
import transformers
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models import save_for_hf
from torch import nn
from transformers.image_utils import load_image

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
SIZE, PATCH, CLASSES = 8, 4, 5
LABELS = ["ant", "bee", "cat", "dog", "emu"]
NAMES = ("wide.png", "tall.png", "tiny.png", "huge.png", "grey.png", "rgba.png", "turned.jpg")

# Preprocessors as their files have them: Hugging Face's by class, timm's by entries.
PROCESSORS: dict[str, dict[str, Any]] = {
    "vit": {"class": "ViTImageProcessorPil", "size": {"height": 8, "width": 8}},
    "vit-lanczos": {"class": "ViTImageProcessorPil", "size": 8, "resample": 1},
    "deit": {"class": "DeiTImageProcessorPil", "size": {"height": 10, "width": 10}, "crop_size": 8},
    "deit-odd": {"class": "DeiTImageProcessorPil", "size": 11, "crop_size": 8, "resample": 2},
    "clip": {"class": "CLIPImageProcessorPil", "size": {"shortest_edge": 8}, "crop_size": 8},
    "bit": {"class": "BitImageProcessorPil", "size": {"shortest_edge": 11}, "crop_size": 8},
    "siglip": {"class": "SiglipImageProcessorPil", "size": {"height": 8, "width": 8}},
    "siglip-uncovered": {"class": "SiglipImageProcessorPil", "size": {"height": 11, "width": 11}},
    "timm-center": {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bicubic"},
    "timm-odd": {"crop_pct": 0.7, "crop_mode": "center", "interpolation": "bilinear"},
    "timm-squash": {"crop_pct": 0.7, "crop_mode": "squash", "interpolation": "bicubic"},
    "timm-whole": {"crop_pct": 1.0, "crop_mode": "center", "interpolation": "lanczos"},
    "timm-nearest": {"crop_pct": 0.8, "crop_mode": "center", "interpolation": "nearest"},
}


def make_pictures() -> None:
    PICTURES.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)

    def noise(height: int, width: int, channels: int = 3) -> Image.Image:
        pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
        return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)

    noise(23, 37).save(PICTURES / "wide.png")
    noise(41, 19).save(PICTURES / "tall.png")
    noise(2, 3).save(PICTURES / "tiny.png")
    noise(31, 29, 1).save(PICTURES / "grey.png")
    opaque = noise(17, 26).convert("RGBA")
    opaque.save(PICTURES / "rgba.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    noise(21, 33).save(PICTURES / "turned.jpg", exif=exif, quality=90)
    huge = np.zeros((1200, 1600), np.uint8)
    for colour in range(1, 16):
        top, left = rng.integers(0, 1000), rng.integers(0, 1300)
        huge[top : top + rng.integers(100, 700), left : left + rng.integers(100, 900)] = colour
    picture = Image.fromarray(huge, "P")
    picture.putpalette(rng.integers(0, 256, 48).tolist())
    picture.save(PICTURES / "huge.png", bits=4, optimize=True)


def pictures() -> list[Image.Image]:
    return [load_image(str(PICTURES / name)) for name in NAMES]


def processed(processor: Any) -> np.ndarray:
    """What a Hugging Face processor makes of the pictures, before numbers are scaled."""
    plain = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
    return np.stack(
        [
            processor(picture, **plain)["pixel_values"][0].transpose(1, 2, 0)
            for picture in pictures()
        ]
    ).astype(np.uint8)


def transformed(entries: dict[str, Any], size: int = SIZE) -> np.ndarray:
    """What timm's transform makes of the pictures, before numbers are scaled."""
    whole = create_transform(
        (3, size, size),
        **{"crop_pct": entries["crop_pct"], "crop_mode": entries["crop_mode"]},
        interpolation=entries["interpolation"],
        normalize=False,
    )
    return np.stack([whole(picture).permute(1, 2, 0).numpy() for picture in pictures()])


def make_processors() -> None:
    arrays, documents = {}, {}
    for name, entries in PROCESSORS.items():
        if "class" in entries:
            options = {key: value for key, value in entries.items() if key != "class"}
            processor = getattr(transformers, entries["class"])(**options)
            arrays[name], documents[name] = processed(processor), processor.to_dict()
        else:
            arrays[name], documents[name] = transformed(entries), entries
    np.savez_compressed(HERE / "pictures.npz", **arrays)
    text = json.dumps({"names": NAMES, "processors": documents}, indent=1, default=str)
    (HERE / "pictures.json").write_text(text + "\n")


def perturb(model: nn.Module, seed: int) -> None:
    """Give every parameter, norms and biases too, values that matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_scale = "norm" in name and name.endswith("weight")
        is_scale |= name.endswith(("lambda1", "gamma"))
        parameter.data = 1 + 0.4 * noise if is_scale else 0.4 * noise
    model.eval()


def logits_of(model: nn.Module, images: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        output = model(images)
    return (output.logits if hasattr(output, "logits") else output).numpy()


def write(case: str, model: nn.Module, pixels: np.ndarray, prepared: torch.Tensor) -> None:
    size = prepared.shape[-1]
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(7))
    np.savez_compressed(
        HERE / f"{case}.npz",
        images=images.permute(0, 2, 3, 1),
        logits=logits_of(model, images),
        pixels=pixels,
        picture_logits=logits_of(model, prepared),
    )


def leave_out_defaults(folder: Path, config: Any) -> None:
    """Write the vision tower's settings as transformers 4 does: without its defaults."""
    path = folder / "config.json"
    document = json.loads(path.read_text())
    usual = type(config.vision_config)().to_dict()
    document["vision_config"] = {
        key: value
        for key, value in document["vision_config"].items()
        if key == "model_type" or usual.get(key) != value
    }
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def make_hugging_face() -> None:
    vision: dict[str, Any] = {"num_hidden_layers": 2, "image_size": SIZE, "patch_size": PATCH}
    vision |= {"hidden_size": 10, "intermediate_size": 15, "num_attention_heads": 2}
    labels = {"id2label": dict(enumerate(LABELS))}
    text = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    text |= {"num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
    towers = {"vision_config": vision, "text_config": text}
    dino = {**vision, "mlp_ratio": 2, "image_size": 12, **labels}  # positions are interpolated
    uncovered = {**vision, "image_size": 11}  # patches cover 8 of them
    t = transformers
    cases: dict[str, tuple[Any, Any, Any]] = {
        "hf_deit": (t.DeiTForImageClassification, t.DeiTConfig(**vision, **labels), "deit"),
        "hf_deit_teacher": (
            t.DeiTForImageClassificationWithTeacher,
            t.DeiTConfig(**vision, **labels, layer_norm_eps=1e-6),
            "deit-odd",
        ),
        "hf_dinov2": (t.Dinov2ForImageClassification, t.Dinov2Config(**dino), "bit"),
        "hf_registers": (
            t.Dinov2WithRegistersForImageClassification,
            t.Dinov2WithRegistersConfig(**dino, num_register_tokens=3),
            "bit",
        ),
        "hf_clip": (t.CLIPForImageClassification, t.CLIPConfig(**towers, **labels), "clip"),
        "hf_siglip": (t.SiglipForImageClassification, t.SiglipConfig(**towers, **labels), "siglip"),
        "hf_siglip_uncovered": (
            t.SiglipForImageClassification,
            t.SiglipConfig(**{**towers, "vision_config": uncovered}, **labels),
            "siglip-uncovered",
        ),
        # as many registers as leave a square of the positions
        "hf_registers_few": (
            t.Dinov2WithRegistersForImageClassification,
            t.Dinov2WithRegistersConfig(**{**dino, "image_size": 8}, num_register_tokens=3),
            "bit",
        ),
        # of a width for the 12 heads that its config.json does not mention
        "hf_clip_silent": (
            t.CLIPForImageClassification,
            t.CLIPConfig(
                vision_config={**vision, "hidden_size": 24, "num_attention_heads": 12},
                text_config=text,
                **labels,
            ),
            "clip",
        ),
    }
    for seed, (case, (kind, config, name)) in enumerate(cases.items()):
        model = kind(config)
        perturb(model, seed)
        # CLIP's weights are split over several files
        size = "4KB" if case == "hf_clip" else "5GB"
        model.save_pretrained(HERE / case, max_shard_size=size)
        if case == "hf_clip_silent":
            leave_out_defaults(HERE / case, config)
        options = {key: value for key, value in PROCESSORS[name].items() if key != "class"}
        processor = getattr(t, PROCESSORS[name]["class"])(**options)
        processor.save_pretrained(HERE / case)
        prepared = [
            processor(picture, return_tensors="pt")["pixel_values"] for picture in pictures()
        ]
        write(case, model, processed(processor), torch.cat(prepared))


def make_timm() -> None:
    common: dict[str, Any] = {"img_size": SIZE, "patch_size": PATCH, "depth": 2, "embed_dim": 10}
    common |= {"num_heads": 2, "mlp_ratio": 1.5}
    registers = {"reg_tokens": 3, "no_embed_class": True, "init_values": 1e-5}
    cases: dict[str, tuple[str, dict[str, Any], str]] = {
        "timm_distilled": ("deit_tiny_distilled_patch16_224", {}, "timm-center"),
        "timm_deit3": ("deit3_small_patch16_224", {}, "timm-odd"),
        "timm_registers": (
            "vit_medium_patch16_reg4_gap_256",
            {**registers, "class_token": False, "global_pool": "avg"},
            "timm-squash",
        ),
        "timm_class_mean": ("vit_tiny_patch16_224", {"global_pool": "avg"}, "timm-whole"),
        "timm_clip": ("vit_base_patch16_clip_quickgelu_224", {"qkv_bias": False}, "timm-center"),
        "timm_uncovered": ("vit_small_patch14_reg4_dinov2", {"img_size": 14}, "timm-odd"),
        "timm_plain_clip": ("vit_base_patch16_clip_224", {"pre_norm": False}, "timm-whole"),
    }
    for seed, (case, (name, more, rule)) in enumerate(cases.items()):
        arguments = {**common, **more}
        model = timm.create_model(name, num_classes=CLASSES, **arguments)
        perturb(model, 20 + seed)
        entries = PROCESSORS[rule]
        size = arguments["img_size"]
        model.pretrained_cfg = {**model.pretrained_cfg, **entries, "input_size": (3, size, size)}
        extra = {"label_names": LABELS}
        save_for_hf(model, HERE / case, extra, arguments, safe_serialization=True)
        transform = create_transform(**resolve_data_config({}, model=model))
        prepared = torch.stack([transform(picture) for picture in pictures()])
        write(case, model, transformed(entries, size), prepared)


def main() -> None:
    for path in HERE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".py":
            path.unlink()
    make_pictures()
    make_processors()
    make_hugging_face()
    make_timm()
    modules = (np, PIL, timm, torch, transformers)
    versions = {module.__name__: module.__version__ for module in modules}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
