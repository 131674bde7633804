#pragma once
// What a person is told who has typed too little: what is missing, what there is, and a command
// that works.

#include <string>

#include "app/command.h"

namespace lockstep {

/// Of a command that lacks a positional.
std::string describe_missing(const Command& command, const OptionShape& missing,
                             std::span<const std::string> typed);

}  // namespace lockstep
