// The two layouts of a batch of clouds.
#pragma once
#include <cstdint>

namespace pointgrad {

// `sizes` holds offsets (packed) or lengths (padded), or is null: all clouds are full.
struct Clouds {
  bool packed;
  int64_t batch, num_points;
  const int64_t* sizes;

  int64_t total() const { return packed ? num_points : batch * num_points; }
  int64_t begin(int64_t cloud) const { return packed ? (sizes ? sizes[cloud] : 0) : cloud * num_points; }
  int64_t size(int64_t cloud) const {
    if (sizes == nullptr) return num_points;
    return packed ? sizes[cloud + 1] - sizes[cloud] : sizes[cloud];
  }
};

}  // namespace pointgrad
