#pragma once
// Names in files that are to be written again: safetensors headers are UTF-8.

#include <string_view>

namespace lockstep {

/// Whether the text is well-formed UTF-8 (RFC 3629: no surrogates, no longer forms than needed).
bool is_utf8(std::string_view text);

}  // namespace lockstep
