// MPI's functions over the simulated network. Collectives follow the schedules of Open MPI 4.1, so
// that the numbers of messages carry over: a binomial tree or, from 64 KiB and 4 ranks on,
// reduce-scatter and all-gather; Bruck's all-gather. Each goes on while its rank calls MPI.
// Creating communicators is taken as an agreement up and down a tree.
#include <mpi.h>

#include "network.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

namespace tutti::simulator {

struct Group {
  std::vector<int> ranks;  // of the world
};

struct Communicator {
  int id = 0;
  std::vector<int> ranks = {};          // of the world
  std::map<int, int> index = {};        // of these
  std::map<int, int> collectives = {};  // how many each has begun
};

namespace {

struct MpiRank {
  bool initialized = false, finalized = false;
  std::vector<MPI_Comm_delete_attr_function*> at_end;
  std::list<std::shared_ptr<Request>> collectives;
  std::map<std::string, int> made;  // communicators, by what they were made of
};
MpiRank& own() {
  static auto& all = *new std::vector<MpiRank>(static_cast<std::size_t>(layout().ranks()));
  return all[static_cast<std::size_t>(this_rank())];
}

Communicator* find_or_make(const std::string& key, const std::vector<int>& ranks) {
  static auto& all = *new std::map<std::string, Communicator>;
  const auto [found, is_new] = all.try_emplace(key);
  Communicator& comm = found->second;
  if (is_new) {
    comm.id = static_cast<int>(all.size());
    comm.ranks = ranks;
    for (std::size_t i = 0; i < ranks.size(); ++i) comm.index[ranks[i]] = static_cast<int>(i);
  }
  return &comm;
}

Communicator* world() {
  static Communicator* const comm = [] {
    std::vector<int> ranks(static_cast<std::size_t>(layout().ranks()));
    for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
    return find_or_make("world", ranks);
  }();
  return comm;
}

Communicator& resolve(MPI_Comm comm) { return comm == MPI_COMM_WORLD ? *world() : *comm; }

std::size_t size_of(MPI_Datatype type) {
  switch (type) {
    case MPI_BYTE:
    case MPI_UINT8_T: return 1;
    case MPI_INT:
    case MPI_FLOAT: return 4;
    default: return 8;
  }
}

template <class T, class Op>
void apply_as(const void* from, void* into, int count, Op op) {
  const T* const a = static_cast<const T*>(from);
  T* const b = static_cast<T*>(into);
  for (int i = 0; i < count; ++i) b[i] = op(a[i], b[i]);
}

template <class Op>
void apply(void* from, void* into, int* count, MPI_Datatype* type) {
  switch (*type) {
    case MPI_INT: return apply_as<int>(from, into, *count, Op());
    case MPI_FLOAT: return apply_as<float>(from, into, *count, Op());
    case MPI_DOUBLE: return apply_as<double>(from, into, *count, Op());
    case MPI_INT64_T: return apply_as<std::int64_t>(from, into, *count, Op());
    case MPI_UINT64_T: return apply_as<std::uint64_t>(from, into, *count, Op());
    default: return apply_as<std::uint8_t>(from, into, *count, Op());
  }
}

struct Least {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Most {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};
struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
void bit_or(void* from, void* into, int* count, MPI_Datatype*) {
  apply_as<std::uint8_t>(from, into, *count, [](std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(a | b);
  });
}

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

struct Vector {
  char* data;
  int count;
  MPI_Datatype type;
  std::size_t bytes(int elements) const {
    return static_cast<std::size_t>(elements) * size_of(type);
  }
  char* at(int element) const { return data + bytes(element); }
  void combine(char* from, int begin, int elements, MPI_Op op) const {
    MPI_Datatype of = type;
    op(from, at(begin), &elements, &of);
  }
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

std::shared_ptr<Schedule> all_reduce(Communicator& comm, const void* from, const Vector& v,
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

void progress() {
  auto& all = own().collectives;
  bool moved = false;
  for (auto each = all.begin(); each != all.end();) {
    moved = (*each)->advance() || moved;
    each = (*each)->done ? all.erase(each) : std::next(each);
  }
  if (moved) wake_pollers(this_rank());
}

MPI_Request hand_out(const std::shared_ptr<Request>& request) {
  request->handle = request;
  return request.get();
}

void start(const std::shared_ptr<Schedule>& schedule, MPI_Request* request) {
  own().collectives.push_back(schedule);
  *request = hand_out(schedule);
  progress();
}

void complete(const std::shared_ptr<Request>& request) {
  for (progress(); !request->done; progress()) pause_poll(20 * microsecond);
}

void complete(const std::shared_ptr<Schedule>& schedule) {
  own().collectives.push_back(schedule);
  complete(std::static_pointer_cast<Request>(schedule));
}

void agree(Communicator& comm) {
  int nothing = 0, all = 0;
  complete(all_reduce(comm, &nothing, {reinterpret_cast<char*>(&all), 1, MPI_INT}, MPI_MAX));
}

std::string key_of(const char* how, const Communicator& parent, int tag,
                   const std::vector<int>& ranks) {
  std::string key = fmt::format("{}{},{}:{}", how, parent.id, tag, fmt::join(ranks, ","));
  return fmt::format("{}#{}", key, own().made[key]++);
}

int take(MPI_Request* request, MPI_Status* status) {
  const std::shared_ptr<Request> done = std::move((*request)->handle);
  *request = MPI_REQUEST_NULL;
  if (status) status->MPI_ERROR = done->error;
  return done->error;
}

std::shared_ptr<Request> new_receive(void* to, std::size_t bytes, int from, int tag,
                                     const Communicator& comm) {
  const auto request = std::make_shared<Request>();
  request->source = from == MPI_ANY_SOURCE ? from : comm.ranks[static_cast<std::size_t>(from)];
  request->tag = tag;
  request->context = 2 * comm.id;
  request->to = to;
  request->bytes = bytes;
  receive(request);
  return request;
}

}  // namespace
}  // namespace tutti::simulator

using namespace tutti::simulator;

namespace {
Communicator world_handle, self_handle;
}
MPI_Comm MPI_COMM_WORLD = &world_handle, MPI_COMM_SELF = &self_handle;
const MPI_Op MPI_SUM = [](void* a, void* b, int* n, int* t) { apply<Sum>(a, b, n, t); };
const MPI_Op MPI_MIN = [](void* a, void* b, int* n, int* t) { apply<Least>(a, b, n, t); };
const MPI_Op MPI_MAX = [](void* a, void* b, int* n, int* t) { apply<Most>(a, b, n, t); };
const MPI_Op MPI_BOR = bit_or;

extern "C" {

int MPI_Init_thread(int*, char***, int wanted, int* provided) {
  if (const int code = enter("MPI_Init_thread")) return code;
  meet("MPI_Init_thread");
  own().initialized = true;
  *provided = wanted;
  return MPI_SUCCESS;
}
int MPI_Finalize() {
  enter("MPI_Finalize");
  for (const auto each : own().at_end) each(MPI_COMM_SELF, 0, nullptr, nullptr);
  meet("MPI_Finalize");
  own().finalized = true;
  return MPI_SUCCESS;
}
int MPI_Abort(MPI_Comm, int) {
  enter("MPI_Abort");
  end_job();
}
int MPI_Initialized(int* flag) {
  *flag = own().initialized;
  return MPI_SUCCESS;
}
int MPI_Finalized(int* flag) {
  *flag = own().finalized;
  return MPI_SUCCESS;
}
int MPI_Query_thread(int* provided) {
  *provided = MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}
int MPI_Error_string(int code, char* text, int* length) {
  const std::string what = code == MPI_ERR_TRUNCATE ? "message truncated" : "simulated error";
  std::memcpy(text, what.c_str(), what.size() + 1);
  *length = static_cast<int>(what.size());
  return MPI_SUCCESS;
}
int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  *rank = resolve(comm).index.at(this_rank());
  return MPI_SUCCESS;
}
int MPI_Comm_size(MPI_Comm comm, int* size) {
  *size = static_cast<int>(resolve(comm).ranks.size());
  return MPI_SUCCESS;
}
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) { return enter("MPI_Comm_set_errhandler"); }
int MPI_Comm_create_keyval(MPI_Comm_copy_attr_function*, MPI_Comm_delete_attr_function* at_end,
                           int* key, void*) {
  own().at_end.push_back(at_end);
  *key = 1;
  return MPI_SUCCESS;
}
int MPI_Comm_set_attr(MPI_Comm, int, void*) { return MPI_SUCCESS; }

int MPI_Comm_split_type(MPI_Comm parent, int, int, MPI_Info, MPI_Comm* comm) {
  if (const int code = enter("MPI_Comm_split_type")) return code;
  agree(resolve(parent));
  const std::vector<int> hosts = layout().hosts();
  std::vector<int> ranks;
  for (const int rank : resolve(parent).ranks)
    if (hosts[static_cast<std::size_t>(rank)] == hosts[static_cast<std::size_t>(this_rank())])
      ranks.push_back(rank);
  *comm = find_or_make(key_of("split", resolve(parent), 0, ranks), ranks);
  return MPI_SUCCESS;
}
int MPI_Comm_create_group(MPI_Comm parent, MPI_Group group, int tag, MPI_Comm* comm) {
  if (const int code = enter("MPI_Comm_create_group")) return code;
  *comm = find_or_make(key_of("group", resolve(parent), tag, group->ranks), group->ranks);
  agree(**comm);
  return MPI_SUCCESS;
}
int MPI_Comm_free(MPI_Comm* comm) {
  *comm = MPI_COMM_NULL;
  return enter("MPI_Comm_free");
}
int MPI_Comm_group(MPI_Comm comm, MPI_Group* group) {
  *group = new Group{resolve(comm).ranks};
  return MPI_SUCCESS;
}
int MPI_Group_incl(MPI_Group group, int size, const int* ranks, MPI_Group* some) {
  *some = new Group;
  for (int i = 0; i < size; ++i)
    (*some)->ranks.push_back(group->ranks[static_cast<std::size_t>(ranks[i])]);
  return MPI_SUCCESS;
}
int MPI_Group_free(MPI_Group* group) {
  delete std::exchange(*group, MPI_GROUP_NULL);
  return MPI_SUCCESS;
}
int MPI_Op_create(MPI_User_function* function, int, MPI_Op* op) {
  *op = function;
  return MPI_SUCCESS;
}

int MPI_Isend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (const int code = enter("MPI_Isend")) return code;
  const Communicator& in = resolve(comm);
  *request = hand_out(send(in.ranks[static_cast<std::size_t>(to)], 2 * in.id, tag, from,
                           static_cast<std::size_t>(count) * size_of(type)));
  return MPI_SUCCESS;
}
int MPI_Irecv(void* to, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request* request) {
  if (const int code = enter("MPI_Irecv")) return code;
  *request = hand_out(
      new_receive(to, static_cast<std::size_t>(count) * size_of(type), from, tag, resolve(comm)));
  return MPI_SUCCESS;
}
int MPI_Recv(void* to, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
             MPI_Status*) {
  if (const int code = enter("MPI_Recv")) return code;
  const auto request =
      new_receive(to, static_cast<std::size_t>(count) * size_of(type), from, tag, resolve(comm));
  complete(request);
  return request->error;
}
int MPI_Iprobe(int from, int tag, MPI_Comm comm, int* arrived, MPI_Status* status) {
  if (const int code = enter("MPI_Iprobe", true)) return code;
  progress();
  const Communicator& in = resolve(comm);
  const Message* message = find_message(from, tag, 2 * in.id);
  *arrived = message != nullptr;
  if (message) status->MPI_SOURCE = in.index.at(message->source);
  return MPI_SUCCESS;
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  if (const int code = enter("MPI_Test", true)) return code;
  progress();
  *done = *request == MPI_REQUEST_NULL || (*request)->done;
  return *done && *request != MPI_REQUEST_NULL ? take(request, status) : MPI_SUCCESS;
}
int MPI_Testsome(int count, MPI_Request* requests, int* done, int* which, MPI_Status* statuses) {
  if (const int code = enter("MPI_Testsome", true)) return code;
  progress();
  bool any = false, failed = false;
  *done = 0;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    any = true;
    if (!requests[i]->done) continue;
    failed = take(&requests[i], &statuses[*done]) != MPI_SUCCESS || failed;
    which[(*done)++] = i;
  }
  if (!any) *done = MPI_UNDEFINED;
  return failed ? MPI_ERR_IN_STATUS : MPI_SUCCESS;
}
int MPI_Cancel(MPI_Request* request) {
  cancel(**request);
  (*request)->done = true;
  return MPI_SUCCESS;
}
int MPI_Request_free(MPI_Request* request) {
  (*request)->handle.reset();
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  if (const int code = enter("MPI_Iallreduce")) return code;
  start(all_reduce(resolve(comm), from, {static_cast<char*>(to), count, type}, op), request);
  return MPI_SUCCESS;
}
int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  if (const int code = enter("MPI_Ibcast")) return code;
  const auto schedule = std::make_shared<Schedule>(resolve(comm));
  broadcast_by_tree(*schedule, {static_cast<char*>(data), count, type}, root);
  start(schedule, request);
  return MPI_SUCCESS;
}
int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  if (const int code = enter("MPI_Allreduce")) return code;
  complete(all_reduce(resolve(comm), from, {static_cast<char*>(to), count, type}, op));
  return MPI_SUCCESS;
}
int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* to, int, MPI_Datatype,
                  MPI_Comm comm) {
  if (const int code = enter("MPI_Allgather")) return code;
  const auto all = std::make_shared<Schedule>(resolve(comm));
  const int size = all->size(), me = all->me();
  const std::size_t block = static_cast<std::size_t>(count) * size_of(type);
  char* const rotated = all->allocate(block * static_cast<std::size_t>(size));
  std::memcpy(rotated, from, block);
  for (int step = 1; step < size; step *= 2) {
    const std::size_t bytes = block * static_cast<std::size_t>(std::min(step, size - step));
    all->send((me - step + size) % size, rotated, bytes);
    all->receive((me + step) % size, rotated + block * static_cast<std::size_t>(step), bytes);
    all->end_round();
  }
  complete(all);
  for (int i = 0; i < size; ++i)
    std::memcpy(static_cast<char*>(to) + block * static_cast<std::size_t>((me + i) % size),
                rotated + block * static_cast<std::size_t>(i), block);
  return MPI_SUCCESS;
}
}
