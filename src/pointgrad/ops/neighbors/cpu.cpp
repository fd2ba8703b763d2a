// The index of a batch of clouds, and the tasks of a search. The tree is in tree.h, the search in search.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "clouds.h"
#include "module.h"
#include "numbers.h"
#include "search.h"
#include "threads.h"
#include "tree.h"

namespace pointgrad {
namespace {

using namespace neighbors;

// The header of an index. A root for each cloud follows, then their trees.
struct alignas(64) Header {
  uint64_t name;
  int64_t num_clouds, num_points, dims, itemsize;
};
constexpr uint64_t kName = 0x65657274646b6770u;
constexpr size_t kRootBytes = offsetof(Root, level) + sizeof(Root::level);  // without padding

const Root* roots(const char* memory) { return reinterpret_cast<const Root*>(memory + sizeof(Header)); }

void check_size(int64_t num_points) {
  if (num_points > std::numeric_limits<int32_t>::max())
    throw std::length_error("a cloud must have fewer than 2^31 points");
}

// Returns the number of bytes used of `memory`; with nullptr, only computes it.
template <class T>
int64_t build_all(char* memory, const T* points, int dims, const Clouds& clouds, int threads) {
  int64_t used = int64_t{sizeof(Header)} + clouds.batch * int64_t{sizeof(Root)};
  Root* root = nullptr;
  if (memory != nullptr) {
    root = reinterpret_cast<Root*>(memory + sizeof(Header));
    std::memset(memory, 0, size_t(used));
    const Header header{kName, clouds.batch, clouds.total(), dims, int64_t{sizeof(T)}};
    std::memcpy(memory, &header, sizeof header);
  }
  std::vector<int64_t> small;
  for (int64_t b = 0; b < clouds.batch; ++b) {
    const int64_t n = clouds.size(b);
    check_size(n);
    if (memory != nullptr) {
      root[b].leaves = used;
      if (clouds.batch > 1 && n < (1 << 16)) {
        small.push_back(b);
      } else {
        build<T>(memory, root[b], points + clouds.begin(b) * dims, n, dims, threads);
      }
    }
    used += tree_bytes<T>(n);
  }
  run_tasks(int64_t(small.size()), threads, [&](int64_t i) {
    const int64_t b = small[i];
    build<T>(memory, root[b], points + clouds.begin(b) * dims, clouds.size(b), dims, 1);
  });
  return used;
}

void neighbor_index(Out<char> index, int64_t bytes, Input points, DType dtype, int dims, bool packed, int64_t batch,
                    int64_t num_points, In<int64_t> sizes, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  with_wide_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    // Points of more dimensions are searched without a tree.
    const int64_t used = dims > kAxes ? 0 : build_all<T>(index, points.as<T>(), dims, clouds, threads);
    std::memset(index + used, 0, size_t(bytes - used));
  });
}

// Memory for an index that is used by this call only.
struct Memory {
  std::unique_ptr<char[]> data;
  char* begin = nullptr;
  void take(int64_t bytes) {
    data.reset(new char[bytes + 64]);
    begin = data.get() + (64 - reinterpret_cast<uintptr_t>(data.get()) % 64) % 64;
  }
};

// Whether comparing all pairs is faster than a tree, by a model of the nanoseconds of both.
bool is_small(int64_t points, int64_t queries, bool has_index, bool same) {
  const double all = 300.0 * queries + 0.2 * points * queries;
  const double tree = (has_index ? 0 : 100.0 * points) + (same ? 500.0 : 650.0) * queries;
  return all <= tree;
}

// Any tensor may be passed as an index. Everything in it that is used as an address is checked; the points are not.
template <class T> void check_index(const char* index, int64_t bytes, const Clouds& clouds, int dims) {
  Header header{};
  if (bytes >= int64_t{sizeof header}) std::memcpy(&header, index, sizeof header);
  bool fits = header.name == kName && header.num_clouds == clouds.batch && header.num_points == clouds.total() &&
              header.dims == dims && header.itemsize == int64_t{sizeof(T)};
  int64_t used = int64_t{sizeof(Header)} + clouds.batch * int64_t{sizeof(Root)};
  fits = fits && used <= bytes;
  for (int64_t b = 0; fits && b < clouds.batch; ++b) {
    const Root& root = roots(index)[b];
    Root expected{};
    expected.leaves = used;
    used += tree_bytes<T>(clouds.size(b));
    fits = used <= bytes && root.num_points == clouds.size(b) && root.num_finite >= 0 &&
           root.num_finite <= root.num_points;
    if (!fits) continue;
    expected.num_points = root.num_points;
    expected.num_finite = root.num_finite;
    place_parts<T>(expected);
    fits = std::memcmp(&root, &expected, kRootBytes) == 0;
    if (!fits || root.num_finite == 0) continue;
    // The last leaf shows the number of finite points.
    const int64_t last = (root.num_finite - 1) / kFan;
    const Leaf<T>& leaf = Tree<T>(index, root).leaves[last];
    for (int i = 0; i < kFan; ++i) fits = fits && (leaf.index[i] >= 0) == (last * kFan + i < root.num_finite);
  }
  if (!fits) throw std::invalid_argument("index must be what neighbor_index returned for these points");
}

template <class T>
void search(const Clouds& clouds, const T* points, const Clouds& query_clouds, const T* queries, bool same, int dims,
            const char* index, const Asked<T>& asked, const Results<T>& output, int threads) {
  bool all = true;
  for (int64_t b = 0; b < clouds.batch && dims <= kAxes; ++b)
    all = all && is_small(clouds.size(b), query_clouds.size(b), index != nullptr, same);
  struct Task {
    int64_t cloud, begin, end;
  };
  std::vector<Task> tasks;
  const auto share_out = [&](int64_t cloud, int64_t count, int64_t most) {
    const int64_t share = std::max<int64_t>(1, std::min(most, ceil_div(count, 4 * threads)));
    for (int64_t begin = 0; begin < count; begin += share)
      tasks.push_back({cloud, begin, std::min(begin + share, count)});
  };
  const auto place_of = [&](int64_t cloud) {
    const int64_t first = clouds.begin(cloud);
    return Place{clouds.packed ? first : 0, first, query_clouds.begin(cloud)};
  };
  if (all) {
    for (int64_t b = 0; b < clouds.batch; ++b) {
      check_size(clouds.size(b));
      share_out(b, query_clouds.size(b), kMostQueries);
    }
    run_tasks(int64_t(tasks.size()), threads, [&](int64_t i) {
      const auto [cloud, begin, end] = tasks[i];
      const Place place = place_of(cloud);
      search_all<T>(points + place.first_point * dims, clouds.size(cloud), queries + place.first_query * dims, begin,
                    end, dims, asked, place, output);
    });
  } else {
    Memory own, own_queries;
    if (index == nullptr) {
      own.take(build_all<T>(nullptr, points, dims, clouds, threads));
      build_all<T>(own.begin, points, dims, clouds, threads);
      index = own.begin;
    }
    const char* query_index = index;
    if (!same) {
      own_queries.take(build_all<T>(nullptr, queries, dims, query_clouds, threads));
      build_all<T>(own_queries.begin, queries, dims, query_clouds, threads);
      query_index = own_queries.begin;
    }
    for (int64_t b = 0; b < clouds.batch; ++b) {
      const Tree<T> tree(query_index, roots(query_index)[b]);
      share_out(b, tree.num_leaves(), 64);
      for (int64_t i = 0; i < tree.num_strays(); ++i) output.write_nothing(query_clouds.begin(b) + tree.strays[i]);
    }
    run_tasks(int64_t(tasks.size()), threads, [&](int64_t i) {
      const auto [cloud, begin, end] = tasks[i];
      const Tree<T> tree(index, roots(index)[cloud]), query_tree(query_index, roots(query_index)[cloud]);
      search_tree<T>(tree, query_tree, begin, end, asked, place_of(cloud), output);
    });
  }
  if (query_clouds.packed) return;
  for (int64_t b = 0; b < clouds.batch; ++b)
    for (int64_t i = query_clouds.size(b); i < query_clouds.num_points; ++i)
      output.write_nothing(query_clouds.begin(b) + i);
}

void neighbor_search(Out<int64_t> found, Output distance2, Out<int64_t> count, Input points, DType dtype, int dims,
                     bool packed, int64_t batch, int64_t num_points, In<int64_t> sizes, Input queries,
                     int64_t num_queries, In<int64_t> query_sizes, In<char> index, int64_t index_bytes, int64_t k,
                     double radius2, double min_radius2, int select, int64_t seed, bool same, Threads threads) {
  nb::gil_scoped_release release;
  const Clouds clouds{packed, batch, num_points, sizes};
  const Clouds query_clouds = same ? clouds : Clouds{packed, batch, num_queries, query_sizes};
  with_wide_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const T most = std::numeric_limits<T>::max(), radius = T(radius2);
    const Asked<T> asked{k, radius >= most ? most : radius, T(min_radius2), Select(select), uint64_t(seed)};
    const Results<T> results{k, found, distance2.as<T>(), count};
    if (index != nullptr && dims <= kAxes) check_index<T>(index, index_bytes, clouds, dims);
    search<T>(clouds, points.as<T>(), query_clouds, (same ? points : queries).as<T>(), same, dims, index, asked, results,
              threads);
  });
}

}  // namespace
}  // namespace pointgrad

POINTGRAD_KERNELS(module) {
  using namespace pointgrad;
  module.def("neighbor_index", &neighbor_index, nb::kw_only(), "index"_a, "bytes"_a, "points"_a, "dtype"_a, "dims"_a,
             "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), kThreads);
  module.def("neighbor_search", &neighbor_search, nb::kw_only(), "found"_a, "distance2"_a, "count"_a, "points"_a,
             "dtype"_a, "dims"_a, "packed"_a, "batch"_a, "num_points"_a, "sizes"_a.none(), "queries"_a.none(),
             "num_queries"_a, "query_sizes"_a.none(), "index"_a.none(), "index_bytes"_a, "k"_a, "radius2"_a,
             "min_radius2"_a, "select"_a, "seed"_a, "same"_a, kThreads);
}
