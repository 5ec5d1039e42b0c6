// The exceptions that callers tell apart. Wrong arguments are std::invalid_argument (ValueError in Python).
#pragma once

#include <stdexcept>
#include <string>

namespace agentcache {

/// The block to take out is not free (KeyError in Python).
struct NotFree : std::out_of_range {
  using std::out_of_range::out_of_range;
};

/// Records contradict each other: always a bug.
struct IntegrityError : std::logic_error {
  using std::logic_error::logic_error;
};

/// Checks a rule that records must obey.
/// \throws IntegrityError with the text `what` unless `holds`.
inline void require_integrity(bool holds, const char* what) {
  if (!holds) throw IntegrityError(what);
}

/// Checks an argument of the caller's.
/// \throws std::invalid_argument with the text `what` unless `holds`.
inline void require_argument(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace agentcache
