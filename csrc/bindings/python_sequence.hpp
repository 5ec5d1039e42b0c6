// Reading Python's sequences and integers. pybind11's own conversions take several times as long.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace agentcache {

/// The items of a list, tuple or other sequence: those it has now, whatever is done to it while they are read.
class Items {
 public:
  /// \throws error_already_set if `sequence` is none.
  explicit Items(pybind11::handle sequence)
      : items_(pybind11::reinterpret_steal<pybind11::object>(PySequence_Tuple(sequence.ptr()))) {
    if (!items_) throw pybind11::error_already_set();
  }

  /// Returns how many items there are, and iterates over them.
  std::size_t size() const { return static_cast<std::size_t>(PyTuple_GET_SIZE(items_.ptr())); }
  PyObject** begin() const { return reinterpret_cast<PyTupleObject*>(items_.ptr())->ob_item; }
  PyObject** end() const { return begin() + size(); }

 private:
  pybind11::object items_;
};

/// Reads a Python int.
/// \throws error_already_set if it is none, std::invalid_argument if Integer cannot hold it.
template <typename Integer>
Integer to_integer(PyObject* number) {
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw pybind11::error_already_set();
  if (!std::in_range<Integer>(value)) throw std::invalid_argument("out of range: " + std::to_string(value));
  return static_cast<Integer>(value);
}

/// Reads a sequence of Python ints. Throws as `to_integer`. O(n).
template <typename Integer>
std::vector<Integer> to_integers(pybind11::handle sequence) {
  const Items items(sequence);
  std::vector<Integer> integers;
  integers.reserve(items.size());
  for (PyObject* item : items) integers.push_back(to_integer<Integer>(item));
  return integers;
}

}  // namespace agentcache
