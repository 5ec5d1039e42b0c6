// Evictors that keep no order and look at every block when they evict.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/checked_evictor.hpp"
#include "evictors/use_table.hpp"

namespace agentcache {

/// Keeps the last use of each block, in no order. O(1) to add or remove a block.
class ScannedEvictor : public CheckedEvictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1.
  explicit ScannedEvictor(std::int64_t num_blocks) : CheckedEvictor(num_blocks), uses_(CheckedEvictor::num_blocks()) {}

 protected:
  void insert(const Freed& freed) override {
    for (std::size_t i = 0; i < freed.size(); ++i) uses_.insert(freed.use(i));
  }
  void erase(BlockId id) override { uses_.erase(id); }
  void check_with_kv() const override { uses_.check_integrity(); }

  /// Returns the blocks with KV, to look at all of them.
  const UseTable& uses() const { return uses_; }

 private:
  UseTable uses_;
};

}  // namespace agentcache
