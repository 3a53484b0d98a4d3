// What a server writes down. Without a log that is nothing: records are empty, and nobody need ask again. A record is
// made before anything changes, because that may fail, and is added with the change.
#pragma once

#include <memory>
#include <vector>

#include "../log/journal.h"
#include "answer.h"

namespace fastagg::engine {

struct PendingAnswer;
class Ledger;

class Records {
 public:
  void attach(std::shared_ptr<log::Journal> journal) { journal_ = std::move(journal); }
  explicit operator bool() const { return journal_ != nullptr; }
  // Refuses a call that could not be acknowledged.
  void check() const {
    if (journal_) journal_->check();
  }
  log::RecordList of(const log::Operation& operation) const;
  // Begins an answer's record, with room for its numbers.
  void begin(PendingAnswer& pending, const Update& numbers, const Ledger& ledger) const;
  // Writes its outcome, which its receipt tells.
  void decide(PendingAnswer& pending) const;
  void add(log::RecordList record) const noexcept {
    if (!record.empty()) journal_->push(std::move(record));
  }

 private:
  std::shared_ptr<log::Journal> journal_;
};

// How a copy of an update lies in memory: its runs of pieces of one type. A trained model becomes its difference.
std::vector<log::Part> parts_of(const Answer& answer, const Update& update);
Update update_at(const std::vector<log::Part>& parts);

}  // namespace fastagg::engine
