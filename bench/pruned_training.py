"""Training with and without pruning, the same seeds: losses, tokens/s and the pruned share along the training (docs/performance-cuda.md).

Usage: pruned_training.py PROGRAM --train NOVELS --test NOVELS [--seeds 1 2 3] [--json FILE] [-- OPTIONS OF TRAIN]

PROGRAM is reynard; NOVELS are folders of texts, one file each, those of the test by other authors. The recipe is configs/pruned-training.toml. Runs are
one after the other, pruned and not by turns, and those that lie in --folder go on. Prints a row per seed, and the difference that
pruning makes beside the one that seeds make.
"""

import json
import pathlib
import statistics

from program import call, novels_parser, parsed, prepare_novels

CONFIG = pathlib.Path(__file__).resolve().parent.parent / "configs/pruned-training.toml"
TOLERANCES = {"pruned": -10, "dense": 0}
EVERY = 10  # lines of metrics.jsonl, each of ten steps


def trained(args, kind, seed):
    run = args.folder / f"{kind}-{seed}"
    call(args.program, "train", CONFIG, "--device", args.device, f"--data.path={args.folder / 'train/train.tokens'}",
         f"--validation.path={args.folder / 'test/train.tokens'}", f"--run.folder={run}", f"--run.seed={seed}", f"--data.seed={seed}",
         f"--model.attention.log_pruning_tolerance={TOLERANCES[kind]}", *args.options, *(["--resume"] if run.exists() else []))
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    row = {
        "kind": kind,
        "seed": seed,
        "validation_loss": result["validation_loss"],
        "tokens_per_s": statistics.median(line["tokens_per_s"] for line in lines[1:]),
        "loss": [[line["tokens"], line["loss"]] for line in lines[EVERY - 1::EVERY]],
    }
    if kind == "pruned":
        row["pruned_share"] = [[line["tokens"], line["pruned_share"]] for line in lines[EVERY - 1::EVERY]]
    print(json.dumps(row), flush=True)
    return row


def report(rows, seeds):
    of = {(row["kind"], row["seed"]): row for row in rows}
    print(f"{'seed':<6}{'pruned':>9}{'dense':>9}{'difference':>12}  share along the training        tokens/s, pruned and dense")
    differences = []
    for seed in seeds:
        pruned, dense = of["pruned", seed], of["dense", seed]
        differences.append(pruned["validation_loss"] - dense["validation_loss"])
        shares = " ".join(f"{share:.3f}" for _, share in pruned["pruned_share"])
        speeds = [row["tokens_per_s"] for row in (pruned, dense)]
        print(f"{seed:<6}{pruned['validation_loss']:9.4f}{dense['validation_loss']:9.4f}{differences[-1]:+12.4f}  {shares:<30}  "
              f"{speeds[0]:,.0f} {speeds[1]:,.0f} ({speeds[0] / speeds[1]:.2f})")
    losses = [of["dense", seed]["validation_loss"] for seed in seeds]
    print(f"pruning moves the loss by {statistics.mean(differences):+.4f} on average, at most {max(map(abs, differences)):.4f}; "
          f"seeds differ by {max(losses) - min(losses):.4f}")


def main():
    args = parsed(novels_parser(__doc__, "runs/pruned-training"))
    prepare_novels(args, args.test, 8192)
    rows = [trained(args, kind, seed) for seed in args.seeds for kind in TOLERANCES]
    if args.json:
        args.json.write_text(json.dumps({"config": "configs/pruned-training.toml", "rows": rows}, indent=1) + "\n", encoding="utf-8")
    report(rows, args.seeds)


if __name__ == "__main__":
    main()
