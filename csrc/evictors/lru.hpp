// Least recently used first, as an engine without a policy does it.
#pragma once

#include <cstddef>
#include <vector>

#include "core/block_list.hpp"
#include "core/checked_evictor.hpp"

namespace agentcache {

/// One list in the order of freeing; O(1) per block. Grows with the ids that it is given: it needs to know nothing of
/// the cache.
class LruEvictor final : public CheckedEvictor {
 public:
  /// Knows any block, from the call on that frees it first.
  LruEvictor() : CheckedEvictor(0), with_kv_(0) {}

 protected:
  void insert(const Freed& freed) override { with_kv_.append(freed.ids); }
  void erase(BlockId id) override { with_kv_.erase(id); }
  void take(std::size_t count, double, std::vector<BlockId>& victims) override { with_kv_.take(count, victims); }
  std::vector<BlockId> order_with_kv(double) const override { return with_kv_.order(); }
  void check_with_kv() const override { with_kv_.check_integrity(); }

  void make_room(BlockId last) override {
    if (last < static_cast<BlockId>(num_blocks())) return;
    resize(index(last) + 1);
    with_kv_.resize(num_blocks());
  }

 private:
  friend struct Damage;

  BlockList with_kv_;
};

}  // namespace agentcache
