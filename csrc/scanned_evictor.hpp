// Evictors that keep no order and look at every block when they evict.
#pragma once

#include "evictor.hpp"
#include "use_table.hpp"

namespace agentcache {

class ScannedEvictor : public Evictor {
 public:
  explicit ScannedEvictor(std::int64_t num_blocks) : Evictor(num_blocks), uses_(Evictor::num_blocks()) {}

 protected:
  std::size_t num_with_kv() const override { return uses_.size(); }
  bool has_kv(BlockId id) const override { return uses_.contains(id); }
  void insert(const Use& use) override { uses_.insert(use); }
  void erase(BlockId id) override { uses_.erase(id); }
  void check_with_kv() const override { uses_.check_integrity(); }

  UseTable uses_;
};

}  // namespace agentcache
