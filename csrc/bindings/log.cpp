// Binds csrc/log for fastagg/durable: the journal that writes a log, the reader of a log, and a disk for tests.
#include "../log/journal.h"
#include "../log/operation.h"
#include "../store/process.h"
#include "host.h"
#include "ids.h"
#include "structs.h"

namespace fastagg::bindings {
namespace {

using namespace log;
using py::arg;

// A Disk that calls a Python object (fastagg.durable.disk.Disk). Tests use such an object to simulate power losses.
class PythonDisk : public Disk {
 public:
  explicit PythonDisk(py::object disk) : disk_(owner_of(std::move(disk))) {}

  int open(const std::string& name) override {
    return ask<int>(false, [&](py::handle disk) { return disk.attr("open")(name, arg("create") = true); });
  }
  void close(int file) noexcept override {
    try {
      tell(false, [&](py::handle disk) { disk.attr("close")(file); });
    } catch (const DiskError&) {  // the journal writes no more to this file, so the error has no effect
    }
  }
  uint64_t size(int file) override {
    return ask<uint64_t>(false, [&](py::handle disk) { return disk.attr("size")(file); });
  }
  void allocate(int file, uint64_t nbytes) override {
    tell(false, [&](py::handle disk) { disk.attr("allocate")(file, nbytes); });
  }
  void write(int file, std::vector<iovec>& buffers, uint64_t offset) override {
    tell(false, [&](py::handle disk) {
      py::list views;
      for (const iovec& buffer : buffers)
        views.append(py::memoryview::from_memory(buffer.iov_base, static_cast<py::ssize_t>(buffer.iov_len), true));
      disk.attr("write")(file, views, offset);
    });
  }
  void write_block(int file, const void* data, size_t nbytes, uint64_t offset) override {
    std::vector<iovec> buffer{{const_cast<void*>(data), nbytes}};
    write(file, buffer, offset);
  }
  void sync(int file) override {
    tell(true, [&](py::handle disk) { disk.attr("sync")(file); });
  }
  void sync_folder() override {
    tell(true, [&](py::handle disk) { disk.attr("sync_folder")(); });
  }
  void rename(const std::string& old_name, const std::string& new_name) override {
    tell(false, [&](py::handle disk) { disk.attr("rename")(old_name, new_name); });
  }

 private:
  // Calls `act` with the Python object. Throws DiskError if Python raises. `final`: whether an OSError is a final
  // DiskError. Any other Python error is final.
  template <typename Act>
  void tell(bool final, Act act) {
    if (Py_IsInitialized() == 0) throw DiskError("Python has ended", true);
    const GilHolder held;
    try {
      act(py::handle(object_of(disk_)));
    } catch (py::error_already_set& error) {
      const bool of_disk = error.matches(PyExc_OSError);
      const std::string name = py::str(error.type().attr("__name__")), said = py::str(error.value());
      throw DiskError((name + ": " + said).c_str(), final || !of_disk);
    }
  }
  template <typename T, typename Act>
  T ask(bool final, Act act) {
    T value{};
    tell(final, [&](py::handle disk) { value = py::cast<T>(act(disk)); });
    return value;
  }

  store::Owner disk_;
};

Digest digest_of(const std::string& bytes) {
  Digest digest;
  if (bytes.size() != digest.size()) throw SettingError("digest: expected 32 bytes");
  std::memcpy(digest.data(), bytes.data(), bytes.size());
  return digest;
}

std::shared_ptr<Journal> begin_journal(py::object disk, const py::dict& settings) {
  using Start = Journal::LogStart;
  Start start;
  set_fields(start, settings, "folder", &Start::folder, "folder_id", &Start::folder_id, "sequence", &Start::sequence,
             "number", &Start::number, "segment_bytes", &Start::segment_bytes, "pending_bytes", &Start::pending_bytes,
             "free", &Start::free, "place", &Start::place, "number_here", &Start::number_here);
  start.digest = digest_of(py::cast<std::string>(settings["digest"]));
  for (const auto& [name, first] : py::cast<std::vector<std::pair<std::string, uint64_t>>>(settings["busy"]))
    start.busy.push_back({name, first});
  std::unique_ptr<Disk> on;
  if (const py::object folder = disk.attr("descriptor"); folder.is_none()) {
    on = std::make_unique<PythonDisk>(std::move(disk));
  } else {
    on = std::make_unique<SystemDisk>(py::cast<int>(folder));
  }
  return Journal::begin(std::move(on), std::move(start));
}

template <typename Data>
py::bytes bytes_of(const Data& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

Bytes bytes_in(py::object held) {
  const py::buffer_info info = py::reinterpret_borrow<py::buffer>(held).request();
  return {static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size), owner_of(std::move(held))};
}

// Makes a reader of a log. `files` has for each segment: its name in messages, its number, its size in bytes, and its
// first block. `load(i)` returns all bytes of segment i. The other arguments are members of Reader::ExpectedEnd.
std::shared_ptr<Reader> read_log(const std::vector<std::tuple<std::string, uint64_t, uint64_t, std::string>>& files,
                                 const py::function& load, uint64_t sequence, uint64_t folder,
                                 const std::string& digest, uint64_t end) {
  std::vector<Reader::File> segments;
  for (const auto& [name, number, size, block] : files)
    segments.push_back({name, number, size, {block.begin(), block.end()}});
  const auto loaded = [load](size_t file) { return bytes_in(load(file)); };
  return std::make_shared<Reader>(segments, loaded, Reader::ExpectedEnd{sequence, folder, digest_of(digest), end});
}

struct ReadRecord {
  std::optional<Operation> operation;
  std::string wrong;  // why the record could not be read; empty: `operation` was read
  uint64_t sequence, length;
  size_t segment, begin;
  py::object body;  // keeps the memory of the operation's parts alive
};

py::object read_record(const std::optional<Record>& record) {
  if (!record) return py::none();
  ReadRecord entry{std::nullopt,
                   "",
                   record->head.sequence,
                   record->head.length,
                   record->segment,
                   record->begin,
                   py::reinterpret_borrow<py::object>(object_of(record->owner))};
  try {
    entry.operation = read(record->head.kind, record->body, record->head.length);
  } catch (const Refusal& refused) {
    entry.wrong = refused.what();
  }
  return py::cast(std::move(entry));
}

py::dict described(const Operation& operation) {
  py::dict fields;
  fields["client"] = to_python(operation.client);
  fields["version"] = int64_t{operation.version};
  each_field(operation.kind, [&](auto field) { fields[field.name] = operation.*field.value; });
  py::list parts;
  for (const Part& part : operation.parts) parts.append(py::make_tuple(part.role, part.dtype, part.count));
  fields["parts"] = parts;
  return fields;
}

// Returns the names and types of the fixed fields of each kind of record, as docs/log-format.md writes them.
py::dict field_table() {
  py::dict table;
  for (uint8_t kind = kIncarnation; kind < kKinds; ++kind) {
    py::list fields;
    each_field(kind, [&](auto field) {
      fields.append(std::string(field.name) + " " + field.kType + std::to_string(8 * field.kBytes));
    });
    table[name_of(static_cast<OperationKind>(kind))] = fields;
  }
  return table;
}

}  // namespace

void bind_log(py::module_& m) {
  const py::kw_only by_name;
  py::class_<Blob, std::shared_ptr<Blob>>(m, "Blob")
      .def(py::init([](uint64_t number, uint64_t nbytes, uint32_t crc, int dtype) {
             auto blob = std::make_shared<Blob>();
             blob->number = number, blob->nbytes = nbytes, blob->crc = crc, blob->dtype = static_cast<uint8_t>(dtype);
             return blob;
           }),
           by_name, arg("number"), arg("nbytes"), arg("crc"), arg("dtype"))
      .def_property_readonly("sequence", [](const Blob& blob) { return blob.sequence.load(); });

  py::class_<Journal, std::shared_ptr<Journal>>(m, "Journal")
      .def(py::init(&begin_journal), arg("disk"), arg("start"))
      .def_property(
          "mode", [](const Journal& journal) { return static_cast<int>(journal.mode.load()); },
          [](Journal& journal, const std::string& mode) {
            journal.mode = mode == "arrival" ? Journal::Mode::kArrival
                           : mode == "step"  ? Journal::Mode::kStep
                                             : Journal::Mode::kNone;
          })
      .def_property(
          "max_waiting", [](const Journal& journal) { return journal.max_waiting.load(); },
          [](Journal& journal, int64_t limit) { journal.max_waiting = limit; })
      .def("check", &Journal::check)
      .def("wait", &Journal::wait)
      .def("wait_written", &Journal::wait_written)
      .def("nudge", &Journal::nudge)
      .def("close", &Journal::close)
      .def("release",
           [](Journal& journal, uint64_t sequence) {
             try {
               return journal.release(sequence);
             } catch (const DiskError& failed) {
               PyErr_SetString(PyExc_OSError, failed.what());
               throw py::error_already_set();
             }
           })
      .def("reuse", &Journal::reuse)
      .def("give_up", &Journal::give_up)
      .def_property_readonly("failure", &Journal::failure)
      .def_property_readonly("ended", &Journal::ended)
      .def("digest",
           [](const Journal& journal, uint64_t sequence) -> py::object {
             const auto digest = journal.digest(sequence);
             return digest ? bytes_of(*digest) : py::object(py::none());
           })
      .def("mark", &Journal::mark)
      .def_property_readonly("last", &Journal::last)
      .def_property_readonly("durable", [](const Journal& journal) { return journal.durable.load(); })
      .def_property_readonly("syncs", [](const Journal& journal) { return journal.syncs.load(); })
      .def_property_readonly("groups", [](const Journal& journal) { return journal.groups.load(); })
      .def_property_readonly("written", [](const Journal& journal) { return journal.written.load(); })
      .def_property_readonly("pending", [](const Journal& journal) { return journal.pending.load(); })
      .def_property_readonly("waiting", [](const Journal& journal) { return journal.waiting.load(); })
      .def_static("waited", &Journal::waited);

  m.def("keep_from_children", &store::keep_from_children);
  m.def("share", &store::share);
  py::class_<Operation>(m, "Operation")
      .def_property_readonly("kind", [](const Operation& operation) { return name_of(operation.kind); })
      .def_property_readonly("client", [](const Operation& operation) { return to_python(operation.client); })
      .def_readonly("version", &Operation::version)
      .def_readonly("rate", &Operation::rate)
      .def("describe", &described)
      .def("again",
           [](const Operation& operation, int64_t version, uint64_t incarnation) {
             Operation made = operation;
             made.version = version, made.incarnation = incarnation, made.again = true;
             return made;
           })
      .def_property_readonly("streamed", [](const Operation& operation) -> py::object {
        if (!operation.streamed) return py::none();
        return py::make_tuple(operation.streamed->number, operation.streamed->nbytes, operation.streamed->crc,
                              operation.streamed->dtype);
      });
  m.def("field_table", &field_table);
  py::class_<ReadRecord>(m, "Record")
      .def_property_readonly("operation", [](const ReadRecord& record) { return record.operation; })
      .def_readonly("wrong", &ReadRecord::wrong)
      .def_readonly("sequence", &ReadRecord::sequence)
      .def_readonly("length", &ReadRecord::length)
      .def_property_readonly("place",
                             [](const ReadRecord& record) { return py::make_tuple(record.segment, record.begin); })
      .def_readonly("body", &ReadRecord::body);
  m.def("records_in", [](py::object held) {
    py::list parts;
    for (const Record& record : records_in(bytes_in(std::move(held)))) parts.append(read_record(record));
    return parts;
  });
  py::class_<Reader, std::shared_ptr<Reader>>(m, "Reader")
      .def(py::init(&read_log), by_name, arg("files"), arg("load"), arg("sequence"), arg("folder"), arg("digest"),
           arg("end"))
      .def("next", [](Reader& reader) { return read_record(reader.next()); })
      .def_property_readonly("last", &Reader::last)
      .def_property_readonly("digest", [](const Reader& reader) { return bytes_of(reader.digest()); })
      .def_property_readonly("is_torn", &Reader::is_torn)
      .def_property_readonly("passed", &Reader::passed)
      .def_property_readonly("segments",
                             [](const Reader& reader) {
                               py::list tails;
                               for (const Reader::Segment& segment : reader.segments())
                                 tails.append(py::make_tuple(segment.number, segment.head.first));
                               return tails;
                             })
      .def_property_readonly("mark", &Reader::mark)
      .def_property_readonly(
          "end", [](const Reader& reader) { return py::make_tuple(reader.segment(), reader.place(), reader.tail()); });
}

}  // namespace fastagg::bindings
