#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "data/resize.h"
#include "io/image_io.h"
#include "lockstep/io/image.h"
#include "report/page/style.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

constexpr int kMostWidth = 320;   // of a picture in the page
constexpr int kSmallWidth = 100;  // narrower ones are magnified, pixel by pixel

/// What the modes make of a pixel, and the colours of it.
struct Outcomes {
  std::vector<std::string> names;
  std::vector<Color> colors;
};

enum Outcome : Label { kAllRight, kNoneRight, kSomeRight, kOnlyFirst = kSomeRight, kOnlySecond };

constexpr Label kIgnored = std::numeric_limits<Label>::max();  // no class has it

Outcomes outcomes_of(const Examples& examples) {
  constexpr Color kLight{0xE4, 0xE8, 0xEC}, kDark{0x5B, 0x65, 0x70}, kSome{0xD2, 0x9A, 0x2E};
  const auto& modes = examples.modes;
  if (modes.size() == 1) return {{"right", "wrong"}, {kLight, kDark}};
  if (modes.size() > 2) return {{"all right", "none right", "some right"}, {kLight, kDark, kSome}};
  return {{"both right", "none right", "only " + modes[0].mode + " right",
           "only " + modes[1].mode + " right"},
          {kLight, kDark, mode_color(modes[0].mode), mode_color(modes[1].mode)}};
}

const char* title_of_outcomes(const Examples& examples) {
  return examples.modes.size() == 1 ? "right or wrong" : "who is right";
}

Label outcome_of(const Examples& examples, const Example& example, std::size_t pixel) {
  const Label truth = example.truth.pixels[pixel];
  if (!examples.counts(truth)) return kIgnored;
  const auto right = [&](const LabelMap& map) { return map.pixels[pixel] == truth; };
  const auto& maps = example.predictions;
  const auto count = std::ranges::count_if(maps, right);
  if (count == 0) return kNoneRight;
  if (count == static_cast<std::ptrdiff_t>(maps.size())) return kAllRight;
  if (maps.size() != 2) return kSomeRight;
  return right(maps.front()) ? kOnlyFirst : kOnlySecond;
}

LabelMap outcome_map(const Examples& examples, const Example& example) {
  LabelMap map{example.truth.height, example.truth.width, {}};
  for (std::size_t i = 0; i < example.truth.pixels.size(); ++i) {
    map.pixels.push_back(outcome_of(examples, example, i));
  }
  return map;
}

template <typename Map>
Map shrunk(const Map& map) {
  if (map.width <= kMostWidth) return map;
  const Size size{std::max(1, map.height * kMostWidth / map.width), kMostWidth};
  Map small;
  Resizer().resize(map, size, {0, 0, size}, small);
  return small;
}

/// What counts for nothing is no class, whichever value it had.
LabelMap counted(const Examples& examples, LabelMap map) {
  for (Label& label : map.pixels) {
    if (!examples.counts(label)) label = kIgnored;
  }
  return map;
}

std::string swatches(const std::string& what, const std::vector<std::string>& names,
                     const std::vector<Color>& colors) {
  std::string html = "<div class=\"swatches\"><span>" + escaped(what).text + ":</span>";
  for (std::size_t i = 0; i < names.size(); ++i) {
    html += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", to_string(colors[i]),
                        escaped(names[i]).text);
  }
  return html + "</div>\n";
}

std::string shown_classes(const Examples& examples) {
  std::set<Label> present;
  for (const Example& example : examples.samples) {
    present.insert(example.truth.pixels.begin(), example.truth.pixels.end());
    for (const LabelMap& map : example.predictions) {
      present.insert(map.pixels.begin(), map.pixels.end());
    }
  }
  std::vector<std::string> names;
  std::vector<Color> colors;
  for (const Label label : present) {
    if (!examples.counts(label)) continue;
    names.push_back(examples.classes[label]);
    colors.push_back(examples.colors[label]);
  }
  return swatches("classes", names, colors);
}

std::string figure(const Markup& image, const std::string& caption) {
  return fmt::format("<figure>{}<figcaption>{}</figcaption></figure>\n", image.text,
                     escaped(caption).text);
}

Markup photograph(const Example& example) {
  Markup image = picture(encode_png(shrunk(example.image)), "image " + example.name);
  if (example.image.width < kSmallWidth) image.text.insert(4, " class=\"small\"");
  return image;
}

std::string percent_right(const Examples& examples, const Example& example, std::size_t mode) {
  const double share = accuracy(examples, example, mode);
  return std::isfinite(share) ? fmt::format("{:.1f} % right", 100 * share) : "nothing labelled";
}

void add_segmentation(const Examples& examples, const Example& example, Page& page) {
  const auto map = [&](const LabelMap& labels, const std::string& what) {
    return picture(encode_png(shrunk(counted(examples, labels)), examples.colors),
                   what + " of " + example.name);
  };
  const Outcomes outcomes = outcomes_of(examples);
  std::string html = figure(photograph(example), "image");
  html += figure(map(example.truth, "truth"), "truth");
  for (std::size_t m = 0; m < examples.modes.size(); ++m) {
    html += figure(map(example.predictions[m], "prediction of " + examples.modes[m].mode),
                   examples.modes[m].mode + ": " + percent_right(examples, example, m));
  }
  html += figure(picture(encode_png(shrunk(outcome_map(examples, example)), outcomes.colors),
                         std::string(title_of_outcomes(examples)) + ", " + example.name),
                 title_of_outcomes(examples));
  page.add({"<div class=\"pictures\">\n" + html + "</div>\n"});
}

std::string class_name(const Examples& examples, const LabelMap& map) {
  const Label label = map.pixels.front();
  return label < examples.classes.size() ? examples.classes[label] : "no class";
}

void add_classification(const Examples& examples, Page& page) {
  std::string html;
  for (const Example& example : examples.samples) {
    std::string caption = "truth: " + class_name(examples, example.truth);
    for (std::size_t m = 0; m < examples.modes.size(); ++m) {
      caption += fmt::format("; {}: {}", examples.modes[m].mode,
                             class_name(examples, example.predictions[m]));
    }
    html += figure(photograph(example), caption);
  }
  page.add({"<div class=\"pictures\">\n" + html + "</div>\n"});
}

}  // namespace

void add_examples(const Examples& examples, Page& page) {
  page.section("images", "Images");
  if (!examples.why_not.empty()) {
    page.note("Example images are left out: " + examples.why_not);
    return;
  }
  page.note(fmt::format("{}. Predictions are those of the last checkpoint of seed {}.",
                        examples.rule, examples.seed));
  if (examples.task == Task::kClassification) return add_classification(examples, page);
  const Outcomes outcomes = outcomes_of(examples);
  page.add({shown_classes(examples)});
  page.add({swatches(title_of_outcomes(examples), outcomes.names, outcomes.colors)});
  for (const Example& example : examples.samples) {
    const double differing = disagreement(examples, example);
    page.paragraph(example.name + (examples.modes.size() > 1 && std::isfinite(differing)
                                       ? fmt::format(": the modes disagree on {:.1f} % of the "
                                                     "labelled pixels",
                                                     100 * differing)
                                       : ""));
    add_segmentation(examples, example, page);
  }
}

}  // namespace lockstep
