# shellcheck shell=bash
children=60
[ "$LAB_ENGINE" = uml ] || children=20
run lender rxe0 "$children" "$RANDOM"
run edges rxe0
run late rxe0 late
