#!/usr/bin/env python3
"""Measured figures in README.md and docs/: where they are from, and whether they are what the results files say.

    tools/figures.py       checks that
        - each paragraph, list or table with a measured figure names a results file, a commit or a note, or says that it
          has no results file; for a table, or behind a colon, the paragraph before it may do so;
        - each results file and each commit that is named exists;
        - each figure with a comment <!-- figure: TEXT = EXPRESSION --> is the rounded value of the expression, stands in
          the section of this comment, and the section names the commit at which the results file was measured.

An expression is A, A / B or A - B; each of these is a number, or a cell of a results file: FILE[COLUMN]; FIELD; FIELD..
is the cell in the first line that begins with these fields (the first field may also be the name of a macro). COLUMN is
microseconds if it is left out:

    <!-- figure: 16.4 = peers.tsv; gpt4096; forward+backward; ours; 8192 / 1000 -->

Notes (docs/notes) are not checked: they were measured while the code beside them was written. tools/readme.py makes the
tables of whole blocks with block_table and inference_table.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
DOCUMENTS = ["README.md", *(p for p in sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))
                            if not p.startswith("docs/notes/"))]

UNIT = r"(?:us|ms|s|seconds|tokens/s|TFLOP/s|GB/s|TB/s)"
FIGURE = re.compile(rf"\d\*{{0,2}} {UNIT}(?![\w-])|, (?:us|ms) \||tokens/s \||copy rate \||times as (?:fast|long)|of the time of|"
                    r"of PyTorch's time|tokens a second")
SOURCE = re.compile(r"results/\w+\.(?:tsv|md)|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,8}\b|notes/\w+\.md|no results file")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,8}\b")
CLAIM = re.compile(r"<!-- figure: (\S+) = (.*?) -->", re.S)
PARTS = re.compile(r"<!-- (?:cut|output).*?<!-- end -->|^```.*?^```$", re.S | re.M)


class Mistake(Exception):
    pass


def lines_of(file):
    """(commit, columns, rows) of a results file."""
    head, columns, *rows = (RESULTS / file).read_text().splitlines()
    return COMMIT.findall(head)[0], columns.split("\t"), [row.split("\t") for row in rows]


def cell(file, *fields, column="microseconds"):
    _, columns, rows = lines_of(file)
    for row in rows:
        if all(f in (r, r.split("(")[0]) for f, r in zip(fields, row)):
            return float(row[columns.index(column)])
    raise Mistake(f"{file} has no line {', '.join(fields)}")


def term(text):
    """(value, results file or None) of a number or of a cell."""
    if re.fullmatch(r"[\d.e]+", text):
        return float(text), None
    name, *fields = (part.strip() for part in text.split(";"))
    file, column = re.fullmatch(r"([\w.]+)(?:\[(\w+)\])?", name).groups()
    return cell(file, *fields, column=column or "microseconds"), file


def value(expression):
    """(value, results files) of an expression."""
    first, *rest = re.split(r"\s+([/-])\s+", " ".join(expression.split()))
    result, file = term(first)
    files = {file}
    for operation, operand in zip(rest[::2], rest[1::2]):
        other, file = term(operand)
        files.add(file)
        result = result / other if operation == "/" else result - other
    return result, files - {None}


def digits(text):
    return len(text.partition(".")[2])


# ---- tables that tools/readme.py makes ---------------------------------------------------------------------------------

BLOCKS = [("GPT, hidden 4096, ffn 16384", "4 x 2048", "gpt4096", ("attention", "8192x12288x4096")),
          ("Llama 3 8B", "8192", "llama4096", ("llama4096_attention", "8192x6144x4096")),
          ("Qwen3 8B", "8192", "qwen4096", ("qwen4096_attention", "8192x6144x4096"))]


def block_table():
    """Forward and backward of whole blocks, in milliseconds; and without attention, whose time is subtracted. PyTorch's
    attention is the same kernel with and without torch.compile."""
    head = "| block | tokens | this library, ms | PyTorch eager, ms | `torch.compile`, ms |\n|---|---|--:|--:|--:|\n"
    for title, tokens, name, (attention, shape) in BLOCKS:
        whole = [cell("peers.tsv", name, "forward+backward", v, "8192") / 1e3 for v in ("ours", "eager", "compile")]
        alone = [cell("peers.tsv", attention, "forward+backward", v, shape) / 1e3 for v in ("ours", "eager", "eager")]
        head += f"| {title} | {tokens} | " + " | ".join(f"{t:.1f}" for t in whole) + " |\n"
        head += f"| {title.split(',')[0]} without attention | {tokens} | "
        head += " | ".join(f"{t - a:.1f}" for t, a in zip(whole, alone)) + " |\n"
    return head


def inference_table():
    """Inference of the GPT block as a CUDA graph."""
    table = "| rows | this library, us | PyTorch eager, us | `torch.compile`, us |\n|--:|--:|--:|--:|\n"
    for rows in ("1", "8", "64"):
        times = [cell("peers.tsv", "gpt4096", "inference", v, rows) for v in ("ours", "eager", "compile")]
        table += f"| {rows} | " + " | ".join(f"{t:.0f}" for t in times) + " |\n"
    return table


# ---- checks --------------------------------------------------------------------------------------------------------------

def check_sources(path, section):
    """The number of figures' paragraphs, and of those that name no source."""
    count = bad = 0
    paragraphs = [p for p in re.split(r"\n\s*\n", PARTS.sub("", section)) if CLAIM.sub("", p).strip()]
    for i, paragraph in enumerate(paragraphs):
        figure = FIGURE.search(CLAIM.sub("", paragraph))
        if not figure:
            continue
        count += 1
        before = paragraphs[i - 1] if i and (paragraph.startswith("|") or paragraphs[i - 1].rstrip().endswith(":")) else ""
        if not SOURCE.search(CLAIM.sub("", paragraph + before)):
            bad += 1
            words = " ".join(paragraph[max(0, figure.start() - 60):figure.end()].split())
            print(f"{path}: \"..{words}\" names no results file, no commit and no note")
    return count, bad


def check_claim(path, section, text, expression):
    try:
        is_, files = value(expression)
    except (Mistake, OSError, ValueError, AttributeError) as mistake:
        return f"{path}: {expression}: {mistake}"
    if f"{is_:.{digits(text)}f}" != text:
        return f"{path}: says {text}, and {expression} is {is_:.4g}"
    if not re.search(rf"(?<![\d.]){re.escape(text)}(?![\d]|\.\d)", CLAIM.sub("", section)):
        return f"{path}: {text} = {expression} stands in no sentence of its section"
    for file in files:
        if lines_of(file)[0][:7] not in section:
            return f"{path}: {file} was measured at commit {lines_of(file)[0]}, which the section does not name"
    return None


def main():
    good, count, claims = True, 0, 0
    history = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    has_history = history.stdout.strip() == "false"
    for path in DOCUMENTS:
        text = (ROOT / path).read_text()
        for section in re.split(r"(?m)^(?=##? )", text):
            found, bad = check_sources(path, section)
            count, good = count + found, good and not bad
            for claim in CLAIM.findall(section):
                claims += 1
                mistake = check_claim(path, section, *claim)
                if mistake:
                    print(mistake)
                    good = False
        for file in set(re.findall(r"bench/results/\w+\.\w+", text)):
            if not (ROOT / file).exists():
                print(f"{path}: names {file}, which does not exist")
                good = False
        for commit in set(COMMIT.findall(text)) if has_history else ():
            found = subprocess.run(["git", "cat-file", "-e", commit + "^{commit}"], cwd=ROOT, capture_output=True)
            if found.returncode:
                print(f"{path}: names the commit {commit}, which does not exist")
                good = False
    print(f"{count} paragraphs with measured figures, {claims} figures compared with results files")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
