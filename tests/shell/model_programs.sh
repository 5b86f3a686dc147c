# model_programs.sh -- sourced by the scripts that compile the programs of examples/generate for small models which a Python with numpy writes.
# Finds that Python and the libraries (without them it prints `skipped: ...` and ends the script), and makes the folder $work.
source tests/shell/nvcc.sh
python=
for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
    "$candidate" -c 'import numpy' 2>/dev/null && python=$candidate && break
done
[[ -n $python ]] || { echo "skipped: no Python with numpy" && exit; }
libraries=(libpcre2-8 libutf8proc)
pkg-config --exists "${libraries[@]}" || { echo "skipped: pkg-config does not find all of ${libraries[*]}" && exit; }
read -ra flags <<<"$(pkg-config --cflags --libs "${libraries[@]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1

passed=0
bad() { echo "FAIL: $1" && exit 1; }
ok() { passed=$((passed + 1)) && echo "ok: $1"; }

compile=("${CC:-gcc}" -std=c11 -O1 -DTE_KEEP_CALLS -Wall -Wextra -Wshadow -Werror -I.)
objects=()
compile_objects() { # NAME...: sources beside the program's own, which all models share
    local name
    for name; do
        "${compile[@]}" -c "examples/generate/$name.c" -o "$work/$name.o"
        objects+=("$work/$name.o")
    done
}
build_program() { # NAME HEADER BINARY OPTION...: examples/generate/NAME.c for the model that HEADER describes (configure.py)
    "${compile[@]}" "${@:4}" -DMODEL_CONFIG="\"$2\"" "examples/generate/$1.c" "${objects[@]}" -o "$3" "${flags[@]}" -lm
}
compile_cuda() { # NAME HEADER OBJECT OPTION...
    "$nvcc" -gencode arch=compute_90a,code=sm_90a "${@:4}" -DMODEL_CONFIG="\"$2\"" -I. -x cu -c "examples/generate/$1.c" -o "$3"
}
build_program_cuda() { # NAME HEADER BINARY OPTION...
    compile_cuda "$1" "$2" "$3.o" -O1 "${@:4}"
    "$nvcc" "$3.o" "${objects[@]}" -o "$3" -lcublasLt "${flags[@]}"
}
only_compile_cuda() { # NAME HEADER: to see that nvcc accepts it, so without optimisation
    compile_cuda "$1" "$2" "$work/cuda.o" -O0 -Ofc=max >"$work/log" 2>&1 || bad "nvcc refuses $1: $(head -n 20 "$work/log")"
}
