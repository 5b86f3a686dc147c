#!/usr/bin/env bash
# Compiles generate_model.c for a model, with the model linked in: one static program that needs no other file. On x86 it runs on any CPU, with
# the kernels that the CPU has. Needs what tools/setup.sh installs; the program and the model together may have 2 GB.
#
#     examples/generate/link_model.sh MODEL PROGRAM [OPTION...]    MODEL: a GGUF file, or a folder of Hugging Face with one model.safetensors.
#                                                                  OPTION: of the compiler, such as -DMODEL_DTYPE=bf16. CC chooses another one
#     PROGRAM "The capital of France is"
set -euo pipefail
model=${1:?the model: a GGUF file or a folder} program=${2:?the program to write}
shift 2
here=$(cd "$(dirname "$0")" && pwd) cc=${CC:-gcc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" "$here/configure.py" "$model" >"$work/model.h"
names=("") # of the files in the program
if [[ -d $model ]]; then
    [[ -e $model/model.safetensors ]] || { echo "link_model.sh: $model has no model.safetensors (a model of several files is not supported)" >&2 && exit 1; }
    names=(config.json tokenizer.json model.safetensors)
    if [[ -e $model/generation_config.json ]]; then names+=(generation_config.json); fi
fi
files='' table=''
for i in "${!names[@]}"; do
    file=$(realpath "$model${names[$i]:+/${names[$i]}}")
    [[ $file != *[\"\\]* ]] || { echo "link_model.sh: a quote or backslash in $file" >&2 && exit 1; }
    files+="    .balign 64
file$i:
    .incbin \"$file\"
end$i:
    .byte 0
name$i:
    .asciz \"${names[$i]}\"
"
    table+="    .quad name$i, file$i, end$i
"
done
cat >"$work/linked.S" <<END
    .section .rodata
$files    .balign 8
    .globl linked_files
linked_files:
$table    .quad 0, 0, 0
    .section .note.GNU-stack, "", %progbits
END
"$cc" -std=c11 -O3 -fopenmp -static -s -DMODEL_LINKED -DMODEL_CONFIG="\"$work/model.h\"" -I"$here/../.." "$@" "$here/generate_model.c" \
    "$here"/tokenizer*.c "$here/chat.c" "$work/linked.S" -o "$program" -lpcre2-8 -lutf8proc -lm
of_model=$(stat -L -c %s "${names[@]/#/$model${names[0]:+/}}" | awk '{ n += $1 } END { print n }')
echo "$program: $(stat -c %s "$program") bytes, $of_model of them the model"
