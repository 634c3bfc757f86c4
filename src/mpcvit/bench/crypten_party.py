"""One of CrypTen's two parties, as a process; needs PyTorch and CrypTen.

It reads its task, a line of JSON, from standard input, and prints the cost as JSON.
Weights and image come as arrays of a safetensors file, so nothing is unpickled.
Rank 0 owns the model and makes the triples (CrypTen's first-party provider).
"""

import importlib
import json
import math
import secrets
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from mpcvit.artifacts.config import BlockForm, ModelConfig, Pooling
from mpcvit.codec import decode
from mpcvit.cores import threads_of_party
from mpcvit.secure.parties.sockets import dial, listen

IMAGE = "image"


@dataclass(frozen=True, kw_only=True)
class Task:
    """A party's task: what it computes, and where the other one is."""

    rank: int
    address: str  # rank 0 listens here, and rank 1 dials it
    arrays: str  # safetensors file
    attention: str
    model: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The cost of one image, and its logits."""

    seconds: float
    exchanges: int
    sent_bytes: int
    logits: list[float]


def import_crypten() -> Any:
    """Import CrypTen, without its converter, which newer versions of PyTorch break."""
    converter = ModuleType("crypten.nn.onnx_converter")
    for name in ("from_onnx", "from_pytorch", "from_tensorflow", "TF_AND_TF2ONNX"):
        setattr(converter, name, None)
    sys.modules[converter.__name__] = converter
    return importlib.import_module("crypten")


class Exchange:
    """CrypTen's communicator, over one connection; counts messages and bytes.

    CrypTen's own needs a mesh of ports, which no relay can stand between.
    """

    def __init__(self, rank: int, address: str) -> None:
        self._torch = importlib.import_module("torch")
        self._rank, self.exchanges, self.sent_bytes = rank, 0, 0
        if rank == 0:
            with listen(address) as listener:
                print(json.dumps("listening"), flush=True)
                self._line, _ = listener.accept()
        else:
            self._line = dial(address)

    def get_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return 2

    def all_reduce(self, given: Any, op: Any = None, batched: bool = False) -> Any:
        """Exchange tensors, and return their sum or their exclusive or."""
        tensors = given if batched else [given]
        theirs = self._swap(tensors)
        xor = op == self._torch.distributed.ReduceOp.BXOR
        both = [a ^ b if xor else a + b for a, b in zip(tensors, theirs, strict=True)]
        return both if batched else both[0]

    def agree_on_seeds(self, crypten: Any) -> None:
        """Give CrypTen's generators their seeds, as its own set-up does."""
        own = self._torch.tensor([secrets.randbits(62) for _ in range(3)])
        (theirs,) = self._swap([own])
        first = own if self._rank == 0 else theirs
        seeds = {"next": own[0], "prev": theirs[0], "local": own[1], "global": first[2]}
        for name, seed in seeds.items():
            generator = self._torch.Generator()
            generator.manual_seed(int(seed))
            crypten.generators[name][self._torch.device("cpu")] = generator

    def _swap(self, tensors: list[Any]) -> list[Any]:
        content = b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)
        sender = threading.Thread(target=self._line.sendall, args=(content,))
        sender.start()
        received = bytearray(len(content))
        place = memoryview(received)
        while place:
            count = self._line.recv_into(place)
            if not count:
                raise SystemExit("the other party hung up")
            place = place[count:]
        sender.join()
        self.exchanges += 1
        self.sent_bytes += len(content)
        flat = self._torch.from_numpy(np.frombuffer(received, np.int64))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.reshape(own.shape) for part, own in zip(parts, tensors, strict=True)]


class Network:
    """The network as it is written, on CrypTen's tensors."""

    def __init__(self, crypten: Any, model: ModelConfig, attention: str, shared: dict[str, Any]):
        self._crypten, self._model = crypten, model
        self._attention, self._shared = attention, shared

    def logits(self, image: Any) -> Any:
        model, x = self._model, self._embed(image)
        for index in range(model.depth):
            name = f"blocks_{index}"
            x = x + self._attend(self._norm(x, f"{name}/norm1"), f"{name}/attention")
            if model.block is BlockForm.LITE:
                x = self._norm(x, f"{name}/norm2")
                x = x + self._mlp(x, f"{name}/mlp")
            else:
                x = x + self._mlp(self._norm(x, f"{name}/norm2"), f"{name}/mlp")
        x = self._norm(x, "norm")
        pooled = x[:1] if model.pooling is Pooling.CLASS else x.mean(0, keepdim=True)
        return self._linear(pooled, "head")

    def _embed(self, patches: Any) -> Any:
        x = self._linear(patches, "embed/patch")
        if self._model.pooling is Pooling.CLASS:
            token = self._shared["embed/class_token"].reshape(1, self._model.width)
            x = self._crypten.cat([token, x])
        return x + self._shared["embed/position"]

    def _linear(self, x: Any, name: str) -> Any:
        y, bias = x.matmul(self._shared[f"{name}/kernel"]), self._shared.get(f"{name}/bias")
        return y if bias is None else y + bias

    def _norm(self, x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        y = centred * (variance + self._model.norm_eps).inv_sqrt()
        return y * self._shared[f"{name}/scale"] + self._shared[f"{name}/bias"]

    def _attend(self, x: Any, name: str) -> Any:
        model = self._model
        qkv, width = self._linear(x, f"{name}/qkv"), model.width
        q, k, v = (
            qkv[:, part * width : (part + 1) * width]
            .reshape(model.tokens, model.heads, model.head_dim)
            .transpose(0, 1)
            for part in range(3)
        )
        y = self._heads(q * (1 / math.sqrt(model.head_dim)), k, v)
        return self._linear(y.transpose(0, 1).reshape(model.tokens, width), f"{name}/proj")

    def _heads(self, q: Any, k: Any, v: Any) -> Any:
        if self._attention == "scaling":
            return q.matmul((k * (1 / self._model.tokens)).transpose(1, 2).matmul(v))
        scores = q.matmul(k.transpose(1, 2))
        if self._attention == "softmax":
            return scores.softmax(-1).matmul(v)
        positive = scores.relu()
        with self._crypten.config.cfg.temp_override({"functions.reciprocal_all_pos": True}):
            inverse = (positive.sum(-1, keepdim=True) + self._model.attention_eps).reciprocal()
        return (positive * inverse).matmul(v)

    def _mlp(self, x: Any, name: str) -> Any:
        hidden = self._linear(x, f"{name}/up")
        hidden = hidden * ((hidden * (1 / math.sqrt(2))).erf() + 1) * 0.5
        return self._linear(hidden, f"{name}/down")


def cut_patches(model: ModelConfig, image: np.ndarray) -> np.ndarray:
    """Return an image as rows of patches, as the network's embedding cuts it."""
    side, patch = model.image_size // model.patch_size, model.patch_size
    cells = image.reshape(side, patch, side, patch, model.channels).transpose(0, 2, 1, 3, 4)
    return cells.reshape(side * side, -1)


def main() -> None:
    task = decode(Task, json.loads(sys.stdin.readline()), "the task")
    model = decode(ModelConfig, task.model, "the model")
    crypten = import_crypten()
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads_of_party(2))
    line = Exchange(task.rank, task.address)
    crypten.communicator.get = lambda: line
    line.agree_on_seeds(crypten)
    arrays = {name: torch.from_numpy(array) for name, array in load_file(Path(task.arrays)).items()}
    # a party passes zeros for what the other one owns
    owner = {name: int(name == IMAGE) for name in arrays}
    shared = {
        name: crypten.cryptensor(array if owner[name] == task.rank else 0 * array, src=owner[name])
        for name, array in arrays.items()
        if name != IMAGE
    }
    image = arrays[IMAGE] if task.rank == owner[IMAGE] else 0 * arrays[IMAGE]
    line.exchanges = line.sent_bytes = 0
    with torch.no_grad():
        begun = time.monotonic()
        network = Network(crypten, model, task.attention, shared)
        logits = network.logits(crypten.cryptensor(image, src=1)).get_plain_text()
        seconds = time.monotonic() - begun
    outcome = Outcome(
        seconds=seconds,
        exchanges=line.exchanges,
        sent_bytes=line.sent_bytes,
        logits=logits.flatten().tolist(),
    )
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main()
