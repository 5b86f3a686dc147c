#!/usr/bin/env python3
"""Makes tables and pictures of the results of kernels.cu, block.cu, gaps.cu and peers.py.

    python3 bench/report.py FOLDER DATE

reads kernels.tsv, block.tsv, gaps.tsv, peers.tsv and attention.tsv from FOLDER, skips those that are missing, and writes results.md, ops.svg and
roofline.svg there. attention.tsv is a table of peers.py with the case attention_shapes alone; if it is there, it replaces these lines of peers.tsv.
"""
import html
import math
import os
import sys
from collections import defaultdict

# Nominal floating-point operations an element, by op; used only for the roofline.
FLOPS = {"layernorm": 8, "rmsnorm": 5, "l2norm": 5, "gelu": 12, "gelu-erf": 12, "qgelu": 6, "silu": 6,
         "swiglu": 7, "geglu": 13, "qgeglu": 7, "glu": 6, "reglu": 2, "sreglu": 3, "srelu": 2, "dropout": 2,
         "cross-entropy": 5, "rope": 3, "adamw": 15, "grad": 2, "norm": 0}
COLORS = {"ours": "#2563a8", "eager": "#a3a9b2", "compile": "#e0a458"}
KINDS = {"GEMM": "#2563a8", "attention": "#b3446c", "norm": "#3a8a5f", "activation": "#d9822b", "other": "#7a6fb0"}

def read(path):
    if not os.path.exists(path):
        return "", []
    with open(path) as f:
        title, head, *lines = [line.rstrip("\n") for line in f]
    rows = [dict(zip(head.split("\t"), line.split("\t"))) for line in lines if line]
    for row in rows:
        row.update({k: float(row[k]) for k in row if k in ("microseconds", "bytes", "TB/s", "of_copy", "TFLOP/s", "spread", "beside_us", "of_replay", "asked")})
    return title.lstrip("# "), rows

def ops(step):
    return step.replace("gelu_erf", "gelu-erf").replace("cross_entropy", "cross-entropy").split("_")

def key(row):
    """(ops in the order of the list, pass, shape): the same for a line of the library's results and the line of PyTorch's for the same work."""
    words = ops(row["step"])
    return "_".join(words[::-1] if row["pass"] == "backward" else words), "forward" if row["pass"] == "step" else row["pass"], row["shape"]

def peers_by_key(rows):
    """{key: {variant: microseconds}} of PyTorch's results. A linear's backward is the sum of its two GEMMs, with dW in f32 if that was measured."""
    peers = defaultdict(dict)
    for r in rows:
        words = ops(r["what"])
        if r["variant"] not in ("ours", "tuning") and r["what"] != "attention_shapes":
            peers["_".join(words), r["pass"], r["shape"]][r["variant"]] = r["microseconds"]
    for (what, _, shape), t in list(peers.items()):
        if what == "linear_dgrad":
            wgrad = peers.get(("linear_wgrad_f32", "forward", shape)) or peers.get(("linear_wgrad", "forward", shape))
            if wgrad:
                peers["linear", "backward", shape] = {"eager": t["eager"] + wgrad["eager"]}
    return peers

def products_table(rows):
    """GEMMs that ran alternately with PyTorch's. In the mean a weight's gradient counts in f32."""
    t = {(r["what"], r["shape"], r["variant"]): r["microseconds"] for r in rows}
    out, ratios = [], []
    for (what, shape, variant), ours in t.items():
        theirs = t.get((what, shape, "eager"))
        if variant == "ours" and theirs and what.startswith("linear"):
            gain = t.get((what, shape, "tuning"), 0)
            ratios += [theirs / ours] if what != "linear_wgrad" else []
            out.append([what, shape, us(ours), us(theirs), f"{theirs / ours:.3f}", f"{gain:.3f}" if gain else ""])
    if not out:
        return ""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return table(["<GEMM", "<shape", "ours, us", "PyTorch eager", "PyTorch / ours", "first candidate / fastest"], out) + \
        f"\nOf the {len(ratios)} GEMMs of forward and backward, gradients of weights in f32: geometric mean {mean:.3f}, least {min(ratios):.3f}.\n"

def table(head, rows):
    left = sum(1 for h in head if h.startswith("<"))
    lines = ["| " + " | ".join(h.lstrip("<") for h in head) + " |", "|" + "---|" * left + "--:|" * (len(head) - left)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows]) + "\n"

def attention_table(rows):
    """Attention by shape: TFLOP/s of each variant, where scores that the causal mask hides do not count, and ratios of the library to others."""
    t = defaultdict(dict)
    for r in rows:
        if r["what"] == "attention_shapes":
            t[r["shape"], r["pass"]][r["variant"]] = r["microseconds"]
    names, out = ["ours", "ours_free", "cudnn", "flash4", "flash4_deterministic"], []
    for (shape, step), us_of in t.items():
        batch, seq, heads, _, dim, *value, mask = [w.lstrip("bshkvd") for w in shape.split("_")]
        value = value[0] if value else dim  # d192_v128: values of 128
        columns = int(dim) + int(value) if step == "forward" else 3 * int(dim) + 2 * int(value)
        flops = 2 * int(batch) * int(heads) * int(seq) ** 2 * columns / (1 if mask == "full" else 2)
        rate = {v: flops / time / 1e6 for v, time in us_of.items()}
        others = [rate[v] for v in names[2:] if v in rate]
        over = [times(rate.get("ours"), max(others, default=0)), times(rate.get("ours"), rate.get("flash4_deterministic")), times(rate.get("ours_free"), rate.get("flash4"))]
        out.append([shape.replace("_", " "), step] + [f"{rate[v]:.0f}" if v in rate else "" for v in names] + over)
    return out and table(["<shape", "<pass", *(n.replace("_", " ") for n in names), "ours / best of the others", "ours / flash4 deterministic", "ours free / flash4"], out)

us = lambda t: "" if not t else f"{t:.1f}" if t < 1000 else f"{t:.0f}"
times = lambda a, b, digits=2: f"{a / b:.{digits}f}" if a and b else ""

def steps_table(rows, peers):
    out = []
    for r in rows:
        p = peers.get(key(r), {})
        rate = f"{r['TFLOP/s']:.0f} TFLOP/s" if r["TFLOP/s"] else f"{r['TB/s']:.2f} TB/s" if r["bytes"] else ""
        out.append([r["model"], r["pass"], r["step"], r["shape"], us(r["microseconds"]), rate, f"{r['of_copy']:.2f}" if r["bytes"] else "",
                    us(p.get("eager")), us(p.get("compile")), times(min(p.values(), default=0), r["microseconds"]), f"{50 * r['spread']:.1f}%"])
    return table(["<model", "<pass", "<step", "<shape", "us", "rate", "of copy", "PyTorch eager, us", "compile, us", "PyTorch's best / ours", "+-"], out)

def beside_table(rows):
    """Steps that were compared with other work than a copy, and the memory's rates for other ratios of reads to writes than a copy's."""
    out = []
    for r in rows:
        other = r.get("beside_us", 0)
        rate = f"{r['TFLOP/s']:.0f} TFLOP/s" if r["TFLOP/s"] else f"{r['TB/s']:.2f} TB/s" if r["bytes"] else ""
        if other or r["pass"] == "plain":
            name, its = (r["beside"], other) if other else ("a copy of as many bytes", r["of_copy"] * r["microseconds"])
            out.append([r["model"], r["pass"], r["step"], r["shape"], us(r["microseconds"]), rate, name, us(its),
                        f"{r['microseconds'] / its:.3f}", f"{its / r['microseconds']:.3f}"])
    return out and table(["<model", "<pass", "<step", "<shape", "us", "rate", "<beside", "its us", "times its time", "of its rate"], out)

def gaps_table(rows):
    return table(["<what", "us", "of the replay", "limit, us", "of the limit"],
                 [[r["what"], f"{r['microseconds']:.2f}", f"{r['of_replay']:.5f}", f"{r['asked']:g}" if r["asked"] else "",
                   times(r["microseconds"], r["asked"])] for r in rows])

def in_turns(rows):
    """{what: {variant: microseconds}} of forward + backward, and of inference by rows; empty unless the library's blocks and their attention
    ran alternately with PyTorch's."""
    t = defaultdict(dict)
    for r in rows:
        if r["pass"] == "forward+backward":
            t[r["what"]][r["variant"]] = r["microseconds"]
        elif r["pass"] == "inference":
            n = r["shape"]
            t[f"{r['what']} inference, {n} row" + ("s" if n != "1" else "")][r["variant"]] = r["microseconds"]
    return t if "ours" in t["gpt4096"] and {"ours", "eager"} <= t["attention"].keys() else {}

def wholes(block, peers, turns):
    """The parts that both block.cu and peers.py measure: the library's as one graph (forward alone as the sum of its steps), compared with
    PyTorch's. For parts in `turns` both times are from the alternating runs."""
    total, whole = defaultdict(float), {}
    for r in block:
        if (r["pass"], r["step"]) == ("training", "whole") and r["shape"].startswith("8192x"):
            whole[r["model"]] = r["microseconds"]
        if r["step"] == "all":
            total[r["model"], r["pass"]] += r["microseconds"]
    out = []
    def line(name, ours, p):
        if ours:
            out.append([name, us(ours), us(p.get("eager")), us(p.get("compile")), times(ours, p.get("eager", 0), 3), times(ours, p.get("compile", 0), 3)])

    for model in ("mlp4096", "gpt4096", "llama4096", "qwen4096"):
        forward, both = (next((t for k, t in peers.items() if k[:2] == (model, p)), {}) for p in ("forward", "forward+backward"))
        line(f"{model} forward", total[model, "forward"], forward)
        ours = whole.get(model, total[model, "forward"] + total[model, "backward"])
        mine = theirs = 0
        alone = "attention" if model == "gpt4096" else model + "_attention"
        if "ours" in turns.get(model, {}) and alone in turns:
            ours, mine, theirs = turns[model]["ours"], turns[alone]["ours"], turns[alone]["eager"]
        line(f"{model} forward + backward", ours, both)
        if mine and theirs:
            line(f"{model} forward + backward, all but attention", ours - mine, {v: t - theirs for v, t in both.items()})
    for what, t in turns.items():
        if "inference" in what and "ours" in t:
            line(what, t["ours"], t)
    text = table(["<what", "ours, us", "PyTorch eager", "compile", "ours / eager", "ours / compile"], out)
    bare = sum(total[m, p] for m in ("bare_fc1", "bare_fc2") for p in ("forward", "backward"))
    if bare and total["mlp4096", "forward"]:
        text += f"\nmlp4096, forward + backward, over its six GEMMs alone: {(total['mlp4096', 'forward'] + total['mlp4096', 'backward']) / bare:.3f}.\n"
    return text

# ---- pictures
class Svg:
    def __init__(self, width, height):
        self.size, self.parts = (width, height), []

    def text(self, x, y, s, size=11, anchor="start", color="#222", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}>{html.escape(s)}</text>')

    def rect(self, x, y, w, h, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{color}"/>')

    def line(self, x0, y0, x1, y1, color="#ddd", width=1.0, dash=""):
        self.parts.append(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"/>')

    def dot(self, x, y, color, title):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}" fill-opacity="0.75"><title>{html.escape(title)}</title></circle>')

    def write(self, path):
        w, h = self.size
        with open(path, "w") as f:
            f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" font-family="sans-serif">\n'
                    f'<rect width="{w}" height="{h}" fill="#fff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")

def ops_svg(path, rows, peers, title):
    """Bars: the time of a copy of as many bytes over the time taken."""
    rows = [r for r in rows if r["bytes"] and 0 < r["of_copy"] < 2]
    rows = [r for r in rows if key(r) in peers] or rows
    groups = []
    for k, r in {key(r): r for r in reversed(rows)}.items():
        copy = r["of_copy"] * r["microseconds"]
        groups.insert(0, (r, [("ours", r["of_copy"])] + [(v, copy / peers[k][v]) for v in ("eager", "compile") if peers.get(k, {}).get(v)]))
    left, top, bar, gap, width = 330, 86, 11, 9, 560
    most = max([1.1] + [v for _, bars in groups for _, v in bars])
    height = top + sum(len(bars) * bar + gap for _, bars in groups) + 20
    s = Svg(left + width + 60, height)
    s.text(16, 26, "Rate of each step over that of a copy of as many bytes", 16, bold=True)
    s.text(16, 46, title, color="#555")
    for i, name in enumerate(COLORS):
        s.rect(left + 130 * i, 56, 12, 12, COLORS[name])
        s.text(left + 18 + 130 * i, 66, name if name == "ours" else "PyTorch " + name)
    for i in range(int(most * 4) + 1):
        x = left + width * i / 4 / most
        s.line(x, top - 2, x, height - 18, "#888" if i == 4 else "#e4e4e4")
        s.text(x, top - 6, "copy" if i == 4 else f"{i / 4:g}", 10, "middle", "#555")
    y = top + 4
    for r, bars in groups:
        s.text(left - 8, y + len(bars) * bar / 2 + 4, f"{r['step']}, {r['pass']} {r['shape']}", 10.5, "end")
        for name, value in bars:
            s.rect(left, y, width * value / most, bar - 1, COLORS[name])
            s.text(left + width * value / most + 4, y + bar - 2.5, f"{value:.2f}", 9, color="#555")
            y += bar
        y += gap
    s.write(path)

def point(r):
    """(FLOP per byte, TFLOP/s, kind) of a step; None if it has no place in the roofline."""
    shape = [float(n) for n in r["shape"].split("x")]
    words = ops(r["step"])
    back = 2 if r["pass"] == "backward" else 1
    if r["TFLOP/s"] and len(shape) > 1:
        flops, (rows, width) = r["TFLOP/s"] * r["microseconds"] * 1e6, shape[:2]
        if "attention" in words:
            return flops / (2 * rows * (width + shape[-1]) * back), r["TFLOP/s"], "attention"
        other = flops / (2 * back * rows * width)  # the width of the GEMM's output
        return flops / (2 * back * (rows * width + rows * other + width * other)), r["TFLOP/s"], "GEMM"
    if not r["bytes"] or not 0 < r["of_copy"] < 2 or r["pass"] == "plain":
        return None
    elements = math.prod(shape[:1]) * max(shape[1:], default=1)
    flops = back * elements * sum(FLOPS.get(w, 1) for w in words if w not in ("fork", "embedding"))
    kind = "norm" if any("norm" in w for w in words) else "activation" if any("lu" in w for w in words) else "other"
    return (flops / r["bytes"], flops / r["microseconds"] / 1e6, kind) if flops else None

def roofline_svg(path, rows, title):
    rates = sorted(r["TB/s"] / r["of_copy"] for r in rows if r["bytes"] > 1e8 and 0 < r["of_copy"] < 2)
    bare = [r["TFLOP/s"] for r in rows if r["step"] == "linear" and r["TFLOP/s"]]
    points = [(p, r) for r in rows for p in [point(r)] if p]
    if not points or not rates: return
    copy, gemm = rates[len(rates) // 2], max(bare or [v[1] for v, _ in points])
    low = [min(v[i] for v, _ in points) / 1.6 for i in (0, 1)]
    high = [max(max(v[0] for v, _ in points) * 1.6, 4 * gemm / copy), max(max(v[1] for v, _ in points), gemm) * 1.7]
    left, top, w, h = 70, 84, 880, 560
    at = [lambda x: left + w * math.log(x / low[0]) / math.log(high[0] / low[0]), lambda y: top + h - h * math.log(y / low[1]) / math.log(high[1] / low[1])]
    s = Svg(left + w + 30, top + h + 52)
    s.text(16, 26, "Roofline: every step, and the rates of a copy and of a GEMM alone", 16, bold=True)
    s.text(16, 46, title, 11, color="#555")
    for axis in (0, 1):
        for e in range(math.ceil(math.log10(low[axis])), math.floor(math.log10(high[axis])) + 1):
            v = at[axis](10.0**e)
            s.line(*((v, top, v, top + h) if axis == 0 else (left, v, left + w, v)))
            s.text(*((v, top + h + 16) if axis == 0 else (left - 6, v + 4)), f"{10.0**e:g}", 10, "middle" if axis == 0 else "end", "#555")
    s.text(left + w / 2, top + h + 38, "FLOP per byte that has to move (nominal for steps without a GEMM)", 11, "middle")
    s.text(left, top - 8, "TFLOP/s", 11, "middle")
    knee, start = gemm / copy, max(low[0], low[1] / copy)
    s.line(at[0](start), at[1](start * copy), at[0](knee), at[1](knee * copy), "#444", 1.5)
    s.line(at[0](knee), at[1](gemm), left + w, at[1](gemm), "#444", 1.5)
    taken = []
    boxes = [(at[0](v[0]) - 4, at[1](v[1]) - 4, at[0](v[0]) + 4, at[1](v[1]) + 4) for v, _ in points]

    def label(x, y, text, size=9, color="#333", must=False):
        for dx, dy, anchor in ((7, 3, 0), (-7, 3, 1), (7, 14, 0), (-7, -8, 1), (7, -9, 0), (-7, 15, 1)):
            wide = len(text) * size * 0.64
            x0, y0 = x + dx - anchor * wide, y + dy - size
            box = (x0, y0, x0 + wide, y0 + size + 3)
            inside = box[0] > left and box[2] < left + w and box[1] > top and box[3] < top + h
            if must or inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken + boxes):
                taken.append(box)
                return s.text(x + dx, y + dy, text, size, "end" if anchor else "start", color)

    label(at[0](knee) - 60, at[1](knee * copy) - 2, f"copy {copy:.2f} TB/s  |  best GEMM {gemm:.0f} TFLOP/s", 11, "#222")
    names = set()
    for v, r in sorted(points, key=lambda p: -p[1]["microseconds"]):
        s.dot(at[0](v[0]), at[1](v[1]), KINDS[v[2]], f"{r['model']} {r['pass']} {r['step']} {r['shape']}: {v[1]:.1f} TFLOP/s")
        name = r["step"] + (" (backward)" if r["pass"] == "backward" else "")
        if name not in names:
            names.add(name)
            label(at[0](v[0]), at[1](v[1]), name)
    for i, (kind, color) in enumerate(KINDS.items()):
        s.dot(left + 100 + 110 * i, 66, color, kind)
        s.text(left + 110 + 110 * i, 70, kind)
    s.write(path)

def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, date = sys.argv[1:3]
    (kernels_title, kernels), (block_title, block), (peers_title, measured) = (read(os.path.join(folder, f + ".tsv")) for f in ("kernels", "block", "peers"))
    if not kernels and not block:
        sys.exit(f"report.py: no kernels.tsv and no block.tsv in {folder}")
    gaps_title, gaps = read(os.path.join(folder, "gaps.tsv"))
    peers = peers_by_key(measured)
    title = f"{kernels_title or block_title}, {date}" + (f"; PyTorch: {peers_title.split(', ')[-1]}" if peers_title else "")
    text = f"# {title}\n\nMedians. \"of copy\": the time of a copy of as many bytes in the same run, over the step's time. "
    text += "Attention's TFLOP/s do not count the scores that the causal mask hides; they count two GEMMs forward and five backward.\n"
    commit, whole, theirs = (next((w for w in t.split(", ") if w.startswith("commit ")), "") for t in (kernels_title or block_title, block_title, peers_title))
    if whole and whole != commit:
        text += f"\nWhole parts, steps of the plans and the host's times are from another run: {whole}.\n"
    if theirs and theirs != commit:
        text += f"\nPyTorch's columns, and ours where the two ran alternately, are from another run: {theirs}.\n"
    if block:
        turns = in_turns(measured)
        how = ("mlp4096 as one CUDA graph, the other blocks and their attention alternately with PyTorch's. Inference: CUDA graphs, alternately with PyTorch's"
               if turns else "ours as one CUDA graph")
        text += f"\n## Whole parts\n\nForward, ours: the sum of the steps, each timed by itself. Forward + backward: {how}. PyTorch: the whole part.\n\n" + wholes(block, peers, turns)
    if products := products_table(measured):
        text += "\n## GEMMs, alternately with PyTorch's\n\n" + products
    attention_title, attention = read(os.path.join(folder, "attention.tsv"))
    if shapes := attention_table(attention or measured):
        text += "\n## Attention by shape, TFLOP/s, all variants alternately\n\n" + (f"{attention_title}.\n\n" if attention else "") + shapes
    if beside := beside_table(kernels + block):
        text += "\n## Compared with other work than a copy\n\n" + beside
    if gaps:
        text += f"\n## Gaps between the kernels of a training step, replayed as one graph\n\n{gaps_title}.\n\n" + gaps_table(gaps)
    if kernels:
        text += "\n## Ops and patterns\n\n![rate of each step over a copy's](ops.svg)\n\n" + steps_table(kernels, peers)
    if block:
        text += "\n## Steps of the plans\n\n" + steps_table(block, peers)
    if measured:
        used = {key(r) for r in kernels + block}
        rest = [r for r in measured if r["variant"] not in ("ours", "tuning") and r["what"] != "attention_shapes" and ("_".join(ops(r["what"])), r["pass"], r["shape"]) not in used]
        text += "\n## PyTorch alone\n\n" + table(["<what", "<pass", "<variant", "<shape", "us"], [[r["what"], r["pass"], r["variant"], r["shape"], us(r["microseconds"])] for r in rest])
    with open(os.path.join(folder, "results.md"), "w") as f:
        f.write(text + "\n![roofline](roofline.svg)\n")
    ops_svg(os.path.join(folder, "ops.svg"), kernels or block, peers, title)
    roofline_svg(os.path.join(folder, "roofline.svg"), kernels + block, title)
    print(f"{folder}/results.md, ops.svg, roofline.svg")
if __name__ == "__main__":
    main()
