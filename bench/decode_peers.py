#!/usr/bin/env python3
"""PyTorch's time of a decode step with the shapes of Llama 3 8B in bf16, beside that of infer.cu: torch.compile of the whole
model with CUDA graphs (mode "reduce-overhead"), a static key-value cache, random weights, the likeliest token.

    COMMIT=... python3 bench/decode_peers.py OUT.tsv [SEQUENCES CONTEXT]     default: 1 1024; a line is appended to OUT.tsv

Each time is the median of ROUNDS rounds of STEPS steps. Compiling takes longer than measuring.
"""
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

HIDDEN, FFN, HEADS, KV_HEADS, DIM, LAYERS, VOCABULARY = 4096, 14336, 32, 8, 128, 32, 128256
DEVICE = "cuda"
ROUNDS, STEPS, WARM = 5, 20, 4


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(HIDDEN)) for _ in range(2))
        self.qkv, self.proj = linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM), linear(HEADS * DIM, HIDDEN)
        self.fc1, self.fc2 = linear(HIDDEN, 2 * FFN), linear(FFN, HIDDEN)


def rmsnorm(x, weight):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def rope(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), linear(HIDDEN, VOCABULARY)
        self.layers, self.norm = nn.ModuleList(Layer() for _ in range(LAYERS)), nn.Parameter(torch.ones(HIDDEN))

    def forward(self, token, position, caches, mask, cos, sin):
        x = self.embedding(token)
        sequences, cos, sin = x.shape[0], cos[position], sin[position]
        for layer, (keys, values) in zip(self.layers, caches):
            q, k, v = layer.qkv(rmsnorm(x, layer.norm1)).split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], -1)
            q, k = rope(q.view(sequences, 1, HEADS, DIM), cos, sin), rope(k.view(sequences, 1, KV_HEADS, DIM), cos, sin)
            keys.index_copy_(2, position, k.transpose(1, 2))
            values.index_copy_(2, position, v.view(sequences, 1, KV_HEADS, DIM).transpose(1, 2))
            y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values,
                                               attn_mask=mask[position].view(1, 1, 1, -1), enable_gqa=True)
            x = x + layer.proj(y.transpose(1, 2).reshape(sequences, 1, HEADS * DIM))
            gate, up = layer.fc1(rmsnorm(x, layer.norm2)).chunk(2, -1)
            x = x + layer.fc2(F.silu(gate) * up)
        return self.head(rmsnorm(x, self.norm)).argmax(-1)


def round_of(step):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(STEPS):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / STEPS * 1e3


@torch.no_grad()
def main(out, sequences=1, context=1024):
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Model()
        frequencies = 5e5 ** -(torch.arange(0, DIM, 2, dtype=torch.float32) / DIM)
        angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)[:, None, :]
        cos, sin = angles.cos(), angles.sin()
        caches = [tuple(torch.randn(sequences, KV_HEADS, context, DIM) for _ in range(2)) for _ in range(LAYERS)]
        mask = torch.ones(context, context, dtype=torch.bool).tril()
        token, position = torch.zeros(sequences, 1, dtype=torch.long), torch.tensor([context - 2])
    for pair in caches:
        for cache in pair:
            torch._dynamo.mark_static_address(cache)
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    step = lambda: compiled(token, position, caches, mask, cos, sin)
    start = time.monotonic()
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    compile_seconds = time.monotonic() - start
    rounds = [round_of(step) for _ in range(ROUNDS)]
    us = statistics.median(rounds)
    spread = (max(rounds) - min(rounds)) / us
    print(f"llama 8b, torch.compile, {sequences} x {context}: {us:.1f} us, {sequences * 1e6 / us:.1f} tokens/s "
          f"+-{50 * spread:.1f}% (compiled in {compile_seconds:.0f} s)", flush=True)
    is_new = not os.path.exists(out)
    with open(out, "a") as tsv:
        if is_new:
            device = torch.cuda.get_device_name()
            tsv.write(f"# {device}, commit {os.environ.get('COMMIT', '?')}, torch {torch.__version__}\n")
            tsv.write("what\tpass\tvariant\tshape\tmicroseconds\tspread\n")
        tsv.write(f"llama 8b\tdecode\tcompile\t{sequences} x {context}\t{us:.3f}\t{spread:.3f}\n")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("decode_peers.py: PyTorch sees no GPU")
    main(sys.argv[1], *map(int, sys.argv[2:4]))
