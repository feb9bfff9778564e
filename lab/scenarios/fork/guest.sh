# shellcheck shell=bash
children=60
[ "$LAB_ENGINE" = uml ] || children=20
run lender rxe0 "$children" "$RANDOM"
