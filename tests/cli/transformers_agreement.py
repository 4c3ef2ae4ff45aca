"""Per-position loss and perplexity of the same weights and text, computed three ways: by this program, by `transformers` through
the example adapter, and by `transformers` alone. transformers_agreement.py PROGRAM ADAPTER. Exits with 77 where the package is missing."""
import base64
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    print("the transformers package is not installed")
    sys.exit(77)

program, adapter = sys.argv[1:3]
TOLERANCE = 1e-3
LENGTH, WINDOW = 200, 96


def random_model(folder):
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=258, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, bos_token_id=256, eos_token_id=257, initializer_range=0.2)
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def evaluate(who, folder, output):
    subprocess.run(
        [program, "eval", *who, "--text", folder / "text.txt", "--tokenizer", "byte", "--task", "per_position_loss,perplexity",
         f"--per_position_loss.length={LENGTH}", "--per_position_loss.rows=4", f"--perplexity.window={WINDOW}",
         "--perplexity.tokens=1000", "--perplexity.length=64", "--perplexity.documents=1,2", "--perplexity.streams=2",
         "-o", folder / output], check=True, stdout=subprocess.DEVNULL)
    return {task: json.loads((folder / output / f"{task}.json").read_text()) for task in ("per_position_loss", "perplexity")}


def losses_alone(model, text, begin):
    """Of a row as docs/evaluation.md defines it: LENGTH tokens after BOS."""
    ids = torch.tensor([[256, *text[begin : begin + LENGTH]]])
    with torch.inference_mode():
        logits = model(ids).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist()


def near(a, b, what):
    assert a is not None and b is not None and abs(a - b) <= TOLERANCE, (what, a, b)


def numbers(value, path=""):
    if isinstance(value, dict):
        for key in value:
            yield from numbers(value[key], f"{path}.{key}")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from numbers(one, f"{path}[{i}]")
    elif isinstance(value, float):
        yield path, value


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    model = random_model(folder / "llama")
    documents = ["".join(f"document {d}, line {i}: {i * (7 + d) % 31}. " for i in range(40)) for d in range(4)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    own = evaluate([folder / "llama"], folder, "own")
    asked = evaluate(["--adapter", f"{sys.executable} {adapter} {folder / 'llama'}"], folder, "asked")

    for task in own:
        a, b = (dict(numbers([x[task]["metrics"], x[task]["series"]])) for x in (own, asked))
        assert a.keys() == b.keys() and a, task
        # Perplexities are near 1000 here: they are compared as losses.
        for key in a:
            as_loss = math.log if "perplexity" in key else float
            near(as_loss(a[key]), as_loss(b[key]), key)

    lines = (folder / "own" / "per_position_loss.jsonl").read_text().splitlines()[1:]
    prepared = (folder / "text.txt").read_bytes()
    alone = []
    for line in map(json.loads, lines):
        begin = line["begin"] - 1  # BOS of the document stands before its text
        losses = losses_alone(model, prepared, begin)
        alone.append(losses)
        near(line["loss"], sum(losses) / LENGTH, "row")
        packed = base64.b64decode(line["losses"])
        for mine, theirs in zip(struct.unpack(f"<{LENGTH}f", packed), losses, strict=True):
            near(mine, theirs, "token")
    mean = sum(map(sum, alone)) / (LENGTH * len(alone))
    near(own["per_position_loss"]["metrics"]["loss"], mean, "loss")
    near(math.log(own["per_position_loss"]["series"]["perplexity"][-1]), mean, "perplexity")
print("per-position loss and perplexity agree")
