#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two hosts behind sshd and a Slurm cluster on this machine, for tests: own ports, keys and folders, nothing in /etc.
# lab.sh ssh|slurm|both FOLDER starts them, and prints why it cannot; lab.sh down FOLDER ends them. Slurm needs root, and the
# second host too: it has another CPU's name, in a mount namespace of its own.
set -u
part=$1 lab=$2
PATH=$PATH:/usr/sbin:/sbin
skip() { echo "$*"; exit 77; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

ssh_host() {  # NAME PORT
  local folder=$lab/$1
  mkdir -p "$folder/cache"
  cat >"$folder/sshd_config" <<C
Port $2
ListenAddress 127.0.0.1
HostKey $lab/host_key
PidFile $folder/sshd.pid
AuthorizedKeysFile $lab/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
LogLevel QUIET
MaxStartups 100
SetEnv XDG_CACHE_HOME=$folder/cache SLURM_CONF=$lab/slurm.conf
C
  cat >>"$lab/ssh_config" <<C
Host $1
  HostName 127.0.0.1
  Port $2
C
  if [ "$1" = two ] && [ "$(id -u)" = 0 ]; then
    sed 's/^model name.*/model name\t: Second CPU of the lab/' /proc/cpuinfo >"$folder/cpuinfo"
    unshare -m sh -c "mount --bind '$folder/cpuinfo' /proc/cpuinfo && exec $(command -v sshd) -f '$folder/sshd_config'"
  else
    "$(command -v sshd)" -f "$folder/sshd_config"
  fi
}

start_ssh() {
  command -v sshd >/dev/null || skip "sshd is not here (openssh-server)"
  mkdir -p "$lab" /run/sshd 2>/dev/null
  for key in key host_key other_key; do ssh-keygen -q -t ed25519 -N '' -f "$lab/$key" || skip "ssh-keygen failed"; done
  : >"$lab/ssh_config"
  one=$(free_port) two=$(free_port)
  ssh_host one "$one" || skip "sshd cannot be started"
  ssh_host two "$two" || skip "a second sshd cannot be started"
  for port in $one $two; do echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 "$lab/host_key.pub")"; done >"$lab/known_hosts"
  sed 's/^Host one/Host stranger/;/^Host two/,$d' "$lab/ssh_config" >"$lab/stranger"
  cat >>"$lab/stranger" <<C
  IdentityFile $lab/other_key
C
  printf 'Host nowhere\n  HostName 127.0.0.1\n  Port 1\n' >>"$lab/ssh_config"
  cat "$lab/stranger" >>"$lab/ssh_config"
  cat >>"$lab/ssh_config" <<C
Host one two nowhere
  IdentityFile $lab/key
Host *
  User $(id -un)
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile $lab/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
C
  for host in one two; do
    for try in $(seq 300); do ssh -F "$lab/ssh_config" -o BatchMode=yes $host true 2>"$lab/why" && break; sleep 0.1; done
    ssh -F "$lab/ssh_config" -o BatchMode=yes $host true || skip "sshd refuses the key: $(tail -n 1 "$lab/why")"
  done
}

start_slurm() {
  for program in slurmctld slurmd munged sbatch; do
    command -v $program >/dev/null || skip "$program is not here (slurm-wlm, munge)"
  done
  [ "$(id -u)" = 0 ] || skip "Slurm's daemons need root"
  [ -d /sys/fs/cgroup ] || skip "slurmd needs /sys/fs/cgroup"
  host=$(hostname -s)
  mkdir -p "$lab/state" "$lab/spool" "$lab/gpu" && chmod 755 "$lab" || exit 1
  for n in 0 1; do mknod "$lab/gpu/g$n" c 1 3; done  # devices that say nothing stand for GPUs
  head -c 1024 /dev/urandom >"$lab/munge.key" && chmod 600 "$lab/munge.key"
  cat >"$lab/slurm.conf" <<C
ClusterName=lab
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
AuthInfo=socket=$lab/munge.socket
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool
SlurmctldPidFile=$lab/slurmctld.pid
SlurmdPidFile=$lab/slurmd.pid
SlurmctldLogFile=$lab/slurmctld.log
SlurmdLogFile=$lab/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
EnforcePartLimits=ALL
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
MpiDefault=none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=lab NodeHostname=$host NodeAddr=127.0.0.1 CPUs=8 RealMemory=500 Gres=gpu:fake:2 State=UNKNOWN
PartitionName=debug Nodes=lab Default=YES MaxTime=10 State=UP
C
  echo "NodeName=lab Name=gpu Type=fake File=$lab/gpu/g[0-1]" >"$lab/gres.conf"
  export SLURM_CONF=$lab/slurm.conf
  munged --key-file="$lab/munge.key" --socket="$lab/munge.socket" --pid-file="$lab/munge.pid" \
    --log-file="$lab/munge.log" --seed-file="$lab/munge.seed" >"$lab/why" 2>&1 || skip "munged: $(tail -n 1 "$lab/why")"
  slurmctld -f "$SLURM_CONF" >"$lab/why" 2>&1 || skip "slurmctld: $(tail -n 1 "$lab/why")"
  slurmd -N lab -f "$SLURM_CONF" >"$lab/why" 2>&1 || skip "slurmd: $(tail -n 1 "$lab/why")"
  for try in $(seq 600); do sinfo -h -o %T 2>/dev/null | grep -q idle && return; sleep 0.1; done
  skip "the node of Slurm is not idle: $(sinfo -h -o '%T %E' 2>&1 | tail -n 1)"
}

down() {
  for pid in "$lab"/*.pid "$lab"/*/sshd.pid; do [ -e "$pid" ] && kill "$(cat "$pid")" 2>/dev/null; done
  for try in $(seq 50); do ls "$lab"/slurm*.pid >/dev/null 2>&1 || break; sleep 0.1; done
  rm -rf "$lab"
}

case $part in
  ssh) start_ssh ;;
  slurm) start_slurm ;;
  both) start_ssh && start_slurm ;;
  down) down ;;
esac
