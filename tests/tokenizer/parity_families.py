"""Tokenizers of every family that reynard reads, each with the library that defines it.

Real vocabularies are taken from FOLDER (../shared/data/tokenizers) where they are; the others are trained here, in the formats of their families.
"""

import base64
import io
import json
import os
import subprocess

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from generated_text import CODE, as_text, generated_strings

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+"]

ONIGURUMA = [r"\p{N}{1,3}+", r"(?m:[.,;].)", r"[a-f]{,2}g", r"\v", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\b", r"\W{1,2}?\B"]

PROGRAM = "reynard"  # parity_test.py sets it


class Family:
    """One tokenizer: what reynard is given, and what the library makes of strings and ids."""

    def __init__(self, name, argument, encode, decode, vocab_size):
        self.name = name
        self.argument = argument
        self.encode = encode  # list of bytes -> list of lists of ids
        self.decode = decode  # list of lists of ids -> list of str
        self.vocab_size = vocab_size


def corpus():
    return [as_text(string) for string in generated_strings(4000, seed=77)] + CODE * 20


def of_package(name, argument, tokenizer):
    def encode(strings):
        return [e.ids for e in tokenizer.encode_batch([as_text(s) for s in strings])]

    return Family(name, argument, encode, lambda lists: tokenizer.decode_batch(lists), tokenizer.get_vocab_size())


def byte_level(pattern, normalizer=None, vocab_size=3000, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def saved(folder, name, tokenizer):
    path = os.path.join(folder, name + ".tokenizer.json")
    tokenizer.save(path)
    return of_package(name, path, Tokenizer.from_file(path))


def llama3(folder, _):
    tokenizer = byte_level(LLAMA3, ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return saved(folder, "llama3", tokenizer)


def qwen2(folder, _):
    tokenizer = byte_level(QWEN2, normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("naïve", normalized=True)])
    return saved(folder, "qwen2", tokenizer)


def sequence_of_splits(folder, _):
    """Patterns that no hand-written scanner knows, of several kinds."""
    tokenizer = byte_level(GPT2, vocab_size=2000)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK]
    steps += [pre_tokenizers.Split(Regex(r"\d{3}"), "merged_with_previous"), pre_tokenizers.Split("-", "merged_with_next"),
              pre_tokenizers.Split(Regex(r"[\w']+"), "contiguous", invert=True), pre_tokenizers.Digits(individual_digits=True),
              pre_tokenizers.Split("\t", "removed")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=True)])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"[‘’]"), "'"), normalizers.Strip(left=False)])
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, rstrip=True), AddedToken("the", single_word=True), AddedToken("<pad>", lstrip=True)])
    return saved(folder, "splits", tokenizer)


def other_meanings(folder, _):
    """Patterns that PCRE2 reads in another way than the package does."""
    tokenizer = byte_level(GPT2, vocab_size=2000)
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in ONIGURUMA]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return saved(folder, "meanings", tokenizer)


def gpt2(folder, shared):
    path = os.path.join(shared, "gpt2.tokenizer.json")
    if os.path.exists(path):
        return of_package("gpt2", path, Tokenizer.from_file(path))
    tokenizer = byte_level(GPT2)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return saved(folder, "gpt2", tokenizer)


def json_escaped(folder, shared):
    plain = gpt2(folder, shared)

    def escaped(string):
        return json.dumps(as_text(string))[1:-1].encode()

    def unescaped(text):
        try:
            return json.loads('"' + text + '"')
        except ValueError:
            return text.encode().decode("unicode_escape", "ignore")

    def decode(lists):
        return ["".join("�" if 0xD800 <= ord(c) < 0xE000 else c for c in unescaped(t)) for t in plain.decode(lists)]

    return Family("json-escaped", "json:" + plain.argument, lambda strings: plain.encode([escaped(s) for s in strings]), decode, plain.vocab_size)


def of_tiktoken(name, argument, encoding, ids):
    def encode(strings):
        return encoding.encode_batch([as_text(s) for s in strings], allowed_special="all")

    family = Family(name, argument, encode, lambda lists: [encoding.decode([i for i in l if i in ids]) for l in lists], max(ids) + 1)
    family.ids = sorted(ids)
    return family


def read_ranks(path):
    with open(path, "rb") as file:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}


def tiktoken_gpt2(folder, shared):
    path = os.path.join(shared, "gpt2.tiktoken")
    if not os.path.exists(path):
        return None
    ranks = read_ranks(path)
    encoding = tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    return of_tiktoken("tiktoken-gpt2", path, encoding, set(ranks.values()))


def tiktoken_llama3(folder, _):
    """Ranks from a vocabulary trained by another library: the order in which tokens were made."""
    alphabet = json.loads(byte_level(LLAMA3).to_str())
    to_byte = {character: byte for byte, character in enumerate(_byte_characters())}
    singles = [bytes([b]) for b in range(256)]
    tokens = singles + [bytes(to_byte[c] for c in "".join(merge)) for merge in alphabet["model"]["merges"]]
    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
    path = os.path.join(folder, "llama3.tiktoken")
    with open(path, "wb") as file:
        for token, rank in ranks.items():
            file.write(base64.b64encode(token) + b" %d\n" % rank)
    encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)})
    return of_tiktoken("tiktoken-llama3", "llama3:" + path, encoding, set(ranks.values()))


def _byte_characters():
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def of_sentencepiece(name, path):
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    return Family(name, path, lambda strings: processor.encode(strings), lambda lists: [processor.decode(l) for l in lists],
                  processor.get_piece_size())


def trained_sentencepiece(folder, name, **options):
    path = os.path.join(folder, name + ".model")
    model = io.BytesIO()
    text = [t.replace("\0", "") for t in corpus()]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([t for t in text if t.strip() and "\n" not in t]), model_writer=model,
                                             model_type="bpe", minloglevel=2, **options)
    with open(path, "wb") as file:
        file.write(model.getvalue())
    return of_sentencepiece(name, path)


def sentencepiece_real(folder, shared):
    path = os.path.join(shared, "open_llama.model")
    return of_sentencepiece("open-llama", path) if os.path.exists(path) else None


def sentencepiece_bytes(folder, _):
    return trained_sentencepiece(folder, "sp-llama", vocab_size=2500, byte_fallback=True, normalization_rule_name="identity",
                                 remove_extra_whitespaces=False, split_digits=True, character_coverage=0.99)


def sentencepiece_nfkc(folder, _):
    return trained_sentencepiece(folder, "sp-nfkc", vocab_size=2500, normalization_rule_name="nmt_nfkc", character_coverage=0.98)


def sentencepiece_symbols(folder, _):
    return trained_sentencepiece(folder, "sp-symbols", vocab_size=2500, byte_fallback=True, normalization_rule_name="nfkc_cf",
                                 add_dummy_prefix=False, user_defined_symbols=["<mask>", "<tool>", "ha", "中"], control_symbols=["<pad>"],
                                 character_coverage=0.99)


def bpe_of_sentencepiece(path):
    """The vocabulary and merges of a SentencePiece model, as the converters of published models write them."""
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    size = processor.get_piece_size()
    vocab = {processor.id_to_piece(i): i for i in range(size)}
    normal = {p: i for p, i in vocab.items() if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))}
    merges = []
    for piece, i in normal.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in normal and piece[cut:] in normal:
                merges.append((processor.get_score(i), normal[piece[:cut]], normal[piece[cut:]], (piece[:cut], piece[cut:])))
    merges.sort(key=lambda m: (-m[0], m[1], m[2]))
    return models.BPE(vocab, [m[3] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def converted(folder, shared, name, legacy):
    path = os.path.join(shared, "open_llama.model")
    if not os.path.exists(path):
        path = sentencepiece_bytes(folder, shared).argument
    tokenizer = Tokenizer(bpe_of_sentencepiece(path))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return saved(folder, name, tokenizer)


def llama2(folder, shared):
    return converted(folder, shared, "llama2", legacy=True)


def llama2_metaspace(folder, shared):
    return converted(folder, shared, "llama2-metaspace", legacy=False)


def learnt(folder, _):
    """What `reynard tokenizer train` writes."""
    text = os.path.join(folder, "corpus.txt")
    with open(text, "w", encoding="utf-8", newline="") as file:
        file.write("".join(corpus()).replace("\0", ""))
    path = os.path.join(folder, "learnt.json")
    subprocess.run([PROGRAM, "tokenizer", "train", text, "-o", path, "--vocab-size", "3000", "--pattern", "qwen2"], check=True,
                   stdout=subprocess.DEVNULL)
    return of_package("learnt", path, Tokenizer.from_file(path))


FAMILIES = [learnt, gpt2, llama3, qwen2, sequence_of_splits, other_meanings, llama2, llama2_metaspace, json_escaped, tiktoken_gpt2, tiktoken_llama3, sentencepiece_real,
            sentencepiece_bytes, sentencepiece_nfkc, sentencepiece_symbols]
