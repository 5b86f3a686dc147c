#!/usr/bin/env python3
"""Makes and checks the documentation as a site: README.md, docs/, bench/results and the comments of public headers.

    tools/docs.py stage FOLDER     writes the Markdown files of the site and mkdocs.yml to FOLDER; fails on a link to a
                                   file that does not exist, and on a page of docs/ that the navigation does not have
    tools/docs.py check SITE       checks the HTML files in SITE: every link and anchor exists, every page can be reached
                                   from the first one

tools/docs.sh builds the site with MkDocs. tests/docs.sh runs all checks.
"""
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The navigation: sections, and the pages of each in order. "functions" stands for the pages made from the headers.
NAVIGATION = [
    ("Start", ["README.md", "docs/index.md"]),
    ("Tutorial", ["docs/tutorial/1-list.md", "docs/tutorial/2-plan.md", "docs/tutorial/3-train.md",
                  "docs/tutorial/4-custom-op.md", "docs/tutorial/5-inference.md", "docs/tutorial/6-ranks.md"]),
    ("How to", ["docs/howto/fp8.md", "docs/howto/memory.md", "docs/howto/graphs.md", "docs/howto/fine-tuning.md",
                "docs/howto/hugging-face.md", "docs/build.md", "docs/howto/processes.md", "docs/howto/custom-ops.md",
                "docs/howto/nan.md", "docs/howto/recompute.md", "docs/howto/train-gpt.md",
                "docs/howto/from-transformer-engine.md", "docs/howto/from-llm-c.md"]),
    ("Reference", ["docs/reference/ops.md", "docs/reference/fusions.md", "docs/reference/lists.md",
                   "docs/reference/calls.md", "docs/reference/statuses.md", "docs/reference/environment.md",
                   "docs/reference/targets.md", "docs/reference/limits.md", "docs/models.md", "docs/inference.md",
                   "docs/fp8.md", "docs/ranks.md", "docs/reference.md", "functions"]),
    ("Explanation", ["docs/explanation/plan.md", "docs/explanation/executor.md", "docs/explanation/determinism.md",
                     "docs/explanation/numerics.md"]),
    ("Speed", ["docs/speed.md", "bench/results/results.md", "notes"]),
    ("Help", ["docs/faq.md", "docs/troubleshooting.md", "docs/versions.md", "CHANGELOG.md", "SECURITY.md",
              "CONTRIBUTING.md"]),
]
TITLES = {"README.md": "te", "bench/results/results.md": "Every step on an H200"} # where the heading is too long for a list
LINK = re.compile(r"(!?\[[^\]\n]*(?:\n[^\]\n]*)?\])\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```[ ]*$", re.M | re.S)
MARKER = re.compile(r"^<!-- .*? -->\n", re.M)
PICTURES = {".svg", ".png"}


class Mistake(Exception):
    pass


# ---- the Markdown files ------------------------------------------------------------------------------------------------


def repository_pages():
    pages = []
    for _, entries in NAVIGATION:
        for entry in entries:
            if entry == "notes":
                pages += sorted(f"docs/notes/{p.name}" for p in (ROOT / "docs/notes").glob("*.md"))
            elif entry != "functions":
                pages.append(entry)
    return pages


def outside_fences(text, change):
    """Applies `change` to all text that is not in a fenced block."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join(parts + [change(text[at:])])


def staged_name(path):
    return "index.md" if path == "README.md" else path


def source_page(path):
    """The page that shows a source file or lists a folder."""
    return f"source/{path.rstrip('/')}.md"


def write(folder, name, text):
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def write_source(folder, path):
    name = source_page(path)
    if (folder / name).exists():
        return
    head = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"
    here = ROOT / path
    if here.is_dir():
        tracked = subprocess.run(["git", "ls-files", path], cwd=ROOT, capture_output=True, text=True).stdout.split()
        files = tracked or [str(p.relative_to(ROOT)) for p in here.rglob("*") if p.is_file()]
        shown = [f for f in sorted(files) if (ROOT / f).stat().st_size < 200_000 and readable(ROOT / f)][:60]
        write(folder, name, head + "\n".join(f"- [{f}](/{source_page(f)})" for f in shown) + "\n")
        for f in shown:
            write_source(folder, f)
        return
    kinds = {".h": "c", ".c": "c", ".cc": "cpp", ".cu": "cpp", ".py": "python", ".sh": "bash", ".txt": "cmake"}
    write(folder, name, head + f"````{kinds.get(here.suffix, 'text')}\n{here.read_text()}\n````\n")


def readable(path):
    try:
        path.read_text()
        return True
    except UnicodeDecodeError:
        return False


def stage_page(folder, path, pages, mistakes):
    here = ROOT / path
    staged = pathlib.PurePosixPath(staged_name(path))

    def relative(target):
        return os.path.relpath(target, staged.parent)

    def link(match):
        text, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        file, _, anchor = target.partition("#")
        anchor = "#" + anchor if anchor else ""
        goal = (here.parent / file).resolve()
        try:
            name = str(goal.relative_to(ROOT))
        except ValueError:
            name = ""
        if not name or not goal.exists():
            mistakes.append(f"{path}: a link to {target}, which does not exist")
            return match[0]
        if name in pages:
            return f"{text}({relative(staged_name(name))}{anchor})"
        if goal.suffix in PICTURES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(goal, folder / name)
            return f"{text}({relative(name)})"
        write_source(folder, name)
        return f"{text}({relative(source_page(name))})"

    text = MARKER.sub("\n", here.read_text())
    write(folder, str(staged), outside_fences(text, lambda part: LINK.sub(link, part)))


# ---- the public functions, from the headers --------------------------------------------------------------------------------

COMMENT = r"/\*(?P<comment>(?:(?!\*/).)*)\*/\n"
FUNCTION = re.compile(rf"(?:^{COMMENT})?^(?:TE_IF_USED )?(?P<code>TE_API [^;{{}}]*?\b(?P<name>te_(?!_)\w+)\([^{{;]*\)) \{{",
                      re.M | re.S)
STRUCT = re.compile(rf"(?:^{COMMENT})?^(?P<code>typedef (?:struct|enum) (?P<name>te_(?!_)\w+) \{{(?:[^\n]*\}} \w+;|\n.*?^\}} \w+;))",
                    re.M | re.S)
MACRO = re.compile(rf"^{COMMENT}(?P<code>#define (?P<name>TE_(?!_)[A-Z0-9_]+)\([^)]*\))", re.M | re.S)
MACRO_HEADERS = ("te/layers.h", "te/fuse/sequential.h", "te/fuse/inference.h", "te/plan/dims.h")


def comment_text(comment):
    """A block comment as Markdown: lines indented by four blanks are code."""
    lines = [re.sub(r"^ \* ?", "", line) for line in comment.strip().split("\n")]
    out, code, before = [], [], ""
    for line in [*lines, "end"]:
        if line.startswith("    ") and (code or not before or before.endswith(":")):
            code.append(line)
        else:
            if code:
                out += ["", "```c", textwrap.dedent("\n".join(code)), "```", ""]
            code = []
            parts = line.split("`")
            parts[::2] = [re.sub(r"([_*\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
            out.append("`".join(parts))
        before = line.rstrip()
    return "\n".join(out[:-1])


def header_page(headers):
    text = []
    for header in headers:
        source = (ROOT / header).read_text()
        items = [(m.start(), m) for kind in (FUNCTION, STRUCT) for m in kind.finditer(source)]
        if header in MACRO_HEADERS:
            items += [(m.start(), m) for m in MACRO.finditer(source)]
        if not items:
            continue
        head = re.match(r"/\*(.*?)\*/", source, re.S)
        text.append(f"## {header}\n\n{comment_text(head[1]) if head else ''}\n")
        for _, m in sorted(items, key=lambda i: i[0]):
            groups = m.groupdict()
            name = groups["name"]
            comment = groups.get("comment") or ""
            if comment.count("*/") or m.start() == 0:
                comment = ""
            code = groups["code"].replace("\n       ", "\n") if groups["code"].startswith("TE_API ") else groups["code"]
            code = re.sub(r"^TE_API ", "", code)
            text.append(f"### {name}\n\n```c\n{code}\n```\n\n{comment_text(comment)}\n")
    return "\n".join(text)


def stage_functions(folder):
    """One page for each folder of te/; returns their names."""
    groups = {}
    for header in sorted((ROOT / "te").glob("*.h")) + sorted((ROOT / "te").glob("*/*.h")):
        path = header.relative_to(ROOT)
        groups.setdefault("te" if len(path.parts) == 2 else f"te/{path.parts[1]}", []).append(str(path))
    names = []
    for group, headers in groups.items():
        body = header_page(headers)
        if not body:
            continue
        name = f"docs/reference/functions/{group.replace('/', '-')}.md"
        write(folder, name, f"# Functions of {group}/\n\nFrom the comments of the public headers.\n\n{body}")
        names.append(name)
    return names


# ---- the site ------------------------------------------------------------------------------------------------------------


def configuration(functions):
    lines = ["site_name: te", "site_description: Transformer kernels as a header-only C library", "docs_dir: pages",
             "site_dir: site", "use_directory_urls: false", "plugins: [search]", "strict: true",
             "theme:", "  name: material", "  font: false", "  features: [navigation.sections, navigation.top, content.code.copy]",
             "  palette:",
             "    - {media: '(prefers-color-scheme: light)', scheme: default, primary: indigo, "
             "toggle: {icon: material/weather-night, name: dark}}",
             "    - {media: '(prefers-color-scheme: dark)', scheme: slate, primary: indigo, "
             "toggle: {icon: material/weather-sunny, name: light}}",
             "markdown_extensions: [tables, sane_lists, admonition, attr_list, pymdownx.superfences, pymdownx.highlight, "
             "{toc: {permalink: true}}]",
             "validation: {omitted_files: ignore, absolute_links: relative_to_docs, unrecognized_links: warn, anchors: warn}",
             "nav:"]
    for title, entries in NAVIGATION:
        lines.append(f"  - {title}:")
        for entry in entries:
            if entry in ("functions", "notes"):
                lines.append(f"    - {'Functions' if entry == 'functions' else 'Notes on kernels'}:")
                under = functions if entry == "functions" else [p for p in repository_pages() if p.startswith("docs/notes/")]
                lines += [f"      - {page}" for page in under]
            else:
                title = TITLES.get(entry)
                lines.append(f"    - {title + ': ' if title else ''}{staged_name(entry)}")
    return "\n".join(lines) + "\n"


def stage(folder):
    folder = pathlib.Path(folder)
    pages, mistakes = repository_pages(), []
    for page in pages:
        if not (ROOT / page).is_file():
            mistakes.append(f"the navigation names {page}, which does not exist")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if str(page.relative_to(ROOT)) not in pages:
            mistakes.append(f"{page.relative_to(ROOT)} is missing in the navigation of tools/docs.py")
    if not mistakes:
        shutil.rmtree(folder / "pages", ignore_errors=True)
        for page in pages:
            stage_page(folder / "pages", page, pages, mistakes)
        write(folder, "mkdocs.yml", configuration(stage_functions(folder / "pages")))
    for mistake in mistakes:
        print(mistake, file=sys.stderr)
    return not mistakes


# ---- checks of the HTML files ----------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value)
            if name in ("href", "src") and value and tag != "link":
                self.links.append(value)


def check(site):
    site = pathlib.Path(site).resolve()
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    good, ways, links = True, {path: set() for path in pages}, 0
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            goal = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if goal.is_dir():
                goal /= "index.html"
            anchor = urllib.parse.unquote(parts.fragment)
            if not goal.is_file():
                print(f"{path.relative_to(site)}: dead link {link}")
                good = False
            elif goal in pages:
                ways[path].add(goal)
                if anchor and anchor not in pages[goal].ids and not anchor.startswith("__"):
                    print(f"{path.relative_to(site)}: dead anchor {link}")
                    good = False
    reached, queue = set(), [site / "index.html"]
    while queue:
        path = queue.pop()
        if path not in reached:
            reached.add(path)
            queue += ways.get(path, ())
    for path in sorted(set(pages) - reached):
        print(f"{path.relative_to(site)}: no link leads to this page")
        good = False
    print(f"{len(pages)} pages, {links} links")
    return good


def main():
    commands = {"stage": stage, "check": check}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    sys.exit(0 if commands[sys.argv[1]](*sys.argv[2:]) else 1)


if __name__ == "__main__":
    main()
