#include "nn/utf8.h"

#include <cstddef>
#include <cstdint>

namespace lockstep {
namespace {

// A sequence of `bytes` bytes has the code points from `first` to `last`.
struct Form {
  std::uint32_t lead, mask;
  std::size_t bytes;
  std::uint32_t first, last;
};

constexpr Form kForms[] = {{0x00, 0x80, 1, 0, 0x7f},
                           {0xc0, 0xe0, 2, 0x80, 0x7ff},
                           {0xe0, 0xf0, 3, 0x800, 0xffff},
                           {0xf0, 0xf8, 4, 0x10000, 0x10ffff}};

// Bytes of the sequence that the text begins with; 0 for none.
std::size_t sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return std::uint32_t{static_cast<std::uint8_t>(text[i])};
  };
  for (const Form& form : kForms) {
    if ((byte(0) & form.mask) != form.lead) continue;
    if (text.size() < form.bytes) return 0;
    std::uint32_t point = byte(0) & ~form.mask;
    for (std::size_t i = 1; i < form.bytes; ++i) {
      if ((byte(i) & 0xc0U) != 0x80U) return 0;
      point = point << 6 | (byte(i) & 0x3fU);
    }
    const bool surrogate = point >= 0xd800 && point <= 0xdfff;
    return point >= form.first && point <= form.last && !surrogate ? form.bytes : 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = sequence(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace lockstep
