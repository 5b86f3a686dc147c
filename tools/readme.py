#!/usr/bin/env python3
"""Fills in the parts of README.md, CONTRIBUTING.md and docs/*.md that are made from the sources, between markers:

    <!-- cut: FILE NAME -->   the text of FILE between its two lines /* [NAME] */, or # [NAME] in a file for CMake
    <!-- output: FILE -->     what the C program FILE prints, compiled by $CC or cc for the host
    <!-- patterns -->         the patterns of the fusion list, te/fuse/fusions.h
    <!-- ops -->              only checked: the first column of this table must name every op of te/ops, and no other
    <!-- tree -->             only checked: every path at the beginning of a line must exist
    <!-- end -->              ends each of these parts

    tools/readme.py           rewrites the files
    tools/readme.py --check   changes nothing; fails and prints the differences if a file is out of date
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
PART = re.compile(r"<!-- (cut|output|patterns|ops|tree)(?:: ([^>]*?))? -->\n(.*?)<!-- end -->\n", re.S)


class Mistake(Exception):
    pass


def fenced(text, language=""):
    return f"```{language}\n{text.rstrip()}\n```\n"


def cut(_, file, name):
    cmake = pathlib.Path(file).name == "CMakeLists.txt"
    mark = f"# [{name}]" if cmake else f"/* [{name}] */"
    parts = re.split(rf"^[ ]*{re.escape(mark)}\n", (ROOT / file).read_text(), flags=re.M)
    if len(parts) != 3:
        raise Mistake(f"{file}: {mark} must stand on two lines, not {len(parts) - 1}")
    return fenced(textwrap.dedent(parts[1]), "cmake" if cmake else "c")


def output(_, file):
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        compile_ = [os.environ.get("CC", "cc"), "-std=c11", "-O2", "-I.", file, "-o", program, "-lm"]
        subprocess.run(compile_, cwd=ROOT, check=True)
        run = subprocess.run([program], cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return fenced(run.stdout)


def patterns(_):
    text = (ROOT / "te/fuse/fusions.h").read_text()
    lists = [re.findall(rf"^#define TE_{pass_}_(\w+) TE_FUSED\b", text, re.M) for pass_ in ("FORWARD", "BACKWARD")]
    if not all(lists):
        raise Mistake("te/fuse/fusions.h: no patterns found")
    lines = ["| forward, inference | backward, from the end of the list |", "|---|---|"]
    for i in range(max(map(len, lists))):
        lines.append("| " + " | ".join(f"`{names[i]}`" if i < len(names) else "" for names in lists) + " |")
    return "\n".join(lines) + "\n"


def ops(body):
    kinds = set()
    for header in (ROOT / "te/ops").glob("*.h"):
        kinds.update(re.findall(r"^#define TE_OP_(\w+) \(", header.read_text(), re.M))
    first_column = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`\(?(\w+)", "".join(first_column)))
    if named != kinds:
        raise Mistake(f"the table of ops lacks {sorted(kinds - named)} and has {sorted(named - kinds)} too many")
    return body


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
