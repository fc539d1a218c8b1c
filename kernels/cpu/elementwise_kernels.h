// The functions of the elementwise table. Each source file defines some of them; elementwise.cpp
// joins them in the table.
#pragma once

#include "../elementwise.h"

#include "../../core/begin_cpu_level.h"

namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL {

void fill(const Tensor& out, double value);
void copy(const Tensor& in, const Tensor& out);
void axpy(double alpha, const Tensor& x, const Tensor& y);
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
void unary(Unary op, const Tensor& in, const Tensor& out);
void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out);
void binary_scalar(Binary op, const Tensor& a, double b, bool reversed, const Tensor& out);

}  // namespace tutti::kernels::cpu::TUTTI_CPU_LEVEL

#include "../../core/end_cpu_level.h"
