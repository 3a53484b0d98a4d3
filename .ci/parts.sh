# shellcheck shell=bash
# Runs the parts of .ci/run, LANES (two) at a time, in order if possible. A part's output is shown when it has ended.
#   part NAME AFTER COMMAND   COMMAND is a line of bash; AFTER names parts that it needs, or that use the same resources
#   run_parts FOLDER          runs all, reports the time of each, and fails if one failed; FOLDER is empty
names=() after=() commands=()

part() {
  names+=("$1") after+=("$2") commands+=("$3")
}

begin_part() { # INDEX FOLDER
  set -m # a process group of its own, so that it can be ended whole; tests in it need Ctrl-C
  {
    trap 'echo "$1 $?" >&9' EXIT
    TIMEFORMAT='%0R %0U %0S'
    time bash -euo pipefail -c "${commands[$1]}" 2>&1
  } </dev/null >"$2/${names[$1]}" 2>"$2/${names[$1]}.seconds" &
  set +m
  groups[$1]=$!
}

end_parts() {
  local group
  for group in "${groups[@]}"; do kill -- "-$group" || true; done 2>/dev/null
}

may_begin() { # INDEX ENDED: the parts before it have ended
  local name
  for name in ${after[$1]}; do [[ $2 == *" $name "* ]] || return 1; done
}

run_parts() {
  local folder=$1 waiting=("${names[@]}") ended=" " index status took failed="" summary=""
  groups=()
  mkfifo "$folder/ended"
  exec 9<>"$folder/ended"
  while ((${#waiting[@]} + ${#groups[@]} > 0)); do
    for index in "${!waiting[@]}"; do
      if ((${#groups[@]} < ${LANES:-2})) && may_begin "$index" "$ended"; then
        unset "waiting[$index]"
        begin_part "$index" "$folder"
      fi
    done
    read -r index status <&9
    unset "groups[$index]"
    ended+="${names[$index]} "
    read -r -a took <"$folder/${names[$index]}.seconds" # by the clock; the processor's, as user and as system
    summary+=$(printf '%-11s %5ss, %5ss of processor' "${names[$index]}" "${took[0]}" $((took[1] + took[2])))$'\n'
    printf '\n== %s (%ss)\n' "${names[$index]}" "${took[0]}"
    cat "$folder/${names[$index]}"
    if ((status != 0)); then
      printf '== %s FAILED\n' "${names[$index]}"
      failed+=" ${names[$index]}"
    fi
  done
  printf '\n== all parts\n%s' "$summary"
  if test -n "$failed"; then
    printf 'FAILED:%s\n' "$failed"
    return 1
  fi
}
