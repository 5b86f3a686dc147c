#!/usr/bin/env bash
# examples/lora: the loss must fall, and the bytes of the frozen base model must not change. The example checks both itself.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
"${CC:-gcc}" -std=c11 -O1 -Wall -Wextra -Werror -DTE_KEEP_CALLS -I. examples/lora/lora.c -o "$build/lora" -lm
"$build/lora"
