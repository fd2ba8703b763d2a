// Declarations that bindings.cpp needs, and the checks and formulas that all kernels share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <optional>
#include <tuple>

namespace my_operator {

// [cpp]
at::Tensor forward_cpu(const at::Tensor& corners, const at::Tensor& points);
std::tuple<at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad, const std::optional<at::Tensor>& corners,
                                                const at::Tensor& points, bool for_corners);
// [/cpp]
// [cuda]
at::Tensor forward_cuda(const at::Tensor& corners, const at::Tensor& points);
std::tuple<at::Tensor, at::Tensor> backward_cuda(const at::Tensor& grad, const std::optional<at::Tensor>& corners,
                                                 const at::Tensor& points, bool for_corners);
// [/cuda]

// torch.ops.my_operator can be called without the public Python function, so kernels check what they rely on. Strides
// are not among that: kernels call contiguous(), which copies only if necessary.
inline void check(const at::Tensor& corners, const at::Tensor& points) {
  TORCH_CHECK(corners.dim() == 3 && corners.size(1) == 8, "corners must be (N, 8, F), got ", corners.sizes());
  TORCH_CHECK(points.dim() == 2 && points.size(0) == corners.size(0) && points.size(1) == 3,
              "points must be (N, 3) with N = ", corners.size(0), ", got ", points.sizes());
  TORCH_CHECK(points.scalar_type() == corners.scalar_type(), "points must have the dtype of corners, ",
              corners.scalar_type(), ", got ", points.scalar_type());
  TORCH_CHECK(points.device() == corners.device(), "points must be on the device of corners, ", corners.device(),
              ", got ", points.device());
}

inline void check_backward(const at::Tensor& grad, const std::optional<at::Tensor>& corners, const at::Tensor& points) {
  TORCH_CHECK(grad.dim() == 2, "grad must be (N, F), got ", grad.sizes());
  check(grad.unsqueeze(1).expand({-1, 8, -1}), points);  // a view, nothing is copied
  if (corners.has_value()) {
    check(*corners, points);
    TORCH_CHECK(corners->size(2) == grad.size(1), "corners must have F = ", grad.size(1), ", got ", corners->sizes());
  }
}

// The factors of the eight weights. With 64-bit sizes a row starts at an int64_t offset; a 32-bit one overflows at 2^31.
template <typename sum_t>
struct Cell {
  sum_t x[2], y[2], z[2];  // [0] for the lower side of the cell, [1] for the upper

  template <typename scalar_t>
  C10_HOST_DEVICE explicit Cell(const scalar_t* point) {
    x[1] = (static_cast<sum_t>(point[0]) + 1) / 2;
    y[1] = (static_cast<sum_t>(point[1]) + 1) / 2;
    z[1] = (static_cast<sum_t>(point[2]) + 1) / 2;
    x[0] = 1 - x[1];
    y[0] = 1 - y[1];
    z[0] = 1 - z[1];
  }

  // Corner k = 4 x + 2 y + z.
  C10_HOST_DEVICE sum_t weight(int k) const { return x[k >> 2] * y[k >> 1 & 1] * z[k & 1]; }

  // The gradient of the point, given the sum over all features of corner times gradient, for each corner.
  template <typename scalar_t>
  C10_HOST_DEVICE void slope(const sum_t* products, scalar_t* out) const {
    sum_t by_x = 0, by_y = 0, by_z = 0;
    for (int k = 0; k < 8; ++k) {
      by_x += (k >> 2 ? 1 : -1) * y[k >> 1 & 1] * z[k & 1] * products[k];
      by_y += (k >> 1 & 1 ? 1 : -1) * x[k >> 2] * z[k & 1] * products[k];
      by_z += (k & 1 ? 1 : -1) * x[k >> 2] * y[k >> 1 & 1] * products[k];
    }
    out[0] = static_cast<scalar_t>(by_x / 2);
    out[1] = static_cast<scalar_t>(by_y / 2);
    out[2] = static_cast<scalar_t>(by_z / 2);
  }
};

}  // namespace my_operator
