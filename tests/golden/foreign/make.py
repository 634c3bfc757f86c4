"""Make the golden files of this folder with the frameworks that they imitate.

    python tests/golden/foreign/make.py

needs torch, timm and transformers; `versions.json` says which ones were used.
Every case is a small network with random weights, in its native format, and
`<case>.npz` with images and the logits that the framework computed for them.
"""

import argparse
import json
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import transformers
from timm.models import save_for_hf
from torch import nn

HERE = Path(__file__).parent
BATCH = 5


class AuthorsAttention(nn.Module):
    """Attention by the names and formulas of the authors' code; `alpha` None: softmax."""

    def __init__(self, width: int, heads: int, alpha: torch.Tensor | None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        if alpha is not None:
            self.alpha = nn.Parameter(alpha, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.mT / (width // self.heads) ** 0.5
        return self.proj((self.weigh(scores) @ v).transpose(1, 2).flatten(2))

    def weigh(self, scores: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "alpha"):
            return scores.softmax(-1)
        positive = scores.relu()
        relu_softmax = positive / (positive.sum(-1, keepdim=True) + 1e-5)
        scaling = scores / scores.shape[-1]
        return self.alpha * relu_softmax + (1 - self.alpha) * scaling


class AuthorsBlock(nn.Module):
    def __init__(
        self, width: int, heads: int, alpha: torch.Tensor | None, beta: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.pre_norm = nn.LayerNorm(width)
        self.self_attn = AuthorsAttention(width, heads, alpha)
        self.linear1 = nn.Linear(width, 2 * width)
        self.norm1 = nn.LayerNorm(width)
        self.linear2 = nn.Linear(2 * width, width)
        if beta is not None:
            self.beta = nn.Parameter(beta, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.self_attn(self.pre_norm(x)))
        hidden = self.linear1(x)
        kept = self.linear2(nn.functional.gelu(hidden))
        if not hasattr(self, "beta"):
            return x + kept
        linear = self.linear2(hidden).relu()
        return x + torch.where(self.beta == 1, kept, linear)


class AuthorsTokenizer(nn.Module):
    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.conv_layers = nn.Sequential(nn.Sequential(nn.Conv2d(3, width, patch, patch)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv_layers(images).flatten(2).transpose(1, 2)


class AuthorsClassifier(nn.Module):
    def __init__(self, width: int, tokens: int, classes: int, blocks: list[AuthorsBlock]) -> None:
        super().__init__()
        self.class_emb = nn.Parameter(torch.zeros(1, 1, width))
        self.positional_emb = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.class_emb.expand(len(x), -1, -1), x], dim=1) + self.positional_emb
        for block in self.blocks:
            x = block(x)
        return self.fc(self.norm(x)[:, 0])


class AuthorsViT(nn.Module):
    """Depth 2, patches of 2 in images of 6: 10 tokens."""

    tokens, patch, image = 10, 2, 6

    def __init__(
        self,
        width: int,
        heads: int,
        classes: int,
        alphas: list[Any] | None,
        betas: list[Any] | None = None,
    ) -> None:
        super().__init__()
        blocks = [
            AuthorsBlock(width, heads, alphas and alphas[n], betas and betas[n]) for n in range(2)
        ]
        self.tokenizer = AuthorsTokenizer(width, self.patch)
        self.classifier = AuthorsClassifier(width, self.tokens, classes, blocks)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.tokenizer(images))


def perturb(model: nn.Module, seed: int) -> None:
    """Give every trained parameter, norms and biases too, values that matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = "norm" in name and name.endswith("weight")
            parameter.data = 1 + 0.4 * noise if is_scale else 0.4 * noise
    model.eval()


def write_logits(case: str, model: nn.Module, image: int, channels: int = 3) -> None:
    images = torch.randn(BATCH, channels, image, image, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        output = model(images)
    logits = output.logits if hasattr(output, "logits") else output
    np.savez(HERE / f"{case}.npz", images=images.permute(0, 2, 3, 1), logits=logits)


def training_state(network: nn.Module, **arguments: Any) -> dict[str, Any]:
    """What timm's training script saves, after one step of length zero."""
    optimizer = torch.optim.AdamW((p for p in network.parameters() if p.requires_grad), lr=0)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {
        "epoch": 299,
        "arch": arguments.get("model", ""),
        "state_dict": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "version": 2,
        "args": argparse.Namespace(lr=5.5e-4, opt_betas=None, **arguments),
        "amp_scaler": {"scale": 65536.0, "growth_factor": 2.0},
        "metric": np.float64(93.21),
    }


def heads_alpha(*choices: float) -> torch.Tensor:
    return torch.tensor(choices, dtype=torch.float32).view(1, -1, 1, 1)


def make_authors() -> None:
    heads = AuthorsViT(15, 3, 7, [heads_alpha(1, 0, 1), heads_alpha(0, 0, 1)])
    perturb(heads, 1)
    write_logits("authors_heads", heads, heads.image)
    state = training_state(heads, model="vit_7_4_32", mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.1])
    torch.save(state, HERE / "authors_heads.pth.tar")

    pattern = torch.tensor([1, 0, 0, 1, 0, 1, 1, 0, 1, 0.0]).view(1, 1, -1, 1)
    rows = AuthorsViT(14, 2, 11, [pattern, torch.ones_like(pattern)])
    perturb(rows, 2)
    write_logits("authors_rows", rows, rows.image)
    torch.save(training_state(rows, model="vit_2_4_32"), HERE / "authors_rows.pth.tar")

    betas = [pattern.view(1, -1, 1), torch.zeros(1, 10, 1)]
    plus = AuthorsViT(15, 3, 7, [heads_alpha(0, 1, 1), heads_alpha(1, 0, 0)], betas)
    perturb(plus, 3)
    write_logits("authors_plus", plus, plus.image)
    torch.save({"state_dict": plus.state_dict()}, HERE / "authors_plus.pth.tar")

    teacher = AuthorsViT(14, 2, 11, None)
    perturb(teacher, 4)
    write_logits("authors_teacher", teacher, teacher.image)
    state = training_state(teacher, model="vit_2_4_32")
    state["arch"] = type(teacher).__name__.lower()
    weights = {**state["state_dict"], **unused_weights()}
    state["state_dict"] = OrderedDict((f"module.{name}", each) for name, each in weights.items())
    torch.save(state, HERE / "authors_teacher.pth.tar")

    search = AuthorsViT(15, 3, 7, [heads_alpha(1, 0.62, 0), heads_alpha(0.13, 1, 0.9)])
    torch.save(training_state(search, model="vit_7_4_32"), HERE / "authors_search.pth.tar")


def unused_weights() -> dict[str, torch.Tensor]:
    """The authors' teacher declares these in every block and never reads them."""
    names = ("qkv_expand.0.weight", "qkv_expand.1.weight", "proj_expand.0.weight")
    names += ("proj_expand.0.bias", "proj_expand.1.weight", "proj_expand.1.bias")
    names += ("dw_conv.weight", "W", "kernel_s", "kernel_o")
    blocks = [f"self_attn.{name}" for name in names]
    expands = [f"linear_expand.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")]
    all_names = [f"classifier.blocks.{n}.{name}" for n in (0, 1) for name in (*blocks, *expands)]
    all_names += [f"classifier.fc_expand.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")]
    return {name: torch.ones(2) for name in all_names}


def make_timm() -> None:
    common: dict[str, Any] = {"img_size": 8, "patch_size": 2, "depth": 2, "embed_dim": 24}
    arguments = {**common, "num_heads": 3, "mlp_ratio": 1.5}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **arguments)
    perturb(model, 5)
    write_logits("timm_class", model, 8)
    labels = ["ant", "bee", "cat", "dog", "emu"]
    folder = HERE / "timm_class"
    save_for_hf(model, folder, {"label_names": labels}, arguments, safe_serialization=True)

    arguments = {**common, "num_heads": 4, "class_token": False, "global_pool": "avg"}
    arguments |= {"fc_norm": False, "qkv_bias": False, "in_chans": 1, "act_layer": "quick_gelu"}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **arguments)
    perturb(model, 6)
    write_logits("timm_mean", model, 8, channels=1)
    save_for_hf(model, HERE / "timm_mean", {}, arguments)


def make_hugging_face() -> None:
    common: dict[str, Any] = {"num_hidden_layers": 2, "image_size": 9, "patch_size": 3}
    labels = {0: "ant", 1: "bee", 2: "cat", 3: "dog"}
    config = transformers.ViTConfig(
        **common, hidden_size=22, intermediate_size=33, num_attention_heads=2, id2label=labels
    )
    model = transformers.ViTForImageClassification(config)
    perturb(model, 8)
    write_logits("hf", model, 9)
    model.save_pretrained(HERE / "hf")
    processor = transformers.ViTImageProcessor(
        size={"height": 9, "width": 9}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.1]
    )
    processor.save_pretrained(HERE / "hf")

    # Version 5's own names, in bfloat16, another activation and no bias in attention.
    config = transformers.ViTConfig(
        **common,
        **{"hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 3},
        **{"num_labels": 6, "hidden_act": "gelu_new", "qkv_bias": False, "layer_norm_eps": 0.01},
    )
    model = transformers.ViTForImageClassification(config)
    perturb(model, 9)
    model = model.to(torch.bfloat16).to(torch.float32)
    write_logits("hf_5", model, 9)
    (HERE / "hf_5").mkdir()
    torch.save(model.to(torch.bfloat16).state_dict(), HERE / "hf_5" / "pytorch_model.bin")
    config.save_pretrained(HERE / "hf_5")


def make_tensors() -> None:
    """Every dtype, and views that start late, skip, turn or repeat their storage."""
    base = torch.arange(30, dtype=torch.float32).reshape(5, 6) - 7.5
    tensors = {
        "base": base,
        "turned": base.T,
        "late": base[2:, 1:],
        "skipping": base[::2, ::3],
        "repeated": base[1, :2].expand(3, 2),
        "single": base[4, 5],
        "empty": base[:0],
        "parameter": nn.Parameter(base[:2].clone()),
    }
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
    dtypes += (torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)
    for dtype in dtypes:
        tensors[str(dtype).removeprefix("torch.")] = (base[3] + 11).to(dtype)
    torch.save(tensors, HERE / "tensors.pt")
    plain = {name: each.detach().clone() for name, each in tensors.items()}
    plain["bfloat16"] = plain["bfloat16"].float()
    np.savez(HERE / "tensors.npz", **plain)


class _Command:
    """Unpickling this with `pickle` would leave a file in the working folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch command-was-run",)


def make_refused() -> None:
    """Files that must not be read, let alone run."""
    with zipfile.ZipFile(HERE / "hostile.pth", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"state_dict": _Command()}, protocol=2))
    weights = {"head.weight": torch.zeros(2, 3)}
    torch.save(weights, HERE / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.trace(nn.Linear(2, 3), torch.zeros(1, 2)), str(HERE / "script.pt"))


def main() -> None:
    for path in HERE.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".py":
            path.unlink()
    make_authors()
    make_timm()
    make_hugging_face()
    make_tensors()
    make_refused()
    versions = {module.__name__: module.__version__ for module in (np, timm, torch, transformers)}
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
