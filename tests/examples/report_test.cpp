// report.html: that the page holds what the run has done, is complete in itself and takes any name
// for a text, and that Chromium draws it. Where no Chromium is installed, its tests are skipped.
#include "report/run_report.h"

#include "data/fixture.h"
#include "examples/small_run.h"
#include "temporary_folder.h"
#include "train/evaluation.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/random.h>
#include <tutti/data/decode/decode_image.h>
#include <tutti/data/loader.h>
#include <tutti/data/transforms/normalize.h>
#include <tutti/distributed/launch/launch.h>
#include <tutti/nn/module.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>

namespace tutti::examples {
namespace {

using test::fresh_seed;
using test::report_json;

// Returns the table of a test in which every class has 100 samples, of which 60 and more are
// recognised. Its first column counts what was taken for no class.
Tensor random_confusion(std::int64_t classes, std::mt19937_64& random) {
  const Tensor table = zeros({classes, classes + 1}, {.dtype = int64});
  for (std::int64_t r = 0; r < classes; ++r) {
    std::int64_t* const row = table.data<std::int64_t>() + r * (classes + 1) + 1;
    for (int i = 0; i < 100; ++i)
      ++row[i < 60 ? r : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(classes))];
  }
  return table;
}

std::vector<Metrics> random_rows(std::int64_t steps, std::mt19937_64& random) {
  std::vector<Metrics> rows;
  std::uniform_real_distribution<double> draw(0, 1);
  for (std::int64_t step = 1; step <= steps; ++step) {
    rows.push_back({.epoch = 1 + (step - 1) / 100,
                    .step = step,
                    .train_loss = 2 * draw(random),
                    .train_accuracy = draw(random),
                    .images_per_second = 1e4 * draw(random),
                    .learning_rate = 0.1 * draw(random)});
    if (step % 100 != 0) continue;
    rows.back().test_loss = draw(random);
    rows.back().test_accuracy = draw(random);
  }
  return rows;
}

const std::vector<std::string> hostile_names{"</script><script>alert(1)</script>",
                                             "a & b",
                                             "\"double\" and 'single'",
                                             "\x01\x1b[31mred",
                                             "\xff\xfe bytes",
                                             "\xEF\xBF\xBF",
                                             "]]> --> <!--",
                                             "Schl\xC3\xBCssel",
                                             std::string(400, 'x'),
                                             ""};

// The parts of a run that a report refers to, with random figures.
struct RandomRun {
  explicit RandomRun(std::int64_t classes = 10, std::int64_t steps = 300) {
    std::mt19937_64 random(fresh_seed());
    options.model = "resnet & co";
    options.dataset = "<b>co</b>";
    options.out = "runs/<&>";
    rows = random_rows(steps, random);
    confusion = random_confusion(classes, random);
    for (std::size_t c = 0; c < static_cast<std::size_t>(classes); ++c)
      data.class_names.push_back(hostile_names[c % hostile_names.size()]);
  }
  std::string page() const {
    return to_html({.options = options,
                    .data = data,
                    .group = ProcessGroup(),
                    .device = Device::cpu(),
                    .length = {.epochs = 3, .steps_per_epoch = 100, .steps = 300},
                    .rows = rows,
                    .headline = "a sentence with < and &",
                    .confusion = confusion,
                    .batch_norm = batch_norm,
                    .resumed = resumed});
  }

  TrainOptions options;
  TrainingData data;
  std::vector<Metrics> rows;
  Tensor confusion;
  std::optional<BatchNormCheck> batch_norm;
  std::vector<std::int64_t> resumed;
};

// Returns a run whose layers have something to complain about.
RandomRun run_with_batch_norm() {
  RandomRun run;
  run.batch_norm = {.batches = 17, .running = {.accuracy = 0.25}, .recomputed = {.accuracy = 0.75}};
  run.batch_norm->report.layers = {{.path = "layer1.<0>.bn1", .channels = 64, .constant = {3, 5}},
                                   {.path = "bn2", .channels = 8, .rank_distance = {0.5, 1.375}}};
  run.batch_norm->report.warnings = {"channels & ranks < others"};
  return run;
}

// ---- what the page holds

TEST(ReportPage, HoldsTheFiguresOfTheRun) {
  const RandomRun run;
  const auto json = report_json(run.page());
  EXPECT_EQ(json.at("title"), "resnet & co on <b>co</b>");
  EXPECT_EQ(json.at("headline"), "a sentence with < and &");
  EXPECT_EQ(json.at("configuration").at("out"), "runs/<&>");
  EXPECT_EQ(json.at("machine").at("Ranks"), "1");
  EXPECT_TRUE(json.at("machine").contains("Processor"));
  EXPECT_EQ(json.at("epochs"), 3);
  EXPECT_EQ(json.at("steps"), 300);
  for (std::size_t i = 0; i < run.rows.size(); ++i) {
    EXPECT_EQ(json.at("rows").at("step").at(i), run.rows[i].step);
    EXPECT_EQ(json.at("rows").at("train_loss").at(i), run.rows[i].train_loss);
    EXPECT_EQ(json.at("rows").at("train_accuracy").at(i), run.rows[i].train_accuracy);
    EXPECT_EQ(json.at("rows").at("learning_rate").at(i), run.rows[i].learning_rate);
    EXPECT_EQ(json.at("rows").at("images_per_second").at(i), run.rows[i].images_per_second);
  }
  double mean = 0;
  for (std::size_t i = 200; i < 300; ++i) mean += run.rows[i].train_loss / 100;
  EXPECT_NEAR(json.at("last").at("train_loss").get<double>(), mean, 1e-12) << "of the last epoch";
  ASSERT_EQ(json.at("tests").size(), 3u);
  EXPECT_EQ(json.at("tests").at(1).at("epoch"), 2);
  EXPECT_EQ(json.at("tests").at(1).at("loss"), *run.rows[199].test_loss);
  EXPECT_EQ(json.at("tests").at(1).at("accuracy"), *run.rows[199].test_accuracy);
  std::int64_t counted = 0;
  for (const auto& cell : json.at("test").at("confused")) {
    const auto r = cell.at(0).get<std::int64_t>(), c = cell.at(1).get<std::int64_t>();
    EXPECT_EQ(cell.at(2), run.confusion.data<std::int64_t>()[r * 11 + c + 1]);
    counted += cell.at(2).get<std::int64_t>();
  }
  for (const auto& correct : json.at("test").at("correct")) counted += correct.get<std::int64_t>();
  EXPECT_EQ(counted, 1000);
}

TEST(ReportPage, NoNameEndsTheElementThatHoldsIt) {
  RandomRun run;
  const std::string page = run.page();
  const auto names = report_json(page).at("class_names");
  EXPECT_EQ(names.at(0), hostile_names[0]);
  EXPECT_EQ(names.at(3), hostile_names[3]);
  EXPECT_EQ(names.at(4), "\xEF\xBF\xBD\xEF\xBF\xBD bytes");
  EXPECT_EQ(names.at(6), hostile_names[6]);
  run.data.class_names = {};
  run.options = {};
  EXPECT_EQ(std::ranges::count(page, '<'), std::ranges::count(run.page(), '<'));
}

TEST(ReportPage, LoadsNothing) {
  std::string page = RandomRun().page();
  EXPECT_NE(page.find("content=\"default-src 'none'; style-src 'unsafe-inline'; "
                      "script-src 'unsafe-inline'\""),
            std::string::npos);
  const std::string svg = "http://www.w3.org/2000/svg";  // a name, which nobody loads
  page.erase(page.find(svg), svg.size());
  for (const char* word : {"url(", "@import", "http:", "https:", "src=", "href", "<link", "<base"})
    EXPECT_EQ(page.find(word), std::string::npos) << word;
}

TEST(ReportPage, StaysSmallForLongRunsAndManyClasses) {
  const RandomRun run(10, 20'000);
  const std::string page = run.page();
  EXPECT_LT(page.size(), 1'000'000u);
  const auto rows = report_json(page).at("rows");
  ASSERT_EQ(rows.at("step").size(), 400u);
  EXPECT_EQ(rows.at("step").at(1), 100);
  double sum = 0;
  for (std::size_t i = 50; i < 100; ++i) sum += run.rows[i].train_loss;
  EXPECT_EQ(rows.at("train_loss").at(1), sum / 50);
  EXPECT_LT(RandomRun(1000).page().size(), 3'000'000u);
}

TEST(ReportPage, HoldsWhatAilsBatchNorm) {
  EXPECT_TRUE(report_json(RandomRun().page()).at("batch_norm").is_null());
  const auto check = report_json(run_with_batch_norm().page()).at("batch_norm");
  EXPECT_EQ(check.at("warnings").at(0), "channels & ranks < others");
  EXPECT_EQ(check.at("batches"), 17);
  EXPECT_EQ(check.at("recomputed_accuracy"), 0.75);
  EXPECT_EQ(check.at("layers").at(0).at("path"), "layer1.<0>.bn1");
  EXPECT_EQ(check.at("layers").at(0).at("constant"), 2);
  EXPECT_EQ(check.at("layers").at(1).at("farthest_rank"), 1.375);
}

// ---- what a test counts for it

// A network whose answer to the image of an index is that row of its logits.
struct Answers final : nn::Layer {
  explicit Answers(Tensor rows) : logits(std::move(rows)) {}
  Tensor forward(const Tensor& indices) override {
    std::vector<Tensor> rows;
    for (const double index : to_vector(indices)) {
      const auto i = static_cast<std::int64_t>(std::lround(index));
      rows.push_back(logits.slice(0, i, i + 1));
    }
    return cat(rows, 0);
  }
  Tensor logits;
};

// Images of one pixel, which is their index.
class Indices final : public data::Dataset {
 public:
  explicit Indices(std::vector<std::int64_t> labels) : labels_(std::move(labels)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  data::Sample get(std::int64_t index) const override {
    return {.image = full({1, 1, 1}, static_cast<double>(index), {.dtype = uint8}),
            .label = labels_[static_cast<std::size_t>(index)]};
  }

 private:
  std::vector<std::int64_t> labels_;
};

TestResult evaluate_logits(const Tensor& logits, const std::vector<std::int64_t>& labels,
                           std::int64_t classes, const ProcessGroup& group) {
  data::DataLoader loader(
      std::make_shared<Indices>(labels),
      {.sampler = {.batch_size = 7, .shuffle = false, .rank = group.rank(), .ranks = group.size()},
       .transforms = {data::Normalize({.mean = {0}, .deviation = {1.0f / 255}})}});
  Answers net(logits);
  return evaluate(net, loader, classes, group, Device::cpu(), Task::classification);
}

TEST(Evaluate, CountsWhatIsTakenForWhatOnAnyNumberOfRanks) {
  constexpr std::int64_t n = 200, classes = 5;
  Generator random(fresh_seed());
  const Tensor logits = randn({n, classes}, {}, random);
  std::vector<std::int64_t> labels, expected(classes * (classes + 1));
  const auto values = to_vector(logits);
  for (std::int64_t i = 0; i < n; ++i) {
    labels.push_back(static_cast<std::int64_t>(random.below(classes)));
    const auto row = values.begin() + i * classes;
    const auto predicted = std::max_element(row, row + classes) - row;
    ++expected[static_cast<std::size_t>(labels.back() * (classes + 1) + predicted + 1)];
  }
  for (const int ranks : {1, 2, 3})
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      const TestResult result = evaluate_logits(logits, labels, classes, group);
      EXPECT_EQ(to_vector<std::int64_t>(result.confusion), expected);
    });
}

TEST(Evaluate, LogitsThatAreNotFiniteCountAsNoClass) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Tensor logits = tensor({1, nan, 0, nan, nan, nan, 3, infinity, 1, -infinity, 2, 1}, {4, 3});
  EXPECT_EQ(to_vector(predicted_classes(logits)), (std::vector<double>{-1, -1, -1, 1}));
  for (const int ranks : {1, 2})
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      const TestResult result = evaluate_logits(logits, {0, 0, 1, 1}, 3, group);
      EXPECT_EQ(result.means.accuracy, 0.25);
      EXPECT_EQ(to_vector(result.confusion),
                (std::vector<double>{2, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}));
    });
}

TEST(Evaluate, HasNoMatrixForThousandsOfClasses) {
  constexpr std::int64_t classes = most_confusion_classes + 1;
  const TestResult result =
      evaluate_logits(zeros({2, classes}), {0, classes - 1}, classes, ProcessGroup());
  EXPECT_FALSE(result.confusion.defined());
  EXPECT_EQ(result.means.accuracy, 0.5);
}

// ---- in a browser

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Returns what stands between two texts, from the first occurrence of the first one on.
std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const std::size_t at = text.find(before), begin = at + before.size();
  EXPECT_NE(at, std::string::npos) << before;
  return at == std::string::npos ? "" : text.substr(begin, text.find(after, begin) - begin);
}

class ReportInChromium : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"chromium-headless-shell", "chromium"})
      if (std::system(fmt::format("command -v {} >/dev/null", name).c_str()) == 0) browser_ = name;
    if (browser_.empty())
      GTEST_SKIP() << "Chromium is not installed: .ci/setup.sh chromium-headless-shell";
  }

  // Opens a page. Returns what Chromium writes to its standard output; messages_ are those of the
  // page's script, and of the policy that lets it load nothing.
  std::string open(const std::string& page, const std::string& flags) {
    std::ofstream(folder_ / "report.html") << page;
    const std::string command = fmt::format(
        "cd {} && timeout 100 {} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
        "--user-data-dir=profile --enable-logging=stderr {} file://{} >out 2>err",
        folder_.path(), browser_, flags, folder_ / "report.html");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    messages_.clear();
    std::ifstream log(folder_ / "err");
    for (std::string line; std::getline(log, line);)
      if (line.find("CONSOLE") != std::string::npos) messages_ += line + "\n";
    return test::content(folder_ / "out");
  }

  // Returns the elements that the script of a page has made.
  std::string draw(const std::string& page) { return elements_of(open(page, "--dump-dom")); }
  // Does so for several pages at a time, in frames of another page, since Chromium starts slowly.
  std::vector<std::string> draw(const std::vector<std::string>& pages) {
    std::string outer = "<!DOCTYPE html><body>";
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::ofstream(folder_ / fmt::format("{}.html", i)) << pages[i];
      outer += fmt::format("<iframe src=\"{}.html\"></iframe>", i);
    }
    outer +=
        "<script>onload = () => document.body.append(...[...document.querySelectorAll('iframe')]"
        ".map(frame => frame.contentDocument.getElementById('page')));</script>";
    std::string dom = open(outer, "--dump-dom --allow-file-access-from-files");
    std::vector<std::string> drawn;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      drawn.push_back(elements_of(dom));
      dom.erase(0, dom.find("</main>") + 1);
    }
    return drawn;
  }
  std::string elements_of(const std::string& dom) {
    EXPECT_EQ(messages_, "");
    const std::string main = between(dom, "<main id=\"page\">", "</main>");
    EXPECT_EQ(main.find("class=\"error\""), std::string::npos);
    EXPECT_NE(main.find("it loads nothing"), std::string::npos);  // the footer comes last
    return main;
  }

  // Returns the pixels of the page.
  Tensor screenshot(const std::string& page, const std::string& flags = "") {
    open(page, "--hide-scrollbars --window-size=1200,1900 --screenshot=page.png " + flags);
    return data::read_image(folder_ / "page.png");
  }
  static std::int64_t pixels(const Tensor& image, std::array<std::uint8_t, 3> color) {
    std::int64_t n = 0;
    const auto* pixel = image.data<std::uint8_t>();
    for (std::int64_t i = 0; i < image.size(0) * image.size(1); ++i, pixel += 3)
      n += std::equal(color.begin(), color.end(), pixel);
    return n;
  }

  std::string browser_, messages_;
  test::TemporaryFolder folder_{"report"};
};

TEST_F(ReportInChromium, HasAllPartsAndNamesAreTexts) {
  const RandomRun run;
  const std::string main = draw(run.page());
  for (const char* id :
       {"figures", "curves", "confusion", "worst-pairs", "facts", "configuration", "machine"})
    EXPECT_EQ(count(main, "id=\"" + std::string(id) + "\""), 1u) << id;
  EXPECT_EQ(count(main, "<svg"), 5u);  // four charts and the matrix
  EXPECT_EQ(count(main, "<script"), 0u);
  EXPECT_EQ(count(main, "id=\"batch-norm\""), 0u);
  for (const char* text :
       {"<h1>resnet &amp; co on &lt;b&gt;co&lt;/b&gt;</h1>", "<dd>runs/&lt;&amp;&gt;</dd>",
        "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;", "]]&gt; --&gt; &lt;!--",
        "a sentence with &lt; and &amp;", "\xEF\xBF\xBD\xEF\xBF\xBD[31mred", "Schl\xC3\xBCssel"})
    EXPECT_NE(main.find(text), std::string::npos) << text;
}

TEST_F(ReportInChromium, ShowsTheNumbersOfTheRun) {
  RandomRun run;
  run.data.class_names = {};
  run.rows[99].test_accuracy = 0.91234;
  run.rows[199].test_accuracy = run.rows[299].test_accuracy = 0.87654;
  run.confusion.data<std::int64_t>()[3 * 11 + 6] = 4321;
  const std::string main = draw(run.page());
  for (const char* part : {"test 0.8765<", "best&nbsp;0.9123 in&nbsp;epoch&nbsp;1", ">4321<",
                           ">finished<", "step 300 of 300", "3: 4321 of "})
    EXPECT_NE(main.find(part), std::string::npos) << part;
  run.rows.back().step = 299;
  EXPECT_NE(draw(run.page()).find(">not finished<"), std::string::npos);
}

// Returns the numbers that a text holds.
std::vector<double> numbers_in(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return !std::isdigit(c) && c != '.' && c != '-'; }, ' ');
  std::istringstream stream(text);
  return {std::istream_iterator<double>(stream), std::istream_iterator<double>()};
}

TEST_F(ReportInChromium, TheCurvesGoThroughTheirPoints) {
  const RandomRun run;
  const std::string main = draw(run.page());
  const auto expect_points = [&](const std::string& picture, double Metrics::*figure, double high) {
    const std::vector<double> points = numbers_in(picture);
    ASSERT_EQ(points.size(), 2 * run.rows.size());
    for (std::size_t i = 0; i < run.rows.size(); ++i) {
      EXPECT_NEAR(points[2 * i], 46 + 382.0 * static_cast<double>(run.rows[i].step) / 300, 0.051);
      EXPECT_NEAR(points[2 * i + 1], 10 + 192 * (1 - run.rows[i].*figure / high), 0.051);
    }
  };
  const auto figure = [&](const std::string& id) {
    return between(main, "<figure id=\"" + id + "\">", "</figure>");
  };
  const auto path = [&](const std::string& id, const std::string& line) {
    return between(figure(id), "<path class=\"" + line + "\" d=\"", "\"");
  };
  const auto largest = [&](auto value) { return std::ranges::max(run.rows, {}, value).*value; };
  expect_points(path("learning_rate", "train"), &Metrics::learning_rate,
                1.05 * largest(&Metrics::learning_rate));
  expect_points(path("train_accuracy", "faint"), &Metrics::train_accuracy, 1);
  expect_points(path("images_per_second", "faint"), &Metrics::images_per_second,
                1.05 * largest(&Metrics::images_per_second));
  EXPECT_EQ(numbers_in(path("train_accuracy", "train")).size(), 600u);
  std::vector<double> dots;
  for (const std::size_t row : {99, 199, 299}) {
    dots.push_back(46 + 382.0 * static_cast<double>(row + 1) / 300);
    dots.push_back(10 + 192 * (1 - *run.rows[row].test_accuracy));
  }
  const std::vector<double> line = numbers_in(path("train_accuracy", "test-line"));
  ASSERT_EQ(line.size(), dots.size());
  for (std::size_t i = 0; i < dots.size(); ++i) EXPECT_NEAR(line[i], dots[i], 0.051);
  EXPECT_EQ(count(figure("train_accuracy"), "<circle class=\"test\""), 3u);
  EXPECT_EQ(count(figure("learning_rate"), "<circle"), 0u);
}

TEST_F(ReportInChromium, MarksWhereTheRunWasResumedAndItsRateFalls) {
  RandomRun run;
  EXPECT_EQ(draw(run.page()).find("class=\"mark\""), std::string::npos);
  run.resumed = {100};
  run.options.schedule.name = "steps";
  for (Metrics& row : run.rows) row.learning_rate = row.step > 150 ? 0.01 : 0.1;
  const std::string main = draw(run.page());
  EXPECT_EQ(count(main, "class=\"mark\""), 2u * 4) << "in each of four charts";
  for (const char* part : {">resumed<", ">rate falls<", "<title>resumed, step 100</title>",
                           "<title>rate falls, step 150</title>", "Dashed ones stand where"})
    EXPECT_NE(main.find(part), std::string::npos) << part;
}

TEST_F(ReportInChromium, TheConfusionMatrixFitsOnANarrowScreen) {
  for (const std::int64_t classes : {3, 10, 13, 60}) {
    std::string page = RandomRun(classes).page();
    const std::string drawn = "\ndrawPage();\n";
    ASSERT_NE(page.find(drawn), std::string::npos);
    page.insert(page.find(drawn) + drawn.size(),
                "document.body.dataset.right = Math.max(...[...document.querySelectorAll('.matrix, "
                ".matrix *')].map(e => e.getBoundingClientRect().right)) - innerWidth;\n");
    for (const char* size : {"400,900", "1280,900"}) {
      const std::string dom = open(page, "--dump-dom --window-size=" + std::string(size));
      const std::string right = between(dom, "data-right=\"", "\"");
      ASSERT_FALSE(right.empty());
      EXPECT_LE(std::stod(right), 0) << classes << " classes at " << size;
    }
  }
}

TEST_F(ReportInChromium, ManyClassesAreTables) {
  const std::vector<std::int64_t> numbers{1, 2, 13, 61, 1000, 1500};
  std::vector<std::string> pages;
  for (const std::int64_t classes : numbers) {
    RandomRun run(classes);
    if (classes == 1500) run.confusion = {};
    pages.push_back(run.page());
  }
  pages = draw(pages);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::int64_t classes = numbers[i];
    EXPECT_EQ(count(pages[i], "<svg"), classes <= 60 ? 5u : 4u) << classes;
    EXPECT_EQ(count(pages[i], "id=\"worst-classes\""), classes > 12 && classes < 1500 ? 1u : 0u);
    EXPECT_EQ(count(pages[i], "id=\"worst-pairs\""), classes > 1 && classes < 1500 ? 1u : 0u);
  }
}

TEST_F(ReportInChromium, DrawsStrangeNumbers) {
  RandomRun run;
  const double most = std::numeric_limits<double>::max();
  const std::vector<double> values{most, NAN, INFINITY, 5e-324, 0.0, -most, 1.0, -0.0};
  std::vector<std::string> pages;
  for (const double value : values) {
    for (Metrics& row : run.rows) {
      row.train_loss = row.learning_rate = row.images_per_second = row.train_accuracy = value;
      if (row.test_loss) row.test_loss = value;
    }
    pages.push_back(run.page());
  }
  pages = draw(pages);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    EXPECT_EQ(count(pages[i], "<svg"), 5u) << values[i];
    for (const char* word : {"NaN", "Infinity", "undefined", "null"})
      EXPECT_EQ(pages[i].find(word), std::string::npos) << values[i] << ": " << word;
    EXPECT_EQ(pages[i].find("not finite") != std::string::npos, !std::isfinite(values[i]));
  }
  run.rows = {};  // nothing is known of a run
  run.confusion = {};
  EXPECT_EQ(count(draw(run.page()), "<section"), 1u);
}

TEST_F(ReportInChromium, ShowsWhatAilsBatchNorm) {
  const std::string main = draw(run_with_batch_norm().page());
  for (const char* part : {"id=\"batch-norm\"", "layer1.&lt;0&gt;.bn1", "(each rank alone)",
                           "channels &amp; ranks &lt; others", "--recompute-statistics 17",
                           "is 0.2500", "0.7500 if", ">1.375<"})
    EXPECT_NE(main.find(part), std::string::npos) << part;
}

TEST_F(ReportInChromium, ErrorsAreFoundAndLeaveTheOtherParts) {
  std::string page = RandomRun().page();
  page.replace(page.find("function curves() {"), 19, "function curves() { throw Error('x');");
  const std::string dom = open(page, "--dump-dom");
  EXPECT_NE(messages_.find("Error: x"), std::string::npos) << messages_;
  EXPECT_NE(dom.find("The part 'curves' cannot be drawn: Error: x"), std::string::npos);
  EXPECT_NE(dom.find("<section id=\"confusion\">"), std::string::npos);
  page.replace(page.find("'use strict';"), 13, "fetch('https://localhost/');");
  open(page, "--dump-dom");
  EXPECT_NE(messages_.find("Content Security Policy"), std::string::npos) << messages_;
}

TEST_F(ReportInChromium, DrawsCurvesInLightAndInDark) {
#ifndef TUTTI_HAS_IMAGES
  GTEST_SKIP() << "built without libpng, so nothing here reads the picture";
#endif
  const std::string page = RandomRun().page();
  const Tensor light = screenshot(page),
               dark = screenshot(page, "--blink-settings=preferredColorScheme=0");
  ASSERT_EQ(light.shape(), Shape({1900, 1200, 3}));
  EXPECT_GT(pixels(light, {0xF4, 0xF6, 0xF8}), 100'000);  // the page
  EXPECT_GT(pixels(dark, {0x10, 0x15, 0x1B}), 100'000);
  EXPECT_GT(pixels(light, {0x00, 0x72, 0xB2}), 500);  // training
  EXPECT_GT(pixels(dark, {0x56, 0xB4, 0xE9}), 500);
  EXPECT_GT(pixels(light, {0xD5, 0x5E, 0x00}), 50);  // test
}

}  // namespace
}  // namespace tutti::examples
