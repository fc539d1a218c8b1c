// SyncBatchNorm: a BatchNorm that is born with a process group. What it computes is batch_norm.h's
// business; giving a group to existing layers is convert.h's; distributed/audit.h checks that ranks
// have in common what they must.
#pragma once

#include "layer.h"

namespace tutti::nn {

/// BatchNorm over the ranks of a group, for input of any shape (N, C, ...). See BatchNorm for what
/// it computes.
///
/// Where it differs from other implementations (read in their sources; PyTorch 1.13), and why:
///
///                        this layer                   PyTorch                        Horovod and
///                        Bagua
///   trains on            CPU and GPU                  GPU only                       GPU only
///   ranks exchange       count, sum and sum of        count, mean and 1/std in       the same
///                        squares, in float64 (twice   the input's float32
///                        that for float64 input)
///   why: variance is rebuilt from 1/sqrt(var + eps) there, wrong by 2% at var 1e-10 and by 82% at
///   1e-12 forward              1 all-reduce, bytes do not   1 all-gather: bytes grow       3
///   all-gathers
///                        depend on the ranks          with the ranks
///   backward             1 all-reduce                 1 all-reduce                   2 all-reduces
///   an empty rank        takes part, no special case  drops out of the statistics    no provision
///                                                     by a read-back to the host
///   1 element over all   error on every rank          error only where there is      NaN or
///   infinite running_var
///                                                     one rank; else not noticed
///   who needs gradients  told in the forward packet:  ranks that disagree wait for   the same
///                        works, or an error at once   each other until a timeout
///   ranks out of step    error on every rank, naming  wrong sums, or a timeout       the same
///                        layer, call and rank
///   wrong input on one   error on every rank          the others wait for a          the same
///   rank                                              timeout
///   parallel branches    may share one collective     one each                       one each
///   evaluation with no   local batch, no              local batch                    synchronised:
///   hangs where one running statistics   communication rank evaluates alone input layout kept kept
///   made contiguous conversion           in place: parameters stay    new modules; subclasses'
///   none; new modules
///                        the same objects, hooks,     own forward is lost
///                        options and subclasses too,
///                        and back
///   double backward      refused: there is none in    refused                        refused
///                        this library
class SyncBatchNorm : public BatchNorm {
 public:
  /// `options.group` none: what distributed::world() is now, so from_environment() comes before the
  /// model.
  explicit SyncBatchNorm(Options options);
};

}  // namespace tutti::nn
