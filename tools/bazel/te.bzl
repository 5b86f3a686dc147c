"""The tests and examples of this tree: each source is one binary for the host and, where nvcc is found, one for CUDA."""

load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_cc//cc:cc_test.bzl", "cc_test")
load("@te_machine//:defs.bzl", "MACRO_COPTS")
load(":cuda.bzl", "te_cuda_binary", "te_cuda_test")

# OpenMP, and this machine's vector instructions unless --config=portable. Options for all targets are in .bazelrc.
_COPTS = ["-fopenmp"] + MACRO_COPTS + select({
    "//tools/bazel:portable": [],
    "//conditions:default": ["-march=native"],
})

# Compiles in two thirds of the time of -O1, and loops take a third longer (clang's -Og is its -O1). At -Og gcc's maybe-uninitialized warns about
# variables that are always written.
_OG = ["-Og", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"]

# Tests on the host call functions instead of inlining them (TE_KEEP_CALLS); with inlining, one file takes up to a minute to compile.
_CALLS = ["-DTE_KEEP_CALLS"] + select({
    "//tools/bazel:asan": ["-O0"], # compiles in a third of the time
    "//conditions:default": _OG,
})

# These tests, and the examples, are compiled as users compile. Without optimisation their loops would take minutes; under the sanitizers
# they are compiled with -O1.
_AS_USERS = ["attention_test", "checkpoint_test", "gemm_fp8_test", "gemm_tune_test", "linear_loss_test", "peers_test", "hot_path_test"]

# The loops of this test would take minutes, too. But it has 34 variants of attention, and with inlining they take ten times as long to compile.
_CALLS_OPTIMISED = ["attention_options_test"]

# Under the sanitizers these tests run for three to ten times as long as they compile at -O0. -O1 compiles in two to three times the time of -O0,
# and runs in a third: without cache_8bit_test they take 118 s of processor time instead of 177.
_LOOPS = ["adamw_test", "attention_bias_test", "attention_fp8_output_test", "attention_value_test", "cache_8bit_test", "cache_test"]
_CALLS_LOOPS = ["-DTE_KEEP_CALLS"] + select({
    "//tools/bazel:asan": ["-O1"],
    "//conditions:default": _OG,
})

# misuse_test passes values outside of enums to the library, to test how it handles them.
_MISUSE = select({
    "//tools/bazel:asan": ["-fno-sanitize=enum"],
    "//conditions:default": [],
})

# nvcc's options for tests with many models. -O0 is for host code only. With -Ofc=max kernels call functions that are otherwise inlined.
# TE_KEEP_CALLS leaves out the kernels of te/linear/impl/linear_epilogue.h, which must be inlined. ptxas looks through all functions of a file
# for each kernel, so its time grows fast: 470 kernels take it 10 s and 2.5 GB, 820 kernels a minute and 12 GB. So a test has some 500 kernels,
# at most 850.
_MANY_MODELS_CUDA = ["-O0", "-Ofc=max", "-DTE_KEEP_CALLS"]

# With --config=quick, when nothing will run, the other tests and the benches are compiled without optimisation, in a sixth of the time. For a
# GPU they are compiled as users compile. The examples are always compiled as users compile.
CUDA_LEVEL = select({
    "//tools/bazel:quick": ["-O0", "-Ofc=max"],
    "//conditions:default": ["-O3", "-lineinfo"],
})

# With --config=quick tests are compiled only to PTX, except these, which test kernels by themselves. For the kernels of lists, the examples and
# benches check that ptxas and nvcc's host compiler accept them.
_OF_KERNELS = ["adamw_", "attention_", "dtype_", "fp8_", "gemm_", "grad_norm_", "peers_", "quantize_"]

def _begins(name, prefixes):
    return [prefix for prefix in prefixes if name.startswith(prefix)]

def _host(rule, name, srcs, deps, copts = [], **kwargs):
    std = "-std=c++17" if srcs[0].endswith(".cc") else "-std=c11"
    rule(
        name = name,
        srcs = srcs,
        copts = [std] + _COPTS + copts,
        linkopts = ["-fopenmp"],
        linkstatic = True,
        deps = deps + ["//:te", "@te_machine//:cblas"],
        **kwargs
    )

def te_test(src, hdrs = [], data = []):
    """<name>_test.cc: a Catch2 test, on the host and as <name>_test_cuda. <name>_test.c: a plain C11 test, which passes with exit code 0.
    data: files that the test reads on the host."""
    name, extension = src.rsplit(".", 1)
    if extension == "c":
        _host(cc_test, name, [src] + hdrs, [])
        return
    many = _begins(name, ["ops_", "patterns_", "cross_", "plan_", "errors_", "recompute_", "widths_", "formats_", "joins_", "layers_", "recipe_", "freeze_", "inference_", "misuse_test"])
    # "again": the same code with another dtype, which .bazelrc runs only with gcc; under the sanitizers ops_bf16_test covers every op in 16 bits
    again = name.endswith("_f16_test") or (name.endswith("_bf16_test") and name != "ops_bf16_test")
    tags = ["again"] if again else []
    if name == "symmetric_memory_test": # its ranks are threads that wait for each other in loops, so other tests must not take their cores
        tags = ["cpu:2"]
    calls = _CALLS
    if name in _AS_USERS:
        calls = []
    elif name in _CALLS_OPTIMISED:
        calls = ["-DTE_KEEP_CALLS", "-O1"]
    elif name in _LOOPS:
        calls = _CALLS_LOOPS
    _host(cc_test, name, [src] + hdrs, [":catch_main", ":reference"], calls + (_MISUSE if name == "misuse_test" else []), tags = tags, data = data)
    te_cuda_test(
        name + "_cuda",
        cuda_srcs = [src],
        hdrs = hdrs,
        deps = [":catch_main", ":reference", "//:te"],
        linkstatic = True,
        quick_ptx = not _begins(name, _OF_KERNELS),
        cuda_level = _MANY_MODELS_CUDA if many else CUDA_LEVEL,
    )

def te_binary(name, srcs, hdrs = [], cuda = True, tags = [], **kwargs):
    """An example or a bench. With a .cu among the sources it is one binary of C and CUDA; else <name> for the host and, if `cuda`, <name>_cuda."""
    if [src for src in srcs if src.endswith(".cu")]:
        te_cuda_binary(name, srcs, hdrs, deps = ["//:te"], copts = ["-std=c11"], **kwargs)
        return
    _host(cc_binary, name, srcs + hdrs, [], tags = tags)
    if cuda:
        te_cuda_binary(name + "_cuda", cuda_srcs = srcs, hdrs = hdrs, deps = ["//:te"], tags = tags, **kwargs)
