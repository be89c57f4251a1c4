#!/usr/bin/env bash
# env_snapshot.sh NAME [lite|full] [GUEST_OS] [FOLDER] [facts|sections]: write down what a run finds around it.
#
# FOLDER (default: ..) gets NAME.csv, with a fact a row as section,name,value, and .NAME/, with what the tools said.
# With `sections` NAME.csv is as madengine's rocEnv writes it: `sep=|`, then for each section a line with its name and
# lines of key|value.
# Nothing is installed, no package is imported, and every tool has a time limit, so that `lite` is done in 2 s; `full`
# asks more tools and waits longer.  It needs bash, and reads with what else is there.  It never fails a run.
#
# Values of variables that may be secrets are masked, wherever they stand.
set -u
variables=() values=() # the environment as it came
for variable in $(compgen -e); do variables+=("$variable") values+=("${!variable-}"); done
export LC_ALL=C
PATH=$PATH:${ROCM_PATH:-/opt/rocm}/bin
name=${1-} mode=${2:-lite} guest=${3-} folder=${4:-..} form=${5:-facts}

say() { echo "env_snapshot: $*"; }
case $name in
  '' | .* | */*)
    say "usage: env_snapshot.sh NAME [lite|full] [GUEST_OS] [FOLDER]" >&2
    exit 0
    ;;
esac
limit_s=1.2 polls=34 # of 0.05 s, in all; a process that hangs in a driver cannot even be killed
[ "$mode" != full ] || limit_s=60 polls=1240
details=$folder/.$name csv=$folder/$name.csv new=$folder/.$name.csv.$$
if ! { mkdir -p -- "$details" && : >"$new"; }; then
  say "nothing is written: $folder cannot be written to" >&2
  exit 0
fi

# Say whether a variable may hold a secret; a number or a switch under a doubtful name is a setting.
is_secret() { # is_secret NAME VALUE
  case " ${MADLITE_SECRET_NAMES:-} " in *" $1 "*) return 0 ;; esac # what madlite keeps as a secret
  case ${1^^} in
    *MAD_SECRETS* | *PASS* | *SECRET*) return 0 ;;
    *TOKEN* | *KEY* | *CREDENTIAL* | *AUTH* | *COOKIE* | PAT | *_PAT) ;;
    *) return 1 ;;
  esac
  case ${2,,} in '' | true | false | yes | no | on | off | none) return 1 ;; esac
  [[ ! $2 =~ ^[0-9.]+$ ]]
}
secrets=() # the longest first: one may be a part of another
for n in "${!variables[@]}"; do
  secret=${values[n]} at=0
  if [ ${#secret} -lt 4 ] || ! is_secret "${variables[n]}" "$secret"; then continue; fi
  while [ "$at" -lt ${#secrets[@]} ] && [ ${#secrets[at]} -ge ${#secret} ]; do at=$((at + 1)); done
  secrets=(${secrets[@]+"${secrets[@]:0:at}"} "$secret" ${secrets[@]+"${secrets[@]:at}"})
done

# what is a secret by its shape, as madlite/secrets/shapes.py has it: tokens, headers, users of URLs that are tokens
tokens='hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{36,}|glpat-[A-Za-z0-9_.-]{20,}'
tokens+='|xox[abeoprs]-[A-Za-z0-9-]*[0-9][A-Za-z0-9-]{9,}|A[KS]IA[A-Z0-9]{16}'
headers='([Aa][Uu][Tt][Hh][Oo][Rr][Ii][Zz][Aa][Tt][Ii][Oo][Nn][^A-Za-z0-9]+([Bb]earer|[Bb]asic|[Tt]oken) +)'
headers+='([^][:space:]"*$<{},;][^][:space:]",;}]{3,})'
users='(https?://)([^]/:@*$<{}"[:space:]]{4,})@'

mask() { # mask TEXT: set `masked`
  local secret
  masked=$1
  for secret in ${secrets[@]+"${secrets[@]}"}; do masked=${masked//"$secret"/***}; done
  while [[ $masked =~ (://[^/@[:space:]]*:)([^/@*[:space:]][^/@[:space:]]*)@ ]]; do
    masked=${masked/"${BASH_REMATCH[0]}"/"${BASH_REMATCH[1]}***@"}
  done
  while [[ $masked =~ $users ]]; do masked=${masked/"${BASH_REMATCH[0]}"/"${BASH_REMATCH[1]}***@"}; done
  while [[ $masked =~ $headers ]]; do masked=${masked/"${BASH_REMATCH[0]}"/"${BASH_REMATCH[1]}***"}; done
  while [[ $masked =~ $tokens ]]; do masked=${masked/"${BASH_REMATCH[0]}"/***}; done
}

fact() { # fact SECTION NAME VALUE: a row, unless there is no value
  [ -z "$3" ] || row "$@"
}
row() {
  mask "$3"
  masked=${masked//[$'\r\n\t']/ }
  printf '%s,"%s","%s"\n' "$1" "${2//\"/\"\"}" "${masked//\"/\"\"}" >>"$new"
}
first() { # first FILE...: the first line of the first file that has one
  local file line
  for file; do
    if [ -r "$file" ] && { read -r line || [ -n "$line" ]; } 2>/dev/null <"$file"; then
      printf '%s' "$line"
      return
    fi
  done
}
has() { command -v "$1" >/dev/null; }

# Ask a tool in the background; what it says goes into FILE of the details.
ask() { # ask FILE COMMAND...
  local file=$details/$1.txt
  shift
  rm -f -- "$file"
  has "$1" && has timeout || return 0
  {
    timeout -k 0.2 "$limit_s" "$@" >"$file" 2>&1
    case $? in 124 | 137) echo "($1 did not answer within $limit_s s)" >>"$file" ;; esac
  } </dev/null &
}
PACKAGES='
import importlib.metadata as m
for d in sorted(m.distributions(), key=lambda d: str(d.metadata["Name"]).lower()): print(d.metadata["Name"], d.version)'

ask_all() {
  ask nvidia-smi nvidia-smi
  ask nvidia-smi_gpus nvidia-smi --query-gpu=index,name,memory.total,driver_version,vbios_version --format=csv
  ask rocm-smi rocm-smi
  ask rocm-smi_gpus rocm-smi --showproductname --showdriverversion --csv
  ask amd-smi_version amd-smi version
  ask amd-smi_gpus amd-smi static --asic --driver --csv
  ask python_packages python3 -c "$PACKAGES"
  ask python_version python3 --version
  ask lscpu lscpu
  ask memory free -m
  ask disks df -hP
  ask nvcc nvcc --version
  ask hipconfig hipconfig --version
  [ "$form" != sections ] || ask_for_sections
  [ "$mode" = full ] || return 0
  ask nvidia-smi_all nvidia-smi -q
  ask nvidia-smi_topology nvidia-smi topo -m
  ask rocm-smi_all rocm-smi -a
  ask rocm-smi_topology rocm-smi --showtopo
  ask amd-smi_static amd-smi static
  ask amd-smi_topology amd-smi topology
  ask rocminfo rocminfo
  ask lspci lspci
  ask numa numactl --hardware
  ask network ip addr
  ask infiniband ibv_devinfo
  ask rdma rdma link
  ask limits bash -c 'ulimit -a'
  ask modules lsmod
  ask packages_dpkg dpkg-query -W
  ask packages_rpm rpm -qa
}

# What madengine's sections need beyond that; in `full` some of it is asked anyway, with more time.
ask_for_sections() {
  ask nvidia-smi_list nvidia-smi -L
  ask rocm-smi_device_id rocm-smi -i -d 0
  ask lsmem lsmem
  if [ "$mode" != full ]; then
    ask rocminfo rocminfo
    ask packages_dpkg dpkg-query -W
    ask packages_rpm rpm -qa
    return
  fi
  ask lshw lshw
  ask dmidecode dmidecode
  ask dmesg dmesg
  ask modinfo_amdgpu modinfo amdgpu
}

system_facts() {
  local PRETTY_NAME=
  fact run mode "$mode"
  fact run guest_os "$guest"
  fact run date "$(printf '%(%Y-%m-%dT%H:%M:%S%z)T' -1)"
  fact system hostname "$(first /proc/sys/kernel/hostname)"
  fact system kernel "$(first /proc/sys/kernel/osrelease)"
  fact system kernel_build "$(first /proc/sys/kernel/version)"
  fact system machine "$(has uname && uname -m)"
  # shellcheck disable=SC1091
  fact system os "$(. /etc/os-release 2>/dev/null && printf '%s' "$PRETTY_NAME")"
  fact system container "$([ -e /.dockerenv ] || [ -e /run/.containerenv ] && echo yes || echo no)"
  fact system numa_balancing "$(first /proc/sys/kernel/numa_balancing)"
  fact system transparent_hugepages "$(first /sys/kernel/mm/transparent_hugepage/enabled)"
}

hardware_facts() {
  local key number model='' processors=0 sockets=0 seen=' '
  while IFS=: read -r key number; do
    number=${number# }
    case $key in
      processor*) processors=$((processors + 1)) ;;
      "model name"*) model=$number ;;
      "physical id"*) case $seen in *" $number "*) ;; *) seen+="$number " sockets=$((sockets + 1)) ;; esac ;;
    esac
  done </proc/cpuinfo
  fact cpu model "$model"
  fact cpu processors "$processors"
  fact cpu sockets "$sockets"
  fact cpu usable "$(has nproc && nproc)"
  fact cpu numa_nodes "$(set -- /sys/devices/system/node/node[0-9]* && [ -e "$1" ] && echo $#)"
  fact cpu governor "$(first /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor)"
  while read -r key number _; do
    case $key in MemTotal: | MemAvailable: | SwapTotal: | HugePages_Total:) fact memory "${key%:}" "$number" ;; esac
  done </proc/meminfo
  fact memory cgroup_limit "$(first /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes)"
  fact memory dev_shm "$(has df && df -hP /dev/shm 2>/dev/null | { read -r _ && read -r _ size _ && echo "$size"; })"
}

# Facts of GPUs that the kernel tells without a tool.
gpu_facts() {
  local node key number info gpu
  for node in /sys/class/kfd/kfd/topology/nodes/[0-9]*; do
    [ -r "$node/properties" ] || continue
    while read -r key number; do
      [ "$key" != gfx_target_version ] || [ "$number" = 0 ] || fact gpu "kfd node ${node##*/} $key" "$number"
    done 2>/dev/null <"$node/properties"
  done
  for info in /proc/driver/nvidia/gpus/*/information; do
    [ -r "$info" ] || continue
    gpu=${info%/*} gpu=${gpu##*/}
    while IFS=: read -r key number; do
      [ "$key" != Model ] || fact gpu "nvidia $gpu model" "${number#"${number%%[![:space:]]*}"}"
    done <"$info"
  done
  fact gpu amdgpu_driver "$(first /sys/module/amdgpu/version)"
  fact gpu nvidia_driver "$(first /proc/driver/nvidia/version)"
  fact rocm version "$(first "${ROCM_PATH:-/opt/rocm}/.info/version" "${ROCM_PATH:-/opt/rocm}/.info/version-dev")"
  fact cuda version "$(first /usr/local/cuda/version.txt)"
}

lines_of() { # lines_of SECTION FILE: a fact for each line that a tool said
  local line n=0
  [ -r "$details/$2.txt" ] || return 0
  while read -r line || [ -n "$line" ]; do
    [ -n "$line" ] && n=$((n + 1)) && fact "$1" "$2 $n" "$line"
  done <"$details/$2.txt"
}

tool_facts() {
  local file package version
  for file in nvidia-smi_gpus rocm-smi_gpus amd-smi_gpus amd-smi_version; do lines_of gpu "$file"; done
  lines_of cuda nvcc
  lines_of rocm hipconfig
  lines_of python python_version
  [ -r "$details/python_packages.txt" ] || return 0
  while read -r package version _; do
    case ${package,,} in
      torch* | *triton* | numpy | transformers | accelerate | peft | datasets | deepspeed | *flash*attn* | \
        transformer*engine* | *megatron* | vllm | sglang | aiter | amdsmi | rocm* | nvidia-nccl* | xformers)
        fact python "$package" "$version"
        ;;
    esac
  done <"$details/python_packages.txt"
}

variable_facts() {
  local n value
  for n in "${!variables[@]}"; do
    value=${values[n]}
    if is_secret "${variables[n]}" "$value"; then value='***'; fi
    row env "${variables[n]}" "$value"
  done
}

# The sections of madengine's rocEnv.
pending='' # the section whose line is not written yet: one without a line of its own has none
begin_section() { pending=$1; }
pair() { # pair KEY VALUE
  [ -n "$2" ] || return 0
  [ -z "$pending" ] || printf -- '------- Section: %s ----------\n' "$pending" >>"$new"
  pending=''
  mask "$2"
  masked=${masked//[$'\r\n\t']/ }
  printf '%s|%s\n' "${1//|/ }" "$masked" >>"$new"
}
trim() { # trim TEXT: set `trimmed`
  trimmed=${1#"${1%%[![:space:]]*}"}
  trimmed=${trimmed%"${trimmed##*[![:space:]]}"}
}
pairs_of() { # pairs_of FILE [PATTERN]: a pair for each line `key: value` of what a tool said, of those keys alone
  local line key
  [ -r "$details/$1.txt" ] || return 0
  while read -r line || [ -n "$line" ]; do
    case $line in *:*) ;; *) continue ;; esac
    trim "${line%%:*}" && key=$trimmed
    [[ -z ${2-} || ${key,,} =~ ^($2)$ ]] || continue
    trim "${line#*:}"
    pair "$key" "$trimmed"
  done <"$details/$1.txt"
}
packages_of() { # packages_of PATTERN: the packages of the system whose names match
  local package version
  if [ -s "$details/packages_dpkg.txt" ]; then
    while read -r package version _; do
      [[ ! ${package,,} =~ $1 ]] || pair "$package" "$version"
    done <"$details/packages_dpkg.txt"
  elif [ -r "$details/packages_rpm.txt" ]; then
    while read -r package _; do
      [[ ! ${package,,} =~ $1 ]] || pair "${package%-*-*}" "${package#"${package%-*-*}-"}"
    done <"$details/packages_rpm.txt"
  fi
}
variables_like() { # variables_like PATTERN: the variables of which name or value match
  local n value
  for n in "${!variables[@]}"; do
    value=${values[n]}
    [[ ${variables[n],,}=${value,,} =~ $1 ]] || continue
    if is_secret "${variables[n]}" "$value"; then value='***'; fi
    pair "${variables[n]}" "$value"
  done
}

gpu_vendor() {
  local line
  if [ -r "$details/nvidia-smi_list.txt" ] && read -r line <"$details/nvidia-smi_list.txt" && [[ $line == GPU* ]]; then
    echo NVIDIA
  elif [ -s "$details/rocminfo.txt" ] || [ -s "$details/rocm-smi.txt" ]; then
    echo AMD
  fi
}

amd_gpu() { # the first GPU that rocminfo lists, and how many there are
  local line key agent='' uuid='' marketing='' vendor='' count=0
  local first_agent='' first_uuid='' first_marketing='' first_vendor=''
  [ -r "$details/rocminfo.txt" ] || return 0
  while IFS=: read -r key line; do
    trim "$key" && key=$trimmed
    trim "$line"
    case $key in
      Name) case $trimmed in *--gfx*) ;; *) agent=$trimmed ;; esac ;; # its instruction set has a name, too
      Uuid) uuid=$trimmed ;;
      "Marketing Name") marketing=$trimmed ;;
      "Vendor Name") vendor=$trimmed ;;
      "Device Type")
        [ "$trimmed" = GPU ] || continue
        count=$((count + 1))
        [ "$count" != 1 ] || first_agent=$agent first_uuid=$uuid first_marketing=$marketing first_vendor=$vendor
        ;;
    esac
  done <"$details/rocminfo.txt"
  pair Name "$first_agent"
  pair Uuid "$first_uuid"
  pair "Marketing Name" "$first_marketing"
  pair "Vendor Name" "$first_vendor"
  pair "Num GPU" "$count"
}

nvidia_gpu() {
  local line product='' uuid='' count=0
  while read -r line; do
    [[ $line =~ ^GPU\ [0-9]+:\ (.*)\ \(UUID:\ (.*)\)$ ]] || continue
    count=$((count + 1)) product=${BASH_REMATCH[1]} uuid=${BASH_REMATCH[2]}
  done <"$details/nvidia-smi_list.txt"
  pair Name "$product"
  pair Uuid "$uuid"
  pair "Num GPU" "$count"
}

vendor_sections() { # vendor_sections VENDOR
  local line
  if [ "$1" = AMD ]; then
    begin_section rocm_smi_gpudeviceid
    [ -r "$details/rocm-smi_device_id.txt" ] && while read -r line; do
      [[ $line =~ Device\ ID:[[:space:]]*(.*) ]] && pair "GPU Device ID" "${BASH_REMATCH[1]}" && break
    done <"$details/rocm-smi_device_id.txt"
    begin_section rocm_information
    pair "ROCm version" "$(first "${ROCM_PATH:-/opt/rocm}/.info/version" "${ROCM_PATH:-/opt/rocm}/.info/version-dev")"
    begin_section rocm_packages_installed
    packages_of 'rocm|^hip|hsa|rccl|miopen|amdgpu|amd-smi|^roc|hcc|comgr|composable|migraphx|mivisionx|rpp|^half|openmp'
    begin_section rocm_env_variables
    variables_like 'rocm|hsa|hip|mpi|openmp|ucx|miopen'
  elif [ "$1" = NVIDIA ]; then
    begin_section cuda_information
    [ -r "$details/nvcc.txt" ] && while read -r line; do
      [[ ! $line =~ Build\ (.*) ]] || pair "CUDA Version" "${BASH_REMATCH[1]}"
    done <"$details/nvcc.txt"
    begin_section cuda_packages_installed
    packages_of 'cuda|^libcu(blas|dnn|fft|file|inj|pti|rand|solver|sparse|tensor)|nccl|nvinfer|nvjpeg|onnx|hdf5|atlas'
    begin_section cuda_env_variables
    variables_like 'cuda|nvidia|pytorch|mpi|openmp|ucx'
  fi
}

full_sections() {
  local line count=0
  begin_section hardware_information
  pairs_of lshw 'product|vendor|serial|width|size|description|capabilities|clock'
  begin_section bios_settings
  pairs_of dmidecode
  begin_section dmsg_gpu_drm_atom_logs
  [ -r "$details/dmesg.txt" ] && while [ "$count" -lt 50 ] && read -r line; do
    [[ ! ${line,,} =~ gpu|drm|atom|nvrm|kfd|xgmi|iommu|(^|[^a-z])(ras|ecc|page\ fault|fault)([^a-z]|$) ]] || { pair Log "$line" && count=$((count + 1)); }
  done <"$details/dmesg.txt"
  begin_section amdgpu_modinfo
  pairs_of modinfo_amdgpu
}

write_sections() {
  local PRETTY_NAME='' vendor package version
  vendor=$(gpu_vendor)
  begin_section os_information
  pair Distribution "$(has uname && uname -s)"
  pair "Node name" "$(first /proc/sys/kernel/hostname)"
  pair "Kernel version" "$(first /proc/sys/kernel/osrelease)"
  # shellcheck disable=SC1091
  pair "OS version" "$(. /etc/os-release 2>/dev/null && printf '%s' "$PRETTY_NAME")"
  begin_section cpu_information
  pairs_of lscpu
  begin_section gpu_information
  case $vendor in AMD) amd_gpu ;; NVIDIA) nvidia_gpu ;; esac
  begin_section memory_information
  pairs_of lsmem 'memory block size|total online memory|total offline memory'
  vendor_sections "$vendor"
  begin_section pip_list
  [ -r "$details/python_packages.txt" ] && while read -r package version _; do
    pair "$package" "$version"
  done <"$details/python_packages.txt"
  begin_section numa_balancing
  pair "Numa Balacing" "$(first /proc/sys/kernel/numa_balancing)" # madengine's own spelling
  [ "$mode" != full ] || full_sections
}

finish() { # finish WHAT: put the file in its place
  local lines=-1
  while read -r _; do lines=$((lines + 1)); done <"$new"
  mv -f -- "$new" "$csv" || say "$csv cannot be written" >&2
  say "$lines $1 in $csv, what the tools said in $details"
  exit 0
}
wait_for_tools() {
  while [ -n "$(jobs -rp)" ] && [ $((polls -= 1)) -gt 0 ]; do sleep 0.05; done
}

if [ "$form" = sections ]; then
  echo 'sep=|' >"$new"
  ask_all
  wait_for_tools
  write_sections
  finish lines
fi
echo section,name,value >"$new"
ask_all
system_facts
hardware_facts
gpu_facts
variable_facts
wait_for_tools
tool_facts
finish facts
