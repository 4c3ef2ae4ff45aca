"""A plain PyTorch model of the FoX layout, in f64, one sequence at a time, written from the papers'
formulas: the tests compare the decoder's switches with it. Needs torch and numpy only.

reference_model.py FOLDER...: each folder has config.json, model.safetensors and input.safetensors
(tokens, targets, offsets of all sequences, one after the other); writes output.safetensors with
logits, loss (mean over tokens) and grad.NAME of every trained parameter.
"""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64}


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        array = np.frombuffer(data[begin:end], dtype=DTYPES[info["dtype"]]).reshape(info["shape"])
        tensors[name] = torch.from_numpy(array.copy())
    return tensors


def write_safetensors(path, tensors):
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        blob = tensor.detach().to(torch.float64).contiguous().numpy().tobytes()
        shape = list(tensor.shape)
        header[name] = {"dtype": "F64", "shape": shape, "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def rotate(x, base):
    """x (T, heads, D): pairs (j, j + D/2) turned by position * base^(-2j/D)."""
    T, _, D = x.shape
    angles = torch.arange(T, dtype=x.dtype)[:, None] * base ** (
        -2 * torch.arange(D // 2, dtype=x.dtype) / D
    )
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model:
    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.H = config["num_heads"]
        self.G = config["num_kv_heads"] or self.H
        self.D = config.get("reynard", {}).get("head_dim", config["hidden_size"] // self.H)

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        return y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y

    def shifted(self, x, name, on):
        if not on:
            return self.linear(x, name).view(-1, self.G, self.D)
        raw = self.linear(x, name + ".linear").view(-1, self.G, self.D)
        amount = torch.sigmoid(self.linear(x, name + ".shift_proj"))[..., None]
        before = torch.cat([torch.zeros_like(raw[:1]), raw[:-1]])
        return amount * before + (1 - amount) * raw

    def head_norm(self, x, name, eps):
        weight = self.weights[name + ".weight"]
        return rms_norm(x, weight.view(-1, self.D), eps)  # (heads, D) or (1, D)

    def log_gate(self, x, p):
        T = len(x)
        if p + "fgate_proj.weight" in self.weights:
            return torch.nn.functional.logsigmoid(self.linear(x, p + "fgate_proj"))
        if p + "fgate_bias" in self.weights:
            return torch.nn.functional.logsigmoid(self.weights[p + "fgate_bias"]).expand(T, -1)
        return torch.zeros(T, self.H, dtype=x.dtype)

    def attention(self, x, p):
        c, T = self.config, len(x)
        q = self.linear(x, p + "q_proj").view(T, self.H, self.D)
        k = self.shifted(x, p + "k_proj", c.get("use_k_shift"))
        v = self.shifted(x, p + "v_proj", c.get("use_v_shift"))
        if c.get("qk_norm"):
            q = self.head_norm(q, p + "q_norm", 1e-5)
            k = self.head_norm(k, p + "k_norm", 1e-5)
        if c["use_rope"]:
            q, k = rotate(q, c["rope_base"]), rotate(k, c["rope_base"])
        k = k.repeat_interleave(self.H // self.G, 1)
        v = v.repeat_interleave(self.H // self.G, 1)
        sums = self.log_gate(x, p).cumsum(0)
        logits = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.D)
        logits = logits + sums.T[:, :, None] - sums.T[:, None, :]
        i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
        visible = (j <= i) & (j > i - (c["window_size"] or T))
        weights = logits.masked_fill(~visible, -math.inf).softmax(-1)
        out = torch.einsum("hij,jhd->ihd", weights, v)
        if c.get("use_output_norm"):
            out = self.head_norm(out, p + "output_norm", c["norm_eps"])
        out = out.reshape(T, -1)
        if c.get("use_output_gate"):
            gate = self.linear(x, p + "ogate_proj")
            out = out * (torch.sigmoid(gate) * (gate if c["ogate_act"] == "silu" else 1))
        return self.linear(out, p + "o_proj")

    def mlp(self, x, p):
        gate, up = self.linear(x, p + "gate_proj").chunk(2, -1)
        act = torch.sigmoid(gate) * (1 if self.config["hidden_act"] == "sigmoid" else gate)
        return self.linear(act * up, p + "down_proj")

    def __call__(self, tokens):
        eps = self.config["norm_eps"]
        x = self.weights["model.embeddings.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self.attention(rms_norm(x, self.weights[p + "attn_norm.weight"], eps), p + "attn.")
            x = x + self.mlp(rms_norm(x, self.weights[p + "mlp_norm.weight"], eps), p + "mlp.")
        x = rms_norm(x, self.weights["model.norm.weight"], eps)
        tied = self.config["tie_word_embeddings"]
        return x @ self.weights["model.embeddings.weight" if tied else "lm_head.weight"].T


def main(folder):
    config = json.loads((folder / "config.json").read_text())
    weights = {
        name: tensor.to(torch.float64).requires_grad_(
            not (name.endswith("fgate_bias") and config.get("fgate_type") == "fixed")
        )
        for name, tensor in read_safetensors(folder / "model.safetensors").items()
    }
    inputs = read_safetensors(folder / "input.safetensors")
    offsets = inputs["offsets"].tolist() + [len(inputs["tokens"])]
    model = Model(config, weights)
    logits = torch.cat(
        [model(inputs["tokens"][a:b]) for a, b in zip(offsets[:-1], offsets[1:])]
    )
    loss = torch.nn.functional.cross_entropy(logits, inputs["targets"])
    loss.backward()
    output = {"logits": logits, "loss": loss}
    for name, weight in weights.items():
        if weight.requires_grad:
            output["grad." + name] = weight.grad
    write_safetensors(folder / "output.safetensors", output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for argument in sys.argv[1:]:
        main(Path(argument))
