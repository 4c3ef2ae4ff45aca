"""Models of the Llama family by `transformers`: transformers_peer.py make|check FOLDER.

make: FOLDER/NAME, random models in their published layouts (one of them in shards, one in bf16), and
FOLDER/NAME/peer.safetensors with input_ids (1, T) and logits (1, T, V). check: FOLDER/NAME-ours loads in
transformers and gives the logits of FOLDER/NAME. Exits with 77 where the package is missing."""
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
MODELS = {
    "llama": transformers.LlamaConfig(**SHARED),
    "llama_tied": transformers.LlamaConfig(**SHARED, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**SHARED, sliding_window=5, head_dim=16),
    "mistral_full": transformers.MistralConfig(**SHARED, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SHARED),
}


def logits_of(model, ids):
    with torch.no_grad():
        return model.float().eval()(ids).logits


def make(folder):
    for seed, (name, config) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 1 if parameter.dim() == 1 else 0, 0.2)
        if name == "mistral":
            model = model.to(torch.bfloat16)
        model.save_pretrained(folder / name, max_shard_size="20KB" if name == "qwen2" else "1GB")
        ids = torch.randint(config.vocab_size, (1, 40))
        save_file({"input_ids": ids, "logits": logits_of(model, ids)}, folder / name / "peer.safetensors")


def check(folder):
    for name in MODELS:
        peer = load_file(folder / name / "peer.safetensors")
        ours = transformers.AutoModelForCausalLM.from_pretrained(
            folder / f"{name}-ours", attn_implementation="eager", dtype=torch.float32)
        torch.testing.assert_close(logits_of(ours, peer["input_ids"]), peer["logits"], rtol=1e-4, atol=1e-4)


{"make": make, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
