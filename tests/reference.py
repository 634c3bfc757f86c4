"""The model again, in plain float64 NumPy, written from the formulas.

Nothing here shares code with the package: loops over heads and rows, no
grouping, no fusing, no linear order.
"""

import math

import numpy as np

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.choices import LayerMixture
from mpcvit.artifacts.config import Activation, BlockForm, NormForm, Pooling
from mpcvit.kinds import table

_erf = np.vectorize(math.erf)


def relu(x):
    return np.maximum(x, 0.0)


def softmax_row(s):
    e = np.exp(s - s.max())
    return e / e.sum()


def the_x_inverse(r, tokens, parameters):
    x = np.array([r / tokens])
    for name in ("hidden_0", "hidden_1"):
        x = relu(x @ parameters[name]["kernel"] + parameters[name]["bias"])
    return (x @ parameters["output"]["kernel"] + parameters["output"]["bias"])[0] / tokens


def weights_row(kind, s, config, parameters=None):
    """Attention weights of one row of scores."""
    if kind in (table.SOFTMAX, table.LINFORMER):
        return softmax_row(s)
    if kind is table.RELU:
        return relu(s)
    if kind is table.RELU6:
        return np.minimum(relu(s), 6.0)
    if kind is table.SPARSEMAX:
        return np.array([1.0 if t > 1 else 0.0 if t < -1 else (t + 1) / 2 for t in s])
    if kind is table.SQUARE:
        return s * s
    if kind is table.QUAD2:
        q = (s + config.quad2_offset) ** 2
        return q / (q.sum() + config.attention_eps)
    if kind is table.SCALING:
        return s / len(s)
    if kind is table.RELU_SOFTMAX:
        return relu(s) / (relu(s).sum() + config.attention_eps)
    if kind is table.THE_X:
        r = relu((s / 2 + 1) ** 3).sum()
        return s * the_x_inverse(r, len(s), parameters["inverse"])
    if kind is table.RELU_BY_KEYS:
        return relu(s) / len(s)
    if kind is table.SQUARE_BY_KEYS:
        return s * s / len(s)
    if kind is table.POWER_SOFTMAX:
        c, power = config.constant("power_offset"), config.constant("power")
        q = (s + c) ** power
        return q / (q.sum() + config.attention_eps * max(1.0, abs(c)) ** power)
    raise AssertionError(kind)


def row_output(kind, q, k, v, head, config, parameters):
    """Output of one query row."""
    if kind is table.XNORM:
        gamma = parameters["gamma"][head]
        kv = k.T @ v
        kv = gamma * kv / np.sqrt((kv**2).sum(axis=1, keepdims=True) + config.xnorm_eps)
        return (gamma * q / np.sqrt((q**2).sum() + config.xnorm_eps)) @ kv
    if kind is table.LINFORMER:
        k, v = parameters["key_projection"] @ k, parameters["value_projection"] @ v
    s = np.array([q @ key for key in k]) / math.sqrt(len(q))
    return weights_row(kind, s, config, parameters) @ v


def attention(x, layer, config, parameters):
    tokens, width = x.shape
    qkv = x @ parameters["qkv"]["kernel"]
    if config.qkv_bias:
        qkv = qkv + parameters["qkv"]["bias"]
    out = np.zeros((tokens, width))
    narrow = config.head_dim_qk or config.head_dim
    values = 2 * narrow * config.heads  # where values begin
    for head in range(config.heads):
        columns = slice(head * config.head_dim, (head + 1) * config.head_dim)
        q = qkv[:, head * narrow : (head + 1) * narrow]
        k = qkv[:, (config.heads + head) * narrow : (config.heads + head + 1) * narrow]
        v = qkv[:, values:][:, columns]
        for row in range(tokens):
            for kind, share in choices(layer, head, row, parameters):
                y = row_output(kind, q[row], k, v, head, config, parameters)
                out[row, columns] += share * y
    return out @ parameters["proj"]["kernel"] + parameters["proj"]["bias"]


def choices(layer, head, row, parameters):
    """Kinds of one row of one head, each with its share."""
    if isinstance(layer, LayerMixture):
        alpha = parameters["alpha"]
        a = alpha[head if len(alpha) > 1 else 0][row if alpha.shape[1] > 1 else 0]
        return [(layer.kept, a), (layer.replacement, 1 - a)]
    choice = layer.heads[head]
    return [(choice[row] if isinstance(choice, tuple) else choice, 1.0)]


def activate(activation, x, learnt=None):
    if activation is Activation.GELU:
        return x * 0.5 * (1 + _erf(x / math.sqrt(2)))
    if activation is Activation.GELU_TANH:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if activation is Activation.GELU_SIGMOID:
        return x / (1 + np.exp(-1.702 * x))
    if activation is Activation.RELU:
        return relu(x)
    if activation is Activation.QUAD:
        return x**2 / 8 + x / 4 + 0.5
    assert activation is Activation.QUADRATIC
    return learnt["square"] * x**2 + learnt["slope"] * x + learnt["constant"]


def mlp(x, layer, activation, parameters):
    rows = []
    for token, row in enumerate(x):
        hidden = row @ parameters["up"]["kernel"] + parameters["up"]["bias"]
        if isinstance(layer, LayerMixture):
            form, beta = MlpForm.LINEAR, parameters.get("beta", np.ones(1))
            b = beta[token if len(beta) > 1 else 0]
            learnt = parameters.get("quadratic")
            other = activate(Activation.QUADRATIC, hidden, learnt) if layer.quadratic else hidden
            hidden = b * activate(activation, hidden, learnt) + (1 - b) * other
        else:
            form = layer.mlp[token] if isinstance(layer.mlp, tuple) else layer.mlp
        if form is MlpForm.ACTIVATED:
            hidden = activate(activation, hidden, parameters.get("quadratic"))
        y = hidden @ parameters["down"]["kernel"] + parameters["down"]["bias"]
        rows.append(relu(y) if form in (MlpForm.LINEAR_RELU, MlpForm.FUSED_RELU) else y)
    return np.stack(rows)


def norm(x, parameters, form, config):
    if "layer_share" in parameters:
        bare = {name: value for name, value in parameters.items() if name != "layer_share"}
        g = parameters["layer_share"]
        by_token = norm(x, bare, NormForm.LAYER, config)
        return g * by_token + (1 - g) * norm(x, bare, NormForm.BATCH, config)
    if form is NormForm.LINEAR:
        return x * parameters["scale"] + parameters["bias"]
    if form is NormForm.BATCH:
        unit = (x - parameters["mean"]) / np.sqrt(parameters["variance"] + config.norm_eps)
        y = unit * parameters["scale"] + parameters["bias"]
        return np.clip(y, -config.clip, config.clip) if config.clip else y
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + config.norm_eps) * parameters["scale"] + parameters[
        "bias"
    ]


def merge_pairs(x, config):
    """Merge pairs of patches: side by side if their grid is square, else one above the other."""
    first = (config.pooling is not Pooling.MEAN) + config.extra_tokens
    patches = len(x) - first
    columns = math.isqrt(patches)
    square = columns * columns == patches
    if not square:
        columns = math.isqrt(patches // 2)
    merged = []
    for index in range(patches):
        row, column = divmod(index, columns)
        if (column if square else row) % 2 == 0:
            neighbour = index + (1 if square else columns)
            merged.append((x[first + index] + x[first + neighbour]) / 2)
    return np.stack([*x[:first], *merged])


def mix_tokens(x, counts, shares, config):
    """Weigh every token against the mean of those that it would be merged with."""
    for count, share in zip(counts, shares, strict=True):
        merged, places = x, np.arange(len(x))[:, None]  # of each token: what it is merged from
        while len(merged) > count:
            merged, places = merge_pairs(merged, config), merge_places(places, config)
        means = np.empty_like(x)
        for value, own in zip(merged, places, strict=True):
            means[own] = value
        x = share * x + (1 - share) * means
    return x


def merge_places(places, config):
    """Return for each merged token the places of all patches in it."""
    found = merge_pairs(np.eye(len(places)), config)
    return [np.concatenate([places[i] for i in np.flatnonzero(row)]) for row in found]


def embed(image, config, parameters):
    p = config.patch_size
    side = config.image_size // p
    patches = [
        image[r * p : (r + 1) * p, c * p : (c + 1) * p].reshape(-1)
        for r in range(side)
        for c in range(side)
    ]
    x = np.stack(patches) @ parameters["patch"]["kernel"] + parameters["patch"]["bias"]
    if config.extra_tokens:
        x = np.concatenate([np.zeros((config.extra_tokens, x.shape[1])), x])
    if config.pooling is not Pooling.MEAN:
        x = np.concatenate([parameters["class_token"][None], x])
    x = x + parameters["position"]
    return norm(x, parameters["norm"], NormForm.LAYER, config) if config.embed_norm else x


def pool(x, config):
    patches = x[(config.pooling is not Pooling.MEAN) + config.extra_tokens :]
    match config.pooling:
        case Pooling.CLASS:
            return x[0]
        case Pooling.MEAN:
            return patches.mean(axis=0)
        case Pooling.CLASS_MEAN:
            return np.concatenate([x[0], patches.mean(axis=0)])
        case Pooling.CLASS_EXTRA:
            return np.concatenate([x[0], x[1]])


def layer_form(index, layer, config):
    """What a layer chooses, or else what the model says; tokens 0 keeps all."""
    form = {"activation": config.activation}
    for name in ("norm1", "norm2"):
        kept = f"{index}.{name}" in config.layer_norms
        form[name] = NormForm.LAYER if kept else config.norm
    form["tokens"] = config.layer_tokens[index] if config.layer_tokens else 0
    chosen = vars(layer.form) if hasattr(layer, "form") else {}
    return form | {name: own for name, own in chosen.items() if own is not None}


def vit(images, config, architecture, parameters):
    """Logits [batch, classes]."""
    parameters = _float64(parameters)
    logits = []
    for image in np.asarray(images, np.float64):
        x = embed(image, config, parameters["embed"])
        for index, layer in enumerate(architecture.layers):
            own, form = parameters[f"blocks_{index}"], layer_form(index, layer, config)
            while form["tokens"] and len(x) > form["tokens"]:
                x = merge_pairs(x, config)
            if "token_shares" in own:
                x = mix_tokens(x, layer.token_counts, own["token_shares"], config)
            x1 = norm(x, own["norm1"], form["norm1"], config)
            x = x + attention(x1, layer, config, own["attention"])
            if config.block is BlockForm.LITE:
                x = norm(x, own["norm2"], form["norm2"], config)
                x = x + mlp(x, layer, form["activation"], own["mlp"])
            else:
                x2 = norm(x, own["norm2"], form["norm2"], config)
                x = x + mlp(x2, layer, form["activation"], own["mlp"])
        last = NormForm.LAYER if "norm" in config.layer_norms else config.norm
        last = getattr(architecture, "norm", None) or last
        if config.pooled_norm:
            pooled = norm(pool(x, config), parameters["norm"], last, config)
        else:
            pooled = pool(norm(x, parameters["norm"], last, config), config)
        logits.append(pooled @ parameters["head"]["kernel"] + parameters["head"]["bias"])
    return np.stack(logits)


def _float64(tree):
    if isinstance(tree, dict):
        return {name: _float64(branch) for name, branch in tree.items()}
    return np.asarray(tree, np.float64)
