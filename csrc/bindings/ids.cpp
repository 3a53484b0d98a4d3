#include "ids.h"

#include <algorithm>

#include "../engine/ledger.h"
#include "../refusal.h"

namespace fastagg::bindings {
namespace {

std::string text_of(py::handle name) {
  PyObject* text = PyObject_ASCII(name.ptr());  // ASCII, so that the text can be cut at any byte
  if (text == nullptr) {
    PyErr_Clear();  // the object's `repr` has raised, as for a number with too many digits
    return std::string("of type ") + Py_TYPE(name.ptr())->tp_name;
  }
  std::string utf8 = py::cast<std::string>(py::reinterpret_steal<py::object>(text));
  if (utf8.size() > 80) utf8 = utf8.substr(0, 77) + "...";
  return utf8;
}

// Returns an integer as a Python int. Returns null for any other object, and for True and False.
py::object whole_of(py::handle number) {
  if (PyBool_Check(number.ptr())) return {};
  auto whole = py::reinterpret_steal<py::object>(PyNumber_Index(number.ptr()));
  if (!whole) PyErr_Clear();
  return whole;
}

[[noreturn]] void refuse(const std::string& text) { throw Refusal(Why::kUnknownClient, text); }

ClientId name_of(py::handle name) {
  if (PyUnicode_GET_LENGTH(name.ptr()) > kLongestName)
    refuse("client: expected an id of at most " + std::to_string(kLongestName) + " characters, got " +
           std::to_string(PyUnicode_GET_LENGTH(name.ptr())));
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    refuse("client " + text_of(name) + ": its id is no valid text");
  }
  return {ClientId::kName, 0, std::string(text, static_cast<size_t>(size))};
}

}  // namespace

ClientId id_of(py::handle client) {
  if (PyUnicode_Check(client.ptr())) return name_of(client);
  const py::object index = whole_of(client);
  if (!index) {
    const char* task = py::hasattr(client, "client") ? ", got a task; write task.client" : "";
    refuse("client " + text_of(client) + ": expected an int or a str" + task);
  }
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow == 0) return ClientId::of(number);
  if (overflow > 0) {
    const unsigned long long large = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) return {ClientId::kLarge, static_cast<int64_t>(large), {}};
    PyErr_Clear();
  }
  refuse("client: expected a whole number of 64 bits, got a larger one");
}

py::object to_python(const ClientId& id) {
  if (id.kind == ClientId::kNumber) return py::int_(id.number);
  if (id.kind == ClientId::kLarge) return py::int_(static_cast<uint64_t>(id.number));
  // The decoder accepts surrogates, because an id in a log that another program wrote may have surrogates.
  PyObject* text = PyUnicode_DecodeUTF8(id.name.data(), static_cast<Py_ssize_t>(id.name.size()), "surrogatepass");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

py::object plain(py::handle client, const ClientId& id) {
  const bool is_plain = PyLong_CheckExact(client.ptr()) || PyUnicode_CheckExact(client.ptr());
  return is_plain ? py::reinterpret_borrow<py::object>(client) : to_python(id);
}

int64_t task_id_of(py::handle object) {
  if (object.is_none()) return 0;
  const py::object index = whole_of(object);
  int overflow = 0;
  const int64_t id = index ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : 0;
  if (index) return overflow == 0 && id > 0 ? id : -1;
  const char* task = py::hasattr(object, "client") ? "a task; write task.id" : nullptr;
  throw Refusal(Why::kSetting, "task: expected a task's id, got " + (task == nullptr ? text_of(object) : task));
}

int64_t offset_of(py::handle object) {
  if (object.is_none()) return -1;
  const py::object index = whole_of(object);
  int overflow = 0;
  const int64_t offset = index ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : -1;
  if (index && overflow == 0 && offset >= 0) return offset;
  throw Refusal(Why::kSetting, "offset: expected a whole number from 0 to 2^63 - 1, got " + text_of(object));
}

int64_t version_of(py::handle object, const ClientId& client) {
  if (object.is_none()) return engine::kLastSent;
  const py::object index = whole_of(object);
  int overflow = 0;
  const int64_t version = index ? PyLong_AsLongLongAndOverflow(index.ptr(), &overflow) : 0;
  if (!index)
    throw Refusal(Why::kUnknownVersion,
                  "client " + shown(client) + ": version: expected a whole number, got " + text_of(object));
  if (overflow != 0) return overflow > 0 ? INT64_MAX : -INT64_MAX;  // no task has such a version
  return std::max(version, -INT64_MAX);
}

std::optional<uint64_t> incarnation_of(py::handle incarnation) {
  if (incarnation.is_none()) return std::nullopt;
  const py::object index = whole_of(incarnation);
  if (!index) throw Refusal(Why::kSetting, "incarnation: expected a whole number, got " + text_of(incarnation));
  return PyLong_AsUnsignedLongLongMask(index.ptr());
}

}  // namespace fastagg::bindings
