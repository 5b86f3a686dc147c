#!/usr/bin/env bash
# A symbolic link that another user has left in a folder for all (mode 1777) is not followed when a file is written, whatever fs.protected_symlinks is; a link of one's own
# is. Needs root, to be two users.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ $(id -u) == 0 ]] && command -v setpriv >/dev/null || { echo "skipped: this needs root and setpriv" && exit; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cat >"$work/case.c" <<'END'
#include "te/te.h"
int main(int argc, char **argv) {
    te_context ctx;
    float v[4] = {1, 2, 3, 4};
    int64_t n = 4;
    te_context_create(&ctx, 0, 1);
    te_safetensor t = te_safetensor_of("a", TE_SAFETENSORS_F32, 1, &n, v);
    const te_status status = te_safetensors_write(argv[argc - 1], &t, 1, 0, 0, &ctx);
    printf("%s\n", status == TE_OK ? "written" : te_last_error(&ctx));
    return status != TE_OK;
}
END
${CC:-cc} -O1 -w -I. "$work/case.c" -o "$work/case" -lm
mkdir -m 1777 "$work/shared"
mkdir -m 755 "$work/mine"
failed=0
check() { # EXPECTED LINK
    cp /dev/null "$work/mine/file" && echo mine >"$work/mine/file"
    output=$("$work/case" "$2" || true)
    [[ $output == *"$1"* ]] || { echo "FAIL $2: says '$output' and not '$1'" && failed=1; }
    if [[ $1 != written && $(<"$work/mine/file") != mine ]]; then echo "FAIL $2: the file behind it was replaced" && failed=1; fi
    echo "$(basename "$2"): $output"
}
as_other() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
as_other ln -s "$work/mine/file" "$work/shared/of_another"
ln -s "$work/mine/file" "$work/shared/of_mine"
ln -s "$work/mine/file" "$work/mine/link"
check "another user's symbolic link" "$work/shared/of_another"
(cd "$work/shared" && check "another user's symbolic link" of_another && exit "$failed") || failed=1
check written "$work/shared/of_mine"
check written "$work/mine/link"
[[ $failed == 0 ]]
