#!/usr/bin/env bash
# examples/lora: the bytes of the frozen base do not change, and the loss falls; it says so itself.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
"${CC:-gcc}" -std=c11 -O1 -Wall -Wextra -Werror -DTE_KEEP_CALLS -I. examples/lora/lora.c -o "$build/lora" -lm
"$build/lora"
