// Registration of kernels in pointgrad._native, and the types of their arguments.
//
// A family's cpu.cpp registers its own kernels; there is no central list. Arguments are named and passed by keyword:
//
//   void gather(Output out, Input features, In<int64_t> index, int64_t rows, DType dtype, Threads threads);
//   POINTGRAD_KERNELS(module) {
//     module.def("gather", &gather, nb::kw_only(), "out"_a, "features"_a, "index"_a, "rows"_a, "dtype"_a, kThreads);
//   }
//
//   native.module.gather(out=out, features=features, index=index, rows=5, dtype=features.dtype)
//
// Python passes tensors and torch dtypes directly, and None where the argument is declared with `.none()`. It has
// checked the tensors, made them contiguous and keeps them alive. Wrap long work in nb::gil_scoped_release.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace pointgrad {

namespace nb = nanobind;
using namespace nb::literals;
using Definer = void (*)(nb::module_&);

struct AddKernels {
  explicit AddKernels(Definer definer);
};

// The memory of a tensor that a kernel reads; null for None. The element type is known only at run time.
struct Input {
  const void* data = nullptr;
  template <class T> const T* as() const { return static_cast<const T*>(data); }
  explicit operator bool() const { return data != nullptr; }
};

// The memory of a tensor that a kernel writes.
struct Output {
  void* data = nullptr;
  template <class T> T* as() const { return static_cast<T*>(data); }
  explicit operator bool() const { return data != nullptr; }
};

// The same with a fixed element type, such as indices. They convert to pointers, in one direction only.
template <class T> struct In {
  const T* data = nullptr;
  operator const T*() const { return data; }
};
template <class T> struct Out {
  T* data = nullptr;
  operator T*() const { return data; }
};

// A torch dtype: its place in the list that Python passes to `use_torch`, the order of with_number_type.
struct DType {
  int code = -1;
  operator int() const { return code; }
};

// The number of threads: by default `torch.get_num_threads()`.
struct Threads {
  int count = 1;
  operator int() const { return count; }
};
inline const auto kThreads = nb::arg("threads").none() = nb::none();

// The result of `tensor.data_ptr()`, or null for None; false, without a Python error, for anything else.
bool address_of(PyObject* object, void** address) noexcept;
bool code_of(PyObject* dtype, int* code) noexcept;
bool num_threads_of(PyObject* object, int* count) noexcept;

}  // namespace pointgrad

namespace nanobind {
namespace detail {

template <class Argument> struct pointgrad_tensor {
  NB_TYPE_CASTER(Argument, const_name("torch.Tensor | None"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    void* address = nullptr;
    if (!pointgrad::address_of(source.ptr(), &address)) return false;
    value.data = static_cast<decltype(value.data)>(address);
    return true;
  }
};

template <> struct type_caster<pointgrad::Input> : pointgrad_tensor<pointgrad::Input> {};
template <> struct type_caster<pointgrad::Output> : pointgrad_tensor<pointgrad::Output> {};
template <class T> struct type_caster<pointgrad::In<T>> : pointgrad_tensor<pointgrad::In<T>> {};
template <class T> struct type_caster<pointgrad::Out<T>> : pointgrad_tensor<pointgrad::Out<T>> {};

template <> struct type_caster<pointgrad::DType> {
  NB_TYPE_CASTER(pointgrad::DType, const_name("torch.dtype"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    return pointgrad::code_of(source.ptr(), &value.code);
  }
};

template <> struct type_caster<pointgrad::Threads> {
  NB_TYPE_CASTER(pointgrad::Threads, const_name("int | None"))
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    return pointgrad::num_threads_of(source.ptr(), &value.count);
  }
};

}  // namespace detail
}  // namespace nanobind

#define POINTGRAD_KERNELS(module)                            \
  static void define_kernels(pointgrad::nb::module_&);       \
  static pointgrad::AddKernels add_kernels(&define_kernels); \
  static void define_kernels(pointgrad::nb::module_& module)
