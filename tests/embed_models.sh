#!/usr/bin/env bash
# examples/generate/embed_model.c, compiled for small random BERTs (tests/embed_models.py) and for all-MiniLM-L6-v2, must
# compute the embeddings of 100 sentences of several scripts that numpy computes in double from the same ids and, where
# it is installed, those of transformers: all sentences packed into few passes, and each alone. Also: a build in bf16,
# the most similar lines, and messages about wrong folders and models. Where there is a GPU, builds of nvcc must compute
# them, too; else nvcc, where there is one, compiles it. Prints `skipped: ...` and exits with 0 where numpy or a library
# is missing, and skips all-MiniLM-L6-v2 where it cannot be fetched.
#
#     tests/embed_models.sh [FOLDER]      FOLDER keeps that model (default: a temporary one); PYTHON and CC choose others
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/shell/model_programs.sh
models() { "$python" tests/embed_models.py "$@"; }
compile_objects tokenizer tokenizer_file tokenizer_gguf tokenizer_json tokenizer_model tokenizer_regex
build() { # FOLDER BINARY OPTION...: writes BINARY.h, too
    "$python" examples/generate/configure.py "$1" >"$2.h"
    build_program embed_model "$2.h" "${@:2}"
}
vectors() { "$1" "$2" <"$work/sentences" >"$work/vectors" 2>"$work/log" || bad "$1: $(cat "$work/log")"; }
same_vectors() { # NAME FOLDER BINARY [COSINE DIFFERENCE]
    "$3" "$2" --ids <"$work/sentences" >"$work/ids" 2>"$work/log" || bad "$1: $(cat "$work/log")"
    vectors "$3" "$2"
    models compare "$2" "$work/ids" "$work/vectors" "${@:4}" >"$work/log" 2>&1 || bad "$1: $(tail -n 3 "$work/log")"
    while IFS= read -r line; do
        if [[ $line == skipped* ]]; then echo "$line"; else ok "$1: $line"; fi
    done <"$work/log"
}

# ---- small models
models sentences >"$work/sentences"
for name in $(models names); do
    models folder "$name" "$work/$name"
    build "$work/$name" "$work/$name/f32" -DMODEL_DTYPE=f32 -DPASS_ROWS=128
    same_vectors "$name" "$work/$name" "$work/$name/f32"
done
cp "$work/vectors" "$work/together"
while IFS= read -r sentence; do "$work/plain/f32" "$work/plain" "$sentence" 2>/dev/null; done <"$work/sentences" >"$work/alone"
paste -d ' ' "$work/together" "$work/alone" | awk '{
    for (i = 1; i <= NF / 2; i++) { d = $i - $(i + NF / 2); if (d < 0) d = -d; if (d > most) most = d } }
    END { exit !(NR == 100 && most < 1e-5) }' || bad "another vector of a sentence alone"
ok "each sentence alone has the vector that it has among others"
build "$work/mean" "$work/bf16" -DMODEL_DTYPE=bf16
same_vectors "mean in bf16" "$work/mean" "$work/bf16" 0.999 0.05
if [[ -x $nvcc ]] && nvidia-smi -L >/dev/null 2>&1; then
    build_program_cuda embed_model "$work/mean/f32.h" "$work/cuda" -DMODEL_DTYPE=f32
    same_vectors "mean on the GPU" "$work/mean" "$work/cuda"
    build_program_cuda embed_model "$work/mean/f32.h" "$work/cuda"
    same_vectors "mean on the GPU in bf16" "$work/mean" "$work/cuda" 0.999 0.05
elif [[ -x $nvcc ]]; then
    only_compile_cuda embed_model "$work/mean/f32.h"
    ok "nvcc compiles it"
    echo "skipped: the embeddings on a GPU, because there is none"
else
    echo "skipped: the embeddings on a GPU, because there is no nvcc"
fi

# ---- the most similar lines
model=$work/mean
printf 'you are old\nthe brown fox\nhow old are you\n' >"$work/lines"
"$model/f32" "$model" --query "How old are you" --top 2 <"$work/lines" >"$work/similar" 2>"$work/log"
[[ $(head -n 1 "$work/similar") == "1.0000  how old are you" && $(wc -l <"$work/similar") == 2 ]] ||
    bad "the most similar lines: $(cat "$work/similar" "$work/log")"
ok "the most similar lines: $(tr '\n' ';' <"$work/similar")"

# ---- what is refused
refuses() { # WHAT SAYS ARGUMENT...
    local status=0
    "$model/f32" "${@:3}" >"$work/log" 2>&1 </dev/null || status=$?
    [[ $status == 1 ]] && grep -q -- "$2" "$work/log" || bad "$1: status $status, $(cat "$work/log")"
    ok "$1: $(tail -n 1 "$work/log" | sed "s,$work/,,g")"
}
refuses "no folder" "tokenizer.json" "$work/none" x
refuses "no model" "no model (see --help)"
refuses "an unknown option" "no such option (see --help): --bottom" "$model" --bottom 3
refuses "a text besides a query" "a text besides --query: x" "$model" --query y x
refuses "no number" "after: --top" "$model" --query y --top 0
cp -r "$model" "$work/changed"
sed -i 's/encoder.layer.1.output.LayerNorm.bias/encoder.layer.1.output.LayerNorm.beta/' "$work/changed/model.safetensors"
refuses "a missing tensor" "has no tensor encoder.layer.1.output.LayerNorm.bias" "$work/changed" x
sed -i 's/"layer_norm_eps": 1e-12/"layer_norm_eps": 1e-11/' "$work/changed/config.json"
refuses "another config.json" "is not the config.json that this program was compiled for" "$work/changed" x
unsupported() { # WHAT SAYS FILE CHANGE: configure.py refuses the folder after the change
    local status=0
    rm -rf "$work/unsupported" && cp -r "$model" "$work/unsupported"
    sed -i "$4" "$work/unsupported/$3"
    "$python" examples/generate/configure.py "$work/unsupported" >"$work/log" 2>&1 || status=$?
    [[ $status == 1 ]] && grep -q -- "$2" "$work/log" || bad "$1: status $status, $(cat "$work/log")"
    ok "$1: $(sed "s,$work/,,g" "$work/log")"
}
unsupported "relative positions" "position_embedding_type is relative_key; only absolute" config.json 's/"absolute"/"relative_key"/'
unsupported "a decoder" "is_decoder is True; only False" config.json 's/^{/{"is_decoder": true, /'
unsupported "an activation" "hidden_act is relu; only gelu" config.json 's/"gelu"/"relu"/'
unsupported "a dense layer behind" "modules.json has the module Dense" modules.json 's/models.Normalize/models.Dense/'
unsupported "max pooling" "the pooling is max_tokens and mean_tokens" 1_Pooling/config.json 's/"pooling_mode_max_tokens": false/"pooling_mode_max_tokens": true/'

# ---- all-MiniLM-L6-v2
folder=${1:-$work}
if PYTHON=$python timeout 600 examples/generate/fetch_models.sh "$folder" minilm >"$work/log" 2>&1; then
    build "$folder/all-MiniLM-L6-v2" "$work/minilm" -O3 -march=native -UTE_KEEP_CALLS
    same_vectors all-MiniLM-L6-v2 "$folder/all-MiniLM-L6-v2" "$work/minilm"
else
    echo "skipped: all-MiniLM-L6-v2, which cannot be fetched: $(tail -n 1 "$work/log")"
fi
echo "$passed passed, 0 failed"
