#!/usr/bin/env python3
"""Checks that the `Do this:` examples in the comments of te/io, te/optim and te/core/impl/file.h compile, and that every te_, te__
and TE_ name in these comments exists.

    tests/examples.py        CC=clang chooses another compiler
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
NAME = re.compile(r"\b(?:te|TE)_[A-Za-z0-9_]*[A-Za-z0-9]\b(?![*#<.])")

# The declarations that examples may use. An example is an inner block, so it may declare the same names itself.
AROUND = r"""
#include "te/te.h"
#include "te/infer.h"
#include "te/moe.h"
TE_SEQUENTIAL(a_block, f32, (linear, fc1, 8, 8), (linear, proj, 8, 8))
static a_block block, embed, h0, h1, h2, fc;
static void use(te_param *p, int model, ...) { (void)p, (void)model; }
static te_status example(void);
static te_status example(void) {
    const char *path = "x", *key = 0, *was = "";
    const te_plan *plan = a_block_plan();
    char buffer[64], *text = buffer;
    void *weight = 0, *bias = 0, *memory = 0;
    int fd = 0, layers = 1;
    size_t n = 0, header_bytes = 0;
    uint64_t bytes = 0, data_bytes = 0, seed = 1;
    int64_t step = 0, at = 0, count = 1;
    te_param *param = &block.fc1.weight;
    static te_cache cache;
    int32_t *tokens = 0, length = 0;
    int slot = 0;
    void *part = 0;
    te_model *models[] = {&embed.model, &block.model};
    te_safetensors_pair metadata[] = {{"position", "81920"}};
    te_safetensors file;
    te_safetensor t[2];
    te__plan_mismatch d;
    te_adamw opt;
    te_adamw_state state;
    te_adamw_config config = te_adamw_defaults(1e-3f);
    te_grad_norm norm;
    te_loss_scaler scaler;
    te_batch batch;
    int rows = 1;
    memset(&scaler, 0, sizeof scaler), memset(&batch, 0, sizeof batch);
    memset(&file, 0, sizeof file), memset(&opt, 0, sizeof opt), memset(t, 0, sizeof t), memset(buffer, 0, sizeof buffer);
    memset(&d, 0, sizeof d), memset(&norm, 0, sizeof norm), memset(&state, 0, sizeof state);
    %s
    {
%s
    }
    (void)path, (void)text, (void)key, (void)was, (void)plan, (void)memory, (void)weight, (void)bias, (void)fd, (void)layers;
    (void)n, (void)header_bytes, (void)bytes, (void)data_bytes, (void)seed, (void)step, (void)models, (void)metadata, (void)config;
    (void)at, (void)count, (void)param, (void)part, (void)cache, (void)tokens, (void)length, (void)slot, (void)rows;
    return TE_OK;
}
int main(void) { return example() != TE_OK || (0 && (use(0, 0), 0)); }
"""
CONTEXT = "te_context the_context, %s; memset(&the_context, 0, sizeof the_context); %s; (void)ctx;"


def example_of(text):
    """The code behind `Do this:`, without lines of prose."""
    lines = []
    for line in text.split("Do this:", 1)[1].split("\n")[1:]:
        m = re.match(r" \*     (.*)", line)
        if not m and line.strip() not in ("*",):
            break
        if m and not m.group(1).startswith("..."):
            lines.append(m.group(1))
    code = "\n".join(lines)
    return code.replace("; ...", ";")


def compiles(header):
    text = header.read_text()
    if "Do this:" not in text:
        return True
    code = example_of(text)
    value = "&ctx" in code
    context = CONTEXT % (("ctx", "memset(&ctx, 0, sizeof ctx)") if value else ("*ctx = &the_context", "(void)0"))
    source = AROUND.replace("%s", "\0", 2).replace("\0", context, 1).replace("\0", code, 1)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-DTE_KEEP_CALLS", "-I" + str(ROOT), "-fsyntax-only"]
    run = subprocess.run([os.environ.get("CC", "gcc"), *flags, "-x", "c", "-"], input=source, capture_output=True, text=True)
    if run.returncode:
        errors = [l for l in run.stderr.splitlines() if "error" in l][:3]
        print("FAIL %s: its example does not compile\n%s" % (header.relative_to(ROOT), "\n".join(errors)))
    return run.returncode == 0


def names(header, known, pasted):
    """Whether all names in its comments exist, or are the beginning of names that exist."""
    text, good = header.read_text(), True
    for comment in COMMENT.finditer(text):
        for found in NAME.finditer(comment.group()):
            name = found.group()
            if name in known or name.startswith(pasted) or any(k.startswith(name + "_") for k in known):
                continue
            line = text.count("\n", 0, comment.start() + found.start()) + 1
            print("FAIL %s:%d: a comment speaks of %s, which does not exist" % (header.relative_to(ROOT), line, name))
            good = False
    return good


def main():
    code = "\n".join(COMMENT.sub(" ", h.read_text()) for h in (ROOT / "te").rglob("*.h"))
    known = set(re.findall(r"\w+", code))
    pasted = tuple(set(re.findall(r"\b((?:te|TE)_[A-Za-z0-9]\w*_)##", code))) # TE_SCHEDULE_##name
    headers = sorted((ROOT / "te/io").glob("*.h")) + sorted((ROOT / "te/optim").glob("*.h")) + [ROOT / "te/core/impl/file.h"]
    failed = sum(not compiles(h) for h in headers) + sum(not names(h, known, pasted) for h in headers + [ROOT / "te/te.h"])
    print("%d passed, %d failed" % (2 * len(headers) + 1 - failed, failed))
    return failed != 0


sys.exit(main())
