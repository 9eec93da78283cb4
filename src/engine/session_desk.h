// SessionDesk: the sessions of requests, and answers to what is asked about sessions, between two steps. An export of blocks that sleep in a
// tier waits for them, and nothing else waits for it.
// Owns: exports that wait; the digest of the model's files where no tier has made one.   Threads: engine thread.
// Errors: as Results to who asked.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "engine/file_digest.h"
#include "engine/secret.h"
#include "engine/session.h"
#include "engine/step_runner.h"
#include "kv/session_transfer.h"

namespace pagoda::engine {

class SessionDesk {
 public:
  using Reply = std::function<void(Result<SessionAnswer>)>;

  // All outlive it. `wake`: by the digest's thread.
  // `part_bytes`: of blocks, in one part of an export.
  SessionDesk(StepRunner& runner, const Clock& clock, const Secret& secret, size_t part_bytes,
              std::function<void()> wake);

  // The request's session, which leave() is to be told of when it ends; none where it names none, or there is no room for one more.
  kv::SessionId enter(const Request& request);
  void leave(kv::SessionId session);
  // What the session holds once a request with these tokens has ended, in whole blocks; with none: what it holds now.
  int32_t held_after(kv::SessionId session, std::span<const TokenId> token_ids) const;

  void ask(SessionAsk ask, Reply reply);
  // The exports that wait, as far as they can go on.
  void poll();
  // When poll() or a step has something to do though nothing else happens.
  std::optional<int64_t> next_us() const;

 private:
  struct Waiting {
    SessionAsk ask;
    Reply reply;
    int64_t until_us = 0;
  };
  // What is asked with the names that the table knows, and the answer with those that the tenant knows.
  void ask_table(SessionAsk ask, Reply reply);
  Result<SessionAnswer> answer(const SessionAsk& ask);
  Result<SessionAnswer> report(const kv::SessionKey& key);
  kv::SessionKey key_of(const SessionAsk& ask) const;
  Result<Sha256> identity();
  // False: it waits for a tier.
  bool try_export(const Waiting& waiting);

  StepRunner& runner_;
  const Clock& clock_;
  const Secret& secret_;
  const std::function<void()> wake_;
  std::optional<kv::SessionTransfer> transfer_;  // none: no sessions
  std::unique_ptr<FileDigest> digest_;
  std::optional<Sha256> identity_;
  std::deque<Waiting> waiting_;
};

}  // namespace pagoda::engine
