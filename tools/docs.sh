#!/usr/bin/env bash
# Makes the documentation as a site in build/docs/site: README.md, docs/, results of benchmarks, comments of public headers.
#
#     tools/docs.sh            builds the site; open build/docs/site/index.html
#     tools/docs.sh serve      builds it and serves it on http://localhost:8000
#
# MkDocs and its theme come from the Python package index, into build/docs/venv. Exit code 77: they cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/docs
venv=${TE_DOCS_VENV:-$PWD/$out/venv}
mkdir -p "$out"

install() {
    python3 -m venv "$venv" || { # Debian has it in a package of its own
        local sudo=
        [[ $(id -u) == 0 ]] || sudo="sudo -n"
        $sudo apt-get install -y -qq python3-venv && python3 -m venv "$venv"
    } || return 1
    "$venv/bin/pip" install --quiet --retries 1 --timeout 20 mkdocs==1.6.1 mkdocs-material==9.8.2
}
if ! "$venv/bin/python" -c 'import mkdocs, material' 2>/dev/null; then
    echo "installing MkDocs to $venv"
    install >"$out/install.log" 2>&1 || { echo "MkDocs cannot be installed: $out/install.log"; exit 77; }
fi
tools/docs.py stage "$out"
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --quiet --strict --clean --config-file "$out/mkdocs.yml"
echo "$out/site/index.html"
if [[ ${1:-} == serve ]]; then exec python3 -m http.server 8000 --directory "$out/site"; fi
