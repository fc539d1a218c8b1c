// The part of MPI that the backend uses, as the simulator provides it: the MPI backend is compiled
// a second time with this header instead of the system's. mpi.cpp has the functions.
#pragma once

namespace tutti::simulator {
struct Communicator;
struct Group;
struct Request;
}  // namespace tutti::simulator

using MPI_Comm = tutti::simulator::Communicator*;
using MPI_Group = tutti::simulator::Group*;
using MPI_Request = tutti::simulator::Request*;
using MPI_User_function = void(void*, void*, int*, int*);
using MPI_Op = MPI_User_function*;
using MPI_Datatype = int;
using MPI_Info = int;
using MPI_Errhandler = int;
using MPI_Comm_copy_attr_function = int(MPI_Comm, int, void*, void*, void*, int*);
using MPI_Comm_delete_attr_function = int(MPI_Comm, int, void*, void*);
struct MPI_Status {
  int MPI_SOURCE, MPI_TAG, MPI_ERROR;
};

extern MPI_Comm MPI_COMM_WORLD, MPI_COMM_SELF;
extern const MPI_Op MPI_SUM, MPI_MIN, MPI_MAX, MPI_BOR;
#define MPI_COMM_NULL (static_cast<MPI_Comm>(nullptr))
#define MPI_GROUP_NULL (static_cast<MPI_Group>(nullptr))
#define MPI_REQUEST_NULL (static_cast<MPI_Request>(nullptr))
#define MPI_OP_NULL (static_cast<MPI_Op>(nullptr))
#define MPI_STATUS_IGNORE (static_cast<MPI_Status*>(nullptr))
#define MPI_COMM_NULL_COPY_FN (static_cast<MPI_Comm_copy_attr_function*>(nullptr))
enum { MPI_SUCCESS, MPI_ERR_TRUNCATE, MPI_ERR_OTHER, MPI_ERR_IN_STATUS };
enum { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE };
enum { MPI_ANY_SOURCE = -1, MPI_KEYVAL_INVALID = -1, MPI_UNDEFINED = -2 };
enum { MPI_INFO_NULL, MPI_ERRORS_RETURN, MPI_COMM_TYPE_SHARED, MPI_MAX_ERROR_STRING = 256 };
enum { MPI_MAX_LIBRARY_VERSION_STRING = 256 };
enum { MPI_BYTE, MPI_UINT8_T, MPI_INT, MPI_FLOAT, MPI_DOUBLE, MPI_INT64_T, MPI_UINT64_T };

extern "C" {
int MPI_Init_thread(int*, char***, int wanted, int* provided);
int MPI_Finalize();
int MPI_Abort(MPI_Comm, int code);
int MPI_Initialized(int* flag);
int MPI_Finalized(int* flag);
int MPI_Query_thread(int* provided);
int MPI_Get_library_version(char* text, int* length);
int MPI_Error_string(int code, char* text, int* length);
int MPI_Comm_rank(MPI_Comm comm, int* rank);
int MPI_Comm_size(MPI_Comm comm, int* size);
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler);
int MPI_Comm_create_keyval(MPI_Comm_copy_attr_function*, MPI_Comm_delete_attr_function*, int* key,
                           void*);
int MPI_Comm_set_attr(MPI_Comm, int key, void*);
int MPI_Comm_split_type(MPI_Comm parent, int type, int key, MPI_Info, MPI_Comm* comm);
int MPI_Comm_create_group(MPI_Comm parent, MPI_Group group, int tag, MPI_Comm* comm);
int MPI_Comm_free(MPI_Comm* comm);
int MPI_Comm_group(MPI_Comm comm, MPI_Group* group);
int MPI_Group_incl(MPI_Group group, int size, const int* ranks, MPI_Group* some);
int MPI_Group_free(MPI_Group* group);
int MPI_Op_create(MPI_User_function* function, int commutes, MPI_Op* op);
int MPI_Isend(const void* from, int count, MPI_Datatype, int to, int tag, MPI_Comm, MPI_Request*);
int MPI_Irecv(void* to, int count, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Request*);
int MPI_Recv(void* to, int count, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Status*);
int MPI_Iprobe(int from, int tag, MPI_Comm comm, int* arrived, MPI_Status* status);
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status);
int MPI_Testsome(int count, MPI_Request* requests, int* done, int* which, MPI_Status* statuses);
int MPI_Cancel(MPI_Request* request);
int MPI_Request_free(MPI_Request* request);
int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype, MPI_Op, MPI_Comm);
int MPI_Allgather(const void* from, int count, MPI_Datatype, void* to, int to_count, MPI_Datatype,
                  MPI_Comm);
int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype, MPI_Op, MPI_Comm,
                   MPI_Request*);
int MPI_Ibcast(void* data, int count, MPI_Datatype, int root, MPI_Comm, MPI_Request*);
}
