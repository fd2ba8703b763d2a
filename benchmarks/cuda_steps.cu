// The kernels of docs/cpp_cuda_by_hand.md, each a step faster than the one before. They interpolate float32 features
// of the eight corners of a cell. benchmarks/cuda_steps.py builds, checks and times them.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

// The weight of corner k = 4 x + 2 y + z for a point in [-1, 1]^3.
__device__ float weight(const float* point, int k) {
  const float u = (point[0] + 1) / 2, v = (point[1] + 1) / 2, w = (point[2] + 1) / 2;
  return (k & 4 ? u : 1 - u) * (k & 2 ? v : 1 - v) * (k & 1 ? w : 1 - w);
}

// Step 1: one thread per number of the result. Neighboring threads have neighboring points.
__global__ void forward_by_point(const float* corners, const float* points, float* out, int count, int features) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  const int f = blockIdx.y * blockDim.y + threadIdx.y;
  if (n >= count || f >= features) return;
  float total = 0;
  for (int k = 0; k < 8; ++k) total += weight(points + n * 3, k) * corners[(n * 8 + k) * features + f];
  out[n * features + f] = total;
}

__global__ void backward_by_point(const float* grad, const float* points, float* corners_grad, int count,
                                  int features) {
  const int n = blockIdx.x * blockDim.x + threadIdx.x;
  const int f = blockIdx.y * blockDim.y + threadIdx.y;
  if (n >= count || f >= features) return;
  for (int k = 0; k < 8; ++k) {
    corners_grad[(n * 8 + k) * features + f] = weight(points + n * 3, k) * grad[n * features + f];
  }
}

// Step 2: neighboring threads have neighboring features, which are neighbors in memory.
__global__ void forward_by_feature(const float* corners, const float* points, float* out, int count, int features) {
  const int f = blockIdx.x * blockDim.x + threadIdx.x;
  const int n = blockIdx.y * blockDim.y + threadIdx.y;
  if (n >= count || f >= features) return;
  float total = 0;
  for (int k = 0; k < 8; ++k) total += weight(points + n * 3, k) * corners[(n * 8 + k) * features + f];
  out[n * features + f] = total;
}

__global__ void backward_by_feature(const float* grad, const float* points, float* corners_grad, int count,
                                    int features) {
  const int f = blockIdx.x * blockDim.x + threadIdx.x;
  const int n = blockIdx.y * blockDim.y + threadIdx.y;
  if (n >= count || f >= features) return;
  for (int k = 0; k < 8; ++k) {
    corners_grad[(n * 8 + k) * features + f] = weight(points + n * 3, k) * grad[n * features + f];
  }
}

// Step 3: four numbers per instruction. `features` is counted in groups of four.
__global__ void forward_by_four(const float4* corners, const float* points, float4* out, int count, int features) {
  const int f = blockIdx.x * blockDim.x + threadIdx.x;
  const int n = blockIdx.y * blockDim.y + threadIdx.y;
  if (n >= count || f >= features) return;
  float4 total = {0, 0, 0, 0};
  for (int k = 0; k < 8; ++k) {
    const float share = weight(points + n * 3, k);
    const float4 corner = corners[(n * 8 + k) * features + f];
    total.x += share * corner.x;
    total.y += share * corner.y;
    total.z += share * corner.z;
    total.w += share * corner.w;
  }
  out[n * features + f] = total;
}

__global__ void backward_by_four(const float4* grad, const float* points, float4* corners_grad, int count,
                                 int features) {
  const int f = blockIdx.x * blockDim.x + threadIdx.x;
  const int n = blockIdx.y * blockDim.y + threadIdx.y;
  if (n >= count || f >= features) return;
  const float4 given = grad[n * features + f];
  for (int k = 0; k < 8; ++k) {
    const float share = weight(points + n * 3, k);
    corners_grad[(n * 8 + k) * features + f] = {share * given.x, share * given.y, share * given.z, share * given.w};
  }
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

// Step 4 is the generated operator, pointgrad/scaffold/template/csrc/cuda.cu.
torch::Tensor forward(torch::Tensor corners, torch::Tensor points, int step) {
  TORCH_CHECK(corners.is_cuda() && corners.is_contiguous() && points.is_contiguous() && corners.numel() > 0);
  const int count = corners.size(0), features = corners.size(2);
  torch::Tensor out = torch::empty({count, features}, corners.options());
  const float *from = corners.data_ptr<float>(), *point = points.data_ptr<float>();
  float* to = out.data_ptr<float>();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (step == 1) {
    const dim3 threads(16, 16), blocks(divide_up(count, 16), divide_up(features, 16));
    forward_by_point<<<blocks, threads, 0, stream>>>(from, point, to, count, features);
  } else if (step == 2) {
    const dim3 threads(32, 8), blocks(divide_up(features, 32), divide_up(count, 8));
    forward_by_feature<<<blocks, threads, 0, stream>>>(from, point, to, count, features);
  } else {
    TORCH_CHECK(features % 4 == 0);
    const dim3 threads(32, 8), blocks(divide_up(features / 4, 32), divide_up(count, 8));
    forward_by_four<<<blocks, threads, 0, stream>>>(reinterpret_cast<const float4*>(from), point,
                                                    reinterpret_cast<float4*>(to), count, features / 4);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

torch::Tensor backward(torch::Tensor grad, torch::Tensor points, int step) {
  TORCH_CHECK(grad.is_cuda() && grad.is_contiguous() && points.is_contiguous() && grad.numel() > 0);
  const int count = grad.size(0), features = grad.size(1);
  torch::Tensor corners_grad = torch::empty({count, 8, features}, grad.options());
  const float *given = grad.data_ptr<float>(), *point = points.data_ptr<float>();
  float* to = corners_grad.data_ptr<float>();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (step == 1) {
    const dim3 threads(16, 16), blocks(divide_up(count, 16), divide_up(features, 16));
    backward_by_point<<<blocks, threads, 0, stream>>>(given, point, to, count, features);
  } else if (step == 2) {
    const dim3 threads(32, 8), blocks(divide_up(features, 32), divide_up(count, 8));
    backward_by_feature<<<blocks, threads, 0, stream>>>(given, point, to, count, features);
  } else {
    TORCH_CHECK(features % 4 == 0);
    const dim3 threads(32, 8), blocks(divide_up(features / 4, 32), divide_up(count, 8));
    backward_by_four<<<blocks, threads, 0, stream>>>(reinterpret_cast<const float4*>(given), point,
                                                     reinterpret_cast<float4*>(to), count, features / 4);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return corners_grad;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("forward", &forward);
  module.def("backward", &backward);
}
