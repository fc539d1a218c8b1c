// Tests that compare layer normalisation on a device with the CPU's, both from float64 inputs. The
// rows are short (one warp computes a row) or long (one block does), with and without vector loads.
#include "../kernels/compare.h"
#include "../test_device.h"

#include <tutti/core/create.h>
#include <tutti/kernels/kernels.h>

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::layer_norm_test {
namespace {

using test::relative_error;
using test::test_device;

TEST(LayerNorm, IsTheCpusInFloat64) {
  Generator random(1);
  const auto &cpu = kernels::on(Device::cpu()).layer_norm,
             &device = kernels::on(test_device()).layer_norm;
  for (const auto& [rows, width] :
       {std::pair{1, 1}, {37, 7}, {300, 64}, {70, 130}, {3, 2500}, {5, 4096}, {0, 8}})
    for (const DType dtype : {float32, float64, bfloat16, float16})
      for (const bool affine : {false, true}) {
        SCOPED_TRACE(fmt::format("{} x {} {} {}", rows, width, to_string(dtype), affine));
        const DType own = dtype == float64 ? float64 : float32;
        const auto rounded = [&](const Shape& s, DType d) {
          return randn(s, {float64}, random).to(d).to(float64);
        };
        const Tensor x = rounded({rows, width}, dtype), dy = rounded({rows, width}, dtype);
        x.add_(full({}, 4, {float64}));
        const Tensor w = affine ? rounded({width}, own) : Tensor(),
                     b = affine ? rounded({width}, own) : Tensor();
        const Tensor exact_x = x.to(dtype).to(float64);
        const auto nan = [&](const Shape& s, DType d) { return full(s, NAN, {d}); };
        const Tensor y = nan({rows, width}, float64), mean = nan({rows}, float64),
                     rstd = nan({rows}, float64), dx = nan({rows, width}, float64);
        const Tensor dw = nan({width}, float64), db = nan({width}, float64);
        cpu.forward(exact_x, w, b, 1e-5, y, mean, rstd);
        cpu.input_grad(dy, exact_x, mean, rstd, w, dx);
        cpu.parameter_grad(dy, exact_x, mean, rstd, dw, db);

        const auto there = [&](const Tensor& t, DType d) {
          return t.defined() ? t.to(d).to(test_device()) : Tensor();
        };
        const Tensor in = there(exact_x, dtype), g = there(dy, dtype), weight = there(w, own),
                     bias = there(b, own);
        const Tensor out = there(y, dtype), m = there(mean, float64), r = there(rstd, float64),
                     gx = there(dx, dtype);
        const Tensor gw = there(dw, own), gb = there(db, own);
        for (const Tensor* t : {&out, &m, &r, &gx, &gw, &gb}) t->fill_(NAN);
        device.forward(in, weight, bias, 1e-5, out, m, r);
        device.input_grad(g, in, m, r, weight, gx);
        device.parameter_grad(g, in, m, r, gw, gb);
        const double sums = dtype == float64 ? 1e-12 : 3e-6, values = dtype == bfloat16  ? 5e-3
                                                                      : dtype == float16 ? 1e-3
                                                                                         : sums;
        EXPECT_LE(relative_error(m, mean), sums);
        EXPECT_LE(relative_error(r, rstd), width == 1 ? 1e-3 : sums);
        EXPECT_LE(relative_error(out, y), values);
        if (width > 1) {
          EXPECT_LE(relative_error(gx, dx), values);
          EXPECT_LE(relative_error(gw, dw), sums);
        }
        EXPECT_LE(relative_error(gb, db), sums);
        if (rows == 0) continue;
        device.input_grad(g, in, m, r, weight, g);  // in place
        EXPECT_EQ(to_vector(g), to_vector(gx));
      }
}

}  // namespace
}  // namespace tutti::layer_norm_test
