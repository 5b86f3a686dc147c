"""The casts of te/fp8/impl/quantize_mxfp8.h and quantize_nvfp4.h against TransformerEngine's published reference definitions, restated in numpy:
compute_ref and float_to_e8m0 of tests/cpp/operator/test_cast_mxfp8.cu, and NVFP4QuantizerRef of
transformer_engine/pytorch/custom_recipes/quantization_nvfp4.py. Three things that they leave open are as on the GPU: -0 keeps its sign in
e2m1 (cvt.rn.satfinite.e2m1x2), the sums of the Hadamard transform are those of the fast transform in f32, and rows are padded with zeros.

    python3 tests/microscaled.py DRIVER
"""
import subprocess
import sys
import tempfile

import numpy as np

F32 = np.float32
E4M3 = np.array([m * 2.0 ** -9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def bf16(x):
    """f32 rounded to bf16, as f32."""
    bits = x.astype(F32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(F32)
    return np.where(np.isnan(x), x, rounded).astype(F32)


def nearest(x, values, nan):
    """The codes of |x|, rounded to the nearest of `values`, ties to even, saturated; a NaN becomes the code `nan`."""
    a = np.abs(x.astype(np.float64))
    above = np.clip(np.searchsorted(values, a), 1, len(values) - 1)
    down, up = a - values[above - 1], values[above] - a
    code = np.where((down < up) | ((down == up) & ((above - 1) % 2 == 0)), above - 1, above)
    code = np.where(a >= values[-1], len(values) - 1, code)
    return np.where(np.isnan(x), nan, code).astype(np.uint8)


def e4m3(x):
    code = nearest(x, E4M3, 0x7F)
    return np.where(np.isnan(x), 0x7F, code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def e2m1(x):
    return np.where(np.isnan(x), 0, nearest(x, E2M1, 0) | np.where(np.signbit(x), 8, 0)).astype(np.uint8)


def pad(x, block):
    return np.pad(x, ((0, 0), (0, -x.shape[1] % block)))


def e8m0(v):
    """The smallest power of two that is not below v, as the biased exponent (float_to_e8m0)."""
    bits = v.view(np.uint32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    up = (mantissa > 0) & (exponent != 0xFE) & ~((exponent == 0) & (mantissa <= 0x400000))
    return np.where(np.isinf(v), 0xFE, exponent + up).astype(np.uint8)


def mxfp8(x):
    """Blocks of 32 along the rows of x: (elements, scales)."""
    rows, cols = x.shape
    blocks = pad(x, 32).reshape(rows, -1, 32)
    amax = np.fmax.reduce(np.abs(blocks), axis=2, initial=F32(0))  # fmax ignores NaN, as CUDA's fmaxf does
    scale = e8m0((amax * (F32(1) / F32(448))).astype(F32))
    inverse = np.exp2(127.0 - scale).astype(F32)
    return e4m3((blocks * inverse[:, :, None]).astype(F32)).reshape(rows, -1)[:, :cols], scale


def hadamard(xt):
    """The transform of TransformerEngine's _apply_rht: each 16 numbers of a row times diag(signs) H / 4, rounded to bf16."""
    signs = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], F32)
    v = pad(xt, 16).reshape(-1, 16) * signs
    matrix = np.array([[1.0]])
    while len(matrix) < 16:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    fast = v.copy()
    for half in (1, 2, 4, 8):
        for i in range(16):
            if not i & half:
                fast[:, i], fast[:, i + half] = fast[:, i] + fast[:, i + half], fast[:, i] - fast[:, i + half]
    exact, terms = v.astype(np.float64) @ matrix, np.abs(v).astype(np.float64) @ np.abs(matrix)
    finite = np.isfinite(exact)
    assert np.all(np.abs(fast - exact)[finite] <= 4 * 2.0 ** -24 * terms[finite])  # the fast transform is the product with H
    return bf16(fast * F32(0.25)).reshape(xt.shape[0], -1)


def nvfp4(x, square):
    """Blocks of 16 along the rows of x, or of 16 x 16: (elements, two in a byte, and scales)."""
    rows = x.shape[0]
    x = pad(x, 16)
    blocks = x.reshape(rows, -1, 16)
    global_amax = F32(np.max(np.abs(x)))
    amax = np.max(np.abs(blocks), axis=2)
    if square:
        tall = np.pad(amax, ((0, -rows % 16), (0, 0))).reshape(-1, 16, amax.shape[1])
        amax = np.repeat(np.max(tall, axis=1), 16, axis=0)[:rows]
    largest = np.finfo(F32).max
    encode = np.minimum(F32(448 * 6) / global_amax, largest)
    encode = F32(1) if encode == 0 else encode
    decode, multiplier = F32(1) / encode, encode * (F32(1) / F32(6))
    scale = e4m3(np.clip(np.minimum(amax * multiplier, largest), F32(-448), F32(448)).astype(F32))
    value = np.append(E4M3, np.nan).astype(F32)[scale]
    factor = np.minimum(F32(1) / (value * decode), largest)
    codes = e2m1(np.clip((blocks * factor[:, :, None]).astype(F32), F32(-6), F32(6))).reshape(rows, -1)
    return codes[:, ::2] | codes[:, 1::2] << 4, scale


def swizzled(scale):
    """[lines, blocks] in tiles of 128 x 4: the inverse of TransformerEngine's _recover_swizzled_scales."""
    tall = np.pad(scale, ((0, -scale.shape[0] % 128), (0, -scale.shape[1] % 4)))
    return tall.reshape(tall.shape[0] // 128, 4, 32, tall.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4).reshape(-1)


def expected(x, form, with_hadamard, square, swizzle):
    xt = np.ascontiguousarray(x.T)
    if form == "mxfp8":
        (y, s), (yt, t) = mxfp8(x), mxfp8(xt)
        yt = yt.T
        parts = [y, swizzled(s) if swizzle else s, yt, swizzled(t) if swizzle else t.T]
    else:
        (y, s), (yt, t) = nvfp4(x, square), nvfp4(hadamard(xt) if with_hadamard else xt, square)
        parts = [y, swizzled(s) if swizzle else s, yt, swizzled(t) if swizzle else t]
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def numbers(rng, rows, cols, kind):
    x = rng.standard_normal((rows, cols)).astype(F32) * np.exp2(rng.integers(-6, 6, (rows, cols))).astype(F32)
    if kind == "denormal":
        x = np.ldexp(x, rng.integers(-150, 120, (rows, cols))).astype(F32)
    if kind == "zero":
        x = np.where(rng.random((rows, cols)) < 0.5, F32(0), -F32(0))
    if kind in ("inf", "nan"):
        x[rng.random((rows, cols)) < 0.01] = np.inf if kind == "inf" else np.nan
        x[rows // 2, cols // 2] = -np.inf if kind == "inf" else np.nan
    if kind == "outlier":
        x[rng.random((rows, cols)) < 0.01] *= 300
    return bf16(x)


def main(driver):
    rng, n, wrong = np.random.default_rng(), 0, 0
    np.seterr(all="ignore")
    modes = [("mxfp8", 0, 0), ("nvfp4", 0, 0), ("nvfp4", 1, 0), ("nvfp4", 0, 1)]
    for rows, cols in [(1, 1), (32, 32), (16, 48), (129, 100), (256, 128), (77, 333)]:
        for kind in ("normal", "denormal", "zero", "inf", "nan", "outlier"):
            x = numbers(rng, rows, cols, kind)
            with tempfile.NamedTemporaryFile() as file:
                file.write((x.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                file.flush()
                for form, with_hadamard, square in modes:
                    for swizzle in (0, 1):
                        is_ = subprocess.run([driver, file.name, *map(str, (rows, cols, form, with_hadamard, square, swizzle))], stdout=subprocess.PIPE, check=True).stdout
                        want = expected(x, form, with_hadamard, square, swizzle)
                        n += 1
                        if is_ != want:
                            wrong += 1
                            at = next((i for i, (a, b) in enumerate(zip(is_, want)) if a != b), -1)
                            print(f"{form} {rows} x {cols} {kind} hadamard {with_hadamard} square {square} swizzled {swizzle}: "
                                  f"{len(is_)} bytes of {len(want)}, first difference at {at}")
    print(f"{n - wrong} passed, {wrong} failed")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
