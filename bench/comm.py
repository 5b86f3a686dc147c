#!/usr/bin/env python3
"""Collectives between the GPUs of one host, compared with NCCL and PyTorch's symmetric memory (without multicast): bf16, random data.

    COMMIT=... torchrun --nproc-per-node N bench/comm.py libcomm.so[,OTHER.so...] [OUT.tsv [tune] [gemms] [patterns] [blocks] [sums]]

libcomm.so: bench/comm.cu as a library. Further libraries, compiled with other options, run the all-reduces as `ours OTHER`.

Each figure is the time of one call within a captured CUDA graph of many calls: the median over the rounds, and of that the maximum over the
ranks. In each round all candidates run, in random order. `floor` is the time to send a rank's bytes at 450 GB/s, plus 1.3 us for each transfer
over the link. A ratio is the library's time over that of the fastest other candidate: below 1, the library is faster. `tune` tries several grid
sizes, too. Exit code 1: a result is wrong.

It then compares GEMMs that overlap collectives (rows x out x in of each rank) with the GEMM alone, PyTorch's and the library's own kernel; and,
if the library was compiled for this number of ranks, a GPT layer with sequence parallelism with the same layer without its collectives and with
one GPU, kernel by kernel. `gemms`: only these GEMMs and the layer; `blocks`: only the layer; `patterns`: only fused collective patterns; `sums`:
only all-reduces.
"""
import ctypes
import os
import random
import statistics
import sys

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

KIB = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)
HIDDEN, PART, ROWS = 8192, 4096, (1, 8, 64, 512, 2048)  # as in comm.cu
CALLS, ROUNDS, WARM = 40, 13, 3  # calls of a graph, rounds, warm-up rounds
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BF16 = 0, 1, 2, 1
LINK, WAY = 450e3, 1.3  # bandwidth of the link in bytes a us; latency of a transfer in us

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
name = dist.group.WORLD.group_name
tsv = open(sys.argv[2], "w") if rank == 0 and len(sys.argv) > 2 else None
if tsv:
    print(f"# {ranks} x {torch.cuda.get_device_name()}, commit {os.environ.get('COMMIT', 'unknown')}, torch {torch.__version__}", file=tsv)
    print("what", "ranks", "KiB", "floor", "microseconds of each", "ratio", sep="\t", file=tsv, flush=True)
tune, only_gemms, only_patterns, only_blocks, only_sums = (what in sys.argv[3:] for what in ("tune", "gemms", "patterns", "blocks", "sums"))
only_gemms |= only_blocks
SHAPES = ((8192, 14336, 8192), (8192, 4096, 4096))  # as in comm.cu


def library(path):
    lib = ctypes.CDLL(os.path.abspath(path))
    lib.comm_open.argtypes, lib.comm_open.restype = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64], ctypes.c_char_p
    lib.comm_run.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p]
    lib.comm_pattern.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 3 + [ctypes.c_int, ctypes.c_void_p]
    lib.comm_gemm_sends.restype = ctypes.c_int64
    lib.comm_same_dropout.restype = ctypes.c_char_p
    lib.comm_pattern.restype = lib.comm_run.restype = lib.comm_check.restype = ctypes.c_char_p
    lib.comm_gemm.argtypes, lib.comm_gemm.restype = [ctypes.c_int] * 4 + [ctypes.c_void_p] * 7, ctypes.c_char_p
    lib.comm_overlapped.restype = ctypes.c_int64
    lib.comm_block.argtypes, lib.comm_block.restype = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 5, ctypes.c_char_p
    lib.comm_force.argtypes = [ctypes.c_int64, ctypes.c_int]
    return lib


libs = {os.path.splitext(os.path.basename(path))[0]: library(path) for path in sys.argv[1].split(",")}
lib = next(iter(libs.values()))
wrong = 0


def check(text):
    if text:
        raise RuntimeError(f"rank {rank}: {text.decode()}")


def say(line, *columns):
    if rank == 0:
        print(line, flush=True)
        if tsv:
            print(*columns, sep="\t", file=tsv, flush=True)


def ours(kind, y, x, count, of=lib):
    check(of.comm_run(kind, y.data_ptr(), x.data_ptr(), count, BF16, torch.cuda.current_stream().cuda_stream))


def graph_of(f, calls):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            f()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            f()
    return graph


def measure(candidates, calls=CALLS):
    """{candidate: microseconds of a call}"""
    graphs = {candidate: graph_of(f, calls) for candidate, f in candidates.items()}
    us = {candidate: [] for candidate in candidates}
    for round_ in range(WARM + ROUNDS):
        order = list(graphs.items())
        random.Random(round_).shuffle(order)  # a GPU at its power limit is faster after a candidate that waits for the link
        for candidate, graph in order:
            dist.barrier()
            torch.cuda.synchronize()
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            b.synchronize()
            if round_ >= WARM:
                us[candidate].append(1e3 * a.elapsed_time(b) / calls)
    slowest = torch.tensor([statistics.median(t) for t in us.values()], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return dict(zip(us, slowest.tolist()))


def table(what, kib, us, floor):
    mine = us["ours"]
    best = min(t for candidate, t in us.items() if candidate not in ("ours",) and not candidate.startswith("ours "))
    text = "  ".join(f"{candidate} {t:.2f}" for candidate, t in us.items())
    say(f"{what:14s} {kib:6d} KiB  floor {floor:6.2f}  {text}  ratio {mine / best:.3f}", what, ranks, kib, f"{floor:.2f}",
        *(f"{candidate}={t:.2f}" for candidate, t in us.items()), f"{mine / best:.3f}")


def forced(one_shot, blocks, f):
    def run():
        lib.comm_force(one_shot, blocks)
        f()
        lib.comm_force(-1, 0)
    return run


def all_reduce(kib):
    global wrong
    n = kib * 512
    x, y, other = torch.randn(n, device="cuda", dtype=torch.bfloat16), torch.empty(n, device="cuda", dtype=torch.bfloat16), None
    want = x.clone()
    dist.all_reduce(want)
    other = torch.zeros(n, device="cuda", dtype=torch.bfloat16)
    shared = symmetric.empty(n, device="cuda", dtype=torch.bfloat16)
    symmetric.rendezvous(shared, dist.group.WORLD)
    shared.zero_()
    mine = lambda: ours(ALL_REDUCE, y, x, n)
    candidates = {
        "ours": mine,
        "nccl": lambda: dist.all_reduce(other),
        "symmetric one-shot": lambda: torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", name),
        "symmetric two-shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", name),
        "ours two-shot": forced(0, 0, mine),
    }
    if ranks > 2 and kib * ranks <= 16384:
        candidates["ours one-shot"] = forced(kib << 10, 0, mine)
    outs = {}
    for stem, other_lib in list(libs.items())[1:]:
        outs[stem] = torch.empty_like(y)
        candidates[f"ours {stem}"] = lambda of=other_lib, out=outs[stem]: ours(ALL_REDUCE, out, x, n, of)
    if tune:
        for blocks in (32, 64, 96, 264):
            candidates[f"ours {blocks} blocks"] = forced(-1, blocks, mine)
    sent = 1 if ranks == 2 else 2 * (ranks - 1) / ranks
    table("all_reduce", kib, measure(candidates), min(2 * WAY + sent * kib * 1024 / LINK, WAY + (ranks - 1) * kib * 1024 / LINK))
    for stem, got in {next(iter(libs)): y, **outs}.items():
        if ranks == 2 and not torch.equal(want, got) or not torch.allclose(want.float(), got.float(), rtol=0.03, atol=0.03):
            wrong += 1
            print(f"rank {rank}: {stem}: all_reduce of {kib} KiB: {(want != got).sum().item()} of {n} differ from NCCL's", flush=True)


def patterns(rows):
    """Fused collective patterns (see run_pattern in comm.cu) against the same lists unfused, PyTorch, and the all_reduce or the GEMM alone."""
    global wrong
    torch.manual_seed(rank)
    n = rows * HIDDEN
    x, ones = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16), torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
    summed, other, residual = torch.empty_like(x), x.clone(), torch.randn_like(x)
    part, local = torch.randn(rows, PART, device="cuda", dtype=torch.bfloat16), rows // ranks
    weight = torch.randn(HIDDEN, PART, device="cuda", dtype=torch.bfloat16) / 64
    ys = {pattern: [torch.zeros(rows, PART if pattern == 3 else HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2)] for pattern in range(4)}
    product = torch.empty_like(part)
    norm = lambda x: torch.nn.functional.rms_norm(x, (HIDDEN,), ones, 1e-5)

    def call(pattern, unfused):
        check(lib.comm_pattern(pattern, unfused, ys[pattern][unfused].data_ptr(), (part if pattern == 1 else x).data_ptr(), residual.data_ptr(), rows,
                           torch.cuda.current_stream().cuda_stream))

    def torch_reduced():
        dist.all_reduce(other)
        return norm(other + x)

    def torch_linear():
        product = torch.mm(part, weight.t())
        dist.all_reduce(product)
        return norm(product + residual)

    def torch_boundary():
        dist.reduce_scatter_tensor(summed[:local], x)
        dist.all_gather_into_tensor(other, norm(summed[:local] + residual[:local]))
    shapes = {0: ("all_reduce_add_norm", {"all_reduce alone": lambda: ours(ALL_REDUCE, summed, x, n), "nccl and torch": torch_reduced}),
              1: ("linear_all_reduce_add_norm", {"GEMM alone": lambda: torch.mm(part, weight.t()), "nccl and torch": torch_linear}),
              2: ("reduce_scatter_add_norm_all_gather", {"all_reduce alone": lambda: ours(ALL_REDUCE, summed, x, n), "nccl and torch": torch_boundary}),
              3: ("the same and a linear in FP8", {"ours in 16 bits, GEMM torch": lambda: (call(2, 0), torch.mm(x, weight, out=product))})}
    for pattern, (title, others) in shapes.items():
        if pattern >= 2 and not local:
            continue
        before = lib.comm_gemm_sends()
        us = measure({"ours": lambda: call(pattern, 0), "ours unfused": lambda: call(pattern, 1), **others}, 100 if rows < 512 else 20)
        sent = lib.comm_gemm_sends() - before
        alone = next(iter(others))
        say(f"{title} {rows} x {HIDDEN}  " + "  ".join(f"{candidate} {t:.2f}" for candidate, t in us.items()) +
            f"  over {alone} {us['ours'] / us[alone]:.3f}" + (f"  {sent} sent" if pattern == 1 else ""), title, ranks, n >> 9, "",
            *(f"{candidate}={t:.2f}" for candidate, t in us.items()), f"{us['ours'] / us[alone]:.3f}")
        few = rows <= torch.cuda.get_device_properties(rank).multi_processor_count  # for more rows the norm's other kernel sums in another order
        if not (torch.equal(*ys[pattern]) if few else torch.allclose(*ys[pattern], rtol=0.03, atol=0.03)):
            wrong += 1
            print(f"rank {rank}: {title} of {rows} rows: {(ys[pattern][0] != ys[pattern][1]).sum().item()} differ from the unfused list's", flush=True)
    total, gamma = x.float(), ones.float()
    dist.all_reduce(total)
    wants = {0: torch.nn.functional.rms_norm(total + x.float(), (HIDDEN,), gamma, 1e-5), 2: torch.empty_like(total)}
    if local:
        mine = total[rank * local : (rank + 1) * local] + residual[:local].float()
        dist.all_gather_into_tensor(wants[2], torch.nn.functional.rms_norm(mine, (HIDDEN,), gamma, 1e-5))
    for pattern in (0, 2) if local else (0,):
        if not torch.allclose(ys[pattern][0].float(), wants[pattern], rtol=0.03, atol=0.03):
            wrong += 1
            print(f"rank {rank}: {shapes[pattern][0]} of {rows} rows is wrong", flush=True)


def reduce_scatter_and_all_gather(kib):
    """kib: the size of the whole tensor."""
    global wrong
    n = kib * 512
    part = n // ranks
    x, y = torch.randn(n, device="cuda", dtype=torch.bfloat16), torch.empty(n, device="cuda", dtype=torch.bfloat16)
    other = torch.empty_like(y)
    sent = (ranks - 1) / ranks * kib * 1024 / LINK
    us = measure({"ours": lambda: ours(REDUCE_SCATTER, y, x, part), "nccl": lambda: dist.reduce_scatter_tensor(other[:part], x)})
    table("reduce_scatter", kib, us, WAY + sent)
    good = torch.equal(y[:part], other[:part]) if ranks == 2 else torch.allclose(y[:part].float(), other[:part].float(), rtol=0.03, atol=0.03)
    us = measure({"ours": lambda: ours(ALL_GATHER, y, x, part), "nccl": lambda: dist.all_gather_into_tensor(other, x[:part])})
    table("all_gather", kib, us, WAY + 2 * sent)
    if not good or not torch.equal(y, other):
        wrong += 1
        print(f"rank {rank}: reduce_scatter or all_gather of {kib} KiB differs from NCCL's", flush=True)


def gemm(small):
    """An all-gather followed by a GEMM, and a GEMM followed by a reduce-scatter."""
    global wrong
    torch.manual_seed(rank)
    rows, out, wide = SHAPES[small]
    local = rows // ranks
    new = lambda *shape: torch.empty(*shape, device="cuda", dtype=torch.bfloat16)
    x, weight, grad = torch.randn_like(new(rows, wide)), torch.randn_like(new(out, wide)) / wide**0.5, torch.zeros(out, wide, device="cuda")
    dy, dx, y = torch.randn_like(new(rows, out)), new(rows, wide), {k: new(rows, out) for k in ("gather", "scatter", "alone", "other")}
    whole, part, transposed = new(rows, wide), new(local, out), weight.t()
    at = lambda t: t.data_ptr()

    def ours_of(kind, saves=0, serial=0, backward=0):
        to = y[("gather", "scatter", "alone")[kind]]
        check(lib.comm_gemm(small, kind, saves, serial, at(to), at(x), at(weight), at(dx), at(dy) if backward else 0, at(grad),
                               torch.cuda.current_stream().cuda_stream))

    def torch_gather():
        dist.all_gather_into_tensor(whole, x[:local])
        torch.mm(whole, transposed, out=y["other"])

    def torch_scatter():
        torch.mm(x, transposed, out=y["other"])
        dist.reduce_scatter_tensor(part, y["other"])
    for kind in range(3):  # the first call allocates
        ours_of(kind)
    candidates = {
        "gemm torch": lambda: torch.mm(x, transposed, out=y["other"]),
        "gemm ours": lambda: ours_of(2),
        "gather ours": lambda: ours_of(0),
        "gather nccl": torch_gather,
        "scatter ours": lambda: ours_of(1),
        "scatter nccl": torch_scatter,
        "gather saved": lambda: ours_of(0, saves=1),
        "gather serial": lambda: ours_of(0, serial=1),
        "scatter serial": lambda: ours_of(1, serial=1),
    }
    fused = {
        "gather torch async": lambda: torch.ops.symm_mem.fused_all_gather_matmul(x[:local], [transposed], 0, name),
        "scatter torch async": lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(x, transposed, "sum", 0, name),
    }
    for candidate, f in fused.items():
        try:
            f()
            torch.cuda.synchronize()
            candidates[candidate] = f
        except Exception as e:  # not supported by this build or machine
            say(f"{candidate}: {str(e).splitlines()[0][:200]}", "#", candidate, "failed")
    before = lib.comm_overlapped()
    us = measure(candidates, 20 if small else 8)
    alone = min(us["gemm torch"], us["gemm ours"])
    for candidate, t in us.items():
        say(f"{rows}x{out}x{wide} {candidate:20s} {t:8.1f} us  {t / alone:.3f} of the GEMM alone", "gemm", ranks, f"{rows}x{out}x{wide}", candidate, f"{t:.1f}",
            f"{t / alone:.3f}")
    say(f"{lib.comm_overlapped() - before} calls overlapped", "#", "overlapped", lib.comm_overlapped() - before)
    # backward: the collective overlaps dgrad; wgrad follows
    ours_of(0, saves=1)
    ours_of(1, saves=1)
    us = measure({"gather backward ours": lambda: ours_of(0, backward=1), "gather backward serial": lambda: ours_of(0, backward=1, serial=1),
               "scatter backward ours": lambda: ours_of(1, backward=1), "scatter backward serial": lambda: ours_of(1, backward=1, serial=1)}, 10 if small else 5)
    for candidate, t in us.items():
        say(f"{rows}x{out}x{wide} {candidate:22s} {t:8.1f} us", "gemm", ranks, f"{rows}x{out}x{wide}", candidate, f"{t:.1f}", "")
    torch_gather()
    ours_of(0)
    close = lambda a, b: torch.allclose(a.float(), b.float(), rtol=0.03, atol=0.03)
    good = close(y["gather"], y["other"])
    torch_scatter()
    ours_of(1)
    if not good or not close(y["scatter"][:local], part):
        wrong += 1
        print(f"rank {rank}: {rows}x{out}x{wide}: gather {'right' if good else 'wrong'}, scatter off by {(y['scatter'][:local].float() - part.float()).abs().max().item()}",
              flush=True)


def account(title, call, steps=4):
    """Print the time of each kernel of a step, in order, the gaps between them, and the copies that run at the same time."""
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    with profile:
        for _ in range(steps):
            call()
        torch.cuda.synchronize()
    if rank:
        return
    on_device = [e for e in profile.profiler.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CUDA]
    events = sorted(on_device, key=lambda e: e.start_ns())
    step = [e for e in events if "emcpy" not in e.name() and "emset" not in e.name()]
    count = len(step) // steps
    assert count * steps == len(step), f"{len(step)} kernels of {steps} steps"
    end = lambda e: e.start_ns() + e.duration_ns()
    # a kernel's time counts from the end of the kernel before, because with PDL it may start earlier and wait
    for k in range(count):
        taken = [max(end(step[i * count + k]) - max(step[i * count + k].start_ns(), end(step[i * count + k - 1])), 0) for i in range(1, steps)]
        gap = [max(step[i * count + k].start_ns() - end(step[i * count + k - 1]), 0) for i in range(1, steps)]
        us, gaps = sum(taken) / len(taken) / 1e3, sum(gap) / len(gap) / 1e3
        name = step[k].name()[:110]
        say(f"    {us:8.1f} us, {gaps:6.1f} before it  {name}", "#", title, f"{us:.1f}", f"{gaps:.1f} before it", name)
    total = (end(step[-1]) - end(step[count - 1])) / (steps - 1) / 1e3
    copies = sum(e.duration_ns() for e in events if "emcpy" in e.name()) / steps / 1e3
    say(f"    {total:8.1f} us in all, with {copies:.1f} us of copies beside them", "#", title, f"{total:.1f}", f"in all, copies beside them {copies:.1f}")


def block(fp8, sixteen=None):
    """Forward and backward of a GPT layer with sequence parallelism, 4 x 2048 tokens. Returns y and dx. fp8: under fp8_delayed; `sixteen` then
    holds y and dx of bf16: the overlapped and the serial results, which differ in their last bits, must be equally far from those."""
    global wrong
    torch.manual_seed(rank)
    x, dy = (torch.randn(8192, 4096, device="cuda").bfloat16() for _ in range(2))
    results = {how: (torch.empty_like(x), torch.empty_like(x)) for how in range(5)}
    call = lambda how: check(lib.comm_block(fp8, how, *(t.data_ptr() for t in (*results[how], x, dy)), torch.cuda.current_stream().cuda_stream))
    call(3)
    check(lib.comm_same_dropout())
    before = lib.comm_overlapped()
    call(0)
    if fp8:  # the first call computes the scales
        before = lib.comm_overlapped()
        call(0)
    torch.cuda.synchronize()  # the measurement uses other streams
    say(f"{lib.comm_overlapped() - before} calls overlapped", "#", "overlapped", lib.comm_overlapped() - before)
    call(2)  # records the copies that call(4) repeats
    torch.cuda.synchronize()
    assert all(t[:8192 // ranks].isfinite().all() for t in results[2])

    def with_copies():  # a GPU at its power limit is faster after copies, so both sides of the comparison make them
        call(0)
        call(4)
    us = measure({"ours": lambda: call(0), "serial": lambda: call(1), "ours and copies": with_copies, "copies of local rows": lambda: call(2),
               "one GPU": lambda: call(3), "copies": lambda: call(4)}, 3)
    exposed = us["ours and copies"] - us["copies of local rows"]
    us["without collectives"] = us["ours"] - exposed
    exposed /= us["without collectives"]
    for how in (0, 1):
        torch.cuda.synchronize()
        check(lib.comm_same_dropout())
        call(how)
    torch.cuda.synchronize()
    local = 8192 // ranks
    far = lambda all_a, all_b: max(((a[:local].float() - b[:local].float()).norm() / b[:local].float().norm()).item() for a, b in zip(all_a, all_b))
    off = far(results[0], results[1])
    title = "layer in FP8" if fp8 else "layer"
    say(f"{title} forward + backward  " + "  ".join(f"{candidate} {t:.1f}" for candidate, t in us.items()) +
        f"  exposed {100 * exposed:.1f}%  of one GPU's time / ranks {us['ours'] * ranks / us['one GPU']:.3f}  relative difference {off:.1e}", title, ranks, "4x2048",
        *(f"{candidate}={t:.1f}" for candidate, t in us.items()), f"exposed={100 * exposed:.1f}%", f"{us['ours'] * ranks / us['one GPU']:.3f}")
    if fp8:
        far0, far1 = far(results[0], sixteen), far(results[1], sixteen)
        say(f"from 16 bits {far0:.4f} and {far1:.4f}", "#", "from 16 bits", f"{far0:.4f}", f"{far1:.4f}")
    if not (off < 0.01 if not fp8 else far0 < 1.05 * far1 and far1 < 0.2):
        wrong += 1
    numbers = tuple(t.clone() for t in results[0])
    try:
        account(title, lambda: call(0))
        account(title + " with copies of local rows", lambda: call(2))
    except Exception as e:  # profiling is not permitted
        say(f"no account: {e}")
    return numbers


for stem, each in libs.items():
    file = [f"/tmp/te_comm_{os.getpid()}_{stem}" if rank == 0 else None]
    dist.broadcast_object_list(file)
    text = each.comm_open(rank, ranks, file[0].encode(), 16 << 20, 256 << 20)
    if text:
        raise RuntimeError(f"rank {rank}: {stem}: {text.decode()}")
with torch.no_grad():
    for kib in () if only_gemms or only_patterns else KIB:
        all_reduce(kib)
    for rows in () if only_gemms or only_sums else ROWS:
        patterns(rows)
    for kib in () if only_gemms or only_patterns or only_sums else KIB:
        reduce_scatter_and_all_gather(kib)
    for small in () if only_patterns or only_blocks or only_sums else (1, 0):
        gemm(small)
    if ranks == lib.comm_block_ranks() and not only_patterns and not only_sums:
        block(1, block(0))
for each in libs.values():
    check(each.comm_check())
torch.cuda.synchronize()
for each in libs.values():
    each.comm_close()
total = torch.tensor([wrong], device="cuda")
dist.all_reduce(total)
say(f"{int(total.item())} wrong", "wrong", int(total.item()))
dist.destroy_process_group()
sys.exit(1 if total.item() else 0)
