# shellcheck shell=bash
run ping -c 2 -i 0.2 -W 5 "$LAB_HOST_IP"

step 'a greeting on the control channel'
say "hello from $LAB_GUEST"
[ "$(hear)" = 'port 7777' ] || fail 'the host program does not tell its port'

step 'an echo over TCP'
answer=$(echo marco | nc -w 10 "$LAB_HOST_IP" 7777) || fail "nc exited with $?"
[ "$answer" = 'polo: marco' ] || fail "the answer is '$answer'"
echo "$answer" | tee out/answer
