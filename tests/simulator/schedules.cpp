#include "schedules.h"

#include <algorithm>
#include <cstring>
#include <deque>

namespace tutti::simulator {
namespace {

// A collective of one rank: rounds of messages, each of which begins when the one before is done.
class Schedule : public Request {
 public:
  explicit Schedule(Communicator& comm)
      : comm_(comm), me_(comm.index.at(this_rank())), tag_(comm.collectives[this_rank()]++) {}
  int me() const { return me_; }
  int size() const { return static_cast<int>(comm_.ranks.size()); }
  char* allocate(std::size_t length) { return memory_.emplace_back(length).data(); }

  void send(int rank, const void* from, std::size_t length) {
    rounds_.back().start.push_back([=, this] {
      return simulator::send(world_rank(rank), 2 * comm_.id + 1, tag_, from, length);
    });
  }
  void receive(int from, void* into, std::size_t length) {
    rounds_.back().start.push_back([=, this] {
      const auto request = std::make_shared<Request>();
      request->source = world_rank(from);
      request->tag = tag_;
      request->context = 2 * comm_.id + 1;
      request->to = into;
      request->bytes = length;
      simulator::receive(request);
      return request;
    });
  }
  void end_round(std::function<void()> finish = [] {}) {
    rounds_.back().finish = std::move(finish);
    rounds_.emplace_back();
  }

  bool advance() override {
    bool moved = false;
    for (; !done; moved = true) {
      Round& round = rounds_.front();
      if (!started_)
        for (const auto& start : round.start) under_way_.push_back(start());
      started_ = true;
      if (!std::ranges::all_of(under_way_, [](const auto& each) { return each->done; })) break;
      under_way_.clear();
      started_ = false;
      if (round.finish) round.finish();
      rounds_.pop_front();
      done = rounds_.empty();
    }
    return moved;
  }

 private:
  struct Round {
    std::vector<std::function<std::shared_ptr<Request>()>> start = {};
    std::function<void()> finish = {};
  };
  int world_rank(int rank) const { return comm_.ranks[static_cast<std::size_t>(rank)]; }

  Communicator& comm_;
  const int me_, tag_;
  std::deque<Round> rounds_{1};
  bool started_ = false;
  std::vector<std::shared_ptr<Request>> under_way_;
  std::list<std::vector<char>> memory_;
};

void broadcast_by_tree(Schedule& all, const Vector& v, int root) {
  const int size = all.size(), me = (all.me() - root + size) % size;
  int mask = 1;
  for (; mask < size && !(me & mask); mask <<= 1) {}
  if (me != 0) {
    all.receive((me - mask + root) % size, v.data, v.bytes(v.count));
    all.end_round();
  }
  for (mask >>= 1; mask > 0; mask >>= 1)
    if (me + mask < size) all.send((me + mask + root) % size, v.data, v.bytes(v.count));
  all.end_round();
}

void reduce_by_tree(Schedule& all, const Vector& v, MPI_Op op) {
  const int me = all.me();
  for (int mask = 1; mask < all.size(); mask <<= 1) {
    if (me & mask) {
      all.send(me - mask, v.data, v.bytes(v.count));
      return all.end_round();
    }
    if (me + mask >= all.size()) continue;
    char* const other = all.allocate(v.bytes(v.count));
    all.receive(me + mask, other, v.bytes(v.count));
    all.end_round([=] { v.combine(other, 0, v.count, op); });
  }
}

// Rabenseifner's all-reduce. Where the ranks are no power of two, some fold theirs into others.
void reduce_scatter_and_gather(Schedule& all, const Vector& v, MPI_Op op) {
  int power = 1;
  while (2 * power <= all.size()) power *= 2;
  const int me = all.me(), rest = all.size() - power;
  const bool folded = me < 2 * rest;
  char* const other = all.allocate(v.bytes(v.count));
  if (folded && me % 2 == 0) {
    all.send(me + 1, v.data, v.bytes(v.count));
    all.end_round();
    all.receive(me + 1, v.data, v.bytes(v.count));
    return all.end_round();
  }
  if (folded) {
    all.receive(me - 1, other, v.bytes(v.count));
    all.end_round([=] { v.combine(other, 0, v.count, op); });
  }
  const int id = folded ? me / 2 : me - rest;
  const auto rank_of = [&](int i) { return i < rest ? 2 * i + 1 : i + rest; };
  struct Step {
    int peer, begin, count, other_begin, other_count;
  };
  std::vector<Step> steps;
  for (int mask = 1, begin = 0, end = v.count; mask < power; mask <<= 1) {
    const int middle = begin + (end - begin) / 2;
    const bool lower = (id & mask) == 0;
    const Step step = lower ? Step{rank_of(id ^ mask), begin, middle - begin, middle, end - middle}
                            : Step{rank_of(id ^ mask), middle, end - middle, begin, middle - begin};
    all.send(step.peer, v.at(step.other_begin), v.bytes(step.other_count));
    all.receive(step.peer, other, v.bytes(step.count));
    all.end_round([=] { v.combine(other, step.begin, step.count, op); });
    begin = step.begin;
    end = step.begin + step.count;
    steps.push_back(step);
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    all.send(step->peer, v.at(step->begin), v.bytes(step->count));
    all.receive(step->peer, v.at(step->other_begin), v.bytes(step->other_count));
    all.end_round();
  }
  if (folded) all.send(me - 1, v.data, v.bytes(v.count));
  all.end_round();
}

}  // namespace

std::size_t size_of(MPI_Datatype type) {
  switch (type) {
    case MPI_BYTE:
    case MPI_UINT8_T: return 1;
    case MPI_INT:
    case MPI_FLOAT: return 4;
    default: return 8;
  }
}

std::shared_ptr<Request> broadcast(Communicator& comm, const Vector& v, int root) {
  const auto schedule = std::make_shared<Schedule>(comm);
  broadcast_by_tree(*schedule, v, root);
  return schedule;
}

std::shared_ptr<Request> all_reduce(Communicator& comm, const void* from, const Vector& v,
                                    MPI_Op op) {
  const auto schedule = std::make_shared<Schedule>(comm);
  std::memcpy(v.data, from, v.bytes(v.count));
  if (schedule->size() < 4 || v.bytes(v.count) < 65536) {
    reduce_by_tree(*schedule, v, op);
    broadcast_by_tree(*schedule, v, 0);
  } else {
    reduce_scatter_and_gather(*schedule, v, op);
  }
  return schedule;
}

std::shared_ptr<Request> all_gather(Communicator& comm, const void* from, std::size_t bytes,
                                    void* to) {
  const auto all = std::make_shared<Schedule>(comm);
  const int size = all->size(), me = all->me();
  char* const rotated = all->allocate(bytes * static_cast<std::size_t>(size));
  std::memcpy(rotated, from, bytes);
  for (int step = 1; step < size; step *= 2) {
    const std::size_t length = bytes * static_cast<std::size_t>(std::min(step, size - step));
    all->send((me - step + size) % size, rotated, length);
    all->receive((me + step) % size, rotated + bytes * static_cast<std::size_t>(step), length);
    all->end_round();
  }
  all->end_round([=] {
    for (int i = 0; i < size; ++i)
      std::memcpy(static_cast<char*>(to) + bytes * static_cast<std::size_t>((me + i) % size),
                  rotated + bytes * static_cast<std::size_t>(i), bytes);
  });
  return all;
}

}  // namespace tutti::simulator
