#!/bin/bash
# A Ray cluster by hand: `ray-cluster.sh head` on one machine, `ray-cluster.sh join HEAD_IP` on every other, then on the
# first: rollenv train ... runtime=ray ray.address=HEAD_IP:6379. `ray-cluster.sh stop` on each ends it.
set -euo pipefail
export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
PORT=${RAY_PORT:-6379}
case "${1:-}" in
  head) ray start --head --port="$PORT" --disable-usage-stats ;;
  join) ray start --address="${2:?the address of the head}:$PORT" --disable-usage-stats ;;
  stop) ray stop ;;
  *) echo "usage: $0 head | join HEAD_IP | stop" >&2; exit 2 ;;
esac
