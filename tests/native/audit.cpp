// Audits servers' logs on another processor, without Python: fastagg_audit write|audit FOLDER.
//
// `write` makes a server of each rule, sends it random answers, and leaves its log in a new folder below FOLDER.
// `audit` executes each log again; every decision must be the recorded one. Both print the digest of the records and
// the SHA-256 of the model that the log leads to. All audits of one folder must print the same (.ci/arm.sh).
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "../../csrc/cpu/cpu.h"
#include "../../csrc/cpu/sha256.h"
#include "engine/check.h"
#include "engine/server.h"

using namespace fastagg;
using namespace fastagg::engine;

namespace {

constexpr uint64_t kFolder = 11;
constexpr int64_t kSize = 20'000, kAnswers = 200;

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t one : digest) text += "0123456789abcdef"[one >> 4], text += "0123456789abcdef"[one & 15];
  return text;
}

// The bytes of all segments. There is no other file.
std::vector<std::vector<uint8_t>> segments(const std::string& folder) {
  DIR* const opened = opendir(folder.c_str());
  CHECK(opened != nullptr);
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(opened))
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  closedir(opened);
  std::sort(names.begin(), names.end());
  std::vector<std::vector<uint8_t>> bytes;
  for (const std::string& name : names) {
    std::ifstream file(folder + "/" + name, std::ios::binary);
    bytes.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return bytes;
}

void execute(Engine& engine, const log::Operation& operation) {
  Answer answer;
  if (operation.kind == log::kAnswer) {
    CHECK(operation.parts.size() == 1);
    const log::Part& part = operation.parts.front();
    CHECK(part.role == log::kParameters && part.dtype == kFloat32);
    answer.client = operation.client, answer.version = operation.version, answer.task = operation.task;
    answer.incarnation = operation.incarnation;
    answer.decided = &operation;
    answer.update.add(part.data, static_cast<int64_t>(part.count), kFloat32);
  }
  engine.execute(operation, &answer);
}

struct Found {
  std::vector<float> model;
  std::string text;
};

Found audit(const std::string& folder, Rule rule) {
  const std::vector<std::vector<uint8_t>> bytes = segments(folder);
  std::vector<log::Reader::File> files;
  for (const auto& one : bytes)
    files.push_back({"segment", files.size() + 1, one.size(), {one.begin(), one.begin() + log::kBlock}});
  log::Reader::ExpectedEnd after;
  after.folder = kFolder;
  log::Reader reader(files, [&](size_t i) { return log::Bytes{bytes[i].data(), bytes[i].size(), nullptr}; }, after);
  Server server(rule, kSize);
  while (const auto record = reader.next())
    execute(*server.engine, log::read(record->head.kind, record->body, record->head.length));
  CHECK(reader.last() == 2 * kAnswers && !reader.is_torn());
  const std::vector<float> model = server.model();
  return {model, "rule " + std::to_string(static_cast<int>(rule)) + ": " + hex(reader.digest()) + " " +
                     hex(cpu::Sha256().add(model.data(), model.size() * sizeof(float)).digest())};
}

// The model of the server that wrote the log.
std::vector<float> write(const std::string& folder, Rule rule) {
  CHECK(mkdir(folder.c_str(), 0777) == 0);
  const int opened = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  CHECK(opened >= 0);
  log::Journal::LogStart start;
  start.folder = folder, start.folder_id = kFolder, start.number = 1,
  start.segment_bytes = start.pending_bytes = 1 << 22;
  const auto journal = log::Journal::begin(std::make_unique<log::SystemDisk>(opened), start);
  Server server(rule, kSize);
  Engine& engine = *server.engine;
  engine.records.attach(journal);
  std::mt19937_64 random(static_cast<uint64_t>(rule));
  for (int64_t turn = 0; turn < kAnswers; ++turn) {
    const auto client = static_cast<int64_t>(random() % kClients);
    const Task task = engine.dispatch(ClientId::of(client));
    const std::vector<float> values = numbers(kSize, random);
    Answer given = answer_of(client, task.version, values);
    const auto sent = engine.receive(&given, 1);
    CHECK(sent.done == 1 && !sent.refused && !sent.failed);
  }
  CHECK(journal->close(-1.0) && journal->durable == journal->last());
  close(opened);
  return server.model();
}

}  // namespace

int main(int count, char** given) {
  CHECK(count == 3);
  const std::string how = given[1], folder = given[2];
  CHECK(how == "write" || how == "audit");
  for (const Rule rule : kRules) {
    const std::string own = folder + "/" + std::to_string(static_cast<int>(rule));
    const std::vector<float> written = how == "write" ? write(own, rule) : std::vector<float>();
    std::string text;
    for (const auto& [isa, supported] : cpu::isas()) {
      if (!supported) continue;
      cpu::select(isa);
      const Found found = audit(own, rule);
      CHECK(how == "audit" || written == found.model);
      CHECK(text.empty() || found.text == text);
      text = found.text;
    }
    std::printf("%s\n", text.c_str());
  }
}
