#!/usr/bin/env python3
"""A head (linear and loss), forward and backward in bf16: the pattern linear_cross_entropy of libloss.so (loss.cu), compared with its three
GEMMs alone and with PyTorch: eager, torch.compile, and a loss that processes the rows in chunks. Prints the time, and the memory without
weights, gradients, x and dx.

    python3 bench/loss.py LIBLOSS.so [part of a shape's name [seconds [the beginning of the variants' names]]]
"""
import ctypes
import statistics
import sys
import time

import torch
import torch.nn.functional as F

SHAPES = [("gpt2", 8192, 50304, 768), ("qwen3", 4096, 151936, 4096)]
LIBRARY = ctypes.CDLL(sys.argv[1])
ONLY = sys.argv[2] if len(sys.argv) > 2 else ""
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 120
VARIANTS = sys.argv[4] if len(sys.argv) > 4 else ""
START = time.monotonic()
ROUNDS = 9
P, I, L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


def note(text):
    print(f"[{time.monotonic() - START:5.0f} s] {text}", flush=True)


def declare(name, result, *arguments):
    f = getattr(LIBRARY, name)
    f.restype, f.argtypes = result, arguments
    return f


opened = declare("loss_open", ctypes.c_char_p, P)
bytes_of = declare("loss_bytes", ctypes.c_size_t, I, L, P, P)
bind = declare("loss_bind", ctypes.c_char_p, I, L, P, P, ctypes.c_size_t)
run = declare("loss_run", ctypes.c_char_p, I, I, P, P, P)
is_deferred = declare("loss_is_deferred", I, I)
products = declare("loss_products", ctypes.c_char_p, L, L, L, P, P, P, P, P, I)


def check(error):
    if error:
        raise RuntimeError(error.decode())


# The mean loss and its gradients for one chunk of rows; the weight's gradient is in the weight's dtype.
def chunk_step(x, w, labels, dw, scale):
    logits = (x @ w.t()).float()
    logsum = torch.logsumexp(logits, 1, keepdim=True)
    loss = (logsum.squeeze(1) - logits.gather(1, labels[:, None]).squeeze(1)) * scale
    p = torch.exp(logits - logsum)
    p.scatter_add_(1, labels[:, None], torch.full_like(logsum, -1.0))
    p = (p * scale).to(torch.bfloat16)
    dw.addmm_(p.t(), x)
    return loss.sum(), p @ w


class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, labels, rows, step):
        dx, dw, total = torch.empty_like(x), torch.zeros_like(w), torch.zeros((), device=x.device)
        for at in range(0, x.shape[0], rows):
            loss, dx[at:at + rows] = step(x[at:at + rows], w, labels[at:at + rows], dw, 1.0 / x.shape[0])
            total += loss
        ctx.save_for_backward(dx, dw)
        return total

    @staticmethod
    def backward(ctx, dy):
        dx, dw = ctx.saved_tensors
        return dx * dy, dw * dy, None, None, None


def shape(which, name, rows, vocabulary, hidden):
    torch.manual_seed(1)
    w = torch.empty(vocabulary, hidden, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)
    x = torch.empty(rows, hidden, device="cuda", dtype=torch.bfloat16).normal_(0, 1)
    labels = torch.randint(0, vocabulary, (rows,), device="cuda")
    labels32 = labels.int()
    grad = torch.zeros(vocabulary, hidden, device="cuda")
    dx, loss = torch.zeros_like(x), torch.zeros(rows, device="cuda")
    share = rows * vocabulary * 2 / 16
    print(f"\n{name}: {rows} x {vocabulary} x {hidden}; logits {rows * vocabulary * 2 / 2**20:.0f} MiB, a sixteenth {share / 2**20:.1f} MiB")
    wx, xx = w.detach().requires_grad_(), x.detach().requires_grad_()
    ours, memory, texts = {}, {}, {}

    class Te:
        """The passes of a head, with their own memory."""

        def __init__(self, head, passes):
            self.head, self.passes = head, passes
            self.need = bytes_of(head, rows, w.data_ptr(), grad.data_ptr())
            self.block = torch.empty(self.need, device="cuda", dtype=torch.uint8)
            self.bind()

        def bind(self):
            bytes_of(self.head, rows, w.data_ptr(), grad.data_ptr())
            check(bind(self.head, rows, labels32.data_ptr(), self.block.data_ptr(), self.need))

        def __call__(self):
            check(run(self.head, self.passes, loss.data_ptr(), dx.data_ptr(), x.data_ptr()))

    def te(head, passes):
        def go():
            case = Te(head, passes)
            return case, case.need
        return go

    def torch_of(f):
        def go():
            def once():
                wx.grad = xx.grad = None
                f(xx, wx, labels).backward()
            once()
            torch.cuda.synchronize()
            wx.grad = xx.grad = None
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            once()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before - (w.numel() + x.numel()) * 2
            wx.grad = xx.grad = None
            return once, peak
        return go

    def bare():
        logits = torch.empty(rows, vocabulary, device="cuda", dtype=torch.bfloat16).normal_(0, 1e-4)
        return lambda: check(products(rows, vocabulary, hidden, logits.data_ptr(), x.data_ptr(), w.data_ptr(), dx.data_ptr(), grad.data_ptr(), 7)), 0

    compiled = torch.compile(lambda x, w, labels: F.cross_entropy(F.linear(x, w).float(), labels), dynamic=False)
    step = torch.compile(chunk_step, dynamic=False)
    least = max(128, rows // 16 // 128 * 128)
    cases = [("three bare products", bare),
             ("te, loss in backward", te(which, 7)), ("te, loss in forward", te(which, 3)), ("te, forward alone", te(which, 1)),
             ("te, loss in backward, added", te(which, 15)), ("te, loss in forward, added", te(which, 11)),
             ("te, two steps (all logits)", te(which + 2, 3)),
             ("PyTorch eager", torch_of(lambda x, w, l: F.cross_entropy(F.linear(x, w), l))),
             ("PyTorch eager, f32 loss", torch_of(lambda x, w, l: F.cross_entropy(F.linear(x, w).float(), l))),
             ("PyTorch compile", torch_of(compiled)),
             (f"PyTorch, chunks of {least}", torch_of(lambda x, w, l: Chunked.apply(x, w, l, least, chunk_step))),
             (f"PyTorch, compiled chunks of {least}", torch_of(lambda x, w, l: Chunked.apply(x, w, l, least, step)))]
    for text, open_ in cases[:1] + [case for case in cases[1:] if case[0].startswith(VARIANTS)]:
        if time.monotonic() - START > SECONDS:
            note(f"{text}: no time left")
            continue
        try:
            ours[text], memory[text] = open_()
            for _ in range(2):
                ours[text]()
            torch.cuda.synchronize()
        except Exception as e:
            note(f"{text}: {type(e).__name__}: {str(e)[:200]}")
            ours.pop(text, None)
            torch.cuda.empty_cache()
        wx.grad = xx.grad = None
    ours["te, loss in backward"].bind()
    ours["te, loss in backward"]()
    note("opened; " + ("backward computes the loss" if is_deferred(which) else "forward computes the loss, although the batch allows backward to"))

    # check the results
    ref_loss = F.cross_entropy(F.linear(x, w).float(), labels).item()
    for text in [t for t in ours if t.startswith("te, loss") and "added" not in t]:
        loss.zero_(), grad.fill_(float("nan")), dx.zero_()
        ours[text].bind()
        ours[text]()
        torch.cuda.synchronize()
        g = wx.grad
        if g is None:
            F.cross_entropy(F.linear(xx, wx).float(), labels).backward()
            g = wx.grad
        d = (grad - g.float()).norm() / g.float().norm()
        e = (dx.float() - xx.grad.float()).norm() / xx.grad.float().norm()
        print(f"  {text}: loss {loss.mean().item():.6f} (PyTorch {ref_loss:.6f}); dW {d.item():.2e} and dx {e.item():.2e} away from PyTorch's")
    wx.grad = xx.grad = None

    times = {text: [] for text in ours}
    for r in range(ROUNDS + 1):
        for text, once in ours.items():
            if isinstance(once, Te):
                once.bind()
            once()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            for _ in range(3):
                once()
            b.record()
            torch.cuda.synchronize()
            wx.grad = xx.grad = None
            if r:
                times[text].append(a.elapsed_time(b) / 3)
    base = statistics.median(times["three bare products"])
    for text, t in times.items():
        m = statistics.median(t)
        print(f"  {text:36s} {m:8.3f} ms ({min(t):.3f} to {max(t):.3f})  {m / base:6.3f} of the products   {memory[text] / 2**20:8.1f} MiB  {memory[text] / share:6.2f} of a sixteenth")
    sys.stdout.flush()


check(opened(torch.cuda.current_stream().cuda_stream))
for i, s in enumerate(SHAPES):
    if ONLY in s[0]:
        shape(i, *s)
        torch.cuda.empty_cache()
