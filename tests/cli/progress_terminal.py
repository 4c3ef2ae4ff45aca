"""The bar of reynard prepare on terminals of several widths: progress_terminal.py PROGRAM FOLDER. Exits with 77 where there are no
terminals."""
import fcntl
import os
import pty
import re
import struct
import sys
import termios

program, folder = sys.argv[1:3]
text = os.path.join(folder, "text.txt")
with open(text, "w", encoding="utf-8") as file:
    file.write("a line of text\n" * 20000)


def lines(columns):
    child, descriptor = pty.fork()
    if child == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.environ["TERM"] = "xterm"
        os.execv(program, [program, "prepare", text, "-o", os.path.join(folder, "out")])
    seen = b""
    try:
        while piece := os.read(descriptor, 4096):
            seen += piece
    except OSError:  # the other side is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, seen
    return [line for line in re.findall(r"\r\x1b\[K([^\r\n]+)", seen.decode()) if line.startswith("preparing")]


try:
    for pair in os.openpty():
        os.close(pair)
except OSError:
    print("there are no terminals")
    sys.exit(77)

for columns, bar in ((80, 30), (60, 30), (40, 12), (24, 0)):
    drawn = lines(columns)
    assert drawn, columns
    for line in drawn:
        assert len(line) <= columns, (columns, line)
        assert re.fullmatch(r"preparing (\[[=> ]*\] )?[ \d]+%( ETA [\d:]+)?", line), (columns, line)
        shown = re.search(r"\[(.*)\]", line)
        assert (len(shown.group(1)) if shown else 0) >= bar, (columns, line)
print("ok")
