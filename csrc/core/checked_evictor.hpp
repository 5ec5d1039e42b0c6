// What all evictors have in common: wrong arguments are refused, empty blocks go first.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/block_list.hpp"
#include "core/block_states.hpp"
#include "core/errors.hpp"
#include "core/evictor.hpp"

namespace agentcache {

/// Checks arguments and keeps the empty blocks. A policy derives from it and keeps the blocks with KV.
class CheckedEvictor : public Evictor {
 public:
  /// Knows the blocks from 0 to `num_blocks` - 1.
  /// \throws std::invalid_argument for a number that is negative, or more than ids can name.
  explicit CheckedEvictor(std::int64_t num_blocks) : states_(checked_size(num_blocks)), empty_(states_.num_blocks()) {}

  std::size_t size() const final { return empty_.size() + num_with_kv_; }

  void add(std::span<const BlockId> ids, std::span<const std::int64_t> positions, double now_s,
           const FreeContext& context = {}) final {
    require_argument(ids.size() == positions.size(), "block_ids and positions differ in length");
    require_argument(std::isfinite(now_s), "now_s must be finite");
    require_argument(context.factor > 0 && std::isfinite(context.factor), "factor must be finite and above 0");
    require_argument(context.finish_class >= 0 && context.finish_class < kMaxFinishClasses,
                     "finish_class is out of range");
    require_argument(context.job >= kNoJob, "job is negative");
    require_argument(context.pin >= kNoPin, "pin is negative");
    for (const std::int64_t position : positions) require_argument(position >= 0, "a position is negative");
    if (context.superseded) {
      release(ids, BlockState::kEmpty);
      empty_.append(ids);
      insert_empty(ids);
      return;
    }
    release(ids, BlockState::kWithKv);
    insert({ids, positions, now_s, context, next_sequence_});
    num_with_kv_ += ids.size();
    next_sequence_ += ids.size();
  }

  void add_empty(std::span<const BlockId> ids) final {
    release(ids, BlockState::kEmpty);
    empty_.prepend(ids);
    insert_empty(ids);
  }

  std::vector<BlockId> evict(std::int64_t count, double now_s) final {
    require_argument(std::isfinite(now_s), "now_s must be finite");
    if (count < 0 || static_cast<std::size_t>(count) > size()) {
      throw std::invalid_argument("cannot evict " + std::to_string(count) + " blocks: " + std::to_string(size()) +
                                  " are free");
    }
    const auto wanted = static_cast<std::size_t>(count);
    std::vector<BlockId> victims;
    victims.reserve(wanted);
    empty_.take(std::min(wanted, empty_.size()), victims);
    const std::size_t rest = wanted - victims.size();
    take(rest, now_s, victims);
    num_with_kv_ -= rest;
    states_.take(victims);
    return victims;
  }

  void remove(std::int64_t id) final {
    const BlockState state = states_.at(id);
    if (state == BlockState::kTaken) throw NotFree(std::to_string(id));
    const auto block = static_cast<BlockId>(id);
    if (state == BlockState::kEmpty) {
      empty_.erase(block);
    } else {
      erase(block);
      --num_with_kv_;
    }
    states_.take({&block, 1});
  }

  std::vector<BlockId> order(double now_s) const final {
    require_argument(std::isfinite(now_s), "now_s must be finite");
    std::vector<BlockId> order = empty_.order();
    const std::vector<BlockId> with_kv = order_with_kv(now_s);
    order.insert(order.end(), with_kv.begin(), with_kv.end());
    return order;
  }

  std::vector<BlockId> first(std::size_t count, double now_s) const final {
    require_argument(std::isfinite(now_s), "now_s must be finite");
    std::vector<BlockId> first = empty_.order();
    first.resize(std::min(count, first.size()));
    const std::vector<BlockId> with_kv = first_with_kv(count - first.size(), now_s);
    first.insert(first.end(), with_kv.begin(), with_kv.end());
    return first;
  }

  void reprice(std::span<const BlockId> ids, double cost_s) final {
    require_argument(cost_s > 0 && std::isfinite(cost_s), "cost_s must be finite and above 0");
    std::vector<BlockId> with_kv;
    for (const BlockId id : ids) {
      if (states_.at(id) == BlockState::kWithKv) with_kv.push_back(id);
    }
    std::ranges::sort(with_kv);
    with_kv.erase(std::ranges::unique(with_kv).begin(), with_kv.end());
    change_cost(with_kv, cost_s);
  }

  void check_integrity() const final {
    empty_.check_integrity();
    check_with_kv();
    const std::vector<BlockId> with_kv = order_with_kv(0.0);
    states_.check(empty_.order(), BlockState::kEmpty);
    states_.check(with_kv, BlockState::kWithKv);
    require_integrity(with_kv.size() == num_with_kv_, "the number of blocks with KV is wrong");
  }

 protected:
  /// Returns how many blocks there are, free and taken.
  std::size_t num_blocks() const { return states_.num_blocks(); }

  // What a policy does with the blocks that hold KV. All arguments are checked before.

  /// Takes in blocks that were taken until now. There may be none: the call still tells the time and the class.
  virtual void insert(const Freed& freed) = 0;
  /// Hears of blocks that were freed without KV. For policies that remember what was in them.
  virtual void insert_empty(std::span<const BlockId>) {}
  /// Takes out one of its blocks, which is used again.
  virtual void erase(BlockId id) = 0;
  /// Takes out `count` of its blocks, of at least so many, and puts them behind `victims`, the first to lose first.
  virtual void take(std::size_t count, double now_s, std::vector<BlockId>& victims) = 0;
  /// Returns all of its blocks, the first to lose first. Changes nothing, mutable members included: it may run in two
  /// threads at once.
  virtual std::vector<BlockId> order_with_kv(double now_s) const = 0;
  /// Returns the first `count` of those, or all if it has fewer. Changes nothing, as `order_with_kv`.
  virtual std::vector<BlockId> first_with_kv(std::size_t count, double now_s) const {
    std::vector<BlockId> first = order_with_kv(now_s);
    first.resize(std::min(count, first.size()));
    return first;
  }
  /// Checks its records. \throws IntegrityError when they contradict each other.
  virtual void check_with_kv() const = 0;

  /// Sets what the loss of each of these blocks costs. They are its own, each once.
  virtual void change_cost(std::span<const BlockId>, double /*cost_s*/) {}

  /// Hears, before blocks are freed, that the highest of their ids is `last`. For policies that are not told the number
  /// of blocks.
  virtual void make_room(BlockId) {}
  /// Adds blocks that are taken, up to `num_blocks`.
  void resize(std::size_t num_blocks) {
    states_.resize(num_blocks);
    empty_.resize(num_blocks);
  }

 private:
  static std::size_t checked_size(std::int64_t num_blocks) {
    require_argument(num_blocks >= 0 && num_blocks < std::numeric_limits<BlockId>::max(), "num_blocks is out of range");
    return static_cast<std::size_t>(num_blocks);
  }

  void release(std::span<const BlockId> ids, BlockState state) {
    if (!ids.empty()) make_room(*std::ranges::max_element(ids));
    states_.release(ids, state);
  }

  BlockStates states_;
  BlockList empty_;
  std::size_t num_with_kv_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace agentcache
