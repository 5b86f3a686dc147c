#!/usr/bin/env bash
# The version is defined in te/core/version.h. MODULE.bazel, which must spell it out, has to agree with the compiled TE_VERSION_STRING.
# (CMakeLists.txt reads the header, and tests/install.sh compares the versions of find_package and pkg-config.) MODULE.bazel may not
# register toolchains or platforms in the build of a module that depends on this one.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/version.c" <<'C'
#include <stdio.h>
#include "te/core/version.h"
int main(void) {
    printf("%s\n", TE_VERSION_STRING);
    return 0;
}
C
"${CC:-cc}" -std=c11 -Wall -Wextra -pedantic -Werror -I. "$work/version.c" -o "$work/version"
version=$("$work/version")
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "FAIL te/core/version.h: TE_VERSION_STRING is '$version'" && exit 1; }

module=$(sed -n '/^module(/,/^)/s/^ *version = "\([^"]*\)",.*/\1/p' MODULE.bazel)
[[ $module == "$version" ]] || { echo "FAIL MODULE.bazel has version '$module', te/core/version.h $version" && exit 1; }

if grep -nE '^ *(register_toolchains|register_execution_platforms|.*_override)\(' MODULE.bazel; then
    echo "FAIL MODULE.bazel: the lines above change the build of whoever depends on this module" && exit 1
fi
grep -q '"te/core/version.h"\|"core/version.h"' te/te.h || { echo "FAIL te/te.h does not include core/version.h" && exit 1; }
echo "version $version everywhere"
