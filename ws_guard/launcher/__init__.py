"""FlashInfer's real launcher and real Python on CPU tensors: what a GPU would do, up to the launch.

The package itself needs the standard library alone; torch, tvm_ffi and flashinfer are imported by
`on_cpu`. Used by the demonstration and by the tests that hold our arithmetic against the original.
"""

from .build import BuildFailed, build, installed_flashinfer_root
from .cpu import on_cpu, on_cpu_with
from .recorder import Launch, Recorder
from .toolchain import CompilerMissing

__all__ = [
    "BuildFailed",
    "CompilerMissing",
    "Launch",
    "Recorder",
    "build",
    "installed_flashinfer_root",
    "on_cpu",
    "on_cpu_with",
]
