/* NVRTC for the emulator: the host's C++ compiler, with device.h in front, makes a shared object. driver.c loads it. */
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID_INPUT = 3, COMPILATION = 6 };
#define API __attribute__((visibility("default")))
extern char **environ;

typedef struct program {
    char folder[64];
    char *log, *code;
    size_t log_bytes, code_bytes;
} program;

API int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 99, SUCCESS; }
API const char *nvrtcGetErrorString(int e) { return e == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

/* Text to a file below the folder. `extern __shared__ type name[];` becomes a pointer to where that memory lies. */
static bool put(const char *folder, const char *name, const char *text) {
    static const char mark[] = "extern __shared__ ";
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    if (!f) return false;
    for (const char *at; (at = strstr(text, mark));) {
        const char *type = at + strlen(mark);
        if (strncmp(type, "__align__(", 10) == 0) type = strchr(type, ')') + 1;
        const char *end = strchr(type, '['), *name_at = end;
        while (name_at > type && name_at[-1] != ' ' && name_at[-1] != '*') name_at--;
        fprintf(f, "%.*sstatic %.*s *const %.*s = (%.*s *)emulated_dynamic;", (int)(at - text), text,
                (int)(name_at - type), type, (int)(end - name_at), name_at, (int)(name_at - type), type);
        text = strchr(end, ';') + 1;
    }
    fputs(text, f);
    return fclose(f) == 0;
}

API int nvrtcCreateProgram(program **out, const char *text, const char *name, int nheaders, const char *const *headers,
                           const char *const *names) {
    program *p = calloc(1, sizeof(*p));
    (void)name;
    snprintf(p->folder, sizeof(p->folder), "/tmp/weft-emulator-XXXXXX");
    if (!mkdtemp(p->folder) || !put(p->folder, "source.cc", text)) return OUT_OF_MEMORY;
    for (int i = 0; i < nheaders; i++)
        if (strcmp(names[i], "ptx.h") != 0 && !put(p->folder, names[i], headers[i])) return OUT_OF_MEMORY;
    *out = p;
    return SUCCESS;
}

API int nvrtcDestroyProgram(program **p) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", (*p)->folder);
    if (system(command)) return INVALID_INPUT;
    free((*p)->log), free((*p)->code), free(*p);
    return SUCCESS;
}

static bool slurp(const program *p, const char *name, char **bytes, size_t *n) {
    char path[128];
    struct stat s;
    snprintf(path, sizeof(path), "%s/%s", p->folder, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &s)) return false;
    *n = (size_t)s.st_size;
    *bytes = calloc(1, *n + 1);
    const bool whole = read(fd, *bytes, *n) == (ssize_t)*n;
    close(fd);
    return whole;
}

API int nvrtcCompileProgram(program *p, int n, const char *const *options) {
    const char *compiler = getenv("CXX");
    const char *argv[128] = {compiler ? compiler : "g++",
                             "-std=c++17",
                             "-O1",
                             "-pedantic-errors",
                             "-fPIC",
                             "-shared",
                             "-march=native",
                             "-fvisibility=hidden",
                             "-Wl,-Bsymbolic",
                             "-fno-strict-aliasing",
                             "-fno-exceptions",
                             "-D__CUDACC_RTC__",
                             "-I",
                             EMULATOR_FOLDER,
                             "-include",
                             EMULATOR_FOLDER "/device.h",
                             "-I",
                             p->folder};
    int argc = 18, status = 1, arch = 0;
    char output[96], source[96], log[96], arch_define[48];
    bool contract = true;
    for (int i = 0; i < n && argc < 120; i++) {
        if (sscanf(options[i], "--gpu-architecture=sm_%d", &arch) == 1) continue;
        if (strcmp(options[i], "--fmad=false") == 0) contract = false;
        if (strncmp(options[i], "-D", 2) == 0) argv[argc++] = options[i];
    }
    snprintf(arch_define, sizeof(arch_define), "-D__CUDA_ARCH__=%d0", arch);
    snprintf(output, sizeof(output), "%s/module.so", p->folder);
    snprintf(source, sizeof(source), "%s/source.cc", p->folder);
    snprintf(log, sizeof(log), "%s/log", p->folder);
    argv[argc++] = arch_define;
    argv[argc++] = contract ? "-ffp-contract=fast" : "-ffp-contract=off";
    argv[argc++] = "-o";
    argv[argc++] = output;
    argv[argc++] = source;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid;
    if (posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)argv, environ) || waitpid(pid, &status, 0) < 0)
        status = 1;
    posix_spawn_file_actions_destroy(&files);
    slurp(p, "log", &p->log, &p->log_bytes);
    return status == 0 && slurp(p, "module.so", &p->code, &p->code_bytes) ? SUCCESS : COMPILATION;
}

API int nvrtcGetProgramLogSize(const program *p, size_t *n) { return *n = p->log_bytes + 1, SUCCESS; }
API int nvrtcGetProgramLog(const program *p, char *to) {
    memcpy(to, p->log ? p->log : "", p->log_bytes);
    to[p->log_bytes] = 0;
    return SUCCESS;
}
API int nvrtcGetCUBINSize(const program *p, size_t *n) { return *n = p->code_bytes, p->code ? SUCCESS : INVALID_INPUT; }
API int nvrtcGetCUBIN(const program *p, char *to) { return memcpy(to, p->code, p->code_bytes), SUCCESS; }
