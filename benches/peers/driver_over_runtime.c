// A libcuda.so for replay programs whose fake CUDA has streams, events and mallocs in the runtime only (libcudart), and
// virtual memory in the driver (libcuda.so.1): the driver's functions that Concertina calls and such a fake lacks, each
// passed on to the runtime's function that does the same, so that it is counted and timed there. Error codes are the same
// numbers in both.
//
// A lookup in this library by name (dlsym) goes on in the libraries that it is linked with: what is not here is the fake
// driver's own. `run.sh` builds it.

#include <stddef.h>
#include <string.h>

typedef unsigned long long address;
typedef void *stream;
typedef void *event;

int cudaMalloc(void **memory, size_t bytes);
int cudaFree(void *memory);
int cudaStreamCreateWithFlags(stream *made, unsigned flags);
int cudaStreamDestroy(stream s);
int cudaStreamSynchronize(stream s);
int cudaStreamWaitEvent(stream s, event e, unsigned flags);
int cudaStreamIsCapturing(stream s, unsigned *status);
int cudaThreadExchangeStreamCaptureMode(unsigned *mode);
int cudaEventCreateWithFlags(event *made, unsigned flags);
int cudaEventDestroy(event e);
int cudaEventQuery(event e);
int cudaEventRecord(event e, stream s);
int cudaEventSynchronize(event e);

int cuMemAlloc_v2(address *at, size_t bytes) {
  void *memory = NULL;
  int code = cudaMalloc(&memory, bytes);
  *at = (address)(size_t)memory;
  return code;
}
int cuMemFree_v2(address at) { return cudaFree((void *)(size_t)at); }
int cuStreamCreate(stream *made, unsigned flags) { return cudaStreamCreateWithFlags(made, flags); }
int cuStreamDestroy_v2(stream s) { return cudaStreamDestroy(s); }
int cuStreamSynchronize(stream s) { return cudaStreamSynchronize(s); }
int cuStreamWaitEvent(stream s, event e, unsigned flags) { return cudaStreamWaitEvent(s, e, flags); }
int cuStreamIsCapturing(stream s, unsigned *status) { return cudaStreamIsCapturing(s, status); }
int cuThreadExchangeStreamCaptureMode(unsigned *mode) { return cudaThreadExchangeStreamCaptureMode(mode); }
int cuEventCreate(event *made, unsigned flags) { return cudaEventCreateWithFlags(made, flags); }
int cuEventDestroy_v2(event e) { return cudaEventDestroy(e); }
int cuEventQuery(event e) { return cudaEventQuery(e); }
int cuEventRecord(event e, stream s) { return cudaEventRecord(e, s); }
int cuEventSynchronize(event e) { return cudaEventSynchronize(e); }

// The fake has no bytes. At its start Concertina fills a page and reads it at another address: the last fill is what
// there is to read. Nothing else in a replay copies or fills.
static unsigned char filled;
int cuMemsetD8Async(address at, unsigned char value, size_t count, stream s) {
  (void)at, (void)count, (void)s;
  filled = value;
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, stream s) {
  (void)from, (void)s;
  memset(to, filled, bytes);
  return 0;
}

// Looked for, and not called.
static int not_supported(void) { return 801; }
int cuMemsetD16Async(void) { return not_supported(); }
int cuMemsetD32Async(void) { return not_supported(); }
int cuMemcpyHtoDAsync_v2(void) { return not_supported(); }
int cuMemcpyDtoDAsync_v2(void) { return not_supported(); }
