"""The table of generation and serving in one run: each model's parity first, then every row with its goal.

Usage: generation_table.py PROGRAM [--json FILE] [--repeats N]

PROGRAM is reynard; $REYNARD_PEER_PYTHON a Python with llama-cpp-python, gguf and safetensors (docs/performance-generation.md). Nothing else
should run meanwhile. Exits with 1 where a row misses its goal, with another code where a measurement failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

MEASUREMENTS = (
    ["generate", "--only", "llama"],
    ["generate", "--only", "pruned"],
    ["serve", "--only", "throughput", "--layers", "12", "--width", "768", "--dtype", "bf16"],
    ["serve", "--only", "gap"],
    ["start"],
)
# Threads of decoding stay on their cores: a system that moves one beside the other takes 4 ms from it, twice a layer's time.
BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
# The least ratio of a row: above 1 ours is better, times other than a peer's are limits.
GOALS = {"llama_prefill": 1.0, "llama_decode": 1.0, "throughput": 3.0, "pruned_decode": 3.0, "pruned_cache": 3.0,
         "gap_p95": 1 / 3, "first_token_late": 1.0, "first_token": 1.0}


def measured(program, arguments, repeats):
    with tempfile.TemporaryDirectory() as folder:
        rows = os.path.join(folder, "rows.json")
        counted = ["--repeats", str(repeats)] if repeats and arguments[0] != "serve" else []
        command = [program, "bench", *arguments, *counted, "--json", rows]
        environment = {**os.environ, **(BOUND if "pruned" in arguments else {})}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        with open(rows, encoding="utf-8") as file:
            return json.load(file)


def line(row):
    goal = GOALS.get(row["name"])
    verdict = "" if goal is None else f"{goal:5.2f} {'met' if row['ratio'] >= goal else 'MISSED'}"
    return (f"{row['name']:<17}{row['shape']:<28}{row['dtype']:<6}{row['ours']:>10.2f}{row['peer_value']:>10.2f} "
            f"{row['peer']:<17}{row['unit']:<9}{row['ratio']:>7.2f}  {verdict}").rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--json", help="file for the rows")
    parser.add_argument("--repeats", type=int, default=0, help="timed runs of a row (default: the benchmark's)")
    arguments = parser.parse_args()
    try:
        rows = [row for measurement in MEASUREMENTS for row in measured(arguments.program, measurement, arguments.repeats)]
    except (subprocess.CalledProcessError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    rows.sort(key=lambda row: not row["name"].endswith("_parity"))
    print(f"{'name':<17}{'shape':<28}{'dtype':<6}{'ours':>10}{'peer':>10} {'(which)':<17}{'unit':<9}{'ratio':>7}   goal")
    for row in rows:
        print(line(row))
    print(f"device: {rows[0]['device']}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
            file.write("\n")
    sys.exit(any(row["name"] in GOALS and row["ratio"] < GOALS[row["name"]] for row in rows))


if __name__ == "__main__":
    main()
