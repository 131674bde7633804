#pragma once
// Text in files: names that are to be written again (safetensors headers are UTF-8), and what
// people write with editors and spreadsheets.

#include <string>
#include <string_view>

namespace lockstep {

/// Whether the text is well-formed UTF-8 (RFC 3629: no surrogates, no longer forms than needed).
bool is_utf8(std::string_view text);

/// The text of a file that a person may have written: without the byte order mark that editors of
/// Windows put first. Throws DataError, which leaves the file's name to the caller, for UTF-16 and
/// for bytes that are no text.
std::string plain_text(std::string bytes);

/// The text as a cell of a CSV file (RFC 4180): in quotes where it has to be.
std::string csv_cell(const std::string& text);

}  // namespace lockstep
