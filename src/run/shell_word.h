#pragma once
// Commands as they are shown, to be copied into a shell.

#include <string>

namespace lockstep {

/// `word` as a POSIX shell reads it back: as it stands, or in single quotes where it holds anything
/// that a shell would take apart or replace.
std::string shell_word(const std::string& word);

}  // namespace lockstep
