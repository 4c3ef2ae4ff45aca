"""reynard chat against Jinja2 and in a terminal, and Ctrl-C in generate: chat_terminal.py PROGRAM MODEL. The model is one of bytes."""
import fcntl
import glob
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from datetime import datetime

from jinja2.sandbox import ImmutableSandboxedEnvironment

program, model = sys.argv[1:3]
own_folder = os.path.join(os.path.dirname(__file__), "..", "generation", "chat_templates")


# What `transformers` gives templates.
def environment():
    def raise_exception(message):
        raise ValueError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals.update(raise_exception=raise_exception,
                        strftime_now=lambda form: datetime.now().strftime(form))
    return made


def expected_prompt(source, messages):
    return environment().from_string(source).render(
        messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", tools=None, documents=None)


def chat(arguments, lines):
    return subprocess.run([program, "chat", model, "-m", "4", "--ignore-eos", "--log-tolerance", "0", *arguments],
                          input="".join(line + "\n" for line in lines), capture_output=True, text=True, timeout=60)


def same_prompts_as_jinja2(path, folder):
    with open(path, encoding="utf-8") as file:
        source = file.read()
    for beginning in [[], [{"role": "system", "content": "Be \"brief\".\n"}, {"role": "user", "content": "grüß 👍"},
                           {"role": "assistant", "content": "<think>\nhm\n</think>\n\n ja "}]]:
        history = os.path.join(folder, "history.json")
        with open(history, "w", encoding="utf-8") as file:
            json.dump(beginning, file)
        run = chat(["--chat-template", path, "--history", history, "--show-prompt", "--json"], [" one ", "two"])
        assert run.returncode == 0, run.stderr
        with open(history, encoding="utf-8") as file:
            messages = json.load(file)
        asked = len(beginning)
        assert [m["role"] for m in messages[asked:]] == ["user", "assistant"] * 2, messages
        want = "".join(expected_prompt(source, messages[:end]) + "\n" for end in (asked + 1, asked + 3))
        assert run.stderr == want, f"{path}:\n{run.stderr!r}\n{want!r}"
        answers = [json.loads(line) for line in run.stdout.splitlines()]
        assert [a["content"] for a in answers] == [m["content"] for m in messages[asked + 1::2]]


class Terminal:
    """A person at a terminal."""

    def __init__(self, arguments):
        self.child, self.descriptor = pty.fork()
        if self.child == 0:
            os.execv(program, [program, "chat", model, *arguments])

    def type(self, text):
        os.write(self.descriptor, text.encode())

    def paste(self, text):
        """What is echoed meanwhile is dropped."""
        for begin in range(0, len(text), 500):
            self.type(text[begin:begin + 500])
            while select.select([self.descriptor], [], [], 0.05)[0]:
                os.read(self.descriptor, 4096)

    def wait_for(self, is_there):
        seen = b""
        end = time.time() + 60
        while not is_there(seen):
            assert time.time() < end, seen
            if select.select([self.descriptor], [], [], 0.2)[0]:
                seen += os.read(self.descriptor, 4096)
        return seen

    def end(self):
        status = None
        for _ in range(600):
            done, status = os.waitpid(self.child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    os.read(self.descriptor, 4096)
                except OSError:  # the other side is closed
                    time.sleep(0.1)
        os.kill(self.child, signal.SIGKILL)
        raise AssertionError("it does not end")


def terminals_exist():
    """Not in a root folder without /dev/pts."""
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
    except OSError:
        return False
    return True


def control_c_ends_the_answer_and_then_the_program(folder):
    history = os.path.join(folder, "talk.json")
    endless = ["--chat-template", "chatml", "--history", history, "-m", "100000", "-t", "1", "--ignore-eos"]
    terminal = Terminal(endless)
    terminal.wait_for(lambda seen: seen.endswith(b"> "))
    terminal.type("hello\n")
    terminal.wait_for(lambda seen: len(seen) > 60)  # it streams
    terminal.type("\x03")
    terminal.wait_for(lambda seen: seen.endswith(b"\r\n> "))
    with open(history, encoding="utf-8") as file:
        messages = json.load(file)
    assert messages[0]["content"] == "hello" and len(messages[1]["content"]) > 20, messages
    time.sleep(0.6)  # later than what counts as the same Ctrl-C
    terminal.type("\x03")
    assert terminal.end() == 130
    terminal = Terminal(endless)
    terminal.wait_for(lambda seen: seen.endswith(b"> "))
    terminal.type("/hlep\n")
    terminal.wait_for(lambda seen: b'"/hlep" is no command' in seen and seen.endswith(b"> "))
    terminal.type("/exit\n")
    assert terminal.end() == 0


def other_signals_keep_the_answer_and_end_the_program(folder):
    for name in ("TERM", "HUP", "closed"):
        history = os.path.join(folder, name + ".json")
        terminal = Terminal(["--chat-template", "chatml", "--history", history, "-m", "100000", "-t", "1", "--ignore-eos"])
        terminal.wait_for(lambda seen: seen.endswith(b"> "))
        terminal.type("hello\n")
        terminal.wait_for(lambda seen: len(seen) > 60)  # it streams
        if name == "closed":
            os.close(terminal.descriptor)
            end = time.time() + 60
            while os.waitpid(terminal.child, os.WNOHANG)[0] == 0:
                assert time.time() < end, "it does not end"
                time.sleep(0.1)
        else:
            os.kill(terminal.child, getattr(signal, "SIG" + name))
            assert terminal.end() == 130
        with open(history, encoding="utf-8") as file:
            messages = json.load(file)
        assert messages[0]["content"] == "hello" and len(messages[1]["content"]) > 20, (name, messages)


def lines_that_the_terminal_cuts_are_not_sent(folder):
    history = os.path.join(folder, "long.json")
    terminal = Terminal(["--chat-template", "chatml", "--history", history, "-m", "4", "--ignore-eos"])
    terminal.wait_for(lambda seen: seen.endswith(b"> "))
    for text in ("w" * 6000 + "END", "w" * 4095):
        terminal.type("first\\\n")
        terminal.wait_for(lambda seen: seen.endswith(b"\r\n  "))
        terminal.paste(text)
        terminal.type("\n")
        said = terminal.wait_for(lambda seen: seen.endswith(b"> "))
        assert b"cut after 4095 bytes" in said and b"backslash" in said, said[-300:]
        assert not os.path.exists(history), len(text)
    for letters in (4000, 4094):
        terminal.paste("w" * letters)
        terminal.type("\n")
        terminal.wait_for(lambda seen: seen.endswith(b"\r\n> "))
        with open(history, encoding="utf-8") as file:
            messages = json.load(file)
        assert messages[-2]["content"] == "w" * letters, (letters, len(messages[-2]["content"]))
    assert len(messages) == 4, len(messages)
    terminal.type("/exit\n")
    assert terminal.end() == 0


def control_c_keeps_what_generate_wrote():
    run = subprocess.Popen([program, "generate", model, "hello", "-m", "1000000", "-t", "1", "--ignore-eos"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    written = run.stdout.read(50)  # it streams
    run.send_signal(signal.SIGINT)
    written += run.stdout.read()
    assert run.wait(timeout=60) == 130
    assert len(written) > 50 and written.endswith(b"\n"), written[-50:]


def progress_is_one_line_of_the_terminal():
    def said(terminal, columns=80):
        own, theirs = pty.openpty()
        fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {**os.environ, "TERM": terminal}
        run = subprocess.run([program, "generate", model, "hello", "-m", "2", "--log-tolerance", "0"],
                             stdout=subprocess.PIPE, stderr=theirs, env=environment, timeout=60)
        assert run.returncode == 0
        os.write(theirs, b".")
        seen = os.read(own, 1 << 16)
        os.close(own)
        os.close(theirs)
        return seen

    assert b"reading the prompt [" in said("xterm")
    for columns in (40, 10):
        lines = said("xterm", columns).split(b"\r\033[K")
        assert max(map(len, lines)) == columns, lines
    assert said("dumb") == b".", said("dumb")


with tempfile.TemporaryDirectory() as temporary:
    folders = [own_folder] + [f for f in [os.environ.get("REYNARD_CHAT_TEMPLATES")] if f]
    for path in [p for folder in folders for p in sorted(glob.glob(folder + "/*.jinja"))]:
        same_prompts_as_jinja2(path, temporary)
    if terminals_exist():
        control_c_ends_the_answer_and_then_the_program(temporary)
        other_signals_keep_the_answer_and_end_the_program(temporary)
        lines_that_the_terminal_cuts_are_not_sent(temporary)
        progress_is_one_line_of_the_terminal()
    else:
        print("skipped: what happens at a terminal, since this system offers no pseudo-terminals")
control_c_keeps_what_generate_wrote()
print("ok")
