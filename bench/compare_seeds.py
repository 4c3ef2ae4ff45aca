"""How often `reynard compare` calls models of one recipe different that differ by their seed alone (docs/evaluation.md).

Trains small models of one recipe, measures them on held-out text, and compares them three ways:
  named     every pair as it is: compare sees that the experiments are equal but for seeds
  blind     three runs under the recipe's name and one under another name, drawn at random: what a user does who
            trains with several seeds, where the truth is that there is no difference
  seedless  every pair under two names: what one run of each recipe can say
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import statistics

from program import call

ONE_THREAD = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
DRAWN = 4  # models of a blind comparison: three of one name, one of another
RECIPE = """[run]
folder = "unset"
[model]
vocab_size = 258
hidden_size = 64
num_layers = 2
hidden_ratio = 3.5
initializer_range = 0.06
bos_token_id = 256
eos_token_id = 257
[model.attention]
num_heads = 2
forget_gate = "full"
decay_time_min = 4
decay_time_max = 256
qk_norm = "per_head"
output_gate = "sigmoid"
output_norm = true
key_shift = true
value_shift = true
[data]
path = "{data}/train.tokens"
mode = "packed"
batch_size = 1
length = 256
repeat_fraction = 0.3
[optimizer]
learning_rate = 4e-3
[schedule]
shape = "linear"
warmup_fraction = 0.05
[training]
tokens = {tokens}
precision = "f32"
log_every = 100
"""


def claim_folder(args):
    """Says in an empty folder what its models are made of; False for a folder whose models may be made of other things."""
    made_of = {"recipe": RECIPE, "tokens": args.tokens, "text": [str(pathlib.Path(text).resolve()) for text in args.text]}
    kept = args.work / "made_of.json"
    if not any(args.work.iterdir()):
        kept.write_text(json.dumps(made_of, indent=1) + "\n")
    return kept.exists() and json.loads(kept.read_text()) == made_of


def train_and_measure(args, seed):
    run = args.work / f"seed-{seed}"
    if not (run / "eval/forgetting_curve.json").exists():
        call(args.reynard, "train", args.work / "recipe.toml", f"--run.folder={run}", f"--run.seed={seed}",
             f"--data.seed={seed}", environment=ONE_THREAD)
        call(args.reynard, "eval", run, "--task", "per_position_loss,forgetting_curve", "--text",
             args.work / "data/held_out.tokens", "--length", "256", "--per_position_loss.rows=64",
             "--forgetting_curve.length=128", "--forgetting_curve.points=4", environment=ONE_THREAD)
    summary = json.loads((run / "eval/per_position_loss.json").read_text())
    return summary["metrics"]["loss"]


def renamed(args, run):
    """The same results under a recipe of another name."""
    copy = args.work / "renamed" / run.name
    if not copy.exists():
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("model", "checkpoints", "metrics.jsonl"))
        experiment = copy / "experiment.toml"
        text, count = re.subn(r"(?m)^log_every = 100$", "log_every = 101", experiment.read_text())
        assert count == 1, experiment
        experiment.write_text(text)
    return copy


def compared(args, runs):
    lines = [json.loads(line) for line in call(args.reynard, "compare", *runs, "--json", environment=ONE_THREAD).splitlines()]
    return [line for line in lines if line["task"] in ("per_position_loss", "forgetting_curve")]


def counted(pages, keep):
    """Of the rows of all pages that are kept: how many there are and how many are called different, by task."""
    counts = {}
    for page in pages:
        for row in filter(keep, page):
            count = counts.setdefault(row["task"], {"comparisons": 0, "called_different": 0})
            count["comparisons"] += 1
            count["called_different"] += row["differs"]
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reynard", default="build/cpu/bin/reynard")
    parser.add_argument("--text", nargs="+", required=True, help="files or folders, as `reynard prepare` takes them")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/compare-seeds"),
                        help="folder of texts and models; what is there is not made again")
    parser.add_argument("--seeds", type=int, default=20, help=f"models, at least {DRAWN}")
    parser.add_argument("--tokens", type=int, default=300000, help="training tokens of each model")
    parser.add_argument("--draws", type=int, default=200, help="pages of the blind comparison")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.seeds < DRAWN:
        parser.error(f"--seeds {args.seeds}: expected at least {DRAWN}, the models of a blind comparison")
    args.work.mkdir(parents=True, exist_ok=True)
    if not claim_folder(args):
        parser.error(f"--work {args.work}: holds models of other --tokens or --text, or does not say of which; choose another")
    if not (args.work / "data/held_out.tokens").exists():
        call(args.reynard, "prepare", *args.text, "--min-bytes", "4096", "--held-out", "0.1", "--output",
             args.work / "data", environment=ONE_THREAD)
    (args.work / "recipe.toml").write_text(RECIPE.format(data=args.work / "data", tokens=args.tokens))
    pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
    losses = list(pool.map(lambda seed: train_and_measure(args, seed), range(1, args.seeds + 1)))
    runs = [args.work / f"seed-{seed}" for seed in range(1, args.seeds + 1)]
    copies = [renamed(args, run) for run in runs]
    pairs = list(itertools.combinations(range(args.seeds), 2))
    named = list(pool.map(lambda pair: compared(args, [runs[pair[0]], runs[pair[1]]]), pairs))
    seedless = list(pool.map(lambda pair: compared(args, [runs[pair[0]], copies[pair[1]]]), pairs))
    draw = random.Random(0)
    drawn = [draw.sample(range(args.seeds), DRAWN) for _ in range(args.draws)]
    # The first of the three against the one of another name: one comparison of each draw, as its others depend on it.
    blind = list(pool.map(lambda four: compared(args, [runs[four[0]], copies[four[3]], runs[four[1]], runs[four[2]]]),
                          drawn))
    # Of models neither of which copies there is no row of memory.
    blind = [[row for task in ("per_position_loss", "forgetting_curve") for row in
              [row for row in page if row["task"] == task and not row["same_recipe"]][:1]] for page in blind]
    result = {"name": "compare_seeds", "seeds": args.seeds, "tokens": args.tokens,
              "losses": [round(loss, 4) for loss in losses], "loss_deviation": round(statistics.stdev(losses), 4),
              "named": counted(named, lambda row: True), "blind": counted(blind, lambda row: True),
              "seedless": counted(seedless, lambda row: True)}
    print(json.dumps(result))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
