# shellcheck shell=bash
# In the root file system that guest.sh has made.
. /lab/lib.sh
export PATH=/opt/elver:/usr/bin:/usr/sbin
cd /job || fail 'no /job'
rounds=3
step "elver bench start --rounds $rounds"
# rxe has its UDP port on all addresses of the first network namespace, where a node could not have it too.
unshare -n bash -c "ip link set lo up && exec elver bench start --rounds $rounds --json" >out/start.json ||
    fail "it exited with $?"
python3 - out/start.json <<'END' || fail 'rows are missing'
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
for row in rows:
    print(*(f"{key} {value}" for key, value in row.items()))
schemes = ("baseline", "libibverbs", "krcore", "swift", "swift-leased")
wanted = {(start, scheme) for start in ("cold", "warm", "fork") for scheme in schemes}
found = {(row["start"], row["scheme"]) for row in rows}
assert found == wanted, found ^ wanted
assert all(row["control_us"] > 0 for row in rows if row["scheme"] != "baseline"), rows
END
