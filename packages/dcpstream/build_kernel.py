"""Build the native kernel: hatchling's hook for wheels, used wherever a C compiler is.

`pip install` works either way: with the kernel the wheel is tagged for the platform and for every Python from 3.11 on
(cp311-abi3), without it the wheel is pure Python (py3-none-any), which does the same more slowly. An editable install
puts the kernel beside the sources.

Environment: `CC` and `CFLAGS` as usual. `DCPSTREAM_KERNEL=require` fails where the kernel cannot be built, as the build
of published wheels must; `DCPSTREAM_KERNEL=skip` builds none.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # only whoever builds wheels needs it; `compile_kernel` has other callers
    BuildHookInterface = object  # type: ignore[assignment, misc]

FOLDER = "native"
"""Its C files are compiled into one module. In a checkout it lies at the root of the repository, in an sdist beside
this file."""
MODULE = "dcpstream._kernel"
TARGET = "src/dcpstream/_kernel.abi3.so" if os.name != "nt" else "src/dcpstream/_kernel.pyd"
OLDEST_PYTHON = (3, 11)
"""Its stable interface is the one that the kernel uses."""
SWITCH = "DCPSTREAM_KERNEL"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernel and adds it to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is put together; `version` is "standard" or "editable"."""
        self._folder = tempfile.mkdtemp(prefix="dcpstream-kernel-")
        is_editable = version == "editable"
        beside = Path(self.root, TARGET)
        if is_editable:
            # A kernel of an older source must not outlive a build that fails.
            beside.unlink(missing_ok=True)
        built, why = build(Path(self.root), Path(self._folder), os.environ.get(SWITCH, ""))
        if built is None:
            self.app.display_warning(
                f"dcpstream: built without the native kernel ({why}). Everything works, in plain Python; decoding to "
                "Arrow is slower. Install a C compiler and Python's headers, and install dcpstream again, to have it."
            )
            return
        self.app.display_info(f"dcpstream: built with the native kernel, {MODULE}")
        if is_editable:
            shutil.copyfile(built, beside)
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp{OLDEST_PYTHON[0]}{OLDEST_PYTHON[1]}-abi3-{platform_tag()}"
        build_data["force_include"][str(built)] = TARGET.removeprefix("src/")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called after the wheel is written."""
        shutil.rmtree(self._folder, ignore_errors=True)


def native_folder(root: Path) -> Path:
    """The folder of the C files, from the folder of this project."""
    own = root / FOLDER
    return own if own.is_dir() else root.parents[1] / FOLDER


def platform_tag() -> str:
    """This platform in the name of a wheel. Tools that repair wheels make it more exact, for example manylinux."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def build(root: Path, folder: Path, switch: str) -> tuple[Path | None, str]:
    """Compile the kernel, if that is possible and wanted.

    Args:
        root: of this project, with pyproject.toml.
        folder: where the result and the files of the compiler go.
        switch: the value of `DCPSTREAM_KERNEL`.

    Returns: the file, or None and the reason.

    Raises:
        RuntimeError: it cannot be built, although it is required.
    """
    if switch == "skip":
        return None, f"{SWITCH}=skip"
    try:
        return compile_kernel(root, folder), ""
    except Exception as error:
        if switch == "require":
            raise RuntimeError(f"the native kernel cannot be built: {error}") from error
        return None, " ".join(str(error).split()) or type(error).__name__


def compile_kernel(root: Path, folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile the kernel; the file.

    Args:
        root: of this project, with pyproject.toml.
        folder: where the result and the files of the compiler go.
        flags: more options for the compiler and the linker.

    Raises:
        Exception: whatever went wrong.
    """
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise RuntimeError("this Python has no stable binary interface")
    # setuptools knows the compilers of all platforms, and what their Pythons were built with.
    from setuptools import Distribution, Extension

    native = native_folder(root.resolve())
    extension = Extension(
        MODULE,
        sorted(f"{FOLDER}/{path.name}" for path in native.glob("*.c")),
        depends=sorted(f"{FOLDER}/{path.name}" for path in native.glob("*.h")),
        define_macros=[("Py_LIMITED_API", f"0x{OLDEST_PYTHON[0]:02X}{OLDEST_PYTHON[1]:02X}0000")],
        py_limited_api=True,
        extra_compile_args=[*(["/O2"] if os.name == "nt" else ["-std=c11", "-O3"]), *flags],
        libraries=[] if os.name == "nt" else ["m"],
        extra_link_args=list(flags),
    )
    distribution = Distribution({"name": "dcpstream", "ext_modules": [extension]})
    command = distribution.get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "temp")
    before = Path.cwd()
    os.chdir(native.parent)  # the compiler writes its files under the path of the source
    try:
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    (built,) = [Path(path) for path in command.get_outputs()]
    return built
