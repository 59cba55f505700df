/* fake_nvml: a library with NVML's names and layouts, for tests without a device.
 *
 * It is built as libnvidia-ml.so.1 and found through LD_LIBRARY_PATH by an agent that knows nothing
 * of it. All that it says stands in the file that FAKE_NVML_STATE names: lines of `key value`, the
 * last of a key holds, read again whenever the file was replaced. What is not there is NOT_SUPPORTED:
 * it invents nothing. What a green test proves is layout, order of calls and error paths; nothing
 * about a device.
 *
 *   init 18                    what nvmlInit answers
 *   count 8
 *   gpu.3.uuid GPU-...         text of device 3; likewise name, serial, pci (dddddddd:bb:dd.f)
 *   gpu.3.power 68180          a number, in NVML's unit
 *   gpu.3.processes 100:4096   pid:bytes ...
 *   gpu.3.nvlink_state.0 1     link 0 is active; .nvlink_to_a.0 2 leads to a switch,
 *   gpu.3.nvlink_to.0 PCI      or to a device;  gpu.3.fabric STATE:CLUSTER:CLIQUE
 *   gpu.3.mig 2  gpu.3.mig.0.uuid ...  .gi .ci .total .used .name
 *   ret.<Symbol>[.<gpu>] 15    what a call answers instead; ret.gpu.<gpu> for all calls on a device
 *   after.<gpu> 5              ret.gpu.<gpu> holds from so many calls on
 *   hang.<Symbol> 1            never returns;  slow.<Symbol> <ms>;  crash.<Symbol> 1
 *   xid.<n> <gpu>:<code>       the nth event since the library was loaded
 *
 * Layouts follow NVIDIA's published header and not the Python binding, so that both agreeing is a
 * check.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int ret_t;
typedef struct { int gpu, mig; } *dev_t_;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
       TIMEOUT_ = 10, VERSION = 25 };

#define KEYS 8192
static struct { char *key, *value; } table[KEYS];
static int used, ready, calls[64], events_seen;
static struct timespec changed;
static ino_t inode;
static struct { int gpu, mig; } handles[64][17];

static unsigned hash(const char *text) {
    unsigned h = 5381;
    while (*text) h = h * 33 + (unsigned char)*text++;
    return h % KEYS;
}

static void put(char *key, char *value) {
    unsigned at = hash(key);
    while (table[at].key && strcmp(table[at].key, key)) at = (at + 1) % KEYS;
    if (!table[at].key) { table[at].key = strdup(key); used++; }
    free(table[at].value);
    table[at].value = strdup(value);
}

static void refresh(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat info;
    if (!path || stat(path, &info)) return;
    if (info.st_ino == inode && info.st_mtim.tv_sec == changed.tv_sec
        && info.st_mtim.tv_nsec == changed.tv_nsec) return;
    inode = info.st_ino; changed = info.st_mtim;
    for (int at = 0; at < KEYS; at++) {
        free(table[at].key); free(table[at].value);
        table[at].key = table[at].value = NULL;
    }
    used = 0;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char line[4096];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *space = strchr(line, ' ');
        if (!space || *line == '#' || used > KEYS / 2) continue;
        *space = 0;
        put(line, space + 1);
    }
    fclose(file);
}

static const char *get(const char *key) {
    unsigned at = hash(key);
    while (table[at].key) {
        if (!strcmp(table[at].key, key)) return table[at].value;
        at = (at + 1) % KEYS;
    }
    return NULL;
}

static const char *of(int gpu, int mig, const char *field) {
    char key[160];
    if (mig < 0) snprintf(key, sizeof key, "gpu.%d.%s", gpu, field);
    else snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", gpu, mig, field);
    return get(key);
}

static int asked(const char *symbol, const char *what) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", what, symbol);
    const char *value = get(key);
    return value ? atoi(value) : 0;
}

/* What every call does first: misbehave as the state says, then give the injected code. */
static ret_t enter(const char *symbol, int gpu) {
    char key[160];
    refresh();
    while (asked(symbol, "hang")) pause();
    if (asked(symbol, "crash")) raise(SIGSEGV);
    int slow = asked(symbol, "slow");
    if (slow) usleep(1000u * (unsigned)slow);
    if (!ready && strncmp(symbol, "nvmlInit", 8)) return UNINITIALIZED;
    if (gpu >= 0 && gpu < 64) {
        calls[gpu]++;
        snprintf(key, sizeof key, "after.%d", gpu);
        const char *after = get(key);
        snprintf(key, sizeof key, "ret.gpu.%d", gpu);
        const char *code = get(key);
        if (code && (!after || calls[gpu] > atoi(after))) return atoi(code);
        snprintf(key, sizeof key, "ret.%s.%d", symbol, gpu);
        code = get(key);
        if (code) return atoi(code);
    }
    snprintf(key, sizeof key, "ret.%s", symbol);
    const char *code = get(key);
    return code ? atoi(code) : OK;
}

static int gpu_of(dev_t_ device) { return device ? device->gpu : -1; }
static int mig_of(dev_t_ device) { return device ? device->mig : -1; }

#define ENTER(device) do { ret_t r_ = enter(__func__, gpu_of(device)); if (r_) return r_; \
                           if (!(device)) return INVALID; } while (0)

static ret_t number(dev_t_ device, const char *field, unsigned long long *out) {
    const char *text = of(gpu_of(device), mig_of(device), field);
    if (!text) return NOT_SUPPORTED;
    *out = strtoull(text, NULL, 0);
    return OK;
}

static ret_t text(dev_t_ device, const char *field, char *out, unsigned size) {
    const char *found = of(gpu_of(device), mig_of(device), field);
    if (!found) return NOT_SUPPORTED;
    if (strlen(found) + 1 > size) return TOO_SMALL;
    strcpy(out, found);
    return OK;
}

/* --- life cycle, system --------------------------------------------------------------------- */

static ret_t begin(const char *symbol) {
    ret_t r = enter(symbol, -1);
    if (r) return r;
    const char *code = get("init");
    if (code && atoi(code)) return atoi(code);
    ready = 1;
    return OK;
}
ret_t nvmlInit_v2(void) { return begin("nvmlInit_v2"); }
ret_t nvmlInitWithFlags(unsigned flags) { (void)flags; return begin("nvmlInitWithFlags"); }
ret_t nvmlShutdown(void) { ready = 0; return OK; }

const char *nvmlErrorString(ret_t code) {
    static char words[32];
    snprintf(words, sizeof words, "error %d of the fake", code);
    return words;
}

static ret_t global_text(const char *key, char *out, unsigned size) {
    const char *found = get(key);
    if (!found) return NOT_SUPPORTED;
    if (strlen(found) + 1 > size) return TOO_SMALL;
    strcpy(out, found);
    return OK;
}
ret_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ret_t r = enter(__func__, -1); return r ? r : global_text("driver", out, size); }
ret_t nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    ret_t r = enter(__func__, -1); return r ? r : global_text("nvml", out, size); }
ret_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ret_t r = enter(__func__, -1);
    if (r) return r;
    const char *found = get("cuda");
    if (!found) return NOT_SUPPORTED;
    *out = atoi(found);
    return OK;
}

/* --- enumeration, identity ------------------------------------------------------------------ */

static int count(void) { const char *text_ = get("count"); return text_ ? atoi(text_) : 0; }

static dev_t_ handle(int gpu, int mig) {
    handles[gpu][mig + 1].gpu = gpu;
    handles[gpu][mig + 1].mig = mig;
    return (dev_t_)&handles[gpu][mig + 1];
}

ret_t nvmlDeviceGetCount_v2(unsigned *out) {
    ret_t r = enter(__func__, -1);
    if (r) return r;
    *out = (unsigned)count();
    return OK;
}
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, dev_t_ *out) {
    ret_t r = enter(__func__, (int)index);
    if (r) return r;
    if (index >= (unsigned)count() || index >= 64) return INVALID;
    *out = handle((int)index, -1);
    return OK;
}
static ret_t by(const char *symbol, const char *field, const char *wanted, dev_t_ *out) {
    ret_t r = enter(symbol, -1);
    if (r) return r;
    for (int gpu = 0; gpu < count(); gpu++) {
        const char *found = of(gpu, -1, field);
        if (found && !strcasecmp(found, wanted)) {
            r = enter(symbol, gpu);
            if (r) return r;
            *out = handle(gpu, -1);
            return OK;
        }
    }
    return NOT_FOUND;
}
ret_t nvmlDeviceGetHandleByUUID(const char *wanted, dev_t_ *out) {
    return by(__func__, "uuid", wanted, out); }
ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, dev_t_ *out) {
    return by(__func__, "pci", wanted, out); }
ret_t nvmlDeviceGetIndex(dev_t_ device, unsigned *out) {
    ENTER(device); *out = (unsigned)device->gpu; return OK; }

ret_t nvmlDeviceGetUUID(dev_t_ d, char *out, unsigned n) { ENTER(d); return text(d, "uuid", out, n); }
ret_t nvmlDeviceGetName(dev_t_ d, char *out, unsigned n) { ENTER(d); return text(d, "name", out, n); }
ret_t nvmlDeviceGetSerial(dev_t_ d, char *out, unsigned n) {
    ENTER(d); return text(d, "serial", out, n); }
ret_t nvmlDeviceGetVbiosVersion(dev_t_ d, char *out, unsigned n) {
    ENTER(d); return text(d, "vbios", out, n); }

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;
_Static_assert(sizeof(pci_t) == 68, "nvmlPciInfo_t");

ret_t nvmlDeviceGetPciInfo_v3(dev_t_ device, pci_t *out) {
    ENTER(device);
    const char *where = of(device->gpu, -1, "pci");
    if (!where) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", where);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%s", where + 4);
    sscanf(where, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    unsigned long long id = 0;
    if (!number(device, "pci_id", &id)) out->pci_device_id = (unsigned)id;
    if (!number(device, "pci_subsystem", &id)) out->pci_subsystem_id = (unsigned)id;
    return OK;
}

/* --- memory, activity, power ---------------------------------------------------------------- */

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
_Static_assert(sizeof(memory_t) == 24 && sizeof(memory2_t) == 40, "nvmlMemory_t");

ret_t nvmlDeviceGetMemoryInfo(dev_t_ d, memory_t *out) {
    ENTER(d);
    unsigned long long total = 0, use = 0, reserved = 0;
    ret_t r = number(d, "total", &total);
    if (r) return r;
    number(d, "used", &use);
    number(d, "reserved", &reserved);
    out->total = total; out->used = use + reserved; out->free = total - use - reserved;
    return OK;
}
ret_t nvmlDeviceGetMemoryInfo_v2(dev_t_ d, memory2_t *out) {
    ENTER(d);
    if (out->version != 0x2000028) return VERSION;
    unsigned long long total = 0, use = 0, reserved = 0;
    ret_t r = number(d, "total", &total);
    if (r) return r;
    number(d, "used", &use);
    number(d, "reserved", &reserved);
    out->total = total; out->used = use; out->reserved = reserved;
    out->free = total - use - reserved;
    return OK;
}

typedef struct { unsigned gpu, memory; } rates_t;
ret_t nvmlDeviceGetUtilizationRates(dev_t_ d, rates_t *out) {
    ENTER(d);
    unsigned long long gpu = 0, memory = 0;
    ret_t r = number(d, "utilization", &gpu);
    if (r) return r;
    number(d, "memory_utilization", &memory);
    out->gpu = (unsigned)gpu; out->memory = (unsigned)memory;
    return OK;
}

#define UNSIGNED(symbol, field) \
    ret_t symbol(dev_t_ d, unsigned *out) { \
        ENTER(d); unsigned long long n = 0; ret_t r = number(d, field, &n); \
        if (!r) *out = (unsigned)n; \
        return r; }
#define PICKED(symbol, field) \
    ret_t symbol(dev_t_ d, unsigned which, unsigned *out) { \
        ENTER(d); char key[64]; snprintf(key, sizeof key, field ".%u", which); \
        unsigned long long n = 0; ret_t r = number(d, key, &n); \
        if (!r) *out = (unsigned)n; \
        return r; }

UNSIGNED(nvmlDeviceGetPowerUsage, "power")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UNSIGNED(nvmlDeviceGetPowerManagementLimit, "power_limit")
UNSIGNED(nvmlDeviceGetFanSpeed, "fan")
UNSIGNED(nvmlDeviceGetPerformanceState, "pstate")
UNSIGNED(nvmlDeviceGetMinorNumber, "minor")
UNSIGNED(nvmlDeviceGetNumGpuCores, "cores")
UNSIGNED(nvmlDeviceGetMemoryBusWidth, "bus_width")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
UNSIGNED(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
UNSIGNED(nvmlDeviceGetPersistenceMode, "persistence")
UNSIGNED(nvmlDeviceGetArchitecture, "architecture")
UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig_max")
PICKED(nvmlDeviceGetTemperature, "temperature")
PICKED(nvmlDeviceGetClockInfo, "clock")
PICKED(nvmlDeviceGetMaxClockInfo, "max_clock")
PICKED(nvmlDeviceGetNvLinkState, "nvlink_state")
PICKED(nvmlDeviceGetNvLinkRemoteDeviceType, "nvlink_to_a")

ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(dev_t_ d, unsigned link, pci_t *out) {
    ENTER(d);
    char key[64];
    snprintf(key, sizeof key, "nvlink_to.%u", link);
    const char *where = of(d->gpu, -1, key);
    if (!where) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", where);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%s", where + 4);
    return OK;
}

typedef struct {
    unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state;
    unsigned health;
} fabric_t;
_Static_assert(sizeof(fabric_t) == 36, "nvmlGpuFabricInfo_v2_t");

ret_t nvmlDeviceGetGpuFabricInfoV(dev_t_ d, fabric_t *out) {
    ENTER(d);
    if (out->version != 0x2000024) return VERSION;
    const char *found = of(d->gpu, -1, "fabric");  /* state:cluster in 32 digits:clique */
    unsigned state = 0, clique = 0;
    char digits[33] = "";
    if (!found) return NOT_SUPPORTED;
    if (sscanf(found, "%u:%32[0-9a-f]:%u", &state, digits, &clique) != 3) return INVALID;
    for (int at = 0; at < 16; at++) {
        unsigned byte = 0;
        sscanf(digits + 2 * at, "%2x", &byte);
        out->cluster[at] = (unsigned char)byte;
    }
    out->status = 0; out->clique = clique; out->state = (unsigned char)state; out->health = 0;
    return OK;
}

ret_t nvmlDeviceGetTotalEnergyConsumption(dev_t_ d, unsigned long long *out) {
    ENTER(d); return number(d, "energy", out); }
ret_t nvmlDeviceGetEccMode(dev_t_ d, unsigned *now, unsigned *pending) {
    ENTER(d);
    unsigned long long n = 0;
    ret_t r = number(d, "ecc", &n);
    if (!r) *now = *pending = (unsigned)n;
    return r;
}
ret_t nvmlDeviceGetRemappedRows(dev_t_ d, unsigned *corrected, unsigned *uncorrected,
                                unsigned *pending, unsigned *failed) {
    ENTER(d);
    const char *found = of(d->gpu, -1, "remapped");
    if (!found) return NOT_SUPPORTED;
    return sscanf(found, "%u,%u,%u,%u", corrected, uncorrected, pending, failed) == 4 ? OK : INVALID;
}
ret_t nvmlDeviceGetTotalEccErrors(dev_t_ d, unsigned kind, unsigned counter, unsigned long long *out) {
    ENTER(d);
    char key[64];
    snprintf(key, sizeof key, "ecc_errors.%u.%u", kind, counter);
    return number(d, key, out);
}
ret_t nvmlDeviceGetCudaComputeCapability(dev_t_ d, int *major, int *minor) {
    ENTER(d);
    const char *found = of(d->gpu, -1, "capability");
    if (!found) return NOT_SUPPORTED;
    return sscanf(found, "%d.%d", major, minor) == 2 ? OK : INVALID;
}

/* --- processes ------------------------------------------------------------------------------ */

typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process_t;
_Static_assert(sizeof(process_t) == 24, "nvmlProcessInfo_v2_t");

static ret_t processes(dev_t_ d, const char *field, unsigned *n, process_t *out) {
    const char *found = of(d->gpu, d->mig, field);
    if (!found) return NOT_SUPPORTED;
    unsigned have = 0, room = *n;
    char *copy = strdup(found), *rest = NULL;
    for (char *part = strtok_r(copy, " ", &rest); part; part = strtok_r(NULL, " ", &rest)) {
        unsigned pid = 0;
        unsigned long long bytes = ~0ULL;  /* not available */
        if (sscanf(part, "%u:%llu", &pid, &bytes) < 1) continue;
        if (out && have < room) {
            out[have].pid = pid; out[have].bytes = bytes;
            out[have].gi = out[have].ci = 0xFFFFFFFFu;
        }
        have++;
    }
    free(copy);
    *n = have;
    return have > room ? TOO_SMALL : OK;
}
ret_t nvmlDeviceGetComputeRunningProcesses_v3(dev_t_ d, unsigned *n, process_t *out) {
    ENTER(d); return processes(d, "processes", n, out); }
ret_t nvmlDeviceGetGraphicsRunningProcesses_v3(dev_t_ d, unsigned *n, process_t *out) {
    ENTER(d); return processes(d, "graphics", n, out); }

/* --- MIG ------------------------------------------------------------------------------------ */

ret_t nvmlDeviceGetMigMode(dev_t_ d, unsigned *now, unsigned *pending) {
    ENTER(d);
    unsigned long long n = 0;
    ret_t r = number(d, "mig_mode", &n);
    if (!r) *now = *pending = (unsigned)n;
    return r;
}
ret_t nvmlDeviceGetMigDeviceHandleByIndex(dev_t_ d, unsigned index, dev_t_ *out) {
    ENTER(d);
    if (index >= 16 || !of(d->gpu, (int)index, "uuid")) return NOT_FOUND;
    *out = handle(d->gpu, (int)index);
    return OK;
}
ret_t nvmlDeviceIsMigDeviceHandle(dev_t_ d, unsigned *out) { ENTER(d); *out = d->mig >= 0; return OK; }
ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(dev_t_ d, dev_t_ *out) {
    ENTER(d); *out = handle(d->gpu, -1); return OK; }
UNSIGNED(nvmlDeviceGetGpuInstanceId, "gi")
UNSIGNED(nvmlDeviceGetComputeInstanceId, "ci")

/* --- events --------------------------------------------------------------------------------- */

typedef struct { dev_t_ device; unsigned long long type, data; unsigned gi, ci; } event_t;
_Static_assert(sizeof(event_t) == 32, "nvmlEventData_t");
static int set_;

ret_t nvmlDeviceGetSupportedEventTypes(dev_t_ d, unsigned long long *out) {
    ENTER(d); return number(d, "event_types", out); }
ret_t nvmlEventSetCreate(void **out) {
    ret_t r = enter(__func__, -1);
    if (r) return r;
    *out = &set_;
    return OK;
}
ret_t nvmlDeviceRegisterEvents(dev_t_ d, unsigned long long types, void *set) {
    ENTER(d);
    (void)set;
    unsigned long long can = 0;
    if (number(d, "event_types", &can) || (types & ~can)) return NOT_SUPPORTED;
    return OK;
}
ret_t nvmlEventSetWait_v2(void *set, event_t *out, unsigned wait_ms) {
    ret_t r = enter(__func__, -1);
    if (r) return r;
    (void)set; (void)wait_ms;
    char key[32];
    int gpu; unsigned long long code;
    snprintf(key, sizeof key, "xid.%d", events_seen);
    const char *found = get(key);
    if (!found || sscanf(found, "%d:%llu", &gpu, &code) != 2) return TIMEOUT_;
    events_seen++;
    memset(out, 0, sizeof *out);
    out->device = handle(gpu, -1);
    out->type = 8;
    out->data = code;
    out->gi = out->ci = 0xFFFFFFFFu;
    return OK;
}
ret_t nvmlEventSetFree(void *set) { (void)set; return OK; }
