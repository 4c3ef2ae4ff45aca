"""reynard serve under lm-evaluation-harness: lm_eval_client.py PROGRAM MODEL. The model's folder holds a tokenizer. Exits
with 77 where the harness is missing."""
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
try:
    import lm_eval
    import transformers
    from lm_eval.tasks import TaskManager
except ImportError as error:
    print(f"{error}; install it with: pip install 'lm_eval[api]==0.4.13' transformers")
    sys.exit(77)

program, model = sys.argv[1:3]
contexts = [f"the number {i} in line {i * 7}: hello" for i in range(40)]
tokenizer = transformers.AutoTokenizer.from_pretrained(model)


def encode(text):
    return tokenizer.encode(text, add_special_tokens=False)


def score(lists, folder):
    path = os.path.join(folder, "ids.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(lists, file)
    run = subprocess.run([program, "score", model, "--ids", path], capture_output=True, text=True, check=True)
    return [json.loads(line)["token_logprobs"] for line in run.stdout.splitlines()]


def split(context, continuation):
    """As the harness does: the continuation's ids are those behind the context's."""
    whole = encode(context + continuation)
    return whole, len(encode(context))


def most_probable_texts(folder):
    """Per context: the most probable next token by `reynard score`, where its text is that token again."""
    texts = {}
    vocabulary = range(len(tokenizer))
    sample = contexts[:24]
    scores = score([encode(c) + [v] for c in sample for v in vocabulary], folder)
    for i, context in enumerate(sample):
        row = [s[-1] for s in scores[i * len(vocabulary):(i + 1) * len(vocabulary)]]
        best = row.index(max(row))
        text = tokenizer.decode([best])
        if text.strip() and split(context, text) == (encode(context) + [best], len(encode(context))):
            texts[context] = text
    return texts


def write_tasks(folder, greedy):
    choices = [{"text": c, "choices": [greedy.get(c, " the"), " twelve 12s", " he said"], "answer": i % 2}
               for i, c in enumerate(contexts)]
    rolling = [{"text": " ".join(contexts[i:i + 1 + i % 5])} for i in range(12)]
    data = {"reynard_choice": choices, "reynard_rolling": rolling, "reynard_generate": choices[:16]}
    common = {"dataset_path": "json", "test_split": "train", "doc_to_text": "text", "metadata": {"version": 1}}
    settings = {
        "reynard_choice": {"output_type": "multiple_choice", "doc_to_target": "answer", "doc_to_choice": "choices",
                           "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
        "reynard_rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text",
                            "metric_list": [{"metric": "bits_per_byte"}]},
        "reynard_generate": {"output_type": "generate_until", "doc_to_target": "text",
                             "generation_kwargs": {"until": ["e", "\n\n"], "max_gen_toks": 12},
                             "metric_list": [{"metric": "exact_match"}]},
    }
    for task, documents in data.items():
        path = os.path.join(folder, task + ".jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(document) + "\n" for document in documents)
        with open(os.path.join(folder, task + ".yaml"), "w", encoding="utf-8") as file:  # JSON is YAML
            json.dump({"task": task, "dataset_kwargs": {"data_files": path}, **common, **settings[task]}, file)
    return list(data)


def evaluate(url, tasks, folder, token_ids, concurrent):
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"base_url": url + "v1/completions", "model": "model", "tokenizer": model,
                    "tokenizer_backend": "huggingface", "tokenized_requests": token_ids, "num_concurrent": concurrent,
                    "max_length": 512},
        batch_size=8, tasks=tasks, task_manager=TaskManager(include_path=folder, include_defaults=False),
        log_samples=True, bootstrap_iters=0)
    return results


def close(a, b):
    return abs(a - b) < 1e-4 * max(1, abs(b))


def check_choices(samples, accuracy, greedy, folder):
    pairs, expected = [], []
    for sample in samples:
        for choice in sample["doc"]["choices"]:
            pairs.append((sample["doc"]["text"], choice))
    wholes = [split(*pair) for pair in pairs]
    for (whole, begin), scores in zip(wholes, score([w for w, _ in wholes], folder)):
        expected.append(sum(scores[begin - 1:]))
    # How often the choice that is most probable by `reynard score` is the one that the task calls right.
    right = 0
    for i, sample in enumerate(samples):
        choices = expected[3 * i:3 * i + 3]
        right += choices.index(max(choices)) == sample["doc"]["answer"]
    assert 0 < right < len(samples), right  # an accuracy that could be wrong
    assert close(accuracy, right / len(samples)), (accuracy, right)
    # Log-probability and whether it is what the model would write.
    got = [(float(r[0][0]), str(r[0][1]) == "True") for sample in samples for r in sample["resps"]]
    assert len(got) == len(expected) == 120
    for (logprob, is_greedy), want, (context, choice) in zip(got, expected, pairs):
        assert close(logprob, want), (context, choice, logprob, want)
        if context in greedy:
            assert is_greedy == (choice == greedy[context]), (context, choice)


def check_rolling(samples, folder):
    prefix = tokenizer.eos_token_id
    lists = [[prefix] + encode(sample["doc"]["text"]) for sample in samples]
    for sample, scores in zip(samples, score(lists, folder)):
        got = sample["resps"][0][0]
        got = float(got[0] if isinstance(got, (list, tuple)) else got)
        assert close(got, sum(scores)), (sample["doc"], got, sum(scores))


def check_texts(samples):
    for sample in samples[::5]:
        run = subprocess.run([program, "generate", model, sample["doc"]["text"], "-m", "12", "--stop", "e", "--stop", "\\n\\n",
                              "--stop", "<|endoftext|>", "--json"], capture_output=True, text=True, check=True)
        assert sample["resps"][0][0] == json.loads(run.stdout)["text"], sample


server = subprocess.Popen([program, "serve", model, "--port", "0", "--name", "model"], stderr=subprocess.PIPE, text=True)
url = re.search(r"http://[\d.:]+/", server.stderr.readline()).group(0)
threading.Thread(target=server.stderr.read, daemon=True).start()
try:
    with tempfile.TemporaryDirectory() as folder:
        greedy = most_probable_texts(folder)
        assert len(greedy) >= 2, greedy
        tasks = write_tasks(folder, greedy)
        for token_ids, concurrent in [(True, 4), (False, 4), (True, 1)]:
            results = evaluate(url, tasks, folder, token_ids, concurrent)
            samples = results["samples"]
            check_choices(samples["reynard_choice"], results["results"]["reynard_choice"]["acc,none"], greedy, folder)
            check_rolling(samples["reynard_rolling"], folder)
            check_texts(samples["reynard_generate"])
    with urllib.request.urlopen(url + "metrics") as answer:
        assert "reynard_requests_rejected_total 0\n" in answer.read().decode()
finally:
    server.kill()
print("ok")
