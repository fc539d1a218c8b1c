// report.html: that the page is well-formed, complete in itself and escapes what it shows, and that
// Chromium draws it. Where no Chromium is installed, its tests are skipped.
#include "report/run_report.h"

#include "examples/markup.h"
#include "report/html.h"
#include "train/evaluation.h"
#include "train/training_step.h"

#include <tutti/autograd/functions.h>
#include <tutti/core/create.h>
#include <tutti/core/random.h>
#include <tutti/data/decode/decode_image.h>
#include <tutti/distributed/launch/launch.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace tutti::examples {
namespace {

namespace fs = std::filesystem;
using test::parse_strictly;

std::uint64_t fresh_seed() {
  const std::uint64_t seed = std::random_device{}();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

Tensor random_image(std::int64_t height, std::int64_t width, std::int64_t channels,
                    Generator& random) {
  return (rand({height, width, channels}, {}, random) * 255).to(uint8);
}

// Returns a matrix in which every class has 100 samples, of which 60 and more are recognised.
TestDetails random_details(std::int64_t classes, std::mt19937_64& random) {
  TestDetails test{.classes = classes};
  for (std::int64_t r = 0; r < classes; ++r) {
    std::vector<std::int64_t> row(static_cast<std::size_t>(classes));
    for (int i = 0; i < 100; ++i)
      ++row[i < 60 ? static_cast<std::size_t>(r) : random() % static_cast<std::uint64_t>(classes)];
    test.confusion.insert(test.confusion.end(), row.begin(), row.end());
    test.samples.push_back(100);
    test.correct.push_back(row[static_cast<std::size_t>(r)]);
  }
  return test;
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
    rows.back().stragglers = {.collectives = 7,
                              .waited_seconds = {1.25, 0.5},
                              .held_up_seconds = {0.25, 1.5},
                              .came_last = {2, 5},
                              .skews = {}};
  }
  return rows;
}

const std::vector<std::string> hostile_names{"<script>alert(1)</script>",
                                             "a & b",
                                             "\"double\" and 'single'",
                                             "\x01\x1b[31mred",
                                             "\xff\xfe bytes",
                                             "\xEF\xBF\xBF",
                                             "]]> --> <!--",
                                             "Schl\xC3\xBCssel",
                                             std::string(400, 'x'),
                                             ""};

RunReport random_report(std::int64_t classes = 10, std::int64_t steps = 300) {
  std::mt19937_64 random(fresh_seed());
  Generator generator(random());
  RunReport report{.title = "<b>resnet & co</b>",
                   .headline = "a sentence with < and &",
                   .length = {.epochs = 3, .steps_per_epoch = 100, .steps = 300},
                   .rows = random_rows(steps, random),
                   .test = random_details(classes, random),
                   .configuration = {{"out", "runs/<&>"}, {"lr", "0.1"}},
                   .machine = machine_facts()};
  for (std::int64_t c = 0; c < classes; ++c)
    report.class_names.push_back(hostile_names[static_cast<std::size_t>(c) % hostile_names.size()]);
  for (std::int64_t i = 0; i < 5; ++i) {
    report.test.wrong.push_back({.index = i, .label = i, .predicted = i + 1, .probability = 0.9});
    report.test.right.push_back({.index = i, .label = i, .predicted = i, .probability = 0.8});
    report.wrong_images.push_back(random_image(28, 28, 1, generator));
    report.right_images.push_back(random_image(200, 300, 3, generator));
  }
  report.step_times = {{.steps = 100, .seconds = {1, 2, 3, 0.5, 0.25, 0.25}},
                       {.steps = 100, .seconds = {1, 2, 3, 0.5, 0, 0.5}}};
  return report;
}

// ---- text and pictures

TEST(ReportText, EscapesWhatIsMarkup) {
  EXPECT_EQ(escape("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape("two\nlines\tand \xC3\xBC"), "two\nlines\tand \xC3\xBC");
  EXPECT_EQ(escape(std::string("\0\x1f", 2)), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escape("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(escape("\xEF\xBF\xBE\xEF\xBF\xBF"), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(ReportText, ShortensByCharacters) {
  EXPECT_EQ(shorten("four", 4), "four");
  EXPECT_EQ(shorten("fives", 4), "fiv\xE2\x80\xA6");
  EXPECT_EQ(shorten("\xC3\xBC\xC3\xBC\xC3\xBC", 2), "\xC3\xBC\xE2\x80\xA6");
  EXPECT_EQ(shorten("", 3), "");
}

std::vector<std::uint8_t> from_base64(const std::string& text) {
  std::vector<std::uint8_t> bytes;
  std::uint32_t group = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    const auto digit =
        std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
            .find(c);
    EXPECT_NE(digit, std::string_view::npos) << c;
    group = group << 6 | static_cast<std::uint32_t>(digit);
    if ((bits += 6) >= 8) bytes.push_back(static_cast<std::uint8_t>(group >> (bits -= 8) & 0xFF));
  }
  return bytes;
}

TEST(ReportPicture, IsAPngOfTheSamePixels) {
#ifndef TUTTI_HAS_IMAGES
  GTEST_SKIP() << "built without libpng, so nothing here decodes it";
#endif
  Generator random(fresh_seed());
  const std::string prefix = "data:image/png;base64,";
  for (const std::int64_t channels : {1, 3})
    for (const std::int64_t width : {1, 2, 3, 28, 64}) {
      const Tensor image = random_image(17, width, channels, random);
      const std::string address = png_address(image, 64);
      ASSERT_TRUE(address.starts_with(prefix));
      const Tensor decoded = data::decode_image(from_base64(address.substr(prefix.size())),
                                                {.channels = static_cast<int>(channels)});
      EXPECT_EQ(decoded.shape(), image.shape());
      EXPECT_TRUE(to_vector(decoded) == to_vector(image));
    }
  const std::string small = png_address(random_image(40, 400, 3, random), 100);
  EXPECT_EQ(data::decode_image(from_base64(small.substr(prefix.size()))).shape(),
            Shape({10, 100, 3}));
}

// ---- the page

TEST(ReportPage, IsWellFormedAndHasAllParts) {
  const test::Markup page = parse_strictly(to_html(random_report()));
  for (const char* id : {"figures", "curves", "predictions", "confusion", "worst-pairs", "time",
                         "stragglers", "facts", "configuration", "machine"})
    EXPECT_TRUE(page.ids.contains(id)) << id;
  EXPECT_EQ(page.elements.at("img"), 10);
  EXPECT_EQ(page.elements.at("svg"), 5);  // four charts and the matrix
  EXPECT_EQ(page.elements.count("script"), 0u);
}

TEST(ReportPage, LoadsNothing) {
  const std::string html = to_html(random_report());
  const test::Markup page = parse_strictly(html);
  for (const auto& [name, value] : page.attributes) {
    if (name == "src") {
      EXPECT_TRUE(value.starts_with("data:image/png;base64,")) << value;
    }
    EXPECT_NE(name, "href");
    EXPECT_FALSE(name.starts_with("on")) << name;
    if (name != "xmlns") {
      EXPECT_EQ(value.find("//"), value.starts_with("data:") ? value.find("//") : std::string::npos)
          << name << "=" << value;
    }
  }
  for (const char* element : {"script", "link", "iframe", "object", "embed", "base", "form"})
    EXPECT_EQ(page.elements.count(element), 0u) << element;
  for (const char* word : {"url(", "@import", "http:"})
    EXPECT_EQ(html.find(word, html.find("<title>")), std::string::npos) << word;
}

TEST(ReportPage, ShowsTheNumbersOfTheRun) {
  RunReport report = random_report();
  report.class_names = {};
  report.rows.back().test_accuracy = 0.87654;
  report.test.confusion[3 * 10 + 5] = 4321;
  const std::string text = parse_strictly(to_html(report)).text;
  for (const char* part :
       {"0.8765", "4321", "finished", "step 300 of 300", "a sentence with < and &", "runs/<&>",
        "rank 1", "Of 7 collectives", "1.50"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
  report.rows.back().step = 299;
  EXPECT_NE(parse_strictly(to_html(report)).text.find("not finished"), std::string::npos);
}

TEST(ReportPage, ManyClassesAreTables) {
  for (const std::int64_t classes : {1, 2, 13, 61, 1000}) {
    const std::string html = to_html(random_report(classes));
    const test::Markup page = parse_strictly(html);
    EXPECT_EQ(page.elements.at("svg"), classes <= 60 ? 5 : 4) << classes;
    EXPECT_EQ(page.ids.contains("worst-classes"), classes > 12) << classes;
    if (classes > 1) {
      EXPECT_TRUE(page.ids.contains("worst-pairs"));
    }
    EXPECT_LT(html.size(), 3'000'000u);
  }
  RunReport huge = random_report(2);
  huge.test = {.classes = 1500,
               .samples = std::vector<std::int64_t>(1500, 3),
               .correct = std::vector<std::int64_t>(1500, 2)};
  EXPECT_TRUE(parse_strictly(to_html(huge)).ids.contains("worst-classes"));
}

TEST(ReportPage, StaysSmallAndWellFormedForLongAndStrangeRuns) {
  RunReport report = random_report(10, 20'000);
  EXPECT_LT(to_html(report).size(), 1'000'000u);
  const double most = std::numeric_limits<double>::max(), none = NAN, tiny = 5e-324;
  for (const double value : {most, none, tiny, 0.0, -most, 1.0, -0.0}) {
    for (Metrics& row : report.rows)
      row.train_loss = row.learning_rate = row.images_per_second = row.train_accuracy = value;
    const test::Markup page = parse_strictly(to_html(report));
    EXPECT_EQ(page.elements.at("svg"), 5) << value;
    for (const auto& [name, text] : page.attributes)
      if (name == "d" || name == "x" || name == "y") {
        EXPECT_EQ(text.find("nan"), std::string::npos) << value << ": " << text;
        EXPECT_EQ(text.find("inf"), std::string::npos) << value << ": " << text;
      }
  }
  parse_strictly(to_html({}));  // nothing is known of a run
}

TEST(ReportPage, ShowsWhatAilsBatchNorm) {
  RunReport report = random_report();
  EXPECT_FALSE(parse_strictly(to_html(report)).ids.contains("batch-norm"));
  report.batch_norm = {
      .batches = 17, .running = {.accuracy = 0.25}, .recomputed = {.accuracy = 0.75}};
  report.batch_norm->report.layers = {
      {.path = "layer1.<0>.bn1", .channels = 64, .constant = {3, 5}},
      {.path = "bn2", .channels = 8, .rank_distance = {0.5, 1.375}}};
  report.batch_norm->report.warnings = {"channels & ranks < others"};
  const test::Markup page = parse_strictly(to_html(report));
  EXPECT_TRUE(page.ids.contains("batch-norm"));
  for (const char* part : {"layer1.<0>.bn1", "channels & ranks < others", "17 training batches",
                           "0.2500", "0.7500", "1.375"})
    EXPECT_NE(page.text.find(part), std::string::npos) << part;
}

// ---- what the trainer measures for it

TEST(StepTimer, GivesWaitingAndTheRestAPartOfTheirOwn) {
  double waited = 5;
  StepTimer timer([&] { return waited; });
  const auto pause = [](int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  };
  {
    const StepTimer::Scope whole(timer, StepPart::other);
    {
      const StepTimer::Scope scope(timer, StepPart::forward);
      pause(30);
      waited += 0.020;
    }
    {
      const StepTimer::Scope scope(timer, StepPart::load);
      pause(10);
    }
    pause(20);
    waited += 0.005;
  }
  timer.count_step();
  const StepTimes times = timer.take(ProcessGroup()).at(0);
  EXPECT_EQ(times.steps, 1);
  EXPECT_NEAR(times[StepPart::waiting], 0.025, 1e-9);
  EXPECT_GE(times[StepPart::forward], 0.010);
  EXPECT_GE(times[StepPart::load], 0.010);
  EXPECT_GE(times[StepPart::other], 0.015);
  EXPECT_EQ(times[StepPart::backward], 0);
  EXPECT_GE(times.total(), 0.060);
  EXPECT_EQ(timer.take(ProcessGroup()).at(0).total(), 0);
}

// Returns the answers of a network to `n` samples, and their labels.
struct Answers {
  Tensor logits, labels;
};
Answers random_answers(std::int64_t n, std::int64_t classes, std::uint64_t seed) {
  Generator random(seed);
  return {randn({n, classes}, {}, random) * 3,
          (rand({n}, {}, random) * static_cast<double>(classes)).to(int64)};
}

// Gives the samples of every rank to a recorder, in batches of different sizes.
TestDetails record(const Answers& answers, std::int64_t classes, const ProcessGroup& group) {
  TestRecorder recorder(classes, 6);
  const std::int64_t n = answers.labels.size(0);
  for (std::int64_t begin = 0, size = 1; begin < n; begin += size++) {
    const std::int64_t end = std::min(n, begin + size);
    if (size % group.size() != group.rank()) continue;
    std::vector<std::int64_t> indices;
    for (std::int64_t i = begin; i < end; ++i) indices.push_back(i);
    recorder.add(answers.logits.slice(0, begin, end), answers.labels.slice(0, begin, end), indices);
  }
  return recorder.take(group);
}

void expect_same(const std::vector<Prediction>& a, const std::vector<Prediction>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].index, b[i].index) << i;
    EXPECT_EQ(a[i].probability, b[i].probability) << i;
  }
}

TEST(TestRecorder, CountsWhatIsTakenForWhatOnAnyNumberOfRanks) {
  constexpr std::int64_t n = 200, classes = 5;
  const Answers answers = random_answers(n, classes, fresh_seed());
  std::vector<std::int64_t> expected(classes * classes);
  const auto logits = to_vector(answers.logits), labels = to_vector(answers.labels);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto row = logits.begin() + i * classes;
    const auto predicted = std::max_element(row, row + classes) - row;
    ++expected[static_cast<std::size_t>(labels[static_cast<std::size_t>(i)]) * classes +
               static_cast<std::size_t>(predicted)];
  }
  const TestDetails alone = record(answers, classes, ProcessGroup());
  EXPECT_EQ(alone.confusion, expected);
  EXPECT_EQ(std::reduce(alone.samples.begin(), alone.samples.end()), n);
  for (std::int64_t c = 0; c < classes; ++c)
    EXPECT_EQ(alone.correct[static_cast<std::size_t>(c)], alone.count(c, c));
  ASSERT_EQ(alone.wrong.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NE(alone.wrong[i].label, alone.wrong[i].predicted);
    EXPECT_EQ(alone.right[i].label, alone.right[i].predicted);
    EXPECT_GE(alone.wrong[0].probability, alone.wrong[i].probability);
    EXPECT_EQ(alone.wrong[i].label,
              static_cast<std::int64_t>(labels[static_cast<std::size_t>(alone.wrong[i].index)]));
  }
  for (const int ranks : {2, 3})
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      const TestDetails together = record(answers, classes, group);
      EXPECT_EQ(together.confusion, alone.confusion);
      EXPECT_EQ(together.samples, alone.samples);
      EXPECT_EQ(together.correct, alone.correct);
      expect_same(together.wrong, alone.wrong);
    });
}

TEST(TestRecorder, LogitsThatAreNotFiniteCountAsNoClass) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Tensor logits = tensor({1, nan, 0, nan, nan, nan, 3, infinity, 1, -infinity, 2, 1}, {4, 3}),
               labels = tensor({0, 0, 1, 1}, {4}, {.dtype = int64});
  EXPECT_EQ(to_vector(predicted_classes(logits)), (std::vector<double>{-1, -1, -1, 1}));
  for (const int ranks : {1, 2})
    distributed::run_ranks(ranks, [&](const ProcessGroup& group) {
      LossSums sums{Device()};
      sums.count(4 * ranks);
      sums.add(scalar(0), predicted_classes(logits), labels);
      EXPECT_EQ(sums.take(group).accuracy, 0.25);
      TestRecorder recorder(3, 6);
      recorder.add(logits, labels, {0, 1, 2, 3});
      const TestDetails details = recorder.take(group);
      EXPECT_EQ(details.samples, (std::vector<std::int64_t>{2 * ranks, 2 * ranks, 0}));
      EXPECT_EQ(details.correct, (std::vector<std::int64_t>{0, ranks, 0}));
      EXPECT_EQ(std::reduce(details.confusion.begin(), details.confusion.end()), ranks);
      EXPECT_EQ(details.count(1, 1), ranks);
      for (const Prediction& p : details.wrong) EXPECT_EQ(p.predicted, -1);
      RunReport report = random_report(3);
      report.test = details;
      EXPECT_NE(parse_strictly(to_html(report)).text.find("taken for no class"), std::string::npos);
    });
}

TEST(TestRecorder, HasNoMatrixForThousandsOfClasses) {
  constexpr std::int64_t classes = TestDetails::most_confusion_classes + 1;
  Answers answers = random_answers(40, classes, fresh_seed());
  const Tensor row = answers.logits.select(0, 7);
  row.copy_(full(row.shape(), NAN));
  const TestDetails test = record(answers, classes, ProcessGroup());
  EXPECT_TRUE(test.confusion.empty());
  EXPECT_EQ(std::reduce(test.samples.begin(), test.samples.end()), 40);
  EXPECT_EQ(test.samples.size(), static_cast<std::size_t>(classes));
}

// ---- in a browser

class ReportInChromium : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"chromium-headless-shell", "chromium"})
      if (std::system(fmt::format("command -v {} >/dev/null", name).c_str()) == 0) browser_ = name;
    if (browser_.empty())
      GTEST_SKIP() << "Chromium is not installed: .ci/setup.sh chromium-headless-shell";
    fs::create_directories(folder_);
  }
  ~ReportInChromium() override { fs::remove_all(folder_); }

  // Writes a page and returns what Chromium prints when it has opened it.
  std::string open(const std::string& page, const std::string& name, const std::string& flags) {
    std::ofstream(folder_ / name) << page;
    const std::string command = "cd " + folder_.string() + " && timeout 100 " + browser_ +
                                " --headless --no-sandbox --disable-gpu "
                                "--disable-dev-shm-usage --user-data-dir=" +
                                (folder_ / "profile").string() + " " + flags + " file://" +
                                (folder_ / name).string() + " 2>/dev/null";
    FILE* const pipe = popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> buffer;
    while (const std::size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
      output.append(buffer.data(), n);
    const int status = pclose(pipe);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
    return output;
  }

  std::string browser_;
  fs::path folder_ = fs::temp_directory_path() / ("tutti_report_" + std::to_string(getpid()));
};

TEST_F(ReportInChromium, FindsAllParts) {
  const std::string dom = open(to_html(random_report()), "report.html", "--dump-dom");
  for (const char* id : {"figures", "curves", "predictions", "confusion", "time", "stragglers",
                         "configuration", "machine"})
    EXPECT_NE(dom.find("id=\"" + std::string(id) + "\""), std::string::npos) << id;
  EXPECT_NE(dom.find("&lt;script&gt;alert(1)&lt;/script&gt;"), std::string::npos);
  EXPECT_EQ(dom.find("<script>"), std::string::npos);
}

TEST_F(ReportInChromium, FindsWellFormedXml) {
  const std::string page = to_html(random_report());
  EXPECT_EQ(open(page, "report.xhtml", "--dump-dom").find("parsererror"), std::string::npos);
  const std::string broken = page.substr(0, page.rfind("</section>"));
  EXPECT_NE(open(broken, "broken.xhtml", "--dump-dom").find("parsererror"), std::string::npos);
}

TEST_F(ReportInChromium, DrawsAPictureWithTheColoursOfTheCurves) {
#ifndef TUTTI_HAS_IMAGES
  GTEST_SKIP() << "built without libpng, so nothing here reads the picture";
#endif
  open(to_html(random_report()), "report.html",
       "--hide-scrollbars --window-size=1200,1000 --screenshot=page.png");
  const Tensor image = data::read_image((folder_ / "page.png").string());
  EXPECT_EQ(image.shape(), Shape({1000, 1200, 3}));
  std::int64_t blue = 0, orange = 0;
  const auto* pixel = image.data<std::uint8_t>();
  for (std::int64_t i = 0; i < image.size(0) * image.size(1); ++i, pixel += 3) {
    blue += pixel[0] == 0x00 && pixel[1] == 0x72 && pixel[2] == 0xB2;
    orange += pixel[0] == 0xD5 && pixel[1] == 0x5E && pixel[2] == 0x00;
  }
  EXPECT_GT(blue, 500);
  EXPECT_GT(orange, 50);
}

}  // namespace
}  // namespace tutti::examples
