"""Build the native parts: the engine's core, the rank stub, the board of the accelerated start and the
image forked ranks share.

All are optional. Without a C compiler (or with SUPERPOD_NO_COMPILER=1) the package installs all the same
and uses its Python versions; `superpod doctor` says which are in use. Everything else about the package is
in pyproject.toml.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup  # isort: skip  # brings distutils, which Python 3.12 lacks
from distutils.command.build_scripts import build_scripts

from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).parent
CORE = "emulator.engine._core"
UNDO = "emulator.engine._undo"
ROWS = "emulator.engine._rows"
STUB = "launch.native.superpod-rank"
BOARD = "launch.native.board"
IMAGE = "launch.native.image"
FUSED = "serving.model.native._fused"

# name -> flags; -ffp-contract=off keeps arithmetic equal to the Python twin's on every machine
FLAGS = {
    CORE: ["-O2", "-fPIC", "-shared", "-pthread", "-ffp-contract=off"],
    # thread instrumentation calls undo.c before each store; its own run-time library stays out
    UNDO: [
        *("-O2", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fsanitize=thread", "-nodefaultlibs"),
        *("-fno-tree-loop-distribute-patterns", "-DSP_UNDO"),
        *("-Dmemcpy=sp_undo_memcpy", "-Dmemset=sp_undo_memset"),
    ],
    ROWS: ["-O2", "-fPIC", "-shared", "-pthread", "-ffp-contract=off"],
    BOARD: ["-O2", "-fPIC", "-shared"],
    IMAGE: ["-O2", "-fPIC", "-shared"],
    FUSED: ["-O2", "-fPIC", "-shared", "-ffp-contract=off"],
    STUB: ["-O2"],
}
LIBRARIES = {
    CORE: ["-lm"],
    UNDO: ["-lm", "-lpthread", "-lc", "-lgcc"],
    ROWS: ["-lm"],
    BOARD: ["-ldl"],
    IMAGE: ["-ldl"],
    FUSED: ["-lm"],
    STUB: [],
}
SOURCES = {
    CORE: sorted(f"emulator/engine/{p.name}" for p in (HERE / "emulator/engine").glob("*.c")),
    UNDO: sorted(f"emulator/engine/{p.name}" for p in (HERE / "emulator/engine").glob("*.c")),
    ROWS: ["emulator/engine/rows.c"],
    BOARD: [f"launch/native/{name}.c" for name in ("board", "published", "descriptors")],
    IMAGE: ["launch/native/image.c"],
    FUSED: ["serving/model/native/attention.c", "serving/model/native/fused.c"],
    STUB: ["launch/native/stub.c"],
}


def compiler() -> list[str] | None:
    """Return the C compiler's command, or None."""
    if os.environ.get("SUPERPOD_NO_COMPILER"):
        return None
    for words in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc", "clang"):
        if words and shutil.which(words.split()[0]):
            return words.split()
    return None


def compile_native(name: str, target: str) -> bool:
    """Compile one part to `target`; return whether that worked, and say so when not."""
    command = compiler()
    if command is None or not sys.platform.startswith("linux"):
        print(f"superpod: no C compiler: {name} is left out, its Python version will be used")
        return False
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    partial = f"{target}.{os.getpid()}.tmp"  # swapped in whole: running ranks may have the old one mapped
    rest = [*SOURCES[name], "-o", partial, *LIBRARIES[name]]
    # a static stub starts fastest, but not every system has a static C library
    attempts = [["-static", *site_packages()], site_packages()] if name == STUB else [[]]
    for extra in attempts:
        result = subprocess.run([*command, *FLAGS[name], *extra, *rest], capture_output=True, text=True)
        if result.returncode == 0:
            os.replace(partial, target)
            return True
    print(f"superpod: {name} does not compile, its Python version will be used:\n{result.stderr}")
    return False


def site_packages() -> list[str]:
    """Return definitions that tell the stub where its Python's packages lie, relative to bin."""
    path = os.path.relpath(sysconfig.get_path("purelib"), sysconfig.get_path("scripts"))
    return [f'-DSITE_PACKAGES="{path}"', f'-DBUILD_PYTHON="{sys.executable}"']


class BuildNative(build_ext):
    """Compile each part by one call of the compiler: they are no Python extension modules."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ("" if fullname.endswith("superpod-rank") else ".so")

    def get_ext_fullname(self, ext_name: str) -> str:
        return ext_name

    def build_extension(self, ext: Extension) -> None:
        compile_native(ext.name, self.get_ext_fullpath(ext.name))

    def get_outputs(self) -> list[str]:
        return [p for p in super().get_outputs() if os.path.exists(p)]


class BuildPython(build_py):
    """Leave out native parts that lie about in the source tree: build_ext makes the package's own."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        built = {"superpod-rank", "board.so", "image.so", "_core.so", "_undo.so", "_rows.so", "_fused.so"}
        return [f for f in super().find_data_files(package, src_dir) if os.path.basename(f) not in built]


class BuildScripts(build_scripts):
    """`superpod-rank`: the compiled stub itself, or the Python one as a script."""

    def run(self) -> None:
        self.mkpath(self.build_dir)
        target = os.path.join(self.build_dir, "superpod-rank")
        if not compile_native(STUB, target):
            text = (HERE / "launch/stub.py").read_text()
            Path(target).write_text("#!python\n" + text)
        os.chmod(target, 0o755)


class NativeDistribution(Distribution):
    """A wheel with native parts belongs to one platform."""

    def has_ext_modules(self) -> bool:
        return compiler() is not None


setup(
    distclass=NativeDistribution,
    ext_modules=[Extension(n, s, optional=True) for n, s in SOURCES.items() if s],
    scripts=["launch/stub.py"],
    cmdclass={"build_ext": BuildNative, "build_py": BuildPython, "build_scripts": BuildScripts},
)
