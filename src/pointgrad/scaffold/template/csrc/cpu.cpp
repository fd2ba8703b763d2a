// The kernels for CPU tensors: points are divided among torch's threads, features are vectorized by the compiler.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "my_operator.h"

namespace my_operator {
namespace {

// The number of points that is worth a thread: about 32768 numbers, as in torch's own loops.
int64_t grain(int64_t features) { return std::max<int64_t>(1, 32768 / (8 * (features + 1))); }

template <typename scalar_t, typename sum_t = at::opmath_type<scalar_t>>  // float for 16 bits
void forward_row(const scalar_t* corners, const scalar_t* point, scalar_t* __restrict__ out, int64_t features) {
  const Cell<sum_t> cell(point);
  sum_t weight[8];
  for (int k = 0; k < 8; ++k) weight[k] = cell.weight(k);
  for (int64_t f = 0; f < features; ++f) {
    sum_t total = 0;
    for (int k = 0; k < 8; ++k) total += weight[k] * static_cast<sum_t>(corners[k * features + f]);
    out[f] = static_cast<scalar_t>(total);
  }
}

template <typename scalar_t, typename sum_t = at::opmath_type<scalar_t>>
void corners_row(const scalar_t* grad, const scalar_t* point, scalar_t* __restrict__ out, int64_t features) {
  const Cell<sum_t> cell(point);
  for (int k = 0; k < 8; ++k) {
    const sum_t weight = cell.weight(k);
    for (int64_t f = 0; f < features; ++f) {
      out[k * features + f] = static_cast<scalar_t>(weight * static_cast<sum_t>(grad[f]));
    }
  }
}

template <typename scalar_t, typename sum_t = at::opmath_type<scalar_t>>
void points_row(const scalar_t* grad, const scalar_t* corners, const scalar_t* point, scalar_t* out, int64_t features) {
  sum_t products[8];
  for (int k = 0; k < 8; ++k) {
    sum_t total = 0;
#pragma omp simd reduction(+ : total)  // allows another order of the sum, without which it cannot be vectorized
    for (int64_t f = 0; f < features; ++f) {
      total += static_cast<sum_t>(corners[k * features + f]) * static_cast<sum_t>(grad[f]);
    }
    products[k] = total;
  }
  Cell<sum_t>(point).slope(products, out);
}

}  // namespace

at::Tensor forward_cpu(const at::Tensor& corners_in, const at::Tensor& points_in) {
  check(corners_in, points_in);
  const at::Tensor corners = corners_in.contiguous(), points = points_in.contiguous();
  const int64_t count = corners.size(0), features = corners.size(2);
  const at::Tensor out = at::empty({count, features}, corners.options());  // every entry is written
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, corners.scalar_type(), "my_operator", [&] {
    const scalar_t *from = corners.const_data_ptr<scalar_t>(), *point = points.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, count, grain(features), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        forward_row(from + n * 8 * features, point + n * 3, to + n * features, features);
      }
    });
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> backward_cpu(const at::Tensor& grad_in, const std::optional<at::Tensor>& corners_in,
                                                const at::Tensor& points_in, bool for_corners) {
  check_backward(grad_in, corners_in, points_in);
  const bool for_points = corners_in.has_value();
  const at::Tensor grad = grad_in.contiguous(), points = points_in.contiguous();
  const at::Tensor corners = for_points ? corners_in->contiguous() : at::Tensor();
  const int64_t count = grad.size(0), features = grad.size(1);
  const at::Tensor corners_grad =
      for_corners ? at::empty({count, 8, features}, grad.options()) : at::empty({0}, grad.options());
  const at::Tensor points_grad = for_points ? at::empty({count, 3}, grad.options()) : at::empty({0}, grad.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, grad.scalar_type(), "my_operator_backward", [&] {
    const scalar_t *given = grad.const_data_ptr<scalar_t>(), *point = points.const_data_ptr<scalar_t>();
    const scalar_t* from = for_points ? corners.const_data_ptr<scalar_t>() : nullptr;
    scalar_t* to_corners = corners_grad.mutable_data_ptr<scalar_t>();
    scalar_t* to_points = points_grad.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, count, grain(features), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const scalar_t* row = given + n * features;
        const int64_t corner = n * 8 * features;
        if (for_corners) corners_row(row, point + n * 3, to_corners + corner, features);
        if (for_points) points_row(row, from + corner, point + n * 3, to_points + n * 3, features);
      }
    });
  });
  return {corners_grad, points_grad};
}

}  // namespace my_operator
