"""Builds floor.c (see there) with the system's C compiler, once, and imports it."""

import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

from vocabs import CACHE

SOURCE = Path(__file__).with_name("floor.c")


def load() -> ModuleType:
    """The extension. `OSError` or `CalledProcessError` without a compiler or Python's headers."""
    CACHE.mkdir(parents=True, exist_ok=True)
    target = CACHE / "floor_ext.abi3.so"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}"]
        subprocess.run([*command, str(SOURCE), "-o", str(target)], check=True, capture_output=True)
    spec = importlib.util.spec_from_file_location("floor_ext", target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
