// Reading Python's sequences and integers. pybind11's own conversions take several times as long.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace agentcache {

/// The items of a list, tuple or other sequence, as borrowed references.
class Items {
 public:
  explicit Items(pybind11::handle sequence)
      : sequence_(
            pybind11::reinterpret_steal<pybind11::object>(PySequence_Fast(sequence.ptr(), "expected a sequence"))) {
    if (!sequence_) throw pybind11::error_already_set();
  }

  std::size_t size() const { return static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence_.ptr())); }
  PyObject** begin() const { return PySequence_Fast_ITEMS(sequence_.ptr()); }
  PyObject** end() const { return begin() + size(); }

 private:
  pybind11::object sequence_;
};

template <typename Integer>
Integer to_integer(PyObject* number) {
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw pybind11::error_already_set();
  if (!std::in_range<Integer>(value)) throw std::invalid_argument("out of range: " + std::to_string(value));
  return static_cast<Integer>(value);
}

template <typename Integer>
std::vector<Integer> to_integers(pybind11::handle sequence) {
  const Items items(sequence);
  std::vector<Integer> integers;
  integers.reserve(items.size());
  for (PyObject* item : items) integers.push_back(to_integer<Integer>(item));
  return integers;
}

}  // namespace agentcache
