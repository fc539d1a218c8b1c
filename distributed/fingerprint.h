// Fingerprint: what makes the calls of several ranks one collective, as plain bytes that travel
// with the call and stay on record. Here are also the operations, and the texts that describe a
// call.
#pragma once

#include "../core/dims.h"

#include <cstdint>
#include <span>
#include <string>

namespace tutti::distributed {

/// How a collective combines the values of the ranks.
enum class ReduceOp { sum, mean, min, max };
/// The collective operations.
enum class Operation : std::uint8_t { all_reduce, all_gather, broadcast, reduce_scatter, barrier };
/// The path of a call's data: through the hosts, or between devices by NCCL.
enum class Path : std::uint8_t { host, nccl };

/// Returns the name of the reduction, such as "sum".
std::string to_string(ReduceOp op);
/// Returns the name of the operation, such as "all_reduce".
std::string to_string(Operation operation);

/// The properties of a call that must be equal on all ranks for the calls to be one collective.
/// Backends send a Fingerprint as plain bytes.
struct Fingerprint {
  std::int64_t sequence = 0;    ///< The number of the call in its group; 0 stands for no call.
  std::uint64_t name_hash = 0;  ///< Of name and step.
  std::int64_t count = 0;       ///< The number of elements of the input.
  /// The sizes of the input, up to the largest int32, and how many there are.
  std::int32_t sizes[Dims::max_rank] = {};
  std::int32_t root = 0;
  Operation operation = Operation::barrier;
  std::uint8_t op = 0;
  std::uint8_t dtype = 0;
  std::uint8_t rank = 0;
  Path path = Path::host;
  // What follows is not compared.
  std::uint8_t of_model = 0;  ///< As in CallOptions.
  std::uint8_t name_bytes = 0, step_bytes = 0;
  /// The beginning of name, step and detail, for the error text. It ends where the header of a
  /// message does, which MPI sends at once up to 256 bytes.
  char text[188] = {};

  bool operator==(const Fingerprint& other) const;
  /// Returns a hash of what operator==() compares.
  std::uint64_t hash() const;
  std::int64_t bytes() const;  ///< Of the input.
  std::string name() const { return {text, name_bytes}; }
  std::string name_and_step() const { return {text, std::size_t{name_bytes} + step_bytes}; }
};

/// Returns a text such as "all_reduce(sum) #2 of float32 of shape (2, 6) (layer1.bn)".
std::string to_string(const Fingerprint& fingerprint);
/// Returns a text such as "all_reduce #808 of group 'world' (bucket 4, 6.2 MB)".
std::string describe(const Fingerprint& fingerprint, const std::string& group);
/// The same with what stands in place of the beginning of the name.
std::string describe(const Fingerprint& fingerprint, const std::string& group,
                     const std::string& name);

/// What errors advise about a call of a model that some ranks do not take part in.
inline constexpr const char* advice_for_one_rank =
    ". What one rank does alone belongs under NoGrad, in eval(), or into a no_sync() scope";

/// Compares the ranks' fingerprints. Returns an empty string where all are equal; else a text that
/// shows the first rank's call and that of the next rank that differs from it. The fingerprints are
/// those of `ranks`; where that is empty, of the ranks 0, 1, ...
std::string disagreement(std::span<const Fingerprint> fingerprints,
                         std::span<const int> ranks = {});

}  // namespace tutti::distributed
