// Reading one attribute of many objects of a class.
#pragma once

#include <pybind11/pybind11.h>
#include <structmember.h>

#include <utility>

namespace agentcache {

/// The attribute `name` of objects of the class `type`, and of others that have it.
///
/// Where the class keeps the attribute in a slot, it is read from there: looking it up takes longer than the rest of
/// what happens to a block.
class Attribute {
 public:
  /// Finds out whether `type` keeps the attribute in a slot.
  Attribute(pybind11::type type, pybind11::str name) : type_(std::move(type)), name_(std::move(name)) {
    const pybind11::object found = pybind11::getattr(type_, name_, pybind11::none());
    if (!Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) return;
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member;
    if (member->type == T_OBJECT_EX) offset_ = member->offset;
  }

  /// Calls `read(value)` with the attribute of one object.
  /// \throws error_already_set (AttributeError) if it has none.
  template <typename Read>
  auto read(PyObject* object, const Read& read) const {
    // Borrowed from a slot: to count a reference would write to memory that is far away.
    if (PyObject* value = in_slot(object)) return read(value);
    const pybind11::object value = pybind11::reinterpret_steal<pybind11::object>(PyObject_GetAttr(object, name_.ptr()));
    if (!value) throw pybind11::error_already_set();
    return read(value.ptr());
  }

  /// Asks the memory for the attribute, for the caller that reads those of many objects.
  void prefetch(PyObject* object) const {
    if (PyObject* value = in_slot(object)) __builtin_prefetch(value);
  }

 private:
  // Null if it is not in a slot, or not set.
  PyObject* in_slot(PyObject* object) const {
    if (offset_ == 0 || !Py_IS_TYPE(object, reinterpret_cast<PyTypeObject*>(type_.ptr()))) return nullptr;
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }

  pybind11::type type_;
  pybind11::str name_;
  Py_ssize_t offset_ = 0;  // 0: not in a slot.
};

}  // namespace agentcache
