/*
 * A driver that misbehaves on order: what the emulated driver, which is a good driver with sick GPUs, cannot play.
 *
 * It serves 2 GPUs (or as many as $STUB_NVML/gpus says) and reads its orders from files in $STUB_NVML before every call:
 *   NAME          NVML function NAME answers with the number in the file instead
 *   NAME.GPU      the same for one GPU only (its index)
 *   slow          every call takes so many milliseconds
 *   hang          every call blocks for as long as the file exists
 *   hang.GPU      the same for calls about one GPU only (its index)
 *   processes.GPU lines "PID BYTES" of compute processes
 *   loads.GPU     lines "PID MICROSECONDS SM" of per-process readings
 *   nvlink.GPU    lines "BUS-ID TYPE", the far end of each NVLink: TYPE 0 a GPU, 2 a switch, -1 untold
 *   p2p           what nvmlDeviceGetP2PStatus says of every pair (without the file: NOT_SUPPORTED)
 *   remapped.GPU  "PENDING FAILED" of nvmlDeviceGetRemappedRows (without the file: NOT_SUPPORTED)
 *   fabric.GPU    "STATE STATUS" of its NVLink fabric (without the file: a GPU that has none)
 *   action.GPU    the recovery action (without the file: 0)
 *   cc, cc-ready  whether confidential computing is on, and whether GPUs accept work
 *   event-types   what nvmlDeviceGetSupportedEventTypes says (without the file: XIDs and double-bit ECC errors)
 *   registered.GPU (written) the types that nvmlDeviceRegisterEvents was asked for
 *   garbled       the index of a GPU whose name is no text
 *   event         one event, taken by the next wait: "GPU TYPE DATA", GPU -1 for none
 *   calls         (written) one byte is added for each call of nvmlEventSetWait
 *   sets          (written) for each nvmlShutdown a line with the number of event sets that were not freed before it
 * A set for which a registration ended with UNKNOWN answers UNKNOWN from then on: NVML calls its state undefined.
 * Built with -DOLD it lacks every function that came after driver 390.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, UNKNOWN = 999 };
enum { MOST = 64 };

typedef struct { int index; } device_t;
static device_t devices[MOST];

typedef struct { int spoilt; } set_t;
static int sets;

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { device_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;

static FILE *order(const char *name) {
    char path[512];
    const char *root = getenv("STUB_NVML");
    snprintf(path, sizeof path, "%s/%s", root ? root : "/nonexistent", name);
    return fopen(path, "re");
}

static int number(const char *name, int otherwise) {
    FILE *file = order(name);
    int value = otherwise;
    if (file == NULL) return otherwise;
    if (fscanf(file, "%d", &value) != 1) value = otherwise;
    fclose(file);
    return value;
}

static void wait_while(const char *name) {
    FILE *file;
    while ((file = order(name)) != NULL) { fclose(file); usleep(2000); }
}

static int enter(const char *name, const device_t *device) {
    char own[128];
    usleep(1000 * (unsigned)number("slow", 0));
    wait_while("hang");
    if (device != NULL) {
        snprintf(own, sizeof own, "hang.%d", device->index);
        wait_while(own);
        snprintf(own, sizeof own, "%s.%d", name, device->index);
        int ordered = number(own, OK);
        if (ordered != OK) return ordered;
    }
    return number(name, OK);
}

#define ENTER(device) do { int ordered = enter(__func__, device); if (ordered != OK) return ordered; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(NULL); return OK; }
int nvmlInit_v2(void) { ENTER(NULL); return OK; }
int nvmlShutdown(void) {
    char path[512];
    ENTER(NULL);
    snprintf(path, sizeof path, "%s/sets", getenv("STUB_NVML"));
    FILE *file = fopen(path, "ae");
    if (file != NULL) { fprintf(file, "%d\n", sets); fclose(file); }
    return OK;
}
const char *nvmlErrorString(int code) { (void)code; return "an error of the stub"; }
int nvmlSystemGetDriverVersion(char *out, unsigned length) { ENTER(NULL); snprintf(out, length, "390.157"); return OK; }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER(NULL); *out = (int)number("cuda", 9010); return OK; }
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER(NULL); *out = (unsigned)number("gpus", 2); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    if (index >= (unsigned)number("gpus", 2)) return INVALID_ARGUMENT;
    devices[index].index = (int)index;
    ENTER(&devices[index]);
    *out = &devices[index];
    return OK;
}

int nvmlDeviceGetUUID(device_t *d, char *out, unsigned length) {
    ENTER(d);
    snprintf(out, length, "GPU-00000000-0000-0000-0000-%012d", d->index);
    return OK;
}
int nvmlDeviceGetName(device_t *d, char *out, unsigned length) {
    ENTER(d);
    snprintf(out, length, number("garbled", -1) == d->index ? "Stub \xff\xfe%d" : "Stub %d", d->index);
    return OK;
}
int nvmlDeviceGetMinorNumber(device_t *d, unsigned *out) { ENTER(d); *out = (unsigned)d->index; return OK; }
int nvmlDeviceGetMemoryInfo(device_t *d, memory_t *out) {
    ENTER(d);
    *out = (memory_t){ .total = 16ULL << 30, .free = 15ULL << 30, .used = 1ULL << 30 };
    return OK;
}
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    ENTER(d);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", d->index + 1);
    return OK;
}
int nvmlDeviceGetUtilizationRates(device_t *d, rates_t *out) { ENTER(d); *out = (rates_t){ 7, 3 }; return OK; }

#ifndef OLD
/* The lines of a file as rows of three numbers; a missing one is 0. */
static unsigned rows(const char *name, const device_t *device, unsigned long long out[][3], unsigned most) {
    char own[128], line[128];
    unsigned count = 0;
    snprintf(own, sizeof own, "%s.%d", name, device->index);
    FILE *file = order(own);
    if (file == NULL) return 0;
    while (count < most && fgets(line, sizeof line, file) != NULL) {
        memset(out[count], 0, sizeof out[count]);
        if (sscanf(line, "%llu %llu %llu", &out[count][0], &out[count][1], &out[count][2]) > 0) count++;
    }
    fclose(file);
    return count;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_t;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } load_t;

int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory2_t *out) {
    int ordered = enter("nvmlDeviceGetMemoryInfo", d);
    if (ordered != OK) return ordered;
    out->total = 16ULL << 30; out->reserved = 512ULL << 20; out->used = 512ULL << 20; out->free = 15ULL << 30;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, process_t *out) {
    unsigned long long found[MOST][3];
    ENTER(d);
    unsigned room = *count;
    *count = rows("processes", d, found, MOST);
    if (*count == 0) return OK;
    if (out == NULL || room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) out[i] = (process_t){ (unsigned)found[i][0], found[i][1], ~0u, ~0u };
    return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t *d, unsigned *count, process_t *out) {
    return nvmlDeviceGetComputeRunningProcesses_v3(d, count, out);
}

int nvmlDeviceGetProcessUtilization(device_t *d, load_t *out, unsigned *count, unsigned long long since) {
    unsigned long long found[MOST][3];
    ENTER(d);
    unsigned room = *count, all = rows("loads", d, found, MOST), fresh = 0;
    for (unsigned i = 0; i < all; i++) fresh += found[i][1] > since;
    *count = fresh;
    if (fresh == 0) return NOT_FOUND;
    if (out == NULL || room < fresh) return INSUFFICIENT_SIZE;
    for (unsigned i = 0, at = 0; i < all; i++)
        if (found[i][1] > since) out[at++] = (load_t){ (unsigned)found[i][0], found[i][1], (unsigned)found[i][2], 0, 0, 0 };
    return OK;
}

int nvmlDeviceGetMemoryAffinity(device_t *d, unsigned words, unsigned long *out, unsigned scope) {
    (void)words; (void)out; (void)scope;
    ENTER(d);
    return NOT_SUPPORTED;
}
int nvmlDeviceGetComputeMode(device_t *d, unsigned *out) { ENTER(d); *out = 0; return OK; }
int nvmlDeviceGetMigMode(device_t *d, unsigned *now, unsigned *next) { ENTER(d); *now = *next = 0; return OK; }
int nvmlDeviceGetTopologyCommonAncestor(device_t *a, device_t *b, unsigned *out) { (void)b; ENTER(a); *out = 10; return OK; }
int nvmlDeviceGetSupportedEventTypes(device_t *d, unsigned long long *out) {
    ENTER(d);
    *out = (unsigned)number("event-types", 0xA);
    return OK;
}
int nvmlDeviceRegisterEvents(device_t *d, unsigned long long types, set_t *set) {
    char path[512];
    int ordered = enter(__func__, d);
    set->spoilt |= ordered == UNKNOWN;
    if (ordered != OK) return ordered;
    snprintf(path, sizeof path, "%s/registered.%d", getenv("STUB_NVML"), d->index);
    FILE *file = fopen(path, "we");
    if (file != NULL) { fprintf(file, "%llu", types); fclose(file); }
    return OK;
}

typedef struct { unsigned field, scope; long long time, latency; int type, error; unsigned long long value; } field_t;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric_t;
typedef struct { unsigned environment, feature, tools; } cc_t;

/* The first line of a file as two numbers; false without the file. */
static int pair(const char *name, const device_t *device, unsigned long long out[3]) {
    unsigned long long found[1][3];
    if (rows(name, device, found, 1) == 0) return 0;
    memcpy(out, found[0], sizeof found[0]);
    return 1;
}

int nvmlDeviceGetRemappedRows(device_t *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    unsigned long long told[3];
    ENTER(d);
    if (!pair("remapped", d, told)) return NOT_SUPPORTED;
    *corrected = 0; *uncorrected = 1; *pending = (unsigned)told[0]; *failed = (unsigned)told[1];
    return OK;
}
int nvmlDeviceGetGpuFabricInfoV(device_t *d, fabric_t *out) {
    unsigned long long told[3] = { 0, 0, 0 };
    ENTER(d);
    pair("fabric", d, told);
    out->state = (unsigned char)told[0]; out->status = (int)told[1];
    return OK;
}
int nvmlDeviceGetFieldValues(device_t *d, int count, field_t *values) {
    unsigned long long told[3] = { 0, 0, 0 };
    ENTER(d);
    pair("action", d, told);
    for (int i = 0; i < count; i++) { values[i].type = 1; values[i].error = OK; values[i].value = told[0]; }
    return OK;
}
int nvmlSystemGetConfComputeState(cc_t *out) { ENTER(NULL); *out = (cc_t){ 2, (unsigned)number("cc", 0), 0 }; return OK; }
int nvmlSystemGetConfComputeGpusReadyState(unsigned *out) { ENTER(NULL); *out = (unsigned)number("cc-ready", 0); return OK; }
/* The far end of a link; false for one that is down. */
static int far_end(const device_t *device, unsigned link, pci_t *out, int *type) {
    char own[128], line[128];
    unsigned at = 0;
    int found = 0;
    snprintf(own, sizeof own, "nvlink.%d", device->index);
    FILE *file = order(own);
    if (file == NULL) return 0;
    memset(out, 0, sizeof *out);
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = at++ == link && sscanf(line, "%31s %d", out->bus_id, type) == 2;
    fclose(file);
    return found;
}

int nvmlDeviceGetNvLinkState(device_t *d, unsigned link, unsigned *out) {
    pci_t end;
    int type;
    ENTER(d);
    if (link >= 18) return INVALID_ARGUMENT;
    *out = (unsigned)far_end(d, link, &end, &type);
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *d, unsigned link, pci_t *out) {
    int type;
    ENTER(d);
    return far_end(d, link, out, &type) ? OK : NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device_t *d, unsigned link, unsigned *out) {
    pci_t end;
    int type = -1;
    ENTER(d);
    if (!far_end(d, link, &end, &type) || type < 0) return NOT_SUPPORTED;
    *out = (unsigned)type;
    return OK;
}
int nvmlDeviceGetP2PStatus(device_t *a, device_t *b, unsigned index, unsigned *out) {
    (void)b;
    ENTER(a);
    if (index != 2 || number("p2p", -1) < 0) return NOT_SUPPORTED;
    *out = (unsigned)number("p2p", -1);
    return OK;
}

int nvmlEventSetCreate(set_t **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    if (*out == NULL) return UNKNOWN;
    sets++;
    return OK;
}
int nvmlEventSetFree(set_t *set) { ENTER(NULL); sets--; free(set); return OK; }

int nvmlEventSetWait_v2(set_t *set, event_t *out, unsigned timeout) {
    char path[512];
    int gpu;
    (void)timeout;
    snprintf(path, sizeof path, "%s/calls", getenv("STUB_NVML"));
    int calls = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (calls >= 0) { if (write(calls, ".", 1) != 1) { /* only counted */ } close(calls); }
    ENTER(NULL);
    if (set->spoilt) return UNKNOWN;
    FILE *file = order("event");
    if (file == NULL) return TIMEOUT;
    memset(out, 0, sizeof *out);
    int fields = fscanf(file, "%d %llu %llu", &gpu, &out->type, &out->data);
    fclose(file);
    snprintf(path, sizeof path, "%s/event", getenv("STUB_NVML"));
    unlink(path);
    if (fields != 3) return TIMEOUT;
    if (gpu >= 0 && gpu < MOST) {
        devices[gpu].index = gpu;
        out->device = &devices[gpu];
    }
    return OK;
}
#endif
