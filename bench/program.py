"""What the scripts beside this one share: calls of reynard, and the arguments of those that train on novels."""

import argparse
import pathlib
import subprocess
import sys


def call(*command, environment=None):
    """The output of a command; ends the script with the command and its errors where it fails."""
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return done.stdout


def parsed(parser):
    """The arguments, with what follows "--" as options of `reynard train`."""
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    args = parser.parse_args(arguments[:split])
    args.options = arguments[split + 1:]
    return args


def novels_parser(description, folder):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--train", type=pathlib.Path, required=True, help="folder of novels to train on")
    parser.add_argument("--test", type=pathlib.Path, required=True, help="folder of held-out novels")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(folder), help="texts and runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--json", type=pathlib.Path, help="file for the rows")
    return parser


def prepare_novels(args, test, vocab_size):
    """args.folder/{train,test}, the tokens of a tokenizer that learns from args.train."""
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = args.folder / "tokenizer.json"
    call(args.program, "tokenizer", "train", args.train, "-o", tokenizer, "--vocab-size", vocab_size)
    for text, to in ((args.train, "train"), (test, "test")):
        call(args.program, "prepare", text, "--tokenizer", tokenizer, "-o", args.folder / to)
