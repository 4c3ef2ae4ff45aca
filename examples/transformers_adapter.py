#!/usr/bin/env python3
"""Lets `reynard eval --adapter` measure a model of the transformers package.

    reynard eval --adapter "python3 examples/transformers_adapter.py MODEL" --endpoint-tokenizer MODEL \
        --text book.txt --task per_position_loss,perplexity

Copy this file to measure any other model. One JSON object per line, in and out:

    first, unasked    {"name": ..., "vocab_size": ..., "train_length": ..., "bos": ..., "eos": ..., "generates": true}
    {"tokens": [N]}   {"logprobs": [N - 1], "hits": [N - 1]}: of each token but the first, given all before it;
                      natural logarithms; a hit (1) is a token that is the most probable one
    {"prompt", "max_tokens", "temperature", "seed", "stop": [ids], "stop_after_text": [ids]}
                      {"tokens": [...]}: what is written, without a stop token; ids of "stop_after_text" (line ends) stop
                      too once another one was written: a program may write on behind them, which costs time alone

"name" is needed, and {"error": ...} can answer anything. A request has an "id"; an answer may repeat it, so that none is taken for
another's. Numbers are finite: JSON has no NaN. Standard output belongs to these lines; write notes to standard error.
"""

import argparse
import json
import sys

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria

CHUNK = 2048  # tokens whose logits exist at the same time


def score(model, tokens):
    """Long texts go through the cache in chunks, so that memory does not grow with tokens x vocabulary."""
    ids = torch.tensor([tokens], device=model.device)
    cache, logprobs, hits = None, [], []
    for begin in range(0, len(tokens) - 1, CHUNK):
        end = min(begin + CHUNK, len(tokens) - 1)
        out = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits, targets = out.logits[0].float(), ids[0, begin + 1 : end + 1]
        chosen = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        logprobs += chosen.tolist()
        hits += (logits.argmax(-1) == targets).int().tolist()
    return {"logprobs": logprobs, "hits": hits}


class LineEnd(StoppingCriteria):
    """Stops at a token of "stop_after_text" that has another one before it in what was written."""

    def __init__(self, ids, prompt_length):
        self.ids, self.begin = ids, prompt_length

    def __call__(self, tokens, scores, **kwargs):
        written = tokens[0, self.begin :].tolist()
        ends = written[-1] in self.ids and any(token not in self.ids for token in written)
        return torch.tensor([ends], device=tokens.device)


def write(model, request):
    prompt = torch.tensor([request["prompt"]], device=model.device)
    # The model's own generation settings are no part of what is measured.
    sampling = {"do_sample": False, "repetition_penalty": 1.0, "temperature": None, "top_p": None, "top_k": None}
    if request["temperature"] > 0:
        torch.manual_seed(request["seed"])
        sampling |= {"do_sample": True, "temperature": request["temperature"], "top_p": 1.0, "top_k": 0}
    text = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=request["max_tokens"],
        eos_token_id=request["stop"] or None,
        pad_token_id=0,
        stopping_criteria=[LineEnd(request["stop_after_text"], prompt.shape[1])],
        **sampling,
    )[0, prompt.shape[1] :].tolist()
    if text and text[-1] in request["stop"]:
        text.pop()
    elif text and text[-1] in request["stop_after_text"] and len(text) < request["max_tokens"]:
        text.pop()
    return {"tokens": text}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or hub name")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype))
    model.to(arguments.device).eval()
    config = model.config
    eos = config.eos_token_id
    hello = {
        "name": arguments.model.rstrip("/").split("/")[-1],
        "vocab_size": config.vocab_size,
        "bos": config.bos_token_id,
        "eos": eos[0] if isinstance(eos, list) else eos,
        "generates": True,
    }
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            with torch.inference_mode():
                answer = score(model, request["tokens"]) if "tokens" in request else write(model, request)
            line = json.dumps(answer | {"id": request["id"]}, allow_nan=False)
        except (RuntimeError, ValueError, IndexError) as error:
            line = json.dumps({"error": str(error), "id": request["id"]})
        print(line, flush=True)


if __name__ == "__main__":
    main()
