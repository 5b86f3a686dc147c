#!/usr/bin/env bash
# Models in the format of Hugging Face's transformers (tests/llama/make_models.py): examples/llama must compute the logits of
# transformers, to 1e-4 in f32 and 1e-2 in bf16, and say what is wrong with invalid files. Trained with the same lists, Llama and Qwen3
# must have the gradients of transformers for every parameter, to 1e-4 in f32 (tests/llama/gradients.c).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
compile=("${CC:-gcc}" -std=c11 -O0 -Wall -Wextra -Werror -I. -include tests/llama/sizes.h)
"${compile[@]}" -DMODEL_DTYPE=f32 tests/llama/gradients.c -o "$build/llama_f32" -lm
"${compile[@]}" -DMODEL_DTYPE=bf16 examples/llama/llama.c -o "$build/llama_bf16" -lm
failed=0
for model in llama llama31 qwen2 qwen3 gemma2 gpt2; do
    "$build/llama_f32" tests/llama/$model --check tests/llama/$model/expected.safetensors 1e-4 || failed=1
    "$build/llama_bf16" tests/llama/$model --check tests/llama/$model/expected.safetensors 1e-2 || failed=1
done
for model in llama llama31 qwen2 qwen3 gemma2 gpt2; do # the header for a folder
    examples/llama/sizes.py tests/llama/$model | sed 1d | grep -v LLAMA_EPS >"$build/sizes"
    grep -qxFf "$build/sizes" tests/llama/sizes.h || { echo "FAIL $model: sizes.py prints $(cat "$build/sizes")" && failed=1; }
done
for model in llama qwen3; do
    "$build/llama_f32" tests/llama/$model --gradients tests/llama/$model/gradients.safetensors 1e-4 || failed=1
done

# wrong NAME WORDS CHANGE: a copy of the Llama in $there, changed by the command CHANGE, must be refused with these words.
wrong() {
    there=$build/wrong
    rm -rf "$there" && cp -r "tests/llama/$model" "$there"
    bash -c "$3" - "$there"
    if output=$("$build/llama_f32" "$there" 1 2 3); then echo "FAIL $1: was taken" && failed=1
    elif [[ $output != *"$2"* ]]; then echo "FAIL $1: says '$output' and not '$2'" && failed=1
    else echo "$1: $output"; fi
}
# right NAME CHANGE: a copy of the model, changed by the command CHANGE, must have the same logits.
right() {
    there=$build/right
    rm -rf "$there" && cp -r "tests/llama/$model" "$there"
    bash -c "$2" - "$there"
    if "$build/llama_f32" "$there" --check "$there/expected.safetensors" 1e-4 >"$build/log"; then echo "$1: the same logits"
    else echo "FAIL $1: $(cat "$build/log")" && failed=1; fi
}
for model in gemma2 gpt2; do # the header keeps its length
    right "$model: a tied head without the embedding" 'LC_ALL=C sed -i "s/\"model.embed_tokens.weight\"/\"lm_head.weight\"           /; s/\"transformer.wte.weight\"/\"lm_head.weight\"        /" $1/model.safetensors; ! grep -aqE "embed_tokens|wte" $1/model.safetensors'
done
model=llama
right "an index of other files beside the file" 'cp tests/llama/qwen3/model.safetensors.index.json $1'
right "numbers that Python writes" 'sed -i "1s/{/{\"x\": [0.0, Infinity, NaN], \"y\": -Infinity,/" $1/config.json'
wrong "an embedding that is in no file" "has no tensor model.embed_tokens.weight" 'sed -i "s/embed_tokens/embed_tokena/" $1/model.safetensors'
wrong "a size that is infinite" "num_attention_heads is inf, this program was compiled for 4" 'sed -i "s/\"num_attention_heads\": 4/\"num_attention_heads\": Infinity/" $1/config.json'
for scaling in longrope dynamic; do
    wrong "an older file with $scaling" "the rotary positions are scaled by $scaling (rope_scaling.type)" "sed -i 's/\"rope_parameters\": {/\"rope_scaling\": {\"type\": \"$scaling\", \"factor\": 2.0}, &/' \$1/config.json"
    wrong "$scaling" "the rotary positions are scaled by $scaling (rope_parameters.rope_type)" "sed -i 's/\"rope_type\": \"default\"/\"rope_type\": \"$scaling\"/' \$1/config.json"
done
wrong "other sizes" "num_attention_heads is 8, this program was compiled for 4: see LLAMA" 'sed -i "s/\"num_attention_heads\": 4/\"num_attention_heads\": 8/" $1/config.json'
wrong "scaled rotation" "scaled by yarn (rope_parameters.rope_type); this program has default and llama3" 'sed -i "s/\"rope_type\": \"default\"/\"rope_type\": \"yarn\"/" $1/config.json'
wrong "another base" "rope_theta is 500000, this program was compiled for 10000" 'sed -i "s/\"rope_theta\": 10000.0/\"rope_theta\": 500000.0/" $1/config.json'
wrong "another epsilon" "rms_norm_eps is" 'sed -i "s/1e-05/1e-06/" $1/config.json'
# An eps of 0.1, for which sizes.py writes LLAMA_EPS: the program reads the folder, and computes other logits.
cp -r tests/llama/llama "$build/large_eps" && sed -i 's/1e-05/0.1/' "$build/large_eps/config.json"
examples/llama/sizes.py "$build/large_eps" >"$build/sizes.h"
"${CC:-gcc}" -std=c11 -O0 -include "$build/sizes.h" -I. examples/llama/llama.c -o "$build/large_eps/llama" -lm
if output=$("$build/large_eps/llama" "$build/large_eps" --check tests/llama/llama/expected.safetensors 1e-4); then echo "FAIL eps 0.1: the logits of eps 1e-5" && failed=1
elif [[ $output != *"that is more than 0.0001"* ]]; then echo "FAIL eps 0.1: says '$output'" && failed=1
else echo "eps 0.1: $output"; fi
wrong "another family" "model_type is mamba" 'sed -i "s/\"model_type\": \"llama\"/\"model_type\": \"mamba\"/" $1/config.json'
wrong "no JSON" "of its JSON" 'echo "}" >>$1/config.json'
wrong "a missing tensor" "has no tensor model.norm.weight, which should be F32 [64]" 'sed -i "s/model.norm.weight/model.norn.weight/" $1/model.safetensors'
wrong "a shape" "model.layers.1.mlp.gate_proj.weight is F32 [64, 88], it should be F32 [88, 64]" 'sed -i "s/\(1.mlp.gate_proj.weight[^[]*\)\[88,64\]/\1[64,88]/" $1/model.safetensors'
wrong "fewer layers" "has a tensor model.layers.1.input_layernorm.weight that this family has no place for" 'sed -i "s/\"num_hidden_layers\": 2/\"num_hidden_layers\": 1/" $1/config.json'
model=llama31
wrong "another scaling" "rope_parameters.factor is 32, this program was compiled for 8: see LLAMA31" 'sed -i "s/\"factor\": 8.0/\"factor\": 32.0/" $1/config.json'
model=qwen2
wrong "no bias" "has no tensor model.layers.0.self_attn.k_proj.bias" 'sed -i "s/k_proj.bias/k_proj.bi_s/" $1/model.safetensors'
model=qwen3
wrong "a missing file" "cannot open it" 'rm $1/model-00002-of-*.safetensors'
wrong "a tensor in another file" "has no tensor lm_head.weight" 'sed -i "s/\"lm_head.weight\": \"model-0000[0-9]/\"lm_head.weight\": \"model-00001/" $1/*.index.json'
wrong "a file elsewhere" "one in another folder: ../model" 'sed -i "s/\"lm_head.weight\": \"/&..\//" $1/*.index.json'
model=gemma2
wrong "other layers" "layer_types.1 should be full_attention" 'sed -i "s/full_attention/sliding_attention/" $1/config.json'
model=gpt2
wrong "an activation" "activation_function is relu" 'sed -i "s/gelu_new/relu/" $1/config.json'

# refused WORDS ARGUMENT...: these arguments must be refused with these words.
refused() {
    if output=$("$build/llama_f32" tests/llama/llama "${@:2}"); then echo "FAIL ${*:2}: was taken" && failed=1
    elif [[ $output != *"$1"* ]]; then echo "FAIL ${*:2}: says '$output' and not '$1'" && failed=1
    else echo "${*:2}: $output"; fi
}
refused "takes a file and a tolerance" --check tests/llama/llama/expected.safetensors
refused "is no tolerance" --check tests/llama/llama/expected.safetensors 1e-4x
refused "is no tolerance" --check tests/llama/llama/expected.safetensors nan
for word in abc 1.5 "" -1 0x10 " 1"; do refused "is no token" 1 "$word"; done
refused "is no token; it must be a number from 0 to" 1 99999999999
[[ $failed == 0 ]]
