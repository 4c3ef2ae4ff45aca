"""Many clients at once against reynard serve: load_test.py PROGRAM MODEL [--seconds 120] [--clients 64]. Long and short
prompts, whole and streamed answers, clients that vanish and clients that read slowly. Every greedy text must be that of a
single request, memory must come back, and SIGTERM must let what runs end. The model is one of bytes."""
import argparse
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("program")
parser.add_argument("model")
parser.add_argument("--seconds", type=float, default=120, help="how long the clients ask")
parser.add_argument("--clients", type=int, default=64)
parser.add_argument("--max-batch", type=int, default=32)
parser.add_argument("--longest", type=int, default=2000, help="characters of the longest prompt")
options = parser.parse_args()

server = subprocess.Popen(
    [options.program, "serve", options.model, "--port", "0", "--max-batch", str(options.max_batch), "--max-waiting", "24",
     "--cache-gb", "0.3", "--write-seconds", "3"], stderr=subprocess.PIPE, text=True)
port = int(re.search(r":(\d+)/", server.stderr.readline()).group(1))
threading.Thread(target=server.stderr.read, daemon=True).start()

PROMPTS = ["abc" * n for n in (1, 7, 40, 150)] + ["long " * (options.longest // 5)]
counts = {"whole": 0, "streamed": 0, "vanished": 0, "slow": 0, "refused": 0}
problems = []
waits = {}  # by the length of the prompt: seconds until whole answers
lock = threading.Lock()


def count(kind):
    with lock:
        counts[kind] += 1


def body(which, stream):
    return json.dumps({"prompt": PROMPTS[which], "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": stream})


def answered(which, seconds):
    with lock:
        waits.setdefault(len(PROMPTS[which]), []).append(seconds)


def post(text):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def text_of_events(data):
    text = ""
    for event in data.decode().split("\n\n"):
        if event.startswith("data: ") and event != "data: [DONE]":
            text += "".join(choice["text"] for choice in json.loads(event[6:]).get("choices", []))
    return text


def ask(which, stream):
    """The text, or None where the queue was full."""
    connection, answer = post(body(which, stream))
    try:
        data = answer.read()
        if answer.status == 429:
            assert int(answer.getheader("Retry-After")) >= 1
            count("refused")
            return None
        assert answer.status == 200, (answer.status, data[:200])
        return text_of_events(data) if stream else json.loads(data)["choices"][0]["text"]
    finally:
        connection.close()


def vanish(which):
    connection, answer = post(body(which, True))
    answer.read(1)
    connection.sock.close() if connection.sock else answer.close()
    connection.close()
    count("vanished")


def read_slowly(which, expected, end):
    """A small window and a few bytes at a time: the server must not wait."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    text = body(which, True)
    client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
                   f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
    data = b""
    while True:
        piece = client.recv(200)
        if not piece:
            break
        data += piece
        if time.time() < end:
            time.sleep(0.01)
    client.close()
    if b" 429 " in data[:40]:
        return count("refused")
    events = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", data.split(b"\r\n\r\n", 1)[1])  # chunks' lengths
    events = re.sub(rb"^[0-9a-f]+\r\n", b"", events)
    assert text_of_events(events) == expected[which], events[-400:]
    count("slow")


def client(number, expected, end):
    choose = random.Random(number)
    try:
        while time.time() < end:
            which, kind = choose.randrange(len(PROMPTS)), choose.random()
            if kind < 0.1:
                vanish(which)
            elif kind < 0.2:
                read_slowly(which, expected, end)
            else:
                stream = kind < 0.6
                begin = time.time()
                text = ask(which, stream)
                if text is None:
                    time.sleep(0.2)
                    continue
                assert text == expected[which], (which, text, expected[which])
                answered(which, time.time() - begin)
                count("streamed" if stream else "whole")
    except Exception as problem:  # pylint: disable=broad-except
        with lock:
            problems.append(f"client {number}: {problem!r}")


def metrics():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: int(value) for name, value in re.findall(r"^reynard_(\w+) (\d+)$", text, re.MULTILINE)}


def resident_mb():
    with open(f"/proc/{server.pid}/status", encoding="utf-8") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024


def run_clients(seconds, expected):
    end = time.time() + seconds
    threads = [threading.Thread(target=client, args=(n, expected, end)) for n in range(options.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(100):  # texts of those that vanished end at their next step, closed connections soon after
        state = metrics()
        if state["texts_running"] == 0 and state["connections"] <= 1:  # the one that asks
            break
        time.sleep(0.1)
    return state


def drain(expected):
    """SIGTERM while a text runs: it ends whole, new work is refused, the exit code is 0."""
    connection, answer = post(json.dumps({"prompt": PROMPTS[0], "max_tokens": 400, "temperature": 0, "ignore_eos": True,
                                          "stream": True, "stream_options": {"include_usage": True}}))
    first = answer.read(1)
    server.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    try:
        late, refusal = post(body(0, False))
        assert refusal.status == 503, refusal.status
        late.close()
    except OSError:
        pass  # it no longer listens
    data = first + answer.read()
    assert b'"completion_tokens":400' in data.replace(b" ", b""), data[-300:]
    assert text_of_events(data).startswith(expected[0])
    connection.close()
    assert server.wait(timeout=60) == 0


try:
    alone = [ask(which, stream=False) for which in range(len(PROMPTS))]
    run_clients(options.seconds / 3, alone)  # fills what may be filled: threads' arenas, the cache of beginnings
    before = resident_mb()
    state = run_clients(options.seconds * 2 / 3, alone)
    after = resident_mb()
    print(f"{counts}, {state['generated_tokens_total'] / options.seconds:.0f} tokens/s, "
          f"memory {before:.0f} -> {after:.0f} MB, {state['cache_pages']} pages")
    for length, seconds in sorted(waits.items()):
        seconds.sort()
        print(f"prompts of {length}: {len(seconds)} answers, half within {seconds[len(seconds) // 2]:.1f} s, "
              f"all within {seconds[-1]:.1f} s")
    assert not problems, problems[:5]
    assert state["texts_running"] == state["texts_waiting"] == state["texts_failed_total"] == 0, state
    assert state["connections"] <= 1, state
    assert after < before * 1.1 + 30, (before, after)
    assert all(counts[kind] for kind in ("whole", "streamed", "vanished", "slow")), counts
    drain(alone)
    print("ok")
finally:
    if server.poll() is None:
        server.kill()
