"""The paper's network in PyTorch, only to be measured beside ours.

Run as a process of its own (`python -m mpcvit.bench.torch_vit`), it reads a
model's shape as JSON from its first line, then one number of steps per line,
and answers each with the seconds that they took.
"""

import importlib
import json
import sys
import time
from typing import Any

from mpcvit.artifacts.config import ModelConfig
from mpcvit.codec import decode

# PyTorch is no dependency: it is looked up by name, and only in this process.
torch: Any = importlib.import_module("torch")
nn = torch.nn


class Block(nn.Module):
    def __init__(self, config: ModelConfig, depth_rate: float) -> None:
        super().__init__()
        self.config, self.depth_rate = config, depth_rate
        width, hidden = config.width, config.hidden
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def attend(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.config.heads, self.config.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * self.config.head_dim**-0.5).softmax(dim=-1)
        weights = nn.functional.dropout(weights, self.config.attention_dropout)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, width))

    def drop(self, x: Any) -> Any:
        if self.depth_rate == 0:
            return x
        kept = torch.rand(len(x), 1, 1) >= self.depth_rate
        return x * kept / (1 - self.depth_rate)

    def forward(self, x: Any) -> Any:
        x = self.norm2(x + self.drop(self.attend(self.norm1(x))))
        return x + self.drop(self.down(nn.functional.gelu(self.up(x))))


class Vit(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        patch, width = config.patch_size, config.width
        self.patch = nn.Conv2d(config.channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, config.tokens, width) * 0.02)
        rates = torch.linspace(0, config.stochastic_depth, config.depth).tolist()
        self.blocks = nn.Sequential(*(Block(config, rate) for rate in rates))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, config.classes)

    def forward(self, images: Any) -> Any:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def main() -> None:
    request = json.loads(sys.stdin.readline())
    config = decode(ModelConfig, request["model"], "model")
    batch_size = request["batch_size"]
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    model = Vit(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.06)
    images = torch.randn(batch_size, config.channels, config.image_size, config.image_size)
    targets = torch.softmax(torch.randn(batch_size, config.classes), dim=-1)
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
