"""Models of the Llama family by `transformers`: transformers_peer.py FOLDER.

Makes FOLDER/NAME, random models in their published layouts (one of them in shards, one in bf16), each with
peer.safetensors (input_ids (1, T), logits (1, T, V)), then the file FOLDER/made. After a line on standard input it loads
FOLDER/NAME-ours and compares its logits. Exits with 77 where the package is missing."""
import pathlib
import sys

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"transformers peer: {missing}")
    sys.exit(77)

SHARED = dict(vocab_size=97, hidden_size=32, intermediate_size=44, num_hidden_layers=3, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5)
def scaled(**scaling):
    return dict(rope_parameters=dict(rope_theta=10000.0, **scaling))


QWEN3 = dict(SHARED, rms_norm_eps=1e-3, head_dim=16)
MODELS = {
    "llama": transformers.LlamaConfig(**SHARED),
    "llama_tied": transformers.LlamaConfig(**SHARED, tie_word_embeddings=True),
    "llama_linear": transformers.LlamaConfig(**SHARED, **scaled(rope_type="linear", factor=3.0)),
    "llama_dynamic": transformers.LlamaConfig(
        **dict(SHARED, max_position_embeddings=16), **scaled(rope_type="dynamic", factor=3.0)),
    "llama_llama3": transformers.LlamaConfig(**SHARED, **scaled(
        rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=200)),
    "llama_yarn": transformers.LlamaConfig(**SHARED, **scaled(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "mistral": transformers.MistralConfig(**SHARED, sliding_window=5, head_dim=16),
    "mistral_full": transformers.MistralConfig(**SHARED, sliding_window=None),
    "mistral_yarn": transformers.MistralConfig(**SHARED, sliding_window=None, **scaled(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=16.0, mscale=0.7,
        mscale_all_dim=0.4, truncate=False)),
    "qwen2": transformers.Qwen2Config(**SHARED),
    "qwen2_window": transformers.Qwen2Config(
        **SHARED, use_sliding_window=True, sliding_window=5, max_window_layers=0),
    "qwen3": transformers.Qwen3Config(**QWEN3),
    "qwen3_tied": transformers.Qwen3Config(**QWEN3, tie_word_embeddings=True),
}


def logits_of(model, ids):
    """In one pass, but token by token with a cache where RoPE is dynamic: one pass turns every token as the last."""
    model = model.float().eval()
    with torch.no_grad():
        if model.config.rope_parameters["rope_type"] != "dynamic":
            return model(ids).logits
        cache, rows = transformers.DynamicCache(), []
        for token in ids.split(1, dim=1):
            rows.append(model(token, past_key_values=cache, use_cache=True).logits)
        return torch.cat(rows, dim=1)


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)


def make(folder):
    for seed, (name, config) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 1 if parameter.dim() == 1 else 0, 0.2)
        if name == "mistral":
            model = model.to(torch.bfloat16)
        model.save_pretrained(folder / name, max_shard_size="20KB" if name == "qwen2" else "1GB")
        ids = torch.randint(config.vocab_size, (1, 40))
        save_file({"input_ids": ids, "logits": logits_of(load(folder / name), ids)}, folder / name / "peer.safetensors")


def check(folder):
    for name in MODELS:
        peer = load_file(folder / name / "peer.safetensors")
        ours = load(folder / f"{name}-ours")
        torch.testing.assert_close(logits_of(ours, peer["input_ids"]), peer["logits"], rtol=1e-4, atol=1e-4)


transformers.logging.disable_progress_bar()
make(pathlib.Path(sys.argv[1]))
(pathlib.Path(sys.argv[1]) / "made").touch()
sys.stdin.readline()
check(pathlib.Path(sys.argv[1]))
