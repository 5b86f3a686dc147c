#!/usr/bin/env bash
# Programs that use te as an installed library must build and run: by find_package, pkg-config, FetchContent and add_subdirectory, on
# the host and, if there is nvcc, with CUDA (compiled and linked, not run). Installs into a temporary folder, moves it, and builds
# from there. Prints `skipped: ...` if there is no cmake or no pkg-config; tools/setup.sh installs them.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
for tool in cmake pkg-config; do
    command -v $tool >/dev/null || { echo "skipped: NO $tool, THE PACKAGE WAS NOT TESTED (tools/setup.sh installs it)" && exit; }
done
source tests/shell/nvcc.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
strict="-Wall -Wextra -pedantic -Werror"
version=$(sed -n 's/^#define TE_VERSION_[A-Z]* \([0-9]*\)$/\1/p' te/core/version.h | paste -sd.)

quiet() { # COMMAND...: its output is shown only if it fails
    "$@" >"$work/log" 2>&1 || { cat "$work/log" && echo "FAIL $*" && exit 1; }
}
refused() { # TEXT COMMAND...: it must fail and say TEXT
    ! "${@:2}" >"$work/log" 2>&1 || { echo "FAIL it was taken: ${*:2}" && exit 1; }
    [[ $(tr -s ' \n' ' ' <"$work/log") == *"$1"* ]] || { cat "$work/log" && echo "FAIL no '$1' in what it says: ${*:2}" && exit 1; }
}
configure() { # SOURCE BUILD OPTION...: strictly C11
    cmake -S "$1" -B "$2" -DCMAKE_C_STANDARD=11 -DCMAKE_C_EXTENSIONS=OFF -DCMAKE_C_FLAGS="$strict" "${@:3}"
}
runs() { # BINARY: examples/embed compares what it computes with double arithmetic
    "$1" >"$work/log" || { cat "$work/log" && echo "FAIL $1" && exit 1; }
    grep -q "^target: host" "$work/log"
}
same_tree() { # FOLDER: holds every header, and nothing else
    diff <(cd "$tree" && find te -name '*.h' -o -name '*.inc' | sort) <(cd "$1" && find te -type f | sort) &&
        (cd "$tree" && find te -name '*.h' -o -name '*.inc') | while read -r file; do cmp "$tree/$file" "$1/$file"; done
}

# ---- install
quiet cmake -S . -B "$work/build"
quiet cmake --install "$work/build" --prefix "$work/made"
mv "$work/made" "$work/moved" # an installed file may not contain the path of its first folder
prefix=$work/moved
same_tree "$prefix/include"
! grep -rlF -e "$tree" -e "$work" "$prefix/share" || { echo "FAIL the files above name a folder of this machine" && exit 1; }
echo "installed te $version"

# ---- the host
cp -r examples/embed "$work/embed" # outside of this tree, so that te.h is the installed one
host=(-DCMAKE_CUDA_COMPILER=OFF)
quiet configure "$work/embed" "$work/found" "${host[@]}" -DCMAKE_PREFIX_PATH="$prefix"
quiet cmake --build "$work/found"
runs "$work/found/embed"
! grep -rlF "$tree/te" "$work/found" || { echo "FAIL find_package: the files above use the headers of this tree" && exit 1; }
echo "find_package: built and run"

quiet configure "$work/embed" "$work/fetched" "${host[@]}" -DTE_SOURCE=.
quiet cmake --build "$work/fetched"
runs "$work/fetched/embed"
quiet cmake --install "$work/fetched" --prefix "$work/nothing"
[[ ! -e $work/nothing ]] || { echo "FAIL FetchContent: te is installed with a program that only uses it" && exit 1; }
echo "FetchContent: built and run"

export PKG_CONFIG_PATH=$prefix/share/pkgconfig
[[ $(pkg-config --modversion te) == "$version" ]] || { echo "FAIL te.pc has another version" && exit 1; }
read -ra flags <<<"$(pkg-config --cflags te)"
read -ra libraries <<<"$(pkg-config --libs te)"
# shellcheck disable=SC2086
"${CC:-cc}" -std=c11 $strict "${flags[@]}" "$work/embed/main.c" -x c "$work/embed/model.cu" -o "$work/with_pkg_config" "${libraries[@]}"
runs "$work/with_pkg_config"
echo "pkg-config: built and run"

project() { # NAME: a project in $work/NAME, of what stands on stdin and the sources of the example
    cp -r "$work/embed" "$work/$1"
    { echo "cmake_minimum_required(VERSION 3.20)" && cat; } >"$work/$1/CMakeLists.txt"
}
project subdirectory <<CMAKE
project(app LANGUAGES C)
add_subdirectory("$tree" te)
set_source_files_properties(model.cu PROPERTIES LANGUAGE C)
add_executable(app main.c model.cu)
target_link_libraries(app PRIVATE te::te)
CMAKE
quiet configure "$work/subdirectory" "$work/subdirectory/build"
quiet cmake --build "$work/subdirectory/build"
runs "$work/subdirectory/build/app"
echo "add_subdirectory: built and run"

project blas <<'CMAKE'
project(app LANGUAGES C)
find_package(te REQUIRED COMPONENTS cblas)
set_source_files_properties(model.cu PROPERTIES LANGUAGE C)
add_executable(app main.c model.cu)
target_link_libraries(app PRIVATE te::cblas)
CMAKE
if printf '#include <cblas.h>\nint main(void) { return 0; }\n' | "${CC:-cc}" -x c - -o /dev/null -lopenblas 2>/dev/null; then
    quiet configure "$work/blas" "$work/blas/build" -DCMAKE_PREFIX_PATH="$prefix"
    quiet cmake --build "$work/blas/build"
    runs "$work/blas/build/app"
    nm "$work/blas/build/app" >"$work/log"
    grep -q 'U cblas_sgemm' "$work/log" || { echo "FAIL te::cblas: no call of cblas_sgemm" && exit 1; }
    echo "te::cblas: built and run"
else
    echo "te::cblas: skipped, there is no OpenBLAS"
fi
refused "no component cblas" configure "$work/blas" "$work/blas/without" -DCMAKE_PREFIX_PATH="$prefix" -DTE_CBLAS_LIBRARY=OFF

project newer <<'CMAKE'
project(app LANGUAGES NONE)
find_package(te 0.2 REQUIRED)
CMAKE
refused "compatible with requested version" cmake -S "$work/newer" -B "$work/newer/build" -DCMAKE_PREFIX_PATH="$prefix"
echo "a missing component and another version: refused"

# ---- CUDA
if [[ ! -x $nvcc ]]; then
    echo "CUDA: skipped, there is no nvcc"
    exit
fi
export CUDACXX=$nvcc
quiet configure "$work/embed" "$work/cuda" -DCMAKE_PREFIX_PATH="$prefix"
quiet cmake --build "$work/cuda"
readelf -d "$work/cuda/embed" >"$work/log"
grep -q 'NEEDED.*libcublasLt' "$work/log" || { echo "FAIL CUDA: cuBLASLt is not linked" && exit 1; }
echo "find_package with CUDA: compiled and linked"

# A project that has CUDA, with one program that uses it and one that does not: checks what they would link, without building them.
cp "$work/embed/model.cu" "$work/embed/model.c"
project mixed <<CMAKE
project(app LANGUAGES C CUDA)
add_subdirectory("$tree" te)
add_executable(host main.c model.c)
add_executable(gpu main.c model.cu)
add_executable(alone main.c model.cu)
target_link_libraries(host PRIVATE te::te)
target_link_libraries(gpu PRIVATE te::te)
target_link_libraries(alone PRIVATE te::no_cublaslt)
CMAKE
quiet configure "$work/mixed" "$work/mixed/build" -G "Unix Makefiles" -DCMAKE_CUDA_ARCHITECTURES=90a
links() { grep -rqF -e "$2" "$work/mixed/build/CMakeFiles/$1.dir" --include='link.txt' --include='*.rsp'; }
if ! links gpu "/libcublasLt.so" || ! links host "-lm" || links host "cublasLt"; then
    echo "FAIL CUDA: cuBLASLt is for the program with kernels alone, libm for both" && exit 1
fi
flags=$work/mixed/build/CMakeFiles/alone.dir/flags.make
if links alone "cublasLt" || ! links alone "-lm" || ! grep -q -e "^CUDA_DEFINES.*-DTE_NO_CUBLASLT" "$flags" || ! grep -qF -e "-I$tree" "$flags"; then
    echo "FAIL CUDA: te::no_cublaslt" && exit 1
fi
echo "add_subdirectory with CUDA: cuBLASLt for the program with kernels alone, and not with te::no_cublaslt"

# The installed te::no_cublaslt: where headers are, and what it defines.
project installed <<'CMAKE'
project(app LANGUAGES C)
find_package(te REQUIRED)
file(WRITE "${CMAKE_BINARY_DIR}/alone.c" "#include <te/core/version.h>\n#ifndef TE_NO_CUBLASLT\n#error\n#endif\nint main(void) { return 0; }\n")
add_executable(alone "${CMAKE_BINARY_DIR}/alone.c")
target_link_libraries(alone PRIVATE te::no_cublaslt)
CMAKE
quiet configure "$work/installed" "$work/installed/build" -DCMAKE_PREFIX_PATH="$prefix"
quiet cmake --build "$work/installed/build"
echo "te::no_cublaslt: built"
