#include "train/inference/prediction_table.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// RFC 4180: in quotes where it has to be.
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

void write_rows(const PredictReport& report, std::ostream& stream) {
  stream << "image,rank,class,name,probability\n";
  stream.precision(9);  // of every float
  for (const PredictedImage& image : report.images) {
    for (std::size_t i = 0; i < image.top.size(); ++i) {
      const ClassScore& score = image.top[i];
      stream << quoted(image.image.string()) << ',' << i + 1 << ',' << score.label << ','
             << quoted(report.classes[score.label]) << ',' << score.probability << '\n';
    }
  }
}

}  // namespace

void write_prediction_table(const PredictReport& report) {
  std::ofstream file(report.table, std::ios::binary);
  write_rows(report, file);
  file.close();
  if (!file) {
    throw DataError(concat(report.table.string(), ": cannot be written: ", std::strerror(errno)));
  }
}

}  // namespace lockstep
