"""What the report needs from vl-convert (see scripts/requirements.txt).

figures.py bundle FILE   writes the JavaScript of Vega, Vega-Lite and Vega-Embed that the page embeds
figures.py png FOLDER    draws every NAME.vl.json of the folder as NAME.png
"""

import argparse
import fcntl
import json
import os
import pathlib
import sys

PNG_WIDTH = 860  # pixels of figures that fill the page's width
INK = "#1b1f27"


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with temporary.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # what is not locked looks left behind by a killed process
        file.write(data)
        file.flush()
        temporary.replace(path)


def on_paper(value):
    """The specification with the page's colours and width replaced by those of a sheet of paper."""
    if isinstance(value, dict):
        return {key: on_paper(item) for key, item in value.items()}
    if isinstance(value, list):
        return [on_paper(item) for item in value]
    return INK if value == "currentColor" else value


def paper_spec(spec: dict) -> dict:
    spec = on_paper(spec)
    if spec.get("width") == "container":
        spec["width"] = PNG_WIDTH
    spec.setdefault("config", {})["background"] = "white"
    spec["config"]["font"] = "Inter, DejaVu Sans, sans-serif"
    return spec


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["bundle", "png"])
    parser.add_argument("path", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        import vl_convert
    except ImportError:
        print("figures.py: vl-convert-python is missing; install scripts/requirements.txt", file=sys.stderr)
        return 2
    if arguments.what == "bundle":
        arguments.path.parent.mkdir(parents=True, exist_ok=True)
        # A function of its own, so that none of the bundle's names become global.
        bundle = "(() => {" + vl_convert.javascript_bundle() + "})();\n"
        write_atomically(arguments.path, bundle.encode())
        return 0
    for path in sorted(arguments.path.glob("*.vl.json")):
        spec = paper_spec(json.loads(path.read_text(encoding="utf-8")))
        png = vl_convert.vegalite_to_png(json.dumps(spec), scale=2)
        write_atomically(path.with_name(path.name.removesuffix(".vl.json") + ".png"), png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
