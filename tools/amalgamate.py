#!/usr/bin/env python3
"""Writes the library as one header: te/te.h and, behind it, the headers of HEADERS, with every #include of a te/ header replaced by the text of that
header.

    tools/amalgamate.py [FILE]       default: standard output

Copy the file into a project as te/te.h, or under any name. It compiles as C11, C++17 and CUDA, like the folder: #ifs that choose the
target and includes of system headers stay as they are. Include guards stay, too, so that a program may include both this file and headers
of the folder.

A header is inserted where it is first included. It is inserted again only at a place outside the #if that contains the first one; there the
include guard decides which copy is compiled. A file without a guard (a template by inclusion, .inc) is inserted each time.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = "te/te.h", "te/infer.h", "te/moe.h", "te/microscaling.h", "te/context_parallel.h"
INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
COMPUTED = re.compile(r'\s*#\s*include\s+[^"<\s]')
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*(\w*)", re.M)
TOKEN = re.compile(r"""/\*|//|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""")  # the beginning of a comment, or a literal, inside which no comment can begin


def name(file):
    return file.relative_to(ROOT).as_posix()


class Amalgam:
    def __init__(self):
        self.lines = []
        self.branches = []  # the branches of #ifs, except guards, around the current line; each branch has a number
        self.count = 0
        self.places = {}  # header: for each copy of it, the branches around it
        self.open = []  # the headers that are being inserted, outermost first

    def new_branch(self):
        self.count += 1
        return self.count

    def add(self, file, where):
        if not file.is_file():
            sys.exit(f"{where}: there is no {file}")
        text = file.read_text()
        guard = guard_of(text)
        here = tuple(self.branches)
        if file in self.open:
            if not guard:
                sys.exit(f"{where}: {name(file)} includes itself and has no guard")
            return False
        if guard and any(here[: len(place)] == place for place in self.places.get(file, [])):
            return False
        self.places.setdefault(file, []).append(here)
        self.open.append(file)
        self.lines.append(f"/* ---- {name(file)} ---- */")
        self.add_lines(file, text.splitlines(), guard)
        self.open.pop()
        return True

    def add_lines(self, file, lines, guard):
        comment = False
        conditions = []  # for each open #if of this file, whether it is the include guard
        for number, line in enumerate(lines, 1):
            where = f"{name(file)}:{number}"
            code = not comment
            comment = in_comment(line, comment)
            if not code:
                self.lines.append(line)
            elif COMPUTED.match(line) and line.split() != ["#include", "TE__STOP"]:  # no file: it ends the compilation (te/core/base.h)
                sys.exit(f"{where}: cannot follow an #include of a macro")
            elif include := INCLUDE.match(line):
                target = (file.parent / include[1]).resolve()
                if not target.is_file():
                    target = (ROOT / include[1]).resolve()
                if not self.add(target, where):
                    continue
                self.lines.append(f"/* ---- {name(file)}, on ---- */")
            else:
                if condition := CONDITION.match(line):
                    self.follow(condition[1], line, guard, conditions, where)
                self.lines.append(line)
        if conditions or comment:
            sys.exit(f"{name(file)}: ends inside an #if or a comment")

    def follow(self, word, line, guard, conditions, where):
        if word in ("if", "ifdef", "ifndef"):
            is_guard = guard is not None and not conditions and line.split()[-1] == guard
            conditions.append(is_guard)
            if not is_guard:
                self.branches.append(self.new_branch())
            return
        if not conditions:
            sys.exit(f"{where}: #{word} without an #if in the same file")
        if word == "endif":
            if not conditions.pop():
                self.branches.pop()
        elif not conditions[-1]:
            self.branches[-1] = self.new_branch()  # the other branch of the same #if


def in_comment(line, comment):
    """Whether the next line begins inside a comment. comment: whether this line does."""
    at = 0
    while at < len(line):
        if comment:
            at = line.find("*/", at)
            if at < 0:
                return True
            at, comment = at + 2, False
        else:
            token = TOKEN.search(line, at)
            if not token or token[0] == "//":
                return False
            at, comment = token.end(), token[0] == "/*"
    return comment


def guard_of(text):
    """The macro of the include guard, #ifndef M, #define M ... #endif around the whole file (includes may come before it), or None."""
    directives = [(d[1], d[2]) for d in DIRECTIVE.finditer(text)]
    rest = [d for d in directives if d[0] != "include"]
    if len(rest) < 3 or rest[0][0] != "ifndef" or rest[1] != ("define", rest[0][1]) or directives[-1][0] != "endif":
        return None
    return rest[0][1]


def version():
    text = (ROOT / "te/core/version.h").read_text()
    return ".".join(re.findall(r"^#define TE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M))


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    amalgam = Amalgam()
    for header in HEADERS:
        amalgam.add(ROOT / header, "amalgamate.py")
    title = f"/* te {version()} as one header, made from {', '.join(HEADERS)} by tools/amalgamate.py. License: Apache-2.0. */"
    text = "\n".join([title, *amalgam.lines]) + "\n"
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
