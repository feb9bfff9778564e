# shellcheck shell=bash
run ping -c 3 -i 0.2 -W 5 "$LAB_HOST_IP"
