// The report's parts: what becomes markup, where ticks lie, what is thinned, what is claimed.

#include "report/page/page.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "report/data/examples.h"
#include "report/data/report_data.h"
#include "report/page/axis.h"
#include "report/page/heat_map.h"
#include "report/page/line_chart.h"
#include "report/page/markup.h"
#include "report/page/rows_chart.h"
#include "report/sections/sections.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::contains;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const char* const kHostile = R"(<img src="x"> & 'y')";

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

PairedDifference pair_of(const std::vector<double>& differences) {
  PairedDifference pair;
  pair.a = "sync";
  pair.b = "local";
  pair.score = "mIoU";
  pair.differences = differences;
  for (std::size_t i = 0; i < differences.size(); ++i) pair.seeds.push_back(i);
  pair.spread = mean_spread(differences);
  pair.interval = t_interval(differences, 1 - kLevel);
  pair.p_value = sign_flip_p_value(differences);
  pair.p_holm = pair.p_value;
  pair.smallest_p = smallest_p_value(static_cast<int>(differences.size()));
  return pair;
}

}  // namespace

TEST_CASE("markup: what comes from outside is escaped") {
  CHECK(escaped(kHostile).text == "&lt;img src=&quot;x&quot;&gt; &amp; &#39;y&#39;");
  CHECK(escaped(std::string("a\0b\x1b", 4)).text == "a\uFFFDb\uFFFD");
  CHECK(escaped("ä\xFF, −").text == "ä\uFFFD, −");
  CHECK(number(kNaN, 2).text == "–");
  CHECK(number(-0.125, 2).text == "<data value=\"-0.125\">−0.12</data>");
  CHECK(signed_number(1.0 / 3, 2).text == "<data value=\"0.3333333333333333\">+0.33</data>");
}

TEST_CASE("page: names with markup in them stay text in every place") {
  Page page(kHostile);
  page.headline(kHostile, kHostile);
  page.warning(kHostile);
  page.section(kHostile, kHostile);
  page.paragraph(kHostile);
  page.note(kHostile);
  page.table({{kHostile}, {{escaped(kHostile)}}});
  const DotChart dots{kHostile, kHostile, {{kHostile, kHostile, {{0, 1}}}}};
  const BarChart bars{kHostile, kHostile, {{kHostile, {{kHostile, mean_spread({{1.0, 2.0}})}}}}};
  const StackedChart stacked{kHostile, kHostile, {kHostile}, {{kHostile, {1}}}};
  const LineChart lines{
      kHostile, kHostile, {{kHostile, 0, {{0, 1}, {1, 2}}}, {"sync", 0, {{0, 1}}}}};
  const HeatMap map{kHostile, {kHostile}, {1}, {{1}}, levels_for({1})};
  page.figures({{"a", draw(dots), kHostile, {}},
                {"b", draw(bars), kHostile, {}},
                {"c", draw(stacked), kHostile, {}},
                {"d", draw(lines).svg, kHostile, {}},
                {"e", draw(map), kHostile, {}}});
  const std::string html = page.html();
  CHECK_FALSE(contains(html, "<img"));
  CHECK_FALSE(contains(html, "src=\"x\""));
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "http"));
  CHECK(count(html, "<svg") == 5);
  for (const Figure& figure : page.all_figures()) {
    CHECK(contains(figure.svg.file(), "xmlns=\"http://www.w3.org/2000/svg\""));
    CHECK_FALSE(contains(figure.svg.file(), "<img"));
  }
}

TEST_CASE("pictures: bytes become base64, names attributes") {
  const auto encoded = [](const std::string& text) {
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    const std::string html = picture(bytes, kHostile).text;
    CHECK(html.starts_with("<img alt=\"&lt;img"));
    const std::size_t comma = html.find(',');
    return html.substr(comma + 1, html.rfind('"') - comma - 1);
  };
  CHECK(encoded("light work.") == "bGlnaHQgd29yay4=");
  CHECK(encoded("light work") == "bGlnaHQgd29yaw==");
  CHECK(encoded("light wor") == "bGlnaHQgd29y");
  CHECK(encoded("\xFF\xFE\xFD") == "//79");
  CHECK(encoded("").empty());
}

TEST_CASE("examples: only pixels that count are compared") {
  Examples examples;
  examples.classes = {"a", "b", "c"};
  examples.ignore_index = 1;
  const Example example{
      "", {}, {1, 5, {0, 0, 2, 1, 255}}, {{1, 5, {0, 2, 2, 0, 0}}, {1, 5, {0, 0, 0, 2, 2}}}};
  CHECK(accuracy(examples, example, 0) == doctest::Approx(2.0 / 3));
  CHECK(accuracy(examples, example, 1) == doctest::Approx(2.0 / 3));
  CHECK(disagreement(examples, example) == doctest::Approx(2.0 / 3));
  const Example unlabelled{"", {}, {1, 1, {255}}, {{1, 1, {0}}}};
  CHECK(std::isnan(accuracy(examples, unlabelled, 0)));
}

TEST_CASE("axes: ticks are round and cover the data") {
  const Axis percent = linear_axis(14.2, 23.9, 5);
  CHECK(percent.ticks == std::vector<double>{14, 16, 18, 20, 22, 24});
  CHECK(percent.at(19) == doctest::Approx(0.5));
  const Axis mixed = linear_axis(-0.03, 15.03, 5);
  CHECK(mixed.low == -5);
  CHECK(mixed.high == 20);
  CHECK(tick_label(mixed.ticks[1]) == "0");
  const Axis one = linear_axis(3, 3, 5);
  CHECK(one.low < 3);
  CHECK(one.high > 3);
  const Axis steps = exact_axis(30, 180, 5);
  CHECK(steps.low == 30);
  CHECK(steps.ticks == std::vector<double>{50, 100, 150});
  const Axis decades = log_axis(0.003, 40);
  CHECK(decades.low <= 0.003);
  CHECK(decades.high >= 40);
  CHECK(decades.at(decades.low) == doctest::Approx(0));
  CHECK(decades.at(decades.high) == doctest::Approx(1));
  CHECK(tick_label(1e-6) == "1e-06");
  CHECK(tick_label(-5) == "−5");
}

TEST_CASE("curves: thinning keeps every column's extremes, and breaks") {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 10000; ++i) points.push_back({double(i), std::sin(i * 0.7)});
  // Before and after the other extreme of their columns.
  points[5003].y = 100;
  points[6095].y = 101;
  points[7001].y = -100;
  points[8095].y = -101;
  points[2000].y = kNaN;
  const auto thinned = thin(points, 0, 9999, 100);
  CHECK(thinned.size() <= 204);
  double low = 0, high = 0, last = -1;
  int breaks = 0;
  for (const CurvePoint& point : thinned) {
    CHECK(point.x > last);
    last = point.x;
    breaks += std::isnan(point.y) ? 1 : 0;
    low = std::fmin(low, point.y);
    high = std::fmax(high, point.y);
  }
  CHECK(low == -101);
  CHECK(high == 101);
  CHECK(breaks == 1);
  points.resize(200);
  CHECK(thin(points, 0, 199, 100).size() == 200);
}

TEST_CASE("heat maps: levels are round, ascending, and reach the largest value") {
  const HeatLevels wide = levels_for({0, kNaN, 0.0004, 0.02, 0.65});
  CHECK(wide.boundaries == std::vector<double>{0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3});
  CHECK(wide.of(0) == 0);
  CHECK(wide.of(0.3) == kHeatLevels - 1);
  CHECK(wide.of(0.0005) == 1);
  const HeatLevels narrow = levels_for({0.2, 0.5, 0.9});
  CHECK(narrow.boundaries.front() == 0.07);
  CHECK(narrow.boundaries.back() == 0.7);
  CHECK(levels_for({}).boundaries.size() == kHeatLevels - 1);
}

TEST_CASE("heat maps: equal neighbours are one piece, missing cells none") {
  const HeatMap map{"", {"a"}, {1, 2, 3, 4}, {{5, 5, kNaN, 5}}, levels_for({5})};
  const std::string drawing = draw(map).in_page().text;
  const std::size_t path = drawing.find("<path");
  CHECK(count(drawing.substr(path, drawing.find("/>", path) - path), "M") == 2);
}

TEST_CASE("heat maps: of many layers the blocks are named, none within a line of another") {
  HeatMap map{"", {"backbone.bn1"}, {1}, {}, levels_for({5})};
  for (int block = 0; block < 20; ++block) {
    for (const char* layer : {"bn1", "bn2", "downsample.1"})
      map.rows.push_back("backbone.layer1." + std::to_string(block) + "." + layer);
  }
  map.rows.emplace_back("classifier.1");
  map.values.assign(map.rows.size(), {5});
  const std::string drawing = draw(map).in_page().text;
  std::vector<double> heights;
  for (auto at = drawing.find("<text"); at != std::string::npos;
       at = drawing.find("<text", at + 1)) {
    const std::string text = drawing.substr(at, drawing.find("</text>", at) - at);
    if (contains(text, "backbone") || contains(text, "classifier"))
      heights.push_back(std::stod(text.substr(text.find("y=\"") + 3)));
  }
  CHECK(heights.size() == 22);
  for (std::size_t i = 1; i < heights.size(); ++i) CHECK(heights[i] - heights[i - 1] >= 12);
  CHECK(contains(drawing, ">backbone.layer1.19</text>"));
  CHECK(contains(drawing, ">classifier.1</text>"));
  CHECK(count(drawing, "<title>backbone.layer1.3.downsample.1: ") == 1);
  map.rows.resize(40);
  map.values.resize(40);
  CHECK(contains(draw(map).in_page().text, ">backbone.layer1.3.bn2</text>"));
}

TEST_CASE("bars: whiskers end at 0 and at the axis's end") {
  const BarChart chart{"",
                       "",
                       {{"a", {{"sync", mean_spread({{0.0, 4.0}})}}},
                        {"b", {{"sync", mean_spread({{96.0, 100.0}})}}}},
                       100};
  const std::string drawing = draw(chart).in_page().text;
  const std::size_t first = drawing.find("class=\"whisker\""),
                    begin = drawing.rfind("<line", first);
  const std::size_t bar = drawing.find("<rect"), x = drawing.find("x=", bar);
  const std::string left = drawing.substr(x + 3, drawing.find('"', x + 3) - x - 3);
  CHECK(contains(drawing.substr(begin, first - begin), "x1=\"" + left + "\""));
  CHECK(contains(drawing.substr(first), "x2=\"426\""));
}

TEST_CASE("names too long for a chart lose their middle") {
  CHECK(shortened("layer4", 100) == "layer4");
  const std::string whole = "layer4.0.downsample.1.bn";
  for (double width = 40; width < text_width(whole); ++width) {
    const std::string name = shortened(whole, width);
    const std::size_t gap = name.find("…");
    REQUIRE(gap != std::string::npos);
    CHECK(whole.starts_with(name.substr(0, gap)));
    CHECK(whole.ends_with(name.substr(gap + std::string("…").size())));
    CHECK(text_width(name) <= width);
  }
}

TEST_CASE("verdicts claim no more than the test does") {
  const Verdict better = verdict(pair_of({3, 4, 5, 3.5, 4.5, 4}), 1);
  CHECK(better.claim == "sync is better than local by 4.00 points of mIoU");
  CHECK(contains(better.evidence, "6 seeds, p = 0.0312"));
  const Verdict worse = verdict(pair_of({-3, -4, -5, -3.5, -4.5, -4}), 1);
  CHECK(worse.claim == "local is better than sync by 4.00 points of mIoU");
  CHECK(contains(worse.evidence, "95 % interval +3.26 to +4.74"));
  CHECK(contains(verdict(pair_of({3, 4, 5}), 1).claim, "so few seeds cannot rule out chance"));
  CHECK(contains(verdict(pair_of({3, -4, 5}), 1).claim, "No difference between sync and local"));
  CHECK(contains(verdict(pair_of({3}), 1).claim, "with one seed"));
  CHECK(contains(verdict(pair_of({}), 1).claim, "no seed in common"));
  CHECK(contains(verdict(pair_of({0, 0, 0, 0, 0, 0}), 1).claim, "sync and local scored the same"));
  PairedDifference adjusted = pair_of({3, 4, 5, 3.5, 4.5, 4});
  adjusted.p_holm = 3 * *adjusted.p_value;
  CHECK(contains(verdict(adjusted, 3).claim, "cannot rule out chance"));
}

TEST_CASE("runs: what a resumed run did again supersedes what it did before") {
  const test::TemporaryFolder folder;
  const std::string lens =
      R"(,"layer":"bn1","parts":2,"count":8,"channels":1,"within":1,"between":0.5,)"
      R"("ratio_mean":0.5,"ratio_max":0.5,"log_var_ratio":0.1,"running_mean_spread":0})";
  const auto bn = [&](int step) { return R"({"type":"bn","step":)" + std::to_string(step) + lens; };
  const std::string head = R"("bn_mode":"sync","seed":7,"devices":"cpu:2"})";
  folder.write("events.jsonl", R"({"type":"header","step":0,)" + head + "\n" + bn(10) + "\n" +
                                   bn(20) + "\n" + R"({"type":"resume","step":10,)" + head + "\n" +
                                   bn(15) + "\n" + R"({"type":"bn","st)");
  folder.write("scalars.json", R"({"mode":"train","step":10,"loss":2.5,"lr":0.1,"grad_norm":null})"
                               "\n"
                               R"({"mode":"val","step":10,"top1":50,"loss":1})"
                               "\n");
  const RunRecord run = read_run(folder.path(), builtin_tables());
  CHECK_FALSE(run.summary.has_value());
  CHECK(run.mode == "sync");
  CHECK(run.seed == 7);
  REQUIRE(run.lens.size() == 2);
  CHECK(run.lens[1].step == 15);
  REQUIRE(run.train_loss.size() == 1);
  CHECK(run.train_loss[0].y == 2.5);
  CHECK(std::isnan(run.gradient_norm[0].y));
  CHECK(run.task == Task::kClassification);
  CHECK(run.val_score[0].y == 50);
  CHECK_FALSE(run.config_error.empty());
  CHECK_THROWS_AS(run_folders(folder.path() / "none"), DataError);
}

}  // namespace lockstep
