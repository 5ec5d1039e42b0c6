// Which blocks are free, and whether they hold reusable KV.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/block.hpp"
#include "core/errors.hpp"

namespace agentcache {

/// Not free, free without reusable KV, or free with it.
enum class BlockState : std::uint8_t { kTaken, kEmpty, kWithKv };

/// The state of each block, in a byte: small enough to stay in a cache close to the core.
class BlockStates {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1, all of them taken.
  explicit BlockStates(std::size_t num_blocks) : states_(num_blocks, BlockState::kTaken) {}

  /// Returns how many blocks there are.
  std::size_t num_blocks() const { return states_.size(); }
  /// Adds blocks that are taken, up to `num_blocks`.
  void resize(std::size_t num_blocks) { states_.resize(num_blocks, BlockState::kTaken); }

  /// Returns the state of a block. Blocks that do not exist count as taken: no caller can have them.
  BlockState at(std::int64_t id) const {
    return id >= 0 && id < std::ssize(states_) ? states_[static_cast<std::size_t>(id)] : BlockState::kTaken;
  }

  /// Frees blocks into `state`. O(ids).
  /// \throws std::invalid_argument, with nothing changed, unless all `ids` are known, taken, and distinct.
  void release(std::span<const BlockId> ids, BlockState state) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!is_known(ids[i]) || at(ids[i]) != BlockState::kTaken) {
        take(ids.first(i));
        throw std::invalid_argument(describe_refusal(ids, i));
      }
      states_[index(ids[i])] = state;
    }
  }

  /// Takes blocks. O(ids).
  /// \pre All `ids` are free.
  void take(std::span<const BlockId> ids) {
    for (const BlockId id : ids) states_[index(id)] = BlockState::kTaken;
  }

  /// Checks that exactly `ids` are in `state`, each once. O(blocks).
  /// \throws IntegrityError if not.
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
