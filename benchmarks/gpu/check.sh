#!/usr/bin/env bash
# Measures one GPU, from a checkout: benchmarks/gpu/check.sh [--cpu] [--seconds N] [STAGE...]
# Unpacks what pack.sh has packed, if it is there and the GPU's image lacks it; else takes what PYTHON has installed. Then
# runs stages one after the other. None stops the others, each has a limit, and what it finds is in $OUT (build/gpu/out)
# at once: results.jsonl, log.txt, records.tar (records and runs), tests.txt, smi.txt.
#   first    basics job tests product-profile    what must work at all, 3 to 4 minutes
#   second   drawn records kernels speed jobs    what is measured, 8 minutes
# Without a stage it runs both, 12 minutes. --cpu tries the scripts on a CPU, with tiny sizes. STRETCH=10 gives every stage
# ten times its limit, for a busy machine.
set -uo pipefail
cpu="" seconds=900
while [[ ${1:-} == --* ]]; do
    case $1 in
    --cpu) cpu=1 && shift ;;
    --seconds) seconds=$2 && shift 2 ;;
    *) echo "unknown option $1; hint: sed -n 2,10p $0" >&2 && exit 2 ;;
    esac
done
cd "$(dirname "$0")/../.." || exit 2
root=$PWD scripts=$PWD/benchmarks/gpu
python=$(command -v "${PYTHON:-python3}") || { echo "${PYTHON:-python3} was not found; hint: PYTHON=.venv/bin/python $0 ..." >&2 && exit 2; }
export OUT=${OUT:-$root/build/gpu/out} KIT_WORK=${KIT_WORK:-$root/build/gpu/work} KIT_CPU=$cpu PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore
export PYTHONDONTWRITEBYTECODE= # each start would compile all packages again
data=$KIT_WORK/out
rm -rf "$KIT_WORK" && mkdir -p "$OUT" "$data"
ends=$((SECONDS + seconds))
exec > >(tee -a "$OUT/log.txt") 2>&1

site=$root/build/gpu/unpacked
if [ -z "$cpu" ]; then
    for load in "$root"/build/gpu/load-*; do # a load of several parts comes in several calls, the last one with stages
        [ -e "$load" ] || continue
        [ -e "$site/.done-${load##*/}" ] || { "$python" "$scripts/unpack.py" "$load" "$site" && touch "$site/.done-${load##*/}"; }
    done
fi
rooms=$(printf "$root/%s:" api costs dense planner report profiler trainer dropin python operator cli)
PYTHONPATH=$rooms$root${PYTHONPATH:+:$PYTHONPATH}
[ -n "$cpu" ] || [ ! -e "$site" ] || PYTHONPATH=$site:$PYTHONPATH
export PYTHONPATH
if ! ldconfig -p 2>/dev/null | grep -q libnvidia-ml.so.1; then # FBGEMM links the driver's management library
    for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64-nvidia; do
        [ -e $folder/libnvidia-ml.so.1 ] && export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
fi
failed=0
stage() { # name, seconds, command...
    local name=$1 limit=$(($2 * ${STRETCH:-1})) left=$((ends - SECONDS)) begun=$SECONDS code
    shift 2
    if ((left < 8)); then echo "=== $name: no time left" && return; fi
    ((limit > left)) && limit=$left
    echo "=== $name, at most $limit s"
    timeout --signal=INT --kill-after=5 "$limit" "$@"
    code=$?
    ((code == 0)) || failed=1
    echo "=== $name: exit $code after $((SECONDS - begun)) s"
    echo "{\"stage\": \"$name\", \"exit\": $code, \"seconds\": $((SECONDS - begun))}" >>"$OUT/results.jsonl"
}
measure() { # seconds of the stage, seconds of each part, parts and options
    local budget=$2 left=$((ends - SECONDS - 10)) # what is begun later than that is stopped before it is a row
    ((budget > left)) && budget=$((left > 0 ? left : 1))
    stage "${*:3}" "$1" "$python" -W ignore -m benchmarks.gpu.measure "${@:3}" --budget "$budget"
}
keep() { tar -C "$data" -cf "$KIT_WORK/records.part" . && mv "$KIT_WORK/records.part" "$OUT/records.tar"; }
(while sleep 10; do keep; done) </dev/null >/dev/null 2>&1 &
keeper=$!
trap 'kill $keeper 2>/dev/null' EXIT
smi() { nvidia-smi -q 2>/dev/null | grep -iE "product name|driver version|cuda version|clocks|graphics|sm  |memory  |power draw|throttle|reason|ecc|mig" >>"$OUT/smi.txt"; }

product_profile() {
    [ -z "$KIT_CPU" ] || export CUDA_VISIBLE_DEVICES=
    "$python" -W ignore -c "from neuroshard_cli.main import main; main()" profile --set spec.profiler.backend=FBGEMM \
        --budget 50s --max-records 12 --set spec.model.embeddingOptimizer=RowWiseAdagrad --out "$data/profile"
}
tests() {
    # -o addopts= leaves out the plug-in for clusters, whose packages may not be here
    "$python" -m pytest -q --maxfail=30 -o addopts="--import-mode=importlib" -o filterwarnings=default -p no:cacheprovider --timeout=60 \
        -m "not processes and not slow and not spark" tests/profiler/devices tests/profiler/benches/test_launch_bench.py \
        tests/profiler/benches/test_codec_bench.py tests/profiler/benches/test_matrix_bench.py tests/profiler/benches/test_compute_bench.py \
        tests/trainer/ranks/test_clocks.py tests/trainer/ranks/test_devices.py tests/trainer/state/test_staging.py >"$OUT/tests.txt" 2>&1
    local code=$?
    tail -20 "$OUT/tests.txt"
    return $code
}
export -f product_profile tests
export python data

run() {
    case $1 in
    basics) measure 90 30 facts contracts correct ;;
    product-profile) stage product-profile 130 bash -c product_profile ;;
    job) measure 60 50 jobs --only first ;;
    tests) stage tests 60 bash -c tests ;;
    records) measure 200 160 records ;;
    kernels) measure 120 45 kernels fusion host ;;
    drawn) measure 110 80 drawn ;;
    jobs) measure 150 140 jobs --only dcnv2,fp16-weights,bf16-pipeline,tf32-plain,heavy,tf32-pipeline,adam-large ;;
    speed) measure 60 45 speed ;;
    first) for each in basics job tests product-profile; do run $each; done ;;
    second) for each in drawn records kernels speed jobs; do run $each; done ;;
    *) echo "unknown stage $1; hint: sed -n 2,10p $0" && failed=1 ;;
    esac
    keep
}
[ $# -gt 0 ] || set -- first second
smi
for asked in "$@"; do run "$asked"; done
smi
keep
errors=$(grep -c '"error"' "$OUT/results.jsonl")
echo "$errors rows of errors in $OUT/results.jsonl"
exit $((failed || errors > 0))
