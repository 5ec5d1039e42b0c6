// The contract of every evictor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block.hpp"

namespace agentcache {

/// Orders the free blocks of a cache and gives up the ones that are worth least.
///
/// Python knows the same methods, with the same meaning (agentcache/_evictor.pyi). A block is named by its id, an
/// integer from 0. It is *free* from `add` or `add_empty` until `evict` or `remove`; only free blocks are known here.
/// Free blocks may still hold KV that a later request reuses (then it is removed). Times are seconds on one clock of
/// the caller's. A call that throws changes nothing.
///
/// \note Calls on one evictor must not overlap. Only const ones may overlap with each other: they change nothing.
class Evictor {
 public:
  Evictor() = default;
  virtual ~Evictor() = default;
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  /// Returns how many blocks are free. O(1).
  virtual std::size_t size() const = 0;

  /// Frees blocks that hold reusable KV and were last used at `now_s`. Where the policy sees no difference, earlier ids
  /// go first. `positions[i]` belongs to `ids[i]`: the tokens of its sequence up to its end.
  /// Superseded ones (`context`) go behind the empty blocks and before all others, in the order of their calls.
  /// \throws std::invalid_argument for a block that is free already or unknown, and for a value out of range.
  virtual void add(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s,
                   const FreeContext& context = {}) = 0;

  /// Frees blocks without reusable KV: they go before every other block, the latest call first, in order.
  /// \throws std::invalid_argument for a block that is free already or unknown.
  virtual void add_empty(std::span<const BlockId> ids) = 0;

  /// Takes out the `count` blocks to lose, and returns them in the order in which they are lost.
  /// \throws std::invalid_argument if fewer are free.
  virtual std::vector<BlockId> evict(std::int64_t count, double now_s) = 0;

  /// Takes out one block because its KV is used again.
  /// \throws NotFree if it is not free, or there is no such block.
  virtual void remove(std::int64_t id) = 0;

  /// Returns all free blocks in the order in which `evict` would take them at `now_s`.
  virtual std::vector<BlockId> order(double now_s) const = 0;

  /// Returns the first `count` blocks of that order, or all if fewer are free.
  virtual std::vector<BlockId> first(std::size_t count, double now_s) const {
    std::vector<BlockId> first = order(now_s);
    first.resize(std::min(count, first.size()));
    return first;
  }

  /// Learns that a request came back to blocks that had been free for `idle_s` seconds, and removed them. Most policies
  /// learn nothing from it.
  virtual void observe_reuse(double /*idle_s*/) {}
  /// Tells whether it does: if not, reuse need not be noted. An evictor in Python does if it defines `observe_reuse`.
  virtual bool learns_reuse() const { return false; }

  /// Sets what the loss of these blocks costs, in seconds, until they are freed anew: their KV can be had back without
  /// computing it. Blocks that are not free with KV are ignored. Most policies know no cost that could change.
  /// \throws std::invalid_argument unless the cost is finite and above 0.
  virtual void reprice(std::span<const BlockId>, double /*cost_s*/) {}

  /// Forgets what was in a block that is not free here: its KV is lost. Most policies have nothing to forget.
  virtual void forget(BlockId) {}

  /// Checks the evictor's own records.
  /// \throws IntegrityError when they contradict each other.
  virtual void check_integrity() const = 0;
};

}  // namespace agentcache
