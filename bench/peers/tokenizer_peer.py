"""Peer of `reynard bench tokenizer`: the package that defines a tokenizer's format.

    tokenizer_peer.py TOKENIZER TEXT BYTES

Answers "ids" with {"package", "ids"} of the first BYTES of TEXT, as JSON, and every other line with the CPU seconds that
encoding them takes in one thread.
"""

import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
path, text_path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(text_path, "rb") as file:
    text = file.read(size).decode("utf-8", errors="replace")

if path.endswith(".model"):
    import sentencepiece

    package = "sentencepiece"
    encode = sentencepiece.SentencePieceProcessor(model_file=path).encode
else:
    import tokenizers

    package = "tokenizers"
    tokenizer = tokenizers.Tokenizer.from_file(path)

    def encode(string):
        return tokenizer.encode(string, add_special_tokens=False).ids


for line in sys.stdin:
    if line.strip() == "ids":
        print(json.dumps({"package": package, "ids": encode(text)}), flush=True)
        continue
    begin = time.process_time()
    encode(text)
    print(time.process_time() - begin, flush=True)
