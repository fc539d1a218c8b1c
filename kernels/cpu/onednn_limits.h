// What oneDNN cannot do well: the instructions that this processor lacks, and the computations that
// versions of oneDNN get wrong. Who calls oneDNN asks here first.
#pragma once

#include "../options.h"

namespace tutti::kernels::cpu::onednn {

/// Returns whether this processor has AMX, with which oneDNN multiplies bfloat16 numbers some eight
/// times as fast as float32 ones instead of twice.
bool has_amx();

/// Returns whether this processor has no instructions that multiply bfloat16 numbers. With AVX-512
/// but without them (Skylake, Ice Lake; measured on Cascade Lake) oneDNN 2.6.3 takes three to five
/// times as long as in float32, and returns NaN for a product of an odd number of columns whose
/// last one is infinite. With AVX2 alone it has no kernel.
bool emulates_bfloat16();

/// Returns whether this version of oneDNN reads some strides wrongly, so that matmul() must not get
/// a batch of several dimensions, a row of gapped elements as `a`, or a column of gapped elements
/// as `out`. With 3.7.2 about a tenth of such products are wrong on a processor with AVX-512.
/// Versions 2.6.3 and 3.2 read them well; those between were not examined, and are taken to have
/// the fault, as all later ones are. Products with matrices that are repeated for a batch crash
/// in 3.11 (its issue 4396).
bool needs_plain_strides();

/// Returns whether convolution_forward() may be wrong or crash. Two faults of 3.7.2 are known.
/// Where a whole window lies in the padding, in three spatial dimensions with groups, it returns
/// wrong bfloat16 numbers and crashes in float32. Where wide kernels with a stride compute one
/// column of several rows from one channel for each group, half of such convolutions in two spatial
/// dimensions are wrong on a processor with AVX-512, in float32 and bfloat16; in three dimensions
/// also where only another one has a stride, and where `y` has more columns. Versions as for
/// needs_plain_strides().
bool misreads_windows(const Tensor& w, const ConvOptions& options, const Tensor& y);

/// Returns whether convolution_backward_weight() may be wrong for a bfloat16 x. oneDNN reads
/// scratch memory that it never wrote where rows are shorter than the stride and, in some shapes of
/// three spatial dimensions, where there is padding. Such gradients were off by any amount, or NaN.
/// Versions 2.6.3, 3.2 and 3.7.2 have the fault, so all are taken to have it.
bool reads_unwritten_memory(const Tensor& x, const ConvOptions& options);

/// Returns whether convolution_backward_input() may be wrong for a bfloat16 dy. With kernels of one
/// element and an odd number of output channels oneDNN 2.6.3 returns wrong gradients where images
/// have a multiple of 30 elements, on a processor with AVX-512. Versions up to 2.6 are taken to
/// have the fault; 3.7.2 does not have it, and no other was examined. In one and two spatial
/// dimensions with groups and strides 3.7.2 returns NaN, depending on what memory held before.
/// Versions as for needs_plain_strides().
bool misreads_bfloat16(const Tensor& dy, const Tensor& w, const ConvOptions& options);

}  // namespace tutti::kernels::cpu::onednn
