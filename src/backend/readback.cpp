#include <vector>

#include "backend/operand_checks.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// For backends whose operations are done when they return.
class FinishedReadback final : public Readback {
 public:
  FinishedReadback(Backend& backend, const Tensor& source, int slots)
      : backend_(backend),
        source_(source),
        copies_(static_cast<std::size_t>(slots), std::vector<std::byte>(dense_bytes(source))) {}

  void start(int slot) override {
    backend_.download(copies_.at(static_cast<std::size_t>(slot)).data(), source_);
    backend_.synchronize();
  }
  const void* wait(int slot) override { return copies_.at(static_cast<std::size_t>(slot)).data(); }

 private:
  Backend& backend_;
  const Tensor source_;
  std::vector<std::vector<std::byte>> copies_;  // [slot]
};

}  // namespace

std::unique_ptr<Readback> Backend::make_readback(const Tensor& source, int slots) {
  check_transfer(source);
  return std::make_unique<FinishedReadback>(*this, source, slots);
}

}  // namespace lockstep
