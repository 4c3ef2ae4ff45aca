"""Ids and decoded text of every family equal those of the libraries that define them.

Usage: parity_test.py PROGRAM [FAMILY...] [--strings N] [--seed S] [--shared FOLDER]

100,000 strings a family, as the numbers in docs/tokenizers.md were found:
    .venv/bin/python tests/tokenizer/parity_test.py build/cpu/bin/reynard --strings 100000
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

SKIPPED = 77  # what ctest takes for a skipped test

try:
    import parity_families
except ImportError as error:
    print(f"skipped: the package {error.name} is missing (scripts/requirements-test.txt)")
    sys.exit(SKIPPED)

from generated_text import generated_strings


def json_line(string):
    """A JSON string whose bytes are those of the string, UTF-8 or not."""
    escaped = string.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    for byte in range(32):
        escaped = escaped.replace(bytes([byte]), b"\\u%04x" % byte)
    return b'"' + escaped + b'"\n'


def run(program, arguments, lines):
    with tempfile.TemporaryFile() as file:
        file.writelines(lines)
        file.seek(0)
        done = subprocess.run([program, "tokenizer", *arguments], stdin=file, capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments}: exit code {done.returncode}: {done.stderr.decode(errors='replace')}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def id_lists(family, encoded, seed):
    """What to decode: the strings' ids, pieces of them that begin and end anywhere, and random ids."""
    rng = random.Random(seed)
    ids = getattr(family, "ids", None) or range(family.vocab_size)
    lists = [e[:2000] for e in encoded]
    for e in encoded[: len(encoded) // 4]:
        begin = rng.randrange(len(e) + 1)
        lists.append(e[begin:begin + rng.randint(0, 20)])
        lists.append([rng.choice(ids) for _ in range(rng.randint(0, 12))])
    known = set(ids)
    return [[i for i in l if i in known] for l in lists]


def differences(what, inputs, ours, theirs):
    bad = [i for i in range(len(inputs)) if ours[i] != theirs[i]]
    for i in bad[:3]:
        print(f"  {what} {inputs[i]!r:.300}\n    is      {ours[i]!r:.300}\n    not     {theirs[i]!r:.300}")
    return len(bad) + abs(len(ours) - len(inputs))


def check(program, family, strings, seed):
    begin = time.time()
    ours = run(program, ["encode", family.argument], [json_line(s) for s in strings])
    bad = differences("encode", strings, ours, family.encode(strings))
    lists = id_lists(family, ours, seed)
    decoded = run(program, ["decode", family.argument], [json.dumps(l).encode() + b"\n" for l in lists])
    bad += differences("decode", lists, decoded, family.decode(lists))
    print(f"{family.name}: {len(strings)} strings, {len(lists)} lists of ids, {bad} differences, {time.time() - begin:.1f} s", flush=True)
    return bad


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("families", nargs="*")
    parser.add_argument("--strings", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shared", default=os.environ.get("REYNARD_SHARED", os.path.join(here, "..", "..", "..", "shared")))
    arguments = parser.parse_args()
    parity_families.PROGRAM = arguments.program
    strings = generated_strings(arguments.strings, arguments.seed)
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for make in parity_families.FAMILIES:
            if arguments.families and make.__name__ not in arguments.families:
                continue
            family = make(folder, os.path.join(arguments.shared, "data", "tokenizers"))
            if family is None:
                print(f"{make.__name__}: skipped: no real vocabulary in {arguments.shared}")
                continue
            bad += check(arguments.program, family, strings, arguments.seed)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
