#!/usr/bin/env python3
"""Draws docs/pictures/plan.svg, the README's picture: a list of ops, and the steps into which forward and backward divide it.

    tools/plan_picture.py            compiles examples/readme/readme.c, and draws the plan that the program prints
    tools/plan_picture.py --check    fails if the picture is out of date
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/pictures/plan.svg"
SOURCE = "examples/readme/readme.c"

ROW, TOP, BOX = 22, 64, 18 # pixels: of an op, above the first op, height of an op's box
COLUMNS = {"list": (10, 190), "forward": (290, 270), "backward": (610, 270)} # left edge and width
STYLE = """
  svg { white-space: pre; font: 12px ui-monospace, Menlo, Consolas, monospace; }
  text { fill: #1f2328; } .title { font-weight: bold; font-size: 14px; } .note { fill: #59636e; }
  .op { fill: #eef1f4; stroke: #8c959f; } .forward { fill: #ddf4ff; stroke: #0969da; }
  .backward { fill: #fff1e5; stroke: #bc4c00; } .line { stroke: #8c959f; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .note { fill: #9198a1; } .op { fill: #212830; stroke: #656c76; }
    .forward { fill: #10305c; stroke: #4493f8; } .backward { fill: #4a2208; stroke: #f0883e; } .line { stroke: #656c76; }
  }
"""


def printed_plan():
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-std=c11", "-O2", "-I.", SOURCE, "-o", program, "-lm"], cwd=ROOT, check=True)
        return subprocess.run([program], cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def list_of_ops():
    """(kind, name) of each op of the example's list."""
    text = re.search(r"#define GPT_BLOCK\(H, F, HEADS\)(.*?)\n\n", (ROOT / SOURCE).read_text(), re.S)[1]
    return re.findall(r"\((fork|layernorm|linear|bias|attention|dropout|add|gelu), (\w+)", text)


def steps_of(plan, title):
    part = plan.split(f"\n{title}, ")[1]
    return re.findall(r"^ +\d+  (\w+) ", part.split("\n\n")[0].split("\ninference")[0], re.M)[: int(part.split()[0])]


def spans(steps, ops, backward):
    """For each step (name, first op, last op), both included."""
    found, at = [], len(ops) - 1 if backward else 0
    for step in steps:
        first, rest = at, step
        while rest:
            kind = ops[at][0]
            assert rest == kind or rest.startswith(kind + "_"), (step, ops[at])
            rest = rest[len(kind) + 1 :]
            at += -1 if backward else 1
        found.append((step, at + 1, first) if backward else (step, first, at - 1))
    assert at == (-1 if backward else len(ops))
    return found


def wrapped(name, columns):
    lines = [""]
    for word in name.replace("_", "_ ").split(" "):
        if len(lines[-1]) + len(word) > columns:
            lines.append("   ")
        lines[-1] += word
    return lines


def drawing():
    plan, ops = printed_plan(), list_of_ops()
    height = TOP + ROW * len(ops) + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 890 {height}" width="890" height="{height}" role="img">',
           "<title>A list of 18 ops, and the steps of its forward and backward pass</title>", f"<style>{STYLE}</style>"]
    titles = {"list": f"the list: {len(ops)} ops"}
    for pass_ in ("forward", "backward"):
        steps = spans(steps_of(plan, pass_), ops, pass_ == "backward")
        titles[pass_] = f"{pass_}: {len(steps)} steps"
        x, width = COLUMNS[pass_]
        for number, (step, first, last) in enumerate(steps, 1):
            y, h = TOP + first * ROW, (last - first) * ROW + BOX
            out.append(f'<rect class="{pass_}" x="{x}" y="{y}" width="{width}" height="{h}" rx="4"/>')
            lines = wrapped(f"{number}.{step}", 36)
            for i, line in enumerate(lines):
                base = y + h / 2 + 4 + (i - (len(lines) - 1) / 2) * 14
                out.append(f'<text x="{x + 10}" y="{base:g}">{line.replace(".", "  ", 1)}</text>')
            if pass_ == "forward":
                left = sum(COLUMNS["list"])
                out.append(f'<path class="line" d="M{left + 6} {y} h8 v{h} h-8 M{left + 14} {y + h / 2:g} H{x - 4}"/>')
    for i, (kind, name) in enumerate(ops):
        x, width = COLUMNS["list"]
        out.append(f'<rect class="op" x="{x}" y="{TOP + i * ROW}" width="{width}" height="{BOX}" rx="3"/>')
        out.append(f'<text x="{x + 8}" y="{TOP + i * ROW + 13}">({kind}, {name}, ..)</text>')
    notes = {"list": "you write it", "forward": "longest pattern first, from the top",
             "backward": "from the end of the list"}
    for column, (x, _) in COLUMNS.items():
        out.append(f'<text class="title" x="{x}" y="24">{titles[column]}</text>')
        out.append(f'<text class="note" x="{x}" y="44">{notes[column]}</text>')
    out.append(f'<text class="note" x="10" y="{height - 10}">Each step becomes one kernel, or a GEMM and one kernel, '
               "compiled for these shapes; a profiler shows them by these names.</text>")
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    new = drawing()
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != new:
            sys.exit(f"{PICTURE.relative_to(ROOT)} is out of date: run tools/plan_picture.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(new)


if __name__ == "__main__":
    main()
