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

  /// Returns the attribute of one object.
  /// \throws error_already_set (AttributeError) if it has none.
  pybind11::object of(PyObject* object) const {
    if (offset_ > 0 && Py_IS_TYPE(object, reinterpret_cast<PyTypeObject*>(type_.ptr()))) {
      PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
      if (value != nullptr) return pybind11::reinterpret_borrow<pybind11::object>(value);
    }
    PyObject* value = PyObject_GetAttr(object, name_.ptr());
    if (value == nullptr) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::object>(value);
  }

 private:
  pybind11::type type_;
  pybind11::str name_;
  Py_ssize_t offset_ = 0;  // 0: not in a slot.
};

}  // namespace agentcache
