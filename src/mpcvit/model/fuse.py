"""Two linears as one, multiplied by the owner of the weights before anything is secret."""

from typing import Any

from mpcvit.artifacts.architecture import Architecture, MlpForm


def fuse_linears(architecture: Architecture, parameters: Any) -> Any:
    """Return the parameters with the products that fused MLPs multiply by.

    An MLP whose tokens are all fused keeps the product alone. One with other
    tokens too keeps its two linears beside the product.

        x W + b,  W = W1 W2,  b = b1 W2 + b2
    """
    fused = dict(parameters)
    for index, layer in enumerate(architecture.layers):
        forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,)
        if any(form.is_fused for form in forms):
            block = fused[f"blocks_{index}"]
            fused[f"blocks_{index}"] = {**block, "mlp": _fuse(frozenset(forms), block["mlp"])}
    return fused


def _fuse(forms: frozenset[MlpForm], mlp: Any) -> Any:
    up, down = mlp["up"], mlp["down"]
    product = {
        "kernel": up["kernel"] @ down["kernel"],
        "bias": up["bias"] @ down["kernel"] + down["bias"],
    }
    only_product = all(form.is_fused for form in forms)
    return {"fused": product} if only_product else {**mlp, "fused": product}
