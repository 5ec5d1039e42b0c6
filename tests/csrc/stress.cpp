// Random calls on every evictor, checked step by step; built with sanitizers by test_csrc.py.
//
//     stress STEPS
//
// Prints "ok" at the end.
#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/free_queue.hpp"
#include "evictors/asymcache.hpp"
#include "evictors/asymcache_linear.hpp"
#include "evictors/lru.hpp"
#include "evictors/max_score.hpp"
#include "evictors/pensieve.hpp"
#include "evictors/return_time.hpp"
#include "pins/pinned.hpp"
#include "selection.hpp"
#include "shared.hpp"

using namespace agentcache;

namespace {

constexpr int kBlocks = 200;
int steps = 0;  // Of each run; set once.

class Stress {
 public:
  Stress(Evictor& evictor, unsigned seed)
      : evictor_(evictor), pinned_(dynamic_cast<PinnedEvictor*>(&evictor)), chance_(seed) {
    for (BlockId id = 0; id < kBlocks; ++id) taken_.insert(id);
  }

  /// The victims, in order.
  std::vector<BlockId> run() {
    for (int step = 0; step < steps; ++step) {
      now_s_ += 0.01 * draw(200);
      (this->*kCalls[draw(std::size(kCalls))])();
      if (pinned_ != nullptr) (this->*kPinCalls[draw(std::size(kPinCalls))])();
      evictor_.check_integrity();
      expect(evictor_.size() + taken_.size() == kBlocks, "the number of free blocks");
    }
    return victims_;
  }

 private:
  std::size_t draw(std::size_t end) { return chance_() % end; }

  std::vector<BlockId> draw_taken() {
    std::vector<BlockId> ids;
    for (const BlockId id : taken_) {
      if (draw(8) == 0) ids.push_back(id);
    }
    for (const BlockId id : ids) taken_.erase(id);
    return ids;
  }

  void add() {
    const std::vector<BlockId> ids = draw_taken();
    std::vector<std::int64_t> positions(ids.size());
    for (auto& position : positions) position = static_cast<std::int64_t>(16 * draw(50));
    evictor_.add(ids, positions, now_s_,
                 {{.factor = draw(4) == 0 ? 0.5 : 1.0,
                   .job = static_cast<JobNumber>(draw(5)),
                   .finish_class = static_cast<FinishClass>(draw(3))},
                  pin_});
  }

  void add_empty() {
    if (draw(4) == 0) evictor_.add_empty(draw_taken());
  }

  void evict() {
    const std::size_t count = draw(evictor_.size() / 2 + 1);
    const std::vector<BlockId> order = evictor_.order(now_s_);
    const std::vector<BlockId> victims = evictor_.evict(static_cast<std::int64_t>(count), now_s_);
    expect(std::equal(victims.begin(), victims.end(), order.begin()), "victims are the first of the order");
    taken_.insert(victims.begin(), victims.end());
    victims_.insert(victims_.end(), victims.begin(), victims.end());
  }

  void evict_too_many() {
    try {
      evictor_.evict(static_cast<std::int64_t>(evictor_.size()) + 1, now_s_);
    } catch (const std::invalid_argument&) {
      return;
    }
    expect(false, "evicting too many must throw");
  }

  void remove() {
    const auto id = static_cast<std::int64_t>(draw(kBlocks + 2)) - 1;
    const bool is_free = id >= 0 && id < kBlocks && !taken_.contains(static_cast<BlockId>(id));
    try {
      evictor_.remove(id);
      expect(is_free, "removing a taken block must throw");
      taken_.insert(static_cast<BlockId>(id));
    } catch (const NotFree&) {
      expect(!is_free, "a free block can be removed");
    }
  }

  void check_queue() {
    // The queue adds nothing to the order: what it gives away and forgets is what the evictor lists.
    FreeQueue queue(kBlocks, evictor_, true);
    const std::vector<BlockId> order = evictor_.order(now_s_);
    if (draw(20) == 0) queue.forget_kv_at(now_s_);
    expect(queue.list_free(now_s_) == order, "to forget keeps the order");
    expect(queue.by_reset().blocks == 0, "the queue saw no block freed");
  }

  void pin_next() { pin_ = draw(3) == 0 ? kNoPin : static_cast<PinId>(draw(5)); }

  void set_value() { pinned_->set_value(static_cast<PinId>(draw(5)), static_cast<double>(draw(3))); }

  void release() {
    const auto pin = static_cast<PinId>(draw(5));
    const std::size_t blocks = pinned_->size_of(pin), pinned = pinned_->pinned();
    expect(pinned_->release(pin, now_s_) == blocks, "as many blocks are released as the pin had");
    expect(pinned_->size_of(pin) == 0 && pinned_->reserved_by(pin) == 0, "a released pin has no blocks");
    expect(pinned_->pinned() <= pinned && pinned_->pinned() >= pinned - blocks, "others may have reserved them");
  }

  void reserve() {
    const auto pin = static_cast<PinId>(draw(5));
    std::vector<BlockId> ids;
    for (const BlockId id : taken_) {
      if (draw(8) == 0) ids.push_back(id);
    }
    pinned_->reserve(pin, ids);
    expect(pinned_->reserved_by(pin) >= ids.size(), "as much is reserved for a pin as it asked for");
  }

  void adopt() {
    const auto pin = static_cast<PinId>(draw(5));
    std::vector<BlockId> ids;
    for (std::size_t i = 0; i < 20; ++i) ids.push_back(static_cast<BlockId>(draw(kBlocks + 2)) - 1);
    const std::size_t blocks = pinned_->size_of(pin), pinned = pinned_->pinned();
    const std::size_t adopted = pinned_->adopt(pin, ids, now_s_);
    expect(pinned_->size_of(pin) == blocks + adopted && pinned_->pinned() == pinned + adopted,
           "adopted blocks are pinned");
    expect(pinned_->adopt(pin, ids, now_s_) == 0, "pinned blocks are not adopted again");
  }

  // As many blocks are lost as were evicted when there were only pinned ones.
  void evict_all() {
    if (draw(20) != 0) return;
    pinned_->take_losses();
    const std::size_t pinned = pinned_->pinned();
    for (const BlockId id : pinned_->evict(static_cast<std::int64_t>(pinned_->size()), now_s_)) taken_.insert(id);
    std::size_t lost = 0;
    for (const auto& [pin, blocks] : pinned_->take_losses()) lost += blocks;
    expect(lost >= pinned && pinned_->pinned() == 0, "all pinned blocks are lost when all blocks go");
  }

  static constexpr void (Stress::* kCalls[])() = {
      &Stress::add,    &Stress::add,        &Stress::add_empty, &Stress::evict, &Stress::evict_too_many,
      &Stress::remove, &Stress::check_queue};

  static constexpr void (Stress::* kPinCalls[])() = {&Stress::pin_next, &Stress::set_value, &Stress::release,
                                                     &Stress::reserve,  &Stress::adopt,     &Stress::evict_all};

  Evictor& evictor_;
  PinnedEvictor* pinned_;  // None: it has no pins.
  PinId pin_ = kNoPin;
  std::mt19937 chance_;
  double now_s_ = 3e7;
  std::set<BlockId> taken_;
  std::vector<BlockId> victims_;
};

// The victims of random calls, with random pins, on a pinned evictor around this one.
std::vector<BlockId> stress_pinned(Evictor& inner, bool cheapest_first, unsigned seed) {
  PinnedEvictor pinned(inner, kBlocks, cheapest_first);
  return Stress(pinned, seed).run();
}

void check_pinned(unsigned seed) {
  for (const bool cheapest_first : {false, true}) {
    AsymCacheEvictor asymcache(kBlocks, kFrequency, kCost);
    AsymCacheLinearEvictor linear(kBlocks, kFrequency, kCost);
    expect(stress_pinned(asymcache, cheapest_first, seed) == stress_pinned(linear, cheapest_first, seed),
           "heaps and scan take the same victims around pins");
    ReturnTimeEvictor return_time(kBlocks, kCost, waits);
    stress_pinned(return_time, cheapest_first, seed);
    LruEvictor lru;
    stress_pinned(lru, cheapest_first, seed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc == 2, "usage: stress STEPS");
  steps = std::stoi(argv[1]);
  check_that_damage_is_found();
  check_selection();
  for (unsigned seed = 0; seed < 2; ++seed) {
    AsymCacheEvictor asymcache(kBlocks, kFrequency, kCost);
    AsymCacheLinearEvictor linear(kBlocks, kFrequency, kCost);
    expect(Stress(asymcache, seed).run() == Stress(linear, seed).run(), "heaps and scan take the same victims");
    ReturnTimeEvictor return_time(kBlocks, kCost, waits);
    Stress(return_time, seed).run();
    LruEvictor lru;
    Stress(lru, seed).run();
    MaxScoreEvictor max_score(kBlocks, kFrequency);
    Stress(max_score, seed).run();
    PensieveEvictor pensieve(kBlocks, kCost);
    Stress(pensieve, seed).run();
    check_pinned(seed);
  }
  std::puts("ok");
}
