# shellcheck shell=bash
. /job/both.sh

neighbour "$LAB_HOST_IP"
for transport in rc uc ud; do
    options='-c -n 200'
    client "pingpong $transport $options" ibv_${transport}_pingpong -g 1 $options
    server "pingpong $transport $LAB_IP $options" ibv_${transport}_pingpong -g 1 $options
done
# Messages of many packets, and of an odd length; fewer receives than messages; events.
options='-c -n 20 -s 70001 -m 512'
client "pingpong rc $options -r 3" ibv_rc_pingpong -g 1 $options -e
server "pingpong rc $LAB_IP $options" ibv_rc_pingpong -g 1 $options -e -r 3
