"""Run the kernel's tests on one that watches its memory.

    python -m lab.tools.sanitize [ARGUMENTS FOR PYTEST]

The kernel is compiled with the address and undefined-behaviour sanitizers into a copy of the sources below
`.cache/sanitize`. Python and Arrow take their memory from malloc, so that the sanitizer knows where each buffer ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from lab.layout import python_path  # noqa: E402
from packages.dcpstream.build_kernel import TARGET, compile_kernel  # noqa: E402

FOLDER = ROOT / ".cache" / "sanitize"
REPORT = FOLDER / "report"
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
TESTS = (
    "packages/dcpstream/tests/unit/client/kv/test_bulk.py",
    "packages/dcpstream/tests/unit/client/machine/connection/test_rows.py",
    "packages/dcpstream/tests/unit/client/machine/reader/test_changes.py",
    "packages/dcpstream/tests/unit/arrow/test_changes.py",
    "packages/dcpstream/tests/unit/arrow/test_chunk.py",
    "packages/dcpstream/tests/unit/arrow/test_frame_index.py",
    "packages/dcpstream/tests/unit/runtime/test_kernel.py",
    "packages/dcpstream/tests/unit/runtime/test_slabs.py",
    "packages/dcpstream/tests/unit/arrow/test_native_rows.py",
    "packages/dcpstream/tests/unit/arrow/test_native_table.py",
    "packages/dcpstream/tests/unit/arrow/test_recordings.py",
    "packages/dcpstream/tests/unit/arrow/test_rows.py",
    "packages/dcpstream/tests/unit/arrow/test_text.py",
    "packages/dcpstream-node/tests/unit/engine/handlers/test_native.py",
    "packages/dcpstream-node/tests/unit/store/index/test_queries.py",
    "packages/dcpstream/tests/unit/wire/stored/test_block.py",
    "packages/dcpstream/tests/property/test_columnar.py",
    "packages/dcpstream/tests/property/test_followed_streams.py",
    "packages/dcpstream-node/tests/property/test_set_paths.py",
)


def main() -> int:
    """Compile and test; the exit status of pytest."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "_kernel.abi3.so", "tests")
    shutil.copytree(ROOT / "packages", FOLDER / "packages", ignore=ignored, symlinks=True)
    built = compile_kernel(ROOT / "packages" / "dcpstream", FOLDER / "build", FLAGS)
    shutil.copyfile(built, FOLDER / "packages" / "dcpstream" / TARGET)
    compiler = os.environ.get("CC", "cc").split()[0]
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": python_path(FOLDER, ROOT, ROOT / "examples" / "demo"),
        "LD_PRELOAD": found.stdout.strip(),
        # Python itself frees little when it ends.
        "ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=1:log_path={REPORT}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={REPORT}",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "DCPSTREAM_PURE": "0",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--strict-skips", *TESTS, *sys.argv[1:]]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    # A finding ends the process at once, so pytest shows nothing of it.
    for report in FOLDER.glob(f"{REPORT.name}.*"):
        print(report.read_text(encoding="utf-8"))
        status = status or 1
    return status


if __name__ == "__main__":
    sys.exit(main())
