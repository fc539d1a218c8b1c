// MPI's functions over the simulated network. A collective goes on while its rank calls MPI.
// Creating communicators is taken as an agreement up and down a tree.
#include <mpi.h>

#include "schedules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace tutti::simulator {

struct Group {
  std::vector<int> ranks;  // of the world
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

void start(const std::shared_ptr<Request>& collective, MPI_Request* request) {
  own().collectives.push_back(collective);
  *request = hand_out(collective);
  progress();
}

void complete(const std::shared_ptr<Request>& request) {
  for (progress(); !request->done; progress()) pause_poll();
}

void complete_collective(const std::shared_ptr<Request>& collective) {
  own().collectives.push_back(collective);
  complete(collective);
}

void agree(Communicator& comm) {
  int nothing = 0, all = 0;
  complete_collective(
      all_reduce(comm, &nothing, {reinterpret_cast<char*>(&all), 1, MPI_INT}, MPI_MAX));
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
int MPI_Get_library_version(char* text, int* length) {
  *length = 9;
  std::memcpy(text, "simulated", 10);
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
  if (const int code = enter("MPI_Iprobe", Fault::at_poll)) return code;
  progress();
  const Communicator& in = resolve(comm);
  const Message* message = find_message(from, tag, 2 * in.id);
  *arrived = message != nullptr;
  if (message) status->MPI_SOURCE = in.index.at(message->source);
  return MPI_SUCCESS;
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  if (const int code = enter("MPI_Test", Fault::at_poll)) return code;
  progress();
  *done = *request == MPI_REQUEST_NULL || (*request)->done;
  return *done && *request != MPI_REQUEST_NULL ? take(request, status) : MPI_SUCCESS;
}
int MPI_Testsome(int count, MPI_Request* requests, int* done, int* which, MPI_Status* statuses) {
  if (const int code = enter("MPI_Testsome", Fault::at_poll)) return code;
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
  start(broadcast(resolve(comm), {static_cast<char*>(data), count, type}, root), request);
  return MPI_SUCCESS;
}
int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  if (const int code = enter("MPI_Allreduce")) return code;
  complete_collective(all_reduce(resolve(comm), from, {static_cast<char*>(to), count, type}, op));
  return MPI_SUCCESS;
}
int MPI_Allgather(const void* from, int count, MPI_Datatype type, void* to, int, MPI_Datatype,
                  MPI_Comm comm) {
  if (const int code = enter("MPI_Allgather")) return code;
  complete_collective(
      all_gather(resolve(comm), from, static_cast<std::size_t>(count) * size_of(type), to));
  return MPI_SUCCESS;
}
}
