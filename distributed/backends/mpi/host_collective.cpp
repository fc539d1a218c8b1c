#include "host_collective.h"

#include "library.h"

#include <array>
#include <cstring>

namespace tutti::distributed::mpi {
namespace {

// MPI leaves open what its minimum and maximum do with NaN. These keep it.
template <ReduceOp op>
void keep_nan(void* from, void* into, int* count, MPI_Datatype* type) {
  const void* const pair[] = {into, from};
  reduce_in_rank_order(*type == MPI_FLOAT ? float32 : float64, op, pair, {&into, 1}, *count);
}

template <ReduceOp op>
MPI_Op nan_keeping_op() {
  static const MPI_Op created = [] {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(keep_nan<op>, 1, &made), "MPI_Op_create");
    return made;
  }();
  return created;
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::float32: return MPI_FLOAT;
    case DType::float64: return MPI_DOUBLE;
    case DType::int64: return MPI_INT64_T;
    default: return MPI_UINT8_T;
  }
}

// Returns the type and operation with which MPI reduces the partial results of the hosts.
std::pair<MPI_Datatype, MPI_Op> partial_reduction(const DataFlow& flow, ReduceOp op) {
  // What no rank gives is zero, so the bits of all hosts are put together.
  if (!flow.reduces()) return {MPI_BYTE, MPI_BOR};
  const MPI_Datatype type = mpi_type(flow.partial_dtype());
  const bool floating = is_floating(flow.dtype());
  switch (op) {
    case ReduceOp::min: return {type, floating ? nan_keeping_op<ReduceOp::min>() : MPI_MIN};
    case ReduceOp::max: return {type, floating ? nan_keeping_op<ReduceOp::max>() : MPI_MAX};
    default: return {type, MPI_SUM};
  }
}

}  // namespace

struct HostCollective::Block {
  Transfers scatter, between, gather;
  std::int64_t number = 0;
  std::vector<Piece> own = {};  // one of each slice of this rank
};

HostCollective::HostCollective(std::shared_ptr<const HostCommunicators> comms, Exchange& exchange,
                               bool patient)
    : comms_(std::move(comms)),
      layout_(comms_->layout()),
      exchange_(exchange),
      patient_(patient),
      flow_(exchange.flow()),
      memory_(std::make_shared<CollectiveMemory>()),
      piece_elements_(
          static_cast<std::int64_t>(comms_->piece_bytes() / size_of(flow_.partial_dtype()))) {}

void HostCollective::complete() {
  exchange_.wait_for_agreement(patient_);
  exchange_.restart_deadline();
  if (layout_.is_leader()) lead();
  else follow();
  comms_->note_agreement(call());
}

void HostCollective::agree() {
  exchange_.wait_for_agreement(patient_);
  exchange_.restart_deadline();
  if (layout_.is_one_host()) return;
  Transfers verdict(*comms_, exchange_, memory_);
  if (layout_.is_leader()) {
    Transfers vote(*comms_, exchange_, memory_);
    finish_vote(vote, start_vote(vote));
    for (std::size_t i = 1; i < layout_.own_host().size(); ++i)
      verdict.send(nullptr, 0, i, Transfers::Tag::result);
  } else {
    verdict.receive(nullptr, 0, 0, Transfers::Tag::result);
  }
  verdict.wait(patient_);
  exchange_.restart_deadline();
  comms_->note_agreement(call());
}

// The leader's part of a small collective.
void HostCollective::lead() {
  Transfers vote(*comms_, exchange_, memory_),
      data(*comms_, exchange_, memory_, Transfers::in_transfer),
      results(*comms_, exchange_, memory_, Transfers::in_transfer);
  const std::uint64_t* const largest = start_vote(vote);
  // Where the hosts turn out to disagree, MPI may find messages of different sizes and says so on
  // standard error. The data is not waited for then.
  Piece whole = allocate(0, flow_.count(), false);
  whole.elements = {0, flow_.count()};
  if (flow_.count() > 0) {
    std::vector<const void*> inputs;
    for (std::size_t i = 0; i < layout_.own_host().size(); ++i)
      inputs.push_back(exchange_.data_of(static_cast<int>(i)));
    combine(whole, inputs);
    start_between_hosts(whole, data);
  }
  finish_vote(vote, largest);
  exchange_.restart_deadline();
  data.wait(patient_);
  hand_out(whole, finish(whole), results, Transfers::Tag::result, true);
  results.wait(patient_);
}

// What the other ranks of its host do meanwhile.
void HostCollective::follow() {
  const Elements taken = flow_.takes(rank_at(layout_.index));
  Transfers result(*comms_, exchange_, memory_);
  const std::size_t bytes = flow_.bytes(taken.count());
  char* received = allocate(bytes);
  result.receive(received, bytes, 0, Transfers::Tag::result);
  result.wait(patient_);
  if (bytes > 0) std::memcpy(output_at(taken.begin), received, bytes);
}

// Returns where the largest hash of a call and the largest complement are to lie. The hosts agree
// where the largest and the smallest hash are equal.
const std::uint64_t* HostCollective::start_vote(Transfers& vote) {
  auto* const sent = reinterpret_cast<std::uint64_t*>(allocate(4 * sizeof(std::uint64_t)));
  sent[0] = call().fingerprint.hash();
  sent[1] = ~sent[0];
  check(MPI_Iallreduce(sent, sent + 2, 2, MPI_UINT64_T, MPI_MAX, comms_->across_hosts(),
                       &vote.add_between_hosts(0)),
        "MPI_Iallreduce");
  return sent + 2;
}

void HostCollective::finish_vote(Transfers& vote, const std::uint64_t* largest) {
  vote.wait(patient_);
  if (largest[0] != ~largest[1]) name_disagreement();
}

// The leader of host 0 collects the calls of the others and fails the world with what it finds. The
// others wait for that.
void HostCollective::name_disagreement() {
  constexpr std::size_t bytes = sizeof(Fingerprint);
  Transfers calls(*comms_, exchange_, memory_);
  char* memory = allocate(bytes * (layout_.hosts.size() + 1));
  std::memcpy(memory, &call().fingerprint, bytes);
  if (layout_.host != 0) {
    calls.send(memory, bytes, 0, Transfers::Tag::calls);
    // Never sent: the failure comes instead.
    calls.receive(memory + bytes, bytes, 0, Transfers::Tag::calls);
    for (;;) calls.wait(patient_);
  }
  std::vector<Fingerprint> fingerprints(layout_.hosts.size());
  std::vector<int> leaders;
  for (std::size_t h = 1; h < layout_.hosts.size(); ++h)
    calls.receive(memory + bytes * h, bytes, h, Transfers::Tag::calls);
  calls.wait(patient_);
  for (std::size_t h = 0; h < layout_.hosts.size(); ++h) {
    leaders.push_back(layout_.hosts[h].front());
    std::memcpy(&fingerprints[h], memory + bytes * h, bytes);
  }
  comms_->world().fail(
      {.at = describe(call(), comms_->info()), .what = disagreement(fingerprints, leaders)});
  throw_failure(*comms_->world().failure(), call(), comms_->info());
}

// Reduces what the ranks of this host give of a piece, or puts it together. `inputs` has, for each
// of them, its elements of the piece.
void HostCollective::combine(const Piece& piece, const std::vector<const void*>& inputs) {
  const std::int64_t count = piece.elements.count();
  if (flow_.reduces() && layout_.is_one_host())
    return reduce_in_rank_order(flow_.dtype(), call().op, inputs,
                                std::array{static_cast<void*>(piece.partial)}, count);
  if (flow_.reduces())
    return reduce_partially(flow_.dtype(), call().op, inputs, piece.partial, count);
  std::memset(piece.partial, 0, flow_.bytes(count));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (const Elements given = flow_.gives(rank_at(i)) & piece.elements; given.count() > 0)
      std::memcpy(piece.partial + flow_.bytes(given.begin - piece.elements.begin), inputs[i],
                  flow_.bytes(given.count()));
}

void HostCollective::start_between_hosts(const Piece& piece, Transfers& transfers) {
  const auto count = static_cast<int>(piece.elements.count());
  if (call().operation == Operation::broadcast) {
    const auto host = static_cast<int>(layout_.host_of(call().root));
    check(MPI_Ibcast(piece.partial, count, MPI_BYTE, host, comms_->across_hosts(piece.slice),
                     &transfers.add_between_hosts(piece.slice)),
          "MPI_Ibcast");
    return;
  }
  const auto [type, op] = partial_reduction(flow_, call().op);
  check(
      MPI_Iallreduce(piece.partial, piece.result, count, type, op,
                     comms_->across_hosts(piece.slice), &transfers.add_between_hosts(piece.slice)),
      "MPI_Iallreduce");
}

// Returns the memory that holds what ranks take, once the hosts are through with the piece.
const char* HostCollective::finish(const Piece& piece) {
  if (layout_.is_one_host() || call().operation == Operation::broadcast) return piece.partial;
  if (flow_.reduces())
    finish_reduction(flow_.dtype(), call().op, comms_->info().size, piece.result, piece.result,
                     piece.elements.count());
  return piece.result;
}

// Sends each rank of this host what it takes of a piece, which lies at `from`.
void HostCollective::hand_out(const Piece& piece, const char* from, Transfers& transfers,
                              Transfers::Tag tag, bool also_nothing) {
  const std::size_t size = layout_.own_host().size();
  for (std::size_t step = 1; step <= size; ++step) {
    const std::size_t i = (layout_.index + step) % size;  // so that not all send to rank 0 first
    const Elements taken = flow_.takes(rank_at(i)) & piece.elements;
    const std::size_t bytes = flow_.bytes(taken.count());
    const char* at = bytes > 0 ? from + flow_.bytes(taken.begin - piece.elements.begin) : from;
    if (i != layout_.index && (bytes > 0 || also_nothing)) transfers.send(at, bytes, i, tag);
    else if (bytes > 0) std::memcpy(output_at(taken.begin), at, bytes);
  }
}

char* HostCollective::allocate(std::size_t bytes) {
  const auto memory = message_memory(std::max<std::size_t>(bytes, 1));
  memory_->push_back(memory);
  return memory.get();
}

// The received data of a piece lies rank by rank, each with room for all elements.
HostCollective::Piece HostCollective::allocate(std::size_t slice, std::int64_t elements,
                                               bool with_receives) {
  Piece piece{.slice = slice};
  const std::size_t partial = static_cast<std::size_t>(elements) * size_of(flow_.partial_dtype());
  piece.partial = allocate(partial);
  if (!layout_.is_one_host()) piece.result = allocate(partial);
  if (with_receives) piece.received = allocate(flow_.bytes(elements) * layout_.own_host().size());
  return piece;
}

// The vector is cut into blocks, and a block into a piece of each slice.
Elements HostCollective::piece_of(std::size_t slice, std::int64_t block_number) const {
  const auto slices = static_cast<std::int64_t>(comms_->slices());
  const std::int64_t begin = block_number * slices * piece_elements_,
                     count = std::min(slices * piece_elements_, flow_.count() - begin),
                     s = static_cast<std::int64_t>(slice);
  return {begin + count * s / slices, begin + count * (s + 1) / slices};
}

// Block i is scattered while block i - 1 is reduced and block i - 2 comes back from the other
// hosts.
void HostCollective::move() {
  // Messages inside the host go from and to the tensors.
  memory_->push_back(std::make_shared<Collective>(call()));
  const std::int64_t elements = static_cast<std::int64_t>(comms_->slices()) * piece_elements_,
                     blocks = (flow_.count() + elements - 1) / elements;
  const auto transfers = [&] {
    return Transfers(*comms_, exchange_, memory_, Transfers::in_transfer);
  };
  std::array<Block, 3> slots{{{transfers(), transfers(), transfers()},
                              {transfers(), transfers(), transfers()},
                              {transfers(), transfers(), transfers()}}};
  const auto slot = [&](std::int64_t i) -> Block& {
    return slots[static_cast<std::size_t>(i % 3)];
  };
  for (std::int64_t i = 0; i < blocks + 2; ++i) {
    if (i < blocks) scatter(slot(i), i);
    if (i >= 1 && i <= blocks) reduce(slot(i - 1));
    if (i >= 2) gather(slot(i - 2));
  }
  for (Block& each : slots) each.gather.wait(false);
}

// Ranks send and receive the pieces of a block in the order of their slices, by which messages
// between two ranks find each other.
void HostCollective::scatter(Block& block, std::int64_t number) {
  block.gather.wait(false);  // the block that used this memory before
  block.number = number;
  const std::size_t size = layout_.own_host().size(), slices = comms_->slices();
  if (block.own.empty())
    for (std::size_t slice = layout_.index; slice < slices; slice += size)
      block.own.push_back(allocate(slice, piece_of(slice, number).count(), true));
  for (Piece& piece : block.own) {
    piece.elements = piece_of(piece.slice, number);
    for (std::size_t i = 0; i < size; ++i)
      if (const Elements given = flow_.gives(rank_at(i)) & piece.elements;
          i != layout_.index && given.count() > 0)
        block.scatter.receive(piece.received + i * flow_.bytes(piece.elements.count()),
                              flow_.bytes(given.count()), i, Transfers::Tag::scatter);
  }
  for (std::size_t step = 1; step < size; ++step) {
    const std::size_t owner = (layout_.index + step) % size;
    for (std::size_t slice = owner; slice < slices; slice += size)
      if (const Elements given = flow_.gives(rank_at(layout_.index)) & piece_of(slice, number);
          given.count() > 0)
        block.scatter.send(input_at(given.begin), flow_.bytes(given.count()), owner,
                           Transfers::Tag::scatter);
  }
}

void HostCollective::reduce(Block& block) {
  block.scatter.wait(false);
  for (const Piece& piece : block.own) {
    std::vector<const void*> inputs;
    for (std::size_t i = 0; i < layout_.own_host().size(); ++i) {
      const Elements given = flow_.gives(rank_at(i)) & piece.elements;
      inputs.push_back(i != layout_.index ? piece.received + i * flow_.bytes(piece.elements.count())
                       : given.count() > 0 ? input_at(given.begin)
                                           : nullptr);
    }
    combine(piece, inputs);
    if (!layout_.is_one_host()) start_between_hosts(piece, block.between);
  }
}

void HostCollective::gather(Block& block) {
  const Elements taken = flow_.takes(rank_at(layout_.index));
  for (std::size_t slice = 0; slice < comms_->slices(); ++slice) {
    const std::size_t owner = comms_->owner_of(slice);
    const Elements part = taken & piece_of(slice, block.number);
    if (owner != layout_.index && part.count() > 0)
      block.gather.receive(output_at(part.begin), flow_.bytes(part.count()), owner,
                           Transfers::Tag::gather);
  }
  block.between.wait(false);
  for (const Piece& piece : block.own)
    hand_out(piece, finish(piece), block.gather, Transfers::Tag::gather, false);
}

const char* HostCollective::input_at(std::int64_t element) const {
  const std::int64_t begin = flow_.gives(rank_at(layout_.index)).begin;
  return static_cast<const char*>(call().input.raw()) + flow_.bytes(element - begin);
}

char* HostCollective::output_at(std::int64_t element) const {
  const std::int64_t begin = flow_.takes(rank_at(layout_.index)).begin;
  return static_cast<char*>(call().output.raw()) + flow_.bytes(element - begin);
}

}  // namespace tutti::distributed::mpi
