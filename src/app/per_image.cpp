#include "app/per_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "compare/statistics.h"
#include "compare/table.h"
#include "core/percentiles.h"
#include "core/utf8.h"
#include "core/words.h"
#include "io/atomic_file.h"
#include "io/image_io.h"
#include "lockstep/io/image.h"
#include "train/inference/image_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWorst = 10;

std::string csv_number(const std::optional<double>& value) {
  return value ? fmt::format("{:.6g}", *value) : "";
}

std::string to_csv(const EvalReport& report) {
  std::string text = "image,mIoU,aAcc";
  for (const std::string& name : report.classes) text += "," + csv_cell(name);
  for (const ImageScores& image : report.images) {
    const ConfusionMetrics& metrics = image.metrics;
    text += fmt::format("\n{},{},{}", csv_cell(image.name), csv_number(metrics.m_iou),
                        csv_number(metrics.a_acc));
    for (const auto& iou : metrics.iou) text += "," + csv_number(iou);
  }
  return text + "\n";
}

}  // namespace

std::string format_images(const EvalReport& report) {
  std::vector<double> scores;
  for (const ImageScores& image : report.images) {
    if (image.metrics.m_iou) scores.push_back(*image.metrics.m_iou);
  }
  if (scores.empty()) return "per image: no image has a label that counts\n";
  const Percentiles of_images = percentiles(scores);
  std::string text = fmt::format(
      "per image: mIoU mean {:.2f} %  median {:.2f} %  lowest tenth up to {:.2f} %  ({})\n",
      mean_spread(scores).mean, of_images.median, of_images.p10,
      count_of(of_images.count, "image"));
  Table table{.header = {"the worst", "mIoU %", "aAcc %"}, .rows = {}};
  for (const std::int64_t i : worst_first(report.images)) {
    if (table.rows.size() == kWorst) break;
    const ImageScores& image = report.images[static_cast<std::size_t>(i)];
    table.rows.push_back(
        {image.name, format_number(image.metrics.m_iou, 2), format_number(image.metrics.a_acc, 2)});
  }
  return text + to_markdown(table);
}

void write_images(const EvalReport& report, const fs::path& folder) {
  make_output_folder(folder);
  write_file_atomically(folder / "per_image.csv", to_csv(report));
  for (std::size_t i = 0; i < report.worst.size(); ++i) {
    const ValidationExample& example = report.worst[i];
    std::string name = fs::path(example.name).stem().string();
    std::ranges::replace(name, ' ', '_');
    write_png(folder / fmt::format("worst_{:02}_{}.png", i + 1, name),
              side_by_side({example.image, paint(example.truth, report.colors),
                            paint(example.prediction, report.colors)}));
  }
}

}  // namespace lockstep
