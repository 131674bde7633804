#pragma once
// What kind of layer a message speaks of.

#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

/// "lockstep::AllReduceLayer".
std::string class_name(const Layer& layer);

}  // namespace lockstep
