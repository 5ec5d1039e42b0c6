// The contract of every evictor: the same as agentcache/policy/evictor.py. Calls on one evictor must not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "block.hpp"

namespace agentcache {

class Evictor {
 public:
  Evictor() = default;
  virtual ~Evictor() = default;
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  /// How many blocks are free.
  virtual std::size_t size() const = 0;

  /// `positions[i]` belongs to `ids[i]`. Nothing is added when an argument is wrong.
  virtual void add_n(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s,
                     const Ending& ending = {}) = 0;
  virtual void add_empty_n(std::span<const BlockId> ids) = 0;
  virtual std::vector<BlockId> evict_n(std::int64_t count, double now_s) = 0;
  /// Throws NotFree.
  virtual void remove(std::int64_t id) = 0;

  /// All free blocks, in the order in which evict_n would take them at `now_s`.
  virtual std::vector<BlockId> order(double now_s) const = 0;

  /// A share of a group of blocks, freed under a class that `add_n` was told of, was kept elsewhere and left at
  /// `age_s`: it returned, or was evicted. Most policies learn nothing from it.
  virtual void observe_departure(EndClass, double /*age_s*/, double /*share*/, bool /*returned*/) {}

  /// The KV of a block that was removed is lost, and the block kept elsewhere. Most policies have nothing to forget.
  virtual void forget(BlockId) {}

  /// Throws IntegrityError when the records contradict each other.
  virtual void check_integrity() const = 0;
};

}  // namespace agentcache
