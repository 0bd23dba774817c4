#!/usr/bin/env bash
# Host time of Concertina, of PyTorch's allocator and of RMM's pool, each in the same replay program over the same fake
# CUDA. README.md says what the programs are, and has the tables that this prints.
#
#   PEERS=DIR benches/peers/run.sh             prints the tables
#   PEERS=DIR benches/peers/run.sh --write     puts them into README.md
#
# PEERS    where the programs are: replay, replay_capi, replay_rmm, libcuda.so.1, libcudart.so.13. One that is not there is
#          left out, but for replay_capi and the two libraries.
# TRACES   traces to replay (t1 t2 t7 s6 s7 of benches/traces)
# ROUNDS   how often each program runs, in turn with the others (7)
# PAIRS    pairs of an allocation and a free in a micro benchmark (1000000)
# QUIET    seconds to wait, before each timing, for other processes to leave the machine alone (0)
# OUT      where builds and raw results go (target/peers)
set -euo pipefail
case ${1:-} in
    '' | --write) ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=$(cd "${PEERS:?the directory with the replay programs: see benches/peers/README.md}" && pwd)
rounds=${ROUNDS:-7}
pairs=${PAIRS:-1000000}
quiet=${QUIET:-0}
target=${CARGO_TARGET_DIR:-$root/target}
out=${OUT:-$target/peers}
bundled=$root/benches/traces
if [ -n "${TRACES:-}" ]; then
    read -ra traces <<< "$TRACES"
else
    traces=("$bundled"/{t1,t2,t7,s6,s7}_*)
fi
mkdir -p "$out"

for needed in replay_capi libcuda.so.1 libcudart.so.13; do
    [ -e "$peers/$needed" ] || { echo "no $needed in $peers: see benches/peers/README.md" >&2; exit 2; }
done
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p concertina-peer-capi
library=$target/release/libconcertina_peer_capi.so
# What the fake driver lacks, it has in its runtime. Found by the name that Concertina looks for first.
"${CC:-cc}" -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so -o "$out/libcuda.so" "$here/driver_over_runtime.c" \
    -Wl,--no-as-needed -L"$peers" -l:libcudart.so.13 -l:libcuda.so.1 -Wl,-rpath,"$peers"

names=("concertina balanced" "concertina lean")
[ -x "$peers/replay" ] && names+=("PyTorch native" "PyTorch expandable")
[ -x "$peers/replay_rmm" ] && names+=("RMM pool")

# Runs the program of one name with the other arguments.
run() {
    local name=$1
    shift
    case $name in
        concertina*)
            LD_LIBRARY_PATH=$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CONCERTINA_PEER_POLICY=${name#* } \
                "$peers/replay_capi" --lib="$library" "$@" ;;
        PyTorch*) "$peers/replay" --mode="${name#* }" "$@" ;;
        RMM*) "$peers/replay_rmm" --mr=pool "$@" ;;
    esac
}

raw=$out/raw.jsonl
: > "$raw"
# Runs every program once with these arguments, one after the other. Rules of the driver that an allocator breaks end it: the
# fake tells them on the standard error.
each() {
    for name in "${names[@]}"; do
        run "$name" --repeats=1 --quiet="$quiet" "$@" | sed "s/^{/{\"name\": \"$name\", /" >> "$raw"
    done
}

for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds" >&2
    each --micro=all --n="$pairs" --seed="$round"
    # A replay is short, and not in parts.
    for _ in 1 2 3; do
        each --loops=2 "${traces[@]}"
    done
done

tables() {
    local processor
    processor=$(lscpu | sed -n 's/^Model name: *//p' | head -1)
    echo "$(date -I), $processor, $(nproc) CPUs, $(rustc --version | cut -d' ' -f1-2), $rounds rounds."
    awk -v names="$(IFS='|'; echo "${names[*]}")" -f "$here/tables.awk" "$raw"
}

if [ "${1:-}" = --write ]; then
    # What stands between the two marks goes.
    tables > "$out/tables.md"
    awk -v tables="$out/tables.md" '
        /^<!-- end of tables -->$/ { inside = 0 }
        !inside { print }
        /^<!-- tables -->$/ { inside = 1; print ""; while ((getline line < tables) > 0) print line; print "" }
    ' "$here/README.md" > "$out/README.md"
    cp "$out/README.md" "$here/README.md"
else
    tables
fi
