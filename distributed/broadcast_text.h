// Broadcasts a string from one rank, such as an address or a list of names, and gathers strings or
// tensors of different lengths from all ranks.
#pragma once

#include "process_group.h"

#include <functional>
#include <string>
#include <vector>

namespace tutti::distributed {

/// Returns the `text` of rank `root` on every rank; what the other ranks pass is ignored. Every
/// rank calls it; it makes two broadcasts (one, where the text is empty). `name` stands in errors.
std::string broadcast_text(const ProcessGroup& group, const std::string& text,
                           const std::string& name, int root = 0);

/// Compares the `text` of all ranks. Where it is not the same, calls `differ` on every rank with
/// the lines of rank 0, those of the first rank that has others, and the number of that rank. Every
/// rank calls it: one collective of 8 bytes, and four broadcasts where the texts differ.
void compare_texts(
    const ProcessGroup& group, const std::string& text, const std::string& name,
    const std::function<void(const std::vector<std::string>& of_rank_0,
                             const std::vector<std::string>& of_other, int other)>& differ);

/// Returns the numbers of all ranks, rank by rank, on every rank. Every rank calls it with as many;
/// it makes one collective.
std::vector<std::int64_t> all_gather_numbers(const ProcessGroup& group,
                                             std::vector<std::int64_t> numbers,
                                             const CallOptions& options);

/// Returns the tensors of all ranks on every rank, without gradients. They have one dtype and,
/// apart from the first dimension, one shape: predictions of a last batch that is not full. Every
/// rank calls it; it makes two collectives (one, where all are empty), the second of which sends as
/// much for every rank as the longest tensor needs. `name` stands in errors. ShapeError for shape
/// ().
std::vector<Tensor> all_gather_rows(const ProcessGroup& group, const Tensor& rows,
                                    const std::string& name);

/// Returns the texts of all ranks on every rank. Every rank calls it, as it calls
/// all_gather_rows().
std::vector<std::string> all_gather_text(const ProcessGroup& group, const std::string& text,
                                         const std::string& name);

}  // namespace tutti::distributed
