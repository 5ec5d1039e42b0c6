// Evictors that keep no order and look at every block when they evict.
#pragma once

#include "checked_evictor.hpp"
#include "use_table.hpp"

namespace agentcache {

class ScannedEvictor : public CheckedEvictor {
 public:
  explicit ScannedEvictor(std::int64_t num_blocks) : CheckedEvictor(num_blocks), uses_(CheckedEvictor::num_blocks()) {}

 protected:
  void insert(const Freed& freed) override {
    for (std::size_t i = 0; i < freed.size(); ++i) uses_.insert(freed.use(i));
  }
  void erase(BlockId id) override { uses_.erase(id); }
  void check_with_kv() const override { uses_.check_integrity(); }

  UseTable uses_;
};

}  // namespace agentcache
