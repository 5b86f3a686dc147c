"""Finds the CUDA toolkit, a CBLAS and Catch2 on this machine; once, at the first build of a tree."""

def _cuda_home(ctx):
    """The toolkit's folder: $CUDA_HOME ("none" switches CUDA off), /usr/local/cuda, or the nvcc on the PATH; else ""."""
    homes = [ctx.os.environ.get("CUDA_HOME", "")]
    if not homes[0]:
        nvcc = ctx.which("nvcc")
        homes = ["/usr/local/cuda"] + ([str(nvcc.realpath.dirname.dirname)] if nvcc else [])
    for home in homes:
        if home != "none" and ctx.path(home + "/bin/nvcc").exists:
            return home
    return ""

def _has_cblas(ctx):
    """Whether a program that calls OpenBLAS through cblas.h compiles and links."""
    ctx.file("cblas.c", "#include <cblas.h>\nint main(void) { return (int)cblas_sasum(0, 0, 1); }\n")
    cc = ctx.os.environ.get("CC", "cc")
    return ctx.execute([cc, "cblas.c", "-o", "cblas", "-lopenblas"]).return_code == 0

def _macro_copts(ctx, compiler):
    """Options that keep gcc from tracking where each token of a macro came from, which takes two thirds of the preprocessor's time for a long list.

    Without tracking gcc warns about a constant that a macro compares with itself, so that warning is off."""
    flag = "-ftrack-macro-expansion=0"
    ctx.file("empty.cc", "")
    copts = ["-Xcompiler", flag] if compiler.endswith("/nvcc") else [flag, "-Wno-tautological-compare"]
    return copts if ctx.execute([compiler] + copts + ["-E", "empty.cc"]).return_code == 0 else []

_BUILD = """\
load("@rules_cc//cc:cc_library.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

# The host target's GEMM: OpenBLAS where it was found; without it the library has a plain blocked loop.
cc_library(
    name = "cblas",
    defines = {cblas_defines},
    linkopts = {cblas_linkopts},
)

# The libraries that a binary with kernels links.
cc_library(
    name = "cuda",
    linkopts = {cuda_linkopts},
)

# Where there is no nvcc, a target that needs it requires this constraint, so that `bazel build //...` skips the target.
constraint_setting(name = "cuda_toolkit")

constraint_value(
    name = "nvcc",
    constraint_setting = ":cuda_toolkit",
)
"""

def _machine(ctx):
    cuda = _cuda_home(ctx)
    cblas = _has_cblas(ctx)
    lib = cuda + "/lib64"
    ctx.file("defs.bzl", "CUDA_HOME = %s\nMACRO_COPTS = %s\nNVCC_MACRO_COPTS = %s\n" % (
        repr(cuda),
        repr(_macro_copts(ctx, ctx.os.environ.get("CC", "cc"))),
        repr(_macro_copts(ctx, cuda + "/bin/nvcc") if cuda else []),
    ))
    ctx.file("BUILD.bazel", _BUILD.format(
        cblas_defines = repr(["TE_CBLAS"] if cblas else []),
        cblas_linkopts = repr(["-lopenblas"] if cblas else []),
        cuda_linkopts = repr(["-L" + lib, "-Wl,-rpath," + lib, "-lcublasLt", "-lcudart", "-lstdc++"] if cuda else []),
    ))

te_machine = repository_rule(
    implementation = _machine,
    environ = ["CC", "CUDA_HOME", "PATH"],
    configure = True,
    local = True,
)

def _catch2(ctx):
    """The header catch2/catch.hpp of version 2: Debian's, or else the published release."""
    installed = ctx.path("/usr/include/catch2/catch.hpp")
    if installed.exists:
        ctx.symlink(installed, "catch2/catch.hpp")
    else:
        ctx.download(
            "https://github.com/catchorg/Catch2/releases/download/v2.13.10/catch.hpp",
            "catch2/catch.hpp",
            sha256 = "3725c0f0a75f376a5005dde31ead0feb8f7da7507644c201b814443de8355170",
        )
    ctx.file("BUILD.bazel", """\
load("@rules_cc//cc:cc_library.bzl", "cc_library")

cc_library(
    name = "catch2",
    hdrs = ["catch2/catch.hpp"],
    includes = ["."],
    visibility = ["//visibility:public"],
)
""")

te_catch2 = repository_rule(implementation = _catch2, local = True)
