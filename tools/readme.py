#!/usr/bin/env python3
"""Fills in the parts of README.md, CONTRIBUTING.md and docs/*.md that are made from the sources, between markers:

    <!-- cut: FILE NAME.. -->   the text of FILE between its two lines /* [NAME] */, or # [NAME] in a file for CMake; of
                              several names, one text behind the other
    <!-- output: FILE -->     what the C program FILE prints, compiled by $CC or cc for the host; with two numbers behind
                              FILE, only these lines and those between them
    <!-- patterns -->         the patterns of the fusion list, te/fuse/fusions.h
    <!-- ops -->              only checked: the first column of this table must name every op of te/ops and te/comm
    <!-- op: FAMILY -->       the line of facts of an entry of docs/reference/ops.md: the options that the family takes,
                              and the patterns that contain it
    <!-- statuses -->         the table of TE_STATUSES, te/core/base.h
    <!-- limits -->           only checked: every name in this table must be a constant of te/ with the value beside it
    <!-- blocks -->           the table of whole blocks, of bench/results/peers.tsv; <!-- block_inference -->: of inference
    <!-- tree -->             only checked: every path at the beginning of a line must exist
    <!-- end -->              ends each of these parts

    tools/readme.py           rewrites the files
    tools/readme.py --check   changes nothing; fails and prints the differences if a file is out of date
"""
import difflib
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

import figures

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
PART = re.compile(r"<!-- (cut|output|patterns|ops|op|statuses|limits|blocks|block_inference|tree)(?:: ([^>]*?))? -->\n(.*?)<!-- end -->\n", re.S)


class Mistake(Exception):
    pass


def fenced(text, language=""):
    return f"```{language}\n{text.rstrip()}\n```\n"


def cut(_, file, *names):
    cmake = pathlib.Path(file).name == "CMakeLists.txt"
    texts = []
    for name in names:
        mark = f"# [{name}]" if cmake else f"/* [{name}] */"
        parts = re.split(rf"^[ ]*{re.escape(mark)}\n", (ROOT / file).read_text(), flags=re.M)
        if len(parts) != 3:
            raise Mistake(f"{file}: {mark} must stand on two lines, not {len(parts) - 1}")
        texts.append(textwrap.dedent(re.sub(r"^ */\* \[\w+\] \*/\n", "", parts[1], flags=re.M)).rstrip())
    return fenced("\n\n".join(texts), "cmake" if cmake else "c")


@functools.lru_cache(maxsize=None)
def printed(file):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        others = [argument for cu in sorted((ROOT / file).parent.glob("*.cu")) for argument in ("-x", "c", str(cu))]
        compile_ = [os.environ.get("CC", "cc"), "-std=c11", "-O2", "-I.", file, *others, "-o", program, "-lm"]
        subprocess.run(compile_, cwd=ROOT, check=True)
        run = subprocess.run([program], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout


def output(_, file, first=1, last=1000):
    return fenced("\n".join(printed(file).split("\n")[int(first) - 1 : int(last)]))


def patterns(_):
    text = (ROOT / "te/fuse/fusions.h").read_text()
    lists = [re.findall(rf"^#define TE_{pass_}_(\w+) TE_FUSED\b", text, re.M) for pass_ in ("FORWARD", "BACKWARD")]
    if not all(lists):
        raise Mistake("te/fuse/fusions.h: no patterns found")
    lines = ["| forward, inference | backward, from the end of the list |", "|---|---|"]
    for i in range(max(map(len, lists))):
        lines.append("| " + " | ".join(f"`{names[i]}`" if i < len(names) else "" for names in lists) + " |")
    return "\n".join(lines) + "\n"


def op_headers():
    return [*(ROOT / "te/ops").glob("*.h"), ROOT / "te/comm/collective.h"]


def ops(body):
    kinds = set()
    for header in op_headers():
        kinds.update(re.findall(r"^#define TE_OP_(\w+) \(", header.read_text(), re.M))
    first_column = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`\(?(\w+)", "".join(first_column)))
    if named != kinds:
        raise Mistake(f"the table of ops lacks {sorted(kinds - named)} and has {sorted(named - kinds)} too many")
    return body


def op(_, family):
    text = "\n".join(header.read_text() for header in op_headers())
    if not re.search(rf"^#define TE_OP_\w+ \({family},", text, re.M):
        raise Mistake(f"no op of te/ops has the family {family}")
    kinds = {"TE_NUMBER": "number", "TE_INTEGER": "integer", "TE_TOKEN": "word"}
    options = re.findall(rf"^#define TE_TAKES_{family}_([a-z]\w*) (TE_NUMBER|TE_INTEGER|TE_TOKEN)", text, re.M)
    fusions = (ROOT / "te/fuse/fusions.h").read_text()
    found = {p: [f"`{n}`" for n in re.findall(rf"^#define TE_{p}_(\w+) TE_FUSED\b", fusions, re.M) if family in families(n)]
             for p in ("FORWARD", "BACKWARD")}
    lines = ["Options: " + (", ".join(f"`{name}` ({kinds[kind]})" for name, kind in sorted(options)) or "none") + "."]
    lines += ["", "Patterns, forward: " + (", ".join(found["FORWARD"]) or "none") + ". Backward: " +
              (", ".join(found["BACKWARD"]) or "none") + "."]
    return "\n".join("\n".join(textwrap.wrap(line, 120, break_on_hyphens=False)) for line in lines) + "\n"


def families(pattern):
    """The families in the name of a pattern: linear_mul_param_add is linear, mul_param, add."""
    for family in ("mul_param", "head_norm", "expert_linear"):
        pattern = pattern.replace(family, family.replace("_", "-"))
    return [name.replace("-", "_") for name in pattern.split("_")]


def statuses(_):
    text = (ROOT / "te/core/base.h").read_text()
    rows = re.findall(r"^    X\((\w+), +\"([^\"]*)\"\)", text, re.M)
    return "\n".join(["| status | `te_status_string` |", "|---|---|"] + [f"| `TE_{n}` | {t} |" for n, t in rows]) + "\n"


def limits(body):
    text = "\n".join(header.read_text() for header in sorted((ROOT / "te").rglob("*.h")))
    for name, value in re.findall(r"^\| `(TE_\w+)` \| ([^|]*?) \|", body, re.M):
        if not re.search(rf"\b{name} = {re.escape(value)}[,; /\n}}]|#define {name} {re.escape(value)}\b", text):
            raise Mistake(f"the table of limits says {name} = {value}, and no header does")
    return body


def blocks(_):
    return figures.block_table()


def block_inference(_):
    return figures.inference_table()


def tree(body):
    missing = [path for path in re.findall(r"^([\w./]+)", body, re.M) if not (ROOT / path).exists()]
    if missing:
        raise Mistake(f"the tree names {', '.join(missing)}: no such files")
    return body


def made(document):
    def fill(match):
        kind, arguments, body = match[1], (match[2] or "").split(), match[3]
        head = match[0][: match[0].index("\n") + 1]
        return head + globals()[kind](body, *arguments) + "<!-- end -->\n"

    text = (ROOT / document).read_text()
    if text.count("<!-- end -->") != len(PART.findall(text)):
        raise Mistake("a marker and its <!-- end --> do not match")
    return text, PART.sub(fill, text)


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    failed = False
    for document in DOCUMENTS:
        try:
            old, new = made(document)
        except (Mistake, OSError, subprocess.CalledProcessError) as mistake:
            print(f"{document}: {mistake}", file=sys.stderr)
            failed = True
            continue
        if old == new:
            continue
        if check:
            names = document, f"{document} as tools/readme.py writes it"
            sys.stderr.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names))
            failed = True
        else:
            (ROOT / document).write_text(new)
            print(f"{document}: rewritten")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
