#!/usr/bin/env bash
# te_dequantize_row must return the bits that the Python package `gguf` does, for random bytes; and te_quantize_row its bytes, in the formats
# that the package writes. The values of the formats that no GGUF file has must be those of their definitions in numpy. A program with a list that lacks the option (weights, quantized) must not contain the code of such weights. Prints
# `skipped: ...` and exits with 0 if there is no Python with numpy and gguf, and pip cannot install gguf.
#
#     tests/quant_gguf.sh          PYTHON=python3.12 and CC=clang choose other programs
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/plain.c" <<'C'
#include "te/infer.h"
#ifdef QUANTIZED
TE_INFERENCE(net, (f32, (weights, quantized)), (embedding, e, 64, 256), (linear, a, 256, 96))
#else
TE_INFERENCE(net, f32, (embedding, e, 64, 256), (linear, a, 256, 96))
#endif
int main(void) {
    static net m;
    te_context ctx;
    return net_context_create(&ctx, 0, 1) || net_bind(&m, 0, &ctx) || net_infer(te_none(), te_none(), &m, 0, &ctx);
}
C
"${CC:-cc}" -std=c11 -O2 -I. "$work/plain.c" -o "$work/plain" -lm
"${CC:-cc}" -std=c11 -O2 -DQUANTIZED -I. "$work/plain.c" -o "$work/quantized" -lm
if nm "$work/plain" | grep -E 'te__(quantized|by_integers|by_floats|lookup|activations)'; then
    echo "FAILED: a list without (weights, quantized) contains code of such weights"
    exit 1
fi
nm "$work/quantized" | grep -q te__quantized_run || { echo "FAILED: a list with (weights, quantized) does not contain te__quantized_run"; exit 1; }

python=
for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy, gguf' 2>/dev/null && python=$candidate && break
done
if [[ -z $python ]] && "${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --target "$work/packages" gguf >"$work/pip.log" 2>&1; then
    export PYTHONPATH=$work/packages
    python=${PYTHON:-python3}
fi
if [[ -z $python ]]; then
    echo "skipped: no Python with numpy and gguf, and pip cannot install it"
    exit 0
fi

cat >"$work/rows.c" <<'C'
#include "te/quant/block_formats.h"
void dequantize(float *y, const void *x, int64_t n, int format) { te_dequantize_row(y, x, n, (te_block_format)format); }
void quantize(void *y, const float *x, int64_t n, int format) { te_quantize_row(y, x, n, (te_block_format)format); }
const char *name(int format) { return te_block_name((te_block_format)format); }
int values(int format) { return te_block_values((te_block_format)format); }
int bytes(int format) { return te_block_bytes((te_block_format)format); }
C
cat >"$work/compare.py" <<'PYTHON'
import ctypes, sys
import numpy as np
import gguf
from gguf.quants import dequantize, quantize

library = ctypes.CDLL(sys.argv[1])
library.name.restype = ctypes.c_char_p
random = np.random.default_rng(int(sys.argv[2]))
def pointer(a):
    return a.ctypes.data_as(ctypes.c_void_p)
def f16(raw, at):
    return np.ascontiguousarray(raw[:, at:at + 2]).view(np.float16).astype(np.float32)
def nibbles(raw):  # of each 16 bytes the low halves, then the high ones
    raw = raw.reshape(len(raw), -1, 16)
    return np.concatenate([raw & 15, raw >> 4], axis=2).reshape(len(raw), -1).astype(np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
def definition(name, raw):
    if name.startswith("int4z"):
        return f16(raw, 0) * (nibbles(raw[:, 4:]) - raw[:, 2:3])
    if name.startswith("int4"):
        return f16(raw, 0) * (nibbles(raw[:, 2:]) - 8)
    if name == "int8":
        return np.ascontiguousarray(raw[:, -4:]).view(np.float32) * np.ascontiguousarray(raw[:, :-4]).view(np.int8).astype(np.float32)
    if name == "mxfp4":  # E8M0: 2^(e - 127), and NaN for 255
        scale = np.where(raw[:, :1] == 255, np.nan, np.ldexp(np.float64(1), raw[:, :1].astype(np.int32) - 127))
        return (scale * E2M1[nibbles(raw[:, 1:]).astype(np.int32)]).astype(np.float32)
    return None
names = []
format = 1
while (name := library.name(format).decode()) != "unknown":
    kind = getattr(gguf.GGMLQuantizationType, name.upper(), None)
    values, size = library.values(format), library.bytes(format)
    if name == "int8":  # whole rows, with their scale
        values, size, kind = 96, 100, None
    if kind is not None:
        assert gguf.GGML_QUANT_SIZES[kind] == (values, size), name
    raw = random.integers(0, 256, (4096, size), dtype=np.uint8)
    if name == "mxfp4":
        raw[:256, 0] = np.arange(256)
    if name.startswith("int4z"):
        raw[:, 2] %= 17
    with np.errstate(all="ignore"):
        want = definition(name, raw)
        if name == "mxfp4" and kind is not None:
            known = raw[:, 0] < 255  # a NaN, which the package takes for 2^128
            assert (dequantize(raw[known], kind) == want[known]).all(), name
        want = (dequantize(raw, kind) if want is None else np.ascontiguousarray(want)).reshape(-1)
    got = np.empty(want.size, np.float32)
    for row in range(4096 if name == "int8" else 1):
        n = values if name == "int8" else got.size
        library.dequantize(pointer(got[row * n:]), pointer(raw[row]), ctypes.c_int64(n), format)
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{name}: {(~same).sum()} values differ, the first is number {np.argmin(same)}"
    if kind is not None and not name.endswith("_k") and name != "mxfp4":
        x = (random.standard_normal((4096, values)) * np.exp(random.standard_normal((4096, 1)))).astype(np.float32)
        if values > 1:
            x[0], x[1], x[2], x[3] = 0, 1, np.linspace(-3, 3, values), np.round(x[3] * 8) / 8
        want = np.ascontiguousarray(quantize(x, kind)).view(np.uint8).reshape(-1)
        got = np.empty(want.size, np.uint8)
        library.quantize(pointer(got), pointer(x), ctypes.c_int64(x.size), format)
        assert (got == want).all(), f"{name}: {(got != want).sum()} bytes differ"
    names.append(name)
    format += 1
assert len(names) == 18, names
print("passed:", " ".join(names), "as the package gguf and the definitions")
PYTHON
for options in "-O2" "-O3 -march=native"; do
    # shellcheck disable=SC2086
    "${CC:-cc}" -std=c11 -Wall -Wextra -pedantic -Werror $options -shared -fPIC -I. "$work/rows.c" -o "$work/rows.so" -lm
    "$python" "$work/compare.py" "$work/rows.so" "${TE_SEED:-$RANDOM}"
done
