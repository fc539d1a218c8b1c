// Convolution and matrix products through oneDNN. All calls of oneDNN are in onednn*.cpp and
// onednn_primitive.h, so that another major version of it touches no other file. The arguments
// are those of kernels/kernels.h, but no tensor may be empty.
#pragma once

#include "../options.h"

/// Each function that computes returns false and does nothing if oneDNN has no kernel for these
/// dtypes on this processor; convolution_forward() also where oneDNN's kernel is known to be wrong.
namespace tutti::kernels::cpu::onednn {

/// Keeps the reordered weight where PackedWeights::of(w) is not null.
bool convolution_forward(const Tensor& x, const Tensor& w, const Tensor& bias,
                         const ConvOptions& options, const Tensor& y);
bool convolution_backward_input(const Tensor& dy, const Tensor& w, const ConvOptions& options,
                                const Tensor& dx);
bool convolution_backward_weight(const Tensor& x, const Tensor& dy, const ConvOptions& options,
                                 const Tensor& dw, const Tensor& db);
bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out);

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
