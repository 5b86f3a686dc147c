#!/usr/bin/env bash
# The structure of te/ (CONTRIBUTING.md, "Style"). Prints each violation as file:line: text and fails if there is one.
#
#     tests/includes.sh [rule...]      one or more of: folders circles lines columns names comments; default: all
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 - "$@" <<'PYTHON'
import collections
import os
import pathlib
import re
import sys

# Each folder includes itself and those in front of it; the headers beside the folders (te.h) include all.
ORDER = "core fp8 gemm plan attention ops pointwise linear fuse comm graph optim io".split()
MOST_LINES, MOST_COLUMNS = 300, 120

TE = pathlib.Path("te")
FILES = sorted(file for file in TE.rglob("*") if file.suffix in (".h", ".inc"))
INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"(.*)')


def folder(file):
    """None for a header beside the folders."""
    parts = file.relative_to(TE).parts
    return parts[0] if len(parts) > 1 else None


def rank(file):
    return ORDER.index(folder(file)) if folder(file) in ORDER else len(ORDER)


def includes(file):
    """(line number, included file, rest of the line) of each #include "..."; paths are relative to the file."""
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, pathlib.Path(os.path.normpath(file.parent / match[1])), match[2]


GRAPH = {file: list(includes(file)) for file in FILES}


def rule_folders():
    """A folder includes only folders below it."""
    for file, lines in GRAPH.items():
        if folder(file) and folder(file) not in ORDER:
            yield file, 1, f"te/{folder(file)} has no place in the order of the folders (the list in tests/includes.sh)"
            continue
        for number, target, _ in lines:
            if target not in GRAPH:
                yield file, number, f"includes {target}, which does not exist"
            elif rank(target) > rank(file):
                yield file, number, f"te/{folder(file)} includes {target}, which lies above it"


def rule_circles():
    """No file includes itself, by however many others: the include that closes a circle is named."""
    state, path, found = {}, [], []

    def visit(file):
        state[file] = "open"
        path.append(file)
        for number, target, _ in GRAPH[file]:
            if target not in GRAPH:
                continue
            if state.get(target) == "open":
                circle = path[path.index(target):] + [target]
                found.append((file, number, "a circle: " + " -> ".join(map(str, circle))))
            elif target not in state:
                visit(target)
        path.pop()
        state[file] = "done"

    for file in FILES:
        if file not in state:
            visit(file)
    return found


def rule_lines():
    """A file fits one sitting."""
    for file in FILES:
        count = len(file.read_text().splitlines())
        if count > MOST_LINES:
            yield file, MOST_LINES + 1, f"the file has {count} lines, {MOST_LINES} at most"


def rule_columns():
    for file in FILES:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if len(line) > MOST_COLUMNS:
                yield file, number, f"{len(line)} columns, {MOST_COLUMNS} at most"


def rule_names():
    """A file's name says which file it is."""
    named = collections.defaultdict(list)
    for file in FILES:
        named[file.name].append(file)
    for same in named.values():
        for file in same[1:]:
            yield file, 1, f"has the name of {same[0]}"


def rule_comments():
    """Each include says what it brings."""
    for file, lines in GRAPH.items():
        for number, target, rest in lines:
            if not re.match(r"\s*/[*/] *\w", rest):
                yield file, number, f"does not say what {target} brings"


RULES = {name[5:]: rule for name, rule in list(globals().items()) if name.startswith("rule_")}
chosen = sys.argv[1:] or list(RULES)
for name in chosen:
    if name not in RULES:
        sys.exit(f"tests/includes.sh: no rule '{name}'; there are {' '.join(RULES)}")
broken = 0
for name in chosen:
    violations = list(RULES[name]())
    for file, number, text in violations:
        print(f"{file}:{number}: {text}")
    print(f"{name}: {len(violations)} violations in {len(FILES)} files")
    broken += len(violations)
sys.exit(1 if broken else 0)
PYTHON
