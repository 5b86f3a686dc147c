"""Binaries and tests with CUDA kernels.

    te_cuda_binary(name = "app", srcs = ["main.c", "model.cu"], hdrs = ["model.h"], deps = ["//:te"])

Where no nvcc is found these targets exist but are skipped.
"""

load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_cc//cc:cc_test.bzl", "cc_test")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")
load("@te_machine//:defs.bzl", "CUDA_HOME", "NVCC_MACRO_COPTS")

_QUICK = str(Label("//tools/bazel:quick"))
_NEEDS_NVCC = [] if CUDA_HOME else [Label("@te_machine//:nvcc")]

def _objects(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    objects = []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file("%s/%s.%s" % (ctx.label.name, src.basename, "ptx" if ctx.attr.ptx else "o"))
        args = ctx.actions.args()
        args.add_all(["-std=c++17"] + NVCC_MACRO_COPTS + ctx.attr.level)
        for arch in ctx.attr.archs:
            args.add("-gencode=arch=%s,code=%s" % (arch.replace("sm_", "compute_"), arch))
        for c in contexts:
            args.add_all(c.defines, format_each = "-D%s")
            args.add_all(depset(transitive = [c.quote_includes, c.includes, c.system_includes]), before_each = "-I")
        args.add_all(ctx.attr.copts)
        args.add_all(["-x", "cu", "-ptx" if ctx.attr.ptx else "-c", src, "-o", out])
        ctx.actions.run(
            # nvcc names its temporary files by its process number, without a check that the name is free. Each sandbox has its own process
            # numbers, so several nvccs have the same number; in a common /tmp they would overwrite and delete each other's files.
            executable = "/usr/bin/env",
            arguments = ["TMPDIR=" + out.dirname, CUDA_HOME + "/bin/nvcc", args],
            inputs = depset([src], transitive = [headers]),
            outputs = [out],
            mnemonic = "Nvcc",
            progress_message = "Compiling %s with nvcc" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(out)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _objects,
    doc = "Compiles each source by nvcc as CUDA, whatever its file extension: to an object, or to PTX, which takes a third of the time because nvcc skips the host code.",
    attrs = {
        "srcs": attr.label_list(allow_files = True),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "archs": attr.string_list(),
        "level": attr.string_list(),
        "copts": attr.string_list(),
        "ptx": attr.bool(),
    },
)

def te_cuda_binary(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        archs = ["sm_90a"],
        cuda_srcs = None,
        cuda_copts = [],
        cuda_level = ["-O3", "-lineinfo"],
        quick_ptx = False,
        tags = [],
        testonly = False,
        binary = cc_binary,
        **kwargs):
    """A binary of C and CUDA sources.

    Args:
      name: the binary's.
      srcs: C sources for the C compiler and .cu for nvcc.
      hdrs: headers that both may include.
      deps: libraries for both.
      archs: GPU architectures; the binary has code for each, or PTX for a virtual one (compute_90a).
      cuda_srcs: sources that nvcc compiles as CUDA although their name does not end in .cu.
      cuda_copts: further options of nvcc.
      cuda_level: nvcc's optimisation options.
      quick_ptx: with --config=quick, <name>_objects is PTX, and the binary, which is tagged "whole", cannot be built.
      tags: as everywhere in Bazel; "cuda" is added.
      testonly: as everywhere in Bazel.
      binary: cc_binary or cc_test.
      **kwargs: passed to that rule: copts, linkopts, ...
    """
    cuda_srcs = (cuda_srcs or []) + [src for src in srcs if src.endswith(".cu")]
    _cuda_objects(
        name = name + "_objects",
        srcs = cuda_srcs,
        hdrs = hdrs,
        deps = deps,
        archs = archs,
        level = cuda_level,
        copts = cuda_copts,
        ptx = select({_QUICK: quick_ptx, "//conditions:default": False}),
        tags = ["cuda"] + [tag for tag in tags if tag == "manual"],
        target_compatible_with = _NEEDS_NVCC,
        testonly = testonly,
    )
    binary(
        name = name,
        srcs = [name + "_objects"] + hdrs + [src for src in srcs if src not in cuda_srcs],
        deps = deps + [Label("@te_machine//:cuda")],
        tags = tags + ["cuda"] + (["whole"] if quick_ptx else []),
        target_compatible_with = _NEEDS_NVCC,
        testonly = testonly,
        **kwargs
    )

def te_cuda_test(name, tags = [], **kwargs):
    """A test with CUDA sources. `bazel test //...` builds it; `bazel test --config=gpu //...` runs it on a GPU."""
    te_cuda_binary(name, tags = tags + ["gpu"], testonly = True, binary = cc_test, **kwargs)
