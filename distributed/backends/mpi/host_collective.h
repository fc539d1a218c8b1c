// HostCollective: carries out a collective of a group on several hosts, and a large one on any
// group, in straight lines: the ranks of each host agree and reduce among themselves, MPI's own
// collectives connect the hosts, and the results are handed out inside each host.
//
// Small data: the leaders of the hosts reduce it. Whether their hosts agree on the call travels
// beside the data, and nothing is handed out before. So a rank sends O(log2 hosts) messages.
// Large data is cut into slices, each of which has an owner on each host. The other ranks of the
// host send the owner their parts of it, the owner reduces them and continues with the owners on
// the other hosts. This goes in pieces, of which two of a slice are between hosts at a time.
//
// The timeout of the call counts anew when the ranks of the host have come and when the hosts have:
// the transfer has one deadline, however many messages it takes.
#pragma once

#include "exchange.h"

namespace tutti::distributed::mpi {

class HostCollective {
 public:
  /// Continues the collective whose `exchange` has been posted. A patient one sleeps while it waits
  /// for ranks to arrive.
  HostCollective(std::shared_ptr<const HostCommunicators> comms, Exchange& exchange, bool patient);

  /// Returns whether the data goes with the agreement; then complete() does it all. Otherwise
  /// agree() and move() do.
  bool is_small() const { return exchange_.has_data(); }
  void complete();
  /// Returns when all ranks of the group have agreed on the call. Throws, and fails the world,
  /// where they do not.
  void agree();
  /// Moves the data, after agree().
  void move();

 private:
  // What an owner holds of a slice at a time, and the memory for it.
  struct Piece {
    std::size_t slice = 0;
    Elements elements = {};
    char *received = nullptr, *partial = nullptr, *result = nullptr;
  };
  struct Block;  // the pieces of this rank and the transfers of all pieces of a block

  void lead();
  void follow();
  const std::uint64_t* start_vote(Transfers& vote);
  void finish_vote(Transfers& vote, const std::uint64_t* largest);
  [[noreturn]] void name_disagreement();
  void combine(const Piece& piece, const std::vector<const void*>& inputs);
  void start_between_hosts(const Piece& piece, Transfers& transfers);
  const char* finish(const Piece& piece);
  void hand_out(const Piece& piece, const char* from, Transfers& transfers, Transfers::Tag tag,
                bool also_nothing);
  char* allocate(std::size_t bytes);
  Piece allocate(std::size_t slice, std::int64_t elements, bool with_receives);

  Elements piece_of(std::size_t slice, std::int64_t block_number) const;
  void scatter(Block& block, std::int64_t number);
  void reduce(Block& block);
  void gather(Block& block);

  const Collective& call() const { return exchange_.call(); }
  int rank_at(std::size_t index) const { return layout_.own_host()[index]; }
  const char* input_at(std::int64_t element) const;
  char* output_at(std::int64_t element) const;

  std::shared_ptr<const HostCommunicators> comms_;
  const HostLayout& layout_;
  Exchange& exchange_;
  const bool patient_;
  const DataFlow& flow_;
  std::shared_ptr<CollectiveMemory> memory_;
  std::int64_t piece_elements_;  // at most
};

}  // namespace tutti::distributed::mpi
