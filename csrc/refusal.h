// The exception of a refused call, and its possible reasons. The server's state is then as before the call. The
// bindings turn each reason into a Python error.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace fastagg {

enum class Why {
  kUnknownClient,
  kUnknownVersion,
  kAlreadyCounted,  // a second answer to a task
  kStaleIncarnation,
  kOtherClient,  // the task is another client's
  kBusy,
  kTooSoon,  // a client takes part too often
  kReentered,
  kOtherProcess,
  kRetired,  // another engine has replaced this one; the caller must use the other engine
  kNotFinite,
  kTooLarge,
  kSetting,     // an argument or a setting that does not fit the rule
  kNotDurable,  // the log cannot be written
  kEncoding,    // bytes that are no encoded update
  kDamaged,     // a record that cannot be executed
};

class Refusal : public std::runtime_error {
 public:
  Refusal(Why reason, const std::string& text) : std::runtime_error(text), why(reason) {}
  // A refusal with kAlreadyCounted. `came_to` and `changed` describe the outcome of the task's first answer.
  Refusal(int64_t came_to, bool changed, const std::string& text)
      : std::runtime_error(text), why(Why::kAlreadyCounted), version(came_to), applied(changed) {}
  Why why;
  int64_t version = -1;  // the version after the task's first answer; -1: unknown
  bool applied = false;  // whether the first answer changed the model
};

}  // namespace fastagg
