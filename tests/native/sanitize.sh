#!/usr/bin/env bash
# Builds the native module with sanitisers and runs the tests of all its sources on it: first with those for addresses
# and undefined behaviour, then, for what uses threads, with the one for data races.
# Usage: tests/native/sanitize.sh PYTHON [pytest arguments …]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "$(command -v "${1:-python}")")
shift || true
export PATH="$(dirname "$python"):$PATH"  # cmake and ninja of that environment

for tool in g++ setarch; do
    command -v "$tool" >/dev/null ||
        { echo "error: $tool is missing; install the tools of this check with: apt-get install g++ util-linux" >&2; exit 1; }
done

# The tests of each part that module.cpp binds.
declare -A tests=(
    [isa]="tests/native/test_isa.py"
    [checksum]="tests/index/test_checksum.py"
    [mapping]="tests/torture/test_mapping.py"
    [hash]="tests/index/test_checksum.py tests/index/test_keys.py"
    [masks]="tests/native/test_masks.py tests/index/test_each_filter.py"
    [text]="tests/read/test_tokenizer.py"
    [batch]="tests/training/test_batches.py tests/encode/clsm/test_clsm.py"
    [learn]="tests/training/test_optim.py tests/encode/clsm/test_clsm.py"
    [tower]="tests/encode/clsm/test_sides.py tests/native/test_threads.py"
    [spelling]="tests/encode/test_reranker.py"
    [lexical]="tests/encode/test_reranker.py tests/index/test_rerank.py"
    [product]="tests/encode/binarizer/test_one_code.py tests/index/test_rerank.py"
    [refine]="tests/encode/binarizer/test_refine.py"
    [maxsim]="tests/index/test_maxsim.py"
    [scan]="tests/native/test_native_scan.py tests/search/test_cpu.py tests/search/test_limits.py
        tests/search/test_progressive.py tests/lab/bench/test_bench_scan.py::test_read_sum_reads_everything"
)
# Those that use several threads: of each source that calls in_parallel, and of parts that threads of Python share. Not
# those of mapping.cpp: it maps zeros under pages that other threads are reading, on purpose, and what these threads read
# is not believed.
declare -A threaded=(
    [checksum]="tests/index/test_checksum.py::test_threads_agree"
    [text]="tests/read/test_tokenizer.py::test_any_number_of_threads_gives_the_same_batch"
    [batch]="tests/training/test_batches.py::test_an_epoch_holds_every_pair_once_in_any_number_of_threads"
    [learn]="tests/training/test_optim.py::test_formula_and_untouched_rows"
    [tower]="tests/encode/clsm/test_sides.py::test_same_bits_in_any_batch_with_any_threads
        tests/encode/clsm/test_sides.py::test_threads_share_a_side"
    [spelling]="tests/encode/test_reranker.py::test_features_are_what_they_say"
    [lexical]="tests/encode/test_reranker.py::test_lexical_search_finds_the_highest_scores"
    [product]="tests/encode/binarizer/test_one_code.py::test_products_of_all_shapes
        tests/encode/binarizer/test_one_code.py::test_the_nearest_rounding_is_the_best_of_all_steps"
    [refine]="tests/encode/binarizer/test_refine.py::test_more_moves_are_never_worse_and_threads_change_nothing"
    [maxsim]="tests/index/test_maxsim.py::test_equal_to_numpy"
    [scan_search]="tests/search/test_cpu.py::test_large_enough_to_sample
        tests/search/test_cpu.py::test_threads_share_batches_of_wide_queries
        tests/search/test_limits.py::test_filters_that_pass_few_beside_filters_that_pass_much"
    [scan]="tests/lab/bench/test_bench_scan.py::test_read_sum_reads_everything"
)
# Left out: thousands of small searches, work that is torch's or Python's, and a limit on memory that the sanitisers exceed.
left_out="not torch and not sizes and not norms and not anything and not many_results"
left_out+=" and not every_code_point and not joining_newline and not very_long_text and not fewer_threads"

for part in $(sed -n 's/^ *bind_\([a-z]*\)(m);.*/\1/p' src/rbegir/_native/module.cpp); do
    [[ ${tests[$part]:-} ]] || { echo "error: no tests are named for $part.cpp" >&2; exit 1; }
done
read -ra kernels <<<"$(printf '%s\n' ${tests[*]} | sort -u | tr '\n' ' ')"
for test in "${kernels[@]}" ${threaded[*]}; do
    [[ -f ${test%%::*} ]] || { echo "error: $test does not exist" >&2; exit 1; }
done

run() {  # NAME SANITISERS LIBRARIES pytest arguments …: the libraries must be loaded before the interpreter's
    local build=build/sanitize-$1 sanitisers=$2 libraries=$3
    shift 3
    echo "== $sanitisers"
    rm -f "$build"/module/*.so
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DRBEGIR_SANITIZE="$sanitisers" \
        -DRBEGIR_OUTPUT="$PWD/$build/module" -DPython_EXECUTABLE="$python" >/dev/null
    cmake --build "$build"
    # The tests and the processes that they start must load the sanitised module, wherever the package is installed.
    cat >"$build/module/sitecustomize.py" <<PYTHON
import importlib.util, sys
name = "rbegir._native._core"
spec = importlib.util.spec_from_file_location(name, "$(echo "$PWD/$build"/module/*.so)")
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
PYTHON
    rm -f "$build"/report*
    # Leaks of the interpreter are not ours, and the handler of SIGBUS is (mapping.cpp).
    export {ASAN,TSAN}_OPTIONS="detect_leaks=0:handle_sigbus=0:log_path=$PWD/$build/report"
    LD_PRELOAD=$(for library in $libraries libstdc++.so; do g++ -print-file-name="$library"; done | tr '\n' ' ') \
        PYTHONPATH="$PWD/$build/module" setarch -R "$python" -m pytest -q -p no:cacheprovider -o timeout=1200 "$@" ||
        { cat "$build"/report* >&2 2>/dev/null || true; exit 1; }
}

# OpenBLAS and torch are not built with the thread sanitiser, which then takes their threads for racing.
export UBSAN_OPTIONS=print_stacktrace=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
if (($#)); then chosen=("$@"); else chosen=("${kernels[@]}" -k "$left_out"); fi
run address address,undefined,float-cast-overflow "libasan.so libubsan.so" "${chosen[@]}"
if ((!$#)); then chosen=(${threaded[*]}); fi
run thread thread libtsan.so "${chosen[@]}"
