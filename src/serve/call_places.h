// CallPlaces: how many calls are answered at once, and when one that finds no place may come again.
// Threads: any.     Errors: no place is not an error -> null.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "serve/drain_rate.h"

namespace pagoda::serve {

class CallPlaces {
 public:
  CallPlaces(size_t most, const Clock& clock) : most_(most), rate_(clock) {}

  // Held from before a call is parsed until it ends. The places outlive it.
  class Place {
   public:
    explicit Place(CallPlaces& places) : places_(places) {}
    ~Place() { leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Gives it back, once; as one whose answer was made.
    void answered();
    void leave();
    int retry_after_seconds(int n_running) const { return places_.retry_after_seconds(n_running); }

   private:
    CallPlaces& places_;
    bool is_held_ = true;  // one thread at a time
  };
  // Null: all are taken.
  std::shared_ptr<Place> take();

  size_t taken() const;
  size_t most() const { return most_; }
  // Until the calls that wait, all but n_running, have been answered.
  int retry_after_seconds(int n_running) const;

 private:
  enum class End { kAnswered, kOther };
  void give_back(End end);

  const size_t most_;
  mutable std::mutex mutex_;
  size_t taken_ = 0;  // guarded by mutex_
  DrainRate rate_;    // likewise
};

}  // namespace pagoda::serve
