#include "serve/metrics.h"

#include <prometheus/text_serializer.h>

namespace pagoda::serve {

Metrics::Metrics(const std::vector<engine::ModelInfo>& models, const engine::EngineStats& stats,
                 const std::string& version)
    : vllm_(registry_, models, stats), pagoda_(registry_, version) {}

void Metrics::on_request(const engine::RequestRecord& record) {
  vllm_.on_request(record);
  pagoda_.on_request(record);
}

void Metrics::on_step(const engine::StepRecord& record) {
  vllm_.on_step(record);
  pagoda_.on_step(record);
}

std::string Metrics::render(const MetricsReading& reading) {
  vllm_.read(reading.engine);
  pagoda_.read(reading);
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace pagoda::serve
