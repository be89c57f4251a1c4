#!/bin/bash
# One node's part of a run, started by srun; in a container where the run has one.  FOLDER is the run's folder of nodes
# as it is seen here, RANK the node's number in the run, or `-` where Slurm has numbered the step's nodes.
#
#   agent.sh FOLDER RANK run CWD COMMAND…        run a command in a process group of its own, and exit as it does
#   agent.sh FOLDER RANK signal NAME [ENTER…]    send a signal to that group; KILL also to what has left it
#   agent.sh FOLDER RANK probe COMMAND…          run a short command beside it
#   agent.sh FOLDER RANK call COMMAND…           the same, and print how it ended with the node's number
#   agent.sh FOLDER RANK keep SECONDS ENTER… -- REMOVE… -- START…
#                                                start what the job's end has to remove, print how that ended, and wait;
#                                                the command in it has SECONDS to end after Slurm ends the job
#   agent.sh FOLDER RANK image ENGINE REF [TAR [ID]]  print the image's id on this node; where it is missing, or is not
#                                                ID, it is loaded or pulled
#   agent.sh FOLDER RANK image-file KIND REF TO [TAR]  make the image file TO, once for all nodes
set -u
trap : USR1 USR2 # what Slurm tells the step is the command's alone
folder=$1 rank=$2 what=$3
shift 3
[ "$rank" != - ] || rank=${SLURM_NODEID:-0}
group=$folder/state/$rank.group

marked() { # processes of this user on this node that carry the run's mark, found by one grep: a node has thousands
  local file
  for file in $(cd /proc && grep -lzx "MADLITE_RUN_ID=$run" [0-9]*/environ 2>/dev/null); do
    [ "${file%/environ}" = "$$" ] || printf '%s\n' "${file%/environ}"
  done
}

end() { # the command, which is told as Slurm tells its own processes: in a container it is none of them
  local until=$((SECONDS + grace))
  local told=${#inside[@]}
  while [ -e "$group" ] && [ "$SECONDS" -lt "$until" ]; do
    if [ "$told" -gt 0 ]; then # once, unless Slurm ended what tells it
      timeout "$grace" "${inside[@]}" bash /madlite/agent.sh /madlite "$rank" signal TERM </dev/null >/dev/null 2>&1 && told=0
    fi
    sleep 0.1
  done
}

remove() { # until Slurm kills this
  for _ in {1..50}; do
    "${removal[@]}" </dev/null >/dev/null 2>&1 && break
    sleep 0.1
  done
}

note_gpus() { # GIVEN CHOSEN: the GPUs of the step by the node's numbers and as GIVEN counts them, and of GIVEN the run's
  { printf '%s %s %s\n' "${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:--}}" "${1:--}" "${2:--}" >"$folder/state/$rank.gpus"; } 2>/dev/null
}

note_visible_gpus() { # what variables leave to the command; HIP's counts those that ROCR's leaves
  local name given="" of_rocr=${HIP_VISIBLE_DEVICES-} id own=""
  local -a list
  for name in ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES; do
    [[ $slurm_gpus != *" $name="* ]] || given=${given:-${!name}}
  done
  if [[ $slurm_gpus == *" ROCR_VISIBLE_DEVICES="* ]]; then
    IFS=, read -ra list <<<"$given"
    for id in ${of_rocr//,/ }; do own+=,${list[id]-?}; done
  fi
  note_gpus "$given" "${own#,}"
}

add_gpus() { # `{gpus IDS RENDERS}WORD`: WORD for each GPU that the run has on this node, or once for all, to start
  # IDS are the run's on the node that madlite is on: the same here if Slurm gives them here too, else as many that it
  # gives.  AMD's are counted as ROCm counts those that this step may open, which is how KFD lists them; RENDERS are
  # their render nodes where it is not here.  NVIDIA's, which an engine outside of the step looks up, as the node does.
  local text=${1#*\}} wanted renders names name given="" id all="" file
  local -a minors=()
  read -r _ wanted renders <<<"${1%%\}*}"
  names="SLURM_STEP_GPUS SLURM_JOB_GPUS CUDA_VISIBLE_DEVICES"
  if [ -n "$renders" ]; then
    names="ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL SLURM_STEP_GPUS SLURM_JOB_GPUS"
    for file in $(printf '%s\n' /sys/class/kfd/kfd/topology/nodes/*/properties | sort -V); do
      id=$(sed -n 's/^drm_render_minor //p' "$file" 2>/dev/null)
      [ "${id:-0}" = 0 ] || minors+=("$id")
    done
    [ ${#minors[@]} -gt 0 ] || for id in ${renders//,/ }; do minors[${id%:*}]=${id#*:}; done
  fi
  for name in $names; do
    if [[ ${!name-} =~ ^[0-9]+(,[0-9]+)*$ ]]; then
      given=${!name}
      break
    fi
  done
  for id in ${wanted//,/ }; do
    if [ -n "$given" ] && [[ ,$given, != *,$id,* ]]; then # others are the run's here
      all=${wanted//[!,]/}
      wanted=$(cut -d , -f "1-$((${#all} + 1))" <<<"$given")
      if [ "${wanted//[!,]/}" != "$all" ]; then
        printf '%s 1 Slurm gives it GPU %s alone, the run has %s on each node\n' "$rank" "$given" "$((${#all} + 1))"
        exit 1
      fi
      break
    fi
  done
  note_gpus "$given" "$wanted"
  if [[ $text == *"{ids}"* ]]; then
    start+=("${text//\{ids\}/$wanted}")
    return
  fi
  for id in ${wanted//,/ }; do
    if [[ $text == *"{render}"* && -z ${minors[id]-} ]]; then
      printf '%s 1 GPU %s, which Slurm gives it, has no render node here\n' "$rank" "$id"
      exit 1
    fi
    name=${text//\{id\}/$id}
    start+=("${name//\{render\}/${minors[id]-}}")
  done
}

case $what in
  run)
    slurm_gpus=$(export -p | grep -E '^declare -x (ROCR|HIP|CUDA)_VISIBLE_DEVICES=')
    # shellcheck source=/dev/null # written by madlite, readable by the run's owner alone
    . "$folder/environment" || exit 127
    eval "$slurm_gpus" # the GPUs that Slurm gives the step on this node
    [ -z "${SLURM_JOB_ID-}" ] || note_visible_gpus # the step itself, or a container that has its variables
    export NODE_RANK=$rank MAD_NODE_RANK=$rank MAD_COLLECT_METRICS=false
    [ "$rank" != 0 ] || MAD_COLLECT_METRICS=true
    if [ -n "${MAD_MULTI_NODE_RUNNER-}" ]; then # a MAD script does not expand what is in it
      for name in NODE_RANK MASTER_ADDR MASTER_PORT; do
        MAD_MULTI_NODE_RUNNER=${MAD_MULTI_NODE_RUNNER//"\$$name"/"${!name-}"}
      done
    fi
    cd "$1" || exit 127
    shift
    # the command's own shell keeps how it ended: a `wait` that a signal interrupts as the command ends may not know it
    ended=$folder/state/$rank.ended
    rm -f "$ended"
    set -m # that shell leads a process group, in which INT is not ignored
    (
      trap : HUP INT QUIT TERM USR1 USR2
      "$@"
      echo $? >"$ended"
    ) </dev/null &
    command=$!
    echo "$command" >"$group"
    # what Slurm sends to the step is passed on
    trap 'kill -TERM -- "-$command" 2>/dev/null' TERM
    trap 'kill -INT -- "-$command" 2>/dev/null' INT
    trap 'kill -USR1 -- "-$command" 2>/dev/null' USR1
    trap 'kill -USR2 -- "-$command" 2>/dev/null' USR2
    while :; do
      wait "$command"
      code=$?
      kill -0 "$command" 2>/dev/null || break
    done
    [ ! -s "$ended" ] || code=$(<"$ended") # there is none where the group was killed
    rm -f "$group" "$ended"
    exit "$code"
    ;;
  signal)
    name=$1
    shift
    if [ $# -gt 0 ]; then
      exec "${@//\{rank\}/$rank}" bash /madlite/agent.sh /madlite "$rank" signal "$name"
    fi
    leader=$(cat "$group" 2>/dev/null)
    if [[ $leader =~ ^[0-9]+$ ]] && [ "$leader" -gt 1 ]; then
      kill "-$name" -- "-$leader" 2>/dev/null
    fi
    if [ "$name" = KILL ]; then
      run=$(cat "$folder/run")
      for process in $(marked); do kill -KILL "$process" 2>/dev/null; done
    fi
    exit 0
    ;;
  probe)
    exec "$@" </dev/null
    ;;
  call)
    said=$("${@//\{rank\}/$rank}" </dev/null 2>&1)
    printf '%s %s %s\n' "$rank" "$?" "${said//$'\n'/; }"
    ;;
  keep)
    grace=$1 inside=() removal=()
    shift
    while [ "$1" != -- ]; do
      inside+=("${1//\{rank\}/$rank}")
      shift
    done
    shift
    while [ "$1" != -- ]; do
      removal+=("${1//\{rank\}/$rank}")
      shift
    done
    shift
    start=()
    for word; do # `{rdma}` begins a word for nodes with RDMA devices
      case $word in
        "{gpus "*) add_gpus "$word" ;;
        "{rdma}"*) [ ! -d /dev/infiniband ] || start+=("${word#"{rdma}"}") ;;
        *) start+=("$word") ;;
      esac
    done
    # Slurm ends the job by TERM to all processes of it, at a time limit twice: docker, which ends at that, is called again
    trap 'exit 143' TERM INT HUP
    trap 'trap "" TERM INT HUP; kill "$(jobs -p)" 2>/dev/null; end; remove' EXIT
    said=$("${start[@]//\{rank\}/$rank}" </dev/null 2>&1)
    code=$?
    printf '%s %s %s\n' "$rank" "$code" "${said//$'\n'/; }"
    [ "$code" = 0 ] || exit "$code"
    sleep infinity </dev/null >/dev/null 2>&1 &
    wait
    ;;
  image)
    engine=$1 image=$2 archive=${3:-} wanted=${4:-}
    here=$("$engine" image inspect --format '{{.Id}}' "$image" 2>/dev/null)
    if [ -z "$here" ] || { [ -n "$wanted" ] && [ "${here#sha256:}" != "${wanted#sha256:}" ]; }; then
      if [ -n "$archive" ] && [ -e "$archive" ]; then
        said=$("$engine" load --quiet --input "$archive" 2>&1)
      else
        said=$("$engine" pull --quiet "$image" 2>&1)
      fi
    fi
    if id=$("$engine" image inspect --format '{{.Id}}' "$image" 2>/dev/null); then
      digest=$("$engine" image inspect --format '{{range .RepoDigests}}{{.}} {{end}}' "$image" 2>/dev/null)
      printf '%s 0 %s %s\n' "$rank" "$id" "${digest%% *}"
    else
      printf '%s 1 %s\n' "$rank" "${said//$'\n'/; }"
    fi
    ;;
  image-file)
    kind=$1 image=$2 to=$3 archive=${4:-}
    if [ ! -e "$to" ]; then # one that is there may lie where this user cannot write
      mkdir -p "${to%/*}" || exit 1
      exec 9>"$to.lock" || exit 1
      flock 9 || exit 1
    fi
    if [ ! -e "$to" ]; then
      rm -f "$to.part"
      case $kind in
        pyxis)
          if [ -n "$archive" ]; then
            printf '%s 1 enroot imports no %s: push the image to a registry\n' "$rank" "$archive"
            exit 0
          fi
          registry=${image%%/*} # which enroot has a # after
          if [ "$registry" != "$image" ] && [[ $registry == *[.:]* || $registry == localhost ]]; then
            image=$registry#${image#*/}
          fi
          said=$(enroot import --output "$to.part" "docker://$image" 2>&1)
          ;;
        *) said=$(apptainer build "$to.part" "${archive:+docker-archive:}${archive:-docker://$image}" 2>&1) ;;
      esac
      # shellcheck disable=SC2181 # of either command
      if [ $? != 0 ] || ! mv "$to.part" "$to"; then
        printf '%s 1 %s\n' "$rank" "${said//$'\n'/; }"
        exit 0
      fi
    fi
    printf '%s 0 sha256:%s\n' "$rank" "$(sha256sum "$to" | cut -d ' ' -f 1)"
    ;;
esac
