// Makes the kernels known to torch. Loading this module from Python, with `from . import _C`, runs the blocks below.
#include <Python.h>
#include <torch/library.h>

#include "my_operator.h"

// The operators are declared in register.py, so that they exist without a compiler too. A library without Python would
// declare them here, once for all devices:
//
//   TORCH_LIBRARY(my_operator, library) {
//     library.def("my_operator(Tensor corners, Tensor points) -> Tensor");
//   }
//
// [cpp]
TORCH_LIBRARY_IMPL(my_operator, CPU, library) {
  library.impl("my_operator", &my_operator::forward_cpu);
  library.impl("my_operator_backward", &my_operator::backward_cpu);
}

// [/cpp]
// [cuda]
#ifdef WITH_CUDA  // defined by setup.py if nvcc was found
TORCH_LIBRARY_IMPL(my_operator, CUDA, library) {
  library.impl("my_operator", &my_operator::forward_cuda);
  library.impl("my_operator_backward", &my_operator::backward_cuda);
}
#endif

// [/cuda]
// The older form with pybind11 makes the C++ functions callable from Python, and nothing more: no dispatch by device,
// no derivative, no name for torch.compile, torch.export or autocast. It compiles slower, for one version of Python:
//
//   #include <torch/extension.h>
//
//   PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
// [cpp]
//     module.def("forward", &my_operator::forward_cpu);
//     module.def("backward", &my_operator::backward_cpu);
// [/cpp]
// [cuda]
//     module.def("forward_cuda", &my_operator::forward_cuda);
//     module.def("backward_cuda", &my_operator::backward_cuda);
// [/cuda]
//   }

// An empty Python module, to load this file with.
extern "C" PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
  return PyModule_Create(&module);
}
