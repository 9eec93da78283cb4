#include "engine/generation.h"

#include <algorithm>

namespace pagoda::engine {

Generation::Generation(std::shared_ptr<ActiveRequest> active, int choice, const ServedModel& model)
    : active_(std::move(active)),
      choice_(choice),
      tokenizer_(model.tokenizer),
      decoder_(active_->request.stop.strings),
      window_(active_->context, static_cast<int>(active_->prompt.size())),
      list_tokens_(static_cast<int>(active_->prompt.size())) {
  const Request& request = active_->request;
  if (request.sampling.repetition_penalty != 1) {
    for (const TokenId token : active_->prompt) ++history_.seen[token];
  }
  if (request.stop.min_tokens <= 0) return;
  banned_ = request.stop.token_ids;
  banned_.insert(banned_.end(), model.end_tokens.begin(), model.end_tokens.end());
}

bool Generation::may_stop() const { return n_generated_ >= active_->request.stop.min_tokens; }

models::SampleMode Generation::mode() const {
  const Request& request = active_->request;
  const bool greedy = is_plain_greedy(request.sampling) && !request.logprobs && may_stop();
  return greedy ? models::SampleMode::kGreedy : models::SampleMode::kLogits;
}

sched::StepOutcome Generation::read(const sched::SeqRows& rows, std::span<const SampleResult> results,
                                    Sampler& sampler) {
  if (active_->request.prompt_logprobs) read_prompt_logits(rows, results, sampler);
  if (rows.sampling == sched::Sampling::kNone) return {};
  if (!prompt_emitted_) emit_prompt();
  if (active_->max_tokens == 0) {
    end(FinishReason::kLength);
    return {};
  }
  const TokenId token = pick(results.back(), sampler);
  take(token, results.back(), sampler);
  return {.kind = sched::StepOutcome::Kind::kSampled, .token = token};
}

// Position p's logits judge the prompt's token p + 1.
void Generation::read_prompt_logits(const sched::SeqRows& rows, std::span<const SampleResult> results,
                                    Sampler& sampler) {
  const int n_top = *active_->request.prompt_logprobs;
  int position = rows.first_position + rows.n_tokens - rows.n_logits;
  for (const SampleResult& result : results) {
    const auto next = static_cast<size_t>(++position);
    if (next >= active_->prompt.size()) break;
    if (next != prompt_logprobs_.size() + 1 || result.logits.empty()) continue;
    prompt_logprobs_.push_back(sampler.logprob({result.logits, result.tiles}, active_->prompt[next], n_top));
    name_bytes(prompt_logprobs_.back());
  }
}

// Echo: the prompt as text, and its logprobs, of which the first token has none.
void Generation::emit_prompt() {
  prompt_emitted_ = true;
  const Request& request = active_->request;
  if (request.echo == Echo::kOff && !request.prompt_logprobs) return;
  Delta delta{.choice = choice_, .text = {}, .tokens = active_->prompt, .logprobs = {}};
  if (request.echo == Echo::kPrompt) {
    text::StreamDecoder decoder;
    for (const TokenId token : active_->prompt) delta.text += decoder.push(tokenizer_.token_bytes(token)).text;
    delta.text += decoder.flush().text;
  }
  if (request.prompt_logprobs && !active_->prompt.empty()) {
    TokenLogprob first{.token = active_->prompt.front(), .bytes = {}, .logprob = std::nullopt, .top = {}};
    name_bytes(first);
    delta.logprobs.push_back(std::move(first));
    std::ranges::move(prompt_logprobs_, std::back_inserter(delta.logprobs));
  }
  active_->stream->push(std::move(delta));
}

TokenId Generation::pick(const SampleResult& result, Sampler& sampler) {
  if (result.logits.empty()) return result.greedy;
  const auto position = static_cast<uint32_t>(active_->prompt.size()) + static_cast<uint32_t>(n_generated_);
  const std::span<const TokenId> banned = may_stop() ? std::span<const TokenId>() : banned_;
  return sampler.sample({result.logits, result.tiles}, active_->request.sampling, history_, banned,
                        {active_->seed, static_cast<uint32_t>(choice_), position});
}

std::optional<TokenId> Generation::stop_token(TokenId token) const {
  const StopParams& stop = active_->request.stop;
  const bool ends = stop.end_of_text == StopParams::EndOfText::kStop && tokenizer_.is_end_of_generation(token);
  if (ends || std::ranges::find(stop.token_ids, token) != stop.token_ids.end()) return token;
  return std::nullopt;
}

void Generation::take(TokenId token, const SampleResult& result, Sampler& sampler) {
  const Request& request = active_->request;
  ++n_generated_;
  ++list_tokens_;
  ++active_->usage.completion_tokens;
  ++history_.generated[token];
  if (request.sampling.repetition_penalty != 1) ++history_.seen[token];

  unsaid_.push_back(token);
  Delta delta{.choice = choice_, .text = {}, .tokens = {}, .logprobs = {}};
  if (request.logprobs) {
    delta.logprobs.push_back(sampler.logprob({result.logits, result.tiles}, token, *request.logprobs));
    name_bytes(delta.logprobs.back());
  }
  Finished finished{.choice = choice_,
                    .reason = FinishReason::kStop,
                    .stop_string = {},
                    .stop_token = stop_token(token),
                    .usage = {}};
  const bool done = decode(token, delta, finished);
  if (done || !delta.text.empty() || !delta.logprobs.empty()) {
    delta.tokens = std::exchange(unsaid_, {});
    active_->stream->push(std::move(delta));
  }
  if (done) finished_ = std::move(finished);
}

// The token's text into delta; true if it was the last, finished then says why.
bool Generation::decode(TokenId token, Delta& delta, Finished& finished) {
  const std::vector<std::string>& stops = active_->request.stop.strings;
  bool done = finished.stop_token.has_value();
  if (!done) {
    text::StreamDecoder::Delta piece = decoder_.push(tokenizer_.token_bytes(token));
    delta.text = std::move(piece.text);
    if (piece.matched_stop) {
      finished.stop_string = stops[*piece.matched_stop];
      return true;
    }
    if (n_generated_ >= active_->max_tokens) {
      finished.reason = FinishReason::kLength;
      done = true;
    }
  }
  if (!done) return false;
  // What was held back may, at the very end, still complete a stop string.
  text::StreamDecoder::Delta rest = decoder_.flush();
  delta.text += rest.text;
  if (rest.matched_stop) finished = {choice_, FinishReason::kStop, stops[*rest.matched_stop], std::nullopt, {}};
  return true;
}

std::vector<TokenId> Generation::edit_context(std::span<const TokenId> list) {
  ContextEdit edit = window_.edit(list);
  list_tokens_ = static_cast<int>(edit.tokens.size());
  count_edit(edit, active_->usage.context);
  active_->stream->push(Edited{active_->usage.context});
  return std::move(edit.tokens);
}

void Generation::end(FinishReason reason) {
  std::string rest = decoder_.flush().text;
  if (!rest.empty() || !unsaid_.empty()) {
    active_->stream->push(
        Delta{.choice = choice_, .text = std::move(rest), .tokens = std::exchange(unsaid_, {}), .logprobs = {}});
  }
  finished_ = Finished{choice_, reason, {}, std::nullopt, {}};
}

std::optional<FinishReason> Generation::finished() const {
  return finished_ ? std::optional(finished_->reason) : std::nullopt;
}

std::optional<int64_t> Generation::token_gap_us(int64_t now_us) {
  const std::optional<int64_t> last_us = std::exchange(last_token_us_, now_us);
  return last_us ? std::optional(now_us - *last_us) : std::nullopt;
}

void Generation::say_finished(int64_t now_us) {
  finished_->usage = active_->usage;
  finished_->cache = cache_report();
  const RequestRecord& record = active_->record;
  if (record.started_us != 0) finished_->timing.queue_us = record.started_us - record.queued_us;
  if (record.first_token_us != 0) {
    finished_->timing.prefill_us = record.first_token_us - record.started_us;
    finished_->timing.decode_us = now_us - record.first_token_us;
  }
  active_->stream->push(*finished_);
}

std::shared_ptr<const CacheReport> Generation::cache_report() const {
  if (active_->explain == Explain::kOff) return nullptr;
  const auto* chat = std::get_if<ChatPrompt>(&active_->request.prompt);
  const std::span<const std::string> texts = chat != nullptr ? chat->message_texts : std::span<const std::string>();
  auto report =
      std::make_shared<CacheReport>(make_cache_report(active_->cache_use, active_->prompt, texts, tokenizer_));
  report->preemptions = active_->record.preemptions;
  if (active_->session != kv::SessionId()) report->session = {active_->request.session_id, active_->held_tokens};
  for (size_t i = 0; i < active_->tier_names.size(); ++i)
    report->tiers.push_back({active_->tier_names[i], active_->record.restored_tokens[i]});
  return report;
}

void Generation::name_bytes(TokenLogprob& entry) const {
  const auto bytes_of = [&](TokenId token) {
    const std::string_view bytes = tokenizer_.token_bytes(token);
    return std::string(bytes.empty() ? tokenizer_.token_text(token) : bytes);
  };
  entry.bytes = bytes_of(entry.token);
  for (TokenLogprob::Alternative& alternative : entry.top) alternative.bytes = bytes_of(alternative.token);
}

}  // namespace pagoda::engine
