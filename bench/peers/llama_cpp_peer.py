"""Peer of `reynard bench generate`: llama.cpp (PyPI llama-cpp-python, gguf) on the same weights in bf16 or Q8_0.

    llama_cpp_peer.py MODEL PROMPT TOKENS bf16|int8

MODEL is a folder in Llama's layout; its weights are written as a GGUF file beside it. "prefill" reads the prompt; "behind N"
answers by how many standard deviations token N's logit is below the best; "decode" writes TOKENS greedily and takes them back.
"""

import json
import os
import sys

import gguf
import numpy as np
from llama_cpp import Llama, llama_cpp
from safetensors import safe_open

FOLDER, PROMPT, TOKENS, DTYPE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
QUANTIZATION = {"bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0}[DTYPE]
VOCABULARY = 32000
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(weight, heads):
    """llama.cpp rotates neighbouring dimensions, the published layout halves of a head."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def write_gguf(path):
    with open(os.path.join(FOLDER, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    heads = config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(PROMPT + TOKENS + 64)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    with safe_open(os.path.join(FOLDER, "model.safetensors"), "numpy") as weights:
        for name in weights.keys():
            weight = weights.get_tensor(name).astype(np.float32)
            if "q_proj" in name or "k_proj" in name:
                weight = interleaved(weight, heads)
            if weight.ndim == 1:
                writer.add_tensor(gguf_name(name), weight)
                continue
            packed = gguf.quants.quantize(np.ascontiguousarray(weight), QUANTIZATION)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=QUANTIZATION)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_params_without_amx(defaults=llama_cpp.llama_model_default_params):
    """AMX kernels of llama-cpp-python 0.3.36 end in SIGILL with Q8_0 weights (tileloadd without a tile configuration)."""
    params = defaults()
    params.use_extra_bufts = False
    return params


def main():
    path = os.path.join(FOLDER, f"{DTYPE}.gguf")
    write_gguf(path)
    threads = int(os.environ.get("OMP_NUM_THREADS", "2"))
    if DTYPE == "int8":
        llama_cpp.llama_model_default_params = model_params_without_amx
    llama = Llama(path, n_ctx=PROMPT + TOKENS + 64, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    prompt = [(i * 7919 + 13) % VOCABULARY for i in range(PROMPT)]

    def logits():
        return np.ctypeslib.as_array(llama._ctx.get_logits_ith(-1), shape=(VOCABULARY,))

    for line in sys.stdin:
        if line.strip() == "prefill":
            llama.reset()
            llama._ctx.kv_cache_clear()
            llama.eval(prompt)
            logits()
            print("ok", flush=True)
        elif line.startswith("behind"):
            row = logits()
            print((row.max() - row[int(line.split()[1])]) / row.std(), flush=True)
        else:
            token = 1
            for _ in range(TOKENS):
                llama.eval([token])
                token = int(np.argmax(logits()))
            llama.n_tokens = PROMPT
            llama._ctx.kv_cache_seq_rm(0, PROMPT, -1)
            print("ok", flush=True)


main()
