"""Build the kernels in csrc that a compiler is available for. Everything else is in pyproject.toml."""

import os
import shutil
import sys

# [cuda]
import torch
# [/cuda]
from setuptools import setup
from torch.utils import cpp_extension

UNIX = sys.platform != "win32"
OPENMP = ["-fopenmp"] if sys.platform == "linux" else []  # at::parallel_for uses one thread without it


def extensions() -> list:
    """The compiled module, or nothing if no compiler for any of its kernels is found."""
    if UNIX and shutil.which(os.environ.get("CXX", "c++").split()[0]) is None:
        print("my_operator: no C++ compiler found: the plain PyTorch form is used", file=sys.stderr)
        return []
    sources, macros, make = ["csrc/bindings.cpp"], [], cpp_extension.CppExtension
    flags = {"cxx": ["-O3", *OPENMP] if UNIX else ["/O2"]}
    # [cpp]
    sources.append("csrc/cpu.cpp")
    # [/cpp]
    # [cuda]
    if torch.version.cuda is None:
        print("my_operator: this build of torch has no CUDA: no CUDA kernel is built", file=sys.stderr)
    elif cpp_extension.CUDA_HOME is None:
        print("my_operator: no CUDA toolkit with nvcc found: no CUDA kernel is built", file=sys.stderr)
    else:
        sources.append("csrc/cuda.cu")
        macros.append(("WITH_CUDA", None))
        make = cpp_extension.CUDAExtension
        flags["nvcc"] = ["-O3"]
        if not torch.cuda.is_available():  # otherwise torch compiles for the GPUs of this machine
            os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0+PTX")
    # [/cuda]
    if len(sources) == 1:
        return []
    return [
        make(
            "my_operator._C",
            sources,
            define_macros=macros,
            extra_compile_args=flags,
            extra_link_args=OPENMP,
        )
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": cpp_extension.BuildExtension})
