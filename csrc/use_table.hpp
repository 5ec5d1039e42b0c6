// The last uses of blocks, dense so that they can be scanned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block.hpp"
#include "errors.hpp"

namespace agentcache {

class UseTable {
 public:
  /// Blocks have the ids from 0 to `num_blocks` - 1.
  explicit UseTable(std::size_t num_blocks) : place_(num_blocks, kAbsent) {}

  std::size_t size() const { return uses_.size(); }
  auto begin() const { return uses_.begin(); }
  auto end() const { return uses_.end(); }

  /// The block must not be contained yet.
  void insert(const Use& use) {
    place_[index(use.id)] = uses_.size();
    uses_.push_back(use);
  }

  /// `id` must be contained. The last use moves into the gap.
  void erase(BlockId id) {
    const std::size_t gap = place_[index(id)];
    uses_[gap] = uses_.back();
    place_[index(uses_[gap].id)] = gap;
    place_[index(id)] = kAbsent;
    uses_.pop_back();
  }

  /// Throws IntegrityError unless the index is right.
  void check_integrity() const {
    std::size_t indexed = 0;
    for (const std::size_t place : place_) indexed += place != kAbsent;
    require_integrity(indexed == size(), "the table's index and the table differ in size");
    for (std::size_t place = 0; place < size(); ++place) {
      require_integrity(place_[index(uses_[place].id)] == place, "the table's index points to another block");
    }
  }

 protected:
  std::vector<Use> uses_;

 private:
  static constexpr std::size_t kAbsent = SIZE_MAX;

  std::vector<std::size_t> place_;  // of each block in uses_
};

}  // namespace agentcache
