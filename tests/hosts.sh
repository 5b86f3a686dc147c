#!/usr/bin/env bash
# Ranks on two hosts of two ranks each: two network namespaces on this machine with a link between them, and names of their own. Which
# ranks are on which host, sums in two levels, losses that do not depend on the hosts, a start by an address, a link that is slow
# and one that is cut. Without namespaces (`unshare -Urnum` is not permitted) the same ranks run on one host that is split by
# te_comm_config.host, and a line says what was left out. Prints SKIP if there is no MPI.
#
#     tests/hosts.sh
set -euo pipefail
cd "$(dirname "$0")/.."
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
mca=(--oversubscribe -n 4)

fail() { # FILE... with what was printed
    cat "$@"
    exit 1
}
if [[ ${1:-} != inside ]]; then
    if ! command -v mpicc mpirun >/dev/null; then
        echo "SKIP: no mpicc or mpirun (libopenmpi-dev, openmpi-bin)"
        exit 0
    fi
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    read -ra compile <<<"$(mpicc -showme:compile | sed 's/-I/-isystem /g')"
    read -ra link <<<"$(mpicc -showme:link)"
    for program in hosts ranks; do
        "${CC:-gcc}" -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wshadow -Werror -DTE_COMM -DTE_KEEP_CALLS -I. "${compile[@]}" \
            "tests/comm/$program.c" -o "$work/$program" -lm "${link[@]}"
    done
    timeout 120 mpirun "${mca[@]}" "$work/hosts" layout
    for layout in aabb abab abba; do timeout 120 mpirun "${mca[@]}" "$work/hosts" sums $layout; done
    if ! command -v ip nsenter >/dev/null || ! unshare -Urnum ip link add to_b type veth peer name to_a 2>/dev/null; then
        echo "LEFT OUT: two hosts with a link between them, because network namespaces are not permitted here (unshare -Urnum)"
        exit 0
    fi
    unshare -Urnum "$0" inside "$work"
    exit
fi

# Host a is this shell, host b the namespaces of a process that sleeps.
work=$2
hostname host-a
unshare -nu sleep 600 &
b=$!
trap 'kill $b $(jobs -p) 2>/dev/null || true' EXIT
until [[ $(readlink /proc/$b/ns/net) == net:* && $(readlink /proc/$b/ns/net) != $(readlink /proc/$$/ns/net) ]]; do sleep 0.05; done
on_b() { nsenter -t "$b" -n -u "$@"; }
on_b hostname host-b
ip link set lo up
ip link add to_b type veth peer name to_a netns "$b"
ip address add 10.77.0.1/24 dev to_b
ip link set to_b up
on_b ip link set lo up
on_b ip address add 10.77.0.2/24 dev to_a
on_b ip link set to_a up

# mpirun starts its daemon on host b by this program in place of ssh.
printf '#!/usr/bin/env bash\nshift\nexec nsenter -t %s -n -u bash -c "$*"\n' "$b" >"$work/agent"
chmod +x "$work/agent"
mkdir -p "$work/mpi"
export TMPDIR=$work/mpi
mca+=(--host "10.77.0.1:2,10.77.0.2:2" --mca plm_rsh_agent "$work/agent" --mca btl_tcp_if_include 10.77.0.0/24
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl "tcp,self,vader")

timeout 60 mpirun "${mca[@]}" --map-by slot "$work/hosts" sums
timeout 60 mpirun "${mca[@]}" --map-by node "$work/hosts" sums
timeout 60 mpirun "${mca[@]}" --map-by node "$work/ranks" gpt 2 >"$work/log" 2>&1 && fail "$work/log"
grep -q "ranks 0 and 1 share a replica (config.tensor is 2), but run on host-a and host-b" "$work/log" || fail "$work/log"
echo "a tensor group on two hosts: refused by name"

# The GPT of tests/comm/ranks.c: 50 losses and the last gradient norm on 2 x 2 ranks of two hosts, and on one rank.
"$work/ranks" gpt 1 >"$work/one"
for grid in "2 slot" "1 slot" "1 node"; do
    read -r tensor order <<<"$grid"
    timeout 60 mpirun "${mca[@]}" --map-by "$order" "$work/ranks" gpt "$tensor" >"$work/many" || fail "$work/many"
    paste "$work/one" "$work/many" | awk -v grid="$tensor ranks a tensor group, ranks by $order" '
        { off = ($2 - $4) / $2; off = off < 0 ? -off : off; max = off > max ? off : max; limit = $1 == "norm" ? 1e-4 : 1e-5 }
        off > limit { print grid ": step " $1 " is " $4 ", on one rank " $2; bad = 1 }
        END { print "two hosts, " grid ": " NR " numbers, " max " off at most"; exit bad || NR != 51 }'
done

# The start by an address: all processes print the id of rank 0, or an error by the timeout.
by_address() { # SECONDS RANK...: ranks 2 and 3 are on host b
    local seconds=$1 starts=() rank
    : >"$work/log"
    for rank in "${@:2}"; do
        local on=()
        ((rank < 2)) || on=(on_b)
        TE_COMM_SECRET="a secret of this test" "${on[@]}" "$work/hosts" address "$rank" 4 10.77.0.1:29510 "$seconds" >>"$work/log" &
        starts+=($!)
    done
    for start in "${starts[@]}"; do wait "$start" || true; done
}
by_address 20 0 1 2 3
[[ $(grep -c ": id " "$work/log") == 4 && $(sed 's/.*: id //' "$work/log" | sort -u | wc -l) == 1 ]] || fail "$work/log"
echo "a start by an address on host a: four ranks have the same id"
ip link set to_b down
by_address 2 0 1 2 3
ip link set to_b up
grep -q "rank 0: after 2.[0-9] s: .*rank 2 has not come to rank 0 within 2 seconds (2 of 4 ranks are missing)" "$work/log" || fail "$work/log"
[[ $(grep -c "rank [23]: after [2-4].[0-9] s: .*rank 0 has not listened at config.address \"10.77.0.1:29510\" within 2 seconds" "$work/log") == 2 ]] || fail "$work/log"
echo "a start by an address with the link cut: all ranks say so after 2 seconds"

# A slow link. tbf limits the bytes in a second, netem also delays; not every kernel has both. The times depend on what else this machine
# does, so the bytes that host a sends are checked: in two levels those of the tensor, in one level almost twice as many.
slow() { # a command that limits the link in both directions
    tc qdisc add dev to_b root "$@" 2>/dev/null && on_b tc qdisc add dev to_a root "$@" 2>/dev/null
}
if slow netem delay 5ms rate 50mbit || slow tbf rate 50mbit burst 256k latency 400ms; then
    timeout 100 mpirun "${mca[@]}" --map-by slot "$work/hosts" speed 2 >"$work/log" || fail "$work/log"
    head -n 1 "$work/log"
    awk '/one level/ { one = $8; two = $(NF - 1) } END { exit !(two > 1 && two < 2.2 && one > 1.5 * two) }' "$work/log" || fail "$work/log"
    tc qdisc del dev to_b root && on_b tc qdisc del dev to_a root
else
    echo "LEFT OUT: a slow link, because this kernel has neither netem nor tbf"
fi

# A link that is cut while all ranks sum: each returns an error within the timeout.
timeout 60 mpirun "${mca[@]}" --map-by slot "$work/hosts" cut 3 >"$work/log" 2>"$work/err" &
run=$!
until grep -q "the ranks have met" "$work/log" || ! kill -0 $run 2>/dev/null; do sleep 0.1; done
sleep 0.5
ip link set to_b down
for ((i = 0; i < 100; i++)); do # the output of host b comes only over the link
    [[ $(grep -c "rank [01]: after" "$work/log") == 2 ]] && break
    sleep 0.1
done
ip link set to_b up
for ((i = 0; i < 150; i++)); do
    [[ $(grep -c "rank [0-3]: after" "$work/log") == 4 ]] && break
    sleep 0.1
done
kill $run 2>/dev/null || true
[[ $(grep -c "rank [0-3]: after [0-3].[0-9] s: .*another rank has not come within 3 seconds" "$work/log") == 4 ]] || fail "$work/log" "$work/err"
echo "a link that is cut: all four ranks return an error after 3 seconds"
