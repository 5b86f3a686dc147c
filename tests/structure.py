"""Rules for the headers of te/: which folder may include and use which, how long files, heads, lines and parameter lists may be, and
which words names may not contain. tests/structure_allowed.txt lists the known violations, `rule file text`. An entry of it that is no
longer violated is an error, too, so the list only shrinks.

    python3 tests/structure.py [rule...]
"""
import collections
import os
import pathlib
import re
import sys

# A folder may include and use itself and the folders in front of it. The headers beside the folders (te.h) may include all.
ORDER = "core fp8 quant gemm plan attention cache ops pointwise linear fuse comm graph optim io".split()
MAX_LINES, MAX_COLUMNS, MAX_HEAD, MAX_PARAMETERS, MAX_HEADERS = 800, 120, 25, 8, 205
MIN_LINES, MIN_LINES_WITH_ONE_INCLUDER = 40, 120
SINGLE_FACTS = {"te/core/version.h", "te/ops/recompute.h"}  # may have fewer lines: the version, and the two marks of a recompute region
TWINS = {"te/core/impl/target_host.h"}  # may have one includer, because it is the counterpart of target_cuda.h
# Words that are not the field's, and the field's words for them (CONTRIBUTING.md, "Words").
WORDS = {
    "chain": "pointwise", "turned": "transposed", "gives": "produces", "giver": "producer", "outgrown": "conditional rescale",
    "stash": "smem_gamma, what it holds", "multipliers": "consumer warps", "unstored": "amax_only", "couple": "pair",
    "couples": "pairs", "hopper": "sm90", "tiled": "blockwise", "few": "skinny", "narrow": "small_m", "late": "deferred",
}

TE = pathlib.Path("te")
FILES = sorted(TE.rglob("*.h")) + sorted(TE.rglob("*.inc"))
TEXT = {file: file.read_text() for file in FILES}
INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"(.*)')
ALLOWED = pathlib.Path("tests/structure_allowed.txt")


def blank(match):
    """A comment or a string, replaced by blanks with the same number of lines."""
    return re.sub(r"[^\n]", " ", match[0])


def code_of(text):
    text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', blank, re.sub(r"//[^\n]*", blank, text))


CODE = {file: code_of(text) for file, text in TEXT.items()}


def folder(file):
    """The folder of a header, or None for a header beside the folders."""
    parts = file.relative_to(TE).parts
    return parts[0] if len(parts) > 1 else None


def is_public(file):
    return "impl" not in file.parts


def rank(file):
    return ORDER.index(folder(file)) if folder(file) in ORDER else len(ORDER)


def includes(file):
    """(line number, included file, rest of the line) of each #include "..."; paths are relative to the file."""
    for number, line in enumerate(TEXT[file].splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, pathlib.Path(os.path.normpath(file.parent / match[1])), match[2]


GRAPH = {file: list(includes(file)) for file in FILES}
INCLUDERS = collections.defaultdict(set)
for one, lines in GRAPH.items():
    for _, target, _ in lines:
        INCLUDERS[target].add(one)


def line_of(file, at):
    return CODE[file].count("\n", 0, at) + 1


def rule_folders():
    """A folder includes only itself and folders below it."""
    for file, lines in GRAPH.items():
        if folder(file) and folder(file) not in ORDER:
            yield file, 1, f"te/{folder(file)} has no place in the order of the folders (the list in tests/structure.py)"
            continue
        for number, target, _ in lines:
            if target not in GRAPH:
                yield file, number, f"includes {target}, which does not exist"
            elif rank(target) > rank(file):
                yield file, number, f"te/{folder(file)} includes {target}, which lies above it"


SWITCHES = {"TE_NO_TUNE"}  # defined before the include, by the command line or by te/infer.h
DEFINITIONS = [
    r"(?m)^\s*#\s*define\s+(\w+)",
    r"\b(?:enum|struct|union)\s+(te_\w+)\s*\{",
    r"\}\s*(?:__attribute__\(\([^;]*?\)\)\s*)?(te_\w+)\s*(?:__attribute__[^;]*)?;",
    r"typedef[^;{]*?\b(te_\w+)\s*;",
    r"typedef[^;{]*?\(\*(te_\w+)\)",
    r"\b(te_\w+)\s*\([^;{}]*\)\s*\{",
]


def rule_identifiers():
    """A folder uses only names that it or a folder below it defines. An opaque `struct te_x` may be used lower."""
    lowest = {}
    for file, code in CODE.items():
        names = set()
        for pattern in DEFINITIONS:
            names |= set(re.findall(pattern, code))
        for body in re.findall(r"enum[^{;]*\{([^}]*)\}", code):
            names |= set(re.findall(r"(?:^|,)\s*(TE_\w+)", body))
        for name in names:
            lowest[name] = min(lowest.get(name, len(ORDER)), rank(file))
    for file, code in CODE.items():
        seen = set()
        for match in re.finditer(r"\b(struct\s+)?((?:te|TE)_\w+)", code):
            name = match[2]
            if name in seen or name in SWITCHES or match[1] or lowest.get(name, 0) <= rank(file):
                continue
            seen.add(name)
            yield file, line_of(file, match.start()), f"names {name}, which a folder above defines"


def rule_circles():
    """No file includes itself, directly or through others. The error names the include that closes the circle."""
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
    """A file is neither too long nor too short, and there are not too many files."""
    if len(FILES) > MAX_HEADERS:
        yield TE, 1, f"{len(FILES)} headers, {MAX_HEADERS} at most"
    for file in FILES:
        count = len(TEXT[file].splitlines())
        if count > MAX_LINES:
            yield file, MAX_LINES + 1, f"more than {MAX_LINES} lines"
        if count < MIN_LINES and folder(file) and str(file) not in SINGLE_FACTS:
            yield file, 1, f"fewer than {MIN_LINES} lines"
        elif count < MIN_LINES_WITH_ONE_INCLUDER and len(INCLUDERS[file]) == 1 and not is_public(file) and str(file) not in TWINS:
            yield file, 1, f"fewer than {MIN_LINES_WITH_ONE_INCLUDER} lines, and one file includes it: it belongs there"


def rule_heads():
    """A file begins with a comment that names it and says what it is. It is short: measurements belong into docs/notes."""
    for file in FILES:
        match = re.match(r"/\*.*?\*/", TEXT[file], re.S)
        if not match:
            yield file, 1, "begins with no comment that says what it is"
        elif match[0].count("\n") + 1 > MAX_HEAD:
            yield file, 1, f"the comment at its head has more than {MAX_HEAD} lines"
        elif file.name not in match[0]:
            yield file, 1, "the comment at its head does not name it"


def rule_columns():
    for file in FILES:
        for number, line in enumerate(TEXT[file].splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield file, number, f"{len(line)} columns, {MAX_COLUMNS} at most"
    for page in [*pathlib.Path("docs").rglob("*.md"), pathlib.Path("README.md"), pathlib.Path("CONTRIBUTING.md")]:
        quoted = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            quoted ^= line.startswith("```")
            if len(line) > MAX_COLUMNS and not quoted and not re.match(r"[|<!\[]|    ", line) and "](" not in line:
                yield page, number, f"{len(line)} columns, {MAX_COLUMNS} at most"


def rule_names():
    """File names are unique."""
    named = collections.defaultdict(list)
    for file in FILES:
        named[file.name].append(file)
    for same in named.values():
        for file in same[1:]:
            yield file, 1, f"has the name of {same[0]}"


def rule_comments():
    """Each include has a comment that says what it brings."""
    for file, lines in GRAPH.items():
        for number, target, rest in lines:
            if not re.match(r"\s*/[*/] *\w", rest):
                yield file, number, f"does not say what {target} brings"


def rule_words():
    """No name contains one of WORDS."""
    for file in FILES:
        for word in set(file.stem.split("_")) & WORDS.keys():
            yield file, 1, f"its name says `{word}`; the field says {WORDS[word]}"
        seen = set()
        for match in re.finditer(r"[A-Za-z_]\w*", CODE[file]):
            for word in set(match[0].lower().split("_")) & WORDS.keys():
                if match[0] not in seen:
                    seen.add(match[0])
                    yield file, line_of(file, match.start()), f"{match[0]}: the field says {WORDS[word]}"


def parameters(text):
    """The number of parameters in this text, which stands between the parentheses of a definition."""
    depth, count = 0, 1
    for c in text:
        depth += (c in "(<[") - (c in ")>]")
        count += c == "," and depth == 0
    return count


def rule_parameters():
    """A function has at most MAX_PARAMETERS parameters; more should be a struct."""
    for file, code in CODE.items():
        for match in re.finditer(r"\b(te_\w+)\s*\(((?:[^;{}()]|\([^;{}()]*\))*)\)\s*\{", code):
            if parameters(match[2]) > MAX_PARAMETERS:
                yield file, line_of(file, match.start()), f"{match[1]} has more than {MAX_PARAMETERS} parameters"


def public_text():
    """The text that users read: the README, CONTRIBUTING.md, docs and examples."""
    places = [pathlib.Path("README.md"), pathlib.Path("CONTRIBUTING.md"), *pathlib.Path("docs").rglob("*.md")]
    places += [f for f in pathlib.Path("examples").rglob("*") if f.suffix in (".c", ".h", ".cu", ".cc")]
    return "\n".join(p.read_text() for p in places if p.is_file())


def rule_public():
    """A function te_x is for users: a page, an example or a comment of a public header mentions it. All other functions are te__x.
        Examples include only public headers."""
    text = public_text()
    for file, code in CODE.items():
        for match in re.finditer(r"(?m)^(?:TE_IF_USED )?TE_API [^\n;{}]*?\b(te_[a-z0-9]\w*)\(", code):
            name = match[1]
            comments = is_public(file) and re.search(rf"\b{name}\b", "\n".join(re.findall(r"/\*.*?\*/", TEXT[file], re.S)))
            if not comments and not re.search(rf"\b{name}\b", text):
                yield file, line_of(file, match.start()), f"{name} stands in no page, example or public comment: te__, or say what it is for"
    for example in pathlib.Path("examples").rglob("*"):
        if example.suffix in (".c", ".h", ".cu", ".cc"):
            for number, line in enumerate(example.read_text().splitlines(), 1):
                if re.match(r'\s*#\s*include\s*"te/.*impl/', line):
                    yield example, number, "includes an internal header"


RULES = {name[5:]: rule for name, rule in list(globals().items()) if name.startswith("rule_")}


def main():
    chosen = [arg for arg in sys.argv[1:] if arg != "--allow"] or list(RULES)
    for name in chosen:
        if name not in RULES:
            sys.exit(f"tests/structure.sh: no rule '{name}'; there are {' '.join(RULES)}")
    known = {tuple(line.split(" ", 2)) for line in ALLOWED.read_text().splitlines() if line and line[0] != "#"} if ALLOWED.exists() else set()
    broken, found = 0, set()
    for name in chosen:
        violations = list(RULES[name]())
        count = 0
        for file, number, text in violations:
            entry = (name, str(file), text)
            found.add(entry)
            if entry not in known:
                count += 1
                print(f"{file}:{number}: {text}")
        allowed = len({e for e in found if e[0] == name} & known)
        print(f"{name}: {count} violations in {len(FILES)} files" + (f", {allowed} known" if allowed else ""))
        broken += count
    for entry in sorted(e for e in known - found if e[0] in chosen):
        print(f"tests/structure_allowed.txt: no longer violated, remove: {' '.join(entry)}")
        broken += 1
    if "--allow" in sys.argv:
        ALLOWED.write_text("# rule file text: violations of tests/structure.py that are known. This list only shrinks.\n" +
                           "".join(" ".join(e) + "\n" for e in sorted(found)))
        return 0
    return 1 if broken else 0


sys.exit(main())
