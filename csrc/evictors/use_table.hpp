// The last uses of blocks, dense so that they can be scanned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"

namespace agentcache {

/// At most one use for each block, in no order.
class UseTable {
 public:
  /// Makes room for blocks with the ids from 0 to `num_blocks` - 1.
  explicit UseTable(std::size_t num_blocks) : place_(num_blocks, kAbsent) {}

  /// Returns how many blocks are contained.
  std::size_t size() const { return uses_.size(); }
  /// Iterates over the uses. Valid until the next change.
  auto begin() const { return uses_.begin(); }
  auto end() const { return uses_.end(); }

  /// Adds the use of a block. O(1).
  /// \pre The block is not contained.
  void insert(const Use& use) {
    place_[index(use.id)] = uses_.size();
    uses_.push_back(use);
  }

  /// Takes out a block; the last use moves into the gap. O(1).
  /// \pre `id` is contained.
  void erase(BlockId id) {
    const std::size_t gap = place_[index(id)];
    uses_[gap] = uses_.back();
    place_[index(uses_[gap].id)] = gap;
    place_[index(id)] = kAbsent;
    uses_.pop_back();
  }

  /// Checks the index. O(blocks).
  /// \throws IntegrityError unless it is right.
  void check_integrity() const {
    std::size_t indexed = 0;
    for (const std::size_t place : place_) indexed += place != kAbsent;
    require_integrity(indexed == size(), "the table's index and the table differ in size");
    for (std::size_t place = 0; place < size(); ++place) {
      require_integrity(place_[index(uses_[place].id)] == place, "the table's index points to another block");
    }
  }

 private:
  friend struct Damage;

  static constexpr std::size_t kAbsent = SIZE_MAX;

  std::vector<Use> uses_;
  std::vector<std::size_t> place_;  // of each block in uses_
};

}  // namespace agentcache
