// The schedules of collectives: which messages each rank exchanges, in which rounds. They are those
// of Open MPI 4.1, so that the numbers of messages carry over: a binomial tree or, from 64 KiB and
// 4 ranks on, reduce-scatter and all-gather; Bruck's all-gather.
#pragma once

#include <mpi.h>

#include "network.h"

#include <map>

namespace tutti::simulator {

/// Ranks that take part in collectives together.
struct Communicator {
  int id = 0;
  std::vector<int> ranks = {};          // of the world
  std::map<int, int> index = {};        // of these
  std::map<int, int> collectives = {};  // how many each has begun
};

std::size_t size_of(MPI_Datatype type);

/// Elements that a collective reads or writes.
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

/// Begin a collective on the calling rank, which goes on by advance().
std::shared_ptr<Request> broadcast(Communicator& comm, const Vector& v, int root);
std::shared_ptr<Request> all_reduce(Communicator& comm, const void* from, const Vector& v,
                                    MPI_Op op);
/// Each rank gives so many bytes; `to` has room for those of all.
std::shared_ptr<Request> all_gather(Communicator& comm, const void* from, std::size_t bytes,
                                    void* to);

}  // namespace tutti::simulator
