// Prints the sum of one float32 tensor of each new version. It reads plain files: it needs nothing
// of ringcoll.
//
//   gcc -O2 -o sum_weights examples/weights/sum_weights.c
//   torchrun --standalone --nproc-per-node 2 examples/weights/train_transformer.py
//       --dtype float32 --path /dev/shm/weights
//   ./sum_weights /dev/shm/weights head.weight

#define _GNU_SOURCE  // memmem()
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char** words) {
  char link[4096], file[8192], seen[256] = "", version[256];
  if (count != 3) return fprintf(stderr, "usage: sum_weights FOLDER TENSOR\n"), 2;
  snprintf(link, sizeof link, "%s/latest", words[1]);
  for (;; usleep(10000)) {
    ssize_t length = readlink(link, version, sizeof version - 1);
    if (length < 0 || (version[length] = 0, strcmp(version, seen) == 0)) continue;
    snprintf(file, sizeof file, "%s/%s/%s.npy", words[1], version, words[2]);
    int descriptor = open(file, O_RDONLY);
    if (descriptor < 0) continue;  // it was just replaced: look at the link again
    struct stat about;
    fstat(descriptor, &about);
    const unsigned char* bytes = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);  // the mapping stays, also when the version is removed
    if (bytes == MAP_FAILED) return perror(file), 1;
    size_t start = 10 + (bytes[8] | bytes[9] << 8);  // after the header of format 1.0
    if (!memmem(bytes, start, "'<f4'", 5)) return fprintf(stderr, "%s is not float32\n", file), 1;
    double sum = 0;
    for (size_t at = start; at < (size_t)about.st_size; at += sizeof(float))
      sum += *(const float*)(bytes + at);
    printf("version %s: sum %.17g\n", version, sum);
    fflush(stdout);
    munmap((void*)bytes, about.st_size);
    strcpy(seen, version);
  }
}
