#!/usr/bin/env python3
"""PyTorch's times, eager and by torch.compile, for the cases of kernels.cu and block.cu: bf16, on this GPU.

    COMMIT=... python3 bench/peers.py OUT.tsv [part of a name]

If libturns.so (turns.cu) is in the folder of OUT.tsv, its blocks, attention and GEMMs run alternately with PyTorch's, on a warm chip. If
libattention.so (attention.cu) is there, its attention, shape by shape, runs alternately with cuDNN's and with the package flash-attn-4, if that is
installed.
The method is that of bench.h: a case is captured many times into one CUDA graph, and its runs use several sets of tensors (outputs too, but not
weights), more than the L2 holds. The variants of a case run alternately, and the median over the rounds is taken. A case that takes milliseconds
runs without a graph, directly after a run that is not timed: in a pause the chip would cool down, and its clock would rise. A case that cannot be
captured is enqueued behind a kernel that waits, so that the host is far ahead when it starts.
If a case fails, its error is printed, and the next one runs. After SECONDS nothing more is compiled, and after LONGEST nothing more is run.
"""
import ctypes
import os
import random
import statistics
import sys
import time

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE, BF16 = "cuda", torch.bfloat16
ROUNDS, WARM = 9, 2
SECONDS, LONGEST = 200, 240
START, HEAD_DIM = time.monotonic(), 128


def note(text):
    print(f"[{time.monotonic() - START:5.0f} s] {text}", flush=True)


def reason(error):
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160] if str(error).strip() else ''}"


def normal(*shape, std=1.0, grad=False, dtype=BF16):
    return torch.empty(*shape, dtype=dtype, device=DEVICE).normal_(0, std).requires_grad_(grad)


# ---- time

class Racer:
    """A variant of a case. `f(i)` runs on the i-th set of tensors; its results are freed only before the next run on that set."""

    def __init__(self, what, step, variant, shape, f, sets, runs, graph=True):
        self.row = (what, step, variant, shape)
        self.f, self.sets, self.runs, self.long, self.graph, self.us = f, sets, runs, not graph, None, []
        self.results = [None] * sets
        for i in range(max(3, min(sets, 4))):
            self.one(i)  # compiles, loads, and allocates
        torch.cuda.synchronize()
        if graph:
            try:
                captured = torch.cuda.CUDAGraph()
                with torch.cuda.graph(captured, stream=torch.cuda.current_stream()):
                    for i in range(runs):
                        self.one(i)
                self.graph = captured
            except Exception as e:
                torch.cuda.synchronize()
                note(f"{' '.join(self.row)}: without a graph, {reason(e)}")

    def one(self, i):
        self.results[i % self.sets] = None
        self.results[i % self.sets] = self.f(i % self.sets)

    def round(self):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if self.graph:
            a.record()
            self.graph.replay()
        else:
            if self.long:
                self.one(self.runs)
            else:
                torch.cuda._sleep(10_000_000)  # some 5 ms
            a.record()
            for i in range(self.runs):
                self.one(i)
        b.record()
        b.synchronize()
        self.us.append(1e3 * a.elapsed_time(b) / self.runs)


def emit(row, us, spread):
    print(f"{row[0]:24} {row[1]:17} {row[2]:8} {row[3]:20} {us:10.2f} us  +-{50 * spread:.1f}%", flush=True)
    TSV.write("\t".join(row) + f"\t{us:.3f}\t{spread:.3f}\n")
    TSV.flush()


def race(name, racers, warm=0.0, rounds=ROUNDS):
    """Time variants, which run alternately; first `warm` seconds without timing."""
    start = time.monotonic()
    try:
        while racers and time.monotonic() - start < warm:
            for r in racers:
                r.round()
        for r in racers:
            r.us.clear()
        for n in range(rounds):  # in another order each time: the work before a run changes the chip's clock by some percent
            for r in random.Random(n).sample(racers, len(racers)):
                r.round()
    except Exception as e:
        return note(f"{name}: {reason(e)}")
    for r in racers:
        t = r.us[WARM:]
        emit(r.row, statistics.median(t), (max(t) - min(t)) / statistics.median(t))


def tensors_of(x):
    return [x] if isinstance(x, torch.Tensor) else [t for part in x or [] for t in tensors_of(part)]


def racers_of(what, shape, fn, make, passes=("forward", "backward"), compiled=True, variants=None, graph=True, shared=(), sets=0, runs=0):
    """The variants of fn(*make()) and its backward. Backward computes the gradients of those tensors of make() and `shared` that require one."""
    racers = []
    if ONLY not in what:
        return racers
    if time.monotonic() - START > LONGEST:
        note(f"{what} {shape}: left out, the time is over")
        return racers
    try:
        copies = [make()]
        size = sum(t.nbytes for t in tensors_of(copies[0]))
        sets = sets or min(12, 2 + (256 << 20) // (2 * size + 1))
        copies += [make() for _ in range(sets - 1)]
    except Exception as e:
        note(f"{what} {shape}: {reason(e)}")
        return racers
    todo = dict(variants or {"eager": fn})
    if compiled and time.monotonic() - START > SECONDS:
        note(f"{what} {shape}: not compiled, the time for that is over")
    elif compiled:
        torch._dynamo.reset()
        todo["compile"] = torch.compile(fn, dynamic=False)
    for variant, f in todo.items():
        for step in passes:
            try:
                racers.append(Racer(what, step, variant, shape, runner(f, step, copies, shared), sets, runs or max(2 * sets, 10), graph))
            except Exception as e:
                note(f"{what} {step} {variant} {shape}: {reason(e)}")
    return racers


def case(what, shape, *args, warm=0.0, rounds=ROUNDS, **options):
    """Time racers_of(what, shape, ...)."""
    race(f"{what} {shape}", racers_of(what, shape, *args, **options), warm, rounds)
    torch.cuda.empty_cache()


def wanted(args, shared):
    return [t for t in tensors_of(list(args)) + list(shared) if t.requires_grad]


def runner(f, step, copies, shared):
    """f(i) for Racer: forward, inference, the backward of an earlier forward, or forward and backward."""
    if step == "inference":
        def infer(i):
            with torch.inference_mode():
                return f(*copies[i])
        return infer
    if step == "forward":
        return lambda i: f(*copies[i])
    gradients = [torch.randn_like(t) for t in tensors_of(f(*copies[0]))]
    if step == "forward+backward":
        return lambda i: torch.autograd.grad(tensors_of(f(*copies[i])), wanted(copies[i], shared), gradients)
    outputs = [tensors_of(f(*c)) for c in copies]
    gradients = [[torch.randn_like(t) for t in y] for y in outputs]
    return lambda i: torch.autograd.grad(outputs[i], wanted(copies[i], shared), gradients[i], retain_graph=True)


# ---- models

class MLP(nn.Module):
    """LayerNorm, linear, gelu, linear, dropout, and the residual."""

    def __init__(self, hidden, ffn):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(hidden), nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x):
        y = self.fc2(F.gelu(self.fc1(self.norm(x)), approximate="tanh"))
        return x + F.dropout(y, 0.1, self.training)


class Block(nn.Module):
    """The GPT block of block.cu."""

    def __init__(self, hidden, ffn, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(hidden)
        self.qkv, self.proj, self.mlp = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden), MLP(hidden, ffn)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return self.mlp(x + F.dropout(self.proj(attention(q, k, v)), 0.1, self.training))


class Gated(nn.Module):
    """RMSNorm, swiglu between two linears, and the residual."""

    def __init__(self, hidden, ffn):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(hidden, 1e-5), nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        gate, up = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Rope(nn.Module):
    """RoPE of [batch, seq, heads, HEAD_DIM], with tables in bf16."""

    def __init__(self, seq, base):
        super().__init__()
        half = HEAD_DIM // 2
        angle = torch.arange(seq).float()[:, None] * base ** (-torch.arange(half).float() / half)
        for name, f in (("cosine", torch.cos), ("sine", torch.sin)):
            self.register_buffer(name, torch.cat([f(angle)] * 2, -1)[:, None, :].to(BF16))

    def forward(self, x):
        low, high = x.chunk(2, -1)
        return x * self.cosine + torch.cat((-high, low), -1) * self.sine


class Rotary(nn.Module):
    """The block of Llama (TE_LLAMA_BLOCK) or, with a norm of each head, of Qwen3 (TE_QWEN3_BLOCK)."""

    def __init__(self, hidden, ffn, heads, kv, seq, base, norms):
        super().__init__()
        self.split, self.norm, self.rope, self.mlp = (heads, kv, kv), nn.RMSNorm(hidden, 1e-5), Rope(seq, base), Gated(hidden, ffn)
        self.qkv, self.proj = nn.Linear(hidden, (heads + 2 * kv) * HEAD_DIM, bias=False), nn.Linear(heads * HEAD_DIM, hidden, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(HEAD_DIM, 1e-6) if norms else nn.Identity() for _ in range(2))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (-1, HEAD_DIM)).split(self.split, 2)
        return self.mlp(x + self.proj(attention(self.rope(self.q_norm(q)), self.rope(self.k_norm(k)), v)))


def attention(q, k, v):
    """Causal attention: q, k, v are [batch, seq, heads, head_dim], where k and v may have fewer heads -> [batch, seq, hidden]."""
    heads = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2).flatten(2)


def on_gpu(module):
    module = module.to(device=DEVICE, dtype=BF16)
    for p in module.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, 0, 0.02)
    return module


def blocks():
    hidden, ffn, batch, seq = 4096, 16384, 4, 2048
    mlp, block = on_gpu(MLP(hidden, ffn)), on_gpu(Block(hidden, ffn, 32))
    x = lambda: [normal(batch, seq, hidden, grad=True)]
    qkv = lambda: [normal(batch, seq, 32, HEAD_DIM, grad=True) for _ in range(3)]
    both, rows, attention_shape = ("forward", "forward+backward"), f"{batch * seq}", f"{batch * seq}x{3 * hidden}x{hidden}"
    # Each library's attention by itself runs directly after its block, so that the chip has the clock that the block leaves.
    racers = racers_of("gpt4096", rows, block, x, both, graph=False, shared=list(block.parameters()), sets=2, runs=4)
    racers += racers_of("attention", attention_shape, attention, qkv, both[1:], compiled=False, graph=False, sets=3, runs=8)
    racers += ours_of("gpt4096", rows, batch, seq, runs=4) + ours_of("attention", attention_shape, batch, seq, runs=8)
    race("gpt4096 and attention", racers, warm=1.0, rounds=21)
    del racers
    if OURS:
        OURS.library.lists_close()
    torch.cuda.empty_cache()
    case("mlp4096", rows, mlp, x, both, graph=False, shared=list(mlp.parameters()), sets=2, runs=5)
    block.eval()
    for n in (1, 8, 64):
        race(f"gpt4096 {n}", racers_of("gpt4096", f"{n}", block, lambda: [normal(1, n, hidden)], ("inference",), sets=4, runs=12)
             + ours_of("gpt4096", f"{n}", 1, n, runs=12, step="inference"), rounds=41)
        if OURS:
            OURS.library.lists_close()
        torch.cuda.empty_cache()
    block.train()
    if ONLY in "host_time":
        host_time(block, normal(1, 16, hidden, grad=True))


def rotary_blocks():
    """The blocks of Llama and Qwen3. Each library's attention by itself runs directly after its block, as above."""
    hidden, heads, kv, batch, seq = 4096, 32, 8, 4, 2048
    rows, attention_shape = f"{batch * seq}", f"{batch * seq}x{(heads + 2 * kv) * HEAD_DIM}x{hidden}"
    qkv = lambda: [normal(batch, seq, n, HEAD_DIM, grad=True) for n in (heads, kv, kv)]
    for what, ffn, base, norms in (("llama4096", 14336, 5e5, False), ("qwen4096", 12288, 1e6, True)):
        if ONLY not in what + "_attention":
            continue
        block = on_gpu(Rotary(hidden, ffn, heads, kv, seq, base, norms))
        racers = racers_of(what, rows, block, lambda: [normal(batch, seq, hidden, grad=True)], ("forward", "forward+backward"), graph=False,
                           shared=list(block.parameters()), sets=2, runs=4)
        racers += racers_of(what + "_attention", attention_shape, attention, qkv, ("forward+backward",), compiled=False, graph=False, sets=3, runs=8)
        racers += ours_of(what, rows, batch, seq, runs=4) + ours_of(what + "_attention", attention_shape, batch, seq, runs=8)
        race(what, racers, warm=1.0, rounds=21)
        del racers, block
        if OURS:
            OURS.library.lists_close()
        torch.cuda.empty_cache()


def attention_shapes():
    """Attention by shape, forward and backward; the variants run alternately. A variant that fails at a shape is left out there."""
    if ONLY not in "attention_shapes" or not (ours := library_of(Attention, "libattention.so")):
        return
    try:
        from flash_attn.cute.interface import flash_attn_func as flash4
    except Exception as e:
        flash4 = note(f"flash-attn-4 is left out: {reason(e)}")

    for which, (batch, seq, heads, kv, dim, causal, value) in enumerate(ours.shapes()):
        q, k, v = (normal(batch, seq, n, d, grad=True) for n, d in ((heads, dim), (kv, dim), (kv, value)))
        dy = normal(batch, seq, heads, value)

        def cudnn():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                t = (t.transpose(1, 2) for t in (q, k, v))
                return F.scaled_dot_product_attention(*t, is_causal=bool(causal), enable_gqa=kv != heads).transpose(1, 2)

        def flash(deterministic):
            y = flash4(q, k, v, causal=bool(causal), deterministic=deterministic)
            return y[0] if isinstance(y, tuple) else y

        def backward_of(forward):
            y = forward()
            return lambda i: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True)

        ours.call("lists_open", which, batch, seq)
        ours.train(which)
        variants = [("forward", "ours", lambda: lambda i: ours.call("lists_forward", which)), ("forward", "cudnn", lambda: lambda i: cudnn()),
                    ("backward", "ours", lambda: lambda i: ours.call("lists_backward", which, 0)),
                    ("backward", "ours_free", lambda: lambda i: ours.call("lists_backward", which, 1)), ("backward", "cudnn", lambda: backward_of(cudnn))]
        if flash4:
            variants += [("forward", "flash4", lambda: lambda i: flash(False)), ("backward", "flash4", lambda: backward_of(lambda: flash(False))),
                         ("backward", "flash4_deterministic", lambda: backward_of(lambda: flash(True)))]
        shape, racers = f"b{batch}_s{seq}_h{heads}_kv{kv}_d{dim}_" + (f"v{value}_" if value != dim else "") + ("causal" if causal else "full"), []
        for step, variant, make in variants:
            try:
                racers.append(Racer("attention_shapes", step, variant, shape, make(), 1, 4, graph=False))
            except Exception as e:
                note(f"attention {step} {variant} {shape}: {reason(e)}")
        race(f"attention {shape}", racers, warm=0.3)
        del racers, variants, q, k, v, dy
        ours.library.lists_close()
        torch.cuda.empty_cache()


def host_time(block, x, rounds=30):
    """Microseconds that the host takes to enqueue a forward and a backward of 16 rows, without waiting for the GPU."""
    wants, dy, t = [x, *block.parameters()], torch.randn_like(x), []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        torch.autograd.grad(block(x), wants, dy)
        t.append(1e6 * (time.perf_counter() - start))
    t = sorted(t[5:])
    emit(("host_time", "forward+backward", "eager", "16"), statistics.median(t), (t[len(t) * 3 // 4] - t[len(t) // 4]) / statistics.median(t))


# ---- ours

class Lists:
    """A library made with turns.h: lists, forward and backward."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name, types in (("turns_open", [ctypes.c_void_p]), ("lists_open", [ctypes.c_int] * 3), ("lists_forward", [ctypes.c_int]),
                            ("lists_infer", [ctypes.c_int]), ("lists_backward", [ctypes.c_int] * 2)):
            getattr(self.library, name).argtypes, getattr(self.library, name).restype = types, ctypes.c_char_p
        self.call("turns_open", torch.cuda.current_stream().cuda_stream)

    def call(self, name, *args):
        if error := getattr(self.library, name)(*args):
            raise RuntimeError(error.decode())

    def train(self, which):
        self.call("lists_forward", which)
        self.call("lists_backward", which, 0)


class Ours(Lists):
    """libturns.so: lists, and the GEMMs y = x W^T, dx = dy W, dW = dy^T x in f32 and in bf16."""

    WHICH = {"forward": 0, "dgrad": 1, "wgrad_f32": 2, "wgrad": 3}
    LISTS = {"gpt4096": 0, "attention": 1, "llama4096": 2, "qwen4096": 3, "llama4096_attention": 4, "qwen4096_attention": 4}

    def __init__(self, path):
        super().__init__(path)
        self.library.products_run.argtypes, self.library.products_run.restype = [ctypes.c_int] * 4 + [ctypes.c_void_p] * 3, ctypes.c_char_p
        self.library.products_gain.argtypes, self.library.products_gain.restype = [ctypes.c_int] * 4, ctypes.c_double

    def run(self, step, m, n, k, a, b):
        shape = {"forward": (m, n), "dgrad": (m, k)}.get(step, (n, k))
        out = torch.empty(shape, dtype=torch.float32 if step == "wgrad_f32" else BF16, device=DEVICE)
        self.call("products_run", self.WHICH[step], m, n, k, out.data_ptr(), a.data_ptr(), b.data_ptr())
        return out

    def gain(self, step, m, n, k):
        return self.library.products_gain(self.WHICH[step], m, n, k)


class Attention(Lists):
    """libattention.so: attention at the shapes of attention.cu."""

    def shapes(self):
        """(batch, seq, heads, kv heads, head_dim, causal, value_dim) of each list."""
        self.library.shapes_at.restype = ctypes.POINTER(ctypes.c_int)
        return [tuple(self.library.shapes_at(i)[:7]) for i in range(self.library.shapes_count())]


def library_of(kind, file):
    """The library in the folder of OUT.tsv; None if there is none, or if it does not load."""
    path = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), file)
    try:
        return kind(path) if os.path.exists(path) else None
    except Exception as e:
        return note(f"{path}: {reason(e)}")


def ours_of(what, shape, batch, seq, runs, step="forward+backward"):
    """The variant `ours` of a case, if libturns.so is there; inference runs as a graph."""
    if not OURS or ONLY not in what:
        return []
    which = Ours.LISTS[what]
    try:
        OURS.call("lists_open", which, batch, seq)
        f = (lambda i: OURS.call("lists_infer", which)) if step == "inference" else (lambda i: OURS.train(which))
        return [Racer(what, step, "ours", shape, f, 1, runs, graph=step == "inference")]
    except Exception as e:
        note(f"{what} ours {shape}: {reason(e)}")
        return []


# ---- GEMMs

def products(m=8192):
    """The GEMMs y = x W^T, dx = dy W, dW = dy^T x of a linear k -> n; dW in bf16 and in f32."""
    for n, k in ((12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384)):
        shape = f"{m}x{k}" + (f"x{n}" if n != k else "")
        w, b = normal(n, k, std=0.02), normal(n)
        for step, f, mine, make in (
            ("forward", lambda x: torch.mm(x, w.t()), lambda x: (x, w), lambda: [normal(m, k)]),
            ("dgrad", lambda dy: torch.mm(dy, w), lambda dy: (dy, w), lambda: [normal(m, n)]),
            ("wgrad", lambda dy, x: torch.mm(dy.t(), x), lambda dy, x: (dy, x), lambda: [normal(m, n), normal(m, k)]),
            ("wgrad_f32", lambda dy, x: torch.mm(dy.t(), x, out_dtype=torch.float32), lambda dy, x: (dy, x), lambda: [normal(m, n), normal(m, k)]),
        ):
            variants = {"eager": f}
            if OURS:
                variants["ours"] = lambda *t: OURS.run(step, m, n, k, *mine(*t))
            what = "linear" if step == "forward" else "linear_" + step
            case(what, shape, f, make, ("forward",), compiled=False, variants=variants, warm=0.3, rounds=21)
            if OURS:
                emit((what, "forward", "tuning", shape), OURS.gain(step, m, n, k), 0.0)  # a ratio, not a time
        if n == 16384:
            case("linear_bias_gelu", shape, lambda x: F.gelu(F.linear(x, w, b), approximate="tanh"), lambda: [normal(m, k)], ("forward",))


# ---- memory-bound ops

def norms():
    for rows, width in ((8192, 4096), (32768, 4096), (32768, 8192), (8192, 768), (1024, 12288)):
        gamma, beta = normal(width, grad=True), normal(width, grad=True)
        shape, x = f"{rows}x{width}", lambda: [normal(rows, width, grad=True)]
        case("layernorm", shape, lambda x: F.layer_norm(x, (width,), gamma, beta), x, shared=[gamma, beta])
        case("rmsnorm", shape, lambda x: F.rms_norm(x, (width,), gamma, 1e-5), x, shared=[gamma])


def add_norm(rows=8192, width=4096):
    gamma, beta = normal(width, grad=True), normal(width, grad=True)
    def add_fork_layernorm(x, residual):
        h = x + residual
        return h, F.layer_norm(h, (width,), gamma, beta)
    case("add_fork_layernorm", f"{rows}x{width}", add_fork_layernorm, lambda: [normal(rows, width, grad=True), normal(rows, width, grad=True)], shared=[gamma, beta])


ACTIVATIONS = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "swiglu": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
}


def activations(rows=8192, width=16384):
    for name, f in ACTIVATIONS.items():
        from_width = 2 * width if name == "swiglu" else width
        shape = f"{rows}x{from_width}" + (f"x{width}" if name == "swiglu" else "")
        x, bias = lambda: [normal(rows, from_width, grad=True)], normal(from_width, grad=True)
        case(name, shape, f, x)
        if name in ("gelu", "swiglu"):
            case("bias_" + name, shape, lambda x: f(x + bias), x, shared=[bias])


def bias_dropout_add(rows=8192):
    for width in (16384, 4096):
        bias = normal(width, grad=True)
        case("bias_dropout_add", f"{rows}x{width}", lambda x, residual: residual + F.dropout(x + bias, 0.1, True),
             lambda: [normal(rows, width, grad=True), normal(rows, width, grad=True)], shared=[bias])


def rope(batch=4, seq=2048):
    case("rope", f"{batch * seq}x{128 * HEAD_DIM}", Rope(seq, 10000.0).to(DEVICE), lambda: [normal(batch, seq, 128, HEAD_DIM, grad=True)])


def cross_entropy():
    for rows, vocabulary in ((8192, 50257), (8192, 50304), (4096, 131072)):
        labels = torch.randint(min(vocabulary, 50257), (rows,), device=DEVICE)
        case("cross_entropy", f"{rows}x{vocabulary}x1", lambda x: F.cross_entropy(x, labels, reduction="none"), lambda: [normal(rows, vocabulary, grad=True)])


def embedding(rows=8192, vocabulary=50304, width=4096):
    weight, tokens = normal(vocabulary, width, grad=True), torch.randint(50257, (rows,), device=DEVICE)
    case("embedding", f"{rows}x1x{width}", lambda: F.embedding(tokens, weight), lambda: [], compiled=False, shared=[weight], sets=4)


def optimizer():
    """All in f32: the weights themselves are the master weights. te_adamw also writes their copy in bf16."""
    shapes = (16384, 16384), (4096, 16384), (4096,), (4096,), (16384, 4096)
    params = [normal(*shape, std=0.02, grad=True, dtype=torch.float32) for shape in shapes]
    for p in params:
        p.grad = normal(*p.shape, std=1e-3, dtype=torch.float32)
    adamw, shape = torch.optim.AdamW(params, lr=1e-4, fused=True, capturable=True), str(sum(p.numel() for p in params))
    norm = lambda: nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
    for name, f in (("adamw", adamw.step), ("grad_norm", norm), ("grad_norm_adamw", lambda: (norm(), adamw.step())[0])):
        case(name, shape, f, lambda: [], ("forward",), compiled=False, sets=1, runs=4)


def main():
    global TSV, ONLY, OURS
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ONLY = sys.argv[2] if len(sys.argv) > 2 else ""
    if not torch.cuda.is_available():
        sys.exit("peers.py: PyTorch sees no GPU")
    torch.manual_seed(1)
    torch.cuda.set_stream(torch.cuda.Stream())  # autograd must run on the stream that is captured
    torch._functorch.config.donated_buffer = False  # allows a backward to run more than once
    title = f"{torch.cuda.get_device_name()}, commit {os.environ.get('COMMIT', 'unknown')}, torch {torch.__version__}"
    print(title)
    OURS = library_of(Ours, "libturns.so")
    with open(sys.argv[1], "w") as TSV:
        TSV.write(f"# {title}\nwhat\tpass\tvariant\tshape\tmicroseconds\tspread\n")
        for group in (blocks, rotary_blocks, attention_shapes, products, norms, optimizer, cross_entropy, embedding, add_norm, activations, rope, bias_dropout_add):
            try:
                group()
            except Exception as e:
                note(f"{group.__name__}: {reason(e)}")
            torch.cuda.empty_cache()
    note("done")


if __name__ == "__main__":
    main()
