// The queue of free blocks: an evictor, and when each block was freed, from which reuse and evictions are told.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"
#include "core/evictor.hpp"

namespace agentcache {

/// Blocks whose reusable KV was lost for one cause.
struct Evictions {
  std::uint64_t blocks = 0;
  double age_s = 0.0;  ///< From when each was freed to when its KV was lost, summed.
};

/// Hands every call on to the evictor, which alone knows the order.
/// \note Calls on one queue must not overlap.
class FreeQueue {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1. If `notes_reuse`, tells an evictor that learns from it of reuse: with
  /// the next call that tells the time, late by less than a step, as an allocation for the same request follows.
  /// \pre `evictor` outlives the queue.
  FreeQueue(std::size_t num_blocks, Evictor& evictor, bool notes_reuse)
      : evictor_(evictor), freed_s_(num_blocks, kWithoutKv), notes_reuse_(notes_reuse && evictor.learns_reuse()) {}

  /// Returns how many blocks are free.
  std::size_t num_free_blocks() const { return evictor_.size(); }
  /// Returns the free blocks in eviction order.
  std::vector<BlockId> list_free(double now_s) const { return evictor_.order(now_s); }
  /// Returns the first `count` of them, or all if there are fewer.
  std::vector<BlockId> list_first(std::size_t count, double now_s) const { return evictor_.first(count, now_s); }
  /// Returns the blocks that were evicted by `take_n`, and those by `forget_kv_at`, since the queue was made.
  const Evictions& by_capacity() const { return by_capacity_; }
  const Evictions& by_reset() const { return by_reset_; }

  /// Returns, or sets, what is known of the request whose blocks are freed next. It stays until it is set again.
  const FreeContext& context() const { return context_; }
  void set_context(const FreeContext& context) { context_ = context; }

  /// Frees blocks that may hold KV, as Evictor::add: now, or as if at `freed_s` if that is given. At position 0 there
  /// is nothing to recompute, and so no KV that could be lost, nor any that matters in superseded blocks.
  void free_n(std::span<const BlockId> ids, std::vector<std::int64_t> positions, double now_s,
              std::optional<double> freed_s = std::nullopt) {
    require_known(ids);
    tell_reuses(now_s);
    const double last_s = freed_s.value_or(now_s);
    if (context_.prefix_only) level(positions);
    evictor_.add(ids, positions, last_s, context_);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      freed_s_[index(ids[i])] = positions[i] > 0 && !context_.superseded ? last_s : kWithoutKv;
    }
  }

  /// Frees blocks without KV, as Evictor::add_empty.
  void prepend_n(std::span<const BlockId> ids) {
    require_known(ids);
    evictor_.add_empty(ids);
    for (const BlockId id : ids) freed_s_[index(id)] = kWithoutKv;
  }

  /// Evicts `count` blocks, as Evictor::evict, and counts those that held KV.
  std::vector<BlockId> take_n(std::int64_t count, double now_s) {
    tell_reuses(now_s);
    std::vector<BlockId> victims = evictor_.evict(count, now_s);
    for (const BlockId id : victims) note_eviction(id, now_s, by_capacity_);
    return victims;
  }

  /// Takes out a block that is used again, as Evictor::remove, and notes the reuse if it held KV. Blocks freed together
  /// that are removed one after the other are one reuse.
  /// \throws NotFree if it is not free.
  void remove(std::int64_t id) {
    evictor_.remove(id);
    if (notes_reuse_) note_reuse(freed_s_.at(static_cast<std::size_t>(id)));
  }

  /// Makes every free block an empty one, in the order in which they would have gone: their KV is lost.
  void forget_kv_at(double now_s) {
    tell_reuses(now_s);
    // Evicted, not removed: to remove a block says that it is used again.
    const std::vector<BlockId> ids = evictor_.evict(static_cast<std::int64_t>(evictor_.size()), now_s);
    for (const BlockId id : ids) note_eviction(id, now_s, by_reset_);
    prepend_n(ids);
  }

 private:
  static constexpr double kWithoutKv = std::numeric_limits<double>::quiet_NaN();

  void require_known(std::span<const BlockId> ids) const {
    for (const BlockId id : ids) {
      if (id < 0 || index(id) >= freed_s_.size())
        throw std::invalid_argument("there is no block " + std::to_string(id));
    }
  }

  // Without the first block none behind it can be used, so blocks are lost from the end on, and each is as dear as all
  // of them on average: where one must go after the other, dear before cheap, no other order loses less. Blocks that
  // cost the same go in the order of freeing, which is from a request's end to its start.
  static void level(std::vector<std::int64_t>& positions) {
    std::int64_t sum = 0;
    std::int64_t with_kv = 0;
    for (const std::int64_t position : positions) {
      sum += position;
      with_kv += position > 0;
    }
    for (std::int64_t& position : positions) {
      if (position > 0) position = sum / with_kv;
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

  void tell_reuses(double now_s) {
    for (const double freed_s : std::exchange(reused_, {})) evictor_.observe_reuse(now_s - freed_s);
  }

  Evictor& evictor_;
  FreeContext context_;
  std::vector<double> freed_s_;  // When each block was freed last.
  bool notes_reuse_;
  std::vector<double> reused_;  // Of the blocks removed lately: when they were freed.
  Evictions by_capacity_;
  Evictions by_reset_;
};

}  // namespace agentcache
