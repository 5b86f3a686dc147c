"""Random legal patterns of the fusion list, as a Catch2 test, by the rules of CONTRIBUTING.md, "Add a fusion".

    tests/patterns_random.py SEED COUNT > patterns_random_test.cc

Makes COUNT lists of random ops, and cuts each at random into steps, for forward and for backward. Each step becomes a pattern of that
list. A list is checked with its patterns, and unfused.
"""
import random
import sys

MAPS = ["act", "bias", "mul_param", "dropout", "scale", "fork", "input", "add", "mul", "output"]
ACTS = ["gelu", "relu", "silu", "srelu", "gelu_erf", "qgelu", "sigmoid", "tanh"]
GATES = ["swiglu", "geglu", "reglu", "glu"]
NORMS = ["layernorm", "rmsnorm", "l2norm", "rmsnorm1p", "layernorm_no_bias", "layernorm_no_affine", "rmsnorm_no_affine"]
FAMILY = {**{k: "act" for k in ACTS}, **{k: "gated" for k in GATES}, **{k: "norm" for k in NORMS}, "input": "fork"}
MAX_OPS = 8  # of a pattern


def family(op):
    return FAMILY.get(op[0], op[0])


def random_list(r):
    """(dtype, ops): each op is a tuple of strings. Every fork and input is used once or more, and widths match."""
    dtype = r.choice(["f32", "f32", "bf16", "f16"])
    width = r.choice([8, 24, 37, 40, 64])
    ops, open_forks, names = [], [], iter(range(1000))

    def name(letter):
        return f"{letter}{next(names)}"

    def put(kind, *shapes):
        ops.append((kind, name(kind[0]), *map(str, shapes)))

    def use(kind):
        if kind == "mul" and sum(op[0] == "mul" for op in ops) >= (2 if "f16" in dtype.replace("bf16", "") else 6):
            kind = "add"  # each mul may square a value, which overflows in f16
        edge = open_forks[r.randrange(len(open_forks))]
        ops.append((kind, name(kind[0]), edge[0]))
        if r.random() < 0.7:
            open_forks.remove(edge)

    put(*r.choice([("bias", width), ("rmsnorm", width), ("linear", width, width)]))
    for _ in range(r.randrange(4, 14)):
        kind = r.choice(MAPS + ["fork", "add", "load", "gated", "norm", "linear"])
        if kind == "act":
            small = any(op[0] == "mul" for op in ops)  # an input of a relu is often near 0 behind a mul
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
            open_forks.append((ops[-1][1], width))
        elif kind in ("add", "mul") and open_forks:
            use(kind)
        elif kind == "load" and open_forks and family(ops[-1]) != "output":
            edge = r.choice(open_forks)
            put("fork")
            open_forks.append((ops[-1][1], width))
            ops.append(("load", name("l"), edge[0]))
            if r.random() < 0.5:
                open_forks.remove(edge)
        elif kind == "norm":
            put(r.choice(NORMS), width)
        elif kind == "linear" and not open_forks:
            to = r.choice([8, 24, 37, 40, 64])
            put("linear", width, to)
            width = to
        elif kind == "gated" and not open_forks:
            put("linear", width, 2 * width)
            if r.random() < 0.5:
                put("bias", 2 * width)
            put(r.choice([g for g in GATES if not (g == "reglu" and any(op[0] == "mul" for op in ops))]))
    while open_forks:
        use(r.choice(["add", "add", "mul"]))
    if family(ops[-1]) == "fork":
        put("scale", "2.0f")
    return dtype, ops


def legal(ops, backward):
    """Whether the rules allow these ops, in the order of the pass, as one pattern."""
    f = [family(op) for op in ops]
    if len(f) > 1 and "load" in f:
        return False
    if len(f) > MAX_OPS or "linear" in f[1:] or f.count("norm") > 1 or f.count("gated") > 1:
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
    saves_input = {"act", "mul", "mul_param", "gated", "norm", "fork", "linear"}
    return not any(a == "output" and b in saves_input for a, b in zip(f, f[1:]))


def cut(r, ops, backward):
    """The names of the patterns (of two or more ops) of a random cut into legal steps."""
    ops = ops[::-1] if backward else ops
    patterns, i = set(), 0
    while i < len(ops):
        longest = max(n for n in range(1, MAX_OPS + 1) if i + n <= len(ops) and all(legal(ops[i : i + k], backward) for k in range(1, n + 1)))
        n = r.choice([longest, longest, r.randint(1, longest)])
        if n > 1:
            patterns.add("_".join(family(op) for op in ops[i : i + n]))
        i += n
    return patterns


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    r = random.Random(seed)
    print(f'// {sys.argv[0]} {seed} {count}\n#include "harness.h"')
    for op in ["activation", "dropout", "elementwise", "linear", "norm", "residual"]:
        print(f'#include "te/ops/{op}.h"')
    for i in range(count):
        dtype, ops = random_list(r)
        for backward in (False, True):
            for pattern in sorted(cut(r, ops, backward)):
                print(f"#define {'B' if backward else 'F'}{i}_{pattern} TE_FUSED")
        text = ", ".join(f"({', '.join(op)})" for op in ops)
        print(f"MODEL_WITH(F{i}_, B{i}_, fused_{i}, {dtype}, {text})")
        print(f"UNFUSED(bare_{i}, {dtype}, {text})")
        print(f'TEST_CASE("list {i}", "[patterns_random]") {{')
        print(f"    for (const subject *s : {{&bare_{i}_subject, &fused_{i}_subject}})")
        print("        for (const shape &at : {shape(1, 1), shape(2, 33)}) check(*s, at);\n}")


main()
