// How a room's cpu.cpp adds its kernels to pointgrad._native without any central list:
//
//   POINTGRAD_KERNELS(module) { module.def("gather", &gather, ...); }
//
// Kernels take tensors as addresses (`tensor.data_ptr()`): the Python side has made them contiguous,
// checked them and keeps them alive. Wrap long work in nb::gil_scoped_release.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

namespace pointgrad {

namespace nb = nanobind;
using address = uintptr_t;
using Definer = void (*)(nb::module_&);

struct AddKernels {
  explicit AddKernels(Definer definer);
};

template <class T> T* at(address value) { return reinterpret_cast<T*>(value); }

}  // namespace pointgrad

#define POINTGRAD_KERNELS(module)                            \
  static void define_kernels(pointgrad::nb::module_&);       \
  static pointgrad::AddKernels add_kernels(&define_kernels); \
  static void define_kernels(pointgrad::nb::module_& module)
