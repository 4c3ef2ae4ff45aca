"""reynard serve as the `openai` package sees it: openai_client.py PROGRAM MODEL. Exits with 77 where the package is missing."""
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request

try:
    import openai
except ImportError:
    print("the openai package is not installed")
    sys.exit(77)

program, model = sys.argv[1:3]
server = subprocess.Popen(
    [program, "serve", model, "--port", "0", "--api-key", "secret", "--chat-template", "chatml"],
    stderr=subprocess.PIPE, text=True)
line = server.stderr.readline()
url = re.search(r"http://[\d.:]+/", line).group(0)
threading.Thread(target=server.stderr.read, daemon=True).start()
try:
    client = openai.OpenAI(base_url=url + "v1", api_key="secret", max_retries=0)
    name = client.models.list().data[0].id

    whole = client.completions.create(model=name, prompt="hello", max_tokens=12, temperature=0, logprobs=2)
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert len(whole.choices[0].logprobs.token_logprobs) == whole.usage.completion_tokens
    streamed = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(
            model=name, prompt="hello", max_tokens=12, temperature=0, stream=True))
    assert streamed == whole.choices[0].text, (streamed, whole.choices[0].text)
    ids = client.completions.create(model=name, prompt=[[104, 105], [104]], max_tokens=2, n=2, seed=1)
    assert [choice.index for choice in ids.choices] == [0, 1, 2, 3]
    again = client.completions.create(model=name, prompt=[[104, 105], [104]], max_tokens=2, n=2, seed=1)
    assert [c.text for c in ids.choices] == [c.text for c in again.choices]

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(
        model=name, messages=messages, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    chunks = list(client.chat.completions.create(
        model=name, messages=messages, max_tokens=8, temperature=0, stream=True,
        stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens

    for wrong, error in [(dict(model="other", prompt="a"), openai.NotFoundError),
                         (dict(model=name, prompt=[[300]]), openai.BadRequestError),
                         (dict(model=name, prompt="a", temperature=-1), openai.BadRequestError)]:
        try:
            client.completions.create(**wrong)
            raise AssertionError(wrong)
        except error as refused:
            assert refused.body["message"], refused
    try:
        openai.OpenAI(base_url=url + "v1", api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key is taken")
    except openai.AuthenticationError:
        pass

    # What runs when SIGTERM comes is finished.
    stream = client.completions.create(
        model=name, prompt="hello", max_tokens=300, temperature=1, stream=True,
        extra_body={"ignore_eos": True}, stream_options={"include_usage": True})
    next(iter(stream))
    server.send_signal(signal.SIGTERM)
    last = None
    for last in stream:
        pass
    assert last.usage.completion_tokens == 300
    assert server.wait(timeout=30) == 0
finally:
    if server.poll() is None:
        server.kill()
print("ok")
