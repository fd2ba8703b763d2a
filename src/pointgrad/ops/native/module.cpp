#include "module.h"

#include <exception>
#include <new>
#include <vector>

namespace pointgrad {
namespace {

std::vector<Definer>& definers() {
  static std::vector<Definer> list;
  return list;
}

// Never destroyed: Python may call kernels until the process ends.
std::vector<PyObject*>& dtypes = *new std::vector<PyObject*>;
PyObject* data_ptr = nullptr;  // the name of the method

void set_dtypes(nb::list list) {
  dtypes.clear();
  for (nb::handle dtype : list) dtypes.push_back(dtype.inc_ref().ptr());
}

}  // namespace

AddKernels::AddKernels(Definer definer) { definers().push_back(definer); }

bool address_of(PyObject* object, void** address) noexcept {
  if (object == Py_None) return true;
  PyObject* result = PyObject_VectorcallMethod(data_ptr, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (result == nullptr) {
    PyErr_Clear();
    return false;
  }
  *address = PyLong_AsVoidPtr(result);
  Py_DECREF(result);
  if (*address == nullptr && PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return true;
}

bool code_of(PyObject* dtype, int* code) noexcept {
  for (size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i] == dtype) return *code = static_cast<int>(i), true;
  return false;
}

}  // namespace pointgrad

NB_MODULE(_native, module) {
  module.attr("sanitizer") = POINTGRAD_SANITIZE;  // so that a test run can tell which build it has
  pointgrad::data_ptr = PyUnicode_InternFromString("data_ptr");
  module.def("set_dtypes", &pointgrad::set_dtypes);
  nanobind::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "not enough memory for the working buffers of a C++ kernel of pointgrad");
    }
  });
  for (auto define : pointgrad::definers()) define(module);
}
