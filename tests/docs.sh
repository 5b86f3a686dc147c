#!/usr/bin/env bash
# The documentation as a site: figures name where they are from, the README's picture is that of the printed plan, the site is
# built without a warning, no link is dead, every page can be reached, and a browser opens every page on two widths.
#
#     tests/docs.sh [PICTURES]       PICTURES: a folder for pictures of some pages
#
# Where MkDocs or Chromium cannot be had, the parts that need them are skipped, with a message.
set -euo pipefail
cd "$(dirname "$0")/.."
passed=0 failed=0
check() { # NAME COMMAND...
    local status=0
    echo "--- $1"
    "${@:2}" || status=$?
    if [[ $status == 77 ]]; then echo "skipped: $1"; return 1
    elif [[ $status == 0 ]]; then passed=$((passed + 1))
    else failed=$((failed + 1)) && echo "FAIL $1"; fi
}
check "figures" tools/figures.py
check "picture" tools/plan_picture.py --check
if check "site" timeout 100 tools/docs.sh && [[ $failed == 0 ]]; then
    check "links" tools/docs.py check build/docs/site
    if ! command -v chromium >/dev/null && [[ $(id -u) == 0 ]]; then
        DEBIAN_FRONTEND=noninteractive timeout 100 apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || true
    fi
    check "browser" tests/docs_browser.py build/docs/site "$@" || true
fi
echo "$passed passed, $failed failed"
[[ $failed == 0 ]]
