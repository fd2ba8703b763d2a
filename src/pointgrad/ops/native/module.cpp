#include "module.h"

#include <exception>
#include <new>
#include <vector>

namespace pointgrad {

static std::vector<Definer>& definers() {
  static std::vector<Definer> list;
  return list;
}

AddKernels::AddKernels(Definer definer) { definers().push_back(definer); }

}  // namespace pointgrad

NB_MODULE(_native, module) {
  module.attr("sanitizer") = POINTGRAD_SANITIZE;  // so that a test run can tell which build it has
  nanobind::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      PyErr_SetString(PyExc_MemoryError, "not enough memory for what a C++ kernel of pointgrad needs beside its results");
    }
  });
  for (auto define : pointgrad::definers()) define(module);
}
