#!/usr/bin/env bash
# Packs what a machine with a GPU and without a network lacks: FBGEMM's CUDA build and the packages around it, in the
# checkout's build/gpu/load-1 (and more, if one would be over 50 MiB).
#   benchmarks/gpu/pack.sh          ARCH=90 (an H100 or H200; 80 is an A100) LEVEL=6 (of Zstandard)
# Downloads 465 MB. Needs python3 with pip, zstd, unzip, and 4 GB of disk; takes a minute or two of one core.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts=benchmarks/gpu work=build/gpu
python=${PYTHON:-python3}
arch=${ARCH:-90}
python_version=3.12
# FBGEMM 1.6 is the one of torch 2.11 and CUDA 13. TorchRec is the project's own version: it needs no more of FBGEMM than
# some names in new places (aliases.py); TorchRec 1.6, FBGEMM 1.6's contemporary, lacks what the trainer calls.
packages=(fbgemm-gpu==1.6.0 torchrec==1.9.2 tensordict==0.15.3 pyvers==0.2.3 iopath==0.1.9 pydantic==2.14.4 pydantic-core==2.50.5
    annotated-types==0.8.0 typing-inspection==0.4.5 typer==0.29.2 annotated-doc==0.0.7 nvidia-ml-py==13.615.71)
part_bytes=$((50 * 1024 * 1024))
wheel() { # package: the pattern of its file; unzip takes it too
    local name=${1%%==*}
    echo "$work/wheels/${name//-/_}-${1##*==}-*.whl"
}

for program in zstd unzip; do
    command -v $program >/dev/null || { echo "$program was not found; hint: install it (Debian: apt install $program)" >&2 && exit 1; }
done
"$python" -m pip --version >/dev/null 2>&1 || { echo "$python has no pip; hint: name another one: PYTHON=... $0" >&2 && exit 1; }
mkdir -p $work/wheels
platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux1_x86_64)
for package in "${packages[@]}"; do
    compgen -G "$(wheel "$package")" >/dev/null ||
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version $python_version \
            --implementation cp "${platforms[@]/#/--platform=}" -d $work/wheels "$package"
done
rm -rf $work/site $work/libraries $work/packed $work/load-*
mkdir -p $work/site $work/libraries $work/packed
for package in "${packages[@]}"; do unzip -q -o "$(wheel "$package")" -d $work/site; done
"$python" $scripts/fatbin.py cut $work/site/fbgemm_gpu $work/libraries "$arch"
"$python" $scripts/aliases.py $work/site
# The checkout is not installed there: its version, which documents name, comes from these lines.
mkdir -p $work/site/neuroshard_operator-0.dist-info
printf 'Metadata-Version: 2.1\nName: neuroshard-operator\nVersion: %s\n' "$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" \
    >$work/site/neuroshard_operator-0.dist-info/METADATA
find $work/site/fbgemm_gpu -maxdepth 1 -name '*.so' -delete
tar -C $work/site -cf - . | zstd -q -9 -f -o $work/packed/small.tar.zst
for library in $work/libraries/*.so; do
    zstd -q -"${LEVEL:-6}" --long=27 -T1 -f "$library" -o "$work/packed/$(basename "$library").zst"
done
rm -rf $work/site $work/libraries
part=1 size=0
mkdir -p $work/load-1
while IFS= read -r file; do
    bytes=$(stat -c %s "$file")
    if ((size > 0 && size + bytes > part_bytes)); then part=$((part + 1)) size=0 && mkdir -p "$work/load-$part"; fi
    mv "$file" "$work/load-$part/"
    size=$((size + bytes))
done < <(ls -S $work/packed/*)
rmdir $work/packed
for load in $work/load-*; do (cd "$load" && sha256sum -- *.zst >SHA256SUMS); done
du -sb $work/load-*
