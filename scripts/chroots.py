#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small copies of Debian and Ubuntu in folders, made by debootstrap, in which packages are tried as users install them.

    scripts/chroots.py make NAME...       debian-12 debian-13 debian-testing ubuntu-22.04 ubuntu-24.04
    scripts/chroots.py run NAME COMMAND   as root in that system
    scripts/chroots.py sysroot DIR        libyaml for aarch64, for scripts/wheels.py --arch aarch64

They lie in $ATTUNE_CHROOTS, else build-chroots/, about 300 MB each, and are made once. Needs root, debootstrap, and for
Ubuntu's signatures ubuntu-keyring."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = pathlib.Path(os.environ.get("ATTUNE_CHROOTS") or ROOT / "build-chroots")
DEBIAN, UBUNTU = "http://deb.debian.org/debian", "http://archive.ubuntu.com/ubuntu"
KEYS = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
# name: suite, mirror, the script of debootstrap that fits; each has another Python, from 3.10 to 3.14.
SYSTEMS = {
    "ubuntu-22.04": ("jammy", UBUNTU, "gutsy"),
    "debian-12": ("bookworm", DEBIAN, "sid"),
    "ubuntu-24.04": ("noble", UBUNTU, "gutsy"),
    "debian-13": ("trixie", DEBIAN, "sid"),
    "debian-testing": ("testing", DEBIAN, "sid"),
}


def make(name: str) -> pathlib.Path:
    """The folder of this system, made if it is not there."""
    if name not in SYSTEMS:
        sys.exit(f"chroots.py: '{name}' is not one of {', '.join(SYSTEMS)}")
    root = FOLDER / name
    if (root / ".made").exists():
        return root
    if os.geteuid() or not shutil.which("debootstrap"):
        sys.exit("chroots.py: a chroot needs root and debootstrap (apt-get install debootstrap)")
    suite, mirror, script = SYSTEMS[name]
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    words = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
             "--components=" + ("main,universe" if mirror == UBUNTU else "main")]
    if mirror == UBUNTU and not pathlib.Path(KEYS).exists():
        print(f"{KEYS} of ubuntu-keyring is not here: the signatures of {name}'s packages are not checked", flush=True)
    if mirror == UBUNTU:
        words.append(f"--keyring={KEYS}" if pathlib.Path(KEYS).exists() else "--no-check-gpg")
    log = root.parent / f"{name}.log"
    with log.open("w") as to:
        done = subprocess.run([*words, suite, root, mirror, f"/usr/share/debootstrap/scripts/{script}"], stdout=to,
                              stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"chroots.py: debootstrap of {name} ended with {done.returncode}: {log}")
    for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(file, str(root) + file)  # so that apt and pip reach what this machine reaches
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    (root / "var/cache/apt/archives/partial").mkdir(parents=True)
    (root / ".made").touch()
    return root


def run(root: pathlib.Path, command: str, network: bool = False, folders: dict[str, pathlib.Path] | None = None,
        timeout: float = 3600) -> subprocess.CompletedProcess[str]:
    """Runs a shell command in the system, with /proc and /dev, and these folders of ours at these places. What it writes
    elsewhere is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=root.parent) as work:
        top = f"{work}/system"
        steps = [f"mkdir {top} {work}/upper {work}/work",
                 f"mount -t overlay overlay -o lowerdir={root},upperdir={work}/upper,workdir={work}/work {top}",
                 f"mount -t proc proc {top}/proc", f"mount --rbind /dev {top}/dev"]
        for place, folder in (folders or {}).items():
            steps.append(f"mkdir -p {top}{place} && mount --bind {folder} {top}{place}")
        steps.append(f"exec chroot {top} /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "
                     'DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 '
                     'PIP_CERT=/etc/ssl/certs/ca-certificates.crt sh -c "$0"')
        spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        return subprocess.run([*spaces, "sh", "-c", " && ".join(steps), command], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout)


def sysroot(folder: pathlib.Path) -> None:
    """libyaml-dev of Debian 12 for arm64, unpacked: the only library that the wheel links for its own architecture."""
    with tempfile.TemporaryDirectory() as work:
        lists = pathlib.Path(work)
        for name in ("lists/partial", "cache/archives/partial", "sources.d"):
            (lists / name).mkdir(parents=True)
        (lists / "sources.list").write_text(f"deb {DEBIAN} bookworm main\n")
        (lists / "status").touch()
        options = [f"-o{key}={value}" for key, value in {
            "Dir::State::Lists": lists / "lists", "Dir::Cache": lists / "cache", "Dir::State::status": lists / "status",
            "Dir::Etc::SourceList": lists / "sources.list", "Dir::Etc::SourceParts": lists / "sources.d",
            "APT::Architecture": "arm64", "APT::Architectures": "arm64", "APT::Sandbox::User": "root"}.items()]
        for words in (["apt-get", *options, "-qq", "update"], ["apt-get", *options, "-qq", "download", "libyaml-dev"]):
            subprocess.run(words, cwd=work, check=True)
        folder.mkdir(parents=True, exist_ok=True)
        package, = lists.glob("libyaml-dev_*.deb")
        subprocess.run(["dpkg", "-x", package, folder], check=True)


def main(words: list[str]) -> int:
    if words[:1] == ["make"] and words[1:]:
        for name in words[1:]:
            print(name, make(name), flush=True)
        return 0
    if words[:1] == ["run"] and len(words) == 3:
        done = run(make(words[1]), words[2], network=True)
        print(done.stdout, end="")
        return done.returncode
    if words[:1] == ["sysroot"] and len(words) == 2:
        sysroot(pathlib.Path(words[1]))
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
