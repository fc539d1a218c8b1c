// How computations of oneDNN are divided among threads: what the shares are, that they compute what
// the whole does, and with which threads.
#include "kernels/compare.h"
#include "kernels/random_convolution.h"
#include "kernels/tables.h"

#include <tutti/core/thread_pool.h>
#include <tutti/kernels/cpu/onednn_shares.h>

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

extern "C" int dnnl_set_verbose(int level);

namespace tutti {
namespace {

namespace onednn = kernels::cpu::onednn;
using kernels::ConvOptions;
using onednn::Block;
using onednn::Blocks;
using onednn::Work;
using test::normal;
using test::pick;
using test::poisoned;
using test::relative_error;
using test::Threads;

constexpr MemoryFormat last = MemoryFormat::channels_last;

double elements_of(const Block& block) {
  return static_cast<double>(block.images.size()) * static_cast<double>(block.rows.size()) *
         static_cast<double>(block.channels.size());
}

TEST(Shares, CoverEveryElementOnceWithAtMostAsManySharesAsThreads) {
  for (int i = 0; i < 2000; ++i) {
    const int threads = static_cast<int>(pick(1, 64));
    Work work{.images = pick(1, 9), .rows = pick(1, 70), .channels = pick(1, 80)};
    work.row_unit = pick(1, 3), work.channel_unit = pick(0, 1) ? 16 : 1;
    work.multiplications = std::pow(10.0, static_cast<double>(pick(3, 11)));
    work.x = work.y = 1e4, work.w = static_cast<double>(pick(1, 1'000'000));
    work.copies_channels = pick(0, 1), work.adds_rows = pick(0, 1);
    const std::vector<Blocks> shares = onednn::divide(work, threads);
    ASSERT_LE(shares.size(), static_cast<std::size_t>(threads));
    std::vector<int> visits(static_cast<std::size_t>(work.images * work.rows * work.channels));
    std::set<std::int64_t> heights;
    for (const Blocks& share : shares)
      for (const Block& b : share) {
        ASSERT_TRUE(b.images.size() == 1 || b.rows.size() == work.rows);
        if (b.rows.end < work.rows) heights.insert(b.rows.size());
        for (auto n = b.images.begin; n < b.images.end; ++n)
          for (auto r = b.rows.begin; r < b.rows.end; ++r)
            for (auto c = b.channels.begin; c < b.channels.end; ++c)
              ++visits[static_cast<std::size_t>((n * work.rows + r) * work.channels + c)];
      }
    ASSERT_EQ(std::ranges::count(visits, 1), std::ssize(visits));
    ASSERT_LE(heights.size(), 1u);
  }
}

// The largest share of a large computation is at most a quarter larger than the mean.
TEST(Shares, KeepThreadsBusy) {
  for (const int threads : {2, 3, 4, 8, 16, 64})
    for (const std::int64_t images : {1, 2, 3, 5, 16, 33})
      for (const auto& [rows, channels] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {7, 512}, {14, 256}, {56, 64}, {7, 40}, {7, 47}, {56, 40}, {56, 47}}) {
        if (channels < 64 && threads > 2) continue;  // blocks of channels are too large
        const double outputs = static_cast<double>(images * rows * rows * channels),
                     weight = static_cast<double>(9 * channels * channels);
        const Work work{.images = images,
                        .rows = rows,
                        .channels = channels,
                        .channel_unit = 16,
                        .multiplications = 100 * outputs * 9 * static_cast<double>(channels),
                        .x = outputs,
                        .w = weight,
                        .y = outputs,
                        .copies_channels = true};
        double largest = 0;
        for (const Blocks& share : onednn::divide(work, threads)) {
          double elements = 0;
          for (const Block& block : share) elements += elements_of(block);
          largest = std::max(largest, elements);
        }
        const double mean = static_cast<double>(images * rows * channels) / threads;
        EXPECT_LE(largest, 1.25 * mean) << threads << " " << images << " " << rows;
      }
}

TEST(Shares, HaveOneMillionMultiplicationsEach) {
  // A layer of ResNet-20 on one picture, which has 2,304 multiplications for each position.
  const auto shares_of = [](int side) {
    const Work work{.rows = side, .multiplications = 2304.0 * side * side, .x = 16.0 * side * side};
    return onednn::divide(work, 64).size();
  };
  EXPECT_EQ(shares_of(16), 1u);
  EXPECT_EQ(shares_of(28), 2u);
}

// A convolution and its gradients, computed with any number of threads.
struct Results {
  Tensor y, dx, dw, db;

  Results(const test::ConvolutionCase& c, const Tensor& x, const Tensor& w, const Tensor& bias,
          const Tensor& dy)
      : y(poisoned(c.y, x.dtype(), x.memory_format())),
        dx(poisoned(c.x, x.dtype(), x.memory_format())),
        dw(poisoned(c.w, w.dtype(), w.memory_format())),
        db(poisoned({c.w[0]}, w.dtype())) {
    const auto& table = test::convolution();
    table.forward(x, w, bias, c.options, y);
    table.backward_input(dy, w, c.options, dx);
    table.backward_weight(x, dy, c.options, dw, db);
  }
  std::vector<Tensor> all() const { return {y, dx, dw, db}; }
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype())) ==
         0;
}

// Sizes at which several threads share the work. Every second is a product over positions.
test::ConvolutionCase divided_case(int i) {
  const int spatial = i % 5 == 0 ? 1 : i % 7 == 0 ? 3 : 2;
  for (;;) {
    test::ConvolutionCase c =
        test::random_convolution(spatial, i % 3 == 1 ? static_cast<int>(pick(1, 2)) : 0,
                                 {5, 150, spatial == 1 ? 9 : 4,
                                  spatial == 1   ? 600
                                  : spatial == 2 ? 60
                                                 : 20});
    for (int d = 0; d < spatial && i % 2 == 0 && c.options.groups == 1; ++d) {
      c.options.stride[d] = c.options.dilation[d] = 1, c.options.padding[d] = 0;
      c.w[d + 2] = 1, c.y[d + 2] = c.x[d + 2];
    }
    const auto elements = static_cast<double>(numel(c.x) + numel(c.y)),
               sums = static_cast<double>(numel(c.y)) * static_cast<double>(numel(c.w) / c.w[0]);
    if (elements < 6e5 && sums < 3e8 && sums + onednn::cost_of_element * elements > 8e6) return c;
  }
}

// Sums in another order; some of those in bfloat16 are rounded to another number.
double error_of(DType dtype) { return dtype == bfloat16 ? 1e-3 : 3e-6; }

TEST(Shares, ComputeWhatTheWholeDoes) {
  for (int i = 0; i < 30; ++i) {
    const test::ConvolutionCase c = divided_case(i);
    const MemoryFormat format = pick(0, 3) ? last : MemoryFormat::contiguous;
    const int threads = static_cast<int>(pick(2, 16));
    const DType dtype = i % 4 == 3 ? bfloat16 : float32;
    SCOPED_TRACE(c.text() + " " + to_string(format) + " " + std::to_string(threads));
    const Tensor x = normal(c.x, dtype, format), dy = normal(c.y, dtype, format),
                 w = normal(c.w, float32, pick(0, 1) ? last : MemoryFormat::contiguous),
                 bias = normal({c.w[0]}, float32);
    std::vector<Tensor> whole, shares, again;
    {
      const Threads alone(1);
      whole = Results(c, x, w, bias, dy).all();
    }
    {
      const Threads many(threads);
      shares = Results(c, x, w, bias, dy).all();
      again = Results(c, x, w, bias, dy).all();
    }
    for (std::size_t j = 0; j < whole.size(); ++j) {
      EXPECT_LE(relative_error(shares[j], whole[j]), j < 2 ? error_of(dtype) : 3e-6) << j;
      EXPECT_TRUE(same_bits(shares[j], again[j])) << j;
    }
  }
}

TEST(Shares, OfProductsComputeWhatTheWholeDoes) {
  for (int i = 0; i < 30; ++i) {
    const std::int64_t batch = pick(1, 5), m = pick(1, 500), n = pick(1, 500), k = pick(20, 300);
    const DType dtype = i % 4 == 3 ? bfloat16 : float32;
    const int threads = static_cast<int>(pick(2, 16));
    SCOPED_TRACE(fmt::format("{} x ({}, {}, {}), {} threads", batch, m, n, k, threads));
    const Tensor a = pick(0, 1) ? normal({batch, m, k}, dtype)
                                : normal({batch, k, m}, dtype).transpose(1, 2),
                 b = pick(0, 1) ? normal({batch, k, n}, dtype)
                                : normal({1, n, k}, dtype).transpose(1, 2),
                 bias = normal({n}, float32);
    const auto multiply = [&](int count) {
      const Threads some(count);
      const Tensor out = poisoned({batch, m, n}, dtype);
      test::matmul(a, b, {bias}, out);
      return out;
    };
    const Tensor shares = multiply(threads);
    EXPECT_LE(relative_error(shares, multiply(1)), error_of(dtype));
    EXPECT_TRUE(same_bits(shares, multiply(threads)));
  }
}

// A small result of long rows is a sum of parts of them.
TEST(Shares, OfLongInnerDimensionsAreSummands) {
  for (const DType dtype : {float32, bfloat16})
    for (const bool has_bias : {false, true}) {
      const Tensor a = normal({20'000, 20}, dtype).transpose(0, 1), b = normal({20'000, 24}, dtype),
                   bias = has_bias ? normal({24}, float32) : Tensor(),
                   out = poisoned({20, 24}, float32), expected = poisoned({20, 24}, float64);
      const Threads many(6);
      const auto before = detail::loop_count;
      test::matmul(a, b, {bias}, out);
      EXPECT_GE(detail::loop_count.shares - before.shares, 5);
      test::matmul(a.to(float64), b.to(float64), {has_bias ? bias.to(float64) : Tensor()},
                   expected);
      EXPECT_LE(relative_error(out, expected), 2e-6);
    }
}

// Runs `body` on a new thread, whose helpers are its own.
void on_new_thread(const std::function<void()>& body) { std::thread(body).join(); }

std::int64_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// What a convolution and its gradients compute.
std::vector<std::function<void()>> convolutions(const Shape& x_shape, std::int64_t outs,
                                                std::int64_t kernel) {
  const ConvOptions options{{1, 1}, {kernel / 2, kernel / 2}, {1, 1}, 1};
  const Tensor x = zeros(x_shape).contiguous(last), w = zeros({outs, x_shape[1], kernel, kernel}),
               y = zeros({x_shape[0], outs, x_shape[2], x_shape[3]}).contiguous(last);
  return {[=] { test::convolution().forward(x, w, {}, options, y); },
          [=] { test::convolution().backward_input(y, w, options, x); },
          [=] { test::convolution().backward_weight(x, y, options, w, {}); }};
}

TEST(Shares, NobodyStartsThreadsButThePool) {
  on_new_thread([] {
    const std::int64_t before = threads_of_process();
    set_num_threads(4);
    for (const auto& compute : convolutions({1, 64, 57, 57}, 64, 5)) compute();
    for (const auto& compute : convolutions({3, 128, 28, 28}, 256, 1)) compute();
    test::matmul(normal({700, 300}, float32), normal({300, 501}, float32), {},
                 poisoned({700, 501}, float32));
    EXPECT_EQ(threads_of_process(), before + 3);
  });
}

// Each call waits once for its shares, and before that for its weight where this has parts or
// after it for the sum of its copies.
TEST(Shares, WaitOnceOrTwiceForEachCall) {
  for (const int threads : {16, 64})
    on_new_thread([=] {
      set_num_threads(threads);
      const int few = std::min(16, threads / 2);  // of which each has a copy of the result
      const auto expect = [=](const std::function<void()>& compute, const std::string& name,
                              int least) {
        const auto before = detail::loop_count;
        compute();
        const std::int64_t loops = detail::loop_count.loops - before.loops,
                           shares = detail::loop_count.shares - before.shares;
        SCOPED_TRACE(
            fmt::format("{} threads, {}: {} loops, {} shares", threads, name, loops, shares));
        EXPECT_GE(loops, 1);
        EXPECT_LE(loops, 2);
        EXPECT_GE(shares, least);
        EXPECT_LE(shares, loops * threads);
      };
      const auto expect_all = [=](const Shape& x, std::int64_t outs, std::int64_t kernel) {
        const auto all = convolutions(x, outs, kernel);
        for (std::size_t i = 0; i < all.size(); ++i)
          expect(all[i], to_string(x) + " direction " + std::to_string(i),
                 i < 2 ? threads / 2 : few);
      };
      expect_all({1, 32, 64, 64}, 32, 5);    // rows
      expect_all({3, 256, 28, 28}, 256, 1);  // positions
      expect_all({16, 32, 28, 28}, 32, 5);   // images
      expect_all({1, 256, 14, 14}, 256, 5);  // rows and channels
      const Tensor a = zeros({600, 700}), b = zeros({700, 500}), out = zeros({600, 500}),
                   tall = zeros({40'000, 30}), small = zeros({30, 30});
      expect([=] { test::matmul(a, b, {}, out); }, "product", threads / 2);
      expect([=] { test::matmul(tall.transpose(0, 1), tall, {}, small); }, "summands", few);
    });
}

// The kernels that oneDNN runs, as its own messages name them, for each direction of a primitive.
std::map<std::string, std::set<std::string>> kernels_of(const std::function<void()>& compute) {
  std::fflush(stdout);
  ::testing::internal::CaptureStdout();
  dnnl_set_verbose(1);
  compute();
  dnnl_set_verbose(0);
  std::fflush(stdout);
  std::map<std::string, std::set<std::string>> kernels;
  std::istringstream lines(::testing::internal::GetCapturedStdout());
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find(",exec,cpu,");
    if (begin == std::string::npos) continue;
    std::istringstream fields(line.substr(begin + std::strlen(",exec,cpu,")));
    std::string primitive, kernel, direction;
    std::getline(std::getline(std::getline(fields, primitive, ','), kernel, ','), direction, ',');
    kernels[primitive + " " + direction].insert(kernel);
  }
  return kernels;
}

bool has_reference(const std::set<std::string>& kernels) {
  return std::ranges::any_of(kernels, [](const std::string& k) { return k.starts_with("ref"); });
}

TEST(Shares, RunNoReferenceKernelWhereTheWholeDoesNot) {
  std::map<std::string, int> compared;
  const auto compare = [&](const std::function<void()>& compute) {
    const auto run = [&](int threads) {
      const Threads some(threads);
      return kernels_of(compute);
    };
    auto whole = run(1), shares = run(7);
    for (const auto& [primitive, kernels] : shares)
      if (!has_reference(whole[primitive])) {
        EXPECT_FALSE(has_reference(kernels)) << primitive;
        ++compared[primitive];
      }
  };
  // With AVX2, oneDNN computes the gradient of x by its reference kernel where a share has few
  // rows.
  const test::ConvolutionCase few_rows{.x = {2, 29, 12, 16, 14},
                                       .w = {7, 29, 4, 3, 4},
                                       .y = {2, 7, 6, 8, 8},
                                       .options = {{1, 2, 1}, {0, 1, 0}, {2, 1, 2}, 1}};
  for (int i = 0; i < 30; ++i) {
    const test::ConvolutionCase c = i == 0 ? few_rows : divided_case(i);
    const MemoryFormat format = i == 0 || pick(0, 3) ? last : MemoryFormat::contiguous;
    SCOPED_TRACE(c.text() + " " + to_string(format));
    const Tensor x = normal(c.x, float32, format), dy = normal(c.y, float32, format),
                 w = normal(c.w, float32), bias = normal({c.w[0]}, float32),
                 a = normal({pick(100, 500), pick(100, 500)}, float32),
                 b = normal({a.size(1), pick(100, 500)}, float32),
                 out = empty({a.size(0), b.size(1)});
    compare([&] { Results(c, x, w, bias, dy); });
    compare([&] { test::matmul(a, b, {}, out); });
  }
  for (const std::string primitive :
       {"convolution forward_training", "convolution backward_data", "convolution backward_weights",
        "matmul undef", "reorder undef"})
    EXPECT_GT(compared[primitive], 0) << primitive;
}

}  // namespace
}  // namespace tutti
