// Which blocks are free, and whether they hold reusable KV.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "block.hpp"
#include "errors.hpp"

namespace agentcache {

enum class BlockState : std::uint8_t { kTaken, kEmpty, kWithKv };

/// A byte a block: small enough to stay in a cache close to the core.
class BlockStates {
 public:
  explicit BlockStates(std::size_t num_blocks) : states_(num_blocks, BlockState::kTaken) {}

  std::size_t num_blocks() const { return states_.size(); }
  void resize(std::size_t num_blocks) { states_.resize(num_blocks, BlockState::kTaken); }

  /// Blocks that there are not are taken, too: nobody can have them.
  BlockState at(std::int64_t id) const {
    return id >= 0 && id < std::ssize(states_) ? states_[static_cast<std::size_t>(id)] : BlockState::kTaken;
  }

  /// Throws std::invalid_argument, and changes nothing, unless all `ids` are known, taken, and distinct.
  void release(std::span<const BlockId> ids, BlockState state) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!is_known(ids[i]) || at(ids[i]) != BlockState::kTaken) {
        take(ids.first(i));
        throw std::invalid_argument(describe_refusal(ids, i));
      }
      states_[index(ids[i])] = state;
    }
  }

  /// `ids` must be free.
  void take(std::span<const BlockId> ids) {
    for (const BlockId id : ids) states_[index(id)] = BlockState::kTaken;
  }

  /// Throws IntegrityError unless exactly `ids` are in `state`, each once.
  void check(std::span<const BlockId> ids, BlockState state) const {
    std::vector<bool> seen(num_blocks());
    for (const BlockId id : ids) {
      require_integrity(at(id) == state && !seen[index(id)], "an order lists a block twice, or one of another state");
      seen[index(id)] = true;
    }
    require_integrity(std::ranges::count(states_, state) == std::ssize(ids), "an order lacks a free block");
  }

 private:
  bool is_known(BlockId id) const { return id >= 0 && index(id) < num_blocks(); }

  std::string describe_refusal(std::span<const BlockId> ids, std::size_t refused) const {
    const std::string id = std::to_string(ids[refused]);
    if (!is_known(ids[refused])) return "there is no block " + id;
    // Those before were taken back: what is still free was free before the call.
    return "block " + id + (at(ids[refused]) == BlockState::kTaken ? " is given twice" : " is free already");
  }

  std::vector<BlockState> states_;
};

}  // namespace agentcache
