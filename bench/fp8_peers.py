#!/usr/bin/env python3
"""FP8 GEMMs compared with PyTorch's (torch._scaled_mm, cuBLASLt's first choice): this GPU, random data, tensorwise scales.

    python3 bench/fp8_peers.py libfp8.so [OUT.tsv]        libfp8.so: bench/fp8.cu as a library

All variants run on the same tensors, of which there are more than the L2 holds, alternately and on a warm chip; the median over the
rounds is taken. Ratios are PyTorch's time over the library's: above 1, the library is faster.
"""
import ctypes
import math
import statistics
import sys

import torch

SHAPES = [(8192, 12288, 4096), (8192, 4096, 4096), (8192, 16384, 4096), (8192, 4096, 16384), (8192, 4096, 12288), (4096, 4096, 11008), (4096, 11008, 4096), (16384, 8192, 4096)]
WEIGHTS = [(12288, 4096, 8192), (4096, 4096, 8192), (16384, 4096, 8192), (4096, 16384, 8192)]
ROUNDS, WARM, SETS = 13, 3, 3
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

lib = ctypes.CDLL(sys.argv[1])
lib.fp8_open.argtypes, lib.fp8_open.restype = [ctypes.c_void_p], ctypes.c_char_p
lib.fp8_run.argtypes, lib.fp8_run.restype = [ctypes.c_int] * 7 + [ctypes.c_void_p] * 4, ctypes.c_char_p
tsv = open(sys.argv[2], "w") if len(sys.argv) > 2 else None


def check(text):
    if text:
        raise RuntimeError(text.decode())


def race(racers, runs):
    """{name: median us} of functions that run alternately. `f(i)` enqueues the i-th run."""
    us = {name: [] for name in racers}
    for f in racers.values():
        for i in range(SETS):
            f(i)
    for round_ in range(WARM + ROUNDS):
        for name, f in racers.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            f(0)
            a.record()
            for i in range(runs):
                f(i)
            b.record()
            b.synchronize()
            if round_ >= WARM:
                us[name].append(1e3 * a.elapsed_time(b) / runs)
    return {name: statistics.median(t) for name, t in us.items()}


def case(m, n, k, weight):
    left = E5M2 if weight else E4M3
    a = [torch.randn(m, k, device="cuda").to(left) for _ in range(SETS)]
    b = [torch.randn(n, k, device="cuda").to(E4M3) for _ in range(SETS)]
    out = [torch.zeros(m, n, device="cuda", dtype=torch.float32 if weight else torch.bfloat16) for _ in range(SETS)]
    inverse = torch.tensor([0.5, 0, 0, 0, 0.25, 0, 0, 0], device="cuda")  # cuBLASLt requires addresses that are multiples of 16 bytes
    one, other = inverse[:1].reshape(()), inverse[4:5].reshape(())

    def ours(own, fast):
        def run(i):
            i %= SETS
            check(lib.fp8_run(own, int(weight), int(weight), fast, m, n, k, out[i].data_ptr(), a[i].data_ptr(), b[i].data_ptr(), inverse.data_ptr()))
        return run

    def theirs(i):
        i %= SETS
        torch._scaled_mm(a[i], b[i].t(), scale_a=one, scale_b=other, out_dtype=torch.bfloat16, use_fast_accum=True)

    racers = {"torch": theirs, "cublaslt": ours(0, 1)} if weight else {"torch": theirs, "own": ours(2, 1), "cublaslt": ours(0, 1), "faster": ours(1, 1)}
    # check that all compute the same numbers as PyTorch
    for name, run in racers.items():
        out[0].zero_()
        run(0)
        if name == "torch":
            should = torch._scaled_mm(a[0], b[0].t(), scale_a=one, scale_b=other, out_dtype=torch.float32, use_fast_accum=False)
        else:
            off = ((out[0].float() - should).norm() / should.norm()).item()
            if not off < 0.02:
                print(f"WRONG {m} x {n} x {k} {name}: off by {off}")
    us = race(racers, max(4, int(2e-3 * 1.2e15 / (2.0 * m * n * k))))
    flops = 2.0 * m * n * k
    print(f"{m:6} x {n:6} x {k:6} {'wgrad f32 +=' if weight else 'bf16':12} " + "  ".join(f"{name} {t:8.1f} us {flops / t / 1e6:5.0f} TFLOP/s {us['torch'] / t:.3f}" for name, t in us.items()), flush=True)
    if tsv:
        for name, t in us.items():
            tsv.write(f"{m}\t{n}\t{k}\t{int(weight)}\t{name}\t{t:.2f}\n")
    return us


def main():
    check(lib.fp8_open(torch.cuda.current_stream().cuda_stream))
    print(torch.cuda.get_device_name(0))
    best = [case(*s, False) for s in SHAPES]
    for name in ("own", "cublaslt", "faster"):
        print(f"geometric mean of torch over {name}: {math.exp(statistics.mean(math.log(u['torch'] / u[name]) for u in best)):.3f}")
    for s in WEIGHTS:
        case(*s, True)
    lib.fp8_print()


if __name__ == "__main__":
    main()
