// Records that are damaged on purpose: check_integrity must find it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "asymcache.hpp"
#include "grouped.hpp"
#include "lru.hpp"
#include "pinned.hpp"
#include "shared.hpp"

namespace agentcache {

struct BrokenHeap : IndexedHeap {
  BrokenHeap() : IndexedHeap(4) {
    for (RunId run = 0; run < 4; ++run) push(run, 1.0 * run, static_cast<std::uint64_t>(run));
  }
  void raise_key() { entries_[0].key = 9.0; }
  void swap_places() { std::swap(entries_[2], entries_[3]); }
  void lose_one() { entries_.pop_back(); }
};

struct BrokenList : BlockList {
  BrokenList() : BlockList(4) { append(std::vector<BlockId>{0, 1, 2}); }
  void count_one_more() { ++size_; }
  void count_two_less() { size_ -= 2; }
};

struct BrokenRuns : Runs {
  BrokenRuns() : Runs(4) {
    begin(std::vector<Ranked>{{1.0, 1, 0}, {2.0, 0, 1}}, {0.0, 0.0});
    begin(std::vector<Ranked>{{3.0, 2, 2}}, {0.0, 0.0});
  }
  void swap_values() { std::swap(values_[0], values_[1]); }
  void tie_values() { values_[1].log_value = 1.0; }
  void move_to_other_run() { links_[1].run = 1; }
  void lose_previous() { links_[1].previous = 1; }
  void end_one_more() { ended_.push_back(0); }
};

struct BrokenAsymCache : AsymCache {
  BrokenAsymCache() : AsymCache(4, kFrequency, kCost) {
    add_n(std::vector<BlockId>{0, 1}, std::vector<std::int64_t>{16, 32}, 0.0);
    add_n(std::vector<BlockId>{2}, std::vector<std::int64_t>{16}, 1.0);
  }
  void lose_run() { late_.erase(0); }
  void keep_old_key() { runs_.erase(0); }
  void lose_block() { AsymCache::erase(1); }
};

struct BrokenGroups : Groups {
  BrokenGroups() : Groups(4) {
    add(std::vector<Ranked>{{1.0, 1, 0}, {2.0, 0, 1}}, 0.0, {});
    add(std::vector<Ranked>{{3.0, 2, 2}}, 0.0, {});
  }
  void swap_costs() { std::swap(costs_[0], costs_[1]); }
  void raise_cost() { costs_[0].cost_s = 9.0; }
  void put_out_of_order() { costs_[1].cost_s = 0.5; }
  void swap_places() { std::swap(place_[0], place_[1]); }
  void move_to_other_group() { links_[1].group = 1; }
  void lose_previous() { links_[1].previous = 1; }
  void lose_group() { groups_.pop_back(); }
};

struct BrokenGrouped : Grouped {
  BrokenGrouped() : Grouped(4, kCost, kLearning) {
    add_n(std::vector<BlockId>{0, 1}, std::vector<std::int64_t>{16, 32}, 0.0);
  }
  void lose_block() { Grouped::erase(1); }
  void begin_other_group() { jobs_.begin_group(7, 0); }
};

struct BrokenPins : Pins {
  BrokenPins() : Pins(4, false) {
    add(7, {ids, positions, 0.0, {}, 0}, Origin::kOwn);
    set_value(8, 1.0);
  }
  void swap_owner() { owners_[0].pin = &pins_.at(8); }
  void count_one_more() { ++size_; }
  void count_one_adopted() { ++adopted_; }
  void lose_block() { groups_.erase(1); }
  const std::vector<BlockId> ids{0, 1};
  const std::vector<std::int64_t> positions{16, 32};
};

struct BrokenClaims : Claims {
  BrokenClaims() {
    add(7, 0);
    add(8, 0);
    add(8, 1);
  }
  void forget_block() { blocks_.at(8).erase(1); }
  void forget_pin() { pins_.at(0).pop_back(); }
  void keep_empty_list() { pins_[2]; }
};

struct BrokenPinned {
  BrokenPinned() {
    pinned.pin_next(7);
    pinned.add_n(std::vector<BlockId>{0, 1}, std::vector<std::int64_t>{16, 32}, 0.0);
    pinned.pin_next(std::nullopt);
    pinned.add_n(std::vector<BlockId>{2}, std::vector<std::int64_t>{16}, 0.0);
  }
  void check_integrity() const { pinned.check_integrity(); }
  void lose_pinned_block() { pinned.lose_pinned_block(); }
  void lose_inner_block() { lru.remove(2); }
  void pin_inner_block() { pinned.held(2).is_pinned = true; }
  void forget_pin() { pinned.held(0).is_pinned = false; }
  void claim_inner_block() { pinned.claim_free(2); }

  struct Opened : Pinned {
    using Pinned::Pinned;
    void lose_pinned_block() { pins_.erase(0); }
    void claim_free(BlockId id) { claims_.add(7, id); }
    Held& held(BlockId id) { return held_[index(id)]; }
  };
  Lru lru;
  Opened pinned{lru, 4, true};
};

struct BrokenLru : Lru {
  BrokenLru() { add_n(std::vector<BlockId>{3, 1}, std::vector<std::int64_t>{16, 32}, 0.0); }
  void lose_block() { Lru::erase(1); }
  void swap_block() {
    Lru::erase(1);
    const std::vector<BlockId> other{2};
    Lru::insert({other, {}, 0.0, {}, 0});
  }
};

struct BrokenTable : UseTable {
  BrokenTable() : UseTable(4) {
    for (BlockId id = 0; id < 3; ++id) insert({id, 16, 0.0, 1.0, 0});
  }
  void swap_places() { std::swap(uses_[0], uses_[1]); }
  void lose_one() { uses_.pop_back(); }
};

template <typename Broken>
void expect_found(void (Broken::*damage)(), const char* what) {
  Broken broken;
  broken.check_integrity();
  (broken.*damage)();
  try {
    broken.check_integrity();
  } catch (const IntegrityError&) {
    return;
  }
  expect(false, what);
}

inline void check_that_damage_is_found() {
  expect_found(&BrokenHeap::raise_key, "a heap out of order");
  expect_found(&BrokenHeap::swap_places, "a heap's index that points elsewhere");
  expect_found(&BrokenHeap::lose_one, "a heap's index with one block too many");
  expect_found(&BrokenList::count_one_more, "a list shorter than its size");
  expect_found(&BrokenList::count_two_less, "a list longer than its size");
  expect_found(&BrokenRuns::swap_values, "a run out of order");
  expect_found(&BrokenRuns::tie_values, "a run out of order by sequence");
  expect_found(&BrokenRuns::move_to_other_run, "a block that names another run");
  expect_found(&BrokenRuns::lose_previous, "links that disagree");
  expect_found(&BrokenRuns::end_one_more, "a run that ended and did not");
  expect_found(&BrokenAsymCache::lose_run, "heaps of different sizes");
  expect_found(&BrokenAsymCache::keep_old_key, "a heap with the key of a block that is gone");
  expect_found(&BrokenAsymCache::lose_block, "a free block that no run has");
  expect_found(&BrokenGroups::swap_costs, "a group that goes by another block's cost");
  expect_found(&BrokenGroups::raise_cost, "a group with an old cost");
  expect_found(&BrokenGroups::put_out_of_order, "a group out of order");
  expect_found(&BrokenGroups::swap_places, "an index of the groups that points elsewhere");
  expect_found(&BrokenGroups::move_to_other_group, "a block that names another group");
  expect_found(&BrokenGroups::lose_previous, "links of a group that disagree");
  expect_found(&BrokenGroups::lose_group, "a group that is gone and did not end");
  expect_found(&BrokenGrouped::lose_block, "a free block that no group has");
  expect_found(&BrokenGrouped::begin_other_group, "a job whose group is another's");
  expect_found(&BrokenPins::swap_owner, "a group that names another pin");
  expect_found(&BrokenPins::count_one_more, "a wrong number of pinned blocks");
  expect_found(&BrokenPins::count_one_adopted, "a wrong number of adopted blocks");
  expect_found(&BrokenPins::lose_block, "a pinned block that no group has");
  expect_found(&BrokenClaims::forget_block, "a claim that its pin does not know");
  expect_found(&BrokenClaims::forget_pin, "a claim that its block does not know");
  expect_found(&BrokenClaims::keep_empty_list, "a block that is listed without claims");
  expect_found(&BrokenPinned::lose_pinned_block, "a free block that no pin has");
  expect_found(&BrokenPinned::lose_inner_block, "a free block that the inner evictor lacks");
  expect_found(&BrokenPinned::pin_inner_block, "a pinned block that no pin has");
  expect_found(&BrokenPinned::forget_pin, "a block of a pin that is not pinned");
  expect_found(&BrokenPinned::claim_inner_block, "a free block that a pin claims and does not have");
  expect_found(&BrokenLru::lose_block, "a free block that the list lacks");
  expect_found(&BrokenLru::swap_block, "a taken block in the list");
  expect_found(&BrokenTable::swap_places, "a table's index that points elsewhere");
  expect_found(&BrokenTable::lose_one, "a table's index with one block too many");
}

}  // namespace agentcache
