#!/usr/bin/env bash
# te/io/gguf.h must read files that the Python package `gguf` writes: values of every kind, arrays, alignments, tensors in every block
# format, and models in several files. Prints `skipped: ...` and exits with 0 where there is no Python with numpy and gguf, and pip cannot
# install gguf.
#
#     tests/gguf_python.sh          PYTHON=python3.12 and CC=clang choose other programs
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python=
for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy, gguf' 2>/dev/null && python=$candidate && break
done
if [[ -z $python ]] && "${PYTHON:-python3}" -m pip install -q --disable-pip-version-check --target "$work/packages" gguf >"$work/pip.log" 2>&1; then
    export PYTHONPATH=$work/packages
    python=${PYTHON:-python3}
fi
[[ -n $python ]] || { echo "skipped: no Python with numpy and gguf" && exit; }

# Prints a file: a line for each value and each tensor. Numbers in arrays are separated by blanks, bytes are in hexadecimal.
cat >"$work/dump.c" <<'C'
#include "te/infer.h"
static void bytes(const void *p, size_t n) {
    for (size_t i = 0; i < n; i++) printf("%02x", ((const unsigned char *)p)[i]);
}
static void value(const te_gguf_value *v) {
    te_gguf_value array = *v, element;
    te_gguf_text s;
    int64_t i;
    double x;
    int flag;
    if (te_gguf_integer_of(v, &i)) printf("%lld", (long long)i);
    else if (te_gguf_real_of(v, &x)) printf("%.17g", x);
    else if (te_gguf_bool_of(v, &flag)) printf("%s", flag ? "True" : "False");
    else if (te_gguf_string_of(v, &s)) bytes(s.p, s.n);
    else {
        printf("[");
        for (int k = 0; te_gguf_next(&element, &array); k++) printf(k ? " " : ""), value(&element);
        printf("]");
    }
}
int main(int argc, char **argv) {
    te_context ctx;
    te_gguf f;
    if (argc != 2 || te_context_create(&ctx, 0, 1)) return 2;
    if (te_gguf_map(&f, argv[1], &ctx)) return fprintf(stderr, "%s\n", te_last_error(&ctx)), 1;
    for (int k = 0; k < f.values; k++) {
        printf("%.*s %s ", (int)f.value[k].key.n, f.value[k].key.p, te_gguf_kind_name(f.value[k].kind));
        value(&f.value[k]), printf("\n");
    }
    for (int k = 0; k < f.tensors; k++) {
        const te_gguf_tensor *t = &f.tensor[k];
        printf("%.*s %s", (int)t->name.n, t->name.p, te_gguf_block_of(t->type).name);
        for (int d = 0; d < t->rank; d++) printf(" %lld", (long long)t->shape[d]);
        printf(" "), bytes(t->data, (size_t)t->bytes), printf("\n");
    }
    te_gguf_close(&f);
    te_context_destroy(&ctx);
    return 0;
}
C
"${CC:-gcc}" -std=c11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -DTE_KEEP_CALLS -I. "$work/dump.c" -o "$work/dump" -lm

"$python" - "$work" <<'END'
import subprocess, sys
import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType as V, GGUFWriter

work = sys.argv[1]
passed = 0
VALUES = {V.UINT8: 255, V.INT8: -128, V.UINT16: 65535, V.INT16: -32768, V.UINT32: 2**32 - 1, V.INT32: -2**31, V.UINT64: 2**63 - 1,
          V.INT64: -2**63, V.FLOAT32: 0.1, V.FLOAT64: 0.1, V.BOOL: True, V.STRING: "größer \0 東"}


def shown(kind, value):
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(shown(kind, x) for x in value) + "]"
    if kind == V.STRING:
        return value.encode().hex()
    if kind in (V.FLOAT32, V.FLOAT64):
        return "%.17g" % (numpy.float32(value) if kind == V.FLOAT32 else value)
    return str(value)


def compare(what, path, expected):
    global passed
    run = subprocess.run([work + "/dump", path], capture_output=True, text=True)
    lines = run.stdout.splitlines()
    if run.returncode or sorted(lines) != sorted(expected):
        wrong = set(lines) ^ set(expected)
        sys.exit("FAIL: %s: %s %s" % (what, run.stderr[:2000], [line[:200] for line in list(wrong)[:4]]))
    passed += 1


def fill(writer):
    """Values of every kind, alone and in arrays, and a tensor of every type; returns the lines of dump.c."""
    lines = ["general.architecture string " + "llama".encode().hex()]
    for kind, value in VALUES.items():
        name = kind.name.lower()
        writer.add_key_value("one." + name, value, kind)
        lines.append("one.%s %s %s" % (name, name, shown(kind, value)))
        writer.add_key_value("many." + name, [value] * 3, V.ARRAY, sub_type=kind)
        lines.append("many.%s array %s" % (name, shown(kind, [value] * 3)))
    random = numpy.random.default_rng(1)
    for i, (kind, (values, size)) in enumerate(GGML_QUANT_SIZES.items()):
        if kind == GGMLQuantizationType.Q8_1:
            continue  # the type of activations, never in a file
        data = random.integers(0, 255, (3, 2 * size), dtype=numpy.uint8)
        writer.add_tensor("t%d.%s" % (i, kind.name), data, raw_shape=data.shape, raw_dtype=kind)
        lines.append("t%d.%s %s 3 %d %s" % (i, kind.name, kind.name, 2 * values, data.tobytes().hex()))
    return lines


def write(writer):
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


for alignment in (0, 8, 64, 1024):
    path = "%s/%d.gguf" % (work, alignment)
    writer = GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    lines = fill(writer)
    if alignment:
        lines.append("general.alignment uint32 %d" % alignment)
    write(writer)
    compare("alignment %d" % alignment, path, lines)

writer = GGUFWriter(work + "/split.gguf", "llama", split_max_tensors=7)
lines = fill(writer)
write(writer)
tensors = sum(1 for line in lines if line.startswith("t"))
count = -(-tensors // 7)
lines += ["split.no uint16 0", "split.count uint16 %d" % count, "split.tensors.count int32 %d" % tensors]
compare("%d files" % count, "%s/split-00001-of-%05d.gguf" % (work, count), lines)
print("%d files, %d types of tensors" % (passed, tensors))
END
