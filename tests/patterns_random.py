"""Random legal rows of the fusion list, as a Catch2 test: the rules of CONTRIBUTING.md, "Add a fusion", and nothing else.

    tests/patterns_random.py SEED COUNT > patterns_random_test.cc

COUNT lists of random ops, each cut at random into steps, forward and backward; each cut is a row of the list's own. Each
list is checked with its rows and with none.
"""
import random
import sys

MAPS = ["act", "bias", "mul_param", "dropout", "scale", "fork", "input", "add", "mul", "output"]
ACTS = ["gelu", "relu", "silu", "srelu", "gelu_erf", "qgelu"]
GATES = ["swiglu", "geglu", "reglu", "glu"]
NORMS = ["layernorm", "rmsnorm", "l2norm", "rmsnorm1p"]
FAMILY = {**{k: "act" for k in ACTS}, **{k: "gated" for k in GATES}, **{k: "norm" for k in NORMS}, "input": "fork"}
MOST = 8  # ops of a row


def family(op):
    return FAMILY.get(op[0], op[0])


def random_list(r):
    """(dtype, ops): each op a tuple of strings; every fork and input is read once or more, widths fit."""
    dtype = r.choice(["f32", "f32", "bf16", "f16"])
    width = r.choice([8, 24, 37, 40, 64])
    ops, kept, names = [], [], iter(range(1000))

    def name(letter):
        return f"{letter}{next(names)}"

    def put(kind, *shapes):
        ops.append((kind, name(kind[0]), *map(str, shapes)))

    def read(kind):
        edge = kept[r.randrange(len(kept))]
        ops.append((kind, name(kind[0]), edge[0]))
        if r.random() < 0.7:
            kept.remove(edge)

    put(*r.choice([("bias", width), ("rmsnorm", width), ("linear", width, width)]))
    for _ in range(r.randrange(4, 14)):
        kind = r.choice(MAPS + ["fork", "add", "load", "gated", "norm", "linear"])
        if kind == "act":
            small = any(op[0] == "mul" for op in ops)  # products are often near the step of a relu
            put(r.choice([a for a in ACTS if not (small and a == "relu")]))
        elif kind == "bias":
            put("bias", width)
        elif kind == "mul_param":
            put("mul_param", r.choice([width, 1]))
        elif kind == "dropout":
            put("dropout", r.choice(["0.1f", "0.5f"]))
        elif kind == "scale":
            put("scale", r.choice(["0.5f", "-1.25f"]))
        elif kind == "output":
            put("output")
        elif kind in ("fork", "input"):
            put(kind, *([width] if kind == "input" else []))
            kept.append((ops[-1][1], width))
        elif kind in ("add", "mul") and kept:
            read(kind)
        elif kind == "load" and kept and family(ops[-1]) != "output":
            edge = r.choice(kept)
            put("fork")
            kept.append((ops[-1][1], width))
            ops.append(("load", name("l"), edge[0]))
            if r.random() < 0.5:
                kept.remove(edge)
        elif kind == "norm":
            put(r.choice(NORMS), width)
        elif kind == "linear" and not kept:
            to = r.choice([8, 24, 37, 40, 64])
            put("linear", width, to)
            width = to
        elif kind == "gated" and not kept:
            put("linear", width, 2 * width)
            if r.random() < 0.5:
                put("bias", 2 * width)
            put(r.choice([g for g in GATES if not (g == "reglu" and any(op[0] == "mul" for op in ops))]))
    while kept:
        read(r.choice(["add", "add", "mul"]))
    if family(ops[-1]) == "fork":
        put("scale", "2.0f")
    return dtype, ops


def legal(row, backward):
    """Whether the rules allow these ops, in the order of the pass, as one row."""
    f = [family(op) for op in row]
    if len(f) > 1 and "load" in f:
        return False
    if len(f) > MOST or "linear" in f[1:] or f.count("norm") > 1 or f.count("gated") > 1:
        return False
    if "gated" in f and "norm" in f:
        return False
    if backward:
        if f.count("bias") + f.count("mul_param") > 1:
            return False
        rest = f[1:] if f[0] == "linear" else f
        if "norm" in rest[1:]:
            return False
        return not (f[0] == "linear" and len(f) > 1 and f[1] == "fork" and len(f) > 2)
    keeps = {"act", "mul", "mul_param", "gated", "norm", "fork", "linear"}
    return not any(a == "output" and b in keeps for a, b in zip(f, f[1:]))


def cut(r, ops, backward):
    """Names of rows of two ops and more, for a random cut into legal steps."""
    ops = ops[::-1] if backward else ops
    rows, i = set(), 0
    while i < len(ops):
        longest = max(n for n in range(1, MOST + 1) if i + n <= len(ops) and all(legal(ops[i : i + k], backward) for k in range(1, n + 1)))
        n = r.choice([longest, longest, r.randint(1, longest)])
        if n > 1:
            rows.add("_".join(family(op) for op in ops[i : i + n]))
        i += n
    return rows


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    r = random.Random(seed)
    print(f'// {sys.argv[0]} {seed} {count}\n#include "harness.h"')
    for op in ["activation", "bias", "dropout", "linear", "load", "mul_param", "norm", "residual", "scale"]:
        print(f'#include "te/ops/{op}.h"')
    for i in range(count):
        dtype, ops = random_list(r)
        for backward in (False, True):
            for row in sorted(cut(r, ops, backward)):
                print(f"#define {'B' if backward else 'F'}{i}_{row} TE_FUSED")
        text = ", ".join(f"({', '.join(op)})" for op in ops)
        print(f"MODEL_WITH(F{i}_, B{i}_, fused_{i}, {dtype}, {text})")
        print(f"UNFUSED(bare_{i}, {dtype}, {text})")
        print(f'TEST_CASE("list {i}", "[patterns_random]") {{')
        print(f"    for (const subject *s : {{&bare_{i}_subject, &fused_{i}_subject}})")
        print("        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);\n}")


main()
