#include "http/responder.h"

#include "http/exchange.h"

namespace pagoda::http {

struct Responder::Handle {
  explicit Handle(std::shared_ptr<Exchange> e) : exchange(std::move(e)) {}
  ~Handle() { exchange->abandon(); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  std::shared_ptr<Exchange> exchange;
};

Responder::Responder(std::shared_ptr<Exchange> exchange) : handle_(std::make_shared<Handle>(std::move(exchange))) {}

void Responder::send(HttpResponse response) { handle_->exchange->send(std::move(response)); }
void Responder::open_stream(StreamHead head) { handle_->exchange->open_stream(std::move(head)); }
Room Responder::write(std::string_view bytes) { return handle_->exchange->write(bytes); }
void Responder::close() { handle_->exchange->close(); }
void Responder::abort() { handle_->exchange->abort(); }
void Responder::on_gone(std::function<void()> callback) { handle_->exchange->set_on_gone(std::move(callback)); }
void Responder::on_drained(std::function<void()> callback) { handle_->exchange->set_on_drained(std::move(callback)); }
void Responder::post(std::function<void()> work) const { handle_->exchange->post(std::move(work)); }

}  // namespace pagoda::http
