"""Perplexity on held-out novels by tokens of memory: FoT, vanilla and Memorizing Transformer, several seeds (docs/memory.md).

Usage: novels.py PROGRAM --train NOVELS --test NOVELS [--seeds 1 2 3] [--json FILE] [-- OPTIONS OF TRAIN]

PROGRAM is reynard; NOVELS are folders of texts, one file each, those of the test by other authors. Every third file of the test is measured, its
first 250,000 characters. Runs that lie in --folder go on. Prints each kind's mean with its 95 % interval, and whether FoT falls at each step and is the lowest at each length.
"""

import concurrent.futures
import json
import pathlib
import shutil
import statistics

from program import call, novels_parser, parsed, prepare_novels

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs/fot/texts"
KINDS = ("distance", "distance-memorizing", "distance-vanilla")
CHARACTERS, EVERY = 250_000, 3
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # by number of seeds


def write_texts(args):
    short = args.folder / "short"
    shutil.rmtree(short, ignore_errors=True)
    short.mkdir(parents=True, exist_ok=True)
    for file in sorted(args.test.iterdir())[::EVERY]:
        (short / file.name).write_bytes(file.read_bytes().decode()[:CHARACTERS].encode())
    prepare_novels(args, short, 2048)


def measured(args, kind, seed):
    run = args.folder / f"{kind}-{seed}"
    resumed = ["--resume"] if run.exists() else []
    call(args.program, "train", CONFIGS / f"{kind}.toml", "--device", args.device, f"--data.path={args.folder / 'train/train.tokens'}",
         f"--run.folder={run}", f"--run.seed={seed}", f"--data.seed={seed}", *args.options, *resumed)
    perplexities = {}
    for tokens in args.memory:
        line = call(args.program, "eval", run, "--device", args.device, "--task", "perplexity", "--text", args.folder / "test/train.tokens",
                    "--dtype", "bf16", "--batch-tokens", "98304", "--perplexity.window=98304", "--perplexity.stride=98304",
                    f"--perplexity.tokens={args.tokens}", "--memory-tokens", tokens, "-o", run / f"eval-{tokens}", "--json")
        perplexities[tokens] = json.loads(line.splitlines()[-1])["metrics"]["windowed_perplexity"]
    row = {"kind": kind, "seed": seed, "perplexity": perplexities}
    print(json.dumps(row), flush=True)
    return row


def with_interval(values):
    mean = f"{statistics.mean(values):7.2f}"
    if len(values) not in STUDENT_95:
        return mean
    return f"{mean} ± {STUDENT_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5:.2f}"


def report(rows, seeds, lengths):
    of = {(row["kind"], row["seed"]): row["perplexity"] for row in rows}
    for kind in KINDS:
        columns = ([of[kind, seed][tokens] for seed in seeds] for tokens in lengths)
        print(f"{kind:<20}", *map(with_interval, columns))
    for seed in seeds:
        own = [of[KINDS[0], seed][tokens] for tokens in lengths]
        falls = all(later < earlier for earlier, later in zip(own, own[1:]))
        lowest = all(of[KINDS[0], seed][tokens] < of[kind, seed][tokens] for kind in KINDS[1:] for tokens in lengths)
        print(f"seed {seed}: FoT {'falls at each step' if falls else 'does NOT fall at each step'}, "
              f"{'lowest at each length' if lowest else 'NOT the lowest at each length'}")


def main():
    parser = novels_parser(__doc__, "runs/texts/novels")
    parser.add_argument("--memory", type=int, nargs="+", default=[0, 1024, 4096, 16384, 65536], help="tokens of memory")
    parser.add_argument("--tokens", type=int, default=400_000, help="of the test")
    parser.add_argument("--at-once", type=int, default=9, help="trainings that run at the same time")
    args = parsed(parser)
    write_texts(args)
    with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
        runs = [pool.submit(measured, args, kind, seed) for kind in KINDS for seed in args.seeds]
    rows = [run.result() for run in runs if not run.exception()]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for run in runs:
        run.result()  # ends here where one failed: what the others gave is written
    report(rows, args.seeds, args.memory)


if __name__ == "__main__":
    main()
