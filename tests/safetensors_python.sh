#!/usr/bin/env bash
# The Python package `safetensors` must read files by te_safetensors_write, and te_safetensors_open files by the package. Prints
# `skipped: ...` and exits with 0 if the package is not installed.
#
#     tests/safetensors_python.sh          PYTHON=python3.12 and CC=clang choose other programs
set -euo pipefail
cd "$(dirname "$0")/.."

python=
for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy, safetensors.numpy' 2>/dev/null && python=$candidate && break
done
if [[ -z $python ]]; then
    echo "skipped: no Python with numpy and safetensors"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# write PATH: writes a file with every dtype; seal PATH: the same with a checksum. show PATH: prints metadata and tensors, one a line, in hex.
cat >"$work/tool.c" <<'C'
#include "te/gemm/gemm.h" /* te_context_create */
#include "te/io/safetensors.h"

static int write_file(const char *path, int sealed, te_context *ctx) {
    static unsigned char bytes[TE_SAFETENSORS_DTYPE_COUNT][2 * 3 * 8];
    static const int64_t shape[] = {2, 3}, none[] = {0, 5};
    te_safetensor t[TE_SAFETENSORS_DTYPE_COUNT + 2];
    int n = 0;
    for (; n < TE_SAFETENSORS_DTYPE_COUNT; n++) {
        const te_safetensors_dtype d = (te_safetensors_dtype)n;
        for (size_t i = 0; i < sizeof bytes[n]; i++) bytes[n][i] = d == TE_SAFETENSORS_BOOL ? i % 2 : (unsigned char)((size_t)n * 31 + i * 7 % 96);
        t[n] = te_safetensor_of(te_safetensors_dtype_name(d), d, 2, shape, bytes[n]);
    }
    t[n++] = te_safetensor_of("scalar \"\xc3\xa9\"\n", TE_SAFETENSORS_F32, 0, 0, bytes[TE_SAFETENSORS_F32]);
    t[n++] = te_safetensor_of("none", TE_SAFETENSORS_F32, 2, none, 0);
    const te_safetensors_pair metadata[] = {{"position", "81920"}, {"text", "a \"b\"\\\n\x01"}};
    return sealed ? te_safetensors_write_sealed(path, t, n, metadata, 2, ctx) : te_safetensors_write(path, t, n, metadata, 2, ctx);
}
static int show_file(const char *path, te_context *ctx) {
    te_safetensors f;
    TE_TRY(te_safetensors_open(&f, path, ctx));
    TE_TRY(te_safetensors_verify(&f, ctx));
    for (int i = 0; i < f.metadata_count; i++) printf("metadata %s=%s\n", f.metadata[i].key, f.metadata[i].value);
    for (int i = 0; i < f.count; i++) {
        unsigned char data[4096];
        if (f.tensor[i].bytes > sizeof data) return TE_ERROR_MEMORY;
        TE_TRY(te_safetensors_read(&f, &f.tensor[i], data, ctx));
        printf("%s %s ", f.tensor[i].name, te__shape_text_of(&f.tensor[i]).text);
        for (uint64_t k = 0; k < f.tensor[i].bytes; k++) printf("%02x", data[k]);
        printf("\n");
    }
    te_safetensors_close(&f);
    return TE_OK;
}
int main(int argc, char **argv) {
    te_context ctx;
    if (argc != 3 || te_context_create(&ctx, 0, 1) != TE_OK) return 1;
    const int status = strcmp(argv[1], "show") ? write_file(argv[2], *argv[1] == 's', &ctx) : show_file(argv[2], &ctx);
    if (status != TE_OK) fprintf(stderr, "%s\n", te_last_error(&ctx));
    te_context_destroy(&ctx);
    return status != TE_OK;
}
C
"${CC:-cc}" -std=c11 -Wall -Wextra -pedantic -Werror -O1 -I. "$work/tool.c" -o "$work/tool" -lm

cat >"$work/compare.py" <<'PYTHON'
import subprocess, sys
import numpy as np
import safetensors, safetensors.numpy

work = sys.argv[1]
sizes = dict(F64=8, I64=8, U64=8, F32=4, I32=4, U32=4, BF16=2, F16=2, I16=2, U16=2, F8_E4M3=1, F8_E5M2=1, I8=1, U8=1, BOOL=1)
names = list(sizes)

# a file of the library, read by the package
path = work + "/ours.safetensors"
subprocess.run([work + "/tool", "write", path], check=True)
def expected(name, n):
    k = names.index(name)
    return bytes(i % 2 if name == "BOOL" else (k * 31 + i * 7 % 96) % 256 for i in range(n))
raw = dict(safetensors.deserialize(open(path, "rb").read()))
assert sorted(raw) == sorted(names + ['scalar "\u00e9"\n', "none"]), sorted(raw)
for name, size in sizes.items():
    assert raw[name]["dtype"] == name and list(raw[name]["shape"]) == [2, 3], raw[name]
    assert bytes(raw[name]["data"]) == expected(name, 6 * size), name
types = dict(F64="f8", I64="i8", U64="u8", F32="f4", I32="i4", U32="u4", F16="f2", I16="i2", U16="u2", I8="i1", U8="u1", BOOL="?")
with safetensors.safe_open(path, framework="np") as f:
    assert f.metadata() == {"format": "pt", "position": "81920", "text": 'a "b"\\\n\x01'}, f.metadata()
    for name, t in types.items():
        got = f.get_tensor(name)
        assert got.dtype == np.dtype(t) and got.shape == (2, 3) and got.tobytes() == expected(name, 6 * sizes[name]), name
    assert f.get_tensor('scalar "\u00e9"\n').shape == () and f.get_tensor("none").shape == (0, 5)

# the same with a checksum: the same tensors, and two more metadata entries
sealed = work + "/sealed.safetensors"
subprocess.run([work + "/tool", "seal", sealed], check=True)
again = dict(safetensors.deserialize(open(sealed, "rb").read()))
assert {n: bytes(t["data"]) for n, t in again.items()} == {n: bytes(t["data"]) for n, t in raw.items()}
with safetensors.safe_open(sealed, framework="np") as f:
    metadata = f.metadata()
assert sorted(metadata) == ["format", "position", "te.checksum", "te.version", "text"] and len(metadata["te.checksum"]) == 16, metadata
subprocess.run([work + "/tool", "show", sealed], check=True, capture_output=True)
damaged = bytearray(open(sealed, "rb").read())
damaged[-1] ^= 1
open(sealed, "wb").write(damaged)
assert subprocess.run([work + "/tool", "show", sealed], capture_output=True).returncode != 0

# a file of the package, read by the library
path = work + "/theirs.safetensors"
random = np.random.default_rng(1)
arrays = {"layer.%d/%s" % (i, t): np.frombuffer(random.bytes(60 * np.dtype(t).itemsize), t).reshape(3, 4, 5) for i, t in enumerate(types.values()) if t != "?"}
arrays["one"], arrays["\u00fcber \"x\"\\"], arrays["empty"] = np.array(1.5, "f4"), np.arange(7), np.zeros((0, 2), "f4")
safetensors.numpy.save_file(arrays, path, metadata={"epoch": "3", "name": "\u00e4\""})
lines = subprocess.run([work + "/tool", "show", path], check=True, capture_output=True, text=True).stdout.splitlines()
code = {np.dtype(t): n for n, t in types.items()}
want = ["metadata epoch=3", "metadata name=\u00e4\""]
for name in sorted(arrays, key=lambda s: s.encode()):
    a = arrays[name]
    want.append("%s %s [%s] %s" % (name, code[a.dtype], ", ".join(map(str, a.shape)), a.tobytes().hex()))
assert lines == want, "\n".join(["got"] + lines + ["want"] + want)
print("passed: safetensors", safetensors.__version__, "and this library read each other's files")
PYTHON
"$python" "$work/compare.py" "$work"
