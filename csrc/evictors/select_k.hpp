// The k least of many items.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace agentcache {

/// Leaves the `count` least of more items, in no order; they have a `score`, by which they compare first. O(items).
/// `spare` is the caller's only to keep its memory from call to call.
///
/// Most are sieved out by a score that a sample tells, since to select among all mispredicts every other comparison.
/// \pre 0 < `count` < items.size().
template <typename Item>
void select_least(std::vector<Item>& items, std::size_t count, std::vector<Item>& spare) {
  constexpr std::size_t kSample = 64;
  std::array<double, kSample> scores;
  for (std::size_t i = 0; i < kSample; ++i) scores[i] = items[i * items.size() / kSample].score;
  std::ranges::sort(scores);
  // About twice as many as are wanted pass, so that hardly ever fewer do; then the selection has them all.
  const double limit = scores[std::min(2 * count * kSample / items.size() + 2, kSample - 1)];
  spare.resize(items.size());
  std::size_t passed = 0;
  for (const Item& item : items) {
    spare[passed] = item;
    passed += item.score <= limit ? 1 : 0;
  }
  if (passed >= count) {
    spare.resize(passed);
    items.swap(spare);
  }
  std::nth_element(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count), items.end());
  items.resize(count);
}

}  // namespace agentcache
