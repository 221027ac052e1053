# Sourced by the gate and the soak: steps with their times, and at the end what could not be checked.
log=$(mktemp)
trap 'rm -f "$log"' EXIT

step() {
    local name=$1 started=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee -a "$log"
    printf -- '-- %s: %d s\n' "$name" $((SECONDS - started))
}

passed() {
    printf '\nall passed in %d s\n' $SECONDS
    grep '^not checked: ' "$log" || true
}
