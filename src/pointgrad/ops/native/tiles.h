// Reductions by an index in any order, tile by tile: the rows of a tile stay in the second-level cache while all
// entries of the index that go into them are processed.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "threads.h"

namespace pointgrad {

// The entries of the index that go into each tile, in the order of the index: a stable counting sort. A row belongs to
// one tile and its entries keep their order, so results depend neither on the tiles nor on the number of threads.
// Entries out of range are left out.
class Tiles {
 public:
  // index: (batch, picks), with rows numbered within each cloud. row_bytes: bytes of a row in the cache.
  // entries: memory for batch * picks numbers.
  Tiles(uint64_t* entries, const int64_t* index, int64_t batch, int64_t rows, int64_t picks, int64_t row_bytes,
        int threads)
      : rows_(rows), entries_(entries) {
    constexpr int64_t kTileBytes = 1 << 19;
    const int64_t for_all_threads = std::max<int64_t>(1, rows * batch / (4 * threads));
    while (shift_ < kRowBits && int64_t{2} << shift_ <= for_all_threads && row_bytes << shift_ < kTileBytes) ++shift_;
    tiles_per_cloud_ = std::max<int64_t>(1, ((rows - 1) >> shift_) + 1);
    const int64_t count = batch * tiles_per_cloud_, total = batch * picks;
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, total >> 14));
    std::vector<int64_t> next(parts * count, 0);
    run_tasks(parts, threads, [&](int64_t part) {
      int64_t* mine = next.data() + part * count;
      each(index, picks, total * part / parts, total * (part + 1) / parts,
           [&](int64_t tile, uint64_t) { ++mine[tile]; });
    });
    begin_.resize(count + 1);
    int64_t sum = 0;
    for (int64_t tile = 0; tile < count; ++tile) {
      begin_[tile] = sum;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t own = next[part * count + tile];
        next[part * count + tile] = sum;
        sum += own;
      }
    }
    begin_[count] = sum;
    run_tasks(parts, threads, [&](int64_t part) {
      int64_t* mine = next.data() + part * count;
      each(index, picks, total * part / parts, total * (part + 1) / parts,
           [&, to = entries_](int64_t tile, uint64_t entry) { to[mine[tile]++] = entry; });
    });
  }

  int64_t count() const { return static_cast<int64_t>(begin_.size()) - 1; }
  int64_t cloud(int64_t tile) const { return tile / tiles_per_cloud_; }
  // Rows [first, last) of the cloud.
  int64_t first(int64_t tile) const { return tile % tiles_per_cloud_ << shift_; }
  int64_t last(int64_t tile) const { return std::min(rows_, (tile % tiles_per_cloud_ + 1) << shift_); }
  const uint64_t* begin(int64_t tile) const { return entries_ + begin_[tile]; }
  const uint64_t* end(int64_t tile) const { return entries_ + begin_[tile + 1]; }
  // The position of an entry in the index of its cloud, and its row, counted from the first row of the tile.
  static int64_t pick(uint64_t entry) { return static_cast<int64_t>(entry >> kRowBits); }
  static int64_t row(uint64_t entry) { return static_cast<int64_t>(entry & ((uint64_t{1} << kRowBits) - 1)); }

 private:
  static constexpr int kRowBits = 20;

  template <class Body>
  void each(const int64_t* index, int64_t picks, int64_t begin, int64_t end, Body&& body) const {
    // Copies, because the compiler must assume that the body writes to members.
    const int64_t rows = rows_, mask = (int64_t{1} << shift_) - 1;
    const int shift = shift_;
    for (int64_t i = begin; i < end;) {
      const int64_t first = i / picks * picks, last = std::min(end, first + picks);
      const int64_t first_tile = i / picks * tiles_per_cloud_;
      for (; i < last; ++i) {
        const int64_t row = index[i];
        if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(rows)) continue;
        const uint64_t pick = static_cast<uint64_t>(i - first);
        body(first_tile + (row >> shift), pick << kRowBits | static_cast<uint64_t>(row & mask));
      }
    }
  }

  int64_t rows_, tiles_per_cloud_;
  int shift_ = 0;  // a tile has 2^shift rows
  uint64_t* entries_;
  std::vector<int64_t> begin_;
};

}  // namespace pointgrad
