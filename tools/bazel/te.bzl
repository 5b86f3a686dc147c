"""The tests and examples of this tree: each source is one binary for the host and, where nvcc is found, one for CUDA."""

load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_cc//cc:cc_test.bzl", "cc_test")
load("@te_machine//:defs.bzl", "MACRO_COPTS")
load(":cuda.bzl", "te_cuda_binary", "te_cuda_test")

# Threads, and this machine's vector instructions unless --config=portable. What is common to all is in .bazelrc.
_COPTS = ["-fopenmp"] + MACRO_COPTS + select({
    "//tools/bazel:portable": [],
    "//conditions:default": ["-march=native"],
})

# Tests on the host: calls in place of inlining, or one file takes up to a minute.
_CALLS = ["-DTE_KEEP_CALLS"] + select({
    "//tools/bazel:asan": ["-O0"], # a third of the time to compile
    # two thirds of -O1's, and loops take a third longer; clang's is its -O1. gcc does not see there what is always written
    "//conditions:default": ["-Og", "-Wno-maybe-uninitialized", "-Wno-unknown-warning-option"],
})

# These run what users run, and so do the examples. Under the sanitizers (-O1) their loops take minutes without optimisation,
_AS_USERS = ["attention_test", "checkpoint_test", "gemm_fp8_test", "gemm_tune_test", "linear_loss_test", "peers_test", "hot_path_test"]

# and this one's, too; the 34 forms of attention that it makes take a compiler ten times as long as users compile them.
_CALLS_OPTIMISED = ["attention_options_test"]

# misuse_test hands over values that no enumerator has, and looks at what the library makes of them.
_MISUSE = select({
    "//tools/bazel:asan": ["-fno-sanitize=enum"],
    "//conditions:default": [],
})

# Tests that make many models, by nvcc, whose -O is for host code alone; without the kernels of te/linear/impl/linear_epilogue.h, which must be inlined.
# With -Ofc=max every kernel calls what it otherwise has inlined, and ptxas goes through all functions of the file for each
# kernel: 470 kernels take it 10 s and 2.5 GB, 820 a minute and 12 GB. So a test has some 500 kernels, 850 at most.
_MANY_MODELS_CUDA = ["-O0", "-Ofc=max", "-DTE_KEEP_CALLS"]

# Where nothing will run (--config=quick) the other tests and the benches are compiled in a sixth of the time. For a GPU they
# are compiled as users compile, and the examples always are.
CUDA_LEVEL = select({
    "//tools/bazel:quick": ["-O0", "-Ofc=max"],
    "//conditions:default": ["-O3", "-lineinfo"],
})

# And tests go as far as PTX but for these, of kernels by themselves: ptxas and nvcc's pass over host code see the lists' kernels in the examples and benches.
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
    """<name>_test.cc: a Catch2 test, on the host and as <name>_test_cuda. <name>_test.c: plain C11, passes with exit code 0. data: files that it reads, on the host."""
    name, extension = src.rsplit(".", 1)
    if extension == "c":
        _host(cc_test, name, [src] + hdrs, [])
        return
    many = _begins(name, ["ops_", "patterns_", "cross_", "plan_", "errors_", "recompute_", "widths_", "formats_", "joins_", "layers_", "recipe_", "freeze_", "inference_", "misuse_test"])
    # the same code with another dtype: by gcc alone (.bazelrc); ops_bf16_test has every op in 16 bits under the sanitizers
    again = name.endswith("_f16_test") or (name.endswith("_bf16_test") and name != "ops_bf16_test")
    tags = ["again"] if again else []
    calls = [] if name in _AS_USERS else ["-DTE_KEEP_CALLS", "-O1"] if name in _CALLS_OPTIMISED else _CALLS
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
    """An example or a bench. With a .cu among its sources: one mixed binary. Else: <name> on the host and, if `cuda`, <name>_cuda."""
    if [src for src in srcs if src.endswith(".cu")]:
        te_cuda_binary(name, srcs, hdrs, deps = ["//:te"], copts = ["-std=c11"], **kwargs)
        return
    _host(cc_binary, name, srcs + hdrs, [], tags = tags)
    if cuda:
        te_cuda_binary(name + "_cuda", cuda_srcs = srcs, hdrs = hdrs, deps = ["//:te"], tags = tags, **kwargs)
