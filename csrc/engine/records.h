// Makes a server's log records. Without a log all records are empty, so callers need not check for a log. Making a
// record may fail, so a record is made before anything changes. The commit then adds the record to the log.
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
  // Throws Refusal, kNotDurable or kBusy, if the log takes no more records now.
  void check() const {
    if (journal_) journal_->check();
  }
  log::RecordList of(const log::Operation& operation) const;
  // Begins an answer's record, with room for the update's elements.
  void begin(PendingAnswer& pending, const Update& numbers, const Ledger& ledger) const;
  // Writes the outcome, which the answer's receipt has, into the record. Sets the receipt's `sequence`.
  void decide(PendingAnswer& pending) const;
  void add(log::RecordList record) const noexcept {
    if (!record.empty()) journal_->push(std::move(record));
  }

 private:
  std::shared_ptr<log::Journal> journal_;
};

// Returns the layout of an update's copy in memory: one part for each run of pieces of one type. For a trained model
// with a base, the copy is the difference from the base, in fp32.
std::vector<log::Part> parts_of(const Answer& answer, const Update& update);
Update update_at(const std::vector<log::Part>& parts);

}  // namespace fastagg::engine
