#!/usr/bin/env python3
"""Builds feedmill's wheels, with all libraries inside, for any Linux with glibc 2.28 or newer.

    .ci/wheels/build_wheels.py [--arch x86_64] [--out dist] [--check-reproducible]

Needs python3 with its headers, cmake, make, perl and, for x86_64, nasm; everything else is
downloaded: the compiler (zig, from PyPI, which brings glibc 2.28's symbols), the tools and the
sources of the libraries, which sources.json pins by checksum. The wheel holds one extension module
for all CPythons from 3.10 on (abi3), to which the libraries are linked statically with hidden
symbols; their licences; and a list of what is inside (CycloneDX). auditwheel and abi3audit look it
over.

Where nvcc of CUDA 13 is on PATH or in /usr/local/cuda, the plug-in for GPUs becomes a wheel of its
own, feedmill-cuda13, whose library lies beside the extension module when both are installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "build" / "wheels"
SOURCES = json.loads((HERE / "sources.json").read_text())
TOOLS = [
    "ziglang==0.17.1", "scikit-build-core==1.1.2", "pathspec==1.1.1", "wheel==0.48.0",
    "auditwheel==6.8.2", "abi3audit==0.0.26",
]
# What the compiler links statically: its C++ library, and functions for what the CPU lacks.
COMPILERS = {
    "libc++": {
        "version": "22.1.8",
        "license": "Apache-2.0 WITH LLVM-exception",
        "license_files": ["lib/libcxx/LICENSE.TXT"],
    },
    "libc++abi": {
        "version": "22.1.8",
        "license": "Apache-2.0 WITH LLVM-exception",
        "license_files": ["lib/libcxxabi/LICENSE.TXT"],
    },
    "compiler_rt": {"version": "0.17.1", "license": "MIT", "license_files": ["LICENSE"]},
}
GLIBC = "2.28"
MOST_BYTES = 8 << 20
# The build's date, for all files in the wheel: that of the newest commit, or a fixed one.
FALLBACK_EPOCH = "1704067200"


def run(*command: object, **options: object) -> str:
    """What a command said. Prints that and ends the build if the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nwheels: failed with {done.returncode}: {' '.join(words)}")
    return done.stdout


def say(text: str) -> None:
    print(f"wheels: {text}", flush=True)


# ---- what is needed ------------------------------------------------------------------------------


def check_programs(arch: str) -> None:
    needed = ["cmake", "make", "perl", *(["nasm"] if arch == "x86_64" else [])]
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        names = " ".join(missing)
        sys.exit(f"wheels: please install {names} (Debian, Ubuntu: apt-get install {names})")


def tools() -> Path:
    """The Python of an environment with TOOLS."""
    folder = WORK / "tools"
    stamp = folder / "installed"
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        say("installing the compiler and the tools")
        venv.create(folder, clear=True, with_pip=True)
        run(python, "-m", "pip", "--disable-pip-version-check", "-q", "install", *TOOLS)
        stamp.write_text("\n".join(TOOLS))
    return python


def source(name: str) -> Path:
    """The unpacked source of a library, made anew."""
    entry = SOURCES[name]
    archive = WORK / "downloads" / f"{name}-{entry['version']}.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    if not archive.exists() or digest(archive) != entry["sha256"]:
        errors = []
        for url in entry["urls"]:
            say(f"downloading {url}")
            try:
                with urllib.request.urlopen(url, timeout=60) as response:
                    archive.write_bytes(response.read())
                break
            except OSError as error:
                errors.append(f"{url}: {error}")
        else:
            sys.exit("wheels: " + "\n".join(errors))
    if digest(archive) != entry["sha256"]:
        sys.exit(f"wheels: {archive} has the checksum {digest(archive)}, not {entry['sha256']}")
    folder = WORK / "sources" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            member.name = member.name.partition("/")[2]
            if member.name and (member.isfile() or member.isdir()):
                tar.extract(member, folder, set_attrs=member.isfile())
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- the compiler --------------------------------------------------------------------------------


class Compiler:
    """zig's clang for one kind of machine, as programs that CMake and make can call."""

    def __init__(self, python: Path, arch: str) -> None:
        self.arch = arch
        self.folder = WORK / arch / "bin"
        self.folder.mkdir(parents=True, exist_ok=True)
        target = f"-target {arch}-linux-gnu.{GLIBC} -mcpu=baseline"
        for name, words in {
            "cc": f"cc {target}", "c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib",
        }.items():
            path = self.folder / name
            path.write_text(f'#!/bin/sh\nexec "{python}" -m ziglang {words} "$@"\n')
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.flags = (
            f"-fPIC -fvisibility=hidden -fno-sanitize=all -ffile-prefix-map={WORK}=. "
            f"-ffile-prefix-map={ROOT}=feedmill"
        )

    def cmake(self) -> list[str]:
        """Options for a project that is built with it."""
        options = {
            "CMAKE_C_COMPILER": self.folder / "cc",
            "CMAKE_CXX_COMPILER": self.folder / "c++",
            "CMAKE_AR": self.folder / "ar",
            "CMAKE_RANLIB": self.folder / "ranlib",
            "CMAKE_C_FLAGS": self.flags,
            "CMAKE_CXX_FLAGS": self.flags,
            "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        }
        if self.arch != platform.machine():
            options |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": self.arch}
            options["CMAKE_CXX_FLAGS"] = f"{self.flags} {self.python_headers()}"
        return [f"-D{name}={value}" for name, value in options.items()]

    def python_headers(self) -> str:
        """A flag for Python's headers. Debian's choose pyconfig.h by the machine that is compiled
        for; what abi3 takes of it is the same on all of 64 bits."""
        here = f"{platform.machine()}-linux-gnu"
        includes = Path(sysconfig.get_config_var("INCLUDEDIR"))
        for path in includes.glob(f"{here}/python3*/pyconfig.h"):
            folder = self.folder.parent / "include" / f"{self.arch}-linux-gnu" / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder)
        return f"-I{self.folder.parent / 'include'}"

    def unwinder(self) -> Path:
        """What the module is linked to in place of zig's own unwinder; see libgcc_s.c."""
        path = self.folder.parent / "libgcc_s.so.1"
        run(self.folder / "cc", "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-o", path,
            HERE / "libgcc_s.c")
        return path


# ---- the libraries -------------------------------------------------------------------------------

CMAKE_OPTIONS = {
    "libjpeg-turbo": [
        "-DENABLE_SHARED=OFF", "-DWITH_TURBOJPEG=OFF", "-DWITH_TOOLS=OFF", "-DREQUIRE_SIMD=ON",
    ],
    "libspng": ["-DSPNG_SHARED=OFF", "-DBUILD_EXAMPLES=OFF"],
    "libwebp": [
        f"-DWEBP_BUILD_{what}=OFF"
        for what in ("ANIM_UTILS", "CWEBP", "DWEBP", "GIF2WEBP", "IMG2WEBP", "VWEBP", "WEBPINFO",
                     "LIBWEBPMUX", "WEBPMUX", "EXTRAS")
    ],
    "nghttp2": ["-DENABLE_LIB_ONLY=ON", "-DBUILD_STATIC_LIBS=ON", "-DBUILD_TESTING=OFF",
                "-DENABLE_DOC=OFF"],
    # Only what reader_http.c asks for. No place of certificates is built in: http.c looks for the
    # system's, and OpenSSL obeys SSL_CERT_FILE and SSL_CERT_DIR.
    "curl": [
        "-DHTTP_ONLY=ON", "-DCURL_USE_OPENSSL=ON", "-DOPENSSL_USE_STATIC_LIBS=ON",
        "-DUSE_NGHTTP2=ON", "-DCURL_CA_FALLBACK=ON", "-DCURL_CA_BUNDLE=none",
        "-DCURL_CA_PATH=none", "-DENABLE_THREADED_RESOLVER=ON",
        *(f"-D{what}=OFF" for what in (
            "BUILD_CURL_EXE", "BUILD_TESTING", "BUILD_LIBCURL_DOCS", "BUILD_MISC_DOCS",
            "ENABLE_CURL_MANUAL", "CURL_USE_LIBPSL", "CURL_USE_LIBSSH2", "CURL_ZLIB",
            "CURL_BROTLI", "CURL_ZSTD", "USE_LIBIDN2", "USE_NGTCP2", "CURL_USE_PKGCONFIG",
        )),
    ],
}
# What TLS as HTTP clients speak it does without.
OPENSSL_WITHOUT = [
    "shared", "apps", "tests", "docs", "module", "legacy", "engine", "comp", "dtls", "srtp", "srp",
    "sctp", "cmp", "cms", "ts", "quic", "gost", "sm2", "sm3", "sm4", "aria", "camellia", "seed",
    "idea", "rc2", "rc4", "rc5", "bf", "cast", "mdc2", "whirlpool", "slh-dsa", "ssl3", "tls1",
    "tls1_1",
]  # fmt: skip


def build_libraries(compiler: Compiler, jobs: int) -> Path:
    """Where the static libraries and their headers are. Kept for the next time."""
    prefix = WORK / compiler.arch / "prefix"
    stamp = prefix / "built"
    wanted = repr((SOURCES, CMAKE_OPTIONS, compiler.flags, TOOLS))
    if stamp.exists() and stamp.read_text() == wanted:
        return prefix
    shutil.rmtree(prefix, ignore_errors=True)
    for name in SOURCES:
        say(f"building {name} {SOURCES[name]['version']} for {compiler.arch}")
        folder = source(name)
        if name in CONFIGURED:
            CONFIGURED[name](compiler, folder, prefix, jobs)
            continue
        build = WORK / compiler.arch / name
        shutil.rmtree(build, ignore_errors=True)
        run("cmake", "-S", folder, "-B", build, f"-DCMAKE_INSTALL_PREFIX={prefix}",
            "-DCMAKE_INSTALL_LIBDIR=lib", f"-DCMAKE_PREFIX_PATH={prefix}",
            "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", *compiler.cmake(),
            *CMAKE_OPTIONS[name])
        run("cmake", "--build", build, "-j", jobs)
        run("cmake", "--install", build)
        if name == "libjpeg-turbo":
            # Not installed, but needed by who decodes the Huffman codes without the library.
            shutil.copy(folder / "src" / "jpegint.h", prefix / "include")
    stamp.write_text(wanted)
    return prefix


def build_liburing(compiler: Compiler, folder: Path, prefix: Path, jobs: int) -> None:
    cc = compiler.folder / "cc"
    run("./configure", f"--prefix={prefix}", f"--cc={cc}", f"--cxx={compiler.folder / 'c++'}",
        "--use-libc", cwd=folder)
    run("make", "-C", "src", "-j", jobs, f"AR={compiler.folder / 'ar'}",
        f"RANLIB={compiler.folder / 'ranlib'}", f"CFLAGS=-O2 {compiler.flags}", "ENABLE_SHARED=0",
        "install", f"libdir={prefix / 'lib'}", cwd=folder)


def build_zlib(compiler: Compiler, folder: Path, prefix: Path, jobs: int) -> None:
    environment = os.environ | {
        "CC": str(compiler.folder / "cc"),
        "AR": str(compiler.folder / "ar"),
        "RANLIB": str(compiler.folder / "ranlib"),
        "CFLAGS": f"-O3 {compiler.flags}",
    }
    run("./configure", "--static", f"--prefix={prefix}", cwd=folder, env=environment)
    run("make", "-j", jobs, "libz.a", "install", cwd=folder, env=environment)


def build_openssl(compiler: Compiler, folder: Path, prefix: Path, jobs: int) -> None:
    environment = os.environ | {
        "CC": str(compiler.folder / "cc"),
        "AR": str(compiler.folder / "ar"),
        "RANLIB": str(compiler.folder / "ranlib"),
        "CFLAGS": f"-O2 -ffunction-sections -fdata-sections {compiler.flags}",
    }
    # Debian's place of certificates; loader/read/http.c looks for others.
    run("./Configure", f"linux-{compiler.arch}", f"--prefix={prefix}", "--libdir=lib",
        "--openssldir=/etc/ssl", *(f"no-{what}" for what in OPENSSL_WITHOUT), cwd=folder,
        env=environment)
    run("make", "-j", jobs, "build_libs", cwd=folder)
    run("make", "install_dev", cwd=folder)


CONFIGURED = {"liburing": build_liburing, "zlib": build_zlib, "openssl": build_openssl}


# ---- the wheel -----------------------------------------------------------------------------------


def clean_tree() -> Path:
    """A copy of the project without what git ignores: libraries of a build in place would get into
    the wheel. Without git, as in an unpacked sdist, the project itself."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=False,
    )
    if listed.returncode:
        return ROOT
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def build_wheel(python: Path, compiler: Compiler, prefix: Path, folder: Path) -> Path:
    """The wheel as the project's own build makes it, with a general name."""
    shutil.rmtree(folder, ignore_errors=True)
    lib, include = prefix / "lib", prefix / "include"
    options = [
        *compiler.cmake(),
        "-DFM_CUDA=OFF",
        "-DFM_HTTP=ON",
        f"-DCURL_DIR={lib / 'cmake' / 'CURL'}",
        "-DCURL_USE_STATIC_LIBS=ON",
        f"-DOPENSSL_ROOT_DIR={prefix}",
        "-DOPENSSL_USE_STATIC_LIBS=ON",
        f"-DNGHTTP2_LIBRARY={lib / 'libnghttp2.a'}",
        f"-DNGHTTP2_INCLUDE_DIR={include}",
        f"-DJPEG_LIBRARY={lib / 'libjpeg.a'}",
        f"-DJPEG_INCLUDE_DIR={include}",
        f"-DFM_URING_LIBRARY={lib / 'liburing.a'}",
        f"-DFM_URING_INCLUDE={include}",
        f"-DFM_SPNG_LIBRARY={lib / 'libspng_static.a'};{lib / 'libz.a'}",
        f"-DFM_SPNG_INCLUDE={include}",
        f"-DFM_WEBP_LIBRARY={lib / 'libwebp.a'}",
        f"-DFM_WEBP_INCLUDE={include}",
        "-DCMAKE_MODULE_LINKER_FLAGS=-s -Wl,--gc-sections "
        f"-Wl,--version-script={HERE / 'module.map'} {compiler.unwinder()}",
    ]
    settings = [f"--config-settings=cmake.define.{option[2:]}" for option in options]
    run(python, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps",
        "--no-build-isolation", "-w", folder, *settings,
        f"--config-settings=build-dir={WORK / compiler.arch / 'feedmill'}",
        "--config-settings=wheel.license-files=LICENSE", clean_tree())
    (wheel,) = folder.glob("*.whl")
    return wheel


def complete(python: Path, wheel: Path, arch: str, out: Path) -> Path:
    """The wheel with the libraries' licences, the list of what is inside, and its tag."""
    folder = wheel.parent / "unpacked"
    run(python, "-m", "wheel", "unpack", "-d", folder, wheel)
    (tree,) = folder.iterdir()
    (info,) = tree.glob("*.dist-info")
    return pack(python, tree, info, f"cp310-abi3-{platform_tag(arch)}", SOURCES | COMPILERS, out)


def platform_tag(arch: str) -> str:
    return f"manylinux_{GLIBC.replace('.', '_')}_{arch}"


def pack(
    python: Path, tree: Path, info: Path, tag: str, contents: dict[str, dict], out: Path
) -> Path:
    """A wheel of a folder, with the licences of what was linked and the list of it."""
    (zig,) = (WORK / "tools").glob("lib/python*/site-packages/ziglang")
    for name, entry in contents.items():
        licenses = info / "licenses" / name
        licenses.mkdir(parents=True)
        source_folder = zig if name in COMPILERS else WORK / "sources" / name
        for file in entry["license_files"]:
            shutil.copy(source_folder / file, licenses)
    (info / "sboms").mkdir()
    bill = bill_of_materials(info, contents)
    (info / "sboms" / f"{bill['metadata']['component']['name']}.cdx.json").write_text(
        json.dumps(bill, indent=1))
    text = (info / "WHEEL").read_text().splitlines()
    lines = [line for line in text if line and not line.startswith("Tag:")]
    (info / "WHEEL").write_text("\n".join([*lines, f"Tag: {tag}"]) + "\n")
    for path in sorted(tree.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
    out.mkdir(parents=True, exist_ok=True)
    run(python, "-m", "wheel", "pack", "-d", out, tree)
    return out / f"{tree.name}-{tag}.whl"


def bill_of_materials(info: Path, contents: dict[str, dict]) -> dict[str, Any]:
    """CycloneDX 1.6."""
    name, _, version = info.stem.replace("_", "-").rpartition("-")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": name, "version": version,
                                   "purl": f"pkg:pypi/{name}@{version}"}},
        "components": [
            {
                "type": "library",
                "name": library,
                "version": entry["version"],
                "purl": f"pkg:generic/{library}@{entry['version']}",
                "licenses": [{"expression": entry["license"]}],
                "externalReferences": [
                    {"type": "source-distribution", "url": url,
                     "hashes": [{"alg": "SHA-256", "content": entry["sha256"]}]}
                    for url in entry.get("urls", [])[:1]
                ],
            }
            for library, entry in contents.items()
        ],
    }


# ---- the plug-in for GPUs ------------------------------------------------------------------------

CUDA_RUNTIME = {
    "cudart": {"license": "LicenseRef-NVIDIA-CUDA-Toolkit-EULA", "license_files": []},
}
CUDA_METADATA = """\
Metadata-Version: 2.4
Name: feedmill-cuda13
Version: {version}
Summary: feedmill's plug-in for NVIDIA GPUs (CUDA 13): found by itself when installed
License-Expression: BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit-EULA
License-File: LICENSE
Description-Content-Type: text/markdown
Requires-Python: >=3.10
Requires-Dist: feedmill=={version}

What `feedmill.DataLoader(..., device="cuda")` needs to copy batches to a GPU itself. It goes with
feedmill {version} alone, and needs a driver of CUDA 13 or newer. NVIDIA's CUDA runtime is linked
statically; its licence: https://docs.nvidia.com/cuda/eula/index.html
"""


def find_cuda(arch: str) -> tuple[Path, str] | None:
    """(where the toolkit is, its version) of CUDA 13 for this kind of machine."""
    found = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if found is None or arch != platform.machine():
        return None
    version = run(found, "--version").partition(" release ")[2].partition(",")[0]
    if not version.startswith("13."):
        return None
    # The nvcc on PATH can be a script that calls that of the toolkit.
    tried = run(found, "--dryrun", "-c", ROOT / "loader" / "device" / "cuda" / "convert.cu")
    (top,) = (line.partition("TOP=")[2] for line in tried.splitlines() if "TOP=" in line)
    return Path(top).resolve(), version


def build_cuda_wheel(
    python: Path, compiler: Compiler, version: str, toolkit: Path, cuda_version: str, out: Path
) -> Path:
    """The wheel of the plug-in for feedmill of that version."""
    folder = WORK / compiler.arch / "cuda"
    shutil.rmtree(folder, ignore_errors=True)
    tree = folder / f"feedmill_cuda13-{version}"
    info = tree / f"feedmill_cuda13-{version}.dist-info"
    (tree / "feedmill").mkdir(parents=True)
    (info / "licenses").mkdir(parents=True)
    objects = [folder / "convert.o"]
    includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'loader'}"]
    run(toolkit / "bin" / "nvcc", "-std=c++17", "-O2", "-arch=all-major", "-Xcompiler",
        "-fPIC,-fvisibility=hidden", *includes, "-c", "convert.cu", "-o", objects[0],
        cwd=ROOT / "loader" / "device" / "cuda")
    for source in ("device/cuda/device_cuda.c", "base/error.c", "base/mem.c"):
        objects.append(folder / f"{Path(source).stem}.o")
        run(compiler.folder / "cc", "-std=c17", "-O2", *compiler.flags.split(), *includes,
            f"-I{toolkit / 'include'}", "-c", ROOT / "loader" / source, "-o", objects[-1])
    exports = folder / "exports.map"
    exports.write_text("{ global: fm_device_calls_cuda; local: *; };\n")
    run(compiler.folder / "c++", "-shared", "-s", "-o", tree / "feedmill" / "libfeedmill_cuda.so",
        *objects, toolkit / "lib64" / "libcudart_static.a", compiler.unwinder(), "-ldl", "-lrt",
        "-lpthread", f"-Wl,--version-script={exports}")
    (info / "METADATA").write_text(CUDA_METADATA.format(version=version))
    (info / "WHEEL").write_text(
        "Wheel-Version: 1.0\nGenerator: build_wheels\nRoot-Is-Purelib: false\n")
    shutil.copy(ROOT / "LICENSE", info / "licenses")
    contents = COMPILERS | {
        name: entry | {"version": cuda_version} for name, entry in CUDA_RUNTIME.items()
    }
    return pack(python, tree, info, f"py3-none-{platform_tag(compiler.arch)}", contents, out)


def audit(python: Path, wheel: Path) -> None:
    """Ends the build where the wheel would not work where its name says that it does."""
    n_bytes = wheel.stat().st_size
    if n_bytes > MOST_BYTES:
        sys.exit(f"wheels: {wheel.name} has {n_bytes:,} bytes, more than {MOST_BYTES:,}")
    shown = run(python, "-m", "auditwheel", "show", wheel)
    found = shown.split("platform tag:", 1)[-1].split('"')[1]
    oldest = tuple(int(number) for number in found.split("_")[1:3])
    if not found.startswith("manylinux_") or oldest > tuple(map(int, GLIBC.split("."))):
        sys.exit(f"wheels: auditwheel does not agree:\n{shown}")
    if "-abi3-" in wheel.name:
        run(python, "-m", "abi3audit", "--strict", wheel)
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".so" in name]
    say(f"{wheel.name}: {n_bytes:,} bytes, {' '.join(libraries)}; auditwheel: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default=platform.machine(), choices=["x86_64", "aarch64"])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--check-reproducible", action="store_true",
                        help="build the wheel twice, and compare the bytes")
    args = parser.parse_args()
    check_programs(args.arch)
    python = tools()
    jobs = len(os.sched_getaffinity(0))
    if "SOURCE_DATE_EPOCH" not in os.environ:
        asked = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"],
                               capture_output=True, text=True, check=False)
        os.environ["SOURCE_DATE_EPOCH"] = asked.stdout.strip() or FALLBACK_EPOCH
    os.umask(0o022)
    compiler = Compiler(python, args.arch)
    prefix = build_libraries(compiler, jobs)
    cuda = find_cuda(args.arch)
    if cuda is None:
        say(f"no nvcc of CUDA 13 for {args.arch}: without the plug-in for GPUs")
    digests = set()
    for _ in range(2 if args.check_reproducible else 1):
        say(f"building feedmill for {args.arch}")
        shutil.rmtree(WORK / args.arch / "feedmill", ignore_errors=True)
        plain = build_wheel(python, compiler, prefix, WORK / args.arch / "wheel")
        wheels = [complete(python, plain, args.arch, args.out)]
        if cuda is not None:
            version = wheels[0].name.split("-")[1]
            wheels.append(build_cuda_wheel(python, compiler, version, *cuda, args.out))
        digests.add(tuple(map(digest, wheels)))
    if len(digests) > 1:
        sys.exit(f"wheels: two builds gave different bytes: {digests}")
    for wheel in wheels:
        audit(python, wheel)


if __name__ == "__main__":
    main()
