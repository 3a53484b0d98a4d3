// Makes a server's log records. Without a log all records are empty, and callers need not check for a log. A record is
// made before anything changes, because making a record may fail. The record is added together with the change.
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
  // Refuses a call that the log could not acknowledge.
  void check() const {
    if (journal_) journal_->check();
  }
  log::RecordList of(const log::Operation& operation) const;
  // Begins an answer's record, with room for its numbers.
  void begin(PendingAnswer& pending, const Update& numbers, const Ledger& ledger) const;
  // Writes the outcome, from the answer's receipt, into the record.
  void decide(PendingAnswer& pending) const;
  void add(log::RecordList record) const noexcept {
    if (!record.empty()) journal_->push(std::move(record));
  }

 private:
  std::shared_ptr<log::Journal> journal_;
};

// Returns the layout of an update's copy in memory: a part for each run of pieces of one type. The copy of a trained
// model is its difference from the base, in fp32.
std::vector<log::Part> parts_of(const Answer& answer, const Update& update);
Update update_at(const std::vector<log::Part>& parts);

}  // namespace fastagg::engine
