"""Dictionary lookup with a Focused Transformer, several seeds side by side: trains, measures, writes every number into one file (docs/memory.md).

Usage: dictionary.py PROGRAM [--seeds 1 2 3] [--minutes 14.5] [--json FILE] [-- OPTIONS OF TRAIN]

PROGRAM is reynard. A beginning that has not predicted 20 % of its tokens after a minute has failed, and begins anew with 100 more as its seed;
failed minutes count. The second part takes what is left of the minutes.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import time

from program import call, parsed

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs/fot"
MINUTES_OF_A_BEGINNING = 1.0


def device_name(device):
    import torch  # only for the name

    return torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"


def write_texts(args):
    for name, options in (("easy", ["--documents", "60000", "--seed", "2"]), ("hard", ["--documents", "300000", "--similar", "0.6"])):
        if (args.folder / name / "train.tokens").exists():
            continue
        call(args.program, "dictionary", "-o", args.folder / f"{name}.jsonl", *options)
        call(args.program, "prepare", args.folder / f"{name}.jsonl", "-o", args.folder / name, "--held-out", "0.005")


def last_of(run):
    """The last line of a run's metrics, what is of interest here."""
    last = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return {name: last[name] for name in ("step", "tokens", "seconds", "loss", "accuracy", "documents")}


def train(args, part, run, seed, minutes, *options):
    config = {"easy": "dictionary-first.toml", "hard": "dictionary.toml"}[part]
    call(args.program, "train", CONFIGS / config, "--device", args.device, f"--data.path={args.folder / part / 'train.tokens'}",
         f"--run.folder={run}", f"--run.seed={seed}", f"--training.minutes={minutes:.3f}", *args.options, *options)


def begin(args, run, seed, minutes_left):
    """Trains until a beginning has succeeded or the time is over; returns the seeds that failed, and the one that did not, if any."""
    failed = []
    while minutes_left() > MINUTES_OF_A_BEGINNING:
        shutil.rmtree(run, ignore_errors=True)
        train(args, "easy", run, seed, MINUTES_OF_A_BEGINNING)
        if last_of(run)["accuracy"] >= args.least_accuracy:
            train(args, "easy", run, seed, MINUTES_OF_A_BEGINNING + min(MINUTES_OF_A_BEGINNING, minutes_left()), "--resume")
            return failed, seed
        print(f"seed {seed}: failed", flush=True)
        failed.append(seed)
        seed += 100
    return failed, None


def measured(args, first_seed):
    began = time.monotonic()
    first, second = args.folder / f"first-{first_seed}", args.folder / f"second-{first_seed}"

    def minutes_left():
        return max(args.minutes - (time.monotonic() - began) / 60, 0.1)

    failed, seed = begin(args, first, first_seed, minutes_left)
    if seed is None:
        row = {"seed": None, "failed_beginnings": failed}
        print(json.dumps(row), flush=True)
        return row
    shutil.rmtree(second, ignore_errors=True)
    train(args, "hard", second, seed, minutes_left(), f"--run.start_from={first}")
    row = {"seed": seed, "failed_beginnings": failed, "seconds_with_failed_beginnings": round(time.monotonic() - began),
           "first": last_of(first), "second": last_of(second)}
    call(args.program, "eval", second, "--device", args.device, "--task", "dictionary", "--text", args.folder / "hard/held_out.tokens",
         "--dtype", "bf16", "--batch-tokens", "262144", f"--dictionary.lengths={','.join(map(str, args.lengths))}",
         f"--dictionary.query_tokens={args.query_tokens}", "--dictionary.repeats=1", "-o", second / "eval")
    samples = [json.loads(line) for line in (second / "eval/dictionary.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    for sample in samples:
        row.setdefault("score", {})[sample["length"]] = sample["score"]
        row.setdefault("token_accuracy", {})[sample["length"]] = sample["token_accuracy"]
    row["queries"] = samples[0]["queries"]
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/fot/dictionaries"), help="texts and runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run each, all at once")
    parser.add_argument("--minutes", type=float, default=14.5, help="of training for each seed, failed beginnings included")
    parser.add_argument("--least-accuracy", type=float, default=0.2, help="of a beginning after a minute, or it has failed")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[65536, 1048576, 16777216], help="tokens of the dictionary")
    parser.add_argument("--query-tokens", type=int, default=10240, help="1,000 queries")
    parser.add_argument("--json", help="file for the rows")
    parser.add_argument("--commit", default="", help="of PROGRAM, for that file")
    args = parsed(parser)
    args.folder.mkdir(parents=True, exist_ok=True)
    about = {"commit": args.commit, "device": device_name(args.device), "minutes": args.minutes}
    write_texts(args)
    with concurrent.futures.ThreadPoolExecutor(len(args.seeds)) as pool:
        runs = [pool.submit(measured, args, seed) for seed in args.seeds]
    rows = [run.result() for run in runs if not run.exception()]
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        run.result()  # ends here where one failed: what the others gave is written


if __name__ == "__main__":
    main()
