#include "lockstep/nn/loss.h"

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {

void LossOptionCheck::check(const char* key, double value, const Limits& in) const {
  const bool low = in.above ? value > in.lo : value >= in.lo;
  const bool high = in.below ? value < in.hi : value <= in.hi;
  if (low && high && std::isfinite(value)) return;
  throw ConfigError(concat("the loss ", loss_, " takes a ", key, in.above ? " above " : " from ",
                           in.lo, std::isinf(in.hi) ? "" : concat(" to ", in.hi), ", got ", value));
}

void LossOptionCheck::fail_unmeasured(const char* key) const {
  throw ConfigError(concat("the loss ", loss_, " takes numbers for ", key,
                           ", and its balanced ones are not measured: a training measures them at ",
                           "its start, and its config.toml has them"));
}

void Loss::check() const {
  if (!(weight() > 0) || !std::isfinite(weight())) {
    throw ConfigError(concat("the weight of the loss ", name(), " must be positive, is ", weight(),
                             "; leave out a loss that does not count"));
  }
  kind_->check();
}

std::unique_ptr<LossNode> Loss::make_node(const LossSite& site) const {
  check();
  return kind_->make_node(site);
}

}  // namespace lockstep
