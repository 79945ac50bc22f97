/* libringcoll.so, but for some calls that it does not do as it is asked to.
 *
 * REFUSE=split: rank 1 names itself twice where it should name ranks 0 and 1, which all ranks are
 * refused for. REFUSE=member: rank 1 loses its part of that group. REFUSE=run: rank 1 is refused
 * its 200th call. Its other functions are those of the library that it is linked with. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "ringcoll/ringcoll.h"

typedef rc_status (*Split)(rc_comm*, const int32_t*, int32_t, const char*, rc_comm**);

typedef rc_status (*Run)(rc_comm*, const rc_call*);

rc_status ringcoll_run(rc_comm* comm, const rc_call* call) {
  static int calls = 0;
  Run run = (Run)dlsym(RTLD_NEXT, "ringcoll_run");
  rc_call refused = *call;
  refused.op = (rc_op)99;
  int hit = strcmp(getenv("REFUSE"), "run") == 0 && ringcoll_comm_rank(comm) == 1 && ++calls >= 200;
  return run(comm, hit ? &refused : call);
}

rc_status ringcoll_comm_split(rc_comm* comm, const int32_t* ranks, int32_t count, const char* name,
                              rc_comm** sub) {
  static const int32_t twice[] = {1, 1};
  Split split = (Split)dlsym(RTLD_NEXT, "ringcoll_comm_split");
  const char* how = getenv("REFUSE");
  int hit = ringcoll_comm_rank(comm) == 1 && count == 2 && ranks[0] == 0 && ranks[1] == 1;
  if (!hit) return split(comm, ranks, count, name, sub);
  if (strcmp(how, "split") == 0) return split(comm, twice, count, name, sub);
  rc_status status = split(comm, ranks, count, name, sub);
  if (status != RC_OK) return status;
  ringcoll_comm_destroy(*sub);
  *sub = NULL;
  return RC_TRANSPORT;
}
