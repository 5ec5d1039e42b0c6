// Ages in bins whose width grows with the age: four to each doubling.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace agentcache {

/// From 1/64 s to 12 days. What is younger is in the first bin, what is older in the last.
///
/// The exponent of a double and the head of its mantissa are the number of its bin: no logarithm, whose last digit
/// would differ from machine to machine.
class AgeBins {
 public:
  static constexpr std::size_t kCount = 105;

  /// Returns the bin that an age is in, the first one for what is no number.
  static std::size_t bin_of(double age_s) {
    if (!(age_s >= kFirstEdgeS)) return 0;
    return std::min<std::size_t>(head(age_s) - head(kFirstEdgeS) + 1, kCount - 1);
  }

  /// Returns the age as far as the bins go.
  static double clamp(double age_s) { return std::clamp(age_s, 0.0, edge_s(kCount)); }

  /// Returns the age at which a bin begins, and the one before it ends.
  static double edge_s(std::size_t bin) {
    return bin == 0 ? 0.0 : std::bit_cast<double>((head(kFirstEdgeS) + bin - 1) << kTail);
  }

  /// Returns how many seconds of age are in a bin.
  static double width_s(std::size_t bin) { return edge_s(bin + 1) - edge_s(bin); }

 private:
  static constexpr double kFirstEdgeS = 1.0 / 64;
  static constexpr int kTail = 50;  // Bits of the mantissa that tell nothing of the bin.

  static constexpr std::uint64_t head(double age_s) { return std::bit_cast<std::uint64_t>(age_s) >> kTail; }
};

}  // namespace agentcache
