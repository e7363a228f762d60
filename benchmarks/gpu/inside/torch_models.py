"""Work for PyTorch in plain modules: products, a ResNet-50 and a GPT-2 small as they are trained, nothing downloaded.

In: the name of a kind and a device. Out: a function that does one iteration, without waiting for it, and whether each
iteration is to be waited for. `small` makes everything tiny: to try the code without a GPU.
"""

# mypy: disable-error-code="import-not-found, misc, no-any-return"

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

Iteration = Callable[[], Any]


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * 4
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        plain = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity() if same else plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet(depths: tuple[int, ...]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for place in range(depth):
            layers.append(Bottleneck(inputs, width, 2 if stage > 0 and place == 0 else 1))
            inputs = width * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Block(nn.Module):
    """GPT-2's: attention, then two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.into(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.second(x))


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and the embedding again as output."""

    def __init__(self, words: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.last = nn.Sequential(*(Block(width, heads) for _ in range(layers))), nn.LayerNorm(width)
        self.register_buffer("positions", torch.arange(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(self.positions)
        return self.last(self.blocks(x)) @ self.words.weight.t()


def product(size: int, device: str) -> Iteration:
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


def trained(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, device: str) -> Iteration:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(inputs)
            loss = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())
        loss.backward()
        optimizer.step()

    return step


def resnet_step(device: str, small: bool) -> Iteration:
    batch, side = (2, 32) if small else (64, 224)
    model = resnet((1, 1, 1, 1) if small else (3, 4, 6, 3)).to(device)
    return trained(
        model, torch.randn(batch, 3, side, side, device=device), torch.randint(1000, (batch,), device=device), device
    )


def gpt_step(device: str, small: bool) -> Iteration:
    words, length, width, heads, layers, batch = (64, 16, 32, 2, 2, 2) if small else (50257, 1024, 768, 12, 12, 8)
    model = Gpt(words, length, width, heads, layers).to(device)
    tokens = torch.randint(words, (batch, length), device=device)
    return graphed(trained(model, tokens, tokens.roll(-1, 1), device), device)


def graphed(step: Iteration, device: str) -> Iteration:
    """The whole step as one CUDA graph."""
    if device != "cuda":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def make(kind: str, device: str, *, small: bool) -> tuple[Iteration, bool]:
    if kind == "matmul-sync":
        return product(64 if small else 8192, device), True
    if kind == "matmul-async":
        return product(32 if small else 1024, device), False
    if kind == "resnet":
        return resnet_step(device, small), False
    if kind == "gpt2-graph":
        return gpt_step(device, small), False
    raise SystemExit(f"no such work: {kind}")
