// The report's parts: what becomes markup, where ticks lie, what is thinned, how plots are drawn.

#include "report/page/page.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "report/data/examples.h"
#include "report/data/report_data.h"
#include "report/page/axis.h"
#include "report/page/markup.h"
#include "report/page/plot.h"
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
  page.headline(kHostile);
  page.warning(kHostile);
  page.section(kHostile, kHostile);
  page.paragraph(kHostile);
  page.note(kHostile);
  page.table({{kHostile}, {{escaped(kHostile)}}});
  const Series series{kHostile, "m0"};
  Plot dots{kHostile, {kHostile}};
  add_row(dots, {kHostile, kHostile, {{0, 1}}, 1, Interval{0, 2}, kHostile});
  Plot bars{kHostile, {kHostile}, {Bar{series, 0, 0, 1, kHostile}, Bar{{"b", "m1"}, 0, 0, 1}}};
  Plot lines{kHostile, {}, {Line{series, {{0, 1}, {1, 2}}, kHostile}, Line{{"b", "m1"}, {{0, 1}}}}};
  Plot cells{kHostile, {kHostile}, {Cells{{1}, {{1}}, levels_for({1})}}};
  for (Plot* plot : {&dots, &bars, &lines, &cells}) plot->x_label = kHostile;
  page.figures({{"a", draw(dots), kHostile, {}},
                {"b", draw(bars), kHostile, {}},
                {"c", draw(lines), kHostile, {}},
                {"d", draw(cells), kHostile, {}}});
  const std::string html = page.html();
  CHECK_FALSE(contains(html, "<img"));
  CHECK_FALSE(contains(html, "src=\"x\""));
  CHECK_FALSE(contains(html, "<script"));
  CHECK_FALSE(contains(html, "http"));
  CHECK(count(html, "<svg") == 4);
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
  std::vector<Point> points;
  for (int i = 0; i < 10000; ++i) points.push_back({double(i), std::sin(i * 0.7)});
  // Before and after the other extreme of their columns.
  points[5003].value = 100;
  points[6095].value = 101;
  points[7001].value = -100;
  points[8095].value = -101;
  points[2000].value = kNaN;
  const auto thinned = thin(points, 0, 9999, 100);
  CHECK(thinned.size() <= 204);
  double low = 0, high = 0, last = -1;
  int breaks = 0;
  for (const Point& point : thinned) {
    CHECK(point.at > last);
    last = point.at;
    breaks += std::isnan(point.value) ? 1 : 0;
    low = std::fmin(low, point.value);
    high = std::fmax(high, point.value);
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
  const Plot plot{"", {"a"}, {Cells{{1, 2, 3, 4}, {{5, 5, kNaN, 5}}, levels_for({5})}}};
  const std::string drawing = draw(plot).in_page().text;
  const std::size_t path = drawing.find("<path");
  CHECK(count(drawing.substr(path, drawing.find("/>", path) - path), "M") == 2);
}

TEST_CASE("heat maps: of many layers the blocks are named, none within a line of another") {
  Plot plot{"", {"backbone.bn1"}};
  for (int block = 0; block < 20; ++block) {
    for (const char* layer : {"bn1", "bn2", "downsample.1"})
      plot.rows.push_back("backbone.layer1." + std::to_string(block) + "." + layer);
  }
  plot.rows.emplace_back("classifier.1");
  const auto cells = [&] {
    return std::vector<Mark>{Cells{{1}, {plot.rows.size(), {5}}, levels_for({5})}};
  };
  plot.marks = cells();
  plot.row_height = 7;
  const std::string drawing = draw(plot).in_page().text;
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
  plot.rows.resize(40);
  plot.marks = cells();
  plot.row_height = 15;
  CHECK(contains(draw(plot).in_page().text, ">backbone.layer1.3.bn2</text>"));
}

TEST_CASE("bars: whiskers end at 0 and at the axis's end") {
  const Series series = mode_series("sync");
  Plot plot{"",
            {"a", "b"},
            {Bar{series, 0, 0, 2}, Mean{series, 0, {}, Interval{-0.8, 4.8}, "", 0},
             Bar{series, 1, 0, 98}, Mean{series, 1, {}, Interval{95.2, 100.8}, "", 0}}};
  plot.limits = Interval{0, 100};
  const std::string drawing = draw(plot).in_page().text;
  const std::size_t first = drawing.find("class=\"whisker\""),
                    begin = drawing.rfind("<line", first);
  const std::size_t bar = drawing.find("<rect"), x = drawing.find("x=", bar);
  const std::string left = drawing.substr(x + 3, drawing.find('"', x + 3) - x - 3);
  CHECK(contains(drawing.substr(begin, first - begin), "x1=\"" + left + "\""));
  CHECK(contains(drawing.substr(first), "x2=\"426\""));
}

TEST_CASE("plots: a score over images per device has a line per mode, seeds and intervals") {
  Plot plot{"mIoU, in %"};
  plot.x_label = "images per device";
  plot.positions = factor_axis({1, 2, 4, 8});
  for (const char* mode : {"local", "sync", "group"}) {
    const Series series = mode_series(mode);
    Line means{series, {}, mode};
    for (const double images : plot.positions->ticks) {
      means.points.push_back({images, 40 + images});
      plot.marks.push_back(Mean{series, images, 40 + images, Interval{38 + images, 42 + images}});
      for (const double seed : {-1, 0, 1}) {
        plot.marks.push_back(Dot{series, {images, 40 + images + seed}});
      }
    }
    plot.marks.push_back(std::move(means));
  }
  const std::string drawing = draw(plot).in_page().text;
  CHECK(count(drawing, "<path d=\"M") >= 3);
  CHECK(count(drawing, "class=\"curve m0\"") == 1);
  CHECK(count(drawing, "class=\"whisker\"") == 3 * 4 * 3);
  CHECK(count(drawing, "class=\"mark m0\"") == 3 * 4 + 1);  // the legend has one, too
  for (const char* tick : {">1<", ">2<", ">4<", ">8<", ">images per device<", ">group<"})
    CHECK(contains(drawing, tick));
  CHECK(factor_axis({1, 2, 4, 8}).at(2) - factor_axis({1, 2, 4, 8}).at(1) ==
        doctest::Approx(factor_axis({1, 2, 4, 8}).at(8) - factor_axis({1, 2, 4, 8}).at(4)));
}

TEST_CASE("images per device: the curve's section, for those who read and for those who look") {
  std::vector<TrainSummary> runs;
  const auto add = [&](const char* mode, std::int64_t images, double m_iou) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      TrainSummary& run = runs.emplace_back();
      run.bn_mode = mode;
      run.cell.images_per_device = images;
      run.seed = seed;
      run.device_count = 1;
      run.global_batch = 8;
      run.evaluation.metrics.m_iou = m_iou + 0.7 * static_cast<double>(seed * seed % 5);
      run.evaluation.loss = 1;
    }
  };
  add("ghost", 1, 21), add("ghost", 2, 29), add("ghost", 4, 31);
  add("renorm", 1, 25), add("renorm", 2, 30), add("renorm", 4, 30.5), add("renorm", 8, 29.5);
  add("group", 0, 27);
  add("sync", 0, 30);
  ReportData data{.title = "curve", .runs = {}, .comparison = compare_runs(runs)};
  Page page(data.title);
  add_answer(data, page);
  add_images_curve(data, page);
  const std::string html = page.html();
  CHECK(contains(html, "<h1>Highest: local(4), mIoU 32.17; "));
  CHECK(contains(html,
                 "<p>With 1 and 2 images per device sync is better than local; with 4 images per "
                 "device local is better than sync.</p>"));
  CHECK(contains(html, "local(2) is better than local(1) by 8.00 points of mIoU (95 % interval"));
  CHECK(contains(html, "<th scope=\"row\">group</th><td>any</td>"));
  REQUIRE(page.all_figures().size() == 1);
  const Figure& figure = page.all_figures().front();
  CHECK(figure.name == "score_over_images");
  const std::string drawing = figure.svg.file();
  CHECK(count(drawing, "class=\"curve m0\"") == 2);      // and one in the legend
  CHECK(count(drawing, "class=\"mark full m0\"") == 4);  // the last is sync's
  CHECK(count(drawing, "class=\"mark m0\"") == 6 * 4 + 1);
  CHECK(count(drawing, "class=\"whisker own m7\"") == 4);
  for (const char* text : {">8<", ">any<", ">images per device, of 8 per step<", ">renorm<",
                           "local(2), seed 0: 29</title>"})
    CHECK(contains(drawing, text));

  // Without a curve there is no section.
  std::erase_if(runs, [](const TrainSummary& run) { return run.cell.images_per_device > 0; });
  data.comparison = compare_runs(runs);
  Page plain("plain");
  add_images_curve(data, plain);
  CHECK(plain.all_figures().empty());
}

TEST_CASE("the answer: the best evaluation, what it costs, and no interval of few seeds") {
  std::vector<TrainSummary> runs;
  const auto add = [&](const char* mode, std::uint64_t seed, double running, double own) {
    TrainSummary& run = runs.emplace_back();
    run.bn_mode = mode;
    run.seed = seed;
    run.evaluation.metrics.m_iou = running;
    run.evaluation.loss = 1;
    run.other_stats = {run.evaluation};
    run.other_stats.front().eval_stats = EvalStats::kOwn;
    run.other_stats.front().metrics.m_iou = own;
  };
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const double level = 30 + 2 * static_cast<double>(seed), by_chance = seed % 2 == 0 ? 0.1 : 0;
    add("local", seed, level - 9 + by_chance, level - 2 - by_chance);
    add("sync", seed, level, level - 5 + 2 * by_chance);
  }
  const auto page_of = [](std::vector<TrainSummary> of) {
    ReportData data{.title = "answer", .runs = {}, .comparison = compare_runs(of)};
    for (const TrainSummary& run : of) data.runs.emplace_back().mode = run.bn_mode;
    Page page(data.title);
    add_answer(data, page);
    add_scores(data, page);
    return page.html();
  };
  const std::string settled = page_of(runs);
  CHECK(contains(settled,
                 "<h1>Highest: sync, mIoU 35.00; better than local, local by own and sync by own "
                 "(6 seeds, 6 differences tested together)</h1>"));
  CHECK(contains(settled, "What sync costs: an exchange at every synchronized BatchNorm call; "));
  CHECK(contains(settled, "local by own is better than local by 6.90 points of mIoU (95 % "));
  CHECK(contains(settled, ">p (all)</th>"));
  CHECK(contains(settled, "class=\"whisker"));
  CHECK(contains(settled, "<th scope=\"row\">local</th><td>own</td>"));
  std::erase_if(runs, [](const TrainSummary& run) { return run.seed > 1; });
  const std::string few = page_of(runs);
  CHECK(contains(few,
                 "<h1>Highest: sync, mIoU 31.00; 2 seeds are too few to settle what is best, 6 "
                 "can</h1>"));
  CHECK_FALSE(contains(few, "are too few to settle which"));
  CHECK(contains(few, "A mark is a seed; so few of them have no interval."));
  CHECK_FALSE(contains(few, "class=\"whisker"));
  CHECK_FALSE(contains(few, ", p = "));
  // Of the table's figures only the mean, its deviation and the smallest p are numbers.
  const std::size_t row = few.find("<th scope=\"row\">sync − local</th>");
  REQUIRE(row != std::string::npos);
  CHECK(count(few.substr(row, few.find("</tr>", row) - row), "<td>–</td>") == 4);
}

TEST_CASE("modes: another evaluation of a mode has its colour and a line of its own") {
  const Series series = mode_series("local(2) by own");
  CHECK(series.name == "local by own");
  CHECK(series.style == mode_series("local").style + " by");
  CHECK(mode_series("local(2)").name == "local");
  CHECK(mode_series("sync by running").name == "sync by running");
  CHECK(mode_color("local by own") == mode_color("local"));
}

TEST_CASE("modes: each has a style of its own in the light and in the dark, unknown ones too") {
  const std::string sheet = chart_style();
  std::set<std::string> styles;
  for (const char* mode :
       {"local", "sync", "ghost", "group", "instance", "layer", "frozen", "renorm"})
    styles.insert(mode_series(mode).style);
  CHECK(styles.size() == 8);
  CHECK(mode_series("virtual").style == mode_series("ghost").style);
  CHECK(styles.count(mode_series("sync:top:3").style) == 0);
  styles.insert(mode_series("sync:top:3").style);
  for (const std::string& style : styles) {
    CHECK(count(sheet, "--" + style + ": #") == 2);
    CHECK(contains(sheet, "." + style + " { --series: var(--" + style + "); }"));
  }
  CHECK(mode_color("local") == Color{0xC9, 0x7B, 0x48});
}

TEST_CASE("legends: as many lines as the names take, and none for one series") {
  Plot plot{"", {"a"}};
  for (int mode = 0; mode < 12; ++mode) {
    plot.marks.push_back(Bar{mode_series("a mode with a name " + std::to_string(mode)), 0, 0, 1});
    if (mode == 0) CHECK(top_of(plot) == 28);
    if (mode == 1) CHECK(top_of(plot) == 46);
  }
  CHECK(top_of(plot) > 100);
  CHECK(count(draw(plot).in_page().text, ">a mode with a name ") == 12);
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
  CHECK(run.train_loss[0].value == 2.5);
  CHECK(std::isnan(run.gradient_norm[0].value));
  CHECK(run.task == Task::kClassification);
  CHECK(run.val_score[0].value == 50);
  CHECK_FALSE(run.config_error.empty());
  CHECK_THROWS_AS(run_folders(folder.path() / "none"), DataError);
}

}  // namespace lockstep
