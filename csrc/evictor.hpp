// The contract of every evictor: the same as agentcache/policy/evictor.py. Calls on one evictor must not overlap.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "block.hpp"
#include "empty_blocks.hpp"
#include "errors.hpp"

namespace agentcache {

/// Checks arguments, gives up empty blocks first, and leaves the blocks with KV to the policy.
class Evictor {
 public:
  explicit Evictor(std::int64_t num_blocks) : num_blocks_(checked_size(num_blocks)), empty_(num_blocks_) {}
  virtual ~Evictor() = default;
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  std::size_t size() const { return empty_.size() + num_with_kv(); }

  /// `positions[i]` belongs to `ids[i]`. Nothing is added when an argument is wrong.
  void add_n(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s, double factor) {
    require_argument(ids.size() == positions.size(), "block_ids and positions differ in length");
    require_argument(std::isfinite(now_s), "now_s must be finite");
    require_argument(factor > 0 && std::isfinite(factor), "factor must be finite and above 0");
    for (const std::int64_t position : positions) require_argument(position >= 0, "a position is negative");
    require_taken(ids);
    for (std::size_t i = 0; i < ids.size(); ++i) insert({ids[i], positions[i], now_s, factor, next_sequence_++});
  }

  void add_empty_n(std::span<const BlockId> ids) {
    require_taken(ids);
    empty_.add(ids);
  }

  std::vector<BlockId> evict_n(std::int64_t count, double now_s) {
    require_argument(std::isfinite(now_s), "now_s must be finite");
    if (count < 0 || static_cast<std::size_t>(count) > size()) {
      throw std::invalid_argument("cannot evict " + std::to_string(count) + " blocks: " + std::to_string(size()) +
                                  " are free");
    }
    const auto wanted = static_cast<std::size_t>(count);
    std::vector<BlockId> victims;
    victims.reserve(wanted);
    while (victims.size() < wanted && empty_.size() > 0) {
      victims.push_back(empty_.first());
      empty_.erase(victims.back());
    }
    take(wanted - victims.size(), now_s, victims);
    return victims;
  }

  void remove(std::int64_t id) {
    const auto block = static_cast<BlockId>(id);
    if (!is_known(id) || !is_free(block)) throw NotFree(std::to_string(id));
    if (empty_.contains(block)) {
      empty_.erase(block);
    } else {
      erase(block);
    }
  }

  /// All free blocks, in the order in which evict_n would take them at `now_s`.
  std::vector<BlockId> order(double now_s) const {
    require_argument(std::isfinite(now_s), "now_s must be finite");
    std::vector<BlockId> order = empty_.order();
    const std::vector<BlockId> with_kv = order_with_kv(now_s);
    order.insert(order.end(), with_kv.begin(), with_kv.end());
    return order;
  }

  /// Throws IntegrityError when the records contradict each other.
  void check_integrity() const {
    empty_.check_integrity();
    check_with_kv();
    for (const BlockId id : empty_.order()) require_integrity(!has_kv(id), "a block is both empty and with KV");
  }

 protected:
  std::size_t num_blocks() const { return num_blocks_; }

  // What a policy does with the blocks that hold KV. All arguments are checked before.
  virtual std::size_t num_with_kv() const = 0;
  virtual bool has_kv(BlockId id) const = 0;
  virtual void insert(const Use& use) = 0;
  virtual void erase(BlockId id) = 0;
  /// Takes out `count` blocks and puts them behind `victims`.
  virtual void take(std::size_t count, double now_s, std::vector<BlockId>& victims) = 0;
  virtual std::vector<BlockId> order_with_kv(double now_s) const = 0;
  virtual void check_with_kv() const = 0;

 private:
  static std::size_t checked_size(std::int64_t num_blocks) {
    require_argument(num_blocks >= 0 && num_blocks < std::numeric_limits<BlockId>::max(), "num_blocks is out of range");
    return static_cast<std::size_t>(num_blocks);
  }

  bool is_known(std::int64_t id) const { return id >= 0 && static_cast<std::size_t>(id) < num_blocks_; }
  bool is_free(BlockId id) const { return empty_.contains(id) || has_kv(id); }

  void require_taken(std::span<const BlockId> ids) {
    for (const BlockId id : ids) {
      if (!is_known(id)) throw std::invalid_argument("there is no block " + std::to_string(id));
      if (is_free(id)) throw std::invalid_argument("block " + std::to_string(id) + " is free already");
    }
    require_distinct(ids);
  }

  void require_distinct(std::span<const BlockId> ids) {
    ++call_;
    if (last_call_.empty()) last_call_.resize(num_blocks_);
    for (const BlockId id : ids) {
      std::uint64_t& last_call = last_call_[static_cast<std::size_t>(id)];
      if (last_call == call_) throw std::invalid_argument("block " + std::to_string(id) + " is given twice");
      last_call = call_;
    }
  }

  std::size_t num_blocks_;
  EmptyBlocks empty_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t call_ = 0;
  std::vector<std::uint64_t> last_call_;  // in which each block was added
};

}  // namespace agentcache
