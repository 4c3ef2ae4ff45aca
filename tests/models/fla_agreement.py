"""Models that reynard writes in the layout of flash-linear-attention, loaded by that package on a GPU: logits against the goldens'.

Usage: fla_agreement.py PROGRAM GOLDENS (../shared/goldens). Needs a GPU and the package (pip install flash-linear-attention==0.6.0); exits with 77
without. fox_llama comes from the authors' own layout, so that its layers, names and gates are all translated."""
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRITON_F32_DEFAULT="ieee")
try:
    import torch
    from fla.models import ForgettingTransformerForCausalLM
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"fla agreement: {missing}")
    sys.exit(77)
if not torch.cuda.is_available():
    print("fla agreement: there is no GPU")
    sys.exit(77)

program, goldens = sys.argv[1:3]
torch.backends.cuda.matmul.allow_tf32 = False
worst = 0.0
for name in ("fox_llama", "fla_fox"):
    with tempfile.TemporaryDirectory() as folder:
        written = os.path.join(folder, name)
        subprocess.run([program, "convert", os.path.join(goldens, name), written, "--to", "forgetting_transformer"], check=True)
        model, loading = ForgettingTransformerForCausalLM.from_pretrained(written, dtype=torch.float32, output_loading_info=True)
    golden = load_file(os.path.join(goldens, name, "golden.safetensors"))
    with torch.no_grad():
        logits = model.cuda().eval()(golden["input_ids"].long().cuda(), use_cache=False).logits.float().cpu()
    difference = (logits - golden["logits"].float()).abs().max().item()
    worst = max(worst, difference)
    print(json.dumps({"model": name, "largest_difference": difference, "missing": sorted(loading["missing_keys"]),
                      "unexpected": sorted(loading["unexpected_keys"])}))
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
# Both in f32; sums are ordered differently.
assert worst <= 1e-4, worst
print("ok")
