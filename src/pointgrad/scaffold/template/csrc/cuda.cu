// The kernels for CUDA tensors. They move each number once between memory and the processor, 16 bytes per instruction.
//
// One row of threads, at most a warp, works on one point: neighboring threads read neighboring features, so that the
// reads of a warp are whole cache lines. Each gradient of a corner has one thread that writes it, without atomic
// additions. The gradient of a point is a sum over features, which the threads of the row add up with shuffles.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "my_operator.h"

namespace my_operator {
namespace {

constexpr int THREADS = 256;

// Consecutive numbers that one instruction reads or writes, because their address is a multiple of their size.
template <typename scalar_t, int LENGTH>
struct alignas(LENGTH * sizeof(scalar_t)) Pack {
  scalar_t value[LENGTH];
};

template <typename scalar_t, int LENGTH>
__global__ void forward_kernel(const scalar_t* __restrict__ corners, const scalar_t* __restrict__ points,
                               scalar_t* __restrict__ out, int64_t count, int64_t features) {
  using sum_t = at::opmath_type<scalar_t>;  // float for 16 bits
  using Numbers = Pack<scalar_t, LENGTH>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; n < count; n += step) {
    const Cell<sum_t> cell(points + n * 3);
    const scalar_t* row = corners + n * 8 * features;
    for (int64_t f = threadIdx.x * LENGTH; f < features; f += blockDim.x * LENGTH) {
      Numbers corner[8];  // read before the sums, so that several reads wait for memory at the same time
#pragma unroll
      for (int k = 0; k < 8; ++k) corner[k] = *reinterpret_cast<const Numbers*>(row + k * features + f);
      Numbers result;
#pragma unroll
      for (int i = 0; i < LENGTH; ++i) {
        sum_t total = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) total += cell.weight(k) * static_cast<sum_t>(corner[k].value[i]);
        result.value[i] = static_cast<scalar_t>(total);
      }
      *reinterpret_cast<Numbers*>(out + n * features + f) = result;
    }
  }
}

template <typename scalar_t, int LENGTH, bool FOR_CORNERS, bool FOR_POINTS>
__global__ void backward_kernel(const scalar_t* __restrict__ grad, const scalar_t* __restrict__ corners,
                                const scalar_t* __restrict__ points, scalar_t* __restrict__ corners_grad,
                                scalar_t* __restrict__ points_grad, int64_t count, int64_t features) {
  using sum_t = at::opmath_type<scalar_t>;
  using Numbers = Pack<scalar_t, LENGTH>;
  // The threads of this row among those of the warp: shuffles wait for exactly these.
  const int first = (threadIdx.y * blockDim.x) % 32;
  const unsigned row_mask = static_cast<unsigned>(((1ull << blockDim.x) - 1) << first);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; n < count; n += step) {
    const Cell<sum_t> cell(points + n * 3);
    const int64_t row = n * 8 * features;
    sum_t products[8] = {};  // the sum of corner times gradient
    for (int64_t f = threadIdx.x * LENGTH; f < features; f += blockDim.x * LENGTH) {
      const Numbers given = *reinterpret_cast<const Numbers*>(grad + n * features + f);
      Numbers corner[8];
      if constexpr (FOR_POINTS) {
#pragma unroll
        for (int k = 0; k < 8; ++k) corner[k] = *reinterpret_cast<const Numbers*>(corners + row + k * features + f);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        Numbers share;
#pragma unroll
        for (int i = 0; i < LENGTH; ++i) {
          const sum_t value = static_cast<sum_t>(given.value[i]);
          if constexpr (FOR_CORNERS) share.value[i] = static_cast<scalar_t>(cell.weight(k) * value);
          if constexpr (FOR_POINTS) products[k] += static_cast<sum_t>(corner[k].value[i]) * value;
        }
        if constexpr (FOR_CORNERS) *reinterpret_cast<Numbers*>(corners_grad + row + k * features + f) = share;
      }
    }
    if constexpr (FOR_POINTS) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        for (int offset = blockDim.x / 2; offset > 0; offset /= 2) {
          products[k] += __shfl_down_sync(row_mask, products[k], offset, blockDim.x);
        }
      }
      if (threadIdx.x == 0) cell.slope(products, points_grad + n * 3);
    }
  }
}

// One row of threads per point: a power of two, at most a warp.
dim3 threads(int64_t packs) {
  unsigned row = 1;
  while (row < 32 && row < packs) row *= 2;
  return dim3(row, THREADS / row);
}

unsigned blocks(int64_t count, dim3 block) {  // a larger count is covered by the loop over n
  return static_cast<unsigned>(std::min<int64_t>((count + block.y - 1) / block.y, INT32_MAX));
}

// Whether all rows of these tensors start at a multiple of 16 bytes. A slice of a tensor may not.
template <typename scalar_t>
bool aligned(int64_t features, std::initializer_list<const scalar_t*> pointers) {
  bool all = features * sizeof(scalar_t) % 16 == 0;
  for (const scalar_t* pointer : pointers) all = all && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  return all;
}

template <int LENGTH, typename scalar_t>
void launch_forward(const scalar_t* corners, const scalar_t* points, scalar_t* out, int64_t count, int64_t features) {
  const dim3 block = threads((features + LENGTH - 1) / LENGTH);
  forward_kernel<scalar_t, LENGTH><<<blocks(count, block), block, 0, c10::cuda::getCurrentCUDAStream()>>>(
      corners, points, out, count, features);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <int LENGTH, typename scalar_t>
void launch_backward(const scalar_t* grad, const scalar_t* corners, const scalar_t* points, scalar_t* corners_grad,
                     scalar_t* points_grad, int64_t count, int64_t features) {
  const dim3 block = threads((features + LENGTH - 1) / LENGTH);
  auto kernel = backward_kernel<scalar_t, LENGTH, true, true>;
  if (!points_grad) kernel = backward_kernel<scalar_t, LENGTH, true, false>;
  if (!corners_grad) kernel = backward_kernel<scalar_t, LENGTH, false, true>;
  kernel<<<blocks(count, block), block, 0, c10::cuda::getCurrentCUDAStream()>>>(grad, corners, points, corners_grad,
                                                                                points_grad, count, features);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace

at::Tensor forward_cuda(const at::Tensor& corners_in, const at::Tensor& points_in) {
  check(corners_in, points_in);
  const c10::cuda::CUDAGuard guard(corners_in.device());  // otherwise kernels run on the current device
  const at::Tensor corners = corners_in.contiguous(), points = points_in.contiguous();
  const int64_t count = corners.size(0), features = corners.size(2);
  const at::Tensor out = at::empty({count, features}, corners.options());  // every entry is written
  if (out.numel() == 0) return out;                                         // a grid of size 0 is an error
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, corners.scalar_type(), "my_operator", [&] {
    const scalar_t *from = corners.const_data_ptr<scalar_t>(), *point = points.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    if (aligned<scalar_t>(features, {from, to})) {
      launch_forward<16 / sizeof(scalar_t)>(from, point, to, count, features);
    } else {
      launch_forward<1>(from, point, to, count, features);
    }
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> backward_cuda(const at::Tensor& grad_in, const std::optional<at::Tensor>& corners_in,
                                                 const at::Tensor& points_in, bool for_corners) {
  check_backward(grad_in, corners_in, points_in);
  const c10::cuda::CUDAGuard guard(grad_in.device());
  const bool for_points = corners_in.has_value();
  const at::Tensor grad = grad_in.contiguous(), points = points_in.contiguous();
  const at::Tensor corners = for_points ? corners_in->contiguous() : at::Tensor();
  const int64_t count = grad.size(0), features = grad.size(1);
  const at::Tensor corners_grad =
      for_corners ? at::empty({count, 8, features}, grad.options()) : at::empty({0}, grad.options());
  const at::Tensor points_grad = for_points ? at::empty({count, 3}, grad.options()) : at::empty({0}, grad.options());
  if (corners_grad.numel() == 0 && points_grad.numel() == 0) return {corners_grad, points_grad};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, grad.scalar_type(), "my_operator_backward", [&] {
    const scalar_t *given = grad.const_data_ptr<scalar_t>(), *point = points.const_data_ptr<scalar_t>();
    const scalar_t* from = for_points ? corners.const_data_ptr<scalar_t>() : nullptr;
    scalar_t* to_corners = for_corners ? corners_grad.mutable_data_ptr<scalar_t>() : nullptr;
    scalar_t* to_points = for_points ? points_grad.mutable_data_ptr<scalar_t>() : nullptr;
    if (aligned<scalar_t>(features, {given, from, to_corners})) {
      launch_backward<16 / sizeof(scalar_t)>(given, from, point, to_corners, to_points, count, features);
    } else {
      launch_backward<1>(given, from, point, to_corners, to_points, count, features);
    }
  });
  return {corners_grad, points_grad};
}

}  // namespace my_operator
