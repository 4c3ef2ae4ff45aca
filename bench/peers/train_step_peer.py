"""Peer of `reynard bench train_step`: a LLaMA-style Transformer in PyTorch eager.

    train_step_peer.py BATCH LENGTH f32|bf16 VOCABULARY WIDTH LAYERS HEADS MLP cpu|cuda

Answers every line on stdin with one training step and its loss: forward, backward, clipping, fused
AdamW. bf16 is autocast with f32 weights. Same sizes, vocabulary and optimizer settings as ours.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, LAYERS, HEADS, MLP = map(int, sys.argv[4:9])
DEVICE = sys.argv[9]
HEAD = WIDTH // HEADS


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp_norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.gate_up = nn.Linear(WIDTH, 2 * MLP, bias=False)
        self.down = nn.Linear(MLP, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, time, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Transformer(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        angle = torch.outer(torch.arange(length).float(), 500000 ** (-torch.arange(0, HEAD, 2) / HEAD))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def main():
    batch, length, dtype = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    model = Transformer(length).to(DEVICE)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    text = torch.randint(VOCABULARY, (batch, length + 1)).to(DEVICE)
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].reshape(-1)
    for _ in sys.stdin:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item(), flush=True)


main()
