// The queue of free blocks: an evictor, and when each block was freed, from which reuse and evictions are told.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "errors.hpp"
#include "evictor.hpp"

namespace agentcache {

/// Blocks whose reusable KV was lost for one cause.
struct Evictions {
  std::uint64_t blocks = 0;
  double age_s = 0.0;  ///< From when each was freed to when its KV was lost, summed.
};

class FreeQueue {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1; `evictor` must outlive the queue. Reuse is written down only if
  /// `notes_reuse`.
  FreeQueue(std::size_t num_blocks, Evictor& evictor, bool notes_reuse)
      : evictor_(evictor), freed_s_(num_blocks, kWithoutKv), notes_reuse_(notes_reuse) {}

  std::size_t size() const { return evictor_.size(); }
  std::vector<BlockId> order(double now_s) const { return evictor_.order(now_s); }
  const Evictions& by_capacity() const { return by_capacity_; }
  const Evictions& by_reset() const { return by_reset_; }

  /// At position 0 there is nothing to recompute, and so no KV that could be lost.
  void append_n(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s) {
    require_known(ids);
    evictor_.add_n(ids, positions, now_s, ending);
    for (std::size_t i = 0; i < ids.size(); ++i) freed_s_[index(ids[i])] = positions[i] > 0 ? now_s : kWithoutKv;
  }

  void prepend_n(std::span<const BlockId> ids) {
    require_known(ids);
    evictor_.add_empty_n(ids);
    for (const BlockId id : ids) freed_s_[index(id)] = kWithoutKv;
  }

  std::vector<BlockId> popleft_n(std::int64_t count, double now_s) {
    std::vector<BlockId> victims = evictor_.evict_n(count, now_s);
    for (const BlockId id : victims) note_eviction(id, now_s, by_capacity_);
    return victims;
  }

  /// Throws NotFree.
  void remove(std::int64_t id) {
    evictor_.remove(id);
    if (notes_reuse_) note_reuse(freed_s_.at(static_cast<std::size_t>(id)));
  }

  /// No free block holds KV any more; all stay free, in the order in which they would have gone.
  void forget_kv(double now_s) {
    // Evicted, not removed: to remove a block says that it is used again.
    const std::vector<BlockId> ids = evictor_.evict_n(static_cast<std::int64_t>(evictor_.size()), now_s);
    for (const BlockId id : ids) note_eviction(id, now_s, by_reset_);
    prepend_n(ids);
  }

  /// How long the blocks were free that were removed since the last call. Blocks freed together that are removed one
  /// after the other are one reuse.
  std::vector<double> take_reuses(double now_s) {
    std::vector<double> idle_s;
    for (const double freed_s : reused_) idle_s.push_back(now_s - freed_s);
    reused_.clear();
    return idle_s;
  }

  Ending ending;  ///< Of the request whose blocks are appended.

 private:
  static constexpr double kWithoutKv = std::numeric_limits<double>::quiet_NaN();

  void require_known(std::span<const BlockId> ids) const {
    for (const BlockId id : ids) {
      if (id < 0 || index(id) >= freed_s_.size())
        throw std::invalid_argument("there is no block " + std::to_string(id));
    }
  }

  void note_eviction(BlockId id, double now_s, Evictions& evictions) {
    const double freed_s = freed_s_.at(index(id));
    if (std::isnan(freed_s)) return;
    ++evictions.blocks;
    evictions.age_s += now_s - freed_s;
  }

  void note_reuse(double freed_s) {
    if (!std::isnan(freed_s) && (reused_.empty() || reused_.back() != freed_s)) reused_.push_back(freed_s);
  }

  Evictor& evictor_;
  std::vector<double> freed_s_;  // When each block was freed last.
  bool notes_reuse_;
  std::vector<double> reused_;  // Of the blocks removed lately: when they were freed.
  Evictions by_capacity_;
  Evictions by_reset_;
};

}  // namespace agentcache
