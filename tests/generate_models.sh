#!/usr/bin/env bash
# examples/generate/generate_model.c, compiled for a small model of each family (tests/generate_models.py), must
# generate the tokens that transformers generates, greedily: each prompt alone, and all together with fewer slots than
# prompts. Also: weights in 4 bits, and casts to few bits; a build in bf16, sampling with a seed, chats, and messages about wrong folders, models and arguments.
# Where there is a GPU, builds of nvcc must generate the same tokens in f32, and run in bf16; else nvcc, where there is
# one, compiles one of them. Where torch and transformers are installed, the tokens in tests/generate_models.json are
# computed again. Prints `skipped: ...` and exits with 0 where numpy or a library is missing.
#
#     tests/generate_models.sh [NAME...]      models of generate_models.py, default all; PYTHON and CC choose others
set -euo pipefail
cd "$(dirname "$0")/.."

source tests/shell/model_programs.sh
models() { "$python" tests/generate_models.py "$@"; }
compile_objects tokenizer tokenizer_file tokenizer_gguf tokenizer_json tokenizer_model tokenizer_regex chat
build() { # FOLDER BINARY OPTION...
    local model=$1
    [[ ! -e $model/model.gguf ]] || model=$model/model.gguf
    "$python" examples/generate/configure.py "$model" >"$1/model.h"
    build_program generate_model "$1/model.h" "${@:2}"
}

# ---- the tokens of transformers
generate() { # NAME BINARY: the tokens of each prompt alone, and of all prompts in two slots
    local folder=$work/$1 prompt
    [[ ! -e $folder/model.gguf ]] || folder=$folder/model.gguf
    while IFS= read -r prompt; do
        "$2" "$folder" --ids --tokens 64 "$prompt" 2>"$work/log" || bad "$1: $(cat "$work/log")"
    done <"$work/prompts" >"$work/alone"
    "$2" "$folder" --ids --tokens 64 --batch "$work/prompts" --slots 2 >"$work/together" 2>"$work/log" ||
        bad "$1: $(cat "$work/log")"
}
same_tokens() { # NAME BINARY
    generate "$@"
    cmp "$work/alone" "$work/$1/expected" || bad "$1: other tokens than those of transformers"
    cmp "$work/together" "$work/$1/expected" || bad "$1: other tokens in a batch"
    ok "$1: $(wc -w <"$work/together") tokens of $(wc -l <"$work/prompts") prompts, alone and together"
}
names=("$@")
[[ $# -gt 0 ]] || read -ra names <<<"$(models names)"
models prompts >"$work/prompts"
for name in "${names[@]}"; do
    folder=$work/$name
    models folder "$name" "$folder"
    models expected "$name" >"$folder/expected"
    # Without optimisation, because the small models run for less time than it takes; bf16 and the caches below are compiled with it. The longest
    # prompt takes three passes; weights in 4 bits are converted to f32.
    build "$folder" "$folder/f32" -O0 -DPREFILL_ROWS=24 -DMODEL_DEQUANTIZE
    same_tokens "$name" "$folder/f32"
done
# Weights in 4 bits as the files have them, multiplied by activations that are rounded to 8 bits.
for name in gptq awq gpt_oss_mxfp4; do
    [[ " ${names[*]} " == *" $name "* ]] || continue
    build_program generate_model "$work/$name/model.h" "$work/few" -DPREFILL_ROWS=24
    generate "$name" "$work/few"
    models near "$name" <"$work/alone" >"$work/log" || bad "$name in 4 bits: $(cat "$work/log")"
    ok "$name in 4 bits: $(cat "$work/log")"
done
# Latent attention with the keys and values of all heads in the cache, as on a GPU.
for name in deepseek_v3 deepseek_v2; do
    [[ " ${names[*]} " == *" $name "* ]] || continue
    cp -r "$work/$name" "$work/$name.expanded"
    build "$work/$name.expanded" "$work/$name.expanded/f32" -O0 -DPREFILL_ROWS=24 -DMODEL_LATENT_EXPANDED
    same_tokens "$name.expanded" "$work/$name.expanded/f32"
done
# The same models as GGUF files (tests/generate_models_gguf.py); those have no window in the architecture llama, which is Mistral's there.
# Of some families only folders are read.
for name in "${names[@]}"; do
    [[ " mistral mixtral qwen3_moe deepseek_v3 deepseek_v2 gpt_oss gpt_oss_mxfp4 llama4 llama4_top2 phi3 olmo2 smollm3 pythia neox gptq gptq_v2 awq " != *" $name "* ]] || continue
    folder=$work/$name.gguf
    mkdir "$folder"
    "$python" tests/generate_models_gguf.py "$work/$name" "$folder/model.gguf"
    build "$folder" "$folder/f32" -O0 -DPREFILL_ROWS=24
    cp "$work/$name/expected" "$folder/expected"
    same_tokens "$name.gguf" "$folder/f32"
done
# A folder and a GGUF file linked into one static program, which runs where there is no other file.
for name in llama_tied llama_tied.gguf; do
    [[ " ${names[*]} " == *" ${name%.gguf} "* ]] || continue
    model=$work/$name
    [[ ! -e $model/model.gguf ]] || model=$model/model.gguf
    PYTHON=$python examples/generate/link_model.sh "$model" "$work/linked.program" -O1 -DTE_KEEP_CALLS -DPREFILL_ROWS=24 >"$work/log" 2>&1 ||
        bad "$name: cannot link it: $(cat "$work/log")"
    said=$(tail -n 1 "$work/log")
    mv "$model" "$model.moved"
    "$work/linked.program" --ids --tokens 64 --batch "$work/prompts" --slots 2 >"$work/together" 2>"$work/log" || bad "$name, linked: $(cat "$work/log")"
    mv "$model.moved" "$model"
    cmp "$work/together" "$work/$name/expected" || bad "$name: other tokens when linked"
    if "$work/linked.program" one two >/dev/null 2>"$work/log"; then bad "$name, linked: two prompts are accepted"; fi
    size=$(stat -c %s "$work/linked.program") of_model=$(stat -c %s "$work/$name"/model.* | sort -n | tail -n 1)
    ((size - of_model <= 4000000)) || bad "$name, linked: $size bytes, $of_model of them weights"
    ok "$name linked: ${said#*: }"
done
# Files that transformers reads, too: the table of a tied head under the name of the head, and an index of other files beside model.safetensors.
for name in llama_tied gpt2; do
    [[ " ${names[*]} " == *" $name "* ]] || continue
    cp -r "$work/$name" "$work/$name.head"
    "$python" - "$work/$name.head/model.safetensors" <<'PYTHON'
import json, sys
data = open(sys.argv[1], "rb").read()
n = int.from_bytes(data[:8], "little")
header = json.loads(data[8:8 + n])
table = [name for name in header if name.endswith(("embed_tokens.weight", "wte.weight"))]
assert len(table) == 1 and "lm_head.weight" not in header
header["lm_head.weight"] = header.pop(table[0])
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(sys.argv[1], "wb").write(len(text).to_bytes(8, "little") + text + data[8 + n:])
PYTHON
    echo '{"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}' >"$work/$name.head/model.safetensors.index.json"
    same_tokens "$name.head" "$work/$name/f32"
done
if [[ -x $nvcc ]] && nvidia-smi -L >/dev/null 2>&1; then
    for name in "${names[@]}"; do
        build_program_cuda generate_model "$work/$name/model.h" "$work/cuda" -DMODEL_DTYPE=f32 -DPREFILL_ROWS=24
        same_tokens "$name" "$work/cuda"
        build_program_cuda generate_model "$work/$name/model.h" "$work/cuda"
        generate "$name" "$work/cuda"
        [[ $(wc -l <"$work/together") == $(wc -l <"$work/prompts") ]] || bad "$name: no tokens on the GPU in bf16"
    done
    ok "the same on the GPU in f32; in bf16 all models run"
elif [[ -x $nvcc ]]; then
    only_compile_cuda generate_model "$folder/model.h"
    ok "nvcc compiles it for ${folder##*/}"
    echo "skipped: the tokens on a GPU, because there is none"
else
    echo "skipped: the tokens on a GPU, because there is no nvcc"
fi
if "$python" -c 'import torch, transformers, tokenizers' 2>/dev/null; then
    models check "${names[@]}" >"$work/log" 2>&1 || bad "$(tail -n 5 "$work/log")"
    ok "generate_models.json is what transformers computes now"
else
    echo "skipped: no Python with torch, transformers and tokenizers to compute generate_models.json again"
fi
[[ $# == 0 ]] || exit 0
models vision gemma3 "$work/vision" && cp "$work/gemma3/expected" "$work/vision"
build "$work/vision" "$work/vision/f32" -O0
same_tokens vision "$work/vision/f32"

# ---- other dtypes
model=$work/gemma3
build "$model" "$work/bf16" -DMODEL_DTYPE=bf16
generate gemma3 "$work/bf16"
[[ $(wc -w <"$work/together") -gt 64 && $(wc -l <"$work/alone") == $(wc -l <"$work/prompts") ]] ||
    bad "bf16: too few tokens"
ok "a build in bf16 generates $(wc -w <"$work/together") tokens"

# ---- caches in 8 bits
for cache in int8 e4m3; do
    build "$model" "$work/$cache" -DMODEL_CACHE="$cache" -DTE_BATCH_INVARIANT -DPREFILL_ROWS=24
    generate gemma3 "$work/$cache"
    cmp "$work/alone" "$work/together" || bad "$cache: other tokens in a batch"
    same=$(paste -d ' ' <(tr ' ' '\n' <"$work/alone") <(tr ' ' '\n' <"$model/expected") | awk '$1 == $2' | wc -l)
    [[ $same -gt $(($(wc -w <"$model/expected") / 4)) ]] || bad "$cache: only $same tokens as in f32"
    ok "a cache in $cache: $same of $(wc -w <"$model/expected") tokens as in f32"
done

# ---- weights that are cast when they are loaded
model=$work/qwen3
build "$model" "$work/few" -DMODEL_WEIGHTS=int8 -DMODEL_HEAD_WEIGHTS=q8_0 -DTE_BATCH_INVARIANT -DPREFILL_ROWS=24
generate qwen3 "$work/few"
cmp "$work/alone" "$work/together" || bad "int8: other tokens in a batch"
same=$(paste -d ' ' <(tr ' ' '\n' <"$work/alone") <(tr ' ' '\n' <"$model/expected") | awk '$1 == $2' | wc -l)
[[ $same -ge 16 ]] || bad "int8: only $same tokens as in f32" # of 192; random ones would agree in less than one
for line in 'embed_tokens.weight: 1 tensors cast to q8_0' 'qkv.weight: 6 tensors cast to int8' 'proj.weight: 2 tensors cast to int8' \
    'fc1.weight: 4 tensors cast to int8' 'fc2.weight: 2 tensors cast to int8' 'lm_head.weight: 1 tensors cast to q8_0'; do
    grep -qE "^$line, relative error 0\.00[0-9]+, at most 0\.0[01][0-9]+$" "$work/log" || bad "no line '$line': $(cat "$work/log")"
done
ok "weights cast to int8 and q8_0: $(grep fc1 "$work/log")"

# ---- text, sampling and chats
model=$work/qwen3 prompt="The quick brown fox"
run() { "$model/f32" "$model" "$@" 2>"$work/log" || bad "$* returns $?: $(cat "$work/log")"; }
run --tokens 20 "$prompt" >"$work/argument"
printf '%s' "$prompt" | run --tokens 20 | cmp - "$work/argument" || bad "another text from the standard input"
grep -qE '^prefill [0-9]+ tokens, [0-9.]+ tokens/s; decode 19 tokens, [0-9.]+ tokens/s$' "$work/log" ||
    bad "no line with speeds: $(cat "$work/log")"
[[ $(wc -c <"$work/argument") -gt 10 ]] || bad "no text"
ok "a text, from an argument or the standard input"
sampling=(--temperature 1.5 --top-k 100 --top-p 0.95 --min-p 0.001 --ids --tokens 40)
run "${sampling[@]}" --seed 1 "$prompt" >"$work/seed1"
run "${sampling[@]}" --seed 1 "$prompt" | cmp - "$work/seed1" || bad "--seed 1 generates another text in another run"
run "${sampling[@]}" --seed 2 "$prompt" >"$work/seed2"
! cmp -s "$work/seed1" "$work/seed2" || bad "--seed 2 generates the text of --seed 1"
run "${sampling[@]}" --top-k 1 --seed 3 "$prompt" >"$work/likeliest"
run --ids --tokens 40 "$prompt" | cmp - "$work/likeliest" || bad "--top-k 1 is not greedy"
printf '%s\n' "$prompt" "$prompt" >"$work/twice"
run "${sampling[@]}" --seed 1 --batch "$work/twice" | cmp - <(cat "$work/seed1" "$work/seed2") ||
    bad "a batch does not draw as its lines do alone, the second one with the next seed"
ok "sampling with a seed: the same tokens in each run, other tokens with another seed"
model=$work/llama
run --chat --ids --tokens 12 "Hello!" >"$work/turn"
printf 'Hello!\nWho?\n' | run --chat --ids --tokens 12 >"$work/turns"
head -n 1 "$work/turns" | cmp - "$work/turn" || bad "another first answer in a conversation"
[[ $(wc -l <"$work/turns") == 2 ]] || bad "a conversation of two turns has $(wc -l <"$work/turns") answers"
run --chat --format llama3 --ids --tokens 12 "Hello!" | cmp - "$work/turn" || bad "another answer with --format llama3"
ok "chats: one message, and a conversation"

# ---- what is refused
refuses() { # WHAT SAYS ARGUMENT...
    local status=0
    "$model/f32" "${@:3}" >"$work/log" 2>&1 </dev/null || status=$?
    [[ $status == 1 ]] && grep -q -- "$2" "$work/log" || bad "$1: status $status, $(cat "$work/log")"
    ok "$1: $(tail -n 1 "$work/log" | sed "s,$work/,,g")"
}
refuses "no folder" "tokenizer.json" "$work/none" x
cp -r "$model" "$work/changed" && rm "$work/changed/model-00002-of-00004.safetensors"
refuses "a missing file" "model-00002-of-00004.safetensors: cannot open it" "$work/changed" x
sed -i 's/500.0/501.0/' "$work/changed/config.json"
refuses "another config.json" "is not the config.json that this program was compiled for" "$work/changed" x
rm -r "$work/changed" && cp -r "$work/mistral" "$work/changed"
sed -i 's/model.norm.weight/model.norn.weight/' "$work/changed/model.safetensors"
model=$work/mistral
refuses "a missing tensor" "has no tensor model.norm.weight" "$work/changed" x
printf 'x%.0s' {1..200} >"$work/long"
refuses "a long prompt" "the prompt is too long: 201 tokens, the capacity is 160" "$model" "$(cat "$work/long")"
refuses "a small capacity" "the capacity is 8" "$model" --capacity 8 "a long prompt"
refuses "a capacity above the positions" "out of range, after: --capacity" "$model" --capacity 161 x
for option in --tokens --temperature --top-k --top-p --min-p --seed --slots; do
    refuses "$option is no number" "not a number, or out of range, after: $option" "$model" "$option" 1x x
done
refuses "no value" "after: --tokens" "$model" --tokens
refuses "an unknown option" "no such option (see --help): --topk" "$model" --topk 3 x
refuses "no batch file" "cannot open: $work/none" "$model" --batch "$work/none"
model=$work/gpt2
refuses "a system message without a chat" "--system without --chat" "$model" --system x y
sed 's/<|start_header_id|>/<|other|>/' "$model/tokenizer.json" >"$work/json" && cp "$work/json" "$model/tokenizer.json"
refuses "no chat format" "no special tokens of a known chat format" "$model" --chat x
refuses "another chat format" "no such chat format: llama9" "$model" --chat --format llama9 x
"$model/f32" --help | grep -q -- --temperature || bad "--help"
unsupported() { # WHAT SAYS CHANGE [NAME]: configure.py refuses the config.json of a model, llama, after the change
    local status=0
    mkdir -p "$work/unsupported"
    sed "$3" "$work/${4:-llama}/config.json" >"$work/unsupported/config.json"
    "$python" examples/generate/configure.py "$work/unsupported" >"$work/log" 2>&1 || status=$?
    [[ $status == 1 ]] && grep -q -- "$2" "$work/log" || bad "$1: status $status, $(cat "$work/log")"
    ok "$1: $(sed "s,$work/,,g" "$work/log")"
}
unsupported "an unknown family" "model_type is mamba; supported are llama," 's/"llama"/"mamba"/'
unsupported "8 bits" "quantization_config of gptq: bits is 8; supported: 4" 's/"bits": 4/"bits": 8/' gptq
unsupported "act-order" "quantization_config of gptq: desc_act is True" 's/"desc_act": false/"desc_act": true/' gptq
unsupported "small groups" "quantization_config of gptq: group_size is 16; supported are -1 and multiples of 32" 's/"group_size": 32/"group_size": 16/' gptq
unsupported "AWQ in another layout" "quantization_config of awq: version is gemv; supported: gemm" 's/"gemm"/"gemv"/' awq
unsupported "another method" "quant_method is bitsandbytes; supported are gptq, awq" 's/"awq"/"bitsandbytes"/' awq
unsupported "experts in 4 bits" "quantization_config of awq: model_type is mixtral, which is read in floats only" 's/^{/{"quantization_config": {"quant_method": "awq"},/' mixtral
unsupported "longrope" "the rope type is longrope; supported are default," 's/"rope_type": "llama3"/"type": "longrope"/'
unsupported "dynamic" "the rope type is dynamic; supported are default," 's/"llama3"/"dynamic"/'
unsupported "partial rope" "partial_rotary_factor is 0.5; only 1" 's/^{/{"partial_rotary_factor": 0.5,/'
unsupported "experts" "num_experts is 8" 's/^{/{"num_experts": 8,/'
unsupported "layers without experts" "mlp_only_layers is \[1\]; only \[\] is supported" 's/"mlp_only_layers": \[\]/"mlp_only_layers": [1]/' qwen3_moe
unsupported "a router of DeepSeek-V2 with groups" "topk_method is group_limited_greedy; only greedy" 's/"greedy"/"group_limited_greedy"/' deepseek_v2
unsupported "a latent vector of odd width" "kv_lora_rank is 33; only multiples of eight" 's/\("kv_lora_rank": \)32/\133/' deepseek_v3
unsupported "experts in every second layer" "decoder_sparse_step is 2; only 1" 's/\("decoder_sparse_step": \)1/\12/' qwen3_moe
unsupported "more experts for a token than there are" "num_experts_per_tok is 5 of 4 experts" 's/\("num_experts_per_tok": \)2/\15/' mixtral
unsupported "dense layers between those of experts" "interleave_moe_layer_step is 2; only 1" 's/\("interleave_moe_layer_step": \)1/\12/' llama4
unsupported "a list of layers with experts" "moe_layers is \[0, 2\]; only experts in all layers" 's/^{/{"moe_layers": [0, 2],/' llama4
unsupported "other quantized weights" "quant_method is fp8; supported are gptq, awq and, of gpt_oss, mxfp4" 's/"mxfp4"/"fp8"/' gpt_oss_mxfp4
unsupported "an activation" "hidden_act is relu; only silu is supported" 's/"silu"/"relu"/'
unsupported "biases" "attention_bias is True; only False is supported" 's/\("attention_bias": \)false/\1true/'
unsupported "a window in some layers" "use_sliding_window is True; only False" 's/\("use_sliding_window": \)false/\1true/' smollm3
unsupported "a list that is too short" "no_rope_layers has 3 entries for 4 layers" 's/"num_hidden_layers": 3/"num_hidden_layers": 4/' smollm3
unsupported "a missing size" "config.json has no intermediate_size" '/intermediate_size/d'
echo "$passed passed, 0 failed"
