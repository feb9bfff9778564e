# shellcheck shell=bash
neighbour "$LAB_HOST_IP"
step 'the agent does what the host program says'
interop-agent rxe0 <&9 >&9 || fail "the agent exited with $?"
