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
PyObject* get_num_threads = nullptr;
PyObject* data_ptr = nullptr;  // the name of the method

void use_torch(nb::list list, nb::object get_threads) {
  dtypes.clear();
  for (nb::handle dtype : list) dtypes.push_back(dtype.inc_ref().ptr());
  get_num_threads = get_threads.release().ptr();
}

// Reads an address or number from a Python integer and releases it. Returns false on failure, without a Python error.
bool read(PyObject* integer, void** value) noexcept {
  if (integer != nullptr) {
    *value = PyLong_AsVoidPtr(integer);
    Py_DECREF(integer);
  }
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

}  // namespace

AddKernels::AddKernels(Definer definer) { definers().push_back(definer); }

bool address_of(PyObject* object, void** address) noexcept {
  if (object == Py_None) return true;
  return read(PyObject_VectorcallMethod(data_ptr, &object, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr), address);
}

bool num_threads_of(PyObject* object, int* count) noexcept {
  void* number = nullptr;
  PyObject* integer = object == Py_None ? PyObject_Vectorcall(get_num_threads, nullptr, 0, nullptr)
                                        : nb::handle(object).inc_ref().ptr();
  if (!read(integer, &number)) return false;
  *count = static_cast<int>(reinterpret_cast<intptr_t>(number));
  return *count >= 1;
}

bool code_of(PyObject* dtype, int* code) noexcept {
  for (size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i] == dtype) return *code = static_cast<int>(i), true;
  return false;
}

}  // namespace pointgrad

NB_MODULE(_native, module) {
  module.attr("sanitizer") = POINTGRAD_SANITIZE;  // identifies the build in a test run
  pointgrad::data_ptr = PyUnicode_InternFromString("data_ptr");
  module.def("use_torch", &pointgrad::use_torch);
  nanobind::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "not enough memory for the working buffers of a C++ kernel of pointgrad");
    }
  });
  for (auto define : pointgrad::definers()) define(module);
}
