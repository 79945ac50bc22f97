/* Memory with an address from C: program owner | program guest ADDRESS HANDLE (hexadecimal). */
#include <ringcoll/remote.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBytes = 1 << 20, kHandle = 1024 };

#define REQUIRE(condition)                                                                  \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, ringcoll_error_message()); \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

static int own(rc_agent* agent) {
  char* addresses = NULL;
  void* memory = NULL;
  rc_region* region = NULL;
  unsigned char handle[kHandle];
  size_t length = sizeof handle;
  uint64_t notice = 0;
  REQUIRE(ringcoll_agent_admit(agent, "c", "key", 0, &addresses) == RC_OK);
  REQUIRE(ringcoll_allocate(kBytes, &memory) == RC_OK);
  memset(memory, 7, kBytes);
  REQUIRE(ringcoll_register(agent, memory, kBytes, 1, &region) == RC_OK);
  REQUIRE(ringcoll_region_handle(region, handle, &length) == RC_OK);
  printf("%.*s ", (int)strcspn(addresses + 2, "\""), addresses + 2);
  for (size_t i = 0; i < length; i++) printf("%02x", handle[i]);
  printf("\n");
  fflush(stdout);
  ringcoll_free(addresses);
  REQUIRE(ringcoll_region_notice(region, 30, &notice) == RC_OK);
  printf("notice %llu, byte %d\n", (unsigned long long)notice,
         ((unsigned char*)memory)[kBytes - 1]);
  REQUIRE(ringcoll_region_close(region, 5) == RC_OK);
  REQUIRE(ringcoll_release(memory) == RC_OK);
  return 0;
}

static int visit(rc_agent* agent, const char* address, const char* text) {
  unsigned char handle[kHandle];
  size_t length = strlen(text) / 2;
  for (size_t i = 0; i < length; i++) {
    unsigned value = 0;
    sscanf(text + 2 * i, "%2x", &value);
    handle[i] = (unsigned char)value;
  }
  char* addresses = NULL;
  REQUIRE(ringcoll_agent_admit(agent, "c", "key", 0, &addresses) == RC_OK);
  ringcoll_free(addresses);
  uint64_t connection = 0;
  REQUIRE(ringcoll_agent_dial(agent, address, 5, &connection) == RC_OK);
  ringcoll_agent_hang_up(agent, connection);

  rc_remote* remote = NULL;
  REQUIRE(ringcoll_attach(handle, length, &remote) == RC_OK);
  REQUIRE(ringcoll_remote_bytes(remote) == kBytes);
  unsigned char* local = malloc(kBytes);
  rc_source source = {remote, 0, 0};
  rc_copy copy;
  memset(&copy, 0, sizeof copy);
  copy.local = local;
  copy.bytes = kBytes;
  copy.sources = &source;
  copy.source_count = 1;
  rc_copies copies;
  memset(&copies, 0, sizeof copies);
  copies.struct_size = sizeof copies;
  copies.copies = &copy;
  copies.count = 1;
  REQUIRE(ringcoll_copy(agent, &copies) == RC_OK);
  REQUIRE(local[0] == 7 && local[kBytes - 1] == 7);

  memset(local, 9, kBytes);
  copy.writes = 1;
  copy.has_notice = 1;
  copy.notice = 42;
  rc_request* request = NULL;
  int done = 0;
  REQUIRE(ringcoll_start_copies(agent, &copies, &request) == RC_OK);
  REQUIRE(ringcoll_wait(request, 30, &done) == RC_OK && done);
  ringcoll_request_free(request);
  copy.bytes = kBytes + 1;
  REQUIRE(ringcoll_copy(agent, &copies) == RC_INVALID_ARGUMENT);
  ringcoll_detach(remote);
  free(local);
  return 0;
}

int main(int argc, char** argv) {
  rc_agent* agent = NULL;
  REQUIRE(ringcoll_agent_open(NULL, &agent) == RC_OK);
  int result = argc == 4 ? visit(agent, argv[2], argv[3]) : own(agent);
  ringcoll_agent_close(agent);
  return result;
}
